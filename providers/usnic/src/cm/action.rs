//! Actions of connection set-up that run without the connection manager's lock, and functions that the active and the
//! passive side share.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent, RequestInfo};
use dapl::runtime::handle::ObjectId;

use super::secrets::OsRandom;
use crate::device::Device;
use crate::net::send::SendBatch;
use crate::net::sockaddr::SockAddr;
use crate::net::socket::Socket;
use crate::proto::setup::accept::RequestId;
use crate::proto::setup::{Agreed, Offer};
use crate::qp::handler::ConnectionHandler;

/// Limits of a queue pair that are sent to the peer at connection set-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QpCaps {
    /// Maximum number of outstanding RDMA reads: `ord` is for reads of the local side, `ird` for reads of the peer.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Number of receives that are already posted.
    pub(crate) credits: u32,
}

/// An action that the engine runs without the connection manager's lock.
pub(super) enum CmAction {
    /// Reports a request to its listener.
    Request(ObjectId, RequestId, RequestInfo),
    /// Opens a connection. The packets are those that arrived before the connection was open.
    Establish(EstablishedConnection, Vec<(SocketAddr, Vec<u8>)>),
    /// Ends the connection attempt with this number, and reports the event. The bytes are the private data of a
    /// rejection.
    End(u32, Arc<dyn ConnectionHandler>, ConnId, ConnectionEvent, Vec<u8>),
}

/// A connection that both hosts have agreed on, and that is not reported to the consumer yet.
pub(super) struct EstablishedConnection {
    pub(super) number: u32,
    pub(super) conn: ConnId,
    pub(super) handler: Arc<dyn ConnectionHandler>,
    pub(super) agreed: Agreed,
    /// Private data of the accept; empty on the passive side.
    pub(super) private_data: Vec<u8>,
}

/// Builds the local parameters of a connection with `peer`, with a random token and a random first packet number.
pub(super) fn offer(device: &Device, number: u32, caps: QpCaps, peer: SocketAddr) -> Offer {
    Offer {
        ord: caps.ord,
        ird: caps.ird,
        credits: caps.credits,
        window_kib: u16::try_from(device.socket.receive_buffer() >> 10).unwrap_or(u16::MAX).max(1),
        mtu: u16::try_from(device.path_to(peer).ceiling).unwrap_or(u16::MAX),
        ..Offer::new(number, &mut OsRandom)
    }
}

/// Sends the only packet in the batch. If the socket is full, the packet is lost; the state machine that built it
/// repeats it later.
pub(super) fn send(batch: &mut SendBatch, socket: &Socket, to: SocketAddr) {
    batch.end_packet();
    batch.send(socket, &SockAddr::of(to));
    batch.clear();
}
