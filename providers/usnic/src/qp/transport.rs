//! A connection that stands, with all that its packets leave by: what comes is opened and handed to it, what it wants to send is
//! gathered and sent.
//!
//! Payload is gathered where it lies, and held until the call that sends it has returned; only what is sealed is copied
//! before. Runs under the lock of whoever has the connection: the queue pair, and after its end what remains of it.
//! Decides nothing: what leaves and when is the connection's.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnId, Segment, Status};
use dapl_software::memory::rights::AccessRight;

use crate::memory::regions::RegistrationGuards;
use crate::net::errors::{Hint, Missed};
use crate::net::name::Name;
use crate::net::receive::Packets;
use crate::net::send::{Batch, Outcome};
use crate::net::socket::Socket;
use crate::proto::congestion::Algorithm;
use crate::proto::conn::{Config, Conn, Host, Outgoing, Payload};
use crate::proto::path::{BASE, HEADERS_V4, HEADERS_V6};
use crate::proto::schedule::Outlook;
use crate::proto::seal::Seal;
use crate::proto::wire;
use crate::proto::{MICROS, Nanos};
use crate::qp::host::World;
use crate::qp::pair::{Opened, Plan};

/// A socket that is full is tried again so soon.
const FULL: Nanos = 100 * MICROS;
/// Pieces of a packet at most: its header, each segment of a request, and a trailer.
const PIECES: usize = 40;
/// Bytes that a batch may have when one more packet is begun.
const ENOUGH: usize = 60_000;

/// The connection of this side.
pub(crate) type Link = Conn<World>;

/// A connection that stands.
pub(crate) struct Line {
    pub(crate) number: u32,
    pub(crate) id: ConnId,
    pub(crate) plan: Arc<Plan>,
    pub(crate) link: Link,
    our_token: u64,
    socket: Arc<Socket>,
    seal: Option<Box<Seal>>,
    /// Headers of IP and UDP.
    headers: usize,
    /// What is left of a batch for which the socket had no room, where it goes, and when it is tried again.
    stuck: Option<(Batch, SocketAddr, Nanos)>,
    /// Packets that were not of this connection, whatever their number says.
    pub(crate) strangers: u64,
}

/// What a batch is built with. Each thread has one: connections that are idle have none.
#[derive(Default)]
struct Bench {
    batch: Batch,
    grip: RegistrationGuards,
    /// What the packets of the batch carry, for those that cannot be sent.
    carried: Vec<Payload>,
    /// A sealed packet, while it is opened.
    room: Vec<u8>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("number", &self.number).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Line {
    pub(crate) fn new(config: &Config, opened: Opened, now: Nanos) -> Self {
        let terms = opened.agreed.terms;
        let headers = if terms.peer.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        // Nothing lies between two ends of the loopback interface.
        let (mtu_start, congestion) = match opened.is_loopback {
            true => (opened.ceiling, Algorithm::Local),
            false => (BASE - headers, config.congestion),
        };
        let config = Config { mtu_start, congestion, ip_headers: headers, ..config.clone() };
        Line {
            number: opened.number,
            id: opened.conn,
            plan: opened.plan,
            link: Conn::new(&config, terms, now),
            our_token: terms.our_token,
            socket: opened.socket,
            seal: opened.agreed.seal,
            headers,
            stuck: None,
            strangers: 0,
        }
    }

    /// Where its packets go.
    pub(crate) fn sends_to(&self, peer: SocketAddr) -> bool {
        self.link.peer() == peer
    }

    /// What it wants next.
    pub(crate) fn outlook(&self, now: Nanos) -> Outlook {
        if let Some((_, _, again)) = self.stuck {
            let ready = again <= now;
            return Outlook { ready, deadline: (!ready).then_some(again), ..Outlook::default() };
        }
        let outlook = self.link.outlook(now).in_one_line();
        // What is due is seen to at its turn, if it has one; else in the next pass, and never twice in one.
        let has_turn = outlook.wants_turn();
        let deadline = outlook.deadline.filter(|at| *at > now || !has_turn).map(|at| at.max(now + 1));
        Outlook { deadline, ..outlook }
    }

    /// Packets that name it. Those without its token are nobody's.
    pub(crate) fn receive(&mut self, now: Nanos, from: SocketAddr, packets: Packets<'_>, host: &mut impl Host<World>) {
        if self.seal.is_some() {
            return BENCH.with_borrow_mut(|bench| self.receive_sealed(now, from, packets, &mut bench.room, host));
        }
        for packet in packets {
            match wire::head(packet).filter(|(head, _)| head.token.get() == self.our_token) {
                Some((head, body)) => self.link.receive(now, &head, body, from, host),
                None => self.strangers += 1,
            }
        }
    }

    fn receive_sealed(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        packets: Packets<'_>,
        room: &mut Vec<u8>,
        host: &mut impl Host<World>,
    ) {
        let Some(seal) = &mut self.seal else { return };
        for packet in packets {
            room.clear();
            room.extend_from_slice(packet);
            match seal.open(room).filter(|(head, _)| head.token.get() == self.our_token) {
                Some((head, body)) => self.link.receive(now, &head, body, from, host),
                None => self.strangers += 1,
            }
        }
    }

    /// An ICMP message about a datagram to the peer. Only what quotes a packet of this connection is believed; anything else
    /// can be forged from off the path, and makes the connection ask its peer (RFC 5927; RFC 8899, 4.6.1).
    pub(crate) fn hint(&mut self, now: Nanos, missed: &Missed) {
        let is_quoted = || self.link.is_quoted(&missed.quote, self.seal.is_some());
        match missed.hint {
            Hint::TooLarge(bytes) if missed.is_local || is_quoted() => {
                self.link.too_large(now, (bytes as usize).saturating_sub(self.headers));
            }
            Hint::TooLarge(_) => {}
            Hint::PortClosed if is_quoted() => self.link.port_closed(now),
            Hint::PortClosed | Hint::Unreachable => self.link.did_not_arrive(now),
        }
    }

    /// Sends what may leave now: one batch. False: there was nothing, or the socket is full.
    pub(crate) fn transmit(&mut self, now: Nanos, host: &mut impl Host<World>, world: &World) -> bool {
        self.send_until(now, host, world, |_| false)
    }

    /// Sends what was posted, if it may leave now. What else there may be to send is left to the next turn.
    pub(crate) fn hurry(&mut self, now: Nanos, host: &mut impl Host<World>, world: &World) -> bool {
        let sent = self.send_until(now, host, world, |link| !link.has_requests());
        self.link.catch_up(host); // while it is on its way
        sent
    }

    fn send_until(
        &mut self,
        now: Nanos,
        host: &mut impl Host<World>,
        world: &World,
        is_enough: impl Fn(&Link) -> bool,
    ) -> bool {
        if let Some((mut batch, to, again)) = self.stuck.take() {
            if now < again {
                self.stuck = Some((batch, to, again));
                return false;
            }
            // It was copied when it stuck, and what became of it is for acks to say.
            let Outcome { is_blocked, overflows, .. } = batch.send(&self.socket, &Name::of(to));
            if overflows {
                self.link.overflowed(now);
            }
            if is_blocked {
                self.stuck = Some((batch, to, now + FULL));
                return false;
            }
        }
        BENCH.with_borrow_mut(|bench| {
            let to = self.fill(bench, now, host, world, is_enough);
            let has_some = !bench.batch.is_empty();
            if has_some {
                self.send(bench, to, now, host);
            }
            bench.grip.release(&world.regions);
            has_some
        })
    }

    /// A batch of what may leave now, and where it goes.
    fn fill(
        &mut self,
        bench: &mut Bench,
        now: Nanos,
        host: &mut impl Host<World>,
        world: &World,
        is_enough: impl Fn(&Link) -> bool,
    ) -> SocketAddr {
        let mut batch_to = None;
        while bench.batch.has_room(0, PIECES) && bench.batch.bytes() < ENOUGH {
            let Some(outgoing) = self.link.transmit(now, bench.batch.own(), host) else { break };
            let to = outgoing.to.unwrap_or_else(|| self.link.peer());
            if let Err(status) = self.add(bench, &outgoing, world) {
                bench.batch.drop_packet();
                self.link.source_gone(&outgoing.payload, status, host);
                continue;
            }
            bench.batch.end_packet();
            bench.carried.push(outgoing.payload);
            // A packet for elsewhere goes alone: it is rare, and the one before it finds its way too.
            if *batch_to.get_or_insert(to) != to || to != self.link.peer() || is_enough(&self.link) {
                break;
            }
        }
        batch_to.unwrap_or_else(|| self.link.peer())
    }

    /// Puts the payload of a packet into the batch, behind its header. An error: it is not there.
    fn add(&mut self, bench: &mut Bench, outgoing: &Outgoing, world: &World) -> Result<(), Status> {
        if self.seal.is_some() {
            return self.copy_in(bench.batch.own(), outgoing, world);
        }
        let Bench { batch, grip, .. } = bench;
        let mut add = |piece: &Segment, right: AccessRight| {
            grip.hold(&world.regions, world.pd, piece, right)?;
            // SAFETY: registered memory, which the grip holds until the batch was sent; what is not mapped there the kernel
            // finds out.
            unsafe { batch.memory(piece.address as *const u8, piece.length as usize) };
            Ok(())
        };
        match outgoing.payload {
            Payload::None => Ok(()),
            Payload::Request { slot, offset, length } => {
                let Some(request) = self.link.request(slot) else { return Err(Status::LocalEp) };
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
    fn copy_in(&mut self, out: &mut Vec<u8>, outgoing: &Outgoing, world: &World) -> Result<(), Status> {
        let start = out.len() - outgoing.header;
        match outgoing.payload {
            Payload::None => {}
            Payload::Request { slot, offset, length } => {
                let Some(request) = self.link.request(slot) else { return Err(Status::LocalEp) };
                world.gather(&request.segments, offset.into(), length as usize, out)?;
            }
            Payload::Remote { key, address, length, .. } => {
                world.fetch(&Segment { key, pad: 0, address, length: length.into() }, out)?;
            }
            Payload::Padding(length) => out.resize(out.len() + length as usize, 0),
        }
        // Without a counter that was not used, the connection has lasted too long.
        let is_closed = self.seal.as_mut().is_none_or(|seal| seal.close(out, start));
        if is_closed { Ok(()) } else { Err(Status::Transport) }
    }

    fn send(&mut self, bench: &mut Bench, to: SocketAddr, now: Nanos, host: &mut impl Host<World>) {
        let Outcome { is_blocked, overflows, too_large, fault, .. } = bench.batch.send(&self.socket, &Name::of(to));
        if let Some(bytes) = too_large {
            self.link.too_large(now, bytes.saturating_sub(1));
        }
        if let Some(payload) = fault.and_then(|packet| bench.carried.get(packet)) {
            self.link.source_gone(payload, Status::LocalProtection, host);
        }
        bench.carried.clear();
        if overflows {
            self.link.overflowed(now);
        }
        if is_blocked {
            self.stuck = Some((std::mem::take(&mut bench.batch), to, now + FULL));
        }
    }
}
