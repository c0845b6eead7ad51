//! Connections: where to, who asks, and the sink that hears of them.
//!
//! Traits, and what they take; nothing is implemented here.

use std::net::SocketAddr;

use super::{Count, Provider};
use crate::error::{Error, Result};
use crate::runtime::handle::ObjectId;

/// One attempt to connect, and the connection that comes of it: late reports meet a dead generation or attempt.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ConnId {
    /// The EP.
    pub ep: ObjectId,
    /// Counts the EP's attempts.
    pub attempt: u32,
}

/// Where to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSpec<'a> {
    /// The peer's IA.
    pub address: &'a PeerAddress,
    /// Its service point.
    pub qual: u64,
    /// For its consumer; within `Limits::private_data_connect`.
    pub private_data: &'a [u8],
}

/// An IA address as a consumer gives it; ports are never looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PeerAddress {
    Ip(std::net::IpAddr),
    /// `AF_UNIX`: a path.
    Path(std::path::PathBuf),
}

/// The connection of a queue pair.
pub trait Connection: Send + Sync {
    /// What its connection has counted until now, or the last one had, and how it stands.
    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }
    /// Starts connecting; the sink hears the outcome.
    ///
    /// Errors: `InvalidAddress(Unreachable)` for what can be seen at once; then the sink hears nothing.
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Lets the requests finish (receives stay until then), then ends the connection; the sink hears `Disconnected`.
    fn drain(&self);
    /// Ends the connection or attempt now and tells the peer; everything posted is flushed before this returns.
    /// The sink hears nothing more of it.
    fn abort(&self);
    /// Back to unconnected and empty, ready to connect again; what was posted is flushed before this returns.
    fn reset(&self) -> Result<()>;
}

/// A connection request, answered once.
pub trait ConnRequest: Send + Sync + Sized {
    /// The QP that it can be accepted into.
    type Qp;
    /// Accepts into `qp`, which is unconnected; the sink hears `Established` or `AcceptFailed` for `conn`.
    ///
    /// A requester that has left is no error here: the sink hears `AcceptFailed`. Errors: the QP cannot take it; the
    /// request is consumed and the peer rejected.
    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Refuses it as the consumer's own decision.
    fn reject(self);
    /// Gives it to whoever listens on `qual` on this host, as a request of the same peer's with the same private data.
    ///
    /// Errors, with the request back and unchanged: `InvalidParameter(2)` when nobody listens there.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)>;
}

/// Facts about a request, as `dat_cr_query` shows them.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// The requester's IA address; the port is its source port, if the transport has one.
    pub peer: SocketAddr,
    /// The bytes that were sent, or as many as the transport always carries.
    pub private_data: Vec<u8>,
    /// How many of them the consumer is reported_len of; who looks further finds the rest.
    pub reported_len: usize,
}

/// What becomes of an attempt or connection. Providers produce it from the answer on the wire; the EP may turn it into another
/// one by its state; EVDs number it as the event that the consumer takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionEvent {
    /// The connection is established.
    Established,
    /// The peer's consumer refused.
    PeerRejected,
    /// Another part of the peer refused: no listener, no place in its queue, not understood.
    Rejected,
    /// The peer could not be found or did not answer.
    Unreachable,
    /// An accepted request came to nothing.
    AcceptFailed,
    /// The peer ended it, or went away; or the end of `drain`.
    Disconnected,
    /// A transfer or the transport failed.
    Broken,
    /// The consumer's time-out has passed. Only an EP produces it.
    TimedOut,
}

/// Where a provider reports requests and connections. Implemented by `dapl::cm`.
pub trait CmSink<P: Provider>: Send + Sync {
    /// A request for the listener made with `listener`. `Err` gives it back when nobody listens there any more or nobody
    /// has room: the provider refuses it as `Rejected`.
    fn request(
        &self,
        listener: ObjectId,
        request: P::Request,
        info: RequestInfo,
    ) -> std::result::Result<(), P::Request>;
    /// An event of a connection or attempt. `private_data` is empty but for `Established` on the active side, where it is what
    /// the acceptor sent, or as many bytes as the transport always carries.
    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]);
    /// An EP has more receives outstanding than its soft watermark.
    fn many_recvs(&self, ep: ObjectId);
}
