//! A queue of work (UR-1): a list of waiting entries in posting order, a list of active entries in starting order, and
//! a hash table of the active entries by number.
//!
//! All entries are in one array, and free entries form a list. The array grows up to the queue's capacity and does not
//! shrink. Items are large, so the caller writes and reads them in their slots. A removed item can be read until its
//! slot is reused.

/// Slot number that means "no slot".
const NONE: u32 = u32::MAX;
/// Initial number of entries.
const INITIAL_ENTRIES: u32 = 8;
/// Key of active entries that the hash table does not contain, because they are never looked up.
pub(crate) const UNNUMBERED: u64 = u64::MAX;

struct QueueSlot<T> {
    item: T,
    is_used: bool,
    is_active: bool,
    key: u64,
    /// Neighbours in the list of active entries. `behind` also links the lists of waiting and of free entries.
    before: u32,
    behind: u32,
}

pub(crate) struct OrderedQueue<T> {
    entries: Vec<QueueSlot<T>>,
    /// First free entry.
    free: u32,
    capacity: u32,
    /// Number of waiting and active entries together.
    length: u32,
    /// Number of active entries.
    active: u32,
    /// First waiting entry.
    next: u32,
    /// Last waiting entry.
    newest: u32,
    /// Hash table from keys to slots, with open addressing. Its size is a power of two, and at least half of it is
    /// free.
    table: Vec<u32>,
    /// First and last active entry.
    first: u32,
    last: u32,
}

impl<T: Default> OrderedQueue<T> {
    /// Creates a queue. `capacity` is the maximum number of waiting and active entries together.
    pub(crate) fn new(capacity: u32) -> Self {
        OrderedQueue {
            entries: Vec::new(),
            free: NONE,
            capacity: capacity.min(NONE - 1),
            length: 0,
            active: 0,
            next: NONE,
            newest: NONE,
            table: Vec::new(),
            first: NONE,
            last: NONE,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiting entries.
    pub(crate) fn waiting(&self) -> u32 {
        self.length - self.active
    }

    /// Adds a waiting entry. Returns its slot and the old item in the slot, which the caller must overwrite. Returns
    /// `None` if the queue is full.
    #[inline(always)]
    pub(crate) fn push(&mut self) -> Option<(u32, &mut T)> {
        let slot = self.find_free()?;
        self.length += 1;
        let newest = std::mem::replace(&mut self.newest, slot);
        match self.entries.get_mut(newest as usize) {
            Some(entry) => entry.behind = slot,
            None => self.next = slot,
        }
        let entry = &mut self.entries[slot as usize];
        self.free = std::mem::replace(&mut entry.behind, NONE);
        entry.is_used = true;
        Some((slot, &mut entry.item))
    }

    /// Adds an active entry with the key [`UNNUMBERED`]. No entry may be waiting. Has the effect of [`Self::push`] and
    /// [`Self::start`], but is faster.
    #[inline(always)]
    pub(crate) fn push_active(&mut self) -> Option<(u32, &mut T)> {
        let slot = self.find_free()?;
        self.length += 1;
        self.active += 1;
        let last = std::mem::replace(&mut self.last, slot);
        match self.entries.get_mut(last as usize) {
            Some(entry) => entry.behind = slot,
            None => self.first = slot,
        }
        let entry = &mut self.entries[slot as usize];
        self.free = std::mem::replace(&mut entry.behind, NONE);
        (entry.is_used, entry.is_active, entry.key, entry.before) = (true, true, UNNUMBERED, last);
        Some((slot, &mut entry.item))
    }

    /// Returns the slot of the oldest waiting entry.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }

    /// Removes the oldest waiting entry from its list.
    #[inline(always)]
    fn take_next(&mut self) -> Option<u32> {
        let slot = self.next()?;
        self.next = self.entries[slot as usize].behind;
        if self.next == NONE {
            self.newest = NONE;
        }
        Some(slot)
    }

    /// Makes the oldest waiting entry active, and returns its slot. `key` is [`UNNUMBERED`], or a number that no other
    /// active entry has.
    pub(crate) fn start(&mut self, key: u64) -> Option<u32> {
        let slot = self.take_next()?;
        let last = std::mem::replace(&mut self.last, slot);
        let entry = &mut self.entries[slot as usize];
        (entry.is_active, entry.key, entry.before, entry.behind) = (true, key, last, NONE);
        match self.entries.get_mut(last as usize) {
            Some(entry) => entry.behind = slot,
            None => self.first = slot,
        }
        self.active += 1;
        if key != UNNUMBERED {
            self.insert(key, slot);
        }
        Some(slot)
    }

    /// Returns the slot of the active entry with this key.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        let at = self.find_in_table(key)?;
        Some(self.table[at])
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize).filter(|entry| entry.is_used).map(|entry| &entry.item)
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize).filter(|entry| entry.is_used).map(|entry| &mut entry.item)
    }

    /// Returns the slot of the oldest active entry.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Returns the slots of the active entries, in the order in which they were started.
    pub(crate) fn active(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(), |slot| {
            let behind = self.entries[*slot as usize].behind;
            (behind != NONE).then_some(behind)
        })
    }

    /// Removes an active entry. Its item can be read until the next `push` or `push_active`.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot as usize).filter(|entry| entry.is_active)?;
        entry.is_active = false;
        let (key, before, behind) = (entry.key, entry.before, entry.behind);
        if key != UNNUMBERED
            && let Some(at) = self.find_in_table(key)
        {
            self.remove_from_table(at);
        }
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.behind = behind,
            None => self.first = behind,
        }
        match self.entries.get_mut(behind as usize) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
        self.active -= 1;
        self.free_slot(slot)
    }

    /// Removes the oldest entry, active or waiting. Active entries are older.
    pub(crate) fn pop(&mut self) -> Option<&mut T> {
        match self.first() {
            Some(slot) => self.remove(slot),
            None => self.pop_waiting(),
        }
    }

    /// Removes the oldest waiting entry.
    pub(crate) fn pop_waiting(&mut self) -> Option<&mut T> {
        let slot = self.take_next()?;
        self.free_slot(slot)
    }

    /// Returns the first free slot. Grows the array if there is none.
    #[inline(always)]
    fn find_free(&mut self) -> Option<u32> {
        let slot = self.free;
        if (slot as usize) < self.entries.len() { Some(slot) } else { self.grow() }
    }

    fn free_slot(&mut self, slot: u32) -> Option<&mut T> {
        let entry = &mut self.entries[slot as usize];
        entry.behind = std::mem::replace(&mut self.free, slot);
        self.length -= 1;
        std::mem::take(&mut entry.is_used).then_some(&mut entry.item)
    }

    /// Adds free entries, and returns the first. Called if no entry is free.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<u32> {
        let old = self.entries.len() as u32;
        let new = old.saturating_mul(2).clamp(INITIAL_ENTRIES.min(self.capacity), self.capacity);
        if new == old {
            return None;
        }
        self.entries.reserve_exact((new - old) as usize);
        self.entries.extend((old..new).map(|slot| QueueSlot {
            item: T::default(),
            is_used: false,
            is_active: false,
            key: 0,
            before: NONE,
            behind: if slot + 1 < new { slot + 1 } else { NONE },
        }));
        self.table = vec![NONE; (new as usize * 2).next_power_of_two()];
        let active: Vec<u32> = self.active().collect();
        for slot in active {
            let key = self.entries[slot as usize].key;
            if key != UNNUMBERED {
                self.insert(key, slot);
            }
        }
        Some(old)
    }

    /// Returns the first position of a key in the hash table. Multiplication by the golden ratio spreads consecutive
    /// numbers over the table.
    fn hash_index(&self, key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.table.len().trailing_zeros())) as usize
    }

    fn insert(&mut self, key: u64, slot: u32) {
        let mut at = self.hash_index(key);
        while self.table[at] != NONE {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = slot;
    }

    fn find_in_table(&self, key: u64) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.hash_index(key);
        loop {
            match self.table[at] {
                NONE => return None,
                slot if self.entries[slot as usize].key == key => return Some(at),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    /// Frees a position of the hash table, and moves later positions of the probe sequence into the gap.
    fn remove_from_table(&mut self, mut hole: usize) {
        let mask = self.table.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.table[at];
            if slot == NONE {
                break;
            }
            let home = self.hash_index(self.entries[slot as usize].key);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = slot;
                hole = at;
            }
        }
        self.table[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    fn push<T: Default>(queue: &mut OrderedQueue<T>, item: T) -> Option<u32> {
        queue.push().map(|(slot, entry)| {
            *entry = item;
            slot
        })
    }

    #[test]
    fn waiting_entries_start_in_order_and_are_found_by_number() {
        let mut queue = OrderedQueue::new(100);
        let slots: Vec<u32> = (0..100).map(|i| push(&mut queue, i).expect("the queue is not full")).collect();
        assert_eq!((push(&mut queue, 100), queue.len(), queue.waiting()), (None, 100, 100));
        for number in 0..60u64 {
            let key = u64::from((number as u32).wrapping_sub(30)) | (number % 3) << 32;
            assert_eq!(queue.start(key), Some(slots[number as usize]));
        }
        for number in 0..60u64 {
            let key = u64::from((number as u32).wrapping_sub(30)) | (number % 3) << 32;
            let slot = queue.find(key).expect("the entry with this number is active");
            assert_eq!(queue.get(slot), Some(&number));
        }
        assert_eq!(queue.find(7 | 9 << 32), None);
        assert_eq!(queue.active().collect::<Vec<_>>(), slots[..60]);
        let middle = slots[30];
        assert_eq!(queue.remove(middle).copied(), Some(30));
        assert_eq!(queue.get(middle), None);
        assert_eq!(queue.remove(middle), None, "an entry can be removed only once");
        assert_eq!(queue.first(), Some(slots[0]));
        assert_eq!(queue.remove(slots[99]), None, "a waiting entry is not active, so it cannot be removed");
        let rest: Vec<u64> = std::iter::from_fn(|| queue.pop().copied()).collect();
        assert_eq!(rest, (0..100).filter(|i| *i != 30).collect::<Vec<u64>>());
        assert!(queue.is_empty() && queue.first().is_none() && queue.next().is_none());
    }

    #[test]
    fn unnumbered_entries_are_removed_in_any_order() {
        let mut queue = OrderedQueue::new(40);
        for item in 0..40u64 {
            match item % 3 {
                0 => *queue.push_active().expect("the queue is not full").1 = item,
                1 => {
                    push(&mut queue, item);
                    queue.start(UNNUMBERED);
                }
                _ => {
                    push(&mut queue, item);
                    queue.start(item);
                }
            }
        }
        assert!(queue.push_active().is_none() && queue.find(UNNUMBERED).is_none());
        let slots: Vec<u32> = queue.active().collect();
        for n in [7, 0, 8, 39, 3] {
            assert_eq!(queue.remove(slots[n]).copied(), Some(n as u64));
            assert_eq!(queue.remove(slots[n]), None, "an entry can be removed only once");
        }
        assert_eq!(queue.find(11), Some(slots[11]));
        let rest: Vec<u64> = std::iter::from_fn(|| queue.pop().copied()).collect();
        assert_eq!(rest, (0..40).filter(|n| ![7, 0, 8, 39, 3].contains(n)).collect::<Vec<u64>>());
    }

    #[test]
    fn queue_of_depth_zero_accepts_nothing() {
        let mut queue: OrderedQueue<u8> = OrderedQueue::new(0);
        assert_eq!((push(&mut queue, 1), queue.start(0), queue.find(0)), (None, None, None));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.get(0), None);
    }

    #[test]
    fn consecutive_numbers_have_short_hash_probe_sequences() {
        // A removal moves later entries of a probe sequence. With consecutive hashes, it would move all entries.
        for base in [0, 1, 1 << 20, u32::MAX - 300, 0xDEAD_BEEF] {
            let mut queue = OrderedQueue::new(512);
            for number in 0..512u32 {
                push(&mut queue, number);
                queue.start(u64::from(base.wrapping_add(number)) | 1 << 32);
            }
            let longest = queue.table.split(|slot| *slot == NONE).map(<[u32]>::len).max();
            assert!(
                longest.is_some_and(|longest| longest <= 16),
                "the longest probe sequence has {longest:?} of 512 slots, instead of at most 16, for numbers from {base:#x}"
            );
        }
    }

    #[derive(Clone, Debug)]
    enum QueueCall {
        Push,
        Start,
        Take(usize),
        Pop,
    }

    proptest! {
        #[test]
        fn queue_matches_a_model_of_a_list_and_a_map(base: u32, steps in prop::collection::vec(
            prop_oneof![Just(QueueCall::Push), Just(QueueCall::Start), (0..40usize).prop_map(QueueCall::Take), Just(QueueCall::Pop)], 0..400
        )) {
            let mut queue = OrderedQueue::new(32);
            let (mut waiting, mut active) = (VecDeque::new(), Vec::<(u64, u32)>::new());
            let (mut items, mut keys) = (0u32, 0u32);
            for step in steps {
                match step {
                    QueueCall::Push => {
                        let fits = waiting.len() + active.len() < 32;
                        prop_assert_eq!(push(&mut queue, items).is_some(), fits);
                        if fits { waiting.push_back(items); }
                        items += 1;
                    }
                    QueueCall::Start => {
                        let key = u64::from(base.wrapping_add(keys / 2)) | u64::from(keys % 2) << 32;
                        keys += 1;
                        prop_assert_eq!(queue.start(key).is_some(), !waiting.is_empty());
                        active.extend(waiting.pop_front().map(|item| (key, item)));
                    }
                    QueueCall::Take(n) if n < active.len() => {
                        let (key, item) = active.remove(n);
                        let slot = queue.find(key).expect("the entry with this number is active");
                        prop_assert_eq!(queue.remove(slot).copied(), Some(item));
                        prop_assert_eq!(queue.find(key), None);
                    }
                    QueueCall::Take(_) => {}
                    QueueCall::Pop => {
                        let expected = if active.is_empty() { waiting.pop_front() } else { Some(active.remove(0).1) };
                        prop_assert_eq!(queue.pop().copied(), expected);
                    }
                }
                for (key, item) in &active {
                    prop_assert_eq!(queue.find(*key).and_then(|slot| queue.get(slot)), Some(item));
                }
                let order: Vec<u32> = queue.active().filter_map(|slot| queue.get(slot).copied()).collect();
                prop_assert_eq!(order, active.iter().map(|(_, item)| *item).collect::<Vec<_>>());
                prop_assert_eq!(queue.len() as usize, waiting.len() + active.len());
            }
        }
    }
}
