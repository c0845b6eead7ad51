//! Work in flight: the work posted to the device, in the order of the posts, and the data needed to complete it.
//!
//! Each work request has a 64-bit id, which the device returns in the completion. It consists of the queue's slot in
//! its completion queue, the queue's generation, and the number of the entry. A completion of an earlier generation
//! matches no entry. Work completes in the order of the posts, so the entries are a ring. The id of a receive from a
//! shared receive queue is its slot there (`srq`) with the top bit set.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::{Segment, Status, Token, Work as WorkKind};

/// Top bit of an id: the work is a receive from a shared receive queue, and the other bits are its slot in that queue.
const SHARED: u64 = 1 << 63;
const SLOT_BITS: u32 = 19;
const EPOCH_BITS: u32 = 12;

/// Decoded id of a completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WorkId {
    /// Work in the send queue or receive queue with this slot in its completion queue.
    Own(u32),
    /// A receive in this slot of a shared receive queue.
    Shared(u64),
}

impl WorkId {
    /// Maximum number of queues whose work completes on one completion queue.
    pub(crate) const SLOTS: u32 = 1 << SLOT_BITS;

    /// Encodes the id of work in a queue pair's queue.
    #[inline]
    pub(crate) fn pack(slot: u32, epoch: u32, number: u32) -> u64 {
        (u64::from(slot) << (32 + EPOCH_BITS)) | (u64::from(epoch & ((1 << EPOCH_BITS) - 1)) << 32) | u64::from(number)
    }

    #[inline]
    pub(crate) fn parse(id: u64) -> Self {
        if id & SHARED != 0 {
            return WorkId::Shared(id & !SHARED);
        }
        WorkId::Own((id >> (32 + EPOCH_BITS)) as u32)
    }

    /// Encodes the id of a receive in this slot of a shared receive queue.
    #[inline]
    pub(crate) fn shared(slot: usize) -> u64 {
        SHARED | slot as u64
    }
}

/// A posted work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkEntry {
    pub(crate) token: Token,
    /// Number of bytes to report on success. Not used for receives, whose length the device reports.
    pub(crate) bytes: u64,
    /// The consumer wants no completion on success.
    pub(crate) suppress: bool,
    /// Whether the post has copied the request's data (inline).
    pub(crate) is_read: bool,
    /// The request was posted with an invalid key, and its failure is reported with this status.
    pub(crate) forced_status: Option<Status>,
}

impl WorkEntry {
    pub(crate) fn recv(token: Token) -> Self {
        WorkEntry { token, ..WorkEntry::default() }
    }

    /// Whether a success only produces a completion: the request is not a bind, and is not suppressed.
    #[inline(always)]
    pub(crate) fn only_completes(&self) -> bool {
        self.token.work != WorkKind::Bind && !self.suppress
    }
}

/// Work in flight in one queue.
pub(crate) struct InFlightWork<W> {
    /// The ring. The entry with number `n` has the index `n & mask`. The memory for all entries is allocated at
    /// creation; the vector grows with each push until every index was used once.
    entries: Vec<WorkEntry>,
    mask: u32,
    /// Windows of the binds in flight, in posting order.
    windows: VecDeque<W>,
    /// Number of the oldest entry in flight.
    first: u32,
    /// Number of the next entry to be posted.
    next: u32,
    slot: u32,
    epoch: u32,
    /// The id of the entry with number 0: slot and generation.
    base: u64,
    kept: SavedSegments,
}

impl<W> InFlightWork<W> {
    /// Allocates space for `most` work requests, each with up to `saved` saved segments.
    pub(crate) fn with_capacity_for(most: u32, saved: u32) -> Self {
        let capacity = most.max(1).next_power_of_two();
        InFlightWork {
            entries: Vec::with_capacity(capacity as usize),
            mask: capacity - 1,
            windows: VecDeque::new(),
            first: 0,
            next: 0,
            slot: 0,
            epoch: 0,
            base: 0,
            kept: SavedSegments::with_capacity_for(most, saved),
        }
    }

    /// Sets the slot of the queue in its completion queue.
    pub(crate) fn set_slot(&mut self, slot: u32) {
        self.slot = slot;
        self.base = WorkId::pack(slot, self.epoch, 0);
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    /// Returns the id of the work request that is pushed next.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        self.base | u64::from(self.next)
    }

    /// Adds an entry. The caller has checked that the queue has space.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: WorkEntry) {
        debug_assert!(self.len() <= self.mask);
        match self.entries.get_mut((self.next & self.mask) as usize) {
            Some(place) => *place = entry,
            None => self.push_in_first_lap(entry),
        }
        self.next = self.next.wrapping_add(1);
    }

    #[cold]
    fn push_in_first_lap(&mut self, entry: WorkEntry) {
        debug_assert_eq!(self.entries.len(), self.next as usize);
        self.entries.push(entry);
    }

    /// Same as [`Self::push`], and keeps the window of the bind for [`Self::pop_window`].
    pub(crate) fn push_bind(&mut self, entry: WorkEntry, window: W) {
        self.push(entry);
        self.windows.push_back(window);
    }

    /// Removes and returns the window of the oldest bind, whose entry was popped.
    pub(crate) fn pop_window(&mut self) -> Option<W> {
        self.windows.pop_front()
    }

    /// Saves the segments of the next entry.
    #[inline]
    pub(crate) fn save_segments(&mut self, segments: &[Segment]) {
        self.kept.put(self.next, segments);
    }

    /// Returns the saved segments of an entry. They are valid until the entry's index is reused.
    pub(crate) fn saved_segments(&self, number: u32) -> Option<&[Segment]> {
        self.kept.get(number)
    }

    /// Returns the number of entries in flight up to and including the one with this id. 0 if no entry in flight has
    /// the id.
    pub(crate) fn count_through(&self, id: u64) -> u32 {
        let count = (id as u32).wrapping_sub(self.first);
        let is_in_flight = id >> 32 == self.base >> 32 && count < self.len();
        if is_in_flight { count + 1 } else { 0 }
    }

    /// Returns the oldest entry, if it has this id. [`Self::drop_first`] removes it.
    #[inline(always)]
    pub(crate) fn first(&self, id: u64) -> Option<&WorkEntry> {
        if id == self.base | u64::from(self.first) && self.first != self.next {
            self.entries.get((self.first & self.mask) as usize)
        } else {
            None
        }
    }

    /// Returns the oldest entry and its id.
    pub(crate) fn oldest(&self) -> Option<(u64, &WorkEntry)> {
        let id = self.base | u64::from(self.first);
        Some((id, self.first(id)?))
    }

    /// Removes the oldest entry. The caller has checked that there is one.
    #[inline(always)]
    pub(crate) fn drop_first(&mut self) {
        debug_assert!(self.first != self.next);
        self.first = self.first.wrapping_add(1);
    }

    /// Removes and returns the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<WorkEntry> {
        if self.first == self.next {
            return None;
        }
        let entry = self.entries.get((self.first & self.mask) as usize).copied();
        self.drop_first();
        entry
    }

    /// Removes and returns the oldest entry, if it has this id.
    pub(crate) fn pop_at(&mut self, id: u64) -> Option<WorkEntry> {
        if self.count_through(id) == 1 { self.pop() } else { None }
    }

    /// Begins a new generation, so that late completions of earlier work match no entry. The caller then pops the
    /// remaining entries, which the device will not complete.
    pub(crate) fn next_generation(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.set_slot(self.slot);
    }
}

/// Saved segments of work in flight, by entry number. They are saved for devices that do not report whether a segment
/// was invalid: after a failure, the provider checks them.
pub(crate) struct SavedSegments {
    /// Rows of `each` segments. Empty if no segments are saved.
    segments: Vec<Segment>,
    each: usize,
    /// Number of segments in use, per row. The number of rows is a power of two.
    lengths: Vec<u8>,
}

impl SavedSegments {
    /// Allocates space for `most` consecutive entries with up to `each` segments.
    pub(crate) fn with_capacity_for(most: u32, each: u32) -> Self {
        let rows = (most.max(1) as usize).next_power_of_two();
        let each = each as usize;
        let rows = if each > 0 { rows } else { 0 };
        SavedSegments { segments: vec![Segment::default(); rows * each], each, lengths: vec![0; rows] }
    }

    /// Grows to `most` entries; never shrinks. Entries whose numbers are below the former number of rows keep their
    /// segments. Other entries may get another row, without their segments.
    pub(crate) fn grow(&mut self, most: u32) {
        let wanted = (most.max(1) as usize).next_power_of_two();
        if self.each > 0 && wanted > self.lengths.len() {
            self.segments.resize(wanted * self.each, Segment::default());
            self.lengths.resize(wanted, 0);
        }
    }

    /// Returns the row of an entry.
    fn row_of(&self, number: u32) -> usize {
        number as usize & self.lengths.len().wrapping_sub(1)
    }

    /// Saves the segments of an entry. Segments beyond the limit of a row are not saved.
    #[inline]
    pub(crate) fn put(&mut self, number: u32, segments: &[Segment]) {
        let row = self.row_of(number);
        let Some(length) = self.lengths.get_mut(row) else { return };
        let begin = row * self.each;
        let space = &mut self.segments[begin..begin + self.each];
        *length = segments.len().min(space.len()) as u8;
        match (space.first_mut(), segments) {
            (Some(first), [one]) => *first = *one,
            _ => space.iter_mut().zip(segments).for_each(|(kept, segment)| *kept = *segment),
        }
    }

    /// Returns the saved segments of an entry; `None` if no segments are saved.
    pub(crate) fn get(&self, number: u32) -> Option<&[Segment]> {
        let row = self.row_of(number);
        let length = usize::from(*self.lengths.get(row)?);
        let begin = row * self.each;
        Some(&self.segments[begin..begin + length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_segments_stay_until_their_row_is_reused() {
        let segment = |key| Segment { key, pad: 0, address: 1, length: 1 };
        let mut kept = SavedSegments::with_capacity_for(3, 2);
        kept.put(u32::MAX, &[segment(1), segment(2)]);
        kept.put(0, &[segment(3)]);
        assert_eq!(kept.get(u32::MAX), Some(&[segment(1), segment(2)][..]));
        assert_eq!(kept.get(0), Some(&[segment(3)][..]));
        kept.put(3, &[]);
        assert_eq!((kept.get(u32::MAX), kept.get(0)), (Some(&[][..]), Some(&[segment(3)][..])));
        kept.grow(5);
        kept.put(7, &[segment(4); 3]);
        assert_eq!(kept.get(7), Some(&[segment(4); 2][..]), "segments beyond the row are not saved");
        let mut kept = SavedSegments::with_capacity_for(3, 0);
        kept.put(1, &[segment(1)]);
        assert_eq!(kept.get(1), None);
    }

    fn work(count: u64) -> InFlightWork<()> {
        let mut work = InFlightWork::with_capacity_for(8, 0);
        (0..count).for_each(|cookie| work.push(WorkEntry::recv(Token { cookie, ..Token::default() })));
        work
    }

    #[test]
    fn work_ids_round_trip() {
        for (slot, epoch, number) in [(0, 0, 0), (WorkId::SLOTS - 1, 4095, u32::MAX), (5, 7, 9)] {
            let id = WorkId::pack(slot, epoch, number);
            assert_eq!(WorkId::parse(id), WorkId::Own(slot));
            assert_eq!((id >> 32) as u32 & 4095, epoch);
            assert_eq!(id as u32, number);
        }
        assert_eq!(WorkId::parse(WorkId::shared(77)), WorkId::Shared(77));
    }

    #[test]
    fn work_ids_find_entries_in_order_also_across_the_wrap() {
        let mut work = work(8);
        work.set_slot(3);
        (work.first, work.next) = (u32::MAX, u32::MAX);
        let id = |number| WorkId::pack(3, 0, number);
        for cookie in 0..2 {
            assert_eq!(work.next_id(), id(u32::MAX.wrapping_add(cookie)));
            work.push(WorkEntry::recv(Token { cookie: cookie.into(), ..Token::default() }));
        }
        assert_eq!(work.len(), 2);
        assert_eq!(work.count_through(id(u32::MAX)), 1);
        assert_eq!(work.count_through(id(0)), 2, "the entry before is counted too");
        assert!(work.first(id(0)).is_none() && work.pop_at(id(0)).is_none());
        assert_eq!(work.first(id(u32::MAX)).map(|entry| entry.token.cookie), Some(0));
        assert_eq!(work.pop().map(|entry| entry.token.cookie), Some(0));
        assert_eq!([u32::MAX, 0, 1].map(|number| work.count_through(id(number))), [0, 1, 0]);
        assert_eq!(work.first(id(0)).map(|entry| entry.token.cookie), Some(1));
        work.drop_first();
        assert!(work.first(work.next_id()).is_none() && work.pop().is_none() && work.len() == 0);
    }

    #[test]
    fn work_ring_holds_its_maximum_of_entries_after_many_reuses() {
        let mut work = work(0);
        for cookie in 0..100 {
            while work.len() < 8 {
                work.push(WorkEntry::recv(Token { cookie: u64::from(work.next), ..Token::default() }));
            }
            assert_eq!(work.pop().map(|entry| entry.token.cookie), Some(cookie));
        }
    }

    #[test]
    fn work_id_of_an_earlier_generation_is_not_found() {
        let mut work = work(1);
        work.set_slot(5);
        let id = WorkId::pack(5, 0, 0);
        assert_eq!(work.count_through(id), 1);
        work.next_generation();
        assert!(work.count_through(id) == 0 && work.first(id).is_none());
        work.epoch = (1 << EPOCH_BITS) - 1;
        work.next_generation();
        assert_eq!(work.count_through(id), 1, "the generation wraps after 4096 values");
    }
}
