//! Read requests and atomic operations of the peer ("reads"). Responses are sent in the order of their numbers (UR-4).
//!
//! A read stays stored until the peer has acked its whole response, which may need retransmissions. The agreed maximum
//! number (`ird`) applies to reads whose data was not sent completely. At most twice as many reads are stored,
//! including those whose responses wait for acks.

use std::collections::VecDeque;

use dapl_software::memory::atomic::Atomic;

use super::requests::{PayloadOwner, SentPayload};
use super::types::{INVALID_REQUEST, NotAccepted};
use crate::proto::Nanos;
use crate::proto::psn::Psn;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerRead {
    /// Whether the request has arrived.
    has_arrived: bool,
    /// PSN of the request.
    pub(super) psn: Psn,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) length: u32,
    /// Number of response bytes that were sent.
    sent_bytes: u32,
    /// Whether all response bytes were sent.
    sent: bool,
    /// Number of response packets that were sent and not acked.
    unacked: u32,
    /// The atomic operation, or `None` for a read.
    atomic: Option<Atomic>,
    /// Result of the atomic operation after its execution.
    pub(super) previous_value: Option<u64>,
    /// Time at which a retransmission first failed because the memory was unreadable.
    unreadable_since: Option<Nanos>,
}

impl PeerRead {
    pub(super) fn is_atomic(&self) -> bool {
        self.atomic.is_some()
    }
}

#[derive(Debug)]
pub(super) struct PeerReads {
    /// Reads, starting with the oldest one whose response was not acked completely.
    reads: VecDeque<PeerRead>,
    first: u32,
    /// Number of reads at the front of `reads` whose response was sent completely.
    sent: usize,
    max_reads: usize,
    /// Number of atomic operations that were not executed yet.
    atomics: u32,
    /// Number of the first read whose memory is unreadable. This read and later ones get no response.
    unreadable: Option<u32>,
}

impl PeerReads {
    /// `ird` is the maximum number of outstanding reads of the peer.
    pub(super) fn new(ird: u32) -> Self {
        PeerReads { reads: VecDeque::new(), first: 0, sent: 0, max_reads: ird as usize, atomics: 0, unreadable: None }
    }

    #[cfg(test)]
    pub(super) fn count_from(&mut self, number: u32) {
        self.first = number;
    }

    /// Whether the peer has acked the responses to all reads.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether a read that was requested before the packet with this PSN is incomplete. A refusal of this packet must
    /// wait until the peer has acked the response to such a read.
    pub(super) fn has_before(&self, psn: Psn) -> bool {
        self.reads.iter().any(|read| read.has_arrived && read.psn.is_before(psn))
    }

    fn index(&self, id: u32) -> usize {
        id.wrapping_sub(self.first) as usize
    }

    /// Returns the read with this number, if its request has arrived.
    pub(super) fn request(&self, id: u32) -> Option<&PeerRead> {
        self.reads.get(self.index(id)).filter(|read| read.has_arrived)
    }

    /// Whether atomic operations are waiting to be executed.
    pub(super) fn has_atomics(&self) -> bool {
        self.atomics > 0
    }

    /// Returns the next atomic operation if it can be executed: it was not executed yet, all earlier responses were
    /// sent, all packets before it have arrived, and its memory is accessible. `next` is the first PSN that has not
    /// arrived.
    pub(super) fn due_atomic(&self, next: Psn) -> Option<(u32, PeerRead, Atomic)> {
        let read = self.reads.get(self.sent).filter(|read| read.has_arrived && read.psn.is_before(next))?;
        let id = self.first.wrapping_add(self.sent as u32);
        let operation = read.atomic.filter(|_| read.previous_value.is_none() && !self.is_unreadable(id))?;
        Some((id, *read, operation))
    }

    pub(super) fn record_executed(&mut self, id: u32, previous_value: u64) {
        let index = self.index(id);
        if let Some(read) = self.reads.get_mut(index) {
            read.previous_value = Some(previous_value);
            self.atomics = self.atomics.saturating_sub(1);
        }
    }

    /// Adds a read, or an atomic operation, whose `length` is 0. The caller has checked the peer's access to the memory.
    ///
    /// Errors: [`INVALID_REQUEST`] if the peer has more reads outstanding than agreed, or has used a number twice;
    /// `Later` if there is no space for the request until responses are acked. The peer will retransmit it.
    pub(super) fn add(
        &mut self,
        id: u32,
        psn: Psn,
        key: u32,
        address: u64,
        length: u32,
        atomic: Option<Atomic>,
    ) -> Result<(), NotAccepted> {
        let index = self.index(id);
        if index >= self.sent + self.max_reads || self.request(id).is_some() {
            return Err(INVALID_REQUEST);
        }
        if index >= 2 * self.max_reads {
            return Err(NotAccepted::Later);
        }
        if self.reads.len() <= index {
            self.reads.resize(index + 1, PeerRead::default());
        }
        self.reads[index] = PeerRead { has_arrived: true, psn, key, address, length, atomic, ..PeerRead::default() };
        self.atomics += u32::from(atomic.is_some());
        Ok(())
    }

    /// Returns the next packet of a response, if all packets before the request have arrived, and the memory is not
    /// marked as unreadable. The response to an atomic operation also needs the result of its execution. `next` is the
    /// first PSN that has not arrived.
    pub(super) fn next(&self, next: Psn, fragment: u32, chunk: u32) -> Option<SentPayload> {
        let read = self.reads.get(self.sent).filter(|read| read.has_arrived && read.psn.is_before(next))?;
        let left = read.length - read.sent_bytes;
        let length = if read.sent_bytes == 0 && left <= fragment { left } else { left.min(chunk) };
        let slot = self.first.wrapping_add(self.sent as u32);
        if self.is_unreadable(slot) || read.is_atomic() && read.previous_value.is_none() {
            return None;
        }
        Some(SentPayload::new(PayloadOwner::Response, slot, read.sent_bytes, length))
    }

    /// Records that a packet returned by `next` was sent.
    pub(super) fn record_sent(&mut self, sent: &SentPayload) {
        let Some(read) = self.reads.get_mut(self.sent) else { return };
        read.sent_bytes += sent.length;
        read.unacked += 1;
        read.sent = read.sent_bytes == read.length;
        self.sent += usize::from(read.sent);
    }

    /// Records that a packet of the response to this read was acked.
    pub(super) fn acked(&mut self, id: u32) {
        let index = self.index(id);
        if let Some(read) = self.reads.get_mut(index) {
            read.unacked = read.unacked.saturating_sub(1);
        }
        while self.unreadable != Some(self.first)
            && self.reads.front().is_some_and(|read| read.sent && read.unacked == 0)
        {
            self.reads.pop_front();
            self.first = self.first.wrapping_add(1);
            self.sent -= 1;
        }
    }

    /// Records that a retransmission failed because the memory of a read is unreadable. Returns the time since the
    /// first such failure.
    pub(super) fn unreadable_for(&mut self, id: u32, now: Nanos) -> Nanos {
        let index = self.index(id);
        self.reads.get_mut(index).map_or(0, |read| now.saturating_sub(*read.unreadable_since.get_or_insert(now)))
    }

    /// Records that the memory of a read is unreadable. Has no effect if the memory of an earlier read already is.
    pub(super) fn mark_unreadable(&mut self, id: u32) {
        if self.request(id).is_some() && !self.is_unreadable(id) {
            self.unreadable = Some(id);
        }
    }

    /// Whether the memory of this read, or of an earlier read, is unreadable.
    pub(super) fn is_unreadable(&self, id: u32) -> bool {
        self.unreadable.is_some_and(|first| self.index(id) >= self.index(first))
    }

    /// Returns the PSN of the request whose memory is unreadable, if the responses to all earlier reads were acked.
    pub(super) fn refusal_due(&self) -> Option<Psn> {
        let first = self.unreadable.filter(|first| *first == self.first)?;
        self.request(first).map(|read| read.psn)
    }

    pub(super) fn clear(&mut self) {
        self.reads.clear();
        (self.sent, self.atomics, self.unreadable) = (0, 0, None);
    }
}
