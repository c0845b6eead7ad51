//! libdat.so.1, found as programs find it, and what it says of itself: a few of its functions, made safe.
//!
//! Runs in the child only. Ours tells more through its hook (`dat_abi::hook`); of another's only names can be listed.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::{MaybeUninit, offset_of, transmute};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use dat_abi::hook::{LIBDAT_HOOK_REQUEST, LibdatHook, TELL_REFUSAL};
use dat_abi::*;

type List = unsafe extern "C" fn(DAT_COUNT, *mut DAT_COUNT, *mut *mut DAT_PROVIDER_INFO) -> DAT_RETURN;
type Words = unsafe extern "C" fn(DAT_RETURN, *mut *const c_char, *mut *const c_char) -> DAT_RETURN;
type Translate = unsafe extern "C" fn(DAT_IA_HANDLE, *mut DAT_IA_HANDLE) -> DAT_RETURN;

/// Records that are listed of another's libdat.
const MOST: usize = 1024;

/// The library, mapped for the rest of the process.
pub(crate) struct Libdat {
    open: DAT_IA_OPENV_FUNC,
    query: DAT_IA_QUERY_FUNC,
    close: DAT_IA_CLOSE_FUNC,
    list: List,
    words: Words,
    hook: Option<&'static LibdatHook>,
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
    pub(crate) kind: String,
    pub(crate) subtype: String,
}

impl Libdat {
    /// The one that is named; else libdat.so.1 as the dynamic loader finds it, else the one of this program's own prefix.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, String> {
        let image = match named {
            Some(path) => map(path)?,
            None => map(Path::new("libdat.so.1")).or_else(|error| map(&beside().ok_or(error)?))?,
        };
        // SAFETY: libdat exports these names with these shapes; that is the ABI.
        unsafe {
            let mut libdat = Libdat {
                open: transmute::<*mut c_void, DAT_IA_OPENV_FUNC>(symbol(image, c"dat_ia_openv")?),
                query: transmute::<*mut c_void, DAT_IA_QUERY_FUNC>(symbol(image, c"dat_ia_query")?),
                close: transmute::<*mut c_void, DAT_IA_CLOSE_FUNC>(symbol(image, c"dat_ia_close")?),
                list: transmute::<*mut c_void, List>(symbol(image, c"dat_registry_list_providers")?),
                words: transmute::<*mut c_void, Words>(symbol(image, c"dat_strerror")?),
                hook: None,
            };
            if let Ok(translate) = symbol(image, c"dats_get_ia_handle") {
                libdat.hook = hook(transmute::<*mut c_void, Translate>(translate));
            }
            Ok(libdat)
        }
    }

    /// The lines of a topic, each with its fields; `None` if this libdat has no such thing.
    pub(crate) fn told(&self, topic: u32) -> Option<Vec<Vec<String>>> {
        let hook = self.hook?;
        let lines = (0..).map_while(|index| self.line(hook, topic, index));
        Some(lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    /// Why this thread's last open was refused, in fields; `None` if this libdat does not say.
    pub(crate) fn told_refusal(&self) -> Option<Vec<String>> {
        let line = self.line(self.hook?, TELL_REFUSAL, 0)?;
        Some(line.split('\t').map(str::to_owned).collect())
    }

    fn line(&self, hook: &LibdatHook, topic: u32, index: usize) -> Option<String> {
        let mut room = vec![0_u8; 1024];
        loop {
            // SAFETY: that many bytes may be written there.
            let length = unsafe { (hook.tell)(topic, index, room.as_mut_ptr().cast(), room.len()) };
            match length {
                0 => return None,
                length if length < room.len() => return Some(String::from_utf8_lossy(&room[..length]).into_owned()),
                length => room.resize(length + 1, 0),
            }
        }
    }

    /// What the ABI itself lists: name, version, thread safety.
    pub(crate) fn listed(&self) -> Result<Vec<Vec<String>>, Code> {
        let mut records = vec![MaybeUninit::<DAT_PROVIDER_INFO>::zeroed(); MOST];
        let mut places: Vec<*mut DAT_PROVIDER_INFO> = records.iter_mut().map(MaybeUninit::as_mut_ptr).collect();
        let mut count: DAT_COUNT = 0;
        // SAFETY: as many places as are said, each to a record.
        let code = unsafe { (self.list)(MOST as DAT_COUNT, &mut count, places.as_mut_ptr()) };
        if code != DAT_SUCCESS {
            return Err(self.code(code));
        }
        let count = usize::try_from(count).unwrap_or(0).min(MOST);
        Ok(records[..count]
            .iter()
            .map(|record| {
                // SAFETY: zeroed, or filled by libdat; plain numbers both ways.
                let info = unsafe { record.assume_init_ref() };
                let version = format!("{}.{}", info.dapl_version_major, info.dapl_version_minor);
                let safety = if info.is_thread_safe != DAT_FALSE { "threadsafe" } else { "nonthreadsafe" };
                vec![text(&info.ia_name), version, safety.to_owned()]
            })
            .collect())
    }

    /// Opens as a program of version 1.2 does.
    pub(crate) fn open(&self, name: &[u8], thread_safe: bool) -> Result<Adapter<'_>, Code> {
        let name = CString::new(name).unwrap_or_default();
        let (mut ia, mut evd) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
        let (major, minor) = (DAT_VERSION_MAJOR, DAT_VERSION_MINOR);
        // SAFETY: a C string and two handles that may be written.
        let code =
            unsafe { (self.open)(name.as_ptr().cast_mut(), 8, &mut evd, &mut ia, major, minor, thread_safe.into()) };
        if code == DAT_SUCCESS { Ok(Adapter { libdat: self, ia }) } else { Err(self.code(code)) }
    }

    pub(crate) fn code(&self, value: DAT_RETURN) -> Code {
        let (mut kind, mut subtype) = (ptr::null(), ptr::null());
        // SAFETY: both may be written.
        unsafe { (self.words)(value, &mut kind, &mut subtype) };
        let word = |word: *const c_char| match word.is_null() {
            true => String::new(),
            // SAFETY: libdat's words are static strings.
            false => unsafe { CStr::from_ptr(word) }.to_string_lossy().into_owned(),
        };
        Code { value, kind: word(kind), subtype: word(subtype) }
    }
}

impl Adapter<'_> {
    /// All attributes. What they point at lives as long as the adapter is open.
    pub(crate) fn attributes(&self) -> Result<Box<(DAT_IA_ATTR, DAT_PROVIDER_ATTR)>, Code> {
        // SAFETY: plain numbers and pointers, for which zeros are values.
        let mut both = Box::new(unsafe { std::mem::zeroed::<(DAT_IA_ATTR, DAT_PROVIDER_ATTR)>() });
        let evd: *mut DAT_EVD_HANDLE = ptr::null_mut();
        let (ia, provider) = (&raw mut both.0, &raw mut both.1);
        // SAFETY: an open adapter, and two records that may be written.
        let code = unsafe { (self.libdat.query)(self.ia, evd, DAT_IA_FIELD_ALL, ia, DAT_PROVIDER_FIELD_ALL, provider) };
        if code == DAT_SUCCESS { Ok(both) } else { Err(self.libdat.code(code)) }
    }

    /// Names and values of a list of the attributes above.
    pub(crate) fn named(&self, count: DAT_COUNT, list: *const DAT_NAMED_ATTR) -> Vec<(String, String)> {
        /// More is rubbish.
        const MOST: usize = 4096;
        let count = usize::try_from(count).unwrap_or(0).min(MOST);
        if list.is_null() {
            return Vec::new();
        }
        // SAFETY: the provider's own list of that many, which lives as long as the adapter is open; it runs in this child only.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        let word = |word: *const c_char| match word.is_null() {
            true => String::new(),
            // SAFETY: the list's strings, as above.
            false => unsafe { CStr::from_ptr(word) }.to_string_lossy().into_owned(),
        };
        list.iter().map(|pair| (word(pair.name), word(pair.value))).collect()
    }

    /// The first bytes of a socket address, of which 16 are always there, 28 for IPv6.
    pub(crate) fn address(&self, address: DAT_IA_ADDRESS_PTR) -> Option<std::net::IpAddr> {
        if address.is_null() {
            return None;
        }
        let byte = |at: usize| {
            // SAFETY: inside the address, whose length its family says (registry-ia.md 11, bit 6).
            unsafe { address.cast::<u8>().add(at).read() }
        };
        match i32::from(u16::from_ne_bytes([byte(0), byte(1)])) {
            libc::AF_INET => Some(std::net::IpAddr::from(std::array::from_fn::<u8, 4, _>(|at| byte(4 + at)))),
            libc::AF_INET6 => Some(std::net::IpAddr::from(std::array::from_fn::<u8, 16, _>(|at| byte(8 + at)))),
            _ => None,
        }
    }

    pub(crate) fn close(self) -> Result<(), Code> {
        // SAFETY: an open adapter, used no more.
        let code = unsafe { (self.libdat.close)(self.ia, DAT_CLOSE_ABRUPT_FLAG) };
        if code == DAT_SUCCESS { Ok(()) } else { Err(self.libdat.code(code)) }
    }
}

/// An array of characters as text.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    bytes.escape_ascii().to_string()
}

/// The hook of a libdat of ours that has all we ask for.
///
/// # Safety
/// The function is libdat's.
unsafe fn hook(translate: Translate) -> Option<&'static LibdatHook> {
    let mut answer = DAT_HANDLE_NULL;
    // SAFETY: another's libdat refuses the number.
    let code = unsafe { translate(LIBDAT_HOOK_REQUEST as DAT_IA_HANDLE, &mut answer) };
    if code != DAT_SUCCESS || answer.is_null() {
        return None;
    }
    let hook = answer.cast::<LibdatHook>();
    // SAFETY: ours answers with a record whose first field is its size, in every version.
    let size = unsafe { (&raw const (*hook).size).read() };
    // SAFETY: it is as long as we know it, and lives as long as the process.
    (size > offset_of!(LibdatHook, tell)).then(|| unsafe { &*hook })
}

/// `../lib/libdat.so.1` of this program.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("lib/libdat.so.1")).filter(|path| path.exists())
}

fn map(path: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a file name with a NUL byte".to_owned())?;
    // SAFETY: a C string; the library's constructors run, which is what it was named for.
    let image = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if image.is_null() { Err(reason()) } else { Ok(image) }
}

/// # Safety
/// `image` came from dlopen.
unsafe fn symbol(image: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: this function's own contract.
    let symbol = unsafe { libc::dlsym(image, name.as_ptr()) };
    if symbol.is_null() { Err(reason()) } else { Ok(symbol) }
}

fn reason() -> String {
    // SAFETY: answers per thread, with null or a string that lives until the next dl call of this thread.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "the dynamic loader gives no reason".to_owned())
}
