//! A queue whose slots are reused in place.
//!
//! Work requests and events are large, and most of their fields stay unused. So an entry is not moved into the queue
//! but written in its slot: [`SlotQueue::push`] returns the next slot, which still has its previous content. The number
//! of slots grows to the largest number of entries that were queued at one time; then the queue allocates no more
//! memory.
#![forbid(unsafe_code)]

/// Number of slots that the first entry allocates.
const FIRST: usize = 8;

/// A first-in first-out queue. The number of slots is 0 or a power of two.
#[derive(Debug)]
pub struct SlotQueue<T> {
    slots: Vec<T>,
    head: usize,
    len: usize,
}

impl<T> Default for SlotQueue<T> {
    fn default() -> Self {
        SlotQueue { slots: Vec::new(), head: 0, len: 0 }
    }
}

impl<T: Default> SlotQueue<T> {
    /// An empty queue with slots for `count` entries, rounded up to a power of two.
    pub fn with_slots(count: usize) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(count.next_power_of_two(), T::default);
        SlotQueue { slots, head: 0, len: 0 }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Index of entry `n`, counted from the front.
    #[inline(always)]
    fn at(&self, n: usize) -> usize {
        (self.head + n) & self.slots.len().wrapping_sub(1)
    }

    /// Appends an entry and returns its slot, which the caller fills.
    #[inline(always)]
    pub fn push(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = self.at(self.len);
        self.len += 1;
        &mut self.slots[at]
    }

    /// Number of slots: entries that the queue can hold without growing.
    #[inline(always)]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Appends an entry without growing, and returns its slot. The caller has checked that `len` is below `slots`.
    ///
    /// # Panics
    /// If there are no slots. If all slots are in use, a debug build panics, and a release build overwrites the oldest
    /// entry.
    #[inline(always)]
    pub fn push_within(&mut self) -> &mut T {
        debug_assert!(self.len < self.slots.len());
        let at = self.at(self.len);
        self.len += 1;
        &mut self.slots[at]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.rotate_left(self.head);
        self.head = 0;
        self.slots.resize_with((2 * self.slots.len()).max(FIRST), T::default);
    }

    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// Entry `n`, counted from the front.
    #[inline(always)]
    fn get(&self, n: usize) -> Option<&T> {
        if n < self.len { self.slots.get(self.at(n)) } else { None }
    }

    /// Like `get`, but mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, n: usize) -> Option<&mut T> {
        let at = self.at(n);
        if n < self.len { self.slots.get_mut(at) } else { None }
    }

    /// Removes the oldest entry, if there is one. Its slot keeps the content.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        if self.len > 0 {
            self.head = self.at(1);
            self.len -= 1;
        }
    }

    /// The longest run of oldest entries whose slots are consecutive in memory.
    #[inline(always)]
    pub fn front_run(&self) -> &[T] {
        let end = self.slots.len().min(self.head + self.len);
        self.slots.get(self.head..end).unwrap_or_default()
    }

    /// Removes the oldest `count` entries, or all if there are fewer. Their slots keep the content.
    #[inline(always)]
    pub fn drop_run(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head = self.at(count);
        self.len -= count;
    }

    /// Removes and returns the oldest entry.
    pub fn pop_front(&mut self) -> Option<T> {
        let taken = std::mem::take(self.get_mut(0)?);
        self.drop_front();
        Some(taken)
    }

    /// The entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|n| self.get(n))
    }

    /// Like `iter`, but mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let (wrapped, first) = self.slots.split_at_mut(self.head);
        first.iter_mut().chain(wrapped).take(self.len)
    }

    /// Removes all entries, the oldest first, while the iterator is advanced.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn entries_stay_in_order_while_the_queue_wraps_and_grows() {
        let (mut queue, mut model, mut random) = (SlotQueue::<u64>::default(), VecDeque::new(), 1u64);
        for n in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // In the first half pushes outnumber pops; in the second half pops outnumber pushes.
            if random >> 62 < if n < 10_000 { 3 } else { 1 } {
                *queue.push() = n;
                model.push_back(n);
            } else if random >> 61 & 1 == 0 {
                assert_eq!(queue.pop_front(), model.pop_front());
            } else {
                queue.drop_front();
                model.pop_front();
            }
            assert_eq!((queue.len(), queue.front()), (model.len(), model.front()));
            if n % 89 == 0 {
                let count = queue.front_run().len().min(3);
                assert!(queue.front_run().iter().eq(queue.iter().take(queue.front_run().len())));
                assert!(count > 0 || model.is_empty());
                queue.drop_run(count);
                model.drain(..count);
            }
            if n % 97 == 0 {
                assert!(queue.iter().eq(&model) && queue.iter_mut().map(|entry| *entry).eq(model.iter().copied()));
                let middle = model.len() / 2;
                assert_eq!(queue.get_mut(middle), model.get_mut(middle));
            }
        }
        assert_eq!(queue.get_mut(model.len()), None);
        assert!(queue.drain().eq(model));
        assert!(queue.is_empty() && queue.pop_front().is_none() && queue.front().is_none());
    }

    #[test]
    fn queue_slots_are_reused_with_their_content() {
        let mut queue = SlotQueue::<Vec<u8>>::default();
        queue.push().push(1);
        queue.drop_front();
        (1..FIRST).for_each(|_| {
            queue.push();
            queue.drop_front();
        });
        assert_eq!(*queue.push(), [1]);
    }
}
