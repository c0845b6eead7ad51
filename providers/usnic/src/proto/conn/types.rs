//! The words that an open connection and its driver exchange: what is posted, what leaves, what is asked of the host.
//!
//! Plain data, and the one trait by which memory is touched and completions are handed up. No behaviour.

use std::net::SocketAddr;

use dapl::provider::{Remote, Status};

use crate::proto::congestion::Algorithm;
use crate::proto::path::{BASE, HEADERS_V4};
use crate::proto::wire::Refusal;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS, WINDOW};

/// Source address of a packet.
pub(crate) type Source = SocketAddr;

/// Configuration of a connection, from the settings or with constant values.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Requests, and receives, outstanding at most.
    pub(crate) max_requests: u32,
    pub(crate) max_recvs: u32,
    /// Receives come out of a shared queue (`Host::take_shared`).
    pub(crate) shared: bool,
    /// Packets in flight at most, up to [`WINDOW`].
    pub(crate) window: u32,
    /// Capacity of the local socket buffer, as announced to the peer.
    pub(crate) window_kib: u16,
    /// Maximum delay of an ack.
    pub(crate) ack_delay: Nanos,
    /// Payload at most that goes over the command channel.
    pub(crate) tiny: u32,
    /// Packets in flight of each channel.
    pub(crate) command_depth: u32,
    pub(crate) data_depth: u32,
    /// Before the round trip is known, and at least.
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
    /// Bytes of a datagram that the path surely takes; what IP and UDP add to it.
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
            // US-2: the command channel is for acknowledgements and messages of up to 768 bytes, and shorter than the other.
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
    /// Something that the host does when its turn comes: `Host::turn`.
    #[default]
    Bind,
}

/// A request, as it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) work: Work,
    /// Bytes.
    pub(crate) length: u32,
    /// Starts only after all earlier reads are complete.
    pub(crate) fence: bool,
}

/// The driver's data with posted work. They are filled and read where the connection keeps them, and not dropped until
/// their slot is used again.
pub(crate) trait Driver {
    /// With a request: its segments and its token.
    type Request: Default;
    /// The same of a receive.
    type Recv: Default;
}

/// Memory and completions of a driver: what the connection does not touch itself.
pub(crate) trait Host<D: Driver> {
    /// May the peer do this to our memory?
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool;
    /// A piece of the peer's write.
    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal>;
    /// A piece of a send.
    fn put_recv(&mut self, recv: &D::Recv, offset: u32, bytes: &[u8]) -> Result<(), Status>;
    /// A piece of what was read.
    fn put_read(&mut self, request: &D::Request, offset: u32, bytes: &[u8]) -> Result<(), Status>;
    /// A receive out of the shared queue, and its length.
    fn take_shared(&mut self) -> Option<(D::Recv, u64)>;
    /// Receives in the shared queue.
    fn shared_left(&self) -> u32;
    /// There are too few receives: calls `Conn::look_at_credits` when some are added.
    fn await_shared(&mut self) {}
    /// The turn of a bind has come: `true` when it is done, `false` when it must be tried again soon.
    fn turn(&mut self, request: &D::Request) -> Result<bool, Status>;
    /// A request is complete; in the order of the posts.
    fn request_done(&mut self, request: &mut D::Request, status: Status, bytes: u64);
    /// A receive is complete; in the order of the posts.
    fn recv_done(&mut self, recv: &mut D::Recv, status: Status, bytes: u64, solicited: bool);
}

/// Which of the two queues a packet belongs to (US-2).
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
    /// In memory that the peer reads; `slot` is its read, for `source_gone`.
    Remote {
        slot: u32,
        key: u32,
        address: u64,
        length: u32,
    },
    /// Padding of this length.
    Padding(u32),
}

/// What `Conn::source_gone` needs to know of a packet that could not be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unsent {
    pub(crate) payload: Payload,
    pub(crate) resend: bool,
}

/// A packet to be sent; its header is at the end of the given buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Outgoing {
    /// Bytes appended to the buffer.
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
