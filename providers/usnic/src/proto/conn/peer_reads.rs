//! Read requests and atomic operations of the peer. They are accepted in PSN order, and answered in the order of their
//! numbers (UR-4).
//!
//! The location of the data is stored for retransmissions until the peer has acked all data. The peer may have the
//! agreed number of reads unanswered. The same number of answered reads may wait for acks.

use std::collections::VecDeque;

use dapl_software::memory::atomic::Atomic;

use super::requests::{PayloadOwner, SentPayload};
use crate::proto::Nanos;
use crate::proto::psn::Psn;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    /// Whether the request has arrived.
    has_arrived: bool,
    /// PSN of the request.
    pub(super) psn: Psn,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) length: u32,
    /// Number of bytes sent. `sent`: all bytes were sent. `out`: number of packets that are not acked.
    sent_bytes: u32,
    sent: bool,
    out: u32,
    /// The atomic operation, and the previous value after its execution; `None` for a read.
    atomic: Option<Atomic>,
    found: Option<u64>,
    /// Time at which a retransmission found the memory unreadable for the first time.
    unreadable_since: Option<Nanos>,
}

impl Read {
    pub(super) fn is_atomic(&self) -> bool {
        self.atomic.is_some()
    }

    /// Returns the previous value, after an atomic operation was executed.
    pub(super) fn found(&self) -> Option<u64> {
        self.found
    }
}

/// Result of adding a read request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadAdmission {
    Accepted,
    /// There is no space for the request until an ack arrives.
    Deferred,
    /// The request is invalid: more reads than agreed, or a number that was used before.
    Invalid,
}

#[derive(Debug)]
pub(super) struct PeerReads {
    /// Reads, starting with the oldest read whose data is not fully acked.
    reads: VecDeque<Read>,
    first: u32,
    /// Number of reads at the front of `reads` whose data was sent completely.
    sent: usize,
    most: usize,
    /// Number of atomic operations that were not executed yet.
    atomics: u32,
    /// Number of the first read whose memory could not be read. This read and later reads are not answered.
    gone: Option<u32>,
}

impl PeerReads {
    /// Creates the set for a peer that may have `ird` reads outstanding.
    pub(super) fn new(ird: u32) -> Self {
        PeerReads { reads: VecDeque::new(), first: 0, sent: 0, most: ird as usize, atomics: 0, gone: None }
    }

    #[cfg(test)]
    pub(super) fn count_from(&mut self, number: u32) {
        self.first = number;
    }

    /// Whether the peer has received all data that it requested.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether the peer lacks data of reads that it requested before the packet with this PSN. Later requests of the
    /// peer must wait for this data.
    pub(super) fn has_before(&self, psn: Psn) -> bool {
        self.reads.iter().any(|read| read.has_arrived && read.psn.is_before(psn))
    }

    fn place(&self, id: u32) -> usize {
        id.wrapping_sub(self.first) as usize
    }

    /// Returns the read with this number.
    pub(super) fn get(&self, id: u32) -> Option<&Read> {
        self.reads.get(self.place(id)).filter(|read| read.has_arrived)
    }

    /// Adds an atomic operation on memory that the peer may access, as `add` does. Its answer has no payload.
    pub(super) fn add_atomic(&mut self, id: u32, psn: Psn, key: u32, address: u64, operation: Atomic) -> ReadAdmission {
        let admission = self.add(id, psn, key, address, 0);
        let place = self.place(id);
        if admission == ReadAdmission::Accepted
            && let Some(read) = self.reads.get_mut(place)
        {
            read.atomic = Some(operation);
            self.atomics += 1;
        }
        admission
    }

    /// Whether atomic operations wait for their execution.
    pub(super) fn has_atomics(&self) -> bool {
        self.atomics > 0
    }

    /// Returns the next request to answer, if it is an atomic operation that was not executed and no packet before it
    /// is missing.
    pub(super) fn due(&self, next: Psn) -> Option<(u32, Read, Atomic)> {
        let read = self.reads.get(self.sent).filter(|read| read.has_arrived && read.psn.is_before(next))?;
        let id = self.first.wrapping_add(self.sent as u32);
        let operation = read.atomic.filter(|_| read.found.is_none() && !self.is_gone(id))?;
        Some((id, *read, operation))
    }

    pub(super) fn executed(&mut self, id: u32, found: u64) {
        let place = self.place(id);
        if let Some(read) = self.reads.get_mut(place) {
            read.found = Some(found);
            self.atomics = self.atomics.saturating_sub(1);
        }
    }

    /// Adds a read request on memory that the peer may access.
    pub(super) fn add(&mut self, id: u32, psn: Psn, key: u32, address: u64, length: u32) -> ReadAdmission {
        let place = self.place(id);
        if place >= self.sent + self.most || self.get(id).is_some() {
            return ReadAdmission::Invalid;
        }
        if place >= 2 * self.most {
            return ReadAdmission::Deferred;
        }
        if self.reads.len() <= place {
            self.reads.resize(place + 1, Read::default());
        }
        self.reads[place] = Read { has_arrived: true, psn, key, address, length, ..Read::default() };
        ReadAdmission::Accepted
    }

    /// Returns the next packet of a response. A read is not answered while a packet before it is missing.
    pub(super) fn next(&self, next: Psn, fragment: u32, chunk: u32) -> Option<SentPayload> {
        let read = self.reads.get(self.sent).filter(|read| read.has_arrived && read.psn.is_before(next))?;
        let left = read.length - read.sent_bytes;
        let length = if read.sent_bytes == 0 && left <= fragment { left } else { left.min(chunk) };
        let slot = self.first.wrapping_add(self.sent as u32);
        if self.is_gone(slot) || read.is_atomic() && read.found.is_none() {
            return None;
        }
        Some(SentPayload {
            what: PayloadOwner::Response,
            command: false,
            slot,
            offset: read.sent_bytes,
            length,
            in_pieces: false,
        })
    }

    /// Records that a packet returned by `next` was sent.
    pub(super) fn left(&mut self, sent: &SentPayload) {
        let Some(read) = self.reads.get_mut(self.sent) else { return };
        read.sent_bytes += sent.length;
        read.out += 1;
        read.sent = read.sent_bytes == read.length;
        self.sent += usize::from(read.sent);
    }

    /// Records that the peer has received a packet of the response to this read.
    pub(super) fn acked(&mut self, id: u32) {
        let place = self.place(id);
        if let Some(read) = self.reads.get_mut(place) {
            read.out = read.out.saturating_sub(1);
        }
        while self.gone != Some(self.first) && self.reads.front().is_some_and(|read| read.sent && read.out == 0) {
            self.reads.pop_front();
            self.first = self.first.wrapping_add(1);
            self.sent -= 1;
        }
    }

    /// Returns the time since a retransmission found the memory of this read unreadable for the first time; 0 in the
    /// first call.
    pub(super) fn unreadable_for(&mut self, id: u32, now: Nanos) -> Nanos {
        let place = self.place(id);
        self.reads.get_mut(place).map_or(0, |read| now.saturating_sub(*read.unreadable_since.get_or_insert(now)))
    }

    /// Records that the memory of a read cannot be read. Only the first such read is recorded.
    pub(super) fn lose(&mut self, id: u32) {
        if self.get(id).is_some() && !self.is_gone(id) {
            self.gone = Some(id);
        }
    }

    /// Whether the memory of this read, or of an earlier read, cannot be read.
    pub(super) fn is_gone(&self, id: u32) -> bool {
        self.gone.is_some_and(|gone| self.place(id) >= self.place(gone))
    }

    /// Returns the PSN of the request whose memory cannot be read, after the peer has received the data of all earlier
    /// reads.
    pub(super) fn refusable(&self) -> Option<Psn> {
        let gone = self.gone.filter(|gone| *gone == self.first)?;
        self.get(gone).map(|read| read.psn)
    }

    pub(super) fn clear(&mut self) {
        self.reads.clear();
        (self.sent, self.atomics, self.gone) = (0, 0, None);
    }
}
