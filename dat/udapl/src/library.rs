//! libdat, opened at run time: its functions, and return codes as `Result`.
//!
//! libdat is never closed, because providers may have threads.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use dat_abi::*;
use libloading::os::unix::{Library as Image, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{CodeNames, Error, Result, is_success};

/// Calls a function of libdat by its name, and converts its return code to a `Result` as [`Functions::check`] does.
macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $functions.check(stringify!($name), ($functions.$name)($($argument),*))
    };
}
pub(crate) use call;

type ListProviders = unsafe extern "C" fn(DAT_COUNT, *mut DAT_COUNT, *mut *mut DAT_PROVIDER_INFO) -> DAT_RETURN;
type GetIaHandle = unsafe extern "C" fn(DAT_IA_HANDLE, *mut DAT_IA_HANDLE) -> DAT_RETURN;
type Strerror = unsafe extern "C" fn(DAT_RETURN, *mut *const c_char, *mut *const c_char) -> DAT_RETURN;

macro_rules! functions {
    ($($name:ident: $shape:ty),* $(,)?) => {
        /// Functions of libdat by name, for features that this crate does not wrap. The caller frees the objects
        /// that it creates with these functions, and does not use them together with objects of this crate.
        #[allow(missing_docs, reason = "the specification says what each does")]
        #[non_exhaustive]
        pub struct Functions {
            $(pub $name: $shape,)*
            /// `None` if this libdat does not export the function.
            pub dats_get_ia_handle: Option<GetIaHandle>,
            /// Never dropped, so that the library stays loaded.
            _library: ManuallyDrop<Image>,
        }

        impl Functions {
            fn find(library: Image) -> Result<Self> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: libdat.so.1 exports this name with this type, as its ABI defines.
                        let found = unsafe { library.get::<$shape>(stringify!($name).as_bytes()) };
                        *found.map_err(|error| Error::Library(error.to_string()))?
                    },)*
                    // SAFETY: a libdat that exports this name defines it with this type.
                    dats_get_ia_handle: unsafe { library.get(b"dats_get_ia_handle") }.ok().map(|found| *found),
                    _library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

functions! {
    dat_registry_list_providers: ListProviders,
    dat_strerror: Strerror,
    dat_get_handle_type: DAT_GET_HANDLE_TYPE_FUNC,
    dat_ia_openv: DAT_IA_OPENV_FUNC,
    dat_ia_query: DAT_IA_QUERY_FUNC,
    dat_ia_close: DAT_IA_CLOSE_FUNC,
    dat_pz_create: DAT_PZ_CREATE_FUNC,
    dat_pz_query: DAT_PZ_QUERY_FUNC,
    dat_pz_free: DAT_PZ_FREE_FUNC,
    dat_cno_create: DAT_CNO_CREATE_FUNC,
    dat_cno_query: DAT_CNO_QUERY_FUNC,
    dat_cno_wait: DAT_CNO_WAIT_FUNC,
    dat_cno_free: DAT_CNO_FREE_FUNC,
    dat_lmr_create: DAT_LMR_CREATE_FUNC,
    dat_lmr_query: DAT_LMR_QUERY_FUNC,
    dat_lmr_free: DAT_LMR_FREE_FUNC,
    dat_rmr_create: DAT_RMR_CREATE_FUNC,
    dat_rmr_query: DAT_RMR_QUERY_FUNC,
    dat_rmr_bind: DAT_RMR_BIND_FUNC,
    dat_rmr_free: DAT_RMR_FREE_FUNC,
    dat_evd_create: DAT_EVD_CREATE_FUNC,
    dat_evd_query: DAT_EVD_QUERY_FUNC,
    dat_evd_resize: DAT_EVD_RESIZE_FUNC,
    dat_evd_set_unwaitable: DAT_EVD_SET_UNWAITABLE_FUNC,
    dat_evd_clear_unwaitable: DAT_EVD_CLEAR_UNWAITABLE_FUNC,
    dat_evd_post_se: DAT_EVD_POST_SE_FUNC,
    dat_evd_wait: DAT_EVD_WAIT_FUNC,
    dat_evd_dequeue: DAT_EVD_DEQUEUE_FUNC,
    dat_evd_free: DAT_EVD_FREE_FUNC,
    dat_srq_create: DAT_SRQ_CREATE_FUNC,
    dat_srq_query: DAT_SRQ_QUERY_FUNC,
    dat_srq_post_recv: DAT_SRQ_POST_RECV_FUNC,
    dat_srq_free: DAT_SRQ_FREE_FUNC,
    dat_ep_create: DAT_EP_CREATE_FUNC,
    dat_ep_create_with_srq: DAT_EP_CREATE_WITH_SRQ_FUNC,
    dat_ep_query: DAT_EP_QUERY_FUNC,
    dat_ep_get_status: DAT_EP_GET_STATUS_FUNC,
    dat_ep_connect: DAT_EP_CONNECT_FUNC,
    dat_ep_disconnect: DAT_EP_DISCONNECT_FUNC,
    dat_ep_reset: DAT_EP_RESET_FUNC,
    dat_ep_post_send: DAT_EP_POST_SEND_FUNC,
    dat_ep_post_recv: DAT_EP_POST_RECV_FUNC,
    dat_ep_post_rdma_read: DAT_EP_POST_RDMA_READ_FUNC,
    dat_ep_post_rdma_write: DAT_EP_POST_RDMA_WRITE_FUNC,
    dat_ep_free: DAT_EP_FREE_FUNC,
    dat_psp_create: DAT_PSP_CREATE_FUNC,
    dat_psp_create_any: DAT_PSP_CREATE_ANY_FUNC,
    dat_psp_query: DAT_PSP_QUERY_FUNC,
    dat_psp_free: DAT_PSP_FREE_FUNC,
    dat_rsp_create: DAT_RSP_CREATE_FUNC,
    dat_rsp_query: DAT_RSP_QUERY_FUNC,
    dat_rsp_free: DAT_RSP_FREE_FUNC,
    dat_cr_query: DAT_CR_QUERY_FUNC,
    dat_cr_accept: DAT_CR_ACCEPT_FUNC,
    dat_cr_reject: DAT_CR_REJECT_FUNC,
}

impl Functions {
    /// Returns `Ok` if the return code means success, otherwise an error with the name of the function and the names of
    /// the code.
    pub(crate) fn check(&self, call: &'static str, code: DAT_RETURN) -> Result<()> {
        if is_success(code) { Ok(()) } else { Err(Error::Call { call, code, words: self.words(code) }) }
    }

    /// Returns the library's names for a return code. A code without a name has its number as `kind`.
    pub fn words(&self, code: DAT_RETURN) -> CodeNames {
        let (mut kind, mut detail) = (ptr::null(), ptr::null());
        // SAFETY: both results are local variables; they are set to strings that are never freed, or left unchanged.
        let result = unsafe { (self.dat_strerror)(code, &raw mut kind, &raw mut detail) };
        let text = |at: *const c_char| match is_success(result) && !at.is_null() {
            // SAFETY: the pointer refers to a NUL-terminated string of libdat, which is never freed.
            true => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
            false => String::new(),
        };
        let words = CodeNames { kind: text(kind), detail: text(detail) };
        if words.kind.is_empty() { CodeNames { kind: format!("{code:#010x}"), ..words } } else { words }
    }
}

/// An open libdat.so.1. Copies are cheap and refer to the same library.
#[derive(Clone)]
pub struct Library {
    pub(crate) functions: Arc<Functions>,
}

impl Library {
    /// Opens the `libdat.so.1` that the dynamic loader finds.
    ///
    /// # Errors
    /// [`Error::Library`] if the dynamic loader cannot find or load it, or if it lacks one of the [`Functions`] other
    /// than `dats_get_ia_handle`.
    pub fn load() -> Result<Self> {
        Self::load_from("libdat.so.1")
    }

    /// Opens the library of this name or path.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_from(name: impl AsRef<OsStr>) -> Result<Self> {
        // The symbols are global, as in a program that is linked with libdat, because a provider may use them without
        // listing libdat as a dependency.
        // SAFETY: the library's constructors run, as in every program that is linked with it.
        let library = unsafe { Image::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| Error::Library(error.to_string()))?;
        Ok(Library { functions: Arc::new(Functions::find(library)?) })
    }

    /// Returns the functions of the library.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the names of the adapters in dat.conf, in the order in which libdat lists them. A name that has lines
    /// with different versions or thread safety is repeated.
    ///
    /// # Errors
    /// Those of `dat_registry_list_providers`.
    pub fn names(&self) -> Result<Vec<String>> {
        // A full list may be incomplete, so its length is doubled until it is not full.
        let mut capacity = 64;
        loop {
            // SAFETY: all fields are integers or arrays of them, so all-zero bytes are valid.
            let mut records: Vec<DAT_PROVIDER_INFO> = vec![unsafe { std::mem::zeroed() }; capacity];
            let mut places: Vec<_> = records.iter_mut().map(ptr::from_mut).collect();
            let mut count = 0;
            // SAFETY: `places` holds this many pointers, each to a record.
            unsafe {
                call!(
                    self.functions,
                    dat_registry_list_providers(capacity as DAT_COUNT, &raw mut count, places.as_mut_ptr())
                )
            }?;
            let count = usize::try_from(count).unwrap_or(0).min(capacity);
            if count == capacity {
                capacity *= 2;
                continue;
            }
            return Ok(records[..count].iter().map(|record| text(&record.ia_name)).collect());
        }
    }
}

/// Returns the characters before the first NUL.
pub(crate) fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named_in_the_error() {
        let Err(Error::Library(text)) = Library::load_from("/nowhere/libdat.so.1") else { panic!("there is none") };
        assert!(text.contains("/nowhere/libdat.so.1"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libdat_is_refused() {
        let Err(Error::Library(text)) = Library::load_from("libc.so.6") else { panic!("that is no libdat") };
        assert!(text.contains("dat_registry_list_providers"), "{text}");
    }

    #[test]
    fn text_ends_at_the_nul_or_at_the_end_of_the_array() {
        assert_eq!(text(&[b's' as c_char, b'm' as c_char, 0, b'x' as c_char]), "sm");
        assert_eq!(text(&[b'a' as c_char; 3]), "aaa");
        assert_eq!(text(&[]), "");
    }
}
