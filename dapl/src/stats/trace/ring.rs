//! The ring of a trace: the last posts, each with its completion. A new post overwrites the oldest one.
//!
//! Posting threads and completing threads write concurrently, without waiting. All fields are atomics, and a record is
//! valid while it contains its number. Times are parameters.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::TracedPost;
use crate::provider::{Completion, Status, Token, Work};

/// A ring of the last posts.
#[derive(Debug)]
pub(super) struct TraceRing {
    /// The records. Their number is a power of two.
    records: Box<[TraceRecord]>,
    /// Number of posts so far.
    posts: AtomicU64,
}

/// The record of one post. It fills a cache line, so that threads that write different records do not share one.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TraceRecord {
    /// Number of the post, from 1; 0 while the record is written.
    number: AtomicU64,
    begun: AtomicU64,
    cookie: AtomicU64,
    /// Kind of work in bits 0 to 7, suppressed in bit 8, number of segments from bit 16, remote key from bit 32.
    what: AtomicU64,
    bytes: AtomicU64,
    address: AtomicU64,
    /// Completion time in nanoseconds; 0 while the work is in flight.
    ended: AtomicU64,
    /// Status in bits 0 to 7, number of transferred bytes from bit 8.
    end: AtomicU64,
}

/// A copy of a record, from which a dump is composed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TraceEntry {
    pub(super) number: u64,
    /// Time of the post in nanoseconds.
    pub(super) begun: u64,
    pub(super) cookie: u64,
    pub(super) work: Work,
    pub(super) suppress: bool,
    pub(super) segments: usize,
    pub(super) bytes: u64,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) end: Option<PostEnd>,
}

/// How and when a post ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PostEnd {
    pub(super) at: u64,
    /// Status of the completion; `None` if the provider refused the post.
    pub(super) status: Option<Status>,
    pub(super) bytes: u64,
}

const SUPPRESS: u64 = 1 << 8;
const REFUSED: u64 = 0xFF;

impl TraceRing {
    /// Creates a ring with `length` records, rounded up to a power of two.
    pub(super) fn new(length: usize) -> Self {
        let records = (0..length.next_power_of_two()).map(|_| TraceRecord::default()).collect();
        TraceRing { records, posts: AtomicU64::new(0) }
    }

    /// Records a post. Returns the low half of its number, which is not 0.
    pub(super) fn post(&self, post: &TracedPost<'_>, now: u64) -> u32 {
        let mut number = self.posts.fetch_add(1, Ordering::Relaxed) + 1;
        if number as u32 == 0 {
            number = self.posts.fetch_add(1, Ordering::Relaxed) + 1;
        }
        let record = self.at(number);
        let (key, address) = post.remote.map_or((0, 0), |remote| (remote.key, remote.address));
        let suppress = if post.suppress { SUPPRESS } else { 0 };
        let segments = post.segments.len().min(0xFFFF) as u64;
        record.number.store(0, Ordering::Relaxed);
        // Pairs with the fence in `read`: a reader that sees one of the following stores also sees that the number has
        // changed.
        fence(Ordering::Release);
        record.begun.store(now, Ordering::Relaxed);
        record.cookie.store(post.cookie, Ordering::Relaxed);
        record.what.store(post.work as u64 | suppress | segments << 16 | u64::from(key) << 32, Ordering::Relaxed);
        let bytes = post.segments.iter().fold(0u64, |sum, segment| sum.wrapping_add(segment.length));
        record.bytes.store(bytes, Ordering::Relaxed);
        record.address.store(address, Ordering::Relaxed);
        record.ended.store(0, Ordering::Relaxed);
        // Pairs with the Acquire in `read` and `finish`: the record is written before its number.
        record.number.store(number, Ordering::Release);
        number as u32
    }

    /// Records that the provider refused the post.
    pub(super) fn refuse(&self, post: u32, now: u64) {
        self.finish(post, REFUSED, now);
    }

    /// Records the completion of a post, if the post is still in the ring. A receive from an SRQ gets a new record,
    /// since it was not posted to the EP.
    pub(super) fn complete(&self, done: &Completion, now: u64) {
        let Token { work, cookie, post, .. } = done.token;
        let post = match work {
            Work::SharedRecv => {
                self.post(&TracedPost { work, cookie, segments: &[], remote: None, suppress: false }, now)
            }
            _ => post,
        };
        self.finish(post, done.status as u64 | done.bytes << 8, now);
    }

    fn finish(&self, post: u32, end: u64, now: u64) {
        let record = self.at(u64::from(post));
        if record.number.load(Ordering::Acquire) as u32 == post {
            record.end.store(end, Ordering::Relaxed);
            // Pairs with the Acquire in `TraceRecord::end`: the status is written before the time.
            record.ended.store(now.max(1), Ordering::Release);
        }
    }

    /// Copies of all valid records, oldest first.
    pub(super) fn read(&self) -> Vec<TraceEntry> {
        let last = self.posts.load(Ordering::Relaxed);
        let first = last.saturating_sub(self.records.len() as u64);
        (first + 1..=last).filter_map(|number| self.at(number).read(number)).collect()
    }

    /// Time of the oldest of the last `count` requests. If `count` requests are outstanding, they are the last ones,
    /// because the provider completes requests in order.
    pub(super) fn oldest_request(&self, count: u32) -> Option<u64> {
        let entries = self.read();
        let requests = entries.iter().rev().filter(|entry| entry.is_request() && !entry.is_refused());
        requests.take(count as usize).last().map(|entry| entry.begun)
    }

    fn at(&self, number: u64) -> &TraceRecord {
        &self.records[number as usize & (self.records.len() - 1)]
    }
}

impl TraceRecord {
    /// Returns the entry of post `number`, unless the record is being written or has been overwritten.
    fn read(&self, number: u64) -> Option<TraceEntry> {
        // Pairs with the Release in `post`.
        if self.number.load(Ordering::Acquire) != number {
            return None;
        }
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let what = get(&self.what);
        let entry = TraceEntry {
            number,
            begun: get(&self.begun),
            cookie: get(&self.cookie),
            work: Work::ALL.get(usize::from(what as u8)).copied().unwrap_or_default(),
            suppress: what & SUPPRESS != 0,
            segments: (what >> 16 & 0xFFFF) as usize,
            bytes: get(&self.bytes),
            key: (what >> 32) as u32,
            address: get(&self.address),
            end: self.end(),
        };
        // Pairs with the fence in `post`.
        fence(Ordering::Acquire);
        (get(&self.number) == number).then_some(entry)
    }

    fn end(&self) -> Option<PostEnd> {
        // Pairs with the Release in `finish`.
        let at = self.ended.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Relaxed);
        let status = Status::ALL.iter().copied().find(|status| *status as u8 == end as u8);
        (at != 0).then_some(PostEnd { at, status, bytes: end >> 8 })
    }
}

impl TraceEntry {
    pub(super) fn is_request(&self) -> bool {
        !matches!(self.work, Work::Recv | Work::SharedRecv)
    }

    fn is_refused(&self) -> bool {
        self.end.is_some_and(|end| end.status.is_none())
    }
}
