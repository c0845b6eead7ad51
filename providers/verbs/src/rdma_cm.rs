//! Safe wrappers of librdmacm: the event channel, its ids, and copies of events.
//!
//! This is the only module that calls librdmacm. It retries nothing. An event is copied and acknowledged before it is
//! handled: destroying an id waits until all its events are acknowledged.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys::{IBV_EVENT_COMM_EST, ibv_qp_attr, ibv_qp_state};
use rdma_cm_sys::*;
use rustix::net::SocketAddrAny;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen};

use crate::ibv::{Handle, check_result};
use crate::qp::state::StateChange;

/// An rdma_cm event channel, which all ids of an IA use.
pub(crate) struct EventChannel(Handle<rdma_event_channel>);

/// A copy of an rdma_cm event, made before the event was acknowledged.
pub(crate) struct CmEvent {
    pub(crate) kind: rdma_cm_event_type,
    /// Zero, the reason of a rejection, or a negative error number.
    pub(crate) status: c_int,
    /// Number of the event's id; for a connection request, of the listening id.
    pub(crate) number: usize,
    /// For a connection request: the new id and its number.
    pub(crate) new: Option<(CmId, usize)>,
    pub(crate) params: ConnParams,
    pub(crate) private_data: Vec<u8>,
}

/// The connection parameters of `rdma_conn_param`, without private data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnParams {
    /// Maximum number of outstanding RDMA reads by the peer.
    pub(crate) responder_resources: u8,
    /// Maximum number of outstanding RDMA reads by the local queue pair.
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: bool,
    pub(crate) qp_number: u32,
}

impl ConnParams {
    fn of(conn: &rdma_conn_param) -> Self {
        ConnParams {
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq != 0,
            qp_number: conn.qp_num,
        }
    }

    /// Builds the C record. It contains a pointer to `private_data`, which must outlive its use.
    fn with(&self, private_data: &[u8]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() },
            private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qp_number,
        }
    }
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // librdmacm is loaded here, because every other call needs a channel or an id of a channel.
        load().map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error.clone()))?;
        // SAFETY: the library is loaded, and the function has no arguments.
        let channel = EventChannel(Handle::check(unsafe { rdma_create_event_channel() })?);
        rustix::io::ioctl_fionbio(channel.fd(), true)?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor, which is readable when an event is pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, and the result borrows the channel.
        unsafe { BorrowedFd::borrow_raw((*self.0.as_ptr()).fd) }
    }

    /// Reads, copies and acknowledges the next event; `None` if none is pending. `fresh` returns the number for a new
    /// id.
    pub(crate) fn next(self: &Arc<Self>, fresh: impl FnOnce() -> usize) -> io::Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open, and `event` is a valid pointer to write to.
        if unsafe { rdma_get_cm_event(self.0.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: on success, `event` points to an initialised event, which is valid until it is acknowledged below.
        let raw = unsafe { &*event };
        let is_request = raw.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        let about = if is_request { raw.listen_id } else { raw.id };
        // SAFETY: the id of an event is not destroyed before the event is acknowledged.
        let number = unsafe { (*about).context } as usize;
        // SAFETY: all ids have the port space `RDMA_PS_TCP`, whose events use this member of the union.
        let conn = unsafe { &raw.param.conn };
        let mut private_data = vec![0; if conn.private_data.is_null() { 0 } else { conn.private_data_len.into() }];
        if !private_data.is_empty() {
            // SAFETY: `conn.private_data` has `private_data_len` bytes until the event is acknowledged.
            unsafe {
                ptr::copy_nonoverlapping(conn.private_data.cast(), private_data.as_mut_ptr(), private_data.len())
            };
        }
        let new = is_request.then(|| {
            let number = fresh();
            // SAFETY: the new id is valid, and no other thread knows it yet.
            unsafe { (*raw.id).context = number as *mut c_void };
            Handle::check(raw.id).ok().map(|id| (CmId { id, _channel: self.clone() }, number))
        });
        let params = ConnParams::of(conn);
        let (kind, status) = (raw.event, raw.status);
        // SAFETY: `event` was returned by `rdma_get_cm_event`, and is acknowledged once.
        unsafe { rdma_ack_cm_event(event) };
        Ok(Some(CmEvent { kind, status, number, new: new.flatten(), params, private_data }))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: no id uses the channel: each holds an `Arc` of it.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// An rdma_cm id: a listener, a connection request, an attempt to connect, or a connection.
pub(crate) struct CmId {
    id: Handle<rdma_cm_id>,
    _channel: Arc<EventChannel>,
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: `self` is the only owner, and is dropped here. All events that were read are acknowledged.
        if unsafe { rdma_destroy_id(self.id.as_ptr()) } != 0 {
            log::warn!(
                "cannot destroy an rdma_cm id: {}; its resources stay allocated until the process ends",
                io::Error::last_os_error()
            );
        }
    }
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

impl CmId {
    /// Creates an id whose events carry `number`.
    pub(crate) fn new(channel: &Arc<EventChannel>, number: usize) -> io::Result<Self> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is open. librdmacm stores `number` and never dereferences it.
        check_result(unsafe { rdma_create_id(channel.0.as_ptr(), &mut id, number as *mut c_void, RDMA_PS_TCP) })?;
        Ok(CmId { id: Handle::check(id)?, _channel: channel.clone() })
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let raw = address.as_any();
        // SAFETY: `self.id` exists until `self` is dropped, and `raw` outlives the call, which only reads it.
        check_result(unsafe { rdma_bind_addr(self.id.as_ptr(), raw.as_ptr().cast_mut().cast()) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_listen(self.id.as_ptr(), backlog) })
    }

    pub(crate) fn resolve_address(&self, peer: SocketAddr, time: Duration) -> io::Result<()> {
        let raw = peer.as_any();
        let to = raw.as_ptr().cast_mut().cast();
        // SAFETY: `self.id` exists until `self` is dropped, and `raw` outlives the call, which only reads it.
        check_result(unsafe { rdma_resolve_addr(self.id.as_ptr(), ptr::null_mut(), to, milliseconds(time)) })
    }

    pub(crate) fn resolve_route(&self, time: Duration) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_resolve_route(self.id.as_ptr(), milliseconds(time)) })
    }

    pub(crate) fn connect(&self, params: &ConnParams, private_data: &[u8]) -> io::Result<()> {
        let mut param = params.with(private_data);
        // SAFETY: `self.id` exists until `self` is dropped. `param` and the private data outlive the call.
        check_result(unsafe { rdma_connect(self.id.as_ptr(), &mut param) })
    }

    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_establish(self.id.as_ptr()) })
    }

    pub(crate) fn accept(&self, params: &ConnParams, private_data: &[u8]) -> io::Result<()> {
        let mut param = params.with(private_data);
        // SAFETY: `self.id` exists until `self` is dropped. `param` and the private data outlive the call.
        check_result(unsafe { rdma_accept(self.id.as_ptr(), &mut param) })
    }

    /// Rejects the request as the consumer's decision.
    pub(crate) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        // SAFETY: `self.id` exists until `self` is dropped, and `private_data` outlives the call.
        check_result(unsafe { rdma_reject(self.id.as_ptr(), private_data.as_ptr().cast(), length) })
    }

    /// Rejects the request with a reason that the peer does not report as the consumer's decision.
    pub(crate) fn reject_unserved(&self) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_reject_ece(self.id.as_ptr(), ptr::null(), 0) })
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_disconnect(self.id.as_ptr()) })
    }

    /// Notifies rdma_cm that the queue pair has received data before the connection was confirmed.
    pub(crate) fn notify(&self) -> io::Result<()> {
        // SAFETY: `self.id` exists until `self` is dropped.
        check_result(unsafe { rdma_notify(self.id.as_ptr(), IBV_EVENT_COMM_EST) })
    }

    /// Returns the attributes that change the queue pair of this connection to a state.
    pub(crate) fn change(&self, state: ibv_qp_state::Type) -> io::Result<StateChange> {
        let mut attributes = ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: `self.id` exists until `self` is dropped, and both pointers are valid for writes.
        check_result(unsafe { rdma_init_qp_attr(self.id.as_ptr(), &mut attributes, &mut mask) })?;
        Ok(StateChange { attributes, mask: mask as u32 })
    }

    /// Returns the peer's address; `None` before it is known.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: `self.id` exists until `self` is dropped. librdmacm sets the address before it reports an event of
        // the id, and does not change it later.
        let storage = unsafe { &(*self.id.as_ptr()).route.addr.dst_storage };
        address_of(storage)
    }

    /// Returns the port number of the device, from 1; 0 before it is known.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: `self.id` exists until `self` is dropped.
        unsafe { (*self.id.as_ptr()).port_num }
    }
}

/// Returns an IP address and port that C code has stored; `None` for other families.
fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the storage is a socket address of its whole length: a family, and bytes that are valid for each family.
    let raw = unsafe { SocketAddrAny::read(ptr::from_ref(storage).cast(), size_of_val(storage) as SocketAddrLen) };
    let address = SocketAddr::try_from(raw).ok()?;
    Some(SocketAddr::new(address.ip(), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_conversion_round_trips() {
        for text in ["192.0.2.7:4660", "[2001:db8::7]:4660"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = address.as_any();
            // SAFETY: every byte pattern is a valid `sockaddr_storage`, which is not shorter than an address.
            let storage = unsafe {
                let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), (&raw mut storage).cast(), raw.addr_len() as usize);
                storage
            };
            assert_eq!(address_of(&storage), Some(address));
        }
    }
}
