//! The 73 functions of DAT 1.2, looked up in the library under test at run time. Each call and its complete return code
//! are written to the flight record.
//!
//! The functions take the C arguments unchecked, so that a case can pass any value. Results are not checked here.
#![allow(clippy::too_many_arguments, reason = "the signatures are the specification's")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use dat_abi::*;

use crate::flight;

mod libdat2;

pub(crate) use libdat2::{added, is_loaded as is_2_0, of_version};

type ListProviders =
    unsafe extern "C" fn(max: DAT_COUNT, filled: *mut DAT_COUNT, list: *mut *mut DAT_PROVIDER_INFO) -> DAT_RETURN;
type Registration = unsafe extern "C" fn(table: *const DAT_PROVIDER, info: *const DAT_PROVIDER_INFO) -> DAT_RETURN;
type Strerror =
    unsafe extern "C" fn(value: DAT_RETURN, major: *mut *const c_char, minor: *mut *const c_char) -> DAT_RETURN;
type IaHandle = unsafe extern "C" fn(ia: DAT_IA_HANDLE, pointer: *mut DAT_IA_HANDLE) -> DAT_RETURN;

/// Defines for each function its index in [`NAMES`], its address, and a function of the same name that records the
/// call.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*): $shape:ty $(, then $hook:ident($seen:ident))?;)*) => {
        /// Names of all functions. The flight record stores an index into this list.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the names are the specification's")]
        enum Function { $($name),* }

        struct FunctionTable { $($name: Option<$shape>),* }

        impl FunctionTable {
            fn load(library: *mut c_void) -> Self {
                FunctionTable {
                    $($name: libdat2::replacement(stringify!($name)).or_else(|| symbol(library, stringify!($name))).map(|address| {
                        // SAFETY: libdat exports this name with this signature, which is the ABI under test.
                        unsafe { transmute::<*mut c_void, $shape>(address) }
                    })),*
                }
            }
        }

        $(
            #[doc = concat!("`", stringify!($name), "`, recorded.")]
            pub(crate) fn $name($($arg: $type),*) -> DAT_RETURN {
                let function = table().$name.unwrap_or_else(|| absent(stringify!($name)));
                let call = flight::enter(Function::$name as usize);
                // SAFETY: the library under test must survive any argument; the case keeps the objects alive that the
                // arguments point to.
                let code = libdat2::code_of_1_2(unsafe { function($($arg),*) });
                call.leave(code);
                $(if code == DAT_SUCCESS { $hook($seen); })?
                code
            }
        )*
    };
}

functions! {
    fn dat_ia_openv(name: DAT_NAME_PTR, qlen: DAT_COUNT, async_evd: *mut DAT_EVD_HANDLE, ia: *mut DAT_IA_HANDLE, major: DAT_UINT32, minor: DAT_UINT32, thread_safety: DAT_BOOLEAN): DAT_IA_OPENV_FUNC;
    fn dat_ia_query(ia: DAT_IA_HANDLE, async_evd: *mut DAT_EVD_HANDLE, ia_mask: DAT_IA_ATTR_MASK, ia_attr: *mut DAT_IA_ATTR, provider_mask: DAT_PROVIDER_ATTR_MASK, provider_attr: *mut DAT_PROVIDER_ATTR): DAT_IA_QUERY_FUNC;
    fn dat_ia_close(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS): DAT_IA_CLOSE_FUNC;
    fn dat_set_consumer_context(handle: DAT_HANDLE, context: DAT_CONTEXT): DAT_SET_CONSUMER_CONTEXT_FUNC;
    fn dat_get_consumer_context(handle: DAT_HANDLE, context: *mut DAT_CONTEXT): DAT_GET_CONSUMER_CONTEXT_FUNC;
    fn dat_get_handle_type(handle: DAT_HANDLE, kind: *mut DAT_HANDLE_TYPE): DAT_GET_HANDLE_TYPE_FUNC;
    fn dat_cno_create(ia: DAT_IA_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT, cno: *mut DAT_CNO_HANDLE): DAT_CNO_CREATE_FUNC;
    fn dat_cno_modify_agent(cno: DAT_CNO_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT): DAT_CNO_MODIFY_AGENT_FUNC;
    fn dat_cno_query(cno: DAT_CNO_HANDLE, mask: DAT_CNO_PARAM_MASK, param: *mut DAT_CNO_PARAM): DAT_CNO_QUERY_FUNC;
    fn dat_cno_free(cno: DAT_CNO_HANDLE): DAT_CNO_FREE_FUNC;
    fn dat_cno_wait(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT, evd: *mut DAT_EVD_HANDLE): DAT_CNO_WAIT_FUNC;
    fn dat_cr_query(cr: DAT_CR_HANDLE, mask: DAT_CR_PARAM_MASK, param: *mut DAT_CR_PARAM): DAT_CR_QUERY_FUNC;
    fn dat_cr_accept(cr: DAT_CR_HANDLE, ep: DAT_EP_HANDLE, size: DAT_COUNT, data: DAT_PVOID): DAT_CR_ACCEPT_FUNC;
    fn dat_cr_reject(cr: DAT_CR_HANDLE): DAT_CR_REJECT_FUNC;
    fn dat_cr_handoff(cr: DAT_CR_HANDLE, qual: DAT_CONN_QUAL): DAT_CR_HANDOFF_FUNC;
    fn dat_evd_create(ia: DAT_IA_HANDLE, qlen: DAT_COUNT, cno: DAT_CNO_HANDLE, flags: DAT_EVD_FLAGS, evd: *mut DAT_EVD_HANDLE): DAT_EVD_CREATE_FUNC;
    fn dat_evd_query(evd: DAT_EVD_HANDLE, mask: DAT_EVD_PARAM_MASK, param: *mut DAT_EVD_PARAM): DAT_EVD_QUERY_FUNC;
    fn dat_evd_modify_cno(evd: DAT_EVD_HANDLE, cno: DAT_CNO_HANDLE): DAT_EVD_MODIFY_CNO_FUNC;
    fn dat_evd_enable(evd: DAT_EVD_HANDLE): DAT_EVD_ENABLE_FUNC;
    fn dat_evd_disable(evd: DAT_EVD_HANDLE): DAT_EVD_DISABLE_FUNC;
    fn dat_evd_wait(evd: DAT_EVD_HANDLE, timeout: DAT_TIMEOUT, threshold: DAT_COUNT, event: *mut DAT_EVENT, more: *mut DAT_COUNT): DAT_EVD_WAIT_FUNC, then see(event);
    fn dat_evd_resize(evd: DAT_EVD_HANDLE, qlen: DAT_COUNT): DAT_EVD_RESIZE_FUNC;
    fn dat_evd_post_se(evd: DAT_EVD_HANDLE, event: *const DAT_EVENT): DAT_EVD_POST_SE_FUNC;
    fn dat_evd_dequeue(evd: DAT_EVD_HANDLE, event: *mut DAT_EVENT): DAT_EVD_DEQUEUE_FUNC, then see(event);
    fn dat_evd_free(evd: DAT_EVD_HANDLE): DAT_EVD_FREE_FUNC;
    fn dat_evd_set_unwaitable(evd: DAT_EVD_HANDLE): DAT_EVD_SET_UNWAITABLE_FUNC;
    fn dat_evd_clear_unwaitable(evd: DAT_EVD_HANDLE): DAT_EVD_CLEAR_UNWAITABLE_FUNC;
    fn dat_ep_create(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, recv: DAT_EVD_HANDLE, request: DAT_EVD_HANDLE, connect: DAT_EVD_HANDLE, attr: *const DAT_EP_ATTR, ep: *mut DAT_EP_HANDLE): DAT_EP_CREATE_FUNC;
    fn dat_ep_create_with_srq(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, recv: DAT_EVD_HANDLE, request: DAT_EVD_HANDLE, connect: DAT_EVD_HANDLE, srq: DAT_SRQ_HANDLE, attr: *const DAT_EP_ATTR, ep: *mut DAT_EP_HANDLE): DAT_EP_CREATE_WITH_SRQ_FUNC;
    fn dat_ep_query(ep: DAT_EP_HANDLE, mask: DAT_EP_PARAM_MASK, param: *mut DAT_EP_PARAM): DAT_EP_QUERY_FUNC;
    fn dat_ep_modify(ep: DAT_EP_HANDLE, mask: DAT_EP_PARAM_MASK, param: *const DAT_EP_PARAM): DAT_EP_MODIFY_FUNC;
    fn dat_ep_connect(ep: DAT_EP_HANDLE, address: DAT_IA_ADDRESS_PTR, qual: DAT_CONN_QUAL, timeout: DAT_TIMEOUT, size: DAT_COUNT, data: DAT_PVOID, qos: DAT_QOS, flags: DAT_CONNECT_FLAGS): DAT_EP_CONNECT_FUNC;
    fn dat_ep_dup_connect(ep: DAT_EP_HANDLE, dup: DAT_EP_HANDLE, timeout: DAT_TIMEOUT, size: DAT_COUNT, data: DAT_PVOID, qos: DAT_QOS): DAT_EP_DUP_CONNECT_FUNC;
    fn dat_ep_disconnect(ep: DAT_EP_HANDLE, flags: DAT_CLOSE_FLAGS): DAT_EP_DISCONNECT_FUNC;
    fn dat_ep_post_send(ep: DAT_EP_HANDLE, segments: DAT_COUNT, iov: *mut DAT_LMR_TRIPLET, cookie: DAT_DTO_COOKIE, flags: DAT_COMPLETION_FLAGS): DAT_EP_POST_SEND_FUNC;
    fn dat_ep_post_recv(ep: DAT_EP_HANDLE, segments: DAT_COUNT, iov: *mut DAT_LMR_TRIPLET, cookie: DAT_DTO_COOKIE, flags: DAT_COMPLETION_FLAGS): DAT_EP_POST_RECV_FUNC;
    fn dat_ep_post_rdma_read(ep: DAT_EP_HANDLE, segments: DAT_COUNT, iov: *mut DAT_LMR_TRIPLET, cookie: DAT_DTO_COOKIE, remote: *const DAT_RMR_TRIPLET, flags: DAT_COMPLETION_FLAGS): DAT_EP_POST_RDMA_READ_FUNC;
    fn dat_ep_post_rdma_write(ep: DAT_EP_HANDLE, segments: DAT_COUNT, iov: *mut DAT_LMR_TRIPLET, cookie: DAT_DTO_COOKIE, remote: *const DAT_RMR_TRIPLET, flags: DAT_COMPLETION_FLAGS): DAT_EP_POST_RDMA_WRITE_FUNC;
    fn dat_ep_get_status(ep: DAT_EP_HANDLE, state: *mut DAT_EP_STATE, recv_idle: *mut DAT_BOOLEAN, request_idle: *mut DAT_BOOLEAN): DAT_EP_GET_STATUS_FUNC;
    fn dat_ep_free(ep: DAT_EP_HANDLE): DAT_EP_FREE_FUNC;
    fn dat_ep_reset(ep: DAT_EP_HANDLE): DAT_EP_RESET_FUNC;
    fn dat_ep_recv_query(ep: DAT_EP_HANDLE, allocated: *mut DAT_COUNT, span: *mut DAT_COUNT): DAT_EP_RECV_QUERY_FUNC;
    fn dat_ep_set_watermark(ep: DAT_EP_HANDLE, soft: DAT_COUNT, hard: DAT_COUNT): DAT_EP_SET_WATERMARK_FUNC;
    fn dat_lmr_create(ia: DAT_IA_HANDLE, kind: DAT_MEM_TYPE, region: DAT_REGION_DESCRIPTION, length: DAT_VLEN, pz: DAT_PZ_HANDLE, privileges: DAT_MEM_PRIV_FLAGS, lmr: *mut DAT_LMR_HANDLE, lmr_context: *mut DAT_LMR_CONTEXT, rmr_context: *mut DAT_RMR_CONTEXT, registered_length: *mut DAT_VLEN, registered_address: *mut DAT_VADDR): DAT_LMR_CREATE_FUNC;
    fn dat_lmr_query(lmr: DAT_LMR_HANDLE, mask: DAT_LMR_PARAM_MASK, param: *mut DAT_LMR_PARAM): DAT_LMR_QUERY_FUNC;
    fn dat_lmr_free(lmr: DAT_LMR_HANDLE): DAT_LMR_FREE_FUNC;
    fn dat_lmr_sync_rdma_read(ia: DAT_IA_HANDLE, segments: *const DAT_LMR_TRIPLET, count: DAT_VLEN): DAT_LMR_SYNC_RDMA_READ_FUNC;
    fn dat_lmr_sync_rdma_write(ia: DAT_IA_HANDLE, segments: *const DAT_LMR_TRIPLET, count: DAT_VLEN): DAT_LMR_SYNC_RDMA_WRITE_FUNC;
    fn dat_rmr_create(pz: DAT_PZ_HANDLE, rmr: *mut DAT_RMR_HANDLE): DAT_RMR_CREATE_FUNC;
    fn dat_rmr_query(rmr: DAT_RMR_HANDLE, mask: DAT_RMR_PARAM_MASK, param: *mut DAT_RMR_PARAM): DAT_RMR_QUERY_FUNC;
    fn dat_rmr_bind(rmr: DAT_RMR_HANDLE, segment: *const DAT_LMR_TRIPLET, privileges: DAT_MEM_PRIV_FLAGS, ep: DAT_EP_HANDLE, cookie: DAT_RMR_COOKIE, flags: DAT_COMPLETION_FLAGS, context: *mut DAT_RMR_CONTEXT): DAT_RMR_BIND_FUNC;
    fn dat_rmr_free(rmr: DAT_RMR_HANDLE): DAT_RMR_FREE_FUNC;
    fn dat_psp_create(ia: DAT_IA_HANDLE, qual: DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS, psp: *mut DAT_PSP_HANDLE): DAT_PSP_CREATE_FUNC;
    fn dat_psp_create_any(ia: DAT_IA_HANDLE, qual: *mut DAT_CONN_QUAL, evd: DAT_EVD_HANDLE, flags: DAT_PSP_FLAGS, psp: *mut DAT_PSP_HANDLE): DAT_PSP_CREATE_ANY_FUNC;
    fn dat_psp_query(psp: DAT_PSP_HANDLE, mask: DAT_PSP_PARAM_MASK, param: *mut DAT_PSP_PARAM): DAT_PSP_QUERY_FUNC;
    fn dat_psp_free(psp: DAT_PSP_HANDLE): DAT_PSP_FREE_FUNC;
    fn dat_rsp_create(ia: DAT_IA_HANDLE, qual: DAT_CONN_QUAL, ep: DAT_EP_HANDLE, evd: DAT_EVD_HANDLE, rsp: *mut DAT_RSP_HANDLE): DAT_RSP_CREATE_FUNC;
    fn dat_rsp_query(rsp: DAT_RSP_HANDLE, mask: DAT_RSP_PARAM_MASK, param: *mut DAT_RSP_PARAM): DAT_RSP_QUERY_FUNC;
    fn dat_rsp_free(rsp: DAT_RSP_HANDLE): DAT_RSP_FREE_FUNC;
    fn dat_pz_create(ia: DAT_IA_HANDLE, pz: *mut DAT_PZ_HANDLE): DAT_PZ_CREATE_FUNC;
    fn dat_pz_query(pz: DAT_PZ_HANDLE, mask: DAT_PZ_PARAM_MASK, param: *mut DAT_PZ_PARAM): DAT_PZ_QUERY_FUNC;
    fn dat_pz_free(pz: DAT_PZ_HANDLE): DAT_PZ_FREE_FUNC;
    fn dat_srq_create(ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, attr: *mut DAT_SRQ_ATTR, srq: *mut DAT_SRQ_HANDLE): DAT_SRQ_CREATE_FUNC;
    fn dat_srq_set_lw(srq: DAT_SRQ_HANDLE, watermark: DAT_COUNT): DAT_SRQ_SET_LW_FUNC;
    fn dat_srq_free(srq: DAT_SRQ_HANDLE): DAT_SRQ_FREE_FUNC;
    fn dat_srq_query(srq: DAT_SRQ_HANDLE, mask: DAT_SRQ_PARAM_MASK, param: *mut DAT_SRQ_PARAM): DAT_SRQ_QUERY_FUNC;
    fn dat_srq_resize(srq: DAT_SRQ_HANDLE, length: DAT_COUNT): DAT_SRQ_RESIZE_FUNC;
    fn dat_srq_post_recv(srq: DAT_SRQ_HANDLE, segments: DAT_COUNT, iov: *mut DAT_LMR_TRIPLET, cookie: DAT_DTO_COOKIE): DAT_SRQ_POST_RECV_FUNC;
    fn dat_registry_list_providers(max: DAT_COUNT, filled: *mut DAT_COUNT, list: *mut *mut DAT_PROVIDER_INFO): ListProviders;
    fn dat_registry_add_provider(table: *const DAT_PROVIDER, info: *const DAT_PROVIDER_INFO): Registration;
    fn dat_registry_remove_provider(table: *const DAT_PROVIDER, info: *const DAT_PROVIDER_INFO): Registration;
    fn dat_strerror(value: DAT_RETURN, major: *mut *const c_char, minor: *mut *const c_char): Strerror;
    fn dats_get_ia_handle(ia: DAT_IA_HANDLE, pointer: *mut DAT_IA_HANDLE): IaHandle;
}

/// Returns the name of the function with this number in the flight record. The [`NAMES`] of 1.2 come first, then the
/// functions that only 2.0 has.
pub(crate) fn name(number: usize) -> &'static str {
    let only_2_0 = || added::NAMES.get(number.checked_sub(NAMES.len())?);
    NAMES.get(number).or_else(only_2_0).copied().unwrap_or("?")
}

static TABLE: OnceLock<FunctionTable> = OnceLock::new();

/// Opens the library under test and looks up its functions. Called once per process.
pub(crate) fn load(path: &str) -> Result<(), String> {
    let name = CString::new(path).map_err(|error| error.to_string())?;
    // RTLD_GLOBAL: the reference's provider libraries are not linked with a libdat and find its functions by a global
    // lookup. SAFETY: the name is NUL-terminated; the library's constructors are trusted.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        // SAFETY: after a failure dlerror returns a string, valid until this thread's next call of dlopen, dlsym or
        // dlerror.
        let text = unsafe { libc::dlerror() };
        return Err(format!("{path}: {}", text_at(text)));
    }
    libdat2::load(|name| symbol(library, name))?;
    TABLE.get_or_init(|| FunctionTable::load(library));
    Ok(())
}

/// Copies a C string of the library; empty for null.
pub(crate) fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the pointer comes from the C library or from the library under test; both promise NUL-terminated
    // constants.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn table() -> &'static FunctionTable {
    TABLE.get().expect("the library is loaded before the first case")
}

fn symbol(library: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).expect("function names have no NUL");
    // SAFETY: `library` is open for the process's life, the name is NUL-terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

#[cold]
fn absent(name: &str) -> ! {
    panic!("the library under test does not export {name}")
}

/// Writes the event that a call returned to the flight record.
fn see(event: *const DAT_EVENT) {
    if event.is_null() {
        return;
    }
    // SAFETY: the case passed storage for an event, and the call has filled it. Every union member consists of numbers
    // and raw pointers, for which any bits are valid.
    let (event, data) = unsafe { (&*event, &(*event).event_data) };
    flight::seen_event(event.event_number);
    match event.event_number {
        DAT_DTO_COMPLETION_EVENT => {
            // SAFETY: the event number selects this member, and any bits are a value.
            flight::seen_dto(unsafe { data.dto_completion_event_data.status });
        }
        DAT_RMR_BIND_COMPLETION_EVENT => {
            // SAFETY: the event number selects this member, and any bits are a value.
            flight::seen_rmr(unsafe { data.rmr_completion_event_data.status });
        }
        DAT_ASYNC_ERROR_EVD_OVERFLOW..=DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR => {
            // SAFETY: the event number selects this member, and any bits are a value.
            flight::seen_async(event.event_number, unsafe { data.asynch_error_event_data.reason });
        }
        _ => {}
    }
}
