//! Hand-written declarations of librdmacm: the functions that a provider calls and the types that they use.
//!
//! Names are those of `<rdma/rdma_cma.h>`. An enumeration is declared as a type and constants.
//! `test/tests/rdma_headers.rs` compares each declaration with the installed header. The library is loaded at run time
//! by [`load`]. This crate has no wrappers: the library's manual pages state the rules of each function.
#![allow(non_camel_case_types)]

use std::os::raw::{c_int, c_uint, c_void};

use ibverbs_sys::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_type, ibv_srq,
};
use libc::{sockaddr, sockaddr_storage};

/// What an event reports: the field `event` of [`rdma_cm_event`].
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
/// The peer has accepted. The program must call `rdma_establish`, because librdmacm did not create the queue pair.
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
/// A connection could not be set up.
pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
/// The peer does not reply.
pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
/// The peer has rejected the connection request. `status` is the reason.
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
/// A connection is established.
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
/// The connection has ended.
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
/// The device is being removed.
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
/// For multicast groups, which the provider does not use.
pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
/// For multicast groups, which the provider does not use.
pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
/// The hardware address of the id's network device has changed.
pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
/// The queue pair of an ended connection may be used again.
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

/// Port space of an id: the transport, and the kind of address by which peers reach it.
pub type rdma_port_space = c_uint;
/// Connections by IP address and port.
pub const RDMA_PS_TCP: rdma_port_space = 0x0106;

// Values of `status` in RDMA_CM_EVENT_REJECTED on InfiniBand and RoCE (InfiniBand specification, volume 1, 12.6.7.2).
// The header has no names for them.
/// No process listens on the service id.
pub const IB_CM_REJ_INVALID_SERVICE_ID: c_int = 8;
/// The peer has not yet detected the end of an earlier connection of this queue pair.
pub const IB_CM_REJ_STALE_CONN: c_int = 10;
/// The program of the peer has rejected the request.
pub const IB_CM_REJ_CONSUMER_DEFINED: c_int = 28;

#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    /// Readable while events are queued; may be made non-blocking.
    pub fd: c_int,
}

/// A path record, which is used as an opaque type.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_sa_path_rec {
    _opaque: [u8; 0],
}

/// InfiniBand addresses of both peers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    /// Local GID.
    pub sgid: ibv_gid,
    /// GID of the peer.
    pub dgid: ibv_gid,
    /// Partition key in network byte order.
    pub pkey: u16,
}

/// Addresses of both peers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    /// Local address. In the header, a member of an unnamed union.
    pub src_storage: sockaddr_storage,
    /// Address of the peer. In the header, a member of an unnamed union.
    pub dst_storage: sockaddr_storage,
    /// InfiniBand addresses of both peers.
    pub addr: rdma_addr_ib,
}

/// An unnamed union of the header, with one member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_ib {
    pub ibaddr: rdma_ib_addr,
}

/// Addresses and path of a connection.
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    /// Path records of the subnet manager.
    pub path_rec: *mut ibv_sa_path_rec,
    /// Number of path records.
    pub num_paths: c_int,
}

/// An rdma_cm id: a connection, a listener, or an attempt to connect.
#[repr(C)]
pub struct rdma_cm_id {
    /// librdmacm's context of the device. Null until the id is bound to a device.
    pub verbs: *mut ibv_context,
    /// Channel that reports the id's events.
    pub channel: *mut rdma_event_channel,
    /// The value that was passed to `rdma_create_id`.
    pub context: *mut c_void,
    /// Set by `rdma_create_qp`, which the provider does not use.
    pub qp: *mut ibv_qp,
    /// Addresses and path.
    pub route: rdma_route,
    /// The port space that was passed to `rdma_create_id`.
    pub ps: rdma_port_space,
    /// Port number of the device, from 1. 0 until the id is bound to a device.
    pub port_num: u8,
    /// The last event of an id without a channel. The provider uses channels.
    pub event: *mut rdma_cm_event,
    /// Set by `rdma_create_qp`, which the provider does not use.
    pub send_cq_channel: *mut ibv_comp_channel,
    /// Set by `rdma_create_qp`, which the provider does not use.
    pub send_cq: *mut ibv_cq,
    /// Set by `rdma_create_qp`, which the provider does not use.
    pub recv_cq_channel: *mut ibv_comp_channel,
    /// Set by `rdma_create_qp`, which the provider does not use.
    pub recv_cq: *mut ibv_cq,
    /// Set by `rdma_create_srq`, which the provider does not use.
    pub srq: *mut ibv_srq,
    /// Protection domain of the queue pair. Set by librdmacm.
    pub pd: *mut ibv_pd,
    /// Type of the queue pair, determined by the port space.
    pub qp_type: ibv_qp_type::Type,
}

/// Parameters that both peers of a connection exchange.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    /// Private data of the program; may be null.
    pub private_data: *const c_void,
    /// Length of the private data. In an event: the received length, which may be more than was sent, padded with
    /// zeros.
    pub private_data_len: u8,
    /// Maximum number of outstanding RDMA reads by the peer.
    pub responder_resources: u8,
    /// Maximum number of outstanding local RDMA reads.
    pub initiator_depth: u8,
    /// Whether hardware flow control is available.
    pub flow_control: u8,
    /// Number of retransmissions of a packet; 3 bits.
    pub retry_count: u8,
    /// Number of retries after RNR NAKs; 3 bits. 7: no limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: u8,
    /// Number of the local queue pair; in an event: of the peer's queue pair.
    pub qp_num: u32,
}

/// Parameters of datagrams. Not used; declared so that its union with [`rdma_conn_param`] has the same size as in the
/// header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    /// Private data of the program; may be null.
    pub private_data: *const c_void,
    /// Length of the private data.
    pub private_data_len: u8,
    /// Address handle attributes of the peer.
    pub ah_attr: ibv_ah_attr,
    /// The queue pair's number.
    pub qp_num: u32,
    /// Q_Key of the queue pair.
    pub qkey: u32,
}

/// An event. It is valid until `rdma_ack_cm_event`.
#[repr(C)]
pub struct rdma_cm_event {
    /// The id of the event; for a connection request, the new id.
    pub id: *mut rdma_cm_id,
    /// For a connection request: the listening id.
    pub listen_id: *mut rdma_cm_id,
    /// Type of the event.
    pub event: rdma_cm_event_type,
    /// Zero, the reason of a rejection, or a negative error number.
    pub status: c_int,
    /// The port space of the id determines which member is set.
    pub param: rdma_cm_event_param,
}

/// An unnamed union in the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    /// For ids of connections (RDMA_PS_TCP).
    pub conn: rdma_conn_param,
    /// For ids of datagrams (RDMA_PS_UDP).
    pub ud: rdma_ud_param,
}

// The functions return 0, or -1 and errno, unless their comment says otherwise.
ibverbs_sys::library! {
    "librdmacm.so.1", "librdmacm1";

    /// Returns null and errno on failure.
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
    /// All ids of the channel must be destroyed before this call.
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    /// Stores the new id in `*id`.
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;
    /// Waits until all events of the id are acknowledged.
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    /// The address is only read.
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    /// The addresses are only read; `src_addr` may be null. An event reports the result.
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    /// An event reports the result.
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    /// Events report connection requests.
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    /// The parameters are only read. An event reports the result.
    pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// Completes a connection on the active side, after RDMA_CM_EVENT_CONNECT_RESPONSE.
    pub fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    /// The parameters are only read. An event reports the result.
    pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// `private_data` may be null.
    pub fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Rejects with reason 35 (vendor option not supported). `rdma_reject` gives the reason IB_CM_REJ_CONSUMER_DEFINED
    /// instead.
    pub fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Both peers get an event.
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    /// Notifies rdma_cm of an event of the queue pair: data has arrived before the connection was established.
    pub fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    /// Stores the attributes for the change to the state `qp_attr.qp_state` in `*qp_attr`, and their mask in
    /// `*qp_attr_mask`.
    pub fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
    /// Stores a pointer to the event in `*event`.
    pub fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    /// Acknowledges and frees the event.
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
}
