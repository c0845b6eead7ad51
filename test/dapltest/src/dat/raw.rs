//! Every call into libdat, with Rust's values in and out: no rule, no state.
//!
//! Handles are numbers here. libdat survives any of them, so that a call with a dead or foreign one is an error and no more.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

use dat_abi::*;

use super::event::Event;
use super::import::*;

/// An object of libdat's, or anything else that is taken for one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Handle(usize);

impl Handle {
    /// None.
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
    /// Which.
    pub(crate) call: &'static str,
    /// What it answered.
    pub(crate) code: DAT_RETURN,
}

impl Refusal {
    /// Its type, without class and subtype.
    pub(crate) fn kind(self) -> DAT_RETURN_TYPE {
        if self.code == DAT_NOT_IMPLEMENTED { DAT_NOT_IMPLEMENTED } else { self.code & DAT_TYPE_MASK }
    }

    /// Its subtype.
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

/// What a call answers.
pub(crate) type Answer<T = ()> = Result<T, Refusal>;

fn check(call: &'static str, code: DAT_RETURN) -> Answer {
    if code == DAT_SUCCESS { Ok(()) } else { Err(Refusal { call, code }) }
}

/// A call that makes an object, or fills something in.
fn made<T>(call: &'static str, value: T, make: impl FnOnce(&mut T) -> DAT_RETURN) -> Answer<T> {
    let mut value = value;
    check(call, make(&mut value))?;
    Ok(value)
}

/// A call that makes an object.
fn object(call: &'static str, make: impl FnOnce(*mut DAT_HANDLE) -> DAT_RETURN) -> Answer<Handle> {
    made(call, DAT_HANDLE_NULL, |handle| make(handle)).map(Handle::of)
}

/// A call that fills in a record, all of it.
fn record<T>(call: &'static str, fill: impl FnOnce(*mut T) -> DAT_RETURN) -> Answer<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    check(call, fill(value.as_mut_ptr()))?;
    // SAFETY: the records of DAT are numbers, pointers and functions that may be null: zeros are a value, and so is what a
    // call has filled in.
    Ok(unsafe { value.assume_init() })
}

fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libdat and its providers give constants that end in NUL, or null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The words for a code, as libdat has them.
pub(crate) fn words(code: DAT_RETURN) -> String {
    let (mut kind, mut subtype) = (null(), null());
    // SAFETY: both places are ours.
    unsafe { dat_strerror(code, &mut kind, &mut subtype) };
    let (kind, subtype) = (text_at(kind), text_at(subtype));
    if subtype.is_empty() || subtype == "DAT_NO_SUBTYPE" { kind } else { format!("{kind} {subtype}") }
}

/// Opens an adapter, asking for thread safety no more than C programs do, since many a dat.conf does not promise it; its
/// asynchronous errors go to an EVD of its own.
pub(crate) fn ia_open(name: &str) -> Answer<(Handle, Handle)> {
    let text = CString::new(name).unwrap_or_default();
    let (mut errors, mut ia) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL);
    // SAFETY: the name ends in NUL and is not written to, the places are ours.
    let code = unsafe {
        let name = text.as_ptr().cast_mut();
        dat_ia_openv(name, 8, &mut errors, &mut ia, DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE)
    };
    check("dat_ia_open", code)?;
    Ok((Handle::of(ia), Handle::of(errors)))
}

pub(crate) fn ia_query(ia: Handle) -> Answer<DAT_IA_ATTR> {
    // SAFETY: the record is ours; nothing else is asked for.
    record("dat_ia_query", |attr| unsafe {
        dat_ia_query(ia.raw(), null_mut(), DAT_IA_FIELD_ALL, attr, DAT_PROVIDER_FIELD_NONE, null_mut())
    })
}

pub(crate) fn provider_query(ia: Handle) -> Answer<DAT_PROVIDER_ATTR> {
    // SAFETY: the record is ours; nothing else is asked for.
    record("dat_ia_query", |attr| unsafe {
        dat_ia_query(ia.raw(), null_mut(), DAT_IA_FIELD_NONE, null_mut(), DAT_PROVIDER_FIELD_ALL, attr)
    })
}

/// The EVD of its asynchronous errors.
pub(crate) fn ia_errors(ia: Handle) -> Answer<Handle> {
    object("dat_ia_query", |evd| {
        // SAFETY: the place is ours; nothing else is asked for.
        unsafe { dat_ia_query(ia.raw(), evd, DAT_IA_FIELD_NONE, null_mut(), DAT_PROVIDER_FIELD_NONE, null_mut()) }
    })
}

pub(crate) fn ia_close(ia: Handle, flags: DAT_CLOSE_FLAGS) -> Answer {
    check("dat_ia_close", dat_ia_close(ia.raw(), flags))
}

pub(crate) fn handle_type(handle: Handle) -> Answer<DAT_HANDLE_TYPE> {
    // SAFETY: the place is ours.
    made("dat_get_handle_type", u32::MAX, |kind| unsafe { dat_get_handle_type(handle.raw(), kind) })
}

pub(crate) fn pz_create(ia: Handle) -> Answer<Handle> {
    // SAFETY: the place is ours.
    object("dat_pz_create", |pz| unsafe { dat_pz_create(ia.raw(), pz) })
}

/// The same without a place for the answer, which is not allowed.
pub(crate) fn pz_create_nowhere(ia: Handle) -> Answer {
    // SAFETY: null is refused.
    check("dat_pz_create", unsafe { dat_pz_create(ia.raw(), null_mut()) })
}

/// The IA that it belongs to.
pub(crate) fn pz_query(pz: Handle) -> Answer<Handle> {
    // SAFETY: the record is ours.
    let param =
        record::<DAT_PZ_PARAM>("dat_pz_query", |param| unsafe { dat_pz_query(pz.raw(), DAT_PZ_FIELD_ALL, param) })?;
    Ok(Handle::of(param.ia_handle))
}

pub(crate) fn pz_free(pz: Handle) -> Answer {
    check("dat_pz_free", dat_pz_free(pz.raw()))
}

pub(crate) fn cno_create(ia: Handle) -> Answer<Handle> {
    let agent = DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
    // SAFETY: the place is ours, and there is no agent.
    object("dat_cno_create", |cno| unsafe { dat_cno_create(ia.raw(), agent, cno) })
}

/// The IA that it belongs to.
pub(crate) fn cno_query(cno: Handle) -> Answer<Handle> {
    // SAFETY: the record is ours.
    let param = record::<DAT_CNO_PARAM>("dat_cno_query", |param| unsafe {
        dat_cno_query(cno.raw(), DAT_CNO_FIELD_ALL, param)
    })?;
    Ok(Handle::of(param.ia_handle))
}

/// The EVD that has woken it.
pub(crate) fn cno_wait(cno: Handle, microseconds: DAT_TIMEOUT) -> Answer<Handle> {
    // SAFETY: the place is ours.
    object("dat_cno_wait", |evd| unsafe { dat_cno_wait(cno.raw(), microseconds, evd) })
}

pub(crate) fn cno_free(cno: Handle) -> Answer {
    check("dat_cno_free", dat_cno_free(cno.raw()))
}

pub(crate) fn evd_create(ia: Handle, qlen: DAT_COUNT, cno: Handle, flags: DAT_EVD_FLAGS) -> Answer<Handle> {
    // SAFETY: the place is ours.
    object("dat_evd_create", |evd| unsafe { dat_evd_create(ia.raw(), qlen, cno.raw(), flags, evd) })
}

pub(crate) fn evd_query(evd: Handle) -> Answer<DAT_EVD_PARAM> {
    // SAFETY: the record is ours.
    record("dat_evd_query", |param| unsafe { dat_evd_query(evd.raw(), DAT_EVD_FIELD_ALL, param) })
}

pub(crate) fn evd_resize(evd: Handle, qlen: DAT_COUNT) -> Answer {
    check("dat_evd_resize", dat_evd_resize(evd.raw(), qlen))
}

/// Forbids waits, or allows them again.
pub(crate) fn evd_waitable(evd: Handle, is_waitable: bool) -> Answer {
    match is_waitable {
        true => check("dat_evd_clear_unwaitable", dat_evd_clear_unwaitable(evd.raw())),
        false => check("dat_evd_set_unwaitable", dat_evd_set_unwaitable(evd.raw())),
    }
}

/// Posts a software event whose pointer has this value.
pub(crate) fn evd_post_se(evd: Handle, value: usize) -> Answer {
    let event = Event::software(evd.raw(), std::ptr::without_provenance_mut(value));
    // SAFETY: the event is ours, and copied.
    check("dat_evd_post_se", unsafe { dat_evd_post_se(evd.raw(), &event) })
}

pub(crate) fn evd_wait(evd: Handle, microseconds: DAT_TIMEOUT, threshold: DAT_COUNT) -> Answer<Event> {
    let mut more = 0;
    // SAFETY: the record and the place are ours.
    let event =
        record("dat_evd_wait", |event| unsafe { dat_evd_wait(evd.raw(), microseconds, threshold, event, &mut more) })?;
    Ok(Event::of(&event))
}

pub(crate) fn evd_dequeue(evd: Handle) -> Answer<Event> {
    // SAFETY: the record is ours.
    let event = record("dat_evd_dequeue", |event| unsafe { dat_evd_dequeue(evd.raw(), event) })?;
    Ok(Event::of(&event))
}

pub(crate) fn evd_free(evd: Handle) -> Answer {
    check("dat_evd_free", dat_evd_free(evd.raw()))
}

/// The events of an endpoint: of receives, of requests, of its connection.
pub(crate) type Evds = [Handle; 3];

pub(crate) fn ep_create(ia: Handle, pz: Handle, evds: Evds, attr: Option<&DAT_EP_ATTR>) -> Answer<Handle> {
    let [recv, request, connect] = evds.map(Handle::raw);
    let attr = attr.map_or(null(), std::ptr::from_ref);
    // SAFETY: the attributes are a record or null, the place is ours.
    object("dat_ep_create", |ep| unsafe { dat_ep_create(ia.raw(), pz.raw(), recv, request, connect, attr, ep) })
}

pub(crate) fn ep_query(ep: Handle) -> Answer<DAT_EP_PARAM> {
    // SAFETY: the record is ours.
    record("dat_ep_query", |param| unsafe { dat_ep_query(ep.raw(), DAT_EP_FIELD_ALL, param) })
}

/// Its state, and whether no receive and no request is under way.
pub(crate) fn ep_status(ep: Handle) -> Answer<(DAT_EP_STATE, bool, bool)> {
    let (mut state, mut recv, mut request) = (u32::MAX, u32::MAX, u32::MAX);
    // SAFETY: the places are ours.
    let code = unsafe { dat_ep_get_status(ep.raw(), &mut state, &mut recv, &mut request) };
    check("dat_ep_get_status", code)?;
    Ok((state, recv != DAT_FALSE, request != DAT_FALSE))
}

pub(crate) fn ep_connect(
    ep: Handle,
    to: &Address,
    qual: DAT_CONN_QUAL,
    microseconds: DAT_TIMEOUT,
    qos: DAT_QOS,
) -> Answer {
    let mut to = *to;
    let flags = DAT_CONNECT_DEFAULT_FLAG;
    // SAFETY: the address is a whole one of its family, there are no private data.
    let code = unsafe { dat_ep_connect(ep.raw(), to.pointer(), qual, microseconds, 0, null_mut(), qos, flags) };
    check("dat_ep_connect", code)
}

pub(crate) fn ep_disconnect(ep: Handle, flags: DAT_CLOSE_FLAGS) -> Answer {
    check("dat_ep_disconnect", dat_ep_disconnect(ep.raw(), flags))
}

pub(crate) fn ep_reset(ep: Handle) -> Answer {
    check("dat_ep_reset", dat_ep_reset(ep.raw()))
}

pub(crate) fn ep_free(ep: Handle) -> Answer {
    check("dat_ep_free", dat_ep_free(ep.raw()))
}

/// What is posted to an endpoint.
#[derive(Clone, Copy)]
pub(crate) enum Post {
    /// A receive.
    Recv,
    /// A send.
    Send,
    /// An RDMA read from there.
    Read(DAT_RMR_TRIPLET),
    /// An RDMA write to there.
    Write(DAT_RMR_TRIPLET),
}

/// Posts. Who does it keeps the memory of the segments registered and mapped until the completion.
pub(crate) fn post(ep: Handle, post: Post, segments: &mut [DAT_LMR_TRIPLET], cookie: u64) -> Answer {
    let (ep, cookie, flags) = (ep.raw(), DAT_CONTEXT { as_64: cookie }, DAT_COMPLETION_DEFAULT_FLAG);
    let (count, first) = (segments.len() as DAT_COUNT, segments.as_mut_ptr());
    match post {
        // SAFETY: so many segments are there; what they name is checked against its registration.
        Post::Recv => check("dat_ep_post_recv", unsafe { dat_ep_post_recv(ep, count, first, cookie, flags) }),
        // SAFETY: as above.
        Post::Send => check("dat_ep_post_send", unsafe { dat_ep_post_send(ep, count, first, cookie, flags) }),
        Post::Read(from) => {
            // SAFETY: as above; the target is copied.
            let code = unsafe { dat_ep_post_rdma_read(ep, count, first, cookie, &from, flags) };
            check("dat_ep_post_rdma_read", code)
        }
        Post::Write(to) => {
            // SAFETY: as above; the target is copied.
            let code = unsafe { dat_ep_post_rdma_write(ep, count, first, cookie, &to, flags) };
            check("dat_ep_post_rdma_write", code)
        }
    }
}

/// What a registration gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) lmr: Handle,
    pub(crate) lmr_context: DAT_LMR_CONTEXT,
    pub(crate) rmr_context: DAT_RMR_CONTEXT,
    /// From where, and how many bytes, which may be more than was asked for.
    pub(crate) range: (DAT_VADDR, DAT_VLEN),
}

pub(crate) fn lmr_create(
    ia: Handle,
    pz: Handle,
    at: *mut c_void,
    length: u64,
    privileges: DAT_MEM_PRIV_FLAGS,
) -> Answer<Registered> {
    let region = DAT_REGION_DESCRIPTION { for_va: at };
    let (mut lmr, mut lmr_context, mut rmr_context, mut bytes, mut start) = (DAT_HANDLE_NULL, 0, 0, 0, 0);
    // SAFETY: the places are ours; whether the range is mapped is the provider's to find out.
    let code = unsafe {
        let (lmr, local, remote) = (&mut lmr, &mut lmr_context, &mut rmr_context);
        let kind = DAT_MEM_TYPE_VIRTUAL;
        let (ia, pz) = (ia.raw(), pz.raw());
        dat_lmr_create(ia, kind, region, length, pz, privileges, lmr, local, remote, &mut bytes, &mut start)
    };
    check("dat_lmr_create", code)?;
    Ok(Registered { lmr: Handle::of(lmr), lmr_context, rmr_context, range: (start, bytes) })
}

pub(crate) fn lmr_query(lmr: Handle) -> Answer<DAT_LMR_PARAM> {
    // SAFETY: the record is ours.
    record("dat_lmr_query", |param| unsafe { dat_lmr_query(lmr.raw(), DAT_LMR_FIELD_ALL, param) })
}

pub(crate) fn lmr_free(lmr: Handle) -> Answer {
    check("dat_lmr_free", dat_lmr_free(lmr.raw()))
}

pub(crate) fn rmr_create(pz: Handle) -> Answer<Handle> {
    // SAFETY: the place is ours.
    object("dat_rmr_create", |rmr| unsafe { dat_rmr_create(pz.raw(), rmr) })
}

pub(crate) fn rmr_query(rmr: Handle) -> Answer<DAT_RMR_PARAM> {
    // SAFETY: the record is ours.
    record("dat_rmr_query", |param| unsafe { dat_rmr_query(rmr.raw(), DAT_RMR_FIELD_ALL, param) })
}

/// Binds it to a segment, over a connection; its key comes back.
pub(crate) fn rmr_bind(
    rmr: Handle,
    segment: &DAT_LMR_TRIPLET,
    privileges: DAT_MEM_PRIV_FLAGS,
    ep: Handle,
    cookie: u64,
) -> Answer<DAT_RMR_CONTEXT> {
    let (cookie, flags) = (DAT_CONTEXT { as_64: cookie }, DAT_COMPLETION_DEFAULT_FLAG);
    made("dat_rmr_bind", 0, |context| {
        // SAFETY: the segment is copied, the place is ours.
        unsafe { dat_rmr_bind(rmr.raw(), segment, privileges, ep.raw(), cookie, flags, context) }
    })
}

pub(crate) fn rmr_free(rmr: Handle) -> Answer {
    check("dat_rmr_free", dat_rmr_free(rmr.raw()))
}

pub(crate) fn psp_create(ia: Handle, qual: DAT_CONN_QUAL, evd: Handle) -> Answer<Handle> {
    let flags = DAT_PSP_CONSUMER_FLAG;
    // SAFETY: the place is ours.
    object("dat_psp_create", |psp| unsafe { dat_psp_create(ia.raw(), qual, evd.raw(), flags, psp) })
}

/// At a qualifier that is free.
pub(crate) fn psp_create_any(ia: Handle, evd: Handle) -> Answer<(Handle, DAT_CONN_QUAL)> {
    let (mut qual, flags) = (0, DAT_PSP_CONSUMER_FLAG);
    // SAFETY: the places are ours.
    let psp =
        object("dat_psp_create_any", |psp| unsafe { dat_psp_create_any(ia.raw(), &mut qual, evd.raw(), flags, psp) })?;
    Ok((psp, qual))
}

pub(crate) fn psp_query(psp: Handle) -> Answer<DAT_PSP_PARAM> {
    // SAFETY: the record is ours.
    record("dat_psp_query", |param| unsafe { dat_psp_query(psp.raw(), DAT_PSP_FIELD_ALL, param) })
}

pub(crate) fn psp_free(psp: Handle) -> Answer {
    check("dat_psp_free", dat_psp_free(psp.raw()))
}

pub(crate) fn rsp_create(ia: Handle, qual: DAT_CONN_QUAL, ep: Handle, evd: Handle) -> Answer<Handle> {
    // SAFETY: the place is ours.
    object("dat_rsp_create", |rsp| unsafe { dat_rsp_create(ia.raw(), qual, ep.raw(), evd.raw(), rsp) })
}

pub(crate) fn rsp_query(rsp: Handle) -> Answer<DAT_RSP_PARAM> {
    // SAFETY: the record is ours.
    record("dat_rsp_query", |param| unsafe { dat_rsp_query(rsp.raw(), DAT_RSP_FIELD_ALL, param) })
}

pub(crate) fn rsp_free(rsp: Handle) -> Answer {
    check("dat_rsp_free", dat_rsp_free(rsp.raw()))
}

pub(crate) fn cr_accept(cr: Handle, ep: Handle) -> Answer {
    // SAFETY: there are no private data.
    check("dat_cr_accept", unsafe { dat_cr_accept(cr.raw(), ep.raw(), 0, null_mut()) })
}

pub(crate) fn cr_reject(cr: Handle) -> Answer {
    check("dat_cr_reject", dat_cr_reject(cr.raw()))
}

/// Where an adapter is, as the sockets have it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    /// A host's. The port is not looked at.
    pub(crate) fn of(host: SocketAddr) -> Self {
        match host {
            SocketAddr::V4(host) => Address {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: 0,
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(host.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(host) => Address {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: 0,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: host.ip().octets() },
                    sin6_scope_id: host.scope_id(),
                },
            },
        }
    }

    /// An adapter's own, out of its attributes; none of another family.
    pub(crate) fn own(attr: &DAT_IA_ATTR) -> Option<Self> {
        let at = attr.ia_address_ptr;
        if at.is_null() {
            return None;
        }
        // SAFETY: an open adapter's address is a socket address, whose family comes first.
        let family = i32::from(unsafe { (*at).sa_family });
        match family {
            // SAFETY: the family says what it is; it may be anywhere.
            libc::AF_INET => Some(Address { v4: unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() } }),
            // SAFETY: as above.
            libc::AF_INET6 => Some(Address { v6: unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() } }),
            _ => None,
        }
    }

    fn pointer(&mut self) -> DAT_IA_ADDRESS_PTR {
        std::ptr::from_mut(self).cast()
    }
}
