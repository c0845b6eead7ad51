//! Loads provider libraries, checks them, and calls their `dat_provider_init` and `dat_provider_fini`.
//!
//! `registry` holds no lock while it loads, initialises or finalises a library, because a provider's init calls back
//! into libdat. A library is never unmapped: libdat follows the first word of a stale handle to the provider's table,
//! which is in the library, and a provider may have threads.
//!
//! Submodules: `found` (the file of a library name), `host` (C library calls), `other` (calls into the other libdat).

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use dat_abi::{DAT_PROVIDER_FINI_FUNC, DAT_PROVIDER_INFO, DAT_PROVIDER_INIT_FUNC};

use crate::conf::{is_for_libdat1, is_for_libdat2};
use crate::refused::CauseAndRemedy;

pub(crate) mod found;
pub(crate) mod host;
pub(crate) mod other;

/// A mapped provider library that exports `dat_provider_init`.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    init: DAT_PROVIDER_INIT_FUNC,
    fini: Option<DAT_PROVIDER_FINI_FUNC>,
    /// Whether the library lists `libdat.so.1` as needed. If it belongs to another implementation, it registers its
    /// names with `libdat.so.1`, and `libdat2.so.2` gets no registration.
    pub(crate) needs_libdat1: bool,
    /// Whether the library's file name or SONAME has the version `.so.1`, and neither has `.so.2`. Such a library is
    /// for `libdat.so.1`; only this project's providers serve both versions under such a name.
    pub(crate) is_named_for_libdat1: bool,
}

/// Maps the library of a record of the major API version `major`. The error contains the cause and the remedy.
pub(crate) fn load(path: &[u8], major: u32) -> Result<Library, CauseAndRemedy> {
    let shown = path.escape_ascii();
    if let Some((cause, remedy)) = check_path(path, major, host::is_privileged()) {
        return Err(CauseAndRemedy::new(format!("{shown} {cause}"), remedy));
    }
    let name = CString::new(path).map_err(|_| CauseAndRemedy::new(format!("{shown} contains a NUL byte"), ""))?;
    let image = open_or_beside(&name)
        .map_err(|reason| CauseAndRemedy { remedy: remedy(path, &reason).to_owned(), cause: reason })?;
    let needs = |name: &[u8]| image.names(DT_NEEDED).any(|needed| needed.to_bytes().starts_with(name));
    if major == 1 && needs(b"libdat2.so") {
        let cause = format!("{shown} needs libdat2.so.2: it implements DAT 2.0 only");
        return Err(CauseAndRemedy::new(cause, "name a library for 1.2"));
    }
    // A library for libdat2 would register a provider table in the layout of 2.0.
    if let Some(soname) = image.names(DT_SONAME).find(|soname| major == 1 && is_for_libdat2(soname.to_bytes())) {
        let cause = format!("{shown} is {}: it implements DAT 2.0 only", soname.to_string_lossy());
        return Err(CauseAndRemedy::new(cause, "name a library for 1.2"));
    }
    let needs_libdat1 = needs(b"libdat.so");
    let soname = image.names(DT_SONAME).next().map_or(&b""[..], CStr::to_bytes);
    let is_named = |of_version: fn(&[u8]) -> bool| of_version(path) || of_version(soname);
    let is_named_for_libdat1 = is_named(is_for_libdat1) && !is_named(is_for_libdat2);
    let Some(init) = image.symbol(c"dat_provider_init") else {
        let cause = format!("{shown} has no dat_provider_init: it is not a DAT provider");
        return Err(CauseAndRemedy::new(cause, "name a provider's library as lib_path"));
    };
    let fini = image.symbol(c"dat_provider_fini");
    // SAFETY: a symbol of this name is the init function that the ABI defines; `symbol` found it, so it is not null.
    let init = unsafe { std::mem::transmute::<*mut c_void, DAT_PROVIDER_INIT_FUNC>(init) };
    // SAFETY: a symbol of this name is the fini function that the ABI defines; `symbol` found it, so it is not null.
    let fini = fini.map(|fini| unsafe { std::mem::transmute::<*mut c_void, DAT_PROVIDER_FINI_FUNC>(fini) });
    Ok(Library { init, fini, needs_libdat1, is_named_for_libdat1 })
}

/// Checks a path before anything is mapped. Returns the reason to refuse it and the remedy.
fn check_path(path: &[u8], major: u32, privileged: bool) -> Option<(&'static str, &'static str)> {
    if major == 1 && is_for_libdat2(path) {
        return Some(("is a library for libdat2 (.so.2), but the line says u1", "name the .so.1 library"));
    }
    // A set-uid process refuses a relative path, because the caller's working directory would determine which library
    // is loaded.
    let relative = path.contains(&b'/') && !path.starts_with(b"/");
    let cause = "is a relative path, which a set-uid program does not load";
    (privileged && relative).then_some((cause, "write an absolute one"))
}

/// The remedy for an error of the dynamic loader.
fn remedy(path: &[u8], reason: &str) -> &'static str {
    let about_itself = reason.as_bytes().starts_with(path);
    match reason {
        _ if reason.contains("No such file") && about_itself => "install that library, or correct lib_path",
        _ if reason.contains("No such file") => "install that library, which the provider needs",
        _ if reason.contains("undefined symbol") => "install the versions of libraries that it was built against",
        _ if reason.contains("ermission denied") => "permit this user to read it",
        _ if reason.contains("invalid ELF header") || reason.contains("wrong ELF class") => {
            "name a shared library for this machine"
        }
        _ => "run ldd on that file",
    }
}

impl Library {
    /// Calls the provider's init. Init returns no result; it has succeeded if the provider has registered the name.
    pub(crate) fn init(self, info: &'static DAT_PROVIDER_INFO, params: &'static CStr) {
        // SAFETY: both records live as long as the process, and the library exports the function under the ABI's name.
        unsafe { (self.init)(info, params.as_ptr()) }
    }

    /// Calls the provider's fini, if the library has one. Fini usually removes the registration.
    pub(crate) fn fini(self, info: &'static DAT_PROVIDER_INFO) {
        if let Some(fini) = self.fini {
            // SAFETY: the record lives as long as the process, and the library exports the function under the ABI's
            // name.
            unsafe { fini(info) }
        }
    }
}

/// A library that the dynamic loader has mapped. It is never unmapped.
struct LoadedLibrary(*mut c_void);

/// Opens the library with this name. If that fails and the name has no slash, tries libdat's own directory, so that an
/// installation below any prefix needs no loader configuration.
fn open_or_beside(name: &CStr) -> Result<LoadedLibrary, String> {
    let first = open_with_retry(name);
    let Err(reason) = first else { return first };
    let bare = !name.to_bytes().contains(&b'/');
    let Some(in_own_directory) = host::library().filter(|_| bare).and_then(|own| in_own_directory(&own, name)) else {
        return Err(reason);
    };
    open_with_retry(&in_own_directory)
}

/// Opens a provider, and retries once after two kinds of failure:
///
/// - Symbols of libdat are undefined, because the provider does not list libdat as needed. Before the retry, the
///   symbols of this libdat are made global.
/// - The provider needs `libdat.so.1`, and the dynamic loader does not find it. Before the retry, the `libdat.so.1` in
///   this libdat's directory is mapped, and the loader finds it by its SONAME.
fn open_with_retry(name: &CStr) -> Result<LoadedLibrary, String> {
    match LoadedLibrary::open(name) {
        Err(reason) if reason.contains("undefined symbol") && make_symbols_global() => LoadedLibrary::open(name),
        Err(reason) if reason.starts_with("libdat.so.1: ") && map_libdat1_beside() => LoadedLibrary::open(name),
        other => other,
    }
}

/// Maps the `libdat.so.1` in this libdat's directory, if it exists. This project's providers need `libdat.so.1`, also
/// for programs of DAT 2.0.
fn map_libdat1_beside() -> bool {
    let file = host::library().and_then(|own| in_own_directory(&own, c"libdat.so.1"));
    file.is_some_and(|file| LoadedLibrary::open(&file).is_ok())
}

/// Path of a file in libdat's own directory, if the file exists.
fn in_own_directory(own: &CStr, name: &CStr) -> Option<CString> {
    let path = Path::new(OsStr::from_bytes(own.to_bytes())).with_file_name(OsStr::from_bytes(name.to_bytes()));
    path.exists().then(|| CString::new(path.as_os_str().as_bytes()).ok()).flatten()
}

/// Makes libdat's own symbols visible to libraries that are opened afterwards. Needed if the program opened libdat with
/// `RTLD_LOCAL`, and the provider does not list libdat as needed.
fn make_symbols_global() -> bool {
    let Some(own) = host::library() else { return false };
    // SAFETY: the string is NUL-terminated; NOLOAD maps nothing new, so no foreign code runs.
    let image = unsafe { libc::dlopen(own.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | libc::RTLD_NOLOAD) };
    !image.is_null()
}

impl LoadedLibrary {
    fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: the string is NUL-terminated. The library's constructors run, as the author of dat.conf intends.
        let image = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !image.is_null() {
            return Ok(Self(image));
        }
        // SAFETY: dlerror is per thread. It returns null or a string that is valid until this thread's next dl call.
        let reason = unsafe {
            let text = libc::dlerror();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(reason.unwrap_or_else(|| "the dynamic loader refused it without a reason".to_owned()))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle came from dlopen and is never closed; the name is NUL-terminated.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }

    /// The strings of the library's dynamic entries with this tag, `DT_NEEDED` or `DT_SONAME`.
    fn names(&self, tag: isize) -> impl Iterator<Item = &'static CStr> {
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: the handle came from dlopen; RTLD_DI_LINKMAP writes one pointer.
        let result = unsafe { dlinfo(self.0, RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        // SAFETY: dlinfo gave the loader's own record of an image that is never unmapped.
        let map = if result == 0 { unsafe { map.as_ref() } } else { None };
        let entries = map.map(dynamic).unwrap_or_default();
        let strings = entries.iter().find(|entry| entry.tag == DT_STRTAB).map_or(0, |entry| entry.value);
        // On most architectures the C library has added the load address to this entry. On the others the value is an
        // offset, which is less than the load address, so the load address is added here.
        let base = map.map_or(0, |map| map.address);
        let strings = if strings < base { strings + base } else { strings };
        let named = entries.iter().filter(move |entry| entry.tag == tag && strings != 0);
        // SAFETY: the entry is an offset into the string table of the same mapped image, which the loader has used too.
        named.map(move |entry| unsafe { CStr::from_ptr((strings + entry.value) as *const c_char) })
    }
}

/// The dynamic section of a mapped image, without its end mark.
fn dynamic(map: &LinkMap) -> &'static [Dynamic] {
    if map.dynamic.is_null() {
        return &[];
    }
    // SAFETY: the loader maps the section with its end mark and never unmaps this image.
    let length = unsafe { (0..).find(|at| (*map.dynamic.add(*at)).tag == DT_NULL) }.unwrap_or(0);
    // SAFETY: the end mark was found at index `length`, so that many entries precede it.
    unsafe { std::slice::from_raw_parts(map.dynamic, length) }
}

/// The public head of the loader's record of an image (`struct link_map`).
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

/// One entry of a dynamic section (`ElfW(Dyn)`).
#[repr(C)]
struct Dynamic {
    tag: isize,
    value: usize,
}

const DT_NULL: isize = 0;
const DT_NEEDED: isize = 1;
const DT_STRTAB: isize = 5;
const DT_SONAME: isize = 14;
const RTLD_DI_LINKMAP: c_int = 2;

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_path_unfit_for_set_uid_or_the_dat_version_is_refused() {
        assert_eq!(check_path(b"libx.so.1", 1, true), None);
        assert_eq!(check_path(b"/opt/libx.so.1", 1, true), None);
        assert_eq!(check_path(b"./libx.so.1", 1, false), None);
        assert!(check_path(b"./libx.so.1", 1, true).is_some_and(|(cause, _)| cause.contains("set-uid")));
        assert!(check_path(b"libx.so.2", 1, false).is_some_and(|(cause, _)| cause.contains("libdat2")));
        assert_eq!(check_path(b"libx.so.2", 2, false), None);
    }

    #[test]
    fn errors_of_the_dynamic_loader_have_remedies() {
        let remedies = [
            "libx.so: cannot open shared object file: No such file or directory",
            "liby.so: cannot open shared object file: No such file or directory",
            "libx.so: undefined symbol: f",
            "libx.so: cannot open shared object file: Permission denied",
            "libx.so: invalid ELF header",
            "libx.so: out of static TLS",
        ];
        let remedies: std::collections::BTreeSet<_> =
            remedies.iter().map(|reason| remedy(b"libx.so", reason)).collect();
        assert_eq!(remedies.len(), 6, "{remedies:?}");
    }

    #[test]
    fn needed_libraries_are_read_from_the_dynamic_section() {
        let image = LoadedLibrary::open(c"libgcc_s.so.1").unwrap();
        assert!(image.names(DT_NEEDED).any(|name| name == c"libc.so.6"));
        assert!(image.names(DT_SONAME).eq([c"libgcc_s.so.1"]));
        assert!(image.symbol(c"dat_provider_init").is_none());
    }

    #[test]
    fn missing_provider_library_is_reported_with_a_remedy() {
        let cause = load(b"/nonexistent/libx.so.1", 1).err().unwrap();
        assert!(cause.cause.contains("/nonexistent/libx.so.1") && cause.cause.contains("No such file"), "{cause:?}");
        assert_eq!(cause.remedy, "install that library, or correct lib_path");
    }
}
