//! The interface between a connection and its driver: configuration, posted work, packets to send, and callbacks.

use std::net::SocketAddr;

/// The name in this module differs from that in dapl, because `wire::Op` is the operation code of a packet.
pub(crate) use dapl::provider::Op as Operation;
use dapl::provider::{ReceivedOp, Status};
use dapl_software::memory::atomic::Atomic;

use crate::proto::congestion::Algorithm;
use crate::proto::path::{BASE, HEADERS_V4};
use crate::proto::wire::Refusal;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS, WINDOW};

/// Source address of a received packet.
pub(crate) type SourceAddress = SocketAddr;

/// Configuration of a connection: settings and constants.
#[derive(Clone, Debug)]
pub(crate) struct ConnConfig {
    /// Maximum number of outstanding requests.
    pub(crate) max_requests: u32,
    /// Maximum number of posted receives.
    pub(crate) max_recvs: u32,
    /// Whether receives come from a shared queue (`ConnCallbacks::take_shared`).
    pub(crate) shared: bool,
    /// Maximum number of packets in flight, up to [`WINDOW`].
    pub(crate) window: u32,
    /// Size of the local socket receive buffer in KiB, as announced to the peer.
    pub(crate) window_kib: u16,
    /// Maximum delay of an ack.
    pub(crate) ack_delay: Nanos,
    /// Maximum payload in bytes of a message on the command channel.
    pub(crate) tiny: u32,
    /// Maximum number of packets in flight on the command channel.
    pub(crate) command_depth: u32,
    /// Maximum number of packets in flight on the data channel.
    pub(crate) data_depth: u32,
    /// Probe timeout before the round-trip time is known.
    pub(crate) first_timeout: Nanos,
    /// Minimum of the probe timeout.
    pub(crate) min_timeout: Nanos,
    /// Time after which the peer has timed out: without new acks of packets in flight, without any packet while it is
    /// challenged, or without a reply to the Fin. Also the time for which the handshake's confirmation is
    /// retransmitted.
    pub(crate) give_up: Nanos,
    /// Maximum number of RNR probes, or `None` for no limit.
    pub(crate) rnr_limit: Option<u32>,
    /// Keepalive interval of an idle connection, or 0 for no keepalive.
    pub(crate) keepalive: Nanos,
    /// Time for which a closed connection replies to late packets.
    pub(crate) linger: Nanos,
    /// Datagram payload in bytes that is used without a probe of the path MTU.
    pub(crate) mtu_start: usize,
    /// Size in bytes of the IP and UDP headers.
    pub(crate) ip_headers: usize,
    pub(crate) congestion: Algorithm,
}

impl Default for ConnConfig {
    fn default() -> Self {
        ConnConfig {
            max_requests: 256,
            max_recvs: 256,
            shared: false,
            window: WINDOW,
            window_kib: 208,
            // US-10: an ack is sent within 50 us.
            ack_delay: 50 * MICROS,
            // US-2: the command channel carries acks and messages of up to 768 bytes. Its depth is lower than that of
            // the data channel.
            tiny: 768,
            command_depth: 1024,
            data_depth: WINDOW,
            // US-9: 100 ms before the first sample. The minimum of RFC 9002 is the timer granularity of 1 ms (6.1.2).
            first_timeout: 100 * MILLIS,
            min_timeout: MILLIS,
            give_up: 10 * SECONDS,
            rnr_limit: None,
            keepalive: 15 * SECONDS,
            linger: 5 * SECONDS,
            mtu_start: BASE - HEADERS_V4,
            ip_headers: HEADERS_V4,
            congestion: Algorithm::default(),
        }
    }
}

/// The immediate data of a message, or the window key that it invalidates. Of a message with neither, `arrival` is
/// `Send` and `value` is 0.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SendValue {
    pub(crate) arrival: ReceivedOp,
    pub(crate) value: u32,
    pub(crate) solicited: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    /// The operation. `None` for a bind or unbind of a window, or an invalid request, which only fails. None of them
    /// sends a packet. `ConnCallbacks::execute_bind` executes or fails it when it is the first waiting request.
    pub(crate) work: Option<Operation>,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Whether the request starts only after all earlier reads and atomic operations are complete.
    pub(crate) fence: bool,
}

/// Whether a request needs a peer with extension operations.
pub(crate) fn is_extension(work: Option<Operation>) -> bool {
    work.is_some_and(|work| !matches!(work, Operation::Send { .. } | Operation::Write(_) | Operation::Read(_)))
}

/// The data that a driver stores with posted work. The connection neither moves nor changes the data, which is valid
/// until its slot is reused.
pub(crate) trait PostedData {
    /// Data of a request, such as its segments and its cookie.
    type Request: Default;
    type Recv: Default;
}

/// Callbacks of a connection to the driver.
pub(crate) trait ConnCallbacks<D: PostedData>:
    MemoryCallbacks<D> + SharedReceiveCallbacks<D> + CompletionCallbacks<D>
{
}

impl<D: PostedData, C> ConnCallbacks<D> for C where
    C: MemoryCallbacks<D> + SharedReceiveCallbacks<D> + CompletionCallbacks<D>
{
}

/// Callbacks by which a connection accesses memory. By default, no memory is accessible.
pub(crate) trait MemoryCallbacks<D: PostedData> {
    /// Whether the peer may access this memory, for writing if `write` is set.
    fn may_touch(&mut self, _key: u32, _address: u64, _length: u32, _write: bool) -> bool {
        false
    }
    /// Copies payload of the peer's write to its destination.
    fn put_remote(&mut self, _key: u32, _address: u64, _bytes: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Access)
    }
    /// Copies payload of a send into a receive.
    fn put_recv(&mut self, _recv: &D::Recv, _offset: u32, _bytes: &[u8]) -> Result<(), Status> {
        Err(Status::Flushed)
    }
    /// Copies payload of a read response to the buffer of the request.
    fn put_read(&mut self, _request: &D::Request, _offset: u32, _bytes: &[u8]) -> Result<(), Status> {
        Err(Status::Flushed)
    }
    /// Whether the key belongs to a window that the peer may invalidate.
    fn may_invalidate(&mut self, _key: u32) -> bool {
        false
    }
    /// Invalidates the window with this key. Has no effect if the consumer has unbound it since `may_invalidate`.
    fn invalidate(&mut self, _key: u32) {}
    /// Whether the peer may execute an atomic operation at this address.
    fn may_execute(&mut self, _key: u32, _address: u64) -> bool {
        false
    }
    /// Executes the atomic operation, and returns the previous value, or `None` if the memory is no longer accessible.
    fn execute(&mut self, _key: u32, _address: u64, _operation: Atomic) -> Option<u64> {
        None
    }
}

/// Callbacks by which a connection gets receives of the shared queue. By default, there is no shared queue.
pub(crate) trait SharedReceiveCallbacks<D: PostedData> {
    /// Takes a receive from the shared queue. Returns the receive and its length in bytes.
    fn take_shared(&mut self) -> Option<(D::Recv, u64)> {
        None
    }
    /// Returns the number of receives in the shared queue.
    fn shared_left(&self) -> u32 {
        0
    }
    /// Called when the shared queue has too few receives. The driver must call `Conn::check_credits` after receives
    /// were added.
    fn await_shared(&mut self) {}
}

/// Callbacks that execute binds, and report completions and failures.
pub(crate) trait CompletionCallbacks<D: PostedData> {
    /// Executes a bind. Returns false if the bind cannot be executed yet. The connection then repeats the call.
    fn execute_bind(&mut self, request: &D::Request) -> Result<bool, Status>;
    /// Called when a request is complete, in the order of the posts.
    fn request_done(&mut self, request: &mut D::Request, status: Status, bytes: u64);
    /// Called when the peer has refused the memory access of this request, before `request_done` of the request.
    fn access_refused(&mut self, _request: &D::Request, _work: Operation, _length: u32) {}
    /// Called once for a send that is overdue: it still waits for a receive of the peer. `age` is the time of the wait.
    fn send_overdue(&mut self, _age: Nanos) {}
    /// Called when a receive is complete, in the order of the messages. If it has failed, `value` is the default.
    fn recv_done(&mut self, recv: &mut D::Recv, status: Status, bytes: u64, value: SendValue);
}

/// The reason why a packet was not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NotAccepted {
    /// There is no receive or no space. The packet may be accepted when it is retransmitted.
    Later,
    /// The packet is invalid, or its payload cannot be copied to local memory. The peer is notified, and the connection
    /// ends. The receive in this slot, if any, fails with this status.
    Refused(Refusal, Option<(u32, Status)>),
    /// The packet is a response that matches no outstanding read or atomic operation. The connection ends.
    BadResponse,
}

/// A request that violates the protocol or the agreed parameters.
pub(super) const INVALID_REQUEST: NotAccepted = NotAccepted::Refused(Refusal::Invalid, None);

/// Location of the payload of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Payload {
    None,
    /// The payload is in the segments of a request.
    Request {
        slot: u32,
        offset: u32,
        length: u32,
    },
    /// The payload is in memory that the peer reads. `slot` is the number of the read.
    Remote {
        slot: u32,
        key: u32,
        address: u64,
        length: u32,
    },
    /// Zeros of this length in bytes, in an MTU probe.
    Padding(u32),
}

/// A packet to be sent, whose header was appended to the caller's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OutgoingPacket {
    /// Number of header bytes that were appended to the buffer.
    pub(crate) header: usize,
    pub(crate) payload: Payload,
    /// Whether the packet uses the command channel, not the data channel (US-2).
    pub(crate) command: bool,
    pub(crate) resend: bool,
    /// Destination address, if it is not `Conn::peer`.
    pub(crate) to: Option<SourceAddress>,
}
