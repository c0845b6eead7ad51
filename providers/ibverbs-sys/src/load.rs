//! Loads a shared library of rdma-core at run time and looks up the functions that [`library!`](crate::library)
//! declares.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Why a library cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The dynamic linker does not find the library, or cannot load it.
    #[error("{reason}")]
    Library {
        /// Debian package of the library.
        package: &'static str,
        /// The dynamic linker's message, which names the library.
        reason: String,
    },
    /// The library is too old to have the function.
    #[error("{library} has no function {function}")]
    Function {
        /// File name of the library.
        library: &'static str,
        /// Debian package of the library.
        package: &'static str,
        /// Name of the missing function.
        function: &'static str,
    },
}

impl LoadError {
    /// Returns the Debian package that contains the library.
    pub fn package(&self) -> &'static str {
        match self {
            LoadError::Library { package, .. } | LoadError::Function { package, .. } => package,
        }
    }
}

/// A loaded library. Dropping it unloads the library, unless [`Loaded::keep`] is called. A library of rdma-core must be
/// kept, because its drivers keep pointers into it.
#[derive(Debug)]
pub struct Loaded {
    library: Library,
    name: &'static str,
    package: &'static str,
}

impl Loaded {
    /// Loads the library with this SONAME, or returns it if the process has loaded it already.
    ///
    /// # Safety
    /// The initialisers of the library run. It must be safe to run them on this thread at this time.
    pub unsafe fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the caller guarantees that the initialisers may run.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library { package, reason: error.to_string() })?;
        Ok(Loaded { library, name, package })
    }

    /// Looks up the default version of a function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function with this name.
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

/// Declares the functions of a shared library as `unsafe fn`s with the same names. Also declares `load`, which must
/// succeed before one of them is called.
#[macro_export]
macro_rules! library {
    (
        $soname:literal, $package:literal;
        $($(#[$doc:meta])* pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        static FUNCTIONS: ::std::sync::OnceLock<Result<Functions, $crate::LoadError>> = ::std::sync::OnceLock::new();

        #[doc = concat!("Loads `", $soname, "` (package ", $package, "), once in a process. Later calls return the same result.")]
        pub fn load() -> Result<(), &'static $crate::LoadError> {
            let open = || {
                let (name, package) = ($soname, $package);
                // SAFETY: the initialisers of rdma-core's libraries only initialise internal tables.
                let library = unsafe { $crate::Loaded::open(name, package) }?;
                let functions = Functions {
                    // SAFETY: the declared type is that of the header: `test/tests/rdma_headers.rs` compares both.
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
            /// The caller follows the rules of the manual page of this function. Panics before `load` has succeeded.
            #[inline]
            pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller follows the rules of the function's manual page.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_reported_with_its_package() {
        // SAFETY: no library has this name, so no initialiser runs.
        let error = unsafe { Loaded::open("libdapl-no-such.so.9", "libnosuch9") }.unwrap_err();
        assert_eq!(error.package(), "libnosuch9");
        assert!(error.to_string().starts_with("libdapl-no-such.so.9: "), "{error}");
    }

    #[test]
    fn missing_function_is_reported_with_its_library() {
        // SAFETY: the C library is loaded already, so no initialiser runs.
        let library = unsafe { Loaded::open("libc.so.6", "libc6") }.unwrap();
        // SAFETY: the function is never called.
        let missing = unsafe { library.function::<unsafe extern "C" fn()>("dapl_no_such_function") };
        assert_eq!(missing.unwrap_err().to_string(), "libc.so.6 has no function dapl_no_such_function");
        // SAFETY: getpid has this type.
        let getpid = unsafe { library.function::<unsafe extern "C" fn() -> i32>("getpid") }.unwrap();
        // SAFETY: getpid has no arguments and no preconditions.
        assert_eq!(unsafe { getpid() } as u32, std::process::id());
    }
}
