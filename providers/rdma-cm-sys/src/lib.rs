//! Declarations of librdmacm, written by hand: the functions that a provider calls and the types that they use.
//!
//! Names are those of the header (`<rdma/rdma_cma.h>`); an enumeration is a type and constants.
//! `test/tests/rdma_headers.rs` compares each declaration with the installed header. The library is loaded at run time
//! by [`load`]. This crate has no wrappers: the library's manual pages state the rules.
#![allow(non_camel_case_types)]

use std::os::raw::{c_int, c_uint, c_void};

use ibverbs_sys::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_type, ibv_srq,
};
use libc::{size_t, sockaddr, sockaddr_storage};

/// Type of an event.
pub type rdma_cm_event_type = c_uint;
/// `rdma_resolve_addr` succeeded.
pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
/// `rdma_resolve_addr` failed.
pub const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
/// `rdma_resolve_route` succeeded.
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
/// `rdma_resolve_route` failed.
pub const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
/// A connection request of a peer; the event's `id` is new.
pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
/// The peer accepted, and the caller has to call `rdma_establish`, because the library has no queue pair for the id.
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
/// A connection could not be set up.
pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
/// The peer does not answer.
pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
/// The peer refused; `status` is the reason.
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
/// A connection is established.
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
/// The connection has ended.
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
/// The device is being removed.
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
/// For multicast groups, which are not used.
pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
/// For multicast groups, which are not used.
pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
/// The network device of the id changed its hardware address.
pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
/// The queue pair of a connection that ended may be used again.
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

/// Port space of an id.
pub type rdma_port_space = c_uint;
/// IP over InfiniBand.
pub const RDMA_PS_IPOIB: rdma_port_space = 0x0002;
/// Connections by IP address and port.
pub const RDMA_PS_TCP: rdma_port_space = 0x0106;
/// Datagrams by IP address and port.
pub const RDMA_PS_UDP: rdma_port_space = 0x0111;
/// Service ids of InfiniBand.
pub const RDMA_PS_IB: rdma_port_space = 0x013F;

/// In `rdma_conn_param`: the maximum number of incoming reads of the device.
pub const RDMA_MAX_RESP_RES: u8 = 0xFF;
/// In `rdma_conn_param`: the maximum number of outgoing reads of the device.
pub const RDMA_MAX_INIT_DEPTH: u8 = 0xFF;

/// Level of options of an id.
pub const RDMA_OPTION_ID: c_int = 0;
/// Type of service: `u8`.
pub const RDMA_OPTION_ID_TOS: c_int = 0;
/// Like SO_REUSEADDR; the value is a `c_int`.
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// Like IPV6_V6ONLY; the value is a `c_int`.
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
/// The queue pair's acknowledge timeout, 4.096 us * 2^n: `u8`.
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

// InfiniBand specification, volume 1, 12.6.7.2: values of `status` of a rejection on InfiniBand and RoCE. The library
// passes on these numbers and has no names for them.
/// No process listens on the service id.
pub const IB_CM_REJ_INVALID_SERVICE_ID: c_int = 8;
/// The peer still knows an earlier connection of this queue pair.
pub const IB_CM_REJ_STALE_CONN: c_int = 10;
/// The program at the peer rejected the request.
pub const IB_CM_REJ_CONSUMER_DEFINED: c_int = 28;

/// Source of events.
#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    /// Readable while events are queued; may be made non-blocking.
    pub fd: c_int,
}

/// A path record; used as an opaque type.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_sa_path_rec {
    _opaque: [u8; 0],
}

/// InfiniBand addresses of the two ends.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    /// GID of the local end.
    pub sgid: ibv_gid,
    /// GID of the peer.
    pub dgid: ibv_gid,
    /// Partition, big-endian.
    pub pkey: u16,
}

/// Both ends of an id.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    /// Address of the local end; the header has other names for it as well.
    pub src_storage: sockaddr_storage,
    /// Address of the peer.
    pub dst_storage: sockaddr_storage,
    /// InfiniBand addresses of both ends.
    pub addr: rdma_addr_ib,
}

/// An unnamed union of the header, with one member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_ib {
    /// The member.
    pub ibaddr: rdma_ib_addr,
}

/// Addresses and path of a connection.
#[repr(C)]
pub struct rdma_route {
    /// Addresses of both ends.
    pub addr: rdma_addr,
    /// Path records of the subnet manager.
    pub path_rec: *mut ibv_sa_path_rec,
    /// Number of path records.
    pub num_paths: c_int,
}

/// A connection, a listener, or an attempt.
#[repr(C)]
pub struct rdma_cm_id {
    /// The library's context of the device, once the id is bound to one.
    pub verbs: *mut ibv_context,
    /// Channel of its events.
    pub channel: *mut rdma_event_channel,
    /// For the creator of the id.
    pub context: *mut c_void,
    /// The QP of `rdma_create_qp`; not used.
    pub qp: *mut ibv_qp,
    /// Addresses and path.
    pub route: rdma_route,
    /// Port space given at creation.
    pub ps: rdma_port_space,
    /// The device's port, from 1, once the id is bound to one.
    pub port_num: u8,
    /// Used by the library.
    pub event: *mut rdma_cm_event,
    /// Used by the library.
    pub send_cq_channel: *mut ibv_comp_channel,
    /// Used by the library.
    pub send_cq: *mut ibv_cq,
    /// Used by the library.
    pub recv_cq_channel: *mut ibv_comp_channel,
    /// Used by the library.
    pub recv_cq: *mut ibv_cq,
    /// Used by the library.
    pub srq: *mut ibv_srq,
    /// Used by the library.
    pub pd: *mut ibv_pd,
    /// Type of the queue pair, determined by the port space.
    pub qp_type: ibv_qp_type::Type,
}

/// Parameters that the two ends of a connection exchange.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    /// May be null.
    pub private_data: *const c_void,
    /// Length of the private data. In an event: the received length, which may be more than was sent, padded with
    /// zeros.
    pub private_data_len: u8,
    /// Maximum number of outstanding reads of the peer.
    pub responder_resources: u8,
    /// Maximum number of outstanding reads of this side.
    pub initiator_depth: u8,
    /// Whether the hardware may control the flow.
    pub flow_control: u8,
    /// Number of retransmissions of a packet; 3 bits.
    pub retry_count: u8,
    /// Number of retries when the peer has no receive posted; 3 bits, 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair shares its receives.
    pub srq: u8,
    /// The queue pair's number.
    pub qp_num: u32,
}

/// The same for datagrams; declared for the size of the union.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    /// May be null.
    pub private_data: *const c_void,
    /// Length of the private data.
    pub private_data_len: u8,
    /// Address handle attributes of the peer.
    pub ah_attr: ibv_ah_attr,
    /// The queue pair's number.
    pub qp_num: u32,
    /// Key of datagrams.
    pub qkey: u32,
}

/// An event; it belongs to the library until `rdma_ack_cm_event`.
#[repr(C)]
pub struct rdma_cm_event {
    /// The id concerned.
    pub id: *mut rdma_cm_id,
    /// For a request: the listening id.
    pub listen_id: *mut rdma_cm_id,
    /// Type of the event.
    pub event: rdma_cm_event_type,
    /// Zero, the reason of a rejection, or a negative error number.
    pub status: c_int,
    /// The port space of the id selects the member.
    pub param: rdma_cm_event_param,
}

/// An unnamed union in the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    /// Of connections.
    pub conn: rdma_conn_param,
    /// Of datagrams.
    pub ud: rdma_ud_param,
}

// Unless stated otherwise, a function returns 0, or -1 and errno.
ibverbs_sys::library! {
    "librdmacm.so.1", "librdmacm1";

    /// Null and errno on failure.
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
    /// Call it after all of its ids were destroyed.
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    /// The id is returned through the second argument.
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;
    /// Waits until all events of the id are acknowledged.
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    /// Only reads the address.
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    /// Only reads the addresses; the first may be null. An event reports the result.
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    /// An event reports the result.
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    /// Requests are reported by events.
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    /// Only reads the parameters. An event reports the result.
    pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// Completes a connection that `rdma_connect` began, if the queue pair is not the library's.
    pub fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    /// Only reads the parameters. An event reports the result.
    pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// The private data may be null.
    pub fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Like `rdma_reject`, but with reason 35 (vendor option not supported) instead of the program's own reason.
    pub fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Both ends get an event.
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    /// Passes on an event of the queue pair: data arrived before the connection was established.
    pub fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    /// Returns the attributes for the state in `qp_attr`, which is read, and their mask.
    pub fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
    /// The event is returned through the second argument.
    pub fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    /// Frees the event.
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    /// Only reads the value.
    pub fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: size_t,
    ) -> c_int;
}
