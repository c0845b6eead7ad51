//! The two endpoints of a connection, each with its own memory, and the network between them.
//!
//! A seed and a virtual clock determine every run. The memory of each endpoint is one array of bytes. No byte of a
//! buffer may be written after its completion. So a buffer is copied when it completes, and compared at the end of the
//! test.

use std::collections::{BTreeMap, VecDeque};

use dapl::provider::{ConnectionEvent, Remote, Status};

use dapl_software::memory::atomic::Atomic;
use zerocopy::IntoBytes;

use crate::proto::conn::{
    AfterShortSend, Conn, ConnCallbacks, ConnConfig, Operation, OutgoingPacket, Payload, Post, PostedData, SendValue,
    SourceAddress,
};
use crate::proto::psn::Psn;
use crate::proto::setup::ConnectionTerms;
use crate::proto::wire::{self, Refusal};
use crate::proto::{MICROS, Nanos, SECONDS};

/// Start address of the memory of each endpoint.
pub(crate) const BASE: u64 = 0x7000_0000;
/// Keys of the whole memory: the first allows reads and writes, the second only reads.
pub(crate) const KEY: u32 = 0x1111;
pub(crate) const READ_ONLY: u32 = 0x2222;
pub(crate) const WINDOW: u32 = 0x3333;

/// The buffer of a request or receive, which the connection stores as driver data.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Buffer {
    pub(crate) id: u64,
    pub(crate) at: usize,
    pub(crate) length: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TestCompletion {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) bytes: u64,
    pub(crate) solicited: bool,
    pub(crate) value: SendValue,
}

/// The memory and the completions of one endpoint.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) memory: Vec<u8>,
    pub(crate) requests: Vec<TestCompletion>,
    pub(crate) recvs: Vec<TestCompletion>,
    /// Completed buffers of receives and reads, with their contents at the completion.
    completed_buffers: Vec<(Buffer, Vec<u8>)>,
    pub(crate) shared: VecDeque<Buffer>,
    /// Ids of local buffers that are inaccessible.
    pub(crate) gone: Vec<u64>,
    /// Whether the memory is unreadable for reads of the peer.
    pub(crate) unreadable: bool,
    /// Number of times that the next bind is still deferred.
    pub(crate) put_off: u32,
    /// Error of binds, or `None` if they succeed.
    pub(crate) bind_status: Option<Status>,
    /// Number of calls of `execute_bind`.
    pub(crate) bind_calls: u32,
    /// Keys that were invalidated, each with the number of receives that were complete before.
    pub(crate) invalidated: Vec<(u32, usize)>,
    /// Number of executed atomic operations.
    pub(crate) executed: u32,
    /// Ages of sends that were reported as overdue.
    pub(crate) overdue: Vec<Nanos>,
    /// Reads of which some data has arrived.
    reads: BTreeMap<u64, Buffer>,
}

impl TestHost {
    fn range(&self, address: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let end = start.checked_add(length)?;
        (end <= self.memory.len()).then_some(start..end)
    }

    fn put(&mut self, buffer: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        if self.gone.contains(&buffer.id) {
            return Err(Status::LocalProtection);
        }
        let start = offset as usize;
        assert!(start + bytes.len() <= buffer.length, "{buffer:?} cannot hold {start} + {} bytes", bytes.len());
        self.memory[buffer.at + start..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Checks that no buffer was written after its completion.
    pub(crate) fn check_untouched(&self) {
        for (buffer, bytes) in &self.completed_buffers {
            assert!(
                self.memory[buffer.at..][..bytes.len()] == bytes[..],
                "{buffer:?} was written after its completion"
            );
        }
    }
}

impl PostedData for TestHost {
    type Request = Buffer;
    type Recv = Buffer;
}

impl ConnCallbacks<TestHost> for TestHost {
    fn may_touch(&mut self, key: u32, address: u64, length: u32, write: bool) -> bool {
        (key == KEY || (key == READ_ONLY && !write)) && self.range(address, length as usize).is_some()
    }

    fn put_remote(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let range = self.range(address, bytes.len()).filter(|_| key == KEY).ok_or(Refusal::Access)?;
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn put_recv(&mut self, recv: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        self.put(recv, offset, bytes)
    }

    fn put_read(&mut self, request: &Buffer, offset: u32, bytes: &[u8]) -> Result<(), Status> {
        self.reads.insert(request.id, *request);
        self.put(request, offset, bytes)
    }

    fn take_shared(&mut self) -> Option<(Buffer, u64)> {
        self.shared.pop_front().map(|buffer| (buffer, buffer.length as u64))
    }

    fn shared_left(&self) -> u32 {
        self.shared.len() as u32
    }

    fn send_overdue(&mut self, age: Nanos) {
        self.overdue.push(age);
    }

    fn execute_bind(&mut self, _request: &Buffer) -> Result<bool, Status> {
        self.bind_calls += 1;
        let is_put_off = self.put_off > 0;
        self.put_off = self.put_off.saturating_sub(1);
        if is_put_off { Ok(false) } else { self.bind_status.map_or(Ok(true), Err) }
    }

    fn request_done(&mut self, request: &mut Buffer, status: Status, bytes: u64) {
        if let Some(buffer) = self.reads.remove(&request.id) {
            self.completed_buffers.push((buffer, self.memory[buffer.at..][..buffer.length].to_vec()));
        }
        self.requests.push(TestCompletion {
            id: request.id,
            status,
            bytes,
            solicited: false,
            value: SendValue::default(),
        });
    }

    fn recv_done(&mut self, recv: &mut Buffer, status: Status, bytes: u64, solicited: bool) {
        self.completed_buffers.push((*recv, self.memory[recv.at..][..recv.length].to_vec()));
        self.recvs.push(TestCompletion { id: recv.id, status, bytes, solicited, value: SendValue::default() });
    }

    fn recv_done_with(&mut self, recv: &mut Buffer, bytes: u64, value: SendValue) {
        self.recv_done(recv, Status::Success, bytes, value.solicited);
        self.recvs.last_mut().unwrap().value = value;
    }

    fn may_invalidate(&mut self, key: u32) -> bool {
        key == WINDOW
    }

    fn invalidate(&mut self, key: u32) {
        self.invalidated.push((key, self.recvs.len()));
    }

    fn may_execute(&mut self, key: u32, address: u64) -> bool {
        key == KEY && self.range(address, 8).is_some()
    }

    fn execute(&mut self, key: u32, address: u64, operation: Atomic) -> Option<u64> {
        assert!(self.may_execute(key, address));
        let range = self.range(address, 8).filter(|_| !self.unreadable)?;
        let found = u64::from_ne_bytes(self.memory[range.clone()].try_into().unwrap());
        let new = match operation {
            Atomic::FetchAdd(add) => found.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } => {
                if found == compare {
                    swap
                } else {
                    found
                }
            }
        };
        self.memory[range].copy_from_slice(&new.to_ne_bytes());
        self.executed += 1;
        Some(found)
    }
}

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

/// Faults of the network in packets per thousand, and its delay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) drop: u64,
    pub(crate) double: u64,
    pub(crate) corrupt: u64,
    /// Packets per thousand with an additional delay, and the maximum of this delay.
    pub(crate) late: u64,
    pub(crate) lateness: Nanos,
    pub(crate) latency: Nanos,
    /// Size in bytes above which datagrams are dropped.
    pub(crate) mtu: usize,
}

impl Default for NetworkConditions {
    fn default() -> Self {
        let lateness = 300 * MICROS;
        NetworkConditions { drop: 0, double: 0, corrupt: 0, late: 0, lateness, latency: 10 * MICROS, mtu: 65_507 }
    }
}

/// Pseudo-random numbers from a seed (splitmix64).
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn hits(&mut self, parts: u64) -> bool {
        parts > 0 && self.below(1000) < parts
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
    /// All packets that were sent, if logging is enabled.
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

    /// Posts a request with the local buffer at `at`. Returns its id.
    pub(crate) fn post(&mut self, side: Endpoint, work: Operation, at: usize, length: usize, fence: bool) -> u64 {
        self.next_id += 1;
        let (now, id) = (self.now, self.next_id);
        let end = self.end(side);
        let post = Post { work, length: length as u32, fence };
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
            let post = Post { work: Operation::Send { solicited: false }, length: length as u32, fence: false };
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

    /// Runs until `is_so` returns true. Panics after 600 s of virtual time, or after 2,000,000 steps.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut ConnPair) -> bool) {
        let limit = self.now + 600 * SECONDS;
        for _ in 0..2_000_000 {
            if is_so(self) {
                return;
            }
            assert!(self.step() && self.now < limit, "waiting until {what}: {}", self.state());
        }
        panic!("after 2000000 steps, not yet: {what}: {}", self.state());
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

/// Appends the payload of a packet to `bytes`. Returns false if the payload is unreadable.
fn gather(end: &mut End, out: &OutgoingPacket, bytes: &mut Vec<u8>) -> bool {
    match out.payload {
        Payload::None => {}
        Payload::Padding(length) => bytes.resize(bytes.len() + length as usize, 0),
        Payload::Request { slot, offset, length } => {
            let buffer = *end.conn.request(slot).expect("the slot belongs to an active request");
            if end.host.gone.contains(&buffer.id) {
                end.conn.source_unreadable(&out.unsent(), Status::LocalProtection, &mut end.host);
                return false;
            }
            bytes.extend_from_slice(&end.host.memory[buffer.at + offset as usize..][..length as usize]);
        }
        Payload::Remote { key, address, length, .. } => {
            let range = end.host.range(address, length as usize);
            match range.filter(|_| (key == KEY || key == READ_ONLY) && !end.host.unreadable) {
                Some(range) => bytes.extend_from_slice(&end.host.memory[range]),
                None => {
                    end.conn.source_unreadable(&out.unsent(), Status::RemoteAccess, &mut end.host);
                    return false;
                }
            }
        }
    }
    true
}
