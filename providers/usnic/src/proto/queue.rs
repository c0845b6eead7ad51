//! A queue of work (UR-1): a ring of entries in posting order. The older entries are active, the newer ones wait.
//!
//! Entries start and are removed in posting order. The slot of an entry is a number that counts the entries and wraps.
//! The ring grows up to the queue's capacity and does not shrink. Items are large, so the caller writes and reads them
//! in the ring. A removed item can be read until its place is reused.

/// Initial number of places in the ring.
const INITIAL_PLACES: usize = 8;

pub(crate) struct OrderedQueue<T> {
    /// The ring. Its length is a power of two, or 0. The item in slot n is at index n modulo the length.
    items: Vec<T>,
    capacity: u32,
    /// Number of entries for which the ring has space, at most `capacity`.
    limit: u32,
    /// Slot of the oldest entry.
    first: u32,
    /// Slot of the oldest waiting entry. It equals `end` if no entry waits.
    next: u32,
    /// Slot of the next entry that is added.
    end: u32,
}

impl<T: Default> OrderedQueue<T> {
    /// Creates a queue. `capacity` is the maximum number of waiting and active entries together.
    pub(crate) fn new(capacity: u32) -> Self {
        OrderedQueue { items: Vec::new(), capacity, limit: 0, first: 0, next: 0, end: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.end.wrapping_sub(self.first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Returns the number of waiting entries.
    pub(crate) fn waiting(&self) -> u32 {
        self.end.wrapping_sub(self.next)
    }

    /// Adds a waiting entry. Returns the old item in its place, which the caller must overwrite, or `None` if the queue
    /// is full.
    #[inline(always)]
    pub(crate) fn push(&mut self) -> Option<&mut T> {
        if self.len() == self.limit {
            self.grow()?;
        }
        let slot = self.end;
        self.end = slot.wrapping_add(1);
        Some(self.item_mut(slot))
    }

    /// Adds an active entry. No entry may be waiting. Has the effect of [`Self::push`] and [`Self::start`], and also
    /// returns the slot.
    #[inline(always)]
    pub(crate) fn push_active(&mut self) -> Option<(u32, &mut T)> {
        let slot = self.end;
        self.push()?;
        self.next = self.end;
        Some((slot, self.item_mut(slot)))
    }

    /// Returns the slot of the oldest waiting entry.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<u32> {
        (self.next != self.end).then_some(self.next)
    }

    /// Makes the oldest waiting entry active, and returns its slot.
    pub(crate) fn start(&mut self) -> Option<u32> {
        let slot = self.next()?;
        self.next = slot.wrapping_add(1);
        Some(slot)
    }

    /// Returns the slot of the oldest active entry.
    pub(crate) fn first(&self) -> Option<u32> {
        self.nth_active(0)
    }

    /// Returns the slot of the active entry that has `n` older entries.
    pub(crate) fn nth_active(&self, n: u32) -> Option<u32> {
        (n < self.next.wrapping_sub(self.first)).then(|| self.first.wrapping_add(n))
    }

    /// Returns the slots of the active entries, in the order in which they were started.
    pub(crate) fn active(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).map_while(|n| self.nth_active(n))
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let is_used = slot.wrapping_sub(self.first) < self.len();
        is_used.then(|| &self.items[slot as usize & (self.items.len() - 1)])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let is_used = slot.wrapping_sub(self.first) < self.len();
        is_used.then(|| self.item_mut(slot))
    }

    /// Removes the oldest entry, active or waiting. Its item can be read until the next `push` or `push_active`.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let slot = self.first;
        self.first = slot.wrapping_add(1);
        if self.next == slot {
            self.next = self.first;
        }
        Some(self.item_mut(slot))
    }

    #[inline(always)]
    fn item_mut(&mut self, slot: u32) -> &mut T {
        let at = slot as usize & (self.items.len() - 1);
        &mut self.items[at]
    }

    /// Doubles the ring. Returns `None` if the queue is full.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<()> {
        if self.limit == self.capacity {
            return None;
        }
        let length = (self.items.len() * 2).max(INITIAL_PLACES);
        let mut items: Vec<T> = (0..length).map(|_| T::default()).collect();
        for n in 0..self.len() {
            let slot = self.first.wrapping_add(n);
            items[slot as usize & (length - 1)] = std::mem::take(self.item_mut(slot));
        }
        self.items = items;
        self.limit = (self.capacity as usize).min(length) as u32;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    /// Creates a queue whose first entry has this slot.
    fn queue_from<T: Default>(capacity: u32, slot: u32) -> OrderedQueue<T> {
        OrderedQueue { first: slot, next: slot, end: slot, ..OrderedQueue::new(capacity) }
    }

    fn push<T: Default>(queue: &mut OrderedQueue<T>, item: T) -> Option<u32> {
        let slot = queue.end;
        queue.push().map(|entry| {
            *entry = item;
            slot
        })
    }

    #[test]
    fn waiting_entries_start_in_order_and_are_found_by_number() {
        for from in [0, u32::MAX - 50] {
            let mut queue = queue_from(100, from);
            let slots: Vec<u32> = (0..100u64).map(|i| push(&mut queue, i).expect("the queue is not full")).collect();
            assert_eq!((push(&mut queue, 100), queue.len(), queue.waiting()), (None, 100, 100));
            for slot in &slots[..60] {
                assert_eq!(queue.start(), Some(*slot));
            }
            for number in 0..60 {
                let slot = queue.nth_active(number).expect("the entry with this number is active");
                assert_eq!(queue.get(slot), Some(&u64::from(number)));
            }
            assert_eq!(queue.nth_active(60), None, "a waiting entry is not active");
            assert_eq!(queue.active().collect::<Vec<_>>(), slots[..60]);
            assert_eq!(queue.pop().copied(), Some(0));
            assert_eq!((queue.get(slots[0]), queue.first()), (None, Some(slots[1])));
            let rest: Vec<u64> = std::iter::from_fn(|| queue.pop().copied()).collect();
            assert_eq!(rest, (1..100).collect::<Vec<u64>>());
            assert!(queue.is_empty() && queue.first().is_none() && queue.next().is_none());
        }
    }

    #[test]
    fn entry_added_as_active_follows_the_started_entries() {
        let mut queue = OrderedQueue::new(40);
        for item in 0..40u64 {
            if item % 3 == 0 {
                *queue.push_active().expect("the queue is not full").1 = item;
            } else {
                push(&mut queue, item);
                queue.start();
            }
        }
        assert!(queue.push_active().is_none() && queue.waiting() == 0);
        assert_eq!(queue.active().count(), 40);
        let rest: Vec<u64> = std::iter::from_fn(|| queue.pop().copied()).collect();
        assert_eq!(rest, (0..40).collect::<Vec<u64>>());
    }

    #[test]
    fn queue_of_depth_zero_accepts_nothing() {
        let mut queue: OrderedQueue<u8> = OrderedQueue::new(0);
        assert_eq!((push(&mut queue, 1), queue.start(), queue.nth_active(0)), (None, None, None));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.get(0), None);
    }

    #[derive(Clone, Debug)]
    enum QueueCall {
        Push,
        Start,
        Pop,
    }

    proptest! {
        #[test]
        fn queue_matches_a_model_of_two_lists(base: u32, capacity in 0..40u32, steps in prop::collection::vec(
            prop_oneof![3 => Just(QueueCall::Push), 2 => Just(QueueCall::Start), 2 => Just(QueueCall::Pop)], 0..400
        )) {
            let mut queue = queue_from(capacity, base);
            let (mut waiting, mut active) = (VecDeque::new(), VecDeque::new());
            let mut items = 0u32;
            for step in steps {
                match step {
                    QueueCall::Push => {
                        let fits = waiting.len() + active.len() < capacity as usize;
                        prop_assert_eq!(push(&mut queue, items).is_some(), fits);
                        if fits { waiting.push_back(items); }
                        items += 1;
                    }
                    QueueCall::Start => {
                        prop_assert_eq!(queue.start().is_some(), !waiting.is_empty());
                        active.extend(waiting.pop_front());
                    }
                    QueueCall::Pop => {
                        let expected = active.pop_front().or_else(|| waiting.pop_front());
                        prop_assert_eq!(queue.pop().copied(), expected);
                    }
                }
                let order: Vec<u32> = queue.active().filter_map(|slot| queue.get(slot).copied()).collect();
                prop_assert_eq!(order, active.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(queue.next().and_then(|slot| queue.get(slot)), waiting.front());
                prop_assert_eq!(queue.len() as usize, waiting.len() + active.len());
            }
        }
    }
}
