//! A connection that stands, with all that its packets leave by: what comes is opened and handed to it, what it wants to send is
//! gathered and sent.
//!
//! Payload is gathered where it lies, and held until the call that sends it has returned; only what is sealed is copied
//! before. Runs under the lock of whoever has the connection: the queue pair, and after its end what closing of it.
//! Decides nothing: what leaves and when is the connection's.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnId, Segment, Status};
use dapl_software::memory::rights::AccessRight;

use crate::memory::regions::RegistrationGuards;
use crate::net::errors::{DeliveryError, DeliveryErrorKind};
use crate::net::receive::Packets;
use crate::net::send::{Batch, SendOutcome};
use crate::net::sockaddr::SockAddr;
use crate::net::socket::Socket;
use crate::proto::congestion::Algorithm;
use crate::proto::conn::{Config, Conn, Host, Outgoing, Payload};
use crate::proto::path::{BASE, HEADERS_V4, HEADERS_V6};
use crate::proto::schedule::Outlook;
use crate::proto::seal::Seal;
use crate::proto::wire;
use crate::proto::{MICROS, Nanos};
use crate::qp::handler::{ConnectionParams, NextTurn};
use crate::qp::host::QpContext;

/// A socket that is full is tried again so soon.
const RETRY_FULL: Nanos = 100 * MICROS;
/// Pieces of a packet at most: its header, each segment of a request, and a trailer.
const MAX_PARTS: usize = 40;
/// Bytes that a batch may have when one more packet is begun.
const BATCH_TARGET: usize = 60_000;

/// The connection of this side.
pub(crate) type ProtoConn = Conn<QpContext>;

/// A connection that stands.
pub(crate) struct Transport {
    pub(crate) number: u32,
    pub(crate) id: ConnId,
    pub(crate) next_turn: Arc<NextTurn>,
    pub(crate) conn: ProtoConn,
    our_token: u64,
    socket: Arc<Socket>,
    seal: Option<Box<Seal>>,
    /// Headers of IP and UDP.
    headers: usize,
    /// What is left of a batch for which the socket had no room, where it goes, and when it is tried again.
    blocked: Option<(Batch, SocketAddr, Nanos)>,
    /// Packets that were not of this connection, whatever their number says.
    pub(crate) unmatched: u64,
}

/// What a batch is built with. Each thread has one: connections that are idle have none.
#[derive(Default)]
struct SendScratch {
    batch: Batch,
    guards: RegistrationGuards,
    /// What the packets of the batch carry, for those that cannot be sent.
    carried: Vec<Payload>,
    /// A sealed packet, while it is opened.
    room: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<SendScratch> = RefCell::default();
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("number", &self.number).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Transport {
    pub(crate) fn new(config: &Config, opened: ConnectionParams, now: Nanos) -> Self {
        let terms = opened.agreed.terms;
        let headers = if terms.peer.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        // Nothing lies between two ends of the loopback interface.
        let (mtu_start, congestion) = match opened.is_loopback {
            true => (opened.ceiling, Algorithm::Local),
            false => (BASE - headers, config.congestion),
        };
        let config = Config { mtu_start, congestion, ip_headers: headers, ..config.clone() };
        Transport {
            number: opened.number,
            id: opened.conn,
            next_turn: opened.next_turn,
            conn: Conn::new(&config, terms, now),
            our_token: terms.our_token,
            socket: opened.socket,
            seal: opened.agreed.seal,
            headers,
            blocked: None,
            unmatched: 0,
        }
    }

    /// Where its packets go.
    pub(crate) fn sends_to(&self, peer: SocketAddr) -> bool {
        self.conn.peer() == peer
    }

    /// What it wants next.
    pub(crate) fn outlook(&self, now: Nanos) -> Outlook {
        if let Some((_, _, again)) = self.blocked {
            let ready = again <= now;
            return Outlook { ready, deadline: (!ready).then_some(again), ..Outlook::default() };
        }
        let outlook = self.conn.outlook(now).in_one_line();
        // What is due is seen to at its turn, if it has one; else in the next pass, and never twice in one.
        let has_turn = outlook.wants_turn();
        let deadline = outlook.deadline.filter(|at| *at > now || !has_turn).map(|at| at.max(now + 1));
        Outlook { deadline, ..outlook }
    }

    /// Packets that name it. Those without its token are nobody's.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        packets: Packets<'_>,
        host: &mut impl Host<QpContext>,
    ) {
        if self.seal.is_some() {
            return SCRATCH.with_borrow_mut(|scratch| self.receive_sealed(now, from, packets, &mut scratch.room, host));
        }
        for packet in packets {
            match wire::head(packet).filter(|(head, _)| head.token.get() == self.our_token) {
                Some((head, body)) => self.conn.receive(now, &head, body, from, host),
                None => self.unmatched += 1,
            }
        }
    }

    fn receive_sealed(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        packets: Packets<'_>,
        room: &mut Vec<u8>,
        host: &mut impl Host<QpContext>,
    ) {
        let Some(seal) = &mut self.seal else { return };
        for packet in packets {
            room.clear();
            room.extend_from_slice(packet);
            match seal.open(room).filter(|(head, _)| head.token.get() == self.our_token) {
                Some((head, body)) => self.conn.receive(now, &head, body, from, host),
                None => self.unmatched += 1,
            }
        }
    }

    /// An ICMP message about a datagram to the peer. Only what quotes a packet of this connection is believed; anything else
    /// can be forged from off the path, and makes the connection ask its peer (RFC 5927; RFC 8899, 4.6.1).
    pub(crate) fn on_delivery_error(&mut self, now: Nanos, error: &DeliveryError) {
        let is_quoted = || self.conn.is_quoted(&error.quote, self.seal.is_some());
        match error.kind {
            DeliveryErrorKind::TooLarge(bytes) if error.is_local || is_quoted() => {
                self.conn.too_large(now, (bytes as usize).saturating_sub(self.headers));
            }
            DeliveryErrorKind::TooLarge(_) => {}
            DeliveryErrorKind::PortClosed if is_quoted() => self.conn.port_closed(now),
            DeliveryErrorKind::PortClosed | DeliveryErrorKind::Unreachable => self.conn.did_not_arrive(now),
        }
    }

    /// Sends what may leave now: one batch. False: there was nothing, or the socket is full.
    pub(crate) fn transmit(&mut self, now: Nanos, host: &mut impl Host<QpContext>, context: &QpContext) -> bool {
        self.send_until(now, host, context, |_| false)
    }

    /// Sends what was posted, if it may leave now. What else there may be to send is left to the next turn.
    pub(crate) fn send_now(&mut self, now: Nanos, host: &mut impl Host<QpContext>, context: &QpContext) -> bool {
        let sent = self.send_until(now, host, context, |conn| !conn.has_requests());
        self.conn.catch_up(host); // while it is on its way
        sent
    }

    fn send_until(
        &mut self,
        now: Nanos,
        host: &mut impl Host<QpContext>,
        context: &QpContext,
        is_enough: impl Fn(&ProtoConn) -> bool,
    ) -> bool {
        if let Some((mut batch, to, again)) = self.blocked.take() {
            if now < again {
                self.blocked = Some((batch, to, again));
                return false;
            }
            // It was copied when it blocked, and what became of it is for acks to say.
            let SendOutcome { is_blocked, overflows, .. } = batch.send(&self.socket, &SockAddr::of(to));
            if overflows {
                self.conn.overflowed(now);
            }
            if is_blocked {
                self.blocked = Some((batch, to, now + RETRY_FULL));
                return false;
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let to = self.fill(scratch, now, host, context, is_enough);
            let has_some = !scratch.batch.is_empty();
            if has_some {
                self.send(scratch, to, now, host);
            }
            scratch.guards.release(&context.regions);
            has_some
        })
    }

    /// A batch of what may leave now, and where it goes.
    fn fill(
        &mut self,
        scratch: &mut SendScratch,
        now: Nanos,
        host: &mut impl Host<QpContext>,
        context: &QpContext,
        is_enough: impl Fn(&ProtoConn) -> bool,
    ) -> SocketAddr {
        let mut batch_to = None;
        while scratch.batch.has_capacity(0, MAX_PARTS) && scratch.batch.bytes() < BATCH_TARGET {
            let Some(outgoing) = self.conn.transmit(now, scratch.batch.own(), host) else { break };
            let to = outgoing.to.unwrap_or_else(|| self.conn.peer());
            if let Err(status) = self.append_payload(scratch, &outgoing, context) {
                scratch.batch.drop_packet();
                self.conn.source_gone(&outgoing.payload, status, host);
                continue;
            }
            scratch.batch.end_packet();
            scratch.carried.push(outgoing.payload);
            // A packet for elsewhere goes alone: it is rare, and the one before it finds its way too.
            if *batch_to.get_or_insert(to) != to || to != self.conn.peer() || is_enough(&self.conn) {
                break;
            }
        }
        batch_to.unwrap_or_else(|| self.conn.peer())
    }

    /// Puts the payload of a packet into the batch, behind its header. An error: it is not there.
    fn append_payload(
        &mut self,
        scratch: &mut SendScratch,
        outgoing: &Outgoing,
        context: &QpContext,
    ) -> Result<(), Status> {
        if self.seal.is_some() {
            return self.append_sealed(scratch.batch.own(), outgoing, context);
        }
        let SendScratch { batch, guards, .. } = scratch;
        let mut add = |piece: &Segment, right: AccessRight| {
            guards.hold(&context.regions, context.pd, piece, right)?;
            // SAFETY: registered memory, which the guards holds until the batch was sent; what is not mapped there the kernel
            // finds out.
            unsafe { batch.memory(piece.address as *const u8, piece.length as usize) };
            Ok(())
        };
        match outgoing.payload {
            Payload::None => Ok(()),
            Payload::Request { slot, offset, length } => {
                let Some(request) = self.conn.request(slot) else { return Err(Status::LocalEp) };
                let mut pieces = request.segments.pieces(offset.into(), length.into());
                pieces.try_for_each(|piece| add(&piece, AccessRight::LocalRead))
            }
            Payload::Remote { key, address, length, .. } => {
                add(&Segment { key, pad: 0, address, length: length.into() }, AccessRight::RemoteRead)
            }
            Payload::Padding(length) => {
                batch.padding(length as usize);
                Ok(())
            }
        }
    }

    /// Copies the payload, and seals the packet.
    #[cold]
    fn append_sealed(&mut self, out: &mut Vec<u8>, outgoing: &Outgoing, context: &QpContext) -> Result<(), Status> {
        let start = out.len() - outgoing.header;
        match outgoing.payload {
            Payload::None => {}
            Payload::Request { slot, offset, length } => {
                let Some(request) = self.conn.request(slot) else { return Err(Status::LocalEp) };
                context.gather(&request.segments, offset.into(), length as usize, out)?;
            }
            Payload::Remote { key, address, length, .. } => {
                context.fetch(&Segment { key, pad: 0, address, length: length.into() }, out)?;
            }
            Payload::Padding(length) => out.resize(out.len() + length as usize, 0),
        }
        // Without a counter that was not used, the connection has lasted too long.
        let is_closed = self.seal.as_mut().is_none_or(|seal| seal.close(out, start));
        if is_closed { Ok(()) } else { Err(Status::Transport) }
    }

    fn send(&mut self, scratch: &mut SendScratch, to: SocketAddr, now: Nanos, host: &mut impl Host<QpContext>) {
        let SendOutcome { is_blocked, overflows, too_large, fault, .. } =
            scratch.batch.send(&self.socket, &SockAddr::of(to));
        if let Some(bytes) = too_large {
            self.conn.too_large(now, bytes.saturating_sub(1));
        }
        if let Some(payload) = fault.and_then(|packet| scratch.carried.get(packet)) {
            self.conn.source_gone(payload, Status::LocalProtection, host);
        }
        scratch.carried.clear();
        if overflows {
            self.conn.overflowed(now);
        }
        if is_blocked {
            self.blocked = Some((std::mem::take(&mut scratch.batch), to, now + RETRY_FULL));
        }
    }
}
