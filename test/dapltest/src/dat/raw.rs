//! Calls the functions of libdat, with Rust arguments and results. Keeps no state of objects.
//!
//! Handles are plain numbers here: libdat returns an error for a stale or foreign handle.

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use dat_abi::*;
use udapl::{Address, Functions, Library};

use super::event::Event;

static LIBDAT: OnceLock<Library> = OnceLock::new();

/// Opens libdat.so.1. Must be called before any other function of this module.
pub(crate) fn load() -> Result<(), udapl::Error> {
    Library::load().map(|library| _ = LIBDAT.set(library))
}

fn libdat() -> &'static Functions {
    LIBDAT.get().expect("`main` loads libdat before its first call").functions()
}

/// A libdat handle, valid or not.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) const NULL: Handle = Handle(0);

    pub(super) fn of(handle: DAT_HANDLE) -> Self {
        Handle(handle.expose_provenance())
    }

    fn raw(self) -> DAT_HANDLE {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A call that did not succeed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Refusal {
    /// Name of the DAT function.
    pub(crate) call: &'static str,
    pub(crate) code: DAT_RETURN,
}

impl Refusal {
    /// Type of the code, without class and subtype.
    pub(crate) fn kind(self) -> DAT_RETURN_TYPE {
        if self.code == DAT_NOT_IMPLEMENTED { DAT_NOT_IMPLEMENTED } else { self.code & DAT_TYPE_MASK }
    }

    pub(crate) fn subtype(self) -> DAT_RETURN_SUBTYPE {
        self.code & DAT_SUBTYPE_MASK
    }
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {} (0x{:08x})", self.call, words(self.code), self.code)
    }
}

pub(crate) type CallResult<T = ()> = Result<T, Refusal>;

/// Calls a function of libdat by its name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: each pointer argument is null (where libdat checks for null) or points to a value of the parameter's
        // type that outlives the call. libdat accepts any handle and number, and checks memory segments against the
        // registration or the mapping.
        let code = unsafe { (libdat().$name)($($argument),*) };
        if code == DAT_SUCCESS { Ok(()) } else { Err(Refusal { call: stringify!($name), code }) }
    }};
}

/// Runs a call that updates a value. Returns the value.
fn made<T>(mut value: T, make: impl FnOnce(&mut T) -> CallResult) -> CallResult<T> {
    make(&mut value).map(|()| value)
}

/// Runs a call that creates an object. Returns the handle.
fn object(make: impl FnOnce(*mut DAT_HANDLE) -> CallResult) -> CallResult<Handle> {
    made(DAT_HANDLE_NULL, |handle| make(handle)).map(Handle::of)
}

/// Runs a call that fills in a record. Returns the record.
fn record<T>(fill: impl FnOnce(*mut T) -> CallResult) -> CallResult<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    fill(value.as_mut_ptr())?;
    // SAFETY: DAT records consist of numbers, pointers and nullable functions, so zeros and any filled-in content are
    // valid.
    Ok(unsafe { value.assume_init() })
}

/// libdat's names for a return code.
pub(crate) fn words(code: DAT_RETURN) -> String {
    let udapl::CodeNames { kind, detail } = libdat().words(code);
    if detail.is_empty() || detail == "DAT_NO_SUBTYPE" { kind } else { format!("{kind} {detail}") }
}

/// Opens an adapter as C programs do: without requesting thread safety, which many dat.conf files do not declare.
/// Asynchronous errors of the IA are queued on a new EVD.
pub(crate) fn ia_open(name: &str) -> CallResult<(Handle, Handle)> {
    let text = CString::new(name).unwrap_or_default();
    let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    let name = text.as_ptr().cast_mut();
    call!(dat_ia_openv(name, 8, &mut errors, &mut ia, DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE))
        .map_err(|refusal| Refusal { call: "dat_ia_open", ..refusal })?;
    Ok((Handle::of(ia), Handle::of(errors)))
}

pub(crate) fn ia_query(ia: Handle) -> CallResult<DAT_IA_ATTR> {
    let (none, all) = (DAT_PROVIDER_FIELD_NONE, DAT_IA_FIELD_ALL);
    record(|attr| call!(dat_ia_query(ia.raw(), null_mut(), all, attr, none, null_mut())))
}

pub(crate) fn provider_query(ia: Handle) -> CallResult<DAT_PROVIDER_ATTR> {
    let (none, all) = (DAT_IA_FIELD_NONE, DAT_PROVIDER_FIELD_ALL);
    record(|attr| call!(dat_ia_query(ia.raw(), null_mut(), none, null_mut(), all, attr)))
}

/// The address in an adapter's attributes, or `None` if it is not an IP address.
pub(crate) fn own_address(attr: &DAT_IA_ATTR) -> Option<Address> {
    // SAFETY: the pointer is null or to a socket address that lives while the adapter is open.
    unsafe { Address::from_c(attr.ia_address_ptr) }
}

/// Returns the adapter's EVD for asynchronous errors.
pub(crate) fn ia_errors(ia: Handle) -> CallResult<Handle> {
    let none = (DAT_IA_FIELD_NONE, DAT_PROVIDER_FIELD_NONE);
    object(|evd| call!(dat_ia_query(ia.raw(), evd, none.0, null_mut(), none.1, null_mut())))
}

pub(crate) fn ia_close(ia: Handle, flags: DAT_CLOSE_FLAGS) -> CallResult {
    call!(dat_ia_close(ia.raw(), flags))
}

pub(crate) fn handle_type(handle: Handle) -> CallResult<DAT_HANDLE_TYPE> {
    made(u32::MAX, |kind| call!(dat_get_handle_type(handle.raw(), kind)))
}

pub(crate) fn pz_create(ia: Handle) -> CallResult<Handle> {
    object(|pz| call!(dat_pz_create(ia.raw(), pz)))
}

/// `dat_pz_create` without an output pointer, which is an error.
pub(crate) fn pz_create_nowhere(ia: Handle) -> CallResult {
    call!(dat_pz_create(ia.raw(), null_mut()))
}

/// Returns the IA of the PZ.
pub(crate) fn pz_query(pz: Handle) -> CallResult<Handle> {
    let param = record::<DAT_PZ_PARAM>(|param| call!(dat_pz_query(pz.raw(), DAT_PZ_FIELD_ALL, param)))?;
    Ok(Handle::of(param.ia_handle))
}

pub(crate) fn pz_free(pz: Handle) -> CallResult {
    call!(dat_pz_free(pz.raw()))
}

pub(crate) fn cno_create(ia: Handle) -> CallResult<Handle> {
    let agent = DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
    object(|cno| call!(dat_cno_create(ia.raw(), agent, cno)))
}

/// Returns the IA of the CNO.
pub(crate) fn cno_query(cno: Handle) -> CallResult<Handle> {
    let param = record::<DAT_CNO_PARAM>(|param| call!(dat_cno_query(cno.raw(), DAT_CNO_FIELD_ALL, param)))?;
    Ok(Handle::of(param.ia_handle))
}

/// Waits on a CNO. Returns the EVD that triggered it.
pub(crate) fn cno_wait(cno: Handle, microseconds: DAT_TIMEOUT) -> CallResult<Handle> {
    object(|evd| call!(dat_cno_wait(cno.raw(), microseconds, evd)))
}

pub(crate) fn cno_free(cno: Handle) -> CallResult {
    call!(dat_cno_free(cno.raw()))
}

pub(crate) fn evd_create(ia: Handle, qlen: DAT_COUNT, cno: Handle, flags: DAT_EVD_FLAGS) -> CallResult<Handle> {
    object(|evd| call!(dat_evd_create(ia.raw(), qlen, cno.raw(), flags, evd)))
}

pub(crate) fn evd_query(evd: Handle) -> CallResult<DAT_EVD_PARAM> {
    record(|param| call!(dat_evd_query(evd.raw(), DAT_EVD_FIELD_ALL, param)))
}

pub(crate) fn evd_resize(evd: Handle, qlen: DAT_COUNT) -> CallResult {
    call!(dat_evd_resize(evd.raw(), qlen))
}

/// Makes an EVD unwaitable or waitable.
pub(crate) fn evd_waitable(evd: Handle, is_waitable: bool) -> CallResult {
    match is_waitable {
        true => call!(dat_evd_clear_unwaitable(evd.raw())),
        false => call!(dat_evd_set_unwaitable(evd.raw())),
    }
}

/// Posts a software event whose pointer has this value.
pub(crate) fn evd_post_se(evd: Handle, value: usize) -> CallResult {
    let event = Event::software(evd.raw(), std::ptr::without_provenance_mut(value));
    call!(dat_evd_post_se(evd.raw(), &event))
}

pub(crate) fn evd_wait(evd: Handle, microseconds: DAT_TIMEOUT, threshold: DAT_COUNT) -> CallResult<Event> {
    let mut more = 0;
    record(|event| call!(dat_evd_wait(evd.raw(), microseconds, threshold, event, &mut more)))
        .map(|event| Event::of(&event))
}

pub(crate) fn evd_dequeue(evd: Handle) -> CallResult<Event> {
    record(|event| call!(dat_evd_dequeue(evd.raw(), event))).map(|event| Event::of(&event))
}

pub(crate) fn evd_free(evd: Handle) -> CallResult {
    call!(dat_evd_free(evd.raw()))
}

/// EVDs of an endpoint for receives, requests and connection events.
pub(crate) type Evds = [Handle; 3];

pub(crate) fn ep_create(ia: Handle, pz: Handle, evds: Evds, attr: Option<&DAT_EP_ATTR>) -> CallResult<Handle> {
    let [recv, request, connect] = evds.map(Handle::raw);
    let attr = attr.map_or(null(), std::ptr::from_ref);
    object(|ep| call!(dat_ep_create(ia.raw(), pz.raw(), recv, request, connect, attr, ep)))
}

pub(crate) fn ep_query(ep: Handle) -> CallResult<DAT_EP_PARAM> {
    record(|param| call!(dat_ep_query(ep.raw(), DAT_EP_FIELD_ALL, param)))
}

/// Returns the EP's state, and whether its receive queue and its request queue are idle.
pub(crate) fn ep_status(ep: Handle) -> CallResult<(DAT_EP_STATE, bool, bool)> {
    let (mut state, mut recv, mut request) = (u32::MAX, u32::MAX, u32::MAX);
    call!(dat_ep_get_status(ep.raw(), &mut state, &mut recv, &mut request))?;
    Ok((state, recv != DAT_FALSE, request != DAT_FALSE))
}

pub(crate) fn ep_connect(
    ep: Handle,
    to: Address,
    qual: DAT_CONN_QUAL,
    microseconds: DAT_TIMEOUT,
    qos: DAT_QOS,
) -> CallResult {
    let (to, flags) = (to.to_c(), DAT_CONNECT_DEFAULT_FLAG);
    call!(dat_ep_connect(ep.raw(), to.as_ptr(), qual, microseconds, 0, null_mut(), qos, flags))
}

pub(crate) fn ep_disconnect(ep: Handle, flags: DAT_CLOSE_FLAGS) -> CallResult {
    call!(dat_ep_disconnect(ep.raw(), flags))
}

pub(crate) fn ep_reset(ep: Handle) -> CallResult {
    call!(dat_ep_reset(ep.raw()))
}

pub(crate) fn ep_free(ep: Handle) -> CallResult {
    call!(dat_ep_free(ep.raw()))
}

#[derive(Clone, Copy)]
pub(crate) enum Post {
    Recv,
    Send,
    /// An RDMA read from this memory.
    Read(DAT_RMR_TRIPLET),
    /// An RDMA write to this memory.
    Write(DAT_RMR_TRIPLET),
}

/// Posts a work request. The caller keeps the segments' memory registered and mapped until the completion.
pub(crate) fn post(ep: Handle, post: Post, segments: &mut [DAT_LMR_TRIPLET], cookie: u64) -> CallResult {
    let (ep, cookie, flags) = (ep.raw(), DAT_CONTEXT { as_64: cookie }, DAT_COMPLETION_DEFAULT_FLAG);
    let (count, first) = (segments.len() as DAT_COUNT, segments.as_mut_ptr());
    match post {
        Post::Recv => call!(dat_ep_post_recv(ep, count, first, cookie, flags)),
        Post::Send => call!(dat_ep_post_send(ep, count, first, cookie, flags)),
        Post::Read(from) => call!(dat_ep_post_rdma_read(ep, count, first, cookie, &from, flags)),
        Post::Write(to) => call!(dat_ep_post_rdma_write(ep, count, first, cookie, &to, flags)),
    }
}

/// A registration: its handle, keys and range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) lmr: Handle,
    pub(crate) lmr_context: DAT_LMR_CONTEXT,
    pub(crate) rmr_context: DAT_RMR_CONTEXT,
    /// Start and length of the registered range, which may be larger than requested.
    pub(crate) range: (DAT_VADDR, DAT_VLEN),
}

pub(crate) fn lmr_create(
    ia: Handle,
    pz: Handle,
    at: *mut c_void,
    length: u64,
    privileges: DAT_MEM_PRIV_FLAGS,
) -> CallResult<Registered> {
    let (ia, pz, kind, region) = (ia.raw(), pz.raw(), DAT_MEM_TYPE_VIRTUAL, DAT_REGION_DESCRIPTION { for_va: at });
    let (mut lmr, mut local, mut remote, mut bytes, mut start) = (DAT_HANDLE_NULL, 0, 0, 0, 0);
    call!(dat_lmr_create(
        ia,
        kind,
        region,
        length,
        pz,
        privileges,
        &mut lmr,
        &mut local,
        &mut remote,
        &mut bytes,
        &mut start
    ))?;
    Ok(Registered { lmr: Handle::of(lmr), lmr_context: local, rmr_context: remote, range: (start, bytes) })
}

pub(crate) fn lmr_query(lmr: Handle) -> CallResult<DAT_LMR_PARAM> {
    record(|param| call!(dat_lmr_query(lmr.raw(), DAT_LMR_FIELD_ALL, param)))
}

pub(crate) fn lmr_free(lmr: Handle) -> CallResult {
    call!(dat_lmr_free(lmr.raw()))
}

pub(crate) fn rmr_create(pz: Handle) -> CallResult<Handle> {
    object(|rmr| call!(dat_rmr_create(pz.raw(), rmr)))
}

pub(crate) fn rmr_query(rmr: Handle) -> CallResult<DAT_RMR_PARAM> {
    record(|param| call!(dat_rmr_query(rmr.raw(), DAT_RMR_FIELD_ALL, param)))
}

/// Binds a window to a segment, over an endpoint. Returns the window's key.
pub(crate) fn rmr_bind(
    rmr: Handle,
    segment: &DAT_LMR_TRIPLET,
    privileges: DAT_MEM_PRIV_FLAGS,
    ep: Handle,
    cookie: u64,
) -> CallResult<DAT_RMR_CONTEXT> {
    let (cookie, flags) = (DAT_CONTEXT { as_64: cookie }, DAT_COMPLETION_DEFAULT_FLAG);
    made(0, |context| call!(dat_rmr_bind(rmr.raw(), segment, privileges, ep.raw(), cookie, flags, context)))
}

pub(crate) fn rmr_free(rmr: Handle) -> CallResult {
    call!(dat_rmr_free(rmr.raw()))
}

pub(crate) fn psp_create(ia: Handle, qual: DAT_CONN_QUAL, evd: Handle) -> CallResult<Handle> {
    object(|psp| call!(dat_psp_create(ia.raw(), qual, evd.raw(), DAT_PSP_CONSUMER_FLAG, psp)))
}

/// Creates a PSP at a free qualifier. Returns the handle and the qualifier.
pub(crate) fn psp_create_any(ia: Handle, evd: Handle) -> CallResult<(Handle, DAT_CONN_QUAL)> {
    let mut qual = 0;
    let psp = object(|psp| call!(dat_psp_create_any(ia.raw(), &mut qual, evd.raw(), DAT_PSP_CONSUMER_FLAG, psp)))?;
    Ok((psp, qual))
}

pub(crate) fn psp_query(psp: Handle) -> CallResult<DAT_PSP_PARAM> {
    record(|param| call!(dat_psp_query(psp.raw(), DAT_PSP_FIELD_ALL, param)))
}

pub(crate) fn psp_free(psp: Handle) -> CallResult {
    call!(dat_psp_free(psp.raw()))
}

pub(crate) fn rsp_create(ia: Handle, qual: DAT_CONN_QUAL, ep: Handle, evd: Handle) -> CallResult<Handle> {
    object(|rsp| call!(dat_rsp_create(ia.raw(), qual, ep.raw(), evd.raw(), rsp)))
}

pub(crate) fn rsp_query(rsp: Handle) -> CallResult<DAT_RSP_PARAM> {
    record(|param| call!(dat_rsp_query(rsp.raw(), DAT_RSP_FIELD_ALL, param)))
}

pub(crate) fn rsp_free(rsp: Handle) -> CallResult {
    call!(dat_rsp_free(rsp.raw()))
}

pub(crate) fn cr_accept(cr: Handle, ep: Handle) -> CallResult {
    call!(dat_cr_accept(cr.raw(), ep.raw(), 0, null_mut()))
}

pub(crate) fn cr_reject(cr: Handle) -> CallResult {
    call!(dat_cr_reject(cr.raw()))
}
