//! Loads a shared library of rdma-core at run time and looks up the functions that [`library!`](crate::library) declares.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Why a library cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The dynamic linker finds no library of this name, or cannot load it.
    #[error("{reason}")]
    Library {
        /// Its Debian package.
        package: &'static str,
        /// The dynamic linker's message, which names the library.
        reason: String,
    },
    /// The library is too old to have the function.
    #[error("{library} has no function {function}")]
    Function {
        /// Its file name.
        library: &'static str,
        /// Its Debian package.
        package: &'static str,
        /// The name that was looked up.
        function: &'static str,
    },
}

impl LoadError {
    /// The Debian package that contains the library.
    pub fn package(&self) -> &'static str {
        match self {
            LoadError::Library { package, .. } | LoadError::Function { package, .. } => package,
        }
    }
}

/// A loaded library. It is never unloaded: its drivers keep pointers into it.
#[derive(Debug)]
pub struct Loaded {
    library: Library,
    name: &'static str,
    package: &'static str,
}

impl Loaded {
    /// Loads the library with this SONAME, or finds it loaded by another part of the process.
    ///
    /// # Safety
    /// The library of this name is the one of rdma-core: its initialisers run.
    pub unsafe fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the caller guarantees that the initialisers may run.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library { package, reason: error.to_string() })?;
        Ok(Loaded { library, name, package })
    }

    /// Looks up a function, in its default version.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of this name.
    pub unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F, LoadError> {
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { self.library.get::<F>(name.as_bytes()) };
        let missing = |_| LoadError::Function { library: self.name, package: self.package, function: name };
        symbol.map(|symbol| *symbol).map_err(missing)
    }

    /// Keeps the library loaded until the process ends.
    pub fn keep(self) {
        std::mem::forget(self.library);
    }
}

/// Declares functions of a shared library as `unsafe fn`s of the same names, and `load`, which has to succeed before
/// any of them is called.
#[macro_export]
macro_rules! library {
    (
        $soname:literal, $package:literal;
        $($(#[$doc:meta])* pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        /// The functions by name.
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        static FUNCTIONS: ::std::sync::OnceLock<Result<Functions, $crate::LoadError>> = ::std::sync::OnceLock::new();

        #[doc = concat!("Loads `", $soname, "` (package ", $package, "), once in a process. The answer does not change.")]
        pub fn load() -> Result<(), &'static $crate::LoadError> {
            let open = || {
                let (name, package) = ($soname, $package);
                // SAFETY: a library of rdma-core, whose initialisers only set up its tables.
                let library = unsafe { $crate::Loaded::open(name, package) }?;
                let functions = Functions {
                    // SAFETY: the type is the header's; a test compares them.
                    $($name: unsafe { library.function(concat!(stringify!($name), "\0")) }?,)*
                };
                library.keep();
                Ok(functions)
            };
            FUNCTIONS.get_or_init(open).as_ref().map(drop)
        }

        fn functions() -> &'static Functions {
            match FUNCTIONS.get() {
                Some(Ok(functions)) => functions,
                _ => panic!(concat!($soname, " is not loaded")),
            }
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The rules of the manual page of the same name. Panics before `load` has succeeded.
            #[inline]
            pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller keeps the rules of the function.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        // SAFETY: there is no library of this name.
        let error = unsafe { Loaded::open("libdapl-no-such.so.9", "libnosuch9") }.unwrap_err();
        assert_eq!(error.package(), "libnosuch9");
        assert!(error.to_string().starts_with("libdapl-no-such.so.9: "), "{error}");
    }

    #[test]
    fn a_missing_function_is_named_with_its_library() {
        // SAFETY: the C library is loaded already.
        let library = unsafe { Loaded::open("libc.so.6", "libc6") }.unwrap();
        // SAFETY: never called.
        let missing = unsafe { library.function::<unsafe extern "C" fn()>("dapl_no_such_function") };
        assert_eq!(missing.unwrap_err().to_string(), "libc.so.6 has no function dapl_no_such_function");
        // SAFETY: the type of getpid.
        let getpid = unsafe { library.function::<unsafe extern "C" fn() -> i32>("getpid") }.unwrap();
        // SAFETY: no arguments.
        assert_eq!(unsafe { getpid() } as u32, std::process::id());
    }
}
