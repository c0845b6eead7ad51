//! A connection (sans-I/O): converts posted work into packets, and received packets into completions.
//!
//! The driver (a queue pair, or a closing connection after the end) makes all calls under one lock. The connection
//! performs no I/O and never blocks. It accesses memory and reports completions by [`ConnCallbacks`].
//!
//! `transmit` selects the packets to send, `receive` processes received packets, and `ending` ends the connection.
//! `requests`, `receives` and `peer_reads` contain the posted work and the reads of the peer.

mod acks;
mod credits;
mod ending;
mod fast_path;
mod peer_reads;
mod receive;
mod receives;
mod refragmented;
mod requests;
mod send_path;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod types;
mod write;

pub(crate) use fast_path::AfterShortSend;
#[cfg(any(test, fuzzing))]
pub(crate) use types::Operation;
pub(crate) use types::{
    CompletionCallbacks, ConnCallbacks, ConnConfig, MemoryCallbacks, OutgoingPacket, Payload, Post, PostedData,
    SendValue, SharedReceiveCallbacks, SourceAddress, is_extension,
};

use std::collections::VecDeque;

use dapl::provider::{ConnectionEvent, Status};
use zerocopy::FromBytes;

use crate::proto::acks::AckClock;
use crate::proto::challenge::PeerPath;
use crate::proto::counters::Counters;
use crate::proto::flight::{PsnState, UnackedPackets};
use crate::proto::psn::Psn;
use crate::proto::received::Received;
use crate::proto::rtt::Timing;
use crate::proto::setup::ConnectionTerms;
use crate::proto::setup::connect::Confirming;
use crate::proto::wire::{self, DataFields, Kind, PacketHeader};
use crate::proto::{Nanos, SECONDS};
use credits::SendCredits;
use ending::Ending;
use fast_path::ShortPermit;
use peer_reads::PeerReads;
use receive::DeferredMessage;
use receives::ReceiveQueue;
use refragmented::{Refragmented, SendingPieces};
use requests::{SendQueue, SentPayload};
use send_path::SendPath;
use transmit::ControlPacket;

/// Maximum of a probe timeout, in nanoseconds.
const MAX_TIMEOUT: Nanos = 2 * SECONDS;

/// An established connection. It exists until late packets need no more replies (`can_be_freed`).
pub(crate) struct Conn<D: PostedData> {
    config: ConnConfig,
    terms: ConnectionTerms,
    counters: Counters,
    /// The time of the driver's latest call, in nanoseconds.
    now: Nanos,

    requests: SendQueue<D::Request>,
    peer_reads: PeerReads,
    flight: UnackedPackets<SentPayload>,
    send_path: SendPath,
    credits: SendCredits,
    /// Serial number of the last ack that was sent.
    ack_serial: u16,
    /// Number of data packets in flight on the command channel.
    commands: u32,
    /// Number of data packets in flight on the data channel.
    data: u32,
    /// Whether a read response has priority over a request for the next packet of the data channel.
    prefers_responses: bool,
    /// Number of packets that the loss delay has declared lost and that were not retransmitted yet, for the counters.
    late: u32,
    /// Number of packets that this pass has retransmitted.
    resends: u32,
    /// A packet that is being sent in pieces.
    sending_pieces: Option<SendingPieces>,
    short_permit: ShortPermit,
    short_heads: [PacketHeader; 2],
    control_packets: VecDeque<ControlPacket>,
    /// Time of the next attempt to execute a deferred bind.
    bind_retry_at: Option<Nanos>,

    receives: ReceiveQueue<D>,
    received: Received,
    /// Incomplete re-fragmented packets of the peer.
    pieces: Refragmented,
    acks: AckClock,
    deferred: Option<DeferredMessage>,
    /// The peer's address, and the challenges to the peer.
    peer_state: PeerPath,
    /// Retransmission of the handshake's confirmation, until a packet arrives that shows that the peer has it.
    confirming: Option<Confirming>,
    ending: Ending,
}

impl<D: PostedData> Conn<D> {
    /// Creates a connection with the parameters agreed in the handshake.
    pub(crate) fn new(config: &ConnConfig, terms: ConnectionTerms, now: Nanos) -> Self {
        let timing = Timing {
            first: config.first_timeout,
            floor: config.min_timeout,
            ceiling: MAX_TIMEOUT,
            ack_delay: config.ack_delay,
            give_up: config.give_up,
        };
        let send_path = SendPath::new(config, &terms);
        let quarter = (u64::from(config.window_kib) << 8) / send_path.path.mtu.max(1) as u64;
        let mut acks =
            AckClock::new(config.ack_delay, u32::try_from(quarter).unwrap_or(u32::MAX).min(config.window / 4));
        acks.request_ack(); // The first ack advertises the posted receives, and confirms the connection.
        Conn {
            counters: Counters::default(),
            now,
            requests: SendQueue::new(config.max_requests),
            peer_reads: PeerReads::new(terms.ird),
            flight: UnackedPackets::new(terms.first_psn, timing),
            send_path,
            credits: SendCredits::new(terms.credits),
            ack_serial: 0,
            commands: 0,
            data: 0,
            prefers_responses: false,
            late: 0,
            resends: 0,
            sending_pieces: None,
            short_permit: ShortPermit::default(),
            short_heads: fast_path::short_heads(&terms),
            control_packets: VecDeque::new(),
            bind_retry_at: None,
            receives: ReceiveQueue::new(config.max_recvs, config.shared),
            received: Received::new(terms.peer_first_psn),
            pieces: Refragmented::default(),
            acks,
            deferred: None,
            peer_state: PeerPath::new(&terms, now, config.keepalive, config.give_up),
            // The first ack confirms the connection, but is not retransmitted.
            confirming: terms.active.then(|| {
                let (first, until) = (now.saturating_add(config.first_timeout), now.saturating_add(config.give_up));
                Confirming::new(first, config.first_timeout, MAX_TIMEOUT, until)
            }),
            ending: Ending::default(),
            config: config.clone(),
            terms,
        }
    }

    /// Starts all message numbers at `number`, for tests of the wrap-around.
    #[cfg(test)]
    pub(crate) fn count_from(&mut self, number: u32) {
        self.requests.numbers = requests::NextNumbers { sends: number, writes: number, reads: number };
        self.receives.count_from(number);
        self.peer_reads.count_from(number);
    }

    #[cfg(test)]
    pub(crate) fn is_deferring(&self) -> bool {
        self.deferred.is_some()
    }

    /// Posts a request, into which `fill` writes the driver's data. The caller has checked that the queue is not full.
    /// After the end of the connection, flushes the request immediately.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        now: Nanos,
        post: Post,
        fill: impl FnOnce(&mut D::Request),
        host: &mut impl ConnCallbacks<D>,
    ) {
        self.now = now;
        self.withdraw_permit();
        let mut flushed_data;
        let (driver_data, status) = match self.add_work(|conn| conn.requests.push(post)) {
            Ok(driver_data) => (driver_data, Status::Success),
            Err(status) => {
                flushed_data = D::Request::default();
                (&mut flushed_data, status)
            }
        };
        fill(driver_data);
        if status != Status::Success {
            host.request_done(driver_data, status, 0);
        }
    }

    /// Posts a receive of `length` bytes, into which `fill` writes the driver's data. Returns whether an ack must be
    /// sent now to advertise the credit.
    #[inline(always)]
    pub(crate) fn post_recv(
        &mut self,
        length: u64,
        fill: impl FnOnce(&mut D::Recv),
        host: &mut impl ConnCallbacks<D>,
    ) -> bool {
        let mut flushed_data;
        let (driver_data, status) = match self.add_work(|conn| conn.receives.push(length)) {
            Ok(driver_data) => (driver_data, Status::Success),
            Err(status) => {
                flushed_data = D::Recv::default();
                (&mut flushed_data, status)
            }
        };
        fill(driver_data);
        if status != Status::Success {
            host.recv_done(driver_data, status, 0, SendValue::default());
            return false;
        }
        !self.carries_credits() && self.check_credits(host)
    }

    /// Adds work to a queue. The error is the status with which the work must complete immediately.
    #[inline(always)]
    fn add_work<T>(&mut self, push: impl FnOnce(&mut Self) -> Option<&mut T>) -> Result<&mut T, Status> {
        if self.ending.is_closed() {
            return Err(Status::Flushed);
        }
        push(self).ok_or(Status::LocalEp)
    }

    /// Whether an ack is pending, which will also advertise the credits.
    #[inline(always)]
    fn carries_credits(&self) -> bool {
        self.acks.is_pending() || self.deferred.is_some()
    }

    /// Makes an ack due if it must advertise new receives of this connection or its shared receive queue. Returns false
    /// if the peer already knows of enough receives.
    pub(crate) fn check_credits(&mut self, host: &mut impl ConnCallbacks<D>) -> bool {
        if self.carries_credits() {
            return true;
        }
        let is_due = self.receives.is_credit_due(host);
        if is_due {
            self.acks.request_ack();
        }
        is_due
    }

    /// Does the work that the fast path of reception has deferred.
    pub(crate) fn process_deferred_receptions(&mut self, host: &mut impl ConnCallbacks<D>) {
        self.withdraw_permit();
        self.process_deferred(host);
    }

    /// Returns the driver's data of the request in this slot (see [`Payload::Request`]).
    pub(crate) fn request(&self, slot: u32) -> Option<&D::Request> {
        self.requests.queue.get(slot).map(|request| &request.driver_data)
    }

    /// Whether requests wait to be sent, including withdrawn sends that must be sent again.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.all_sent()
    }

    /// Whether the peer supports extension operations.
    pub(crate) fn has_extensions(&self) -> bool {
        self.terms.extensions
    }

    /// Returns the peer's address, to which packets are sent.
    pub(crate) fn peer(&self) -> SourceAddress {
        self.peer_state.current_address()
    }

    /// Returns the number of outstanding requests, and of outstanding receives. With an SRQ, the latter are the
    /// receives that the connection has taken from the SRQ.
    pub(crate) fn outstanding(&self) -> (u32, u32) {
        (self.requests.queue.len(), self.receives.len())
    }

    /// Records a report that datagrams larger than `most` bytes do not fit: EMSGSIZE of the socket, or an ICMP message.
    pub(crate) fn too_large(&mut self, now: Nanos, most: usize) {
        self.now = now;
        self.withdraw_permit();
        self.send_path.path.limit(now, most);
        self.send_path.measure();
    }

    /// Records that a queue of this host was full, so that a packet was not sent (ENOBUFS).
    pub(crate) fn overflowed(&mut self, now: Nanos) {
        self.now = now;
        self.withdraw_permit();
        self.send_path.overflowed(now);
    }

    /// Handles an ICMP message that may be forged: it only causes a challenge to the peer.
    pub(crate) fn on_icmp_error(&mut self, now: Nanos) {
        self.now = now;
        self.peer_state.challenge_soon(now);
    }

    /// Handles an ICMP report that the peer's port is closed. The caller has checked its quote with `is_quoted`.
    pub(crate) fn port_closed(&mut self, now: Nanos) {
        self.now = now;
        self.peer_state.port_closed(now, &self.flight.rtt);
    }

    /// Whether `quote`, the start of a packet in an ICMP message, belongs to a recent packet of this connection.
    ///
    /// The quote must have the peer's connection number and token. A quoted data packet must be in flight or lost (RFC
    /// 5927, 4.1, for TCP), and a quoted challenge must be the last one. This is not checked if packets are sealed,
    /// because PSNs and nonces are encrypted.
    pub(crate) fn is_quoted(&self, quote: &[u8], is_sealed: bool) -> bool {
        let Some((head, body)) = wire::head(quote) else { return false };
        if (head.conn.get(), head.token.get()) != (self.terms.peer_conn, self.terms.peer_token) {
            return false;
        }
        match head.kind() {
            None => false,
            Some(_) if is_sealed => true,
            Some(Kind::Fragment | Kind::Chunk | Kind::Piece) => {
                let psn = DataFields::read_from_prefix(body).ok().map(|(carried, _)| Psn(carried.psn.get()));
                psn.is_some_and(|psn| matches!(self.flight.state(psn), PsnState::InFlight | PsnState::Lost))
            }
            Some(Kind::Challenge) => {
                let nonce = body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
                nonce.is_some_and(|nonce| self.peer_state.has_probed(nonce))
            }
            Some(_) => true,
        }
    }

    /// Returns the counters, and the current values of window, bytes in flight, pacing rate, round-trip time and MTU.
    pub(crate) fn counters(&self) -> Counters {
        let counters = self.flight.counters;
        Counters {
            lost: counters.losses,
            spurious: counters.spurious_losses + counters.spurious_probes,
            acks_of_unsent: counters.beyond_sent,
            window: self.send_path.window(),
            in_flight: self.flight.bytes(),
            rate: self.send_path.rate(),
            rtt: self.flight.rtt.srtt().unwrap_or(0),
            mtu: self.send_path.path.mtu,
            ..self.counters
        }
    }

    /// Completes the requests at the front of the queue that have ended. A failed request ends the connection.
    fn complete_ended_requests(&mut self, host: &mut impl ConnCallbacks<D>) {
        while let Some((driver_data, outcome)) = self.requests.take_ended() {
            match outcome {
                Ok(bytes) => host.request_done(driver_data, Status::Success, bytes),
                Err(status) => {
                    host.request_done(driver_data, status, 0);
                    return self.reset(ConnectionEvent::Broken, host);
                }
            }
        }
        self.check_drained();
    }
}
