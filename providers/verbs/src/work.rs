//! Work in flight: what the device was given, in the order of the posts, and what its completions will say.
//!
//! Pure. The device carries 64 bits: which queue of the completion queue a request is of, which life of that queue, and its
//! number. A completion of an earlier life finds nothing. Completions come in the order of the posts, so this is a ring.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::{Status, Token};

/// Top bit of an id: a receive out of a shared queue, by its place there.
const SHARED: u64 = 1 << 63;
const SLOT_BITS: u32 = 19;
const EPOCH_BITS: u32 = 12;

/// What a completion's id says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WorkId {
    /// Of a queue pair's own queue.
    Own { slot: u32, epoch: u32, number: u32 },
    /// A place in a shared receive queue.
    Shared(u64),
}

impl WorkId {
    /// Queues that a completion queue can tell apart.
    pub(crate) const SLOTS: u32 = 1 << SLOT_BITS;

    /// As the device carries it.
    pub(crate) fn pack(slot: u32, epoch: u32, number: u32) -> u64 {
        (u64::from(slot) << (32 + EPOCH_BITS)) | (u64::from(epoch & ((1 << EPOCH_BITS) - 1)) << 32) | u64::from(number)
    }

    pub(crate) fn parse(id: u64) -> Self {
        if id & SHARED != 0 {
            return WorkId::Shared(id & !SHARED);
        }
        let epoch = (id >> 32) as u32 & ((1 << EPOCH_BITS) - 1);
        WorkId::Own { slot: (id >> (32 + EPOCH_BITS)) as u32, epoch, number: id as u32 }
    }
}

/// One piece of work.
#[derive(Debug)]
pub(crate) struct Entry<W> {
    pub(crate) token: Token,
    /// What success says of bytes; a receive's are the device's to say.
    pub(crate) bytes: u64,
    /// No completion if it succeeds.
    pub(crate) suppress: bool,
    /// It was made to fail, and this is how.
    pub(crate) doom: Option<Status>,
    /// The window that it binds.
    pub(crate) window: Option<W>,
}

impl<W> Entry<W> {
    pub(crate) fn recv(token: Token) -> Self {
        Entry { token, bytes: 0, suppress: false, doom: None, window: None }
    }
}

/// What is in flight in one queue.
#[derive(Debug)]
pub(crate) struct Work<W> {
    entries: VecDeque<Entry<W>>,
    /// The number of the first entry.
    first: u32,
    epoch: u32,
}

impl<W> Work<W> {
    /// Room for so much, without allocation later.
    pub(crate) fn with_room(most: u32) -> Self {
        Work { entries: VecDeque::with_capacity(most as usize), first: 0, epoch: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The life and the number that the next entry will have.
    pub(crate) fn next(&self) -> (u32, u32) {
        (self.epoch, self.first.wrapping_add(self.entries.len() as u32))
    }

    pub(crate) fn push(&mut self, entry: Entry<W>) {
        self.entries.push_back(entry);
    }

    /// How many entries are complete when this one is; 0 for one of an earlier life.
    pub(crate) fn until(&self, epoch: u32, number: u32) -> u32 {
        let count = number.wrapping_sub(self.first);
        let is_ours = epoch == self.epoch & ((1 << EPOCH_BITS) - 1) && count < self.entries.len() as u32;
        if is_ours { count + 1 } else { 0 }
    }

    /// The oldest entry, which is complete.
    pub(crate) fn pop(&mut self) -> Option<Entry<W>> {
        let entry = self.entries.pop_front();
        if entry.is_some() {
            self.first = self.first.wrapping_add(1);
        }
        entry
    }

    /// The queue begins another life; the device knows nothing of what is left here.
    pub(crate) fn begin_anew(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(count: u64) -> Work<()> {
        let mut work = Work::with_room(8);
        (0..count).for_each(|cookie| work.push(Entry::recv(Token { cookie, ..Token::default() })));
        work
    }

    #[test]
    fn an_id_says_what_went_into_it() {
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
    fn an_earlier_life_is_not_found() {
        let mut work = work(1);
        let (epoch, number) = (0, 0);
        work.begin_anew();
        assert_eq!(work.until(epoch, number), 0);
        work.epoch = 1 << EPOCH_BITS;
        assert_eq!(work.until(0, number), 1, "the life is counted in few bits");
    }
}
