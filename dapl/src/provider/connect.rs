//! Provider interface for connections: addresses, requests, and the sink for connection events.

use std::net::SocketAddr;

use super::{Count, Provider};
use crate::error::{Error, Result};
use crate::runtime::handle::ObjectId;

/// Identifies one attempt to connect and the resulting connection. Late reports have an old generation or attempt and are
/// dropped.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ConnId {
    /// The EP.
    pub ep: ObjectId,
    /// Counts the EP's attempts.
    pub attempt: u32,
}

/// The address to connect to.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSpec<'a> {
    /// The peer's IA.
    pub address: &'a PeerAddress,
    /// Its service point.
    pub qual: u64,
    /// Private data for the peer's consumer; at most `Limits::private_data_connect` bytes.
    pub private_data: &'a [u8],
}

/// An IA address as a consumer gives it; ports are never looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PeerAddress {
    Ip(std::net::IpAddr),
    /// `AF_UNIX`: a path.
    Path(std::path::PathBuf),
}

/// The connection of a queue pair.
pub trait Connection: Send + Sync {
    /// Counters and state of the present connection, or of the last one.
    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }
    /// Starts connecting; the outcome is reported to the sink.
    ///
    /// Errors: `InvalidAddress(Unreachable)` if that is known at once; then nothing is reported.
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Waits until posted requests have completed (receives stay posted), then ends the connection and reports `Disconnected`.
    fn drain(&self);
    /// Ends the connection or attempt at once and informs the peer; all posted work is flushed before this returns. Nothing
    /// more is reported for it.
    fn abort(&self);
    /// Back to unconnected and empty, ready to connect again; what was posted is flushed before this returns.
    fn reset(&self) -> Result<()>;
}

/// A connection request, answered once.
pub trait ConnRequest: Send + Sync + Sized {
    /// The QP that it can be accepted into.
    type Qp;
    /// Accepts into `qp`, which is unconnected; `Established` or `AcceptFailed` is reported for `conn`.
    ///
    /// A requester that has left is reported as `AcceptFailed`. Errors: the QP cannot take it; the request is consumed and the
    /// peer rejected.
    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Refuses it as the consumer's own decision.
    fn reject(self);
    /// Passes the request to the listener on `qual` on this host, as a request of the same peer with the same private data.
    ///
    /// Errors, with the request returned unchanged: `InvalidParameter(2)` without a listener there.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)>;
}

/// Facts about a request, as `dat_cr_query` shows them.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// The requester's IA address; the port is its source port, if the transport has one.
    pub peer: SocketAddr,
    /// The bytes that were sent, or as many as the transport always carries.
    pub private_data: Vec<u8>,
    /// Length of the private data that is reported to the consumer; the rest can be read beyond it.
    pub reported_len: usize,
}

/// Outcome of an attempt, or event of a connection. Providers produce it from the answer on the wire; the EP's state machine
/// may change it; EVDs convert it to an event number.
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
    /// An accepted request failed.
    AcceptFailed,
    /// The peer ended it, or went away; or the end of `drain`.
    Disconnected,
    /// A transfer or the transport failed.
    Broken,
    /// The consumer's time-out has passed. Only an EP produces it.
    TimedOut,
}

/// Receives requests and connection events from a provider. Implemented by `dapl::cm`.
pub trait CmSink<P: Provider>: Send + Sync {
    /// Delivers a request to the listener `listener`. `Err` returns it if the listener is gone or its queue is full: the
    /// provider then rejects it as `Rejected`.
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
