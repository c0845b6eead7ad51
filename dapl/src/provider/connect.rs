//! Provider interface for connections: addresses, the connection of a queue pair, connection requests, and the sink for
//! connection events.

use std::net::SocketAddr;

use dat_abi::*;

use super::{NamedCount, Provider};
use crate::error::{Error, Result};
use crate::runtime::handle::ObjectId;

/// Identifies one attempt to connect or accept, and the resulting connection. An event with the generation of a freed
/// EP, or with the number of an earlier attempt, is dropped.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ConnId {
    /// Id of the EP.
    pub ep: ObjectId,
    /// Number of the attempt; an EP increments it with each attempt.
    pub attempt: u32,
}

/// Parameters of a connect: the peer's address, the connection qualifier and the private data.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSpec<'a> {
    /// Address of the peer's IA.
    pub address: &'a PeerAddress,
    /// Connection qualifier of the peer's service point.
    pub qual: u64,
    /// Private data for the peer's consumer; at most `Limits::private_data_connect` bytes.
    pub private_data: &'a [u8],
}

/// An IA address as the consumer passes it; its port is ignored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PeerAddress {
    Ip(std::net::IpAddr),
    /// An `AF_UNIX` address.
    Path(std::path::PathBuf),
}

/// The connection of a queue pair.
pub trait Connection: Send + Sync {
    /// Counters and levels of the current connection, or of the last one.
    fn counts(&self) -> Vec<NamedCount> {
        Vec::new()
    }
    /// Starts to connect. The outcome is reported to the sink.
    ///
    /// Errors: `InvalidAddress(Unreachable)` if the provider knows without contacting the peer that it is unreachable.
    /// No event is reported then.
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Begins a graceful disconnect and does not block. After the posted requests have completed, the provider ends the
    /// connection and reports `Disconnected`. Receives stay posted until then.
    fn drain(&self);
    /// Ends the connection or attempt and informs the peer, without waiting for outstanding requests. All posted work
    /// is flushed before this returns. No further event is reported for the connection.
    fn abort(&self);
    /// Makes the queue pair unconnected and empty, ready to connect again. All posted work is flushed before this
    /// returns.
    fn reset(&self) -> Result<()>;
}

/// A connection request. The consumer accepts, rejects or hands it off, once.
pub trait ConnRequest: Send + Sync + Sized {
    /// Type of the queue pair into which the request is accepted.
    type Qp;
    /// Accepts the request into an unconnected `qp`. `Established` or `AcceptFailed` is reported for `conn`;
    /// `AcceptFailed` also if the requester has cancelled its request or exited.
    ///
    /// Errors: `qp` cannot be used. The request is then consumed and rejected.
    fn accept(self, qp: &Self::Qp, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Rejects the request. The peer's consumer gets the event PEER_REJECTED with `private_data`, at most
    /// `Limits::private_data_reject` bytes.
    fn reject(self, private_data: &[u8]);
    /// Passes the request to the listener on `qual` on this host. That listener receives it as a request of the same
    /// peer with the same private data.
    ///
    /// Errors: `InvalidParameter(2)` if no listener uses `qual`. The request is returned unchanged.
    fn hand_off(self, qual: u64) -> std::result::Result<(), (Self, Error)>;
}

/// Properties of a connection request, for `dat_cr_query`.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// The requester's IA address, with its source port if the transport has one.
    pub peer: SocketAddr,
    /// The private data of the request; some transports pad it to a fixed length.
    pub private_data: Vec<u8>,
    /// Length of the private data that is reported to the consumer. The consumer can also read padding behind it.
    pub reported_len: usize,
}

/// Outcome of an attempt to connect, or event of a connection. A provider derives it from the peer's reply, the EP's
/// state machine may change it, and EVDs report it. The discriminants are the event numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum ConnectionEvent {
    /// The connection is established.
    Established = DAT_CONNECTION_EVENT_ESTABLISHED as u16,
    /// The peer's consumer rejected the request.
    PeerRejected = DAT_CONNECTION_EVENT_PEER_REJECTED as u16,
    /// The peer's host rejected the request, for example because no listener has the qualifier, the event queue is
    /// full, or the request is malformed.
    Rejected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED as u16,
    /// The peer could not be found or did not reply.
    Unreachable = DAT_CONNECTION_EVENT_UNREACHABLE as u16,
    /// An accept failed after the consumer's call.
    AcceptFailed = DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR as u16,
    /// The peer disconnected, its process exited, or `drain` has finished.
    Disconnected = DAT_CONNECTION_EVENT_DISCONNECTED as u16,
    /// A transfer or the transport failed.
    Broken = DAT_CONNECTION_EVENT_BROKEN as u16,
    /// The consumer's timeout expired. Only an EP produces this.
    TimedOut = DAT_CONNECTION_EVENT_TIMED_OUT as u16,
}

/// Receives requests and connection events from a provider. Implemented by `dapl::cm`.
pub trait CmSink<P: Provider>: Send + Sync {
    /// Delivers a request to the listener `listener`. `Err` returns the request if it cannot be delivered, for example
    /// because the listener was closed or its queue is full. The provider then rejects it, and the peer gets
    /// `Rejected`.
    fn request(
        &self,
        listener: ObjectId,
        request: P::Request,
        info: RequestInfo,
    ) -> std::result::Result<(), P::Request>;
    /// Reports an event of a connection or attempt. For `Established` and `PeerRejected` on the active side,
    /// `private_data` is the data of the accept or reject, padded by some transports. For all other events it is empty.
    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]);
    /// Reports that an EP has more outstanding receives than its soft watermark.
    fn many_recvs(&self, ep: ObjectId);
}
