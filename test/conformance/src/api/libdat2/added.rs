//! The functions that only 2.0 has. Its library exports one of them; the others are called through the table of a handle, as
//! the macros of the headers do. Codes are those of 2.0.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dat_abi::v2::{self, DAT_BOOLEAN, DAT_COMM, DAT_COUNT, DAT_HANDLE, DAT_RETURN, DAT_RMR_TRIPLET};
use dat_abi::{DAT_IA_ADDRESS_PTR, DAT_NAME_PTR};

use crate::api::dats_get_ia_handle;

/// The table whose address begins an object's handle.
fn table(handle: DAT_HANDLE) -> &'static v2::DAT_PROVIDER {
    // SAFETY: the cases pass live handles, whose first word is a table that stays.
    unsafe { &**handle.cast::<*const v2::DAT_PROVIDER>() }
}

/// Address of the IA; a consumer's handle is its number.
fn pointer(ia: DAT_HANDLE) -> DAT_HANDLE {
    let mut pointer = std::ptr::null_mut();
    assert_eq!(dats_get_ia_handle(ia, &mut pointer), 0);
    pointer
}

/// Calls an entry of the table of the handle in the first argument.
macro_rules! through {
    ($handle:expr, $slot:ident($($argument:expr),*)) => {{
        let handle = $handle;
        let entry = table(handle).$slot.expect("no slot is empty");
        // SAFETY: the case's arguments.
        unsafe { entry(handle, $($argument),*) }
    }};
}

/// The words of the table of an open IA.
pub(crate) fn table_words(ia: DAT_HANDLE) -> Vec<usize> {
    let table: *const v2::DAT_PROVIDER = table(pointer(ia));
    // SAFETY: the table of 2.0 consists of words.
    (0..81).map(|n| unsafe { table.cast::<usize>().add(n).read() }).collect()
}

pub(crate) fn csp_create(
    ia: DAT_HANDLE,
    comm: *mut DAT_COMM,
    address: DAT_IA_ADDRESS_PTR,
    evd: DAT_HANDLE,
    out: *mut DAT_HANDLE,
) -> DAT_RETURN {
    through!(pointer(ia), csp_create_func(comm, address, evd, out))
}

pub(crate) fn csp_query(csp: DAT_HANDLE, mask: v2::DAT_CSP_PARAM_MASK, out: *mut v2::DAT_CSP_PARAM) -> DAT_RETURN {
    through!(csp, csp_query_func(mask, out))
}

pub(crate) fn csp_free(csp: DAT_HANDLE) -> DAT_RETURN {
    through!(csp, csp_free_func())
}

pub(crate) fn ep_common_connect(
    ep: DAT_HANDLE,
    address: DAT_IA_ADDRESS_PTR,
    timeout: u32,
    size: DAT_COUNT,
    data: *mut c_void,
) -> DAT_RETURN {
    through!(ep, ep_common_connect_func(address, timeout, size, data))
}

pub(crate) fn rmr_create_for_ep(pz: DAT_HANDLE, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!(pz, rmr_create_for_ep_func(out))
}

pub(crate) fn ep_post_send_with_invalidate(
    ep: DAT_HANDLE,
    flags: u32,
    invalidate: DAT_BOOLEAN,
    context: u32,
) -> DAT_RETURN {
    let cookie = v2::DAT_DTO_COOKIE { as_64: 77 };
    through!(ep, ep_post_send_with_invalidate_func(0, std::ptr::null_mut(), cookie, flags, invalidate, context))
}

pub(crate) fn ep_post_rdma_read_to_rmr(
    ep: DAT_HANDLE,
    local: *const DAT_RMR_TRIPLET,
    cookie: u64,
    remote: *const DAT_RMR_TRIPLET,
    flags: u32,
) -> DAT_RETURN {
    let cookie = v2::DAT_DTO_COOKIE { as_64: cookie };
    through!(ep, ep_post_rdma_read_to_rmr_func(local, cookie, remote, flags))
}

pub(crate) fn cno_fd_create(ia: DAT_HANDLE, fd: *mut c_int, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!(pointer(ia), cno_fd_create_func(fd, out))
}

pub(crate) fn cno_trigger(cno: DAT_HANDLE, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!(cno, cno_trigger_func(out))
}

pub(crate) fn ia_ha_related(ia: DAT_HANDLE, provider: DAT_NAME_PTR, answer: *mut DAT_BOOLEAN) -> DAT_RETURN {
    through!(pointer(ia), ia_ha_related_func(provider, answer))
}

pub(crate) fn cr_reject_with(cr: DAT_HANDLE, data: &[u8]) -> DAT_RETURN {
    through!(cr, cr_reject_func(data.len() as DAT_COUNT, data.as_ptr().cast_mut().cast()))
}

/// `dat_extension_op` with five arguments, as the atomic operations have.
pub(crate) fn extension_op(handle: DAT_HANDLE, op: c_int, words: [u64; 5]) -> DAT_RETURN {
    let function = super::real().extension_op;
    let [a, b, c, d, e] = words;
    // SAFETY: numbers and pointers of eight bytes each; the operation reads no more than five.
    unsafe { function(handle, op, a, b, c, d, e) }
}

/// Sleeps until the descriptor is readable.
pub(crate) fn await_readable(fd: c_int, time: Duration) {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one record.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, time) }, 1, "a wake-up is lost");
}

/// Whether the descriptor is readable now.
pub(crate) fn is_readable(fd: c_int) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
