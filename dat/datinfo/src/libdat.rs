//! Safe wrappers of the functions and of the private hook of libdat. Loads the libdat that the user names. Without a
//! name, loads the one that the dynamic loader finds, or else the one in `../lib` of this program.
//!
//! Used in the child process only. Only this project's libdat has the hook (`dat_abi::hook`). Without the hook, the
//! registry is listed as names, versions and thread safety.

use std::ffi::{CStr, CString, c_char};
use std::mem::{offset_of, zeroed};
use std::path::{Path, PathBuf};
use std::ptr;

use dat_abi::hook::{LIBDAT_HOOK_REQUEST, LibdatHook, TELL_REFUSAL};
use dat_abi::*;
use udapl::{Address, CodeNames, Error, Functions, Library};

use crate::options::Api;

/// Maximum number of records that are listed with `dat_registry_list_providers`.
const MOST: usize = 1024;

type Describe = unsafe extern "C" fn(topic: u32, index: usize, out: *mut c_char, capacity: usize) -> usize;

/// The library, mapped for the rest of the process.
pub(crate) struct Libdat {
    library: Library,
    /// Function `describe` of the hook.
    describe: Option<Describe>,
    api: Api,
}

/// An open adapter.
pub(crate) struct Adapter<'a> {
    libdat: &'a Libdat,
    ia: DAT_IA_HANDLE,
}

/// Type and subtype of a return code, as libdat names them.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) value: DAT_RETURN,
    pub(crate) words: CodeNames,
}

impl Libdat {
    /// Loads `named`. Without it, loads the libdat that the dynamic loader finds, or else the one in `../lib` of this
    /// program.
    ///
    /// For version 2 of the API, loads libdat2.so.2. Of that library, only functions with the same declaration in both
    /// versions are called.
    pub(crate) fn load(named: Option<&Path>, api: Api) -> Result<Self, String> {
        let library = match named {
            Some(path) => Library::load_from(path),
            None if api.major == 2 => {
                let own = |error| Library::load_from(in_program_lib("libdat2.so.2").ok_or(error)?);
                Library::load_from(Path::new("libdat2.so.2")).or_else(own)
            }
            None => Library::load().or_else(|error| Library::load_from(in_program_lib("libdat.so.1").ok_or(error)?)),
        };
        let library = library.map_err(|error| match error {
            Error::Library(text) => text,
            error => error.to_string(),
        })?;
        let describe = describe(library.functions());
        Ok(Libdat { library, describe, api })
    }

    /// The lines of a topic (`dat_abi::hook::TELL_*`), each as its fields; `None` without the hook.
    pub(crate) fn lines(&self, topic: u32) -> Option<Vec<Vec<String>>> {
        let describe = self.describe?;
        let lines = (0..).map_while(|index| line(describe, topic, index));
        Some(lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    /// Fields of this thread's last refused open; `None` without the hook, or if no open was refused.
    pub(crate) fn last_refusal_fields(&self) -> Option<Vec<String>> {
        let line = line(self.describe?, TELL_REFUSAL, 0)?;
        Some(line.split('\t').map(str::to_owned).collect())
    }

    /// Calls `dat_registry_list_providers` and returns the name, version and thread safety of each record.
    pub(crate) fn listed(&self) -> Result<Vec<Vec<String>>, Code> {
        // SAFETY: all fields are integers or arrays of them, so all-zero bytes are valid.
        let mut records: Vec<DAT_PROVIDER_INFO> = vec![unsafe { zeroed() }; MOST];
        let mut places: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(ptr::from_mut).collect();
        let mut count: DAT_COUNT = 0;
        let list = self.library.functions().dat_registry_list_providers;
        // SAFETY: the array has the stated number of pointers, each to a record.
        self.checked(unsafe { list(MOST as DAT_COUNT, &mut count, places.as_mut_ptr()) })?;
        let fields = |info: &DAT_PROVIDER_INFO| {
            let version = format!("{}.{}", info.dapl_version_major, info.dapl_version_minor);
            let safety = if info.is_thread_safe != DAT_FALSE { "threadsafe" } else { "nonthreadsafe" };
            vec![text(&info.ia_name), version, safety.to_owned()]
        };
        Ok(records.iter().take(usize::try_from(count).unwrap_or(0)).map(fields).collect())
    }

    /// Opens an adapter as a program of the requested version of the API does. Without a minor version, requests 1.2 or
    /// 2.0.
    pub(crate) fn open(&self, name: &[u8], thread_safe: bool) -> Result<Adapter<'_>, Code> {
        let name = CString::new(name).unwrap_or_default();
        let (mut ia, mut evd) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
        let (major, own) = (u32::from(self.api.major), if self.api.major == 1 { DAT_VERSION_MINOR } else { 0 });
        let (minor, open) = (self.api.minor.map_or(own, u32::from), self.library.functions().dat_ia_openv);
        // SAFETY: `name` is a C string, and the two handles are writable local variables.
        self.checked(unsafe {
            open(name.as_ptr().cast_mut(), 8, &mut evd, &mut ia, major, minor, thread_safe.into())
        })?;
        Ok(Adapter { libdat: self, ia })
    }

    fn checked(&self, value: DAT_RETURN) -> Result<(), Code> {
        if value == DAT_SUCCESS { Ok(()) } else { Err(Code { value, words: self.library.functions().words(value) }) }
    }
}

impl Adapter<'_> {
    /// Whether [`Adapter::attributes`] can be called. The records of version 2 of the API have a different layout.
    pub(crate) fn has_attributes(&self) -> bool {
        self.libdat.api.major == 1
    }

    /// Queries all attributes. The pointers in the two records are valid while the adapter is open.
    pub(crate) fn attributes(&self) -> Result<Box<(DAT_IA_ATTR, DAT_PROVIDER_ATTR)>, Code> {
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let mut both = Box::new(unsafe { zeroed::<(DAT_IA_ATTR, DAT_PROVIDER_ATTR)>() });
        let (ia, provider, query) = (&raw mut both.0, &raw mut both.1, self.libdat.library.functions().dat_ia_query);
        // SAFETY: the adapter is open, both records are writable, and null is allowed for the asynchronous EVD.
        let code = unsafe { query(self.ia, ptr::null_mut(), DAT_IA_FIELD_ALL, ia, DAT_PROVIDER_FIELD_ALL, provider) };
        self.libdat.checked(code).map(|()| both)
    }

    /// Names and values of a list of attributes from [`Adapter::attributes`].
    pub(crate) fn named(&self, count: DAT_COUNT, list: *const DAT_NAMED_ATTR) -> Vec<(String, String)> {
        /// Maximum number of attributes that are read, in case the provider's count is invalid.
        const MOST: usize = 4096;
        let count = usize::try_from(count).unwrap_or(0).min(MOST);
        if list.is_null() {
            return Vec::new();
        }
        // SAFETY: the provider returned the list with its count, and keeps both valid while the adapter is open. If a
        // faulty provider does not, only this child process crashes.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        let word = |word: *const c_char| match word.is_null() {
            true => String::new(),
            // SAFETY: the provider's list contains C strings, which are valid while the adapter is open.
            false => unsafe { CStr::from_ptr(word) }.to_string_lossy().into_owned(),
        };
        list.iter().map(|pair| (word(pair.name), word(pair.value))).collect()
    }

    /// The IP address that an attribute points to; `None` if it is null or not an IP address.
    pub(crate) fn address(&self, address: DAT_IA_ADDRESS_PTR) -> Option<std::net::IpAddr> {
        // SAFETY: the provider's pointer is null or refers to a whole socket address, valid while the adapter is open.
        unsafe { Address::from_c(address) }.map(Address::ip)
    }

    pub(crate) fn close(self) -> Result<(), Code> {
        // SAFETY: the adapter is open, and `self` is consumed, so the handle is not used afterwards.
        self.libdat.checked(unsafe { (self.libdat.library.functions().dat_ia_close)(self.ia, DAT_CLOSE_ABRUPT_FLAG) })
    }
}

/// Converts a character array, up to its first zero byte, to text. Bytes that are not printable are escaped.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    bytes.escape_ascii().to_string()
}

/// Returns a line of a topic; `None` after the last one.
fn line(describe: Describe, topic: u32, index: usize) -> Option<String> {
    let mut buffer = vec![0_u8; 1024];
    loop {
        // SAFETY: `buffer` has `buffer.len()` writable bytes.
        let length = unsafe { describe(topic, index, buffer.as_mut_ptr().cast(), buffer.len()) };
        match length {
            0 => return None,
            length if length < buffer.len() => {
                return Some(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            length => buffer.resize(length + 1, 0),
        }
    }
}

/// The function `describe` of the hook; `None` with a libdat that lacks it.
fn describe(functions: &Functions) -> Option<Describe> {
    let mut answer = DAT_HANDLE_NULL;
    // SAFETY: the result is written to a local variable; a foreign libdat refuses the number.
    let code = unsafe { (functions.dats_get_ia_handle?)(LIBDAT_HOOK_REQUEST as DAT_IA_HANDLE, &mut answer) };
    if code != DAT_SUCCESS || answer.is_null() {
        return None;
    }
    let hook = answer.cast::<LibdatHook>();
    // SAFETY: the record begins with its size in every version.
    let size = unsafe { (&raw const (*hook).size).read() };
    // An older libdat has a shorter record. So no reference to a whole record is made.
    let end = offset_of!(LibdatHook, describe) + size_of::<Describe>();
    // SAFETY: the record has this field, and is valid until the process ends.
    (size >= end).then(|| unsafe { (&raw const (*hook).describe).read() })
}

/// Path of a library in `../lib` of this program, if the file exists.
fn in_program_lib(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("lib").join(name)).filter(|path| path.exists())
}
