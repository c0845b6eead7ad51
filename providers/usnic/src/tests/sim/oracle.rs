//! Checks the completions and memory contents that the two consumers of a connection observe.
//!
//! `host` implements the callbacks of both ends of the connection (`ConnCallbacks`). The callbacks check that each call
//! keeps the guarantees of DAT. The payload of each message is a slice of one table of random bytes, so each expected
//! byte is known.

mod host;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::OnceLock;

use dapl::provider::{ATOMIC_SIZE, ConnectionEvent, ReceivedOp, Remote, Status};
use dapl_software::memory::atomic::Atomic;

pub(super) use self::host::OracleHost;
use super::random::TestRandom;
use super::scenario::{Item, LONGEST, OpKind};
use crate::proto::conn::{Operation, SendValue};

const TABLE: usize = 1 << 20;
/// Key of the read-only memory.
const SOURCE_KEY: u32 = 0x5EED;
/// A key that no memory has.
const UNKNOWN_KEY: u32 = 0xBAD;
/// Key and address of the 64-bit word for atomic operations.
const ATOMIC_KEY: u32 = 0xA70;
const ATOMIC_ADDRESS: u64 = 0x7000;
/// Key of the memory window that each send with invalidate names.
const WINDOW_KEY: u32 = 0x17D0;
/// Offset of a buffer from the multiple of 4 GiB that its index selects. Also the address of the read-only memory.
const BEGIN: u64 = 0x40;

fn table() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut dice = TestRandom::new(7);
        (0..TABLE / 8).flat_map(|_| dice.next().to_ne_bytes()).collect()
    })
}

/// Returns `length` bytes of the table, starting at `pattern + offset`.
fn bytes(pattern: u32, offset: usize, length: usize) -> &'static [u8] {
    &table()[pattern as usize + offset..][..length]
}

/// A posted request.
#[derive(Debug)]
pub(super) struct OracleRequest {
    pub(super) kind: OpKind,
    pub(super) length: u32,
    fence: bool,
    solicited: bool,
    pattern: u32,
    /// Index of the destination buffer: local for a read or an atomic operation, at the peer for a write.
    area: usize,
    /// Number of times that `execute_bind` defers a bind before it succeeds.
    deferrals: u32,
    pub(super) status: Option<Status>,
}

/// A buffer to which one request writes.
#[derive(Debug)]
struct WrittenBuffer {
    bytes: Vec<u8>,
    pattern: u32,
    /// Whether the peer may access the buffer.
    open: bool,
    /// Whether the request is complete, so that the buffer must not change any more.
    done: bool,
}

/// The oracle's data in a request of `Conn`.
#[derive(Debug, Default)]
pub(super) struct RequestIndex {
    index: usize,
}

/// The oracle's data in a receive of `Conn`.
#[derive(Debug, Default)]
pub(super) struct PostedRecv {
    id: u64,
    buffer: RefCell<Vec<u8>>,
}

/// Shared receive queue of a process. Contains the length of each receive.
#[derive(Debug, Default)]
pub(super) struct Pool {
    lengths: VecDeque<u32>,
    /// Whether receives were added since the connections were last notified.
    pub(super) has_new: bool,
}

impl Pool {
    pub(super) fn put(&mut self, length: u32) {
        self.lengths.push_back(length);
        self.has_new = true;
    }

    pub(super) fn len(&self) -> u32 {
        self.lengths.len() as u32
    }
}

/// Requests, receives, memory and events of one side's consumer.
#[derive(Debug, Default)]
pub(super) struct ConsumerState {
    pub(super) entries: Vec<OracleRequest>,
    pub(super) done: usize,
    /// Indexes of the entries that are sends.
    pub(super) sends: Vec<usize>,
    pub(super) posted_recvs: u64,
    pub(super) done_recvs: u64,
    pub(super) failed_recvs: Vec<Status>,
    /// Number of messages of the peer that have arrived.
    pub(super) received: usize,
    /// Number of requests of the peer, from the first, whose effects were found in order. They need no further check.
    verified: usize,
    areas: Vec<WrittenBuffer>,
    pub(super) events: Vec<ConnectionEvent>,
    has_failed: bool,
    has_failed_request: bool,
    /// The word that atomic operations of the peer change.
    word: u64,
    /// Results of the peer's atomic operations, in order: the values before each operation.
    found: Vec<u64>,
    /// Atomic operations that the peer has posted, in order, with the indexes of their requests.
    atomics: Vec<(usize, Atomic)>,
    /// Number of times that a send with invalidate of the peer unbound the window.
    invalidated: usize,
}

/// Expected and observed state of one connection.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) sides: [ConsumerState; 2],
    /// Whether packets may be corrupted without authentication. In this case contents and their order are not checked.
    pub(super) loose: bool,
    dice: TestRandom,
}

impl Oracle {
    pub(super) fn new(seed: u64, loose: bool) -> Rc<RefCell<Oracle>> {
        Rc::new(RefCell::new(Oracle { sides: Default::default(), loose, dice: TestRandom::new(seed) }))
    }

    /// Records a request that the consumer of `side` posts. Returns its operation, its length, and the data to store in
    /// it.
    pub(super) fn post(&mut self, side: usize, item: &Item) -> (Option<Operation>, u32, RequestIndex) {
        let [here, there] = if side == 0 { [0, 1] } else { [1, 0] };
        let Item { fence, solicited, .. } = *item;
        let mut length = match item.kind {
            OpKind::Bind => 0,
            OpKind::Atomic => ATOMIC_SIZE as u32,
            bad if bad.is_bad() => item.length.max(1),
            _ => item.length,
        };
        let mut pattern = self.dice.below((TABLE - LONGEST as usize - 1) as u64) as u32;
        let index = self.sides[here].entries.len();
        let mut kind = item.kind;
        let back = self.sides[here].entries.iter().rfind(|entry| entry.kind == OpKind::Write).map(|entry| entry.area);
        if kind == OpKind::ReadBack && back.is_none() {
            kind = OpKind::Read;
        }
        let mut area = 0;
        let work = match kind {
            OpKind::Send | OpKind::LongSend | OpKind::BadSource => Some(Operation::Send { solicited }),
            OpKind::Bind => None,
            OpKind::SendImmediate => Some(Operation::SendImmediate { data: pattern, solicited }),
            OpKind::SendInvalidate => Some(Operation::SendInvalidate { key: WINDOW_KEY, solicited }),
            OpKind::WriteImmediate => {
                area = self.sides[there].open(length, pattern);
                let remote = remote(area as u32 + 1, address(area));
                Some(Operation::WriteImmediate { remote, data: pattern, solicited })
            }
            OpKind::Atomic => {
                area = self.sides[here].close(length, 0);
                // All operands differ, so `execute` detects an operation that is executed twice, never or out of order.
                let (add, word) = (u64::from(pattern) << 20 | index as u64, self.sides[there].word);
                let remote = remote(ATOMIC_KEY, ATOMIC_ADDRESS);
                let swap = Operation::CompareSwap { remote, compare: word, swap: add };
                let work = if solicited { swap } else { Operation::FetchAdd { remote, add } };
                self.sides[there].atomics.extend(Atomic::of(work).map(|(operation, _)| (index, operation)));
                Some(work)
            }
            OpKind::Write => {
                area = self.sides[there].open(length, pattern);
                Some(Operation::Write(remote(area as u32 + 1, address(area))))
            }
            OpKind::BadWrite => Some(Operation::Write(remote(UNKNOWN_KEY, address(1)))),
            OpKind::Read => {
                pattern %= LONGEST;
                length = length.min(LONGEST - pattern);
                area = self.sides[here].close(length, pattern);
                Some(Operation::Read(remote(SOURCE_KEY, BEGIN + u64::from(pattern))))
            }
            OpKind::ReadBack => {
                let target = back.unwrap_or_default();
                let from = &self.sides[there].areas[target];
                length = length.min(from.bytes.len() as u32);
                pattern = from.pattern;
                area = self.sides[here].close(length, pattern);
                Some(Operation::Read(remote(target as u32 + 1, address(target))))
            }
            OpKind::BadRead => {
                area = self.sides[here].close(length, 0);
                Some(Operation::Read(remote(UNKNOWN_KEY, address(1))))
            }
        };
        let side = &mut self.sides[here];
        if kind.is_send() {
            side.sends.push(index);
        }
        let deferrals = self.dice.below(3) as u32;
        side.entries.push(OracleRequest { kind, length, fence, solicited, pattern, area, deferrals, status: None });
        (work, length, RequestIndex { index })
    }

    /// Returns a part of a request's payload, or `None` if its memory is unreadable.
    pub(super) fn source(&self, side: usize, request: &RequestIndex, offset: u32, length: u32) -> Option<&[u8]> {
        let entry = &self.sides[side].entries[request.index];
        assert!(entry.status.is_none(), "a request must not be sent after its completion");
        assert!(offset + length <= entry.length, "a packet must not read beyond the request's memory");
        (entry.kind != OpKind::BadSource).then(|| bytes(entry.pattern, offset as usize, length as usize))
    }

    /// Returns the memory that a request of the peer addresses, or `None` if the key or the range is invalid.
    pub(super) fn remote(&self, side: usize, key: u32, address: u64, length: u32) -> Option<&[u8]> {
        if key == SOURCE_KEY {
            let start = address.checked_sub(BEGIN)?;
            let is_there = start.checked_add(u64::from(length))? <= u64::from(LONGEST);
            return is_there.then(|| bytes(0, start as usize, length as usize));
        }
        let (area, start) = self.sides[side].find(key, address, length)?;
        Some(&self.sides[side].areas[area].bytes[start..][..length as usize])
    }

    /// Checks a received message, and that the writes that its sender posted before it are in place. A fenced message
    /// also follows the sender's earlier reads and atomic operations.
    fn check_message(&mut self, side: usize, length: u64, value: SendValue, buffer: &[u8]) {
        let other = 1 - side;
        let number = self.sides[side].received;
        self.sides[side].received += 1;
        if self.loose {
            return;
        }
        let index = *self.sides[other].sends.get(number).expect("each received message was posted by the peer");
        let entry = &self.sides[other].entries[index];
        assert_eq!(
            (u64::from(entry.length), entry.solicited),
            (length, value.solicited),
            "message {number} arrived with a wrong length, flag, type or value"
        );
        let wanted = match entry.kind {
            OpKind::Send => (ReceivedOp::Send, 0),
            OpKind::SendImmediate => (ReceivedOp::SendImmediate, entry.pattern),
            OpKind::SendInvalidate => (ReceivedOp::SendInvalidate, WINDOW_KEY),
            OpKind::WriteImmediate => (ReceivedOp::WriteImmediate, entry.pattern),
            kind => panic!("a {kind:?} request must not be delivered as a message"),
        };
        assert_eq!(
            (value.arrival, value.value),
            wanted,
            "message {number} arrived with a wrong length, flag, type or value"
        );
        if entry.kind == OpKind::WriteImmediate {
            assert!(
                self.sides[side].areas[entry.area].is_whole(),
                "an RDMA write with immediate data completed before its data was in place"
            );
        } else {
            assert!(
                buffer[..length as usize] == *bytes(entry.pattern, 0, length as usize),
                "the bytes of message {number} differ"
            );
        }
        let kinds = self.sides[other].sends[..=number].iter().map(|index| self.sides[other].entries[*index].kind);
        let invalidations = kinds.filter(|kind| *kind == OpKind::SendInvalidate).count();
        assert_eq!(
            self.sides[side].invalidated, invalidations,
            "each send with invalidate must unbind its window once, before its completion"
        );
        // Only a fenced request waits for earlier atomic operations, as for earlier reads.
        let next = self.sides[side].atomics.get(self.sides[side].found.len());
        let is_behind = next.is_none_or(|(next, _)| *next > index);
        assert!(is_behind || !entry.fence, "a fenced message overtook an atomic operation");
        let entry = &self.sides[other].entries[index];
        for earlier in &self.sides[other].entries[self.sides[side].verified..index] {
            match earlier.kind {
                OpKind::Write | OpKind::WriteImmediate => {
                    assert!(self.sides[side].areas[earlier.area].is_whole(), "a message overtook an earlier write");
                }
                OpKind::Read | OpKind::ReadBack if entry.fence => {
                    assert!(
                        self.sides[other].areas[earlier.area].is_whole(),
                        "a fenced message overtook an earlier read"
                    );
                }
                _ => {}
            }
        }
        // A message without a fence does not wait for reads, so later messages check unfinished reads again.
        let before = &self.sides[other].entries[..index];
        let verified = before
            .iter()
            .position(|entry| matches!(entry.kind, OpKind::Read | OpKind::ReadBack) && entry.status.is_none());
        self.sides[side].verified = verified.unwrap_or(index).max(self.sides[side].verified);
    }

    fn check_success(&mut self, side: usize, index: usize, done: u64) {
        let OracleRequest { kind, length, area, .. } = self.sides[side].entries[index];
        assert_eq!(done, u64::from(length), "wrong number of bytes in the completion of request {index}");
        if self.loose {
            return;
        }
        assert!(!kind.is_bad(), "an invalid {kind:?} request must fail");
        let memory = match kind {
            OpKind::Write | OpKind::WriteImmediate => &mut self.sides[1 - side].areas[area],
            OpKind::Atomic => {
                let ordinal = self.sides[1 - side].atomics.iter().position(|(posted, _)| *posted == index);
                let found = ordinal.and_then(|ordinal| self.sides[1 - side].found.get(ordinal).copied());
                let memory = &mut self.sides[side].areas[area];
                let came = memory.bytes.first_chunk().copied().map(u64::from_ne_bytes);
                assert!(
                    found.is_some() && came == found,
                    "atomic operation {index} returned {came:?}, but the memory contained {found:?}"
                );
                memory.done = true;
                return;
            }
            OpKind::Read | OpKind::ReadBack => &mut self.sides[side].areas[area],
            _ => return,
        };
        assert!(memory.is_whole(), "{kind:?} request {index} completed before all its data was in place");
        memory.done = true;
    }
}

impl ConsumerState {
    fn open(&mut self, length: u32, pattern: u32) -> usize {
        self.areas.push(WrittenBuffer { bytes: vec![0; length as usize], pattern, open: true, done: false });
        self.areas.len() - 1
    }

    fn close(&mut self, length: u32, pattern: u32) -> usize {
        let area = self.open(length, pattern);
        self.areas[area].open = false;
        area
    }

    /// Returns the index of the buffer that the peer's key and address select, and the offset in it.
    fn find(&self, key: u32, at: u64, length: u32) -> Option<(usize, usize)> {
        let index = (key as usize).checked_sub(1)?;
        let area = self.areas.get(index).filter(|area| area.open)?;
        let start = at.checked_sub(address(index))?;
        let is_within = start.checked_add(u64::from(length))? <= area.bytes.len() as u64;
        is_within.then_some((index, start as usize))
    }
}

impl WrittenBuffer {
    fn is_whole(&self) -> bool {
        self.bytes == *bytes(self.pattern, 0, self.bytes.len())
    }

    fn put(&mut self, start: usize, piece: &[u8], loose: bool) {
        if !loose {
            assert!(!self.done, "memory must not be written after the request has completed");
            assert!(
                *piece == *bytes(self.pattern, start, piece.len()),
                "the written bytes differ from those that were sent"
            );
        }
        self.bytes[start..][..piece.len()].copy_from_slice(piece);
    }
}

fn remote(key: u32, address: u64) -> Remote {
    Remote { key, address }
}

fn address(area: usize) -> u64 {
    ((area as u64 + 1) << 32) + BEGIN
}
