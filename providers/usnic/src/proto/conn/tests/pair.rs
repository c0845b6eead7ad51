//! The two endpoints of a connection, each with its own memory, and the network between them. A seed and a virtual
//! clock determine every run.

use std::collections::BTreeMap;

use dapl::provider::{ConnectionEvent, Remote, Status};
use zerocopy::IntoBytes;

use super::host::{BASE, Buffer, KEY, READ_ONLY, TestHost};
use super::network::{NetworkConditions, TestRandom};
use crate::proto::conn::{AfterShortSend, Conn, ConnConfig, Operation, OutgoingPacket, Payload, Post, SourceAddress};
use crate::proto::psn::Psn;
use crate::proto::setup::ConnectionTerms;
use crate::proto::wire;
use crate::proto::{Nanos, SECONDS};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Endpoint {
    A,
    B,
}

impl Endpoint {
    pub(crate) fn other(self) -> Endpoint {
        if self == Endpoint::A { Endpoint::B } else { Endpoint::A }
    }

    fn address(self) -> SourceAddress {
        let port = if self == Endpoint::A { 1 } else { 2 };
        ([127, 0, 0, 1], port).into()
    }

    fn name(self) -> (u32, u64) {
        if self == Endpoint::A { (0xA0, 0xAAAA_BBBB) } else { (0xB0, 0xCCCC_DDDD) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) to: Endpoint,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct End {
    pub(crate) conn: Conn<TestHost>,
    pub(crate) host: TestHost,
    pub(crate) events: Vec<ConnectionEvent>,
    /// Whether all packets of this endpoint are lost.
    pub(crate) drops_all: bool,
    /// Source address of the endpoint's packets.
    pub(crate) address: SourceAddress,
}

pub(crate) struct ConnPair {
    pub(crate) now: Nanos,
    pub(crate) dice: TestRandom,
    pub(crate) network: NetworkConditions,
    pub(crate) a: End,
    pub(crate) b: End,
    wire: BTreeMap<(Nanos, u64), Datagram>,
    count: u64,
    next_id: u64,
    /// How often each fast path was used: for a transmitted send, a send that waits, a receive.
    pub(crate) quick: [u32; 3],
    /// The packets that `pump` has sent since logging was enabled, or `None` if it is disabled.
    pub(crate) log: Option<Vec<(Endpoint, OutgoingPacket, Datagram)>>,
}

#[derive(Clone)]
pub(crate) struct PairConfig {
    pub(crate) config: ConnConfig,
    pub(crate) psn: [u32; 2],
    /// First message number.
    pub(crate) number: u32,
    pub(crate) reads: u32,
    /// Whether both endpoints support extension operations.
    pub(crate) extensions: bool,
    pub(crate) mtu: usize,
    pub(crate) memory: usize,
    pub(crate) seed: u64,
}

impl Default for PairConfig {
    fn default() -> Self {
        let config = ConnConfig { window_kib: u16::MAX, ..ConnConfig::default() };
        PairConfig { config, psn: [7, 900], number: 0, reads: 4, extensions: true, mtu: 1200, memory: 1 << 16, seed: 1 }
    }
}

impl ConnPair {
    pub(crate) fn new(plan: &PairConfig) -> ConnPair {
        let end = |side: Endpoint| {
            let (ours, theirs) = (side.name(), side.other().name());
            let place = usize::from(side == Endpoint::B);
            let terms = ConnectionTerms {
                active: side == Endpoint::A,
                our_conn: ours.0,
                our_token: ours.1,
                peer_conn: theirs.0,
                peer_token: theirs.1,
                first_psn: Psn(plan.psn[place]),
                peer_first_psn: Psn(plan.psn[1 - place]),
                ord: plan.reads,
                ird: plan.reads,
                credits: plan.number,
                peer_window_kib: plan.config.window_kib,
                mtu_ceiling: plan.mtu,
                extensions: plan.extensions,
                overhead: 0,
                seed: [place as u8; 16],
                peer: side.other().address(),
            };
            let mut conn = Conn::new(&plan.config, terms, 0);
            conn.count_from(plan.number);
            let memory = (0..plan.memory).map(|at| (at as u8).wrapping_mul(31) ^ (place as u8 + 1)).collect();
            End {
                conn,
                host: TestHost { memory, ..TestHost::default() },
                events: Vec::new(),
                drops_all: false,
                address: side.address(),
            }
        };
        ConnPair {
            now: 0,
            dice: TestRandom(plan.seed),
            network: NetworkConditions::default(),
            a: end(Endpoint::A),
            b: end(Endpoint::B),
            wire: BTreeMap::new(),
            count: 0,
            next_id: 0,
            quick: [0; 3],
            log: None,
        }
    }

    pub(crate) fn end(&mut self, side: Endpoint) -> &mut End {
        if side == Endpoint::A { &mut self.a } else { &mut self.b }
    }

    /// Posts a request with the local buffer at `at`, or a bind if `work` is `None`. Returns its id.
    pub(crate) fn post(
        &mut self,
        side: Endpoint,
        work: impl Into<Option<Operation>>,
        at: usize,
        length: usize,
        fence: bool,
    ) -> u64 {
        self.next_id += 1;
        let (now, id) = (self.now, self.next_id);
        let end = self.end(side);
        let post = Post { work: work.into(), length: length as u32, fence };
        end.conn.post(now, post, |own| *own = Buffer { id, at, length }, &mut end.host);
        id
    }

    pub(crate) fn send(&mut self, side: Endpoint, at: usize, length: usize) -> u64 {
        self.post(side, Operation::Send { solicited: false }, at, length, false)
    }

    /// Posts a send by the fast path if possible, else by the general path. After the fast path, compares its result
    /// with the connection's `pending_work`.
    pub(crate) fn send_quickly(&mut self, side: Endpoint, at: usize, length: usize) -> u64 {
        let (now, id, there) = (self.now, self.next_id + 1, self.end(side.other()).address);
        let fill = |own: &mut Buffer| *own = Buffer { id, at, length };
        let end = self.end(side);
        let before = end.conn.pending_work(now);
        if !end.conn.permits_short(length as u64) && !end.conn.permit_short(now, length as u32, u32::MAX) {
            let post = Post { work: Some(Operation::Send { solicited: false }), length: length as u32, fence: false };
            if !end.conn.post_behind(post, fill) {
                return self.send(side, at, length);
            }
            let after = end.conn.pending_work(now);
            assert_eq!((before.needs_service(), before.deadline), (after.needs_service(), after.deadline));
            self.next_id += 1;
            self.quick[1] += 1;
            return id;
        }
        let was_deferring = end.conn.is_deferring();
        let (send, own) = end.conn.send_short(now, length as u32).expect("the queue is not full");
        fill(own);
        let mut bytes = end.conn.short_header(send, &end.host).as_bytes().to_vec();
        bytes.extend_from_slice(&end.host.memory[at..][..length]);
        let rest = end.conn.after_short_send(&mut end.host);
        let (after, latest) = (end.conn.pending_work(now), |at: Option<Nanos>| at.unwrap_or(Nanos::MAX));
        let planned = match rest {
            AfterShortSend::Nothing => latest(before.deadline),
            AfterShortSend::Timeout(earliest) => latest(before.deadline).min(earliest),
            AfterShortSend::Anything => 0,
        };
        // If work was deferred, the fast path returns no deadline, because the next pass checks all deadlines.
        if planned > 0 && !was_deferring {
            assert!(
                !after.needs_service() || before.needs_service(),
                "the short send reported {rest:?}, but the pending work changed from {before:?} to {after:?}"
            );
            assert!(
                planned <= latest(after.deadline).max(now + 1),
                "the short send reported {rest:?}, but the pending work changed from {before:?} to {after:?}"
            );
        }
        let is_lost = end.drops_all || end.conn.peer() != there;
        self.next_id += 1;
        self.quick[0] += 1;
        if !is_lost {
            self.carry(Datagram { to: side.other(), bytes });
        }
        id
    }

    pub(crate) fn write(&mut self, side: Endpoint, at: usize, length: usize, to: usize) -> u64 {
        self.post(side, Operation::Write(Remote { key: KEY, address: BASE + to as u64 }), at, length, false)
    }

    pub(crate) fn read(&mut self, side: Endpoint, at: usize, length: usize, from: usize) -> u64 {
        self.post(side, Operation::Read(Remote { key: KEY, address: BASE + from as u64 }), at, length, false)
    }

    pub(crate) fn recv(&mut self, side: Endpoint, at: usize, length: usize) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let end = self.end(side);
        end.conn.post_recv(length as u64, |own| *own = Buffer { id, at, length }, &mut end.host);
        id
    }

    /// Posts a receive, by the fast path if possible.
    pub(crate) fn recv_quickly(&mut self, side: Endpoint, at: usize, length: usize) -> u64 {
        let (now, id) = (self.now, self.next_id + 1);
        let end = self.end(side);
        let before = end.conn.pending_work(now).needs_service();
        let fill = |own: &mut Buffer| *own = Buffer { id, at, length };
        let Some(is_due) = end.conn.post_recv_quickly(length as u64, u32::MAX, fill) else {
            return self.recv(side, at, length);
        };
        assert!(
            end.conn.pending_work(now).needs_service() <= (before || is_due),
            "posting a receive needs service only if an ack is due"
        );
        self.next_id += 1;
        self.quick[2] += 1;
        id
    }

    /// Posts a receive to the shared queue.
    pub(crate) fn share(&mut self, side: Endpoint, at: usize, length: usize) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let end = self.end(side);
        end.host.shared.push_back(Buffer { id, at, length });
        end.conn.check_credits(&mut end.host);
        id
    }

    /// Sends up to `most` packets of an endpoint.
    pub(crate) fn pump(&mut self, side: Endpoint, most: usize) -> usize {
        let now = self.now;
        let there = self.end(side.other()).address;
        for count in 0..most {
            let end = if side == Endpoint::A { &mut self.a } else { &mut self.b };
            let mut bytes = Vec::new();
            let said_so = end.conn.pending_work(now).needs_service() || end.conn.is_deferring();
            let Some(out) = end.conn.transmit(now, &mut bytes, &mut end.host) else {
                assert!(!end.conn.pending_work(now).needs_service(), "the connection requested a turn without work");
                return count;
            };
            assert!(said_so, "the connection sent without having requested a turn: {out:?}");
            assert_eq!(out.header, bytes.len());
            if !gather(end, &out, &mut bytes) {
                continue;
            }
            let to = out.to.unwrap_or(end.conn.peer());
            // Packets to any other address than the peer's are lost.
            let is_mute = end.drops_all || to != there;
            let datagram = Datagram { to: side.other(), bytes };
            self.log.iter_mut().for_each(|log| log.push((side, out, datagram.clone())));
            if !is_mute {
                self.carry(datagram);
            }
        }
        most
    }

    /// Passes a datagram to the network, which may drop, duplicate, delay or corrupt it.
    pub(crate) fn carry(&mut self, mut datagram: Datagram) {
        let network = self.network;
        if self.dice.hits(network.drop) || datagram.bytes.len() > network.mtu {
            return;
        }
        if self.dice.hits(network.double) {
            let at = self.now + network.latency + self.dice.below(10 * network.latency);
            self.count += 1;
            self.wire.insert((at, self.count), datagram.clone());
        }
        if self.dice.hits(network.corrupt) {
            let at = self.dice.below(datagram.bytes.len() as u64) as usize;
            datagram.bytes[at] ^= 1 << self.dice.below(8);
        }
        let late = if self.dice.hits(network.late) { self.dice.below(network.lateness) } else { 0 };
        self.count += 1;
        self.wire.insert((self.now + network.latency + late, self.count), datagram);
    }

    pub(crate) fn deliver(&mut self, datagram: &Datagram) {
        let (now, from) = (self.now, self.end(datagram.to.other()).address);
        let name = datagram.to.name();
        let end = self.end(datagram.to);
        let Some((head, body)) = wire::head(&datagram.bytes) else { return };
        if (head.conn.get(), head.token.get()) == name {
            end.conn.receive(now, &head, body, from, &mut end.host);
            end.events.extend(end.conn.take_event());
        }
    }

    /// Advances to the next event. Returns false if there is no event.
    pub(crate) fn step(&mut self) -> bool {
        for side in [Endpoint::A, Endpoint::B] {
            self.pump(side, 10_000);
        }
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let deadlines = [self.a.conn.deadline(), self.b.conn.deadline()];
        let Some(next) = arrival.into_iter().chain(deadlines.into_iter().flatten()).min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let datagram = entry.remove();
            self.deliver(&datagram);
        }
        let now = self.now;
        for end in [&mut self.a, &mut self.b] {
            if end.conn.deadline().is_some_and(|at| at <= now) {
                end.conn.on_time(now, &mut end.host);
            }
            end.events.extend(end.conn.take_event());
        }
        true
    }

    /// Runs until `is_so` returns true. Panics if no datagram and no deadline is left, after 600 s of virtual time, or
    /// after 2,000,000 steps.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut ConnPair) -> bool) {
        let limit = self.now + 600 * SECONDS;
        for _ in 0..2_000_000 {
            if is_so(self) {
                return;
            }
            assert!(self.step() && self.now < limit, "waiting until {what}: {}", self.state());
        }
        panic!("not reached within 2000000 steps: {what}: {}", self.state());
    }

    /// Runs for the virtual time `time`.
    pub(crate) fn pass(&mut self, time: Nanos) {
        let end = self.now + time;
        for _ in 0..2_000_000 {
            for side in [Endpoint::A, Endpoint::B] {
                self.pump(side, 10_000);
            }
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let deadlines = [self.a.conn.deadline(), self.b.conn.deadline()];
            match arrival.into_iter().chain(deadlines.into_iter().flatten()).min() {
                Some(next) if next <= end => {
                    self.step();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("too many events at one time: {}", self.state());
    }

    pub(crate) fn state(&self) -> String {
        format!("at {}: a {:?} b {:?}", self.now, self.a.conn.counters(), self.b.conn.counters())
    }
}

/// Appends the payload of a packet to `bytes`. If the payload is unreadable, reports this to the connection and returns
/// false.
fn gather(end: &mut End, out: &OutgoingPacket, bytes: &mut Vec<u8>) -> bool {
    match out.payload {
        Payload::None => {}
        Payload::Padding(length) => bytes.resize(bytes.len() + length as usize, 0),
        Payload::Request { slot, offset, length } => {
            let buffer = *end.conn.request(slot).expect("the slot belongs to an active request");
            if end.host.gone.contains(&buffer.id) {
                end.conn.source_unreadable(out.payload, out.resend, Status::LocalProtection, &mut end.host);
                return false;
            }
            bytes.extend_from_slice(&end.host.memory[buffer.at + offset as usize..][..length as usize]);
        }
        Payload::Remote { key, address, length, .. } => {
            let range = end.host.range(address, length as usize);
            match range.filter(|_| (key == KEY || key == READ_ONLY) && !end.host.unreadable) {
                Some(range) => bytes.extend_from_slice(&end.host.memory[range]),
                None => {
                    end.conn.source_unreadable(out.payload, out.resend, Status::RemoteAccess, &mut end.host);
                    return false;
                }
            }
        }
    }
    true
}
