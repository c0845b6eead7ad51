//! An open connection: converts posted work into packets, and received packets into completions.
//!
//! All calls are made under one lock: posts, received packets, opportunities to send, deadlines. The connection
//! performs no I/O and never waits. A [`Host`] gives it access to memory and receives. `transmit` sends packets,
//! `receive` processes received packets, and `ending` ends the connection. These modules use the requests, the receives
//! and the peer's reads.

mod credits;
mod ending;
mod peer_reads;
mod quick;
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

pub(crate) use quick::AfterShortSend;
#[cfg(test)]
pub(crate) use types::Channel;
pub(crate) use types::{Config, Driver, Host, Outgoing, Payload, Post, SendValue, Source, Unsent, Work};

use std::collections::VecDeque;

use dapl::provider::Status;
use zerocopy::FromBytes;

use crate::proto::acks::AckClock;
use crate::proto::challenge::Peer;
use crate::proto::counters::Counters;
use crate::proto::flight::{Flight, State};
use crate::proto::psn::Psn;
use crate::proto::received::Received;
use crate::proto::rtt::Timing;
use crate::proto::setup::Terms;
use crate::proto::setup::connect::Confirming;
use crate::proto::wire::{self, Carried, Head, Kind};
use crate::proto::{Nanos, SECONDS};
use credits::Credits;
use ending::Ending;
use peer_reads::PeerReads;
use quick::ShortPermit;
use receive::Deferred;
use receives::Receives;
use refragmented::{Refragmented, SendingPieces};
use requests::{Requests, SentPayload};
use send_path::SendPath;
use transmit::ControlPacket;

/// Maximum of a probe timeout, after any number of doublings.
const MAX_TIMEOUT: Nanos = 2 * SECONDS;

/// An established connection. It exists until late packets need no more answers.
pub(crate) struct Conn<D: Driver> {
    config: Config,
    terms: Terms,
    counters: Counters,
    /// Latest time that the caller has passed, in nanoseconds.
    now: Nanos,

    requests: Requests<D::Request>,
    peer_reads: PeerReads,
    flight: Flight<SentPayload>,
    send_path: SendPath,
    credits: Credits,
    /// Serial number of the last ack that was sent.
    ack_serial: u16,
    /// Number of packets in flight on the command channel and on the data channel.
    commands: u32,
    data: u32,
    /// Whether the next large packet is taken from a read response instead of a request, if there is a response.
    prefers_responses: bool,
    /// Number of packets that the time threshold declared lost.
    late: u32,
    /// Number of packets that were retransmitted in this pass.
    resends: u32,
    /// A packet that is being sent in pieces.
    sending_pieces: Option<SendingPieces>,
    short_permit: ShortPermit,
    short_heads: [Head; 2],
    /// Packets without a PSN that must be sent.
    control_packets: VecDeque<ControlPacket>,
    /// Time of the next attempt to execute a deferred bind.
    bind_retry_at: Option<Nanos>,

    receives: Receives<D>,
    received: Received,
    /// Packets of which only some pieces have arrived.
    pieces: Refragmented,
    acks: AckClock,
    deferred: Option<Deferred>,
    /// The peer's address and liveness.
    peer_state: Peer,
    /// The confirmation of set-up. Present after it was first sent, until a packet of the peer arrives.
    confirming: Option<Confirming>,
    ending: Ending,
}

impl<D: Driver> Conn<D> {
    /// Creates a connection with the parameters agreed in the handshake.
    pub(crate) fn new(config: &Config, terms: Terms, now: Nanos) -> Self {
        let timing = Timing {
            first: config.first_timeout,
            floor: config.min_timeout,
            ceiling: MAX_TIMEOUT,
            ack_delay: config.ack_delay,
            give_up: config.give_up,
        };
        let send_path = SendPath::new(config, &terms);
        let quarter = (u64::from(config.window_kib) << 8) / send_path.path.mtu().max(1) as u64;
        let mut acks =
            AckClock::new(config.ack_delay, u32::try_from(quarter).unwrap_or(u32::MAX).min(config.window / 4));
        acks.at_once(); // Announces the posted receives to the peer.
        Conn {
            counters: Counters::default(),
            now,
            requests: Requests::new(config.max_requests),
            peer_reads: PeerReads::new(terms.ird),
            flight: Flight::new(terms.first_psn, timing),
            send_path,
            credits: Credits::new(terms.credits),
            ack_serial: 0,
            commands: 0,
            data: 0,
            prefers_responses: false,
            late: 0,
            resends: 0,
            sending_pieces: None,
            short_permit: ShortPermit::default(),
            short_heads: quick::short_heads(&terms),
            control_packets: VecDeque::new(),
            bind_retry_at: None,
            receives: Receives::new(config.max_recvs, config.shared),
            received: Received::new(terms.peer_first_psn),
            pieces: Refragmented::default(),
            acks,
            deferred: None,
            peer_state: Peer::new(&terms, now, config.keepalive, config.give_up),
            confirming: terms.active.then(|| confirming(config, now)),
            ending: Ending::default(),
            config: config.clone(),
            terms,
        }
    }

    /// Starts all message numbers at `number`. Only tests of the wrap-around call this.
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

    /// Posts a request. `fill` fills in the driver's data. The caller has checked the capacity. After the end of the
    /// connection, the request is flushed immediately.
    #[inline(always)]
    pub(crate) fn post(&mut self, now: Nanos, post: Post, fill: impl FnOnce(&mut D::Request), host: &mut impl Host<D>) {
        self.now = now;
        self.withdraw_permit();
        let mut flushed_data;
        let (driver_data, status) = match self.accepts(|conn| conn.requests.push(post)) {
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

    /// Posts a receive of `length` bytes. `fill` fills in the driver's data. Returns whether an ack is due now to
    /// announce the receive.
    #[inline(always)]
    pub(crate) fn post_recv(&mut self, length: u64, fill: impl FnOnce(&mut D::Recv), host: &mut impl Host<D>) -> bool {
        let mut flushed_data;
        let (driver_data, status) = match self.accepts(|conn| conn.receives.push(length)) {
            Ok(driver_data) => (driver_data, Status::Success),
            Err(status) => {
                flushed_data = D::Recv::default();
                (&mut flushed_data, status)
            }
        };
        fill(driver_data);
        if status != Status::Success {
            host.recv_done(driver_data, status, 0, false);
            return false;
        }
        !self.carries_credits() && self.check_credits(host)
    }

    /// Adds work to a queue. Errors: the status with which the work completes immediately.
    #[inline(always)]
    fn accepts<T>(&mut self, push: impl FnOnce(&mut Self) -> Option<&mut T>) -> Result<&mut T, Status> {
        if self.ending.is_closed() {
            return Err(Status::Flushed);
        }
        push(self).ok_or(Status::LocalEp)
    }

    /// Whether a pending ack will carry the credits.
    #[inline(always)]
    fn carries_credits(&self) -> bool {
        self.acks.owed() || self.deferred.is_some()
    }

    /// Called when receives were added to the shared receive queue. Returns false if no ack is needed, because the peer
    /// knows that there are receives.
    pub(crate) fn check_credits(&mut self, host: &mut impl Host<D>) -> bool {
        if self.carries_credits() {
            return true;
        }
        let is_due = self.receives.is_credit_due(host);
        if is_due {
            self.acks.at_once();
        }
        is_due
    }

    /// Does the deferred bookkeeping of a received message.
    pub(crate) fn catch_up(&mut self, host: &mut impl Host<D>) {
        self.withdraw_permit();
        self.process_deferred(host);
    }

    /// Returns the driver's data of the request that a `Payload` contains.
    pub(crate) fn request(&self, slot: u32) -> Option<&D::Request> {
        self.requests.queue.get(slot).map(|request| &request.driver_data)
    }

    /// Whether requests must be sent or retransmitted.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.all_sent()
    }

    /// Whether the peer supports extension operations.
    pub(crate) fn has_extensions(&self) -> bool {
        self.terms.extensions
    }

    /// Returns the default destination of packets.
    pub(crate) fn peer(&self) -> Source {
        self.peer_state.at()
    }

    /// Number of outstanding requests and receives. With an SRQ, the receives that were taken from it are counted.
    pub(crate) fn outstanding(&self) -> (u32, u32) {
        (self.requests.queue.len(), self.receives.len())
    }

    /// Records that the socket refuses datagrams larger than `most` bytes.
    pub(crate) fn too_large(&mut self, now: Nanos, most: usize) {
        self.now = now;
        self.withdraw_permit();
        self.send_path.path.limit(now, most);
        self.send_path.measure();
    }

    /// Records that a queue of this host was full and dropped a packet.
    pub(crate) fn overflowed(&mut self, now: Nanos) {
        self.now = now;
        self.withdraw_permit();
        self.send_path.overflowed(now);
    }

    /// Handles an ICMP message that reports a packet as undelivered. The message may be forged, so the peer is
    /// challenged.
    pub(crate) fn on_icmp_error(&mut self, now: Nanos) {
        self.now = now;
        self.peer_state.hinted(now);
    }

    /// Handles a report that the peer's port is closed. The report quotes a packet for which `is_quoted` returns true.
    pub(crate) fn port_closed(&mut self, now: Nanos) {
        self.now = now;
        self.peer_state.port_closed(now, self.flight.rtt());
    }

    /// Whether `quote`, the start of a packet that an ICMP message quotes, belongs to a recent packet of this
    /// connection. The packet must have the peer's number and token, and a data packet must not be acked yet (RFC 5927,
    /// 4.1, for TCP). The PSN of a sealed packet cannot be read.
    pub(crate) fn is_quoted(&self, quote: &[u8], is_sealed: bool) -> bool {
        let Some((head, body)) = wire::head(quote) else { return false };
        if (head.conn.get(), head.token.get()) != (self.terms.peer_conn, self.terms.peer_token) {
            return false;
        }
        match head.kind() {
            None => false,
            Some(_) if is_sealed => true,
            Some(Kind::Fragment | Kind::Chunk | Kind::Piece) => {
                let psn = Carried::read_from_prefix(body).ok().map(|(carried, _)| Psn(carried.psn.get()));
                psn.is_some_and(|psn| matches!(self.flight.state(psn), State::InFlight | State::Lost))
            }
            Some(Kind::Challenge) => {
                let nonce = body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
                nonce.is_some_and(|nonce| self.peer_state.has_probed(nonce))
            }
            Some(_) => true,
        }
    }

    /// Returns the counters, and the current values of window, rate, round-trip time and MTU.
    pub(crate) fn counters(&self) -> Counters {
        let counters = self.flight.counters();
        Counters {
            lost: counters.losses,
            spurious: counters.spurious_losses + counters.spurious_probes,
            acks_of_unsent: counters.beyond_sent,
            window: self.send_path.window(),
            in_flight: self.flight.bytes(),
            rate: self.send_path.rate(),
            rtt: self.flight.rtt().srtt().unwrap_or(0),
            mtu: self.send_path.path.mtu(),
            ..self.counters
        }
    }

    /// Reports requests that have ended, in posting order. A failed request ends the connection.
    fn retire(&mut self, host: &mut impl Host<D>) {
        while let Some((driver_data, outcome)) = self.requests.take_ended() {
            match outcome {
                Ok(bytes) => host.request_done(driver_data, Status::Success, bytes),
                Err(status) => {
                    host.request_done(driver_data, status, 0);
                    return self.reset_after_failure(host);
                }
            }
        }
        self.check_drained();
    }
}

/// Creates the state of the confirmation. The first ack confirms the connection too, but only the confirmation is
/// retransmitted.
fn confirming(config: &Config, now: Nanos) -> Confirming {
    let first = config.first_timeout;
    Confirming::new(now.saturating_add(first), first, MAX_TIMEOUT, now.saturating_add(config.give_up))
}
