//! Actions of connection set-up that the engine executes without the connection manager's lock, because they call queue
//! pairs or dapl. Also the functions that the active and the passive side share.

use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent, RequestInfo};
use dapl::runtime::handle::ObjectId;

use super::secrets::OsRandom;
use crate::device::Device;
use crate::net::send::SendBatch;
use crate::net::socket::Socket;
use crate::proto::setup::accept::RequestId;
use crate::proto::setup::{HandshakeResult, Offer};
use crate::qp::handler::ConnectionHandler;

/// Limits of a queue pair, which the handshake sends to the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QpCaps {
    /// Maximum number of outstanding RDMA reads of this side.
    pub(crate) ord: u32,
    /// Maximum number of outstanding RDMA reads of the peer.
    pub(crate) ird: u32,
    /// Number of posted receives.
    pub(crate) credits: u32,
}

/// A connection of this IA, or an attempt to establish one.
pub(super) struct LocalConnection {
    pub(super) number: u32,
    pub(super) conn: ConnId,
    pub(super) handler: Arc<dyn ConnectionHandler>,
}

/// An action that the engine executes without the connection manager's lock.
pub(super) enum CmAction {
    /// Reports a request to its listener.
    Request(ObjectId, RequestId, RequestInfo),
    /// Opens a connection, then handles the packets that arrived for it before it was open.
    Establish(AgreedConnection, Vec<(SocketAddr, Vec<u8>)>),
    /// Ends the attempt, and reports an event. The private data are those of a rejection.
    End(LocalConnection, ConnectionEvent, Vec<u8>),
}

/// A connection that both sides have accepted, but which was not reported to dapl yet.
pub(super) struct AgreedConnection {
    pub(super) local: LocalConnection,
    pub(super) agreed: HandshakeResult,
    /// Private data of the accept. Empty on the passive side.
    pub(super) private_data: Vec<u8>,
}

/// Builds this host's offer for a connection with `peer`, with a random token and a random first PSN.
pub(super) fn offer(device: &Device, number: u32, caps: QpCaps, peer: SocketAddr) -> Offer {
    Offer {
        ord: caps.ord.into(),
        ird: caps.ird.into(),
        credits: caps.credits.into(),
        window_kib: u16::try_from(device.socket.receive_buffer >> 10).unwrap_or(u16::MAX).max(1).into(),
        mtu: u16::try_from(device.path_to(peer).ceiling).unwrap_or(u16::MAX).into(),
        ..Offer::new(number, &mut OsRandom)
    }
}

/// Sends the packet in the batch. If the socket is full, the packet is lost, and the handshake recovers as after a loss
/// in the network.
pub(super) fn send(batch: &mut SendBatch, socket: &Socket, to: SocketAddr) {
    batch.end_packet();
    batch.send(socket, to);
    batch.clear();
}
