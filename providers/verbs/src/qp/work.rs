//! Work in flight: the work posted to the device, in the order of the posts, and the data for its completions.
//!
//! The device returns 64 bits: the slot of the queue in its completion queue, the generation of that queue, and the
//! number of the entry. A completion of an earlier generation matches no entry. Completions come in the order of the
//! posts, so this is a ring.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::{Segment, Status, Token};

/// Top bit of an id: a receive from a shared queue, by its slot there.
const SHARED: u64 = 1 << 63;
const SLOT_BITS: u32 = 19;
const EPOCH_BITS: u32 = 12;

/// Decoded id of a completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WorkId {
    /// Work in a queue pair's own queue.
    Own { slot: u32, epoch: u32, number: u32 },
    /// A receive in a shared receive queue, by its slot there.
    Shared(u64),
}

impl WorkId {
    /// Queues that a completion queue can distinguish.
    pub(crate) const SLOTS: u32 = 1 << SLOT_BITS;

    /// Encodes the id for the device.
    #[inline]
    pub(crate) fn pack(slot: u32, epoch: u32, number: u32) -> u64 {
        (u64::from(slot) << (32 + EPOCH_BITS)) | (u64::from(epoch & ((1 << EPOCH_BITS) - 1)) << 32) | u64::from(number)
    }

    #[inline]
    pub(crate) fn parse(id: u64) -> Self {
        if id & SHARED != 0 {
            return WorkId::Shared(id & !SHARED);
        }
        let epoch = (id >> 32) as u32 & ((1 << EPOCH_BITS) - 1);
        WorkId::Own { slot: (id >> (32 + EPOCH_BITS)) as u32, epoch, number: id as u32 }
    }
}

/// A posted work request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) token: Token,
    /// Bytes reported on success; for a receive the device reports them.
    pub(crate) bytes: u64,
    /// No completion on success.
    pub(crate) suppress: bool,
    /// Whether its memory was read when it was posted.
    pub(crate) is_read: bool,
    /// The request is made to fail with this status.
    pub(crate) forced_status: Option<Status>,
}

impl Entry {
    pub(crate) fn recv(token: Token) -> Self {
        Entry { token, bytes: 0, suppress: false, is_read: false, forced_status: None }
    }
}

/// Work in flight in one queue.
#[derive(Debug)]
pub(crate) struct Work<W> {
    entries: VecDeque<Entry>,
    /// Objects of the binds among them, in order.
    windows: VecDeque<W>,
    /// The number of the first entry.
    first: u32,
    epoch: u32,
    kept: Kept,
}

impl<W> Work<W> {
    /// Allocates space for `most` entries, and for `kept` segments of each.
    pub(crate) fn with_capacity_for(most: u32, kept: u32) -> Self {
        let entries = VecDeque::with_capacity(most as usize);
        Work { entries, windows: VecDeque::new(), first: 0, epoch: 0, kept: Kept::with_capacity_for(most, kept) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Generation and number of the next entry.
    #[inline]
    pub(crate) fn next(&self) -> (u32, u32) {
        (self.epoch, self.first.wrapping_add(self.entries.len() as u32))
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    /// Same as [`Self::push`], for a bind.
    pub(crate) fn push_bind(&mut self, entry: Entry, window: W) {
        self.entries.push_back(entry);
        self.windows.push_back(window);
    }

    /// The window of the oldest bind, whose entry was popped.
    pub(crate) fn window(&mut self) -> Option<W> {
        self.windows.pop_front()
    }

    /// Keeps the segments of the next entry.
    #[inline]
    pub(crate) fn keep(&mut self, segments: &[Segment]) {
        let (_, number) = self.next();
        self.kept.put(number, segments);
    }

    /// The segments of an entry, if they are kept, until the entry is reused.
    pub(crate) fn kept(&self, number: u32) -> Option<&[Segment]> {
        self.kept.get(number)
    }

    /// Number of entries that are complete when this one is. 0 for an id of an earlier generation.
    #[inline]
    pub(crate) fn until(&self, epoch: u32, number: u32) -> u32 {
        let count = number.wrapping_sub(self.first);
        let is_ours = epoch == self.epoch & ((1 << EPOCH_BITS) - 1) && count < self.entries.len() as u32;
        if is_ours { count + 1 } else { 0 }
    }

    /// The oldest entry, which is complete.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front();
        if entry.is_some() {
            self.first = self.first.wrapping_add(1);
        }
        entry
    }

    /// The oldest entry, if it has this number.
    #[inline]
    pub(crate) fn pop_at(&mut self, epoch: u32, number: u32) -> Option<Entry> {
        if self.until(epoch, number) == 1 { self.pop() } else { None }
    }

    /// Begins a new generation: the device will complete none of the remaining entries.
    pub(crate) fn begin_anew(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}

/// Segments of work in flight, by number: for a device that does not report which segment was wrong.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Rows of `each`; none if nothing is to be kept.
    segments: Vec<Segment>,
    each: usize,
    /// Number of segments per row. The number of rows is a power of two.
    lengths: Vec<u8>,
}

impl Kept {
    /// Space for `most` consecutive numbers with `each` segments.
    pub(crate) fn with_capacity_for(most: u32, each: u32) -> Self {
        let rows = (most.max(1) as usize).next_power_of_two();
        let each = each as usize;
        let rows = if each > 0 { rows } else { 0 };
        Kept { segments: vec![Segment::default(); rows * each], each, lengths: vec![0; rows] }
    }

    /// Grows to numbers up to `most`, which do not wrap; never shrinks.
    pub(crate) fn grow(&mut self, most: u32) {
        let wanted = (most.max(1) as usize).next_power_of_two();
        if self.each > 0 && wanted > self.lengths.len() {
            self.segments.resize(wanted * self.each, Segment::default());
            self.lengths.resize(wanted, 0);
        }
    }

    /// The row of a number.
    fn row(&self, number: u32) -> usize {
        number as usize & self.lengths.len().wrapping_sub(1)
    }

    /// Segments beyond the limit are not kept.
    #[inline]
    pub(crate) fn put(&mut self, number: u32, segments: &[Segment]) {
        let row = self.row(number);
        let Some(length) = self.lengths.get_mut(row) else { return };
        let begin = row * self.each;
        let space = &mut self.segments[begin..begin + self.each];
        *length = segments.len().min(space.len()) as u8;
        match (space.first_mut(), segments) {
            (Some(first), [one]) => *first = *one,
            _ => space.iter_mut().zip(segments).for_each(|(kept, segment)| *kept = *segment),
        }
    }

    /// The segments of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&[Segment]> {
        let row = self.row(number);
        let length = usize::from(*self.lengths.get(row)?);
        let begin = row * self.each;
        Some(&self.segments[begin..begin + length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_kept_until_others_take_their_place() {
        let segment = |key| Segment { key, pad: 0, address: 1, length: 1 };
        let mut kept = Kept::with_capacity_for(3, 2);
        kept.put(u32::MAX, &[segment(1), segment(2)]);
        kept.put(0, &[segment(3)]);
        assert_eq!(kept.get(u32::MAX), Some(&[segment(1), segment(2)][..]));
        assert_eq!(kept.get(0), Some(&[segment(3)][..]));
        kept.put(3, &[]);
        assert_eq!((kept.get(u32::MAX), kept.get(0)), (Some(&[][..]), Some(&[segment(3)][..])));
        kept.grow(5);
        kept.put(7, &[segment(4); 3]);
        assert_eq!(kept.get(7), Some(&[segment(4); 2][..]), "no more than there is space for");
        let mut kept = Kept::with_capacity_for(3, 0);
        kept.put(1, &[segment(1)]);
        assert_eq!(kept.get(1), None);
    }

    fn work(count: u64) -> Work<()> {
        let mut work = Work::with_capacity_for(8, 0);
        (0..count).for_each(|cookie| work.push(Entry::recv(Token { cookie, ..Token::default() })));
        work
    }

    #[test]
    fn work_ids_round_trip() {
        for (slot, epoch, number) in [(0, 0, 0), (WorkId::SLOTS - 1, 4095, u32::MAX), (5, 7, 9)] {
            let parsed = WorkId::parse(WorkId::pack(slot, epoch, number));
            assert_eq!(parsed, WorkId::Own { slot, epoch, number });
        }
        assert_eq!(WorkId::parse(SHARED | 77), WorkId::Shared(77));
    }

    #[test]
    fn completions_find_their_entries_in_order_also_when_numbers_wrap() {
        let mut work = work(2);
        work.first = u32::MAX;
        assert_eq!(work.next(), (0, 1));
        assert_eq!(work.until(0, u32::MAX), 1);
        assert_eq!(work.until(0, 0), 2, "the one before is complete as well");
        assert_eq!(work.pop().map(|entry| entry.token.cookie), Some(0));
        assert_eq!((work.until(0, u32::MAX), work.until(0, 0), work.until(0, 1)), (0, 1, 0));
    }

    #[test]
    fn id_of_an_earlier_generation_is_not_found() {
        let mut work = work(1);
        let (epoch, number) = (0, 0);
        work.begin_anew();
        assert_eq!(work.until(epoch, number), 0);
        work.epoch = 1 << EPOCH_BITS;
        assert_eq!(work.until(0, number), 1, "the life is counted in few bits");
    }
}
