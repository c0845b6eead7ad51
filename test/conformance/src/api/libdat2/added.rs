//! The functions that only 2.0 has, with recording. libdat2 exports one of them, `dat_extension_op`; the others are
//! called through the function table of a handle, as the header macros do. They return codes of 2.0; the record holds
//! the 1.2 code of the same name. Also calls of functions of both versions with arguments or records of 2.0, and polls
//! of the file descriptors of CNOs.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dat_abi::v2::{
    self, DAT_BOOLEAN, DAT_COMM, DAT_COUNT, DAT_HANDLE, DAT_LMR_TRIPLET, DAT_PROVIDER, DAT_RETURN, DAT_RMR_TRIPLET,
};
use dat_abi::{DAT_IA_ADDRESS_PTR, DAT_NAME_PTR};

use crate::api::{self, dats_get_ia_handle};
use crate::flight;

/// Names in the record of the functions that only 2.0 has. Their numbers follow those of 1.2.
pub(crate) const NAMES: &[&str] = &[
    "dat_csp_create",
    "dat_csp_query",
    "dat_csp_free",
    "dat_ep_common_connect",
    "dat_rmr_create_for_ep",
    "dat_ep_post_send_with_invalidate",
    "dat_ep_post_rdma_read_to_rmr",
    "dat_cno_fd_create",
    "dat_cno_trigger",
    "dat_registry_providers_related",
    "dat_extension_op",
];

/// Records a call of one of [`NAMES`].
fn recorded(name: &str, call: impl FnOnce() -> DAT_RETURN) -> DAT_RETURN {
    let number = NAMES.iter().position(|known| *known == name).expect("NAMES has each function of DAT 2.0");
    let entered = flight::enter(api::NAMES.len() + number);
    let code = call();
    entered.leave(super::code_of_1_2(code));
    code
}

/// The function table to which the first 8 bytes of an object point.
fn table(handle: DAT_HANDLE) -> &'static DAT_PROVIDER {
    // SAFETY: the cases pass valid handles; the first 8 bytes of the object point to a table that is never freed.
    unsafe { &**handle.cast::<*const DAT_PROVIDER>() }
}

/// Address of an IA object. The IA handle of a 2.0 consumer is a small number instead.
pub(crate) fn pointer(ia: DAT_HANDLE) -> DAT_HANDLE {
    let mut pointer = std::ptr::null_mut();
    assert_eq!(dats_get_ia_handle(ia, &mut pointer), 0);
    pointer
}

/// Calls a function through the function table of a handle, or through the table that precedes the handle, and records
/// the call.
macro_rules! through {
    ($name:literal, $handle:expr, $slot:ident($($argument:expr),*)) => {{
        let handle = $handle;
        through!($name, table(handle), handle, $slot($($argument),*))
    }};
    ($name:literal, $table:expr, $handle:expr, $slot:ident($($argument:expr),*)) => {{
        let entry = $table.$slot.expect("the function table of a provider has no null slot");
        // SAFETY: the case is responsible for its arguments.
        recorded($name, || unsafe { entry($handle, $($argument),*) })
    }};
}

/// All 8-byte entries of the function table of an open IA.
pub(crate) fn table_words(ia: DAT_HANDLE) -> Vec<usize> {
    let table: *const v2::DAT_PROVIDER = table(pointer(ia));
    // SAFETY: the table of 2.0 consists of 8-byte entries.
    (0..81).map(|n| unsafe { table.cast::<usize>().add(n).read() }).collect()
}

pub(crate) fn csp_create(
    ia: DAT_HANDLE,
    comm: *mut DAT_COMM,
    address: DAT_IA_ADDRESS_PTR,
    evd: DAT_HANDLE,
    out: *mut DAT_HANDLE,
) -> DAT_RETURN {
    through!("dat_csp_create", pointer(ia), csp_create_func(comm, address, evd, out))
}

pub(crate) fn csp_query(csp: DAT_HANDLE, mask: v2::DAT_CSP_PARAM_MASK, out: *mut v2::DAT_CSP_PARAM) -> DAT_RETURN {
    through!("dat_csp_query", csp, csp_query_func(mask, out))
}

pub(crate) fn csp_free(csp: DAT_HANDLE) -> DAT_RETURN {
    through!("dat_csp_free", csp, csp_free_func())
}

pub(crate) fn ep_common_connect(
    ep: DAT_HANDLE,
    address: DAT_IA_ADDRESS_PTR,
    timeout: u32,
    size: DAT_COUNT,
    data: *mut c_void,
) -> DAT_RETURN {
    through!("dat_ep_common_connect", ep, ep_common_connect_func(address, timeout, size, data))
}

pub(crate) fn rmr_create_for_ep(pz: DAT_HANDLE, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!("dat_rmr_create_for_ep", pz, rmr_create_for_ep_func(out))
}

pub(crate) fn ep_post_send_with_invalidate(
    ep: DAT_HANDLE,
    segments: &mut [DAT_LMR_TRIPLET],
    flags: u32,
    invalidate: DAT_BOOLEAN,
    context: u32,
) -> DAT_RETURN {
    let (cookie, count) = (v2::DAT_DTO_COOKIE { as_64: 77 }, segments.len() as DAT_COUNT);
    let list = if segments.is_empty() { std::ptr::null_mut() } else { segments.as_mut_ptr() };
    through!(
        "dat_ep_post_send_with_invalidate",
        ep,
        ep_post_send_with_invalidate_func(count, list, cookie, flags, invalidate, context)
    )
}

/// Calls `dat_ep_post_send_with_invalidate` with one segment and a null segment list.
pub(crate) fn ep_post_send_without_list(ep: DAT_HANDLE) -> DAT_RETURN {
    let (cookie, list) = (v2::DAT_DTO_COOKIE { as_64: 77 }, std::ptr::null_mut());
    through!(
        "dat_ep_post_send_with_invalidate",
        ep,
        ep_post_send_with_invalidate_func(1, list, cookie, 0, v2::DAT_FALSE, 1)
    )
}

pub(crate) fn ep_post_rdma_read_to_rmr(
    ep: DAT_HANDLE,
    local: *const DAT_RMR_TRIPLET,
    cookie: u64,
    remote: *const DAT_RMR_TRIPLET,
    flags: u32,
) -> DAT_RETURN {
    let cookie = v2::DAT_DTO_COOKIE { as_64: cookie };
    through!("dat_ep_post_rdma_read_to_rmr", ep, ep_post_rdma_read_to_rmr_func(local, cookie, remote, flags))
}

pub(crate) fn cno_fd_create(ia: DAT_HANDLE, fd: *mut c_int, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!("dat_cno_fd_create", pointer(ia), cno_fd_create_func(fd, out))
}

pub(crate) fn cno_trigger(cno: DAT_HANDLE, out: *mut DAT_HANDLE) -> DAT_RETURN {
    through!("dat_cno_trigger", cno, cno_trigger_func(out))
}

pub(crate) fn ia_ha_related(ia: DAT_HANDLE, provider: DAT_NAME_PTR, answer: *mut DAT_BOOLEAN) -> DAT_RETURN {
    through!("dat_registry_providers_related", pointer(ia), ia_ha_related_func(provider, answer))
}

pub(crate) fn cr_reject_with(cr: DAT_HANDLE, data: &[u8]) -> DAT_RETURN {
    let number = api::NAMES.iter().position(|name| *name == "dat_cr_reject").expect("NAMES has dat_cr_reject");
    let call = flight::enter(number);
    // SAFETY: the case is responsible for its arguments.
    let code = unsafe { (super::real().cr_reject)(cr, data.len() as DAT_COUNT, data.as_ptr().cast_mut().cast()) };
    call.leave(super::code_of_1_2(code));
    code
}

/// `dat_extension_op` with five arguments, as fetch-and-add has.
pub(crate) fn extension_op(handle: DAT_HANDLE, op: c_int, words: [u64; 5]) -> DAT_RETURN {
    let function = super::real().extension_op;
    let [a, b, c, d, e] = words;
    // SAFETY: every argument is a number or pointer of eight bytes. Fetch-and-add reads five of them. Every other
    // operation of a case reads fewer: it has no arguments, or is refused before it reads a sixth one.
    recorded("dat_extension_op", || unsafe { function(handle, op, a, b, c, d, e) })
}

/// Calls `dat_ib_open_query` for all attributes. Returns the code, the handle and the adapter's attributes.
pub(crate) fn open_query(name: &std::ffi::CStr) -> (DAT_RETURN, DAT_HANDLE, v2::DAT_IA_ATTR) {
    let function = super::real().extension_op;
    let (op, mut opened) = (v2::DAT_IB_OPEN_QUERY_OP as c_int, std::ptr::null_mut::<std::ffi::c_void>());
    // SAFETY: all-zero records are valid (numbers, bytes and null pointers). The call gets the types that the macro
    // passes, and local records.
    unsafe {
        let (mut of_ia, mut of_provider): (v2::DAT_IA_ATTR, v2::DAT_PROVIDER_ATTR) =
            (std::mem::zeroed(), std::mem::zeroed());
        let code = recorded("dat_extension_op", || {
            let (all, provider) = (v2::DAT_IA_FIELD_ALL, v2::DAT_PROVIDER_FIELD_ALL);
            let (of_ia, of_provider) = (&raw mut of_ia, &raw mut of_provider);
            function(std::ptr::null_mut(), op, name.as_ptr(), &raw mut opened, all, of_ia, provider, of_provider)
        });
        (code, opened, of_ia)
    }
}

/// An operation of the InfiniBand extension, with its C arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extended {
    FetchAdd { add: u64 },
    CompareSwap { compare: u64, swap: u64 },
    WriteImmediate { count: DAT_COUNT, data: u32 },
}

/// Calls `dat_ib_post_fetch_and_add`, `dat_ib_post_cmp_and_swap` or `dat_ib_post_rdma_write_immed`.
pub(crate) fn post_extended(
    ep: DAT_HANDLE,
    operation: Extended,
    local: *const DAT_LMR_TRIPLET,
    cookie: u64,
    remote: *const DAT_RMR_TRIPLET,
    flags: u32,
) -> DAT_RETURN {
    let function = super::real().extension_op;
    let cookie = v2::DAT_DTO_COOKIE { as_64: cookie };
    let op = match operation {
        Extended::FetchAdd { .. } => v2::DAT_IB_FETCH_AND_ADD_OP,
        Extended::CompareSwap { .. } => v2::DAT_IB_CMP_AND_SWAP_OP,
        Extended::WriteImmediate { .. } => v2::DAT_IB_RDMA_WRITE_IMMED_OP,
    } as c_int;
    // SAFETY: the arguments of the header's macro, in its order; the case keeps their memory alive.
    recorded("dat_extension_op", || unsafe {
        match operation {
            Extended::FetchAdd { add } => function(ep, op, add, local, cookie, remote, flags),
            Extended::CompareSwap { compare, swap } => function(ep, op, compare, swap, local, cookie, remote, flags),
            Extended::WriteImmediate { count, data } => function(ep, op, count, local, cookie, remote, data, flags),
        }
    })
}

/// Calls each function that 2.0 adds to the table with a handle of the wrong kind, or an invalid handle. The functions
/// are taken from the table of `ia`, since the header macros would read the table through the bad handle.
pub(crate) fn calls_with_handle(ia: DAT_HANDLE, handle: DAT_HANDLE) -> Vec<(&'static str, DAT_RETURN)> {
    let (null, cookie) = (std::ptr::null_mut::<c_void>(), v2::DAT_DTO_COOKIE { as_64: 1 });
    let table = table(pointer(ia));
    vec![
        (
            "dat_csp_create",
            through!("dat_csp_create", table, handle, csp_create_func(null.cast(), null.cast(), null, null.cast())),
        ),
        ("dat_csp_query", through!("dat_csp_query", table, handle, csp_query_func(0, null.cast()))),
        ("dat_csp_free", through!("dat_csp_free", table, handle, csp_free_func())),
        (
            "dat_ep_common_connect",
            through!("dat_ep_common_connect", table, handle, ep_common_connect_func(null.cast(), 1, 0, null)),
        ),
        (
            "dat_rmr_create_for_ep",
            through!("dat_rmr_create_for_ep", table, handle, rmr_create_for_ep_func(null.cast())),
        ),
        (
            "dat_ep_post_send_with_invalidate",
            through!(
                "dat_ep_post_send_with_invalidate",
                table,
                handle,
                ep_post_send_with_invalidate_func(0, null.cast(), cookie, 0, v2::DAT_TRUE, 1)
            ),
        ),
        (
            "dat_ep_post_rdma_read_to_rmr",
            through!(
                "dat_ep_post_rdma_read_to_rmr",
                table,
                handle,
                ep_post_rdma_read_to_rmr_func(null.cast(), cookie, null.cast(), 0)
            ),
        ),
        (
            "dat_cno_fd_create",
            through!("dat_cno_fd_create", table, handle, cno_fd_create_func(null.cast(), null.cast())),
        ),
        ("dat_cno_trigger", through!("dat_cno_trigger", table, handle, cno_trigger_func(null.cast()))),
        (
            "dat_registry_providers_related",
            through!("dat_registry_providers_related", table, handle, ia_ha_related_func(null.cast(), null.cast())),
        ),
    ]
}

/// Outputs of `dat_lmr_create`: contexts and registered address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registered {
    pub(crate) lmr_context: u32,
    pub(crate) rmr_context: u32,
    pub(crate) address: u64,
}

/// Calls `dat_lmr_create` of 2.0 for ordinary memory with all privileges.
pub(crate) fn lmr_create(
    ia: DAT_HANDLE,
    pz: DAT_HANDLE,
    pointer: *mut c_void,
    length: u64,
    va_type: v2::DAT_VA_TYPE,
    (out, registered): (*mut DAT_HANDLE, &mut Registered),
) -> DAT_RETURN {
    let Registered { lmr_context: local, rmr_context: remote, address } = registered;
    let mut size = 0;
    let region = v2::DAT_REGION_DESCRIPTION { for_va: pointer };
    let (kind, rights) = (v2::DAT_MEM_TYPE_VIRTUAL, v2::DAT_MEM_PRIV_ALL_FLAG);
    let create = super::real().lmr_create;
    // SAFETY: the case's memory, and pointers to local variables.
    unsafe { create(ia, kind, region, length, pz, rights, va_type, out, local, remote, &raw mut size, address) }
}

/// Calls `dat_rmr_bind` of 2.0 with read and write privileges.
pub(crate) fn rmr_bind(
    rmr: DAT_HANDLE,
    lmr: DAT_HANDLE,
    triplet: &DAT_LMR_TRIPLET,
    va_type: v2::DAT_VA_TYPE,
    ep: DAT_HANDLE,
    context: &mut u32,
) -> DAT_RETURN {
    let rights = v2::DAT_MEM_PRIV_REMOTE_READ_FLAG | v2::DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
    let cookie = v2::DAT_RMR_COOKIE { as_64: 40 };
    // SAFETY: the case's handles, and local records.
    unsafe { (super::real().rmr_bind)(rmr, lmr, triplet, rights, va_type, ep, cookie, 0, context) }
}

/// Parameters from `dat_lmr_query` of 2.0.
pub(crate) fn lmr_param(lmr: DAT_HANDLE) -> v2::DAT_LMR_PARAM {
    // SAFETY: an all-zero record is valid (numbers, null pointers and unions of them). The call writes a local
    // record.
    unsafe {
        let mut param = std::mem::zeroed();
        assert_eq!((super::real().lmr_query)(lmr, v2::DAT_LMR_FIELD_ALL, &raw mut param), 0);
        param
    }
}

/// IA and provider attributes, as 2.0 records.
pub(crate) fn attributes(ia: DAT_HANDLE) -> (v2::DAT_IA_ATTR, v2::DAT_PROVIDER_ATTR) {
    // SAFETY: all-zero records are valid (numbers, bytes and null pointers). The call writes local records.
    unsafe {
        let (mut of_ia, mut of_provider) = (std::mem::zeroed(), std::mem::zeroed());
        let (all, provider) = (v2::DAT_IA_FIELD_ALL, v2::DAT_PROVIDER_FIELD_ALL);
        let query = super::real().ia_query;
        assert_eq!(query(ia, std::ptr::null_mut(), all, &raw mut of_ia, provider, &raw mut of_provider), 0);
        (of_ia, of_provider)
    }
}

/// Result of `dat_rmr_query` of 2.0.
pub(crate) fn rmr_param(rmr: DAT_HANDLE) -> v2::DAT_RMR_PARAM {
    // SAFETY: an all-zero record is valid (numbers and null pointers). The call writes a local record.
    unsafe {
        let mut param = std::mem::zeroed();
        assert_eq!((super::real().rmr_query)(rmr, v2::DAT_RMR_FIELD_ALL, &raw mut param), 0);
        param
    }
}

/// A completion event of 2.0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Done {
    pub(crate) number: u32,
    pub(crate) cookie: u64,
    pub(crate) status: u32,
    pub(crate) bytes: u32,
    pub(crate) operation: u32,
    /// The remote context that the peer's send invalidated.
    pub(crate) context: u32,
    /// Type, status and immediate data of the extension; zeros if the event has no extension.
    pub(crate) extension: (u32, u32, u32),
}

/// Waits for the next completion. Returns `None` on timeout.
pub(crate) fn wait_done(evd: DAT_HANDLE, time: Duration) -> Option<Done> {
    let micros = u32::try_from(time.as_micros()).unwrap_or(v2::DAT_TIMEOUT_INFINITE);
    let mut more = 0;
    // SAFETY: an all-zero event is valid (numbers and null pointers), and the call writes local records. All union
    // members are numbers and addresses; the extension members hold the extension's record.
    unsafe {
        let mut event = std::mem::zeroed::<v2::DAT_EVENT>();
        let code = (super::real().evd_wait)(evd, micros, 1, &raw mut event, &raw mut more);
        if code != 0 {
            assert_eq!(code, v2::DAT_CLASS_ERROR | v2::DAT_TIMEOUT_EXPIRED);
            return None;
        }
        let dto = event.event_data.dto_completion_event_data;
        let data = (&raw const event.event_extension_data).cast::<v2::DAT_IB_EXTENSION_EVENT_DATA>().read();
        flight::seen_event(event.event_number);
        flight::seen_dto(dto.status);
        Some(Done {
            number: event.event_number,
            cookie: dto.user_cookie.as_64,
            status: dto.status,
            bytes: dto.transfered_length,
            operation: dto.operation,
            context: dto.rmr_context,
            extension: (data.r#type, data.status, data.val.immed.data),
        })
    }
}

/// Sleeps until the descriptor is readable. Fails after `time`.
pub(crate) fn await_readable(fd: c_int, time: Duration) {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the array has one element, the local `polled`.
    let ready = unsafe { libc::poll(&raw mut polled, 1, time) };
    assert_eq!(ready, 1, "the descriptor did not become readable: a wake-up was lost");
}

/// Whether the descriptor is readable (poll without waiting).
pub(crate) fn is_readable(fd: c_int) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: passes one local pollfd.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
