//! Types exchanged between an open connection and its driver: posted work, packets to send, and calls to the host.
//!
//! Plain data, and the trait through which memory is accessed and completions are reported. No behaviour.

use std::net::SocketAddr;

use dapl::provider::{Arrival, Remote, Status};
use dapl_software::memory::atomic::Atomic;

use crate::proto::congestion::Algorithm;
use crate::proto::path::{BASE, HEADERS_V4};
use crate::proto::wire::Refusal;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS, WINDOW};

/// Source address of a packet.
pub(crate) type Source = SocketAddr;

/// Configuration of a connection: settings and constants.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Maximum number of outstanding requests, and of receives.
    pub(crate) max_requests: u32,
    pub(crate) max_recvs: u32,
    /// Receives are taken from a shared queue (`Host::take_shared`).
    pub(crate) shared: bool,
    /// Maximum number of packets in flight, up to [`WINDOW`].
    pub(crate) window: u32,
    /// Capacity of the local socket buffer, as announced to the peer.
    pub(crate) window_kib: u16,
    /// Maximum delay of an ack.
    pub(crate) ack_delay: Nanos,
    /// Maximum payload of a message on the command channel.
    pub(crate) tiny: u32,
    /// Maximum number of packets in flight on each channel.
    pub(crate) command_depth: u32,
    pub(crate) data_depth: u32,
    /// Probe timeout before the round trip is known, and its minimum.
    pub(crate) first_timeout: Nanos,
    pub(crate) min_timeout: Nanos,
    /// Time without an answer after which the peer is given up.
    pub(crate) give_up: Nanos,
    /// Limit of RNR probes; `None`: none.
    pub(crate) rnr_limit: Option<u32>,
    /// Keepalive interval of an idle connection; 0: none.
    pub(crate) keepalive: Nanos,
    /// Time for which a closed connection answers late packets.
    pub(crate) linger: Nanos,
    /// Datagram size in bytes that every path carries; and the bytes of IP and UDP headers.
    pub(crate) mtu_start: usize,
    pub(crate) ip_headers: usize,
    /// Congestion control.
    pub(crate) congestion: Algorithm,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_requests: 256,
            max_recvs: 256,
            shared: false,
            window: WINDOW,
            window_kib: 208,
            // US-10: an acknowledgement within 50 us.
            ack_delay: 50 * MICROS,
            // US-2: the command channel carries acks and messages of up to 768 bytes, and has a lower depth than the
            // other.
            tiny: 768,
            command_depth: 1024,
            data_depth: WINDOW,
            // US-9: 100 ms before the first sample. RFC 9002 has no lower bound but the timer's granularity, 1 ms (6.1.2).
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

/// Operation of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Work {
    Send {
        solicited: bool,
    },
    Write(Remote),
    Read(Remote),
    /// A send with a value: immediate data, or the key of a window.
    SendWith(SendValue),
    /// A write that completes a receive of the peer.
    WriteImmediate {
        remote: Remote,
        data: u32,
        solicited: bool,
    },
    /// An atomic operation. Counts as a read.
    Atomic(Remote, Atomic),
    /// A bind. `Host::turn` executes it when it is the first request.
    #[default]
    Bind,
}

/// The immediate data or key that a message has besides its bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SendValue {
    pub(crate) arrival: Arrival,
    pub(crate) value: u32,
    pub(crate) solicited: bool,
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) work: Work,
    /// Length in bytes.
    pub(crate) length: u32,
    /// Starts only after all earlier reads are complete.
    pub(crate) fence: bool,
}

/// The driver's data of posted work. They are filled in and read in place in the connection, and keep their content
/// until the slot is reused.
pub(crate) trait Driver {
    /// Data of a request: its segments and its token.
    type Request: Default;
    /// Data of a receive.
    type Recv: Default;
}

/// Memory and completions of a driver, which the connection does not access itself.
pub(crate) trait Host<D: Driver> {
    /// Whether the peer may access this memory.
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool;
    /// Copies a piece of a write of the peer.
    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal>;
    /// Copies a piece of a send into a receive.
    fn put_recv(&mut self, recv: &D::Recv, offset: u32, bytes: &[u8]) -> Result<(), Status>;
    /// Copies a piece of a read response.
    fn put_read(&mut self, request: &D::Request, offset: u32, bytes: &[u8]) -> Result<(), Status>;
    /// Takes a receive from the shared queue; returns its length too.
    fn take_shared(&mut self) -> Option<(D::Recv, u64)>;
    /// Number of receives in the shared queue.
    fn shared_left(&self) -> u32;
    /// Called when there are too few receives: `Conn::look_at_credits` must be called when some are added.
    fn await_shared(&mut self) {}
    /// Executes a bind. Returns `true` when it is executed, `false` if it must be tried again soon.
    fn turn(&mut self, request: &D::Request) -> Result<bool, Status>;
    /// A request is complete; called in the order of the posts.
    fn request_done(&mut self, request: &mut D::Request, status: Status, bytes: u64);
    /// Called when the peer refuses this RDMA operation, which completes next.
    fn access_refused(&mut self, _request: &D::Request, _work: Work, _length: u32) {}
    /// A send has waited this long for a receive of the peer. Called once while it waits.
    fn send_overdue(&mut self, _age: Nanos) {}
    /// A receive is complete; called in the order of the posts.
    fn recv_done(&mut self, recv: &mut D::Recv, status: Status, bytes: u64, solicited: bool);
    /// Like `recv_done`, for a success by a message with immediate data or a key.
    fn recv_done_with(&mut self, recv: &mut D::Recv, bytes: u64, value: SendValue) {
        self.recv_done(recv, Status::Success, bytes, value.solicited);
    }
    /// Whether a window with this key exists that the peer may unbind.
    fn may_invalidate(&mut self, _key: u32) -> bool {
        false
    }
    /// Unbinds the window. It may have been unbound since `may_invalidate`.
    fn invalidate(&mut self, _key: u32) {}
    /// Whether the peer may execute an atomic operation at this address.
    fn may_execute(&mut self, _key: u32, _address: u64) -> bool {
        false
    }
    /// Executes the operation, and returns the former value. `None`: the memory is no longer accessible.
    fn execute(&mut self, _key: u32, _address: u64, _operation: Atomic) -> Option<u64> {
        None
    }
}

/// The channel of a packet (US-2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Channel {
    Command,
    Data,
}

/// Location of a packet's payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Payload {
    None,
    /// In the segments of a request.
    Request {
        slot: u32,
        offset: u32,
        length: u32,
    },
    /// In memory that the peer reads; `slot` is the number of its read, for `source_gone`.
    Remote {
        slot: u32,
        key: u32,
        address: u64,
        length: u32,
    },
    /// Padding of this length.
    Padding(u32),
}

/// Data of a packet that could not be sent, for `Conn::source_gone`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unsent {
    pub(crate) payload: Payload,
    pub(crate) resend: bool,
}

/// A packet to be sent; its header is at the end of the given buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Outgoing {
    /// Number of bytes appended to the buffer.
    pub(crate) header: usize,
    pub(crate) payload: Payload,
    pub(crate) channel: Channel,
    pub(crate) resend: bool,
    /// Destination, if not `Conn::peer`.
    pub(crate) to: Option<Source>,
}

impl Outgoing {
    pub(crate) fn unsent(&self) -> Unsent {
        Unsent { payload: self.payload, resend: self.resend }
    }
}
