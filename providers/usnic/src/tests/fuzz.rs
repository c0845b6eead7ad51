//! Properties that hold for every input from the network. The fuzz targets of `test/fuzz` search for counterexamples.
//! The tests in this file replay the corpus of these targets, with thousands of mutations of each file.

#[path = "fuzz/memory.rs"]
mod memory;

use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::Remote;
use zerocopy::IntoBytes;

use self::memory::{BASE, Buffer, KEYS, MEMORY, Memory};
use crate::proto::conn::{Conn, ConnConfig, Operation, Payload, Post};
use crate::proto::echo;
use crate::proto::psn::Psn;
use crate::proto::setup::accept::Acceptor;
use crate::proto::setup::connect::{Connector, refuse_unmatched};
use crate::proto::setup::{self, ConnectionTerms, Offer, Random, Setup};
use crate::proto::wire::{
    self, AckFields, DataFields, Extent, FLAG_CHECKED, Kind, Message, PacketHeader, PayloadOffset, RANGES, SackFields,
    SackRange,
};
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS, WINDOW};

/// Maximum number of outstanding requests, and of posted receives.
const MOST: u32 = 8;
/// Connection number and token of the peer under test.
const OURS: (u32, u64) = (0xA0, 0xAAAA);
/// First PSN of the peer under test, and of the malicious peer.
const FIRST: [u32; 2] = [u32::MAX - 3, 7];

/// A generator whose numbers depend only on its seed.
struct TestRandom(u64);

impl Random for TestRandom {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.0 >> 56) as u8;
        }
    }
}

fn address(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 1000).into()
}

/// Processes arbitrary bytes as a packet, with and without a valid checksum.
///
/// Checks that there is no panic, that decoded parts are within the packet, that an echo reply or the Reset for an
/// unmatched accept is not longer than the packet, and that three copies of the packet cause handshake replies of at
/// most nine times its length in total.
pub fn packet(bytes: &[u8]) {
    if let Some((head, body)) = wire::head(bytes) {
        for kind in [Kind::Fragment, Kind::Chunk, Kind::Piece, Kind::Ack] {
            let Some(data) = wire::data(kind, body) else { continue };
            assert_ne!(kind, Kind::Ack);
            let end = data.offset as usize + data.payload.len();
            assert!(end <= data.message.length.get() as usize && data.payload.len() <= body.len());
        }
        if let Some((_, selective, ranges)) = wire::ack(body) {
            assert!(ranges.len() == usize::from(selective.ranges) && ranges.len() <= RANGES);
        }
        assert!(head.kind().is_some() || head.version != wire::VERSION || head.kind == 0 || head.kind > 16);
    }
    let mut echoed = Vec::new();
    let is_echoed = echo::reply(bytes, &mut echoed);
    assert!(echoed.len() <= bytes.len() && is_echoed != echoed.is_empty());
    handshake(bytes);
    let mut good = bytes.to_vec();
    if let Some(flags) = good.get_mut(3) {
        *flags |= FLAG_CHECKED as u8;
        good.extend_from_slice(&crc32c::crc32c(&good).to_be_bytes());
        handshake(&good);
    }
}

/// Passes a packet to both state machines of the handshake.
fn handshake(packet: &[u8]) {
    let mut dice = TestRandom(1);
    let setup = Arc::new(Setup::new(setup::SetupConfig::default(), None));
    let mut acceptor = Acceptor::new(setup.clone(), 0, &mut dice);
    let (mut out, from) = (Vec::new(), address(9));
    for now in [0, MILLIS, SECONDS] {
        acceptor.receive(now, packet, from, true, &mut dice, &mut out);
        acceptor.reset(now, packet);
    }
    assert!(
        out.len() <= 9 * packet.len(),
        "a packet causes replies of at most 9 times its length (3 calls, 3 times each)"
    );
    let ours = Offer::new(OURS.0, &mut dice);
    let mut connector = Connector::new(setup.clone(), address(9), 5, ours, b"private", 0);
    let mut to_us = packet.to_vec();
    if let Some(head) = to_us.get_mut(4..16) {
        head[..4].copy_from_slice(ours.conn.as_bytes());
        head[4..].copy_from_slice(ours.token.as_bytes());
        if to_us.len() >= 20 {
            let end = to_us.len() - 4;
            let sum = crc32c::crc32c(&to_us[..end]).to_be_bytes();
            to_us[end..].copy_from_slice(&sum);
        }
    }
    connector.receive(0, &to_us, address(9), &mut dice);
    out.clear();
    refuse_unmatched(&setup, packet, &mut dice, &mut out);
    assert!(out.len() <= packet.len());
}

/// The peer under test, and the remaining input bytes, which select the next steps.
struct Peer<'a> {
    script: &'a [u8],
    now: Nanos,
    conn: Conn<Memory>,
    memory: Memory,
    posted: (u32, u32),
    packet: Vec<u8>,
}

/// Interprets bytes as a script of posts, elapsed time, and packets of a malicious peer. The malicious peer knows the
/// connection number and the token.
///
/// Checks that there is no panic and no write outside registered memory, that every post completes once, and that the
/// numbers of outstanding posts and of packets per pass are bounded.
pub fn peer(script: &[u8]) {
    run_script(script);
}

/// Runs a script. Returns the number of requests and receives that completed before its end.
fn run_script(script: &[u8]) -> (u32, u32) {
    let Some((flags, script)) = script.split_first() else { return (0, 0) };
    let shared = flags & 1 != 0;
    let config = ConnConfig { max_requests: MOST, max_recvs: MOST, shared, ..ConnConfig::default() };
    let terms = ConnectionTerms {
        active: flags & 2 != 0,
        our_conn: OURS.0,
        our_token: OURS.1,
        peer_conn: 0xB0,
        peer_token: 0xBBBB,
        first_psn: Psn(FIRST[0]),
        peer_first_psn: Psn(FIRST[1]),
        ord: 2,
        ird: 2,
        credits: u32::from(flags >> 4),
        peer_window_kib: 64,
        mtu_ceiling: if flags & 4 != 0 { 1200 } else { 9000 },
        extensions: true,
        overhead: 0,
        seed: [3; 16],
        peer: address(2),
    };
    let memory = Memory { bytes: vec![0; MEMORY], shared: 0, taken: 0, requests_done: 0, recvs_done: 0 };
    let conn = Conn::new(&config, terms, 0);
    let mut peer = Peer { script, now: 0, conn, memory, posted: (0, 0), packet: Vec::new() };
    while !peer.script.is_empty() {
        peer.step();
        peer.check();
    }
    let Peer { now, mut conn, mut memory, posted, .. } = peer;
    let done = (memory.requests_done, memory.recvs_done);
    conn.abort(now, &mut memory);
    assert_eq!(
        (memory.requests_done, memory.recvs_done),
        (posted.0, posted.1 + memory.taken),
        "each request and receive completes once"
    );
    assert_eq!(conn.outstanding(), (0, 0));
    done
}

impl Peer<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.script.split_first() else { return 0 };
        self.script = rest;
        *byte
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn step(&mut self) {
        match self.byte() % 16 {
            0..6 => self.data(),
            6..8 => self.ack(),
            8 => self.control_packet(),
            9 => self.advance_time(),
            10 | 11 => self.post(),
            12 => self.post_recv(),
            13 => self.transmit(),
            14 => {
                let many = u32::from(self.byte());
                self.memory.shared = self.memory.shared.saturating_add(many).min(1000);
                self.conn.check_credits(&mut self.memory);
            }
            _ => match self.byte() {
                0 => self.conn.drain(self.now),
                1 => self.conn.abort(self.now, &mut self.memory),
                2 => self.conn.too_large(self.now, 600),
                _ => self.conn.on_icmp_error(self.now),
            },
        }
    }

    /// Passes a data packet whose PSN is near the malicious peer's first PSN.
    fn data(&mut self) {
        let (op, flags) = (self.byte(), self.byte());
        let ahead = i32::from(self.byte() as i8) * if flags & 0x80 != 0 { 60 } else { 1 };
        let ack = self.sent_ack();
        let carried = DataFields { psn: FIRST[1].wrapping_add_signed(ahead).into(), ack };
        let length = u32::from(self.short() % 3000);
        let payload = if flags & 0x40 != 0 { u32::from(self.short() % 3000) } else { length };
        let op_code = if op & 0x20 != 0 { 6 + op % 7 } else { op % 7 };
        let message = Message {
            op: op_code,
            spare: [op >> 6, 0, 0],
            id: u32::from(self.byte()).into(),
            length: length.into(),
            key: u32::from(op >> 6).into(),
            address: (BASE + u64::from(self.short())).into(),
        };
        let kind = match flags & 0x30 {
            0x30 => Kind::Piece,
            0x20 => Kind::Chunk,
            _ => Kind::Fragment,
        };
        let mut body = [carried.as_bytes(), message.as_bytes()].concat();
        body.extend((0..message.op().map_or(0, wire::Op::extension)).map(|_| self.byte()));
        if kind != Kind::Fragment {
            let offset = u32::from(self.short() % 3000);
            body.extend_from_slice(PayloadOffset::new(offset).as_bytes());
            if kind == Kind::Piece {
                let start = offset.saturating_sub(u32::from(self.byte()) * 8);
                let end = (offset + payload + u32::from(self.byte()) * 8).min(length);
                body.extend_from_slice(Extent { start: start.into(), end: end.into() }.as_bytes());
            }
        }
        let is_request = matches!(op_code, 4 | 9..=11);
        body.resize(body.len() + if is_request { 0 } else { payload as usize }, op);
        self.receive(kind, u16::from(flags & 3), &body);
    }

    /// Returns ack fields that are mostly valid.
    fn sent_ack(&mut self) -> AckFields {
        AckFields {
            next: FIRST[0].wrapping_add_signed(i32::from(self.byte() as i8)).into(),
            credits: u32::from(self.byte()).into(),
            delay: u16::from(self.byte()).into(),
            serial: 1.into(),
        }
    }

    fn ack(&mut self) {
        let (flags, count, refused) = (self.byte(), self.byte() % 5, self.byte());
        let ack = self.sent_ack();
        let refusal = if flags & 0x80 != 0 { refused % 6 } else { 0 };
        let refused = FIRST[0].wrapping_add(u32::from(refused)).into();
        let selective = SackFields { ranges: count, refusal, refused, ..SackFields::default() };
        let mut body = [ack.as_bytes(), selective.as_bytes()].concat();
        for _ in 0..count {
            let first = FIRST[0].wrapping_add_signed(i32::from(self.byte() as i8));
            let range = SackRange { first: first.into(), end: first.wrapping_add(u32::from(self.byte())).into() };
            body.extend_from_slice(range.as_bytes());
        }
        self.receive(Kind::Ack, u16::from(flags & 3), &body);
    }

    /// Passes a packet of any kind except Cookie and Reject to the connection. The script contains its kind, flags and
    /// body.
    fn control_packet(&mut self) {
        use Kind::*;
        let kinds = [
            Fragment, Chunk, Ack, Probe, ProbeAck, Challenge, Response, Request, Accept, Confirm, Fin, FinAck, Reset,
            Piece,
        ];
        let (kind, flags, length) = (self.byte(), self.byte(), usize::from(self.byte()));
        let body = self.script.get(..length.min(self.script.len())).unwrap_or_default().to_vec();
        self.script = &self.script[body.len()..];
        self.receive(kinds[usize::from(kind) % kinds.len()], u16::from(flags), &body);
    }

    fn receive(&mut self, kind: Kind, flags: u16, body: &[u8]) {
        let head = PacketHeader::new(kind, flags, OURS.0, OURS.1);
        let from = address(if flags & 0x10 != 0 { 3 } else { 2 });
        self.conn.receive(self.now, &head, body, from, &mut self.memory);
        self.conn.take_event();
    }

    fn advance_time(&mut self) {
        self.now += MICROS << (self.byte() % 26);
        self.conn.on_time(self.now, &mut self.memory);
        self.conn.take_event();
    }

    fn post(&mut self) {
        let (kind, flags, length) = (self.byte(), self.byte(), self.short() % 5000);
        if self.conn.outstanding().0 >= MOST {
            return;
        }
        let remote = Remote { key: 9, address: 1 << 40 };
        let solicited = flags & 1 != 0;
        let work = match kind % 5 {
            0 if flags & 4 != 0 => Some(Operation::WriteImmediate { remote, data: 5, solicited }),
            1 if flags & 4 != 0 => Some(Operation::SendInvalidate { key: 9, solicited }),
            3 if flags & 4 != 0 => Some(Operation::CompareSwap { remote, compare: 1, swap: 2 }),
            0 | 1 => Some(Operation::Send { solicited }),
            2 => Some(Operation::Write(remote)),
            3 => Some(Operation::Read(remote)),
            _ => None,
        };
        self.posted.0 += 1;
        let length = if matches!(work, Some(Operation::CompareSwap { .. })) { 8 } else { length };
        let post = Post { work, length: length.into(), fence: flags & 2 != 0 };
        self.conn.post(self.now, post, |own| *own = Buffer(usize::from(length)), &mut self.memory);
    }

    fn post_recv(&mut self) {
        let length = self.short() % 5000;
        if self.conn.outstanding().1 < MOST {
            self.posted.1 += 1;
            self.conn.post_recv(length.into(), |own| *own = Buffer(length.into()), &mut self.memory);
        }
    }

    /// Calls `Conn::transmit` until it returns no packet, and checks that it does so after a bounded number of packets.
    fn transmit(&mut self) {
        for count in 0.. {
            assert!(count <= 2 * WINDOW, "a transmit pass must end within 2 * WINDOW packets");
            self.packet.clear();
            let Some(out) = self.conn.transmit(self.now, &mut self.packet, &mut self.memory) else { break };
            assert_eq!(out.header, self.packet.len());
            match out.payload {
                Payload::Request { slot, offset, length } => {
                    let buffer = self.conn.request(slot).expect("the slot belongs to an active request").0;
                    assert!(
                        offset as usize + length as usize <= buffer,
                        "a packet must not read beyond the request's memory"
                    );
                }
                Payload::Remote { key, address, length, .. } => {
                    assert!(
                        KEYS.contains(&key) && self.memory.range(address, length as usize).is_some(),
                        "the key and range must belong to a granted window or registration"
                    );
                }
                Payload::None | Payload::Padding(_) => {}
            }
        }
        self.conn.take_event();
    }

    fn check(&mut self) {
        let (requests, recvs) = self.conn.outstanding();
        assert_eq!(requests + self.memory.requests_done, self.posted.0);
        assert_eq!(recvs + self.memory.recvs_done, self.posted.1 + self.memory.taken);
        assert!(requests <= MOST && recvs <= 64.max(MOST));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    use super::*;

    /// Number of mutations of each file of the corpus.
    const MUTATIONS: u64 = 2_000;

    fn corpus(of: &str) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/fuzz/corpus").join(of);
        let files = std::fs::read_dir(&folder).expect("the corpus directory is readable").flatten();
        let mut all: Vec<_> = files
            .map(|file| {
                (format!("{:?}", file.file_name()), std::fs::read(file.path()).expect("the corpus file is readable"))
            })
            .collect();
        all.sort();
        assert!(all.len() >= 8, "the corpus {folder:?} must have at least 8 files, not {}", all.len());
        all
    }

    /// Changes, removes, duplicates or inserts some bytes.
    fn mutate(bytes: &mut Vec<u8>, dice: &mut TestRandom) {
        for _ in 0..1 + dice.u32() % 8 {
            let at = dice.u32() as usize % (bytes.len() + 1);
            let end = (at + dice.u32() as usize % 24).min(bytes.len());
            match dice.u32() % 5 {
                0 if at < bytes.len() => bytes[at] = dice.u32() as u8,
                1 if at < bytes.len() => bytes[at] ^= 1 << (dice.u32() % 8),
                2 => drop(bytes.drain(at..end)),
                3 => bytes.extend_from_within(at..end),
                _ => {
                    let mut fresh = vec![0; dice.u32() as usize % 24];
                    dice.fill(&mut fresh);
                    bytes.splice(at..at, fresh);
                }
            }
        }
        bytes.truncate(4096);
    }

    fn replay(of: &str, property: fn(&[u8])) {
        for (place, (name, bytes)) in corpus(of).into_iter().enumerate() {
            let mut bytes = bytes;
            let first = bytes.clone();
            let more = std::env::var("DAPL_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok());
            for round in 0..more.unwrap_or(MUTATIONS) {
                let mut dice = TestRandom((place as u64) << 32 | round);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| property(&bytes))) {
                    panic!(
                        "{of}: mutation {round} of corpus file {name} panicked: {:?}\n{bytes:?}",
                        panic.downcast_ref::<String>()
                    );
                }
                if round % 16 == 0 {
                    bytes.clone_from(&first);
                }
                mutate(&mut bytes, &mut dice);
            }
        }
    }

    #[test]
    fn corpus_scripts_complete_requests_and_receives() {
        let scripts = corpus("usnic_peer");
        let of = |name: &str| {
            let (_, script) =
                scripts.iter().find(|(file, _)| file.contains(name)).expect("the corpus has a file of this name");
            run_script(script)
        };
        assert_eq!((of("receives"), of("behind-a-gap"), of("chunks")), ((0, 3), (0, 3), (0, 2)));
        assert_eq!((of("our-requests"), of("refused")), ((5, 0), (2, 0)));
        assert_eq!((of("aborted"), of("ended-by-the-peer")), ((2, 3), (1, 1)));
    }

    #[test]
    fn packet_properties_hold_for_the_mutated_corpus() {
        replay("usnic_packet", packet);
    }

    #[test]
    fn script_properties_hold_for_the_mutated_corpus() {
        replay("usnic_peer", peer);
    }
}
