//! Queue of the EVDs that have triggered a CNO, in trigger order, each at most once (spec/events 3.6).
//!
//! Used under the CNO's lock.
#![forbid(unsafe_code)]

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::EvdSource;
use crate::runtime::handle::{HandleHasher, ObjectId};

/// The EVDs that have triggered the CNO, in the order of their first triggers. An EVD is listed once.
#[derive(Default)]
pub(super) struct TriggerQueue {
    queue: VecDeque<Arc<dyn EvdSource>>,
    /// The ids of all queued EVDs, once the queue has exceeded `SHORT` entries, and until it is empty. Otherwise this
    /// set is empty, because a search of a short queue is faster.
    members: HashSet<ObjectId, BuildHasherDefault<HandleHasher>>,
}

impl TriggerQueue {
    /// Maximum length of a queue that is searched linearly. The ids in a longer one are in `members`.
    const SHORT: usize = 8;

    /// Appends an EVD, unless it is queued already.
    pub(super) fn insert(&mut self, source: Arc<dyn EvdSource>) {
        if !self.contains(source.id()) {
            self.queue.push_back(source);
            if self.queue.len() > Self::SHORT || !self.members.is_empty() {
                self.index();
            }
        }
    }

    /// Returns an EVD that was just popped to the front, unless it is queued again already.
    pub(super) fn put_back(&mut self, source: Arc<dyn EvdSource>) {
        let id = source.id();
        if !self.contains(id) {
            self.queue.push_front(source);
            if !self.members.is_empty() {
                self.members.insert(id);
            } else if self.queue.len() > Self::SHORT {
                self.index();
            }
        }
    }

    fn contains(&self, id: ObjectId) -> bool {
        if self.members.is_empty() {
            self.queue.iter().any(|queued| queued.id() == id)
        } else {
            self.members.contains(&id)
        }
    }

    /// Adds the EVD that was just queued to `members`, or all queued EVDs if `members` is empty.
    #[cold]
    fn index(&mut self) {
        let known = self.members.len();
        self.members.extend(self.queue.range(known..).map(|source| source.id()));
    }

    /// Removes and returns the EVD that triggered first.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Arc<dyn EvdSource>> {
        let source = self.queue.pop_front()?;
        if !self.members.is_empty() {
            self.members.remove(&source.id());
        }
        Some(source)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cno::PollPass;

    struct Named(usize);
    impl EvdSource for Named {
        fn id(&self) -> ObjectId {
            ObjectId { handle: self.0, generation: 0 }
        }
        fn pending(&self, _: ObjectId) -> bool {
            true
        }
        fn poll(&self, _: &mut PollPass) {}
        fn arm(&self) {}
    }

    #[test]
    fn each_evd_is_queued_once_in_the_order_of_its_first_trigger() {
        let mut triggers = TriggerQueue::default();
        for name in [3, 1, 3, 2, 1] {
            triggers.insert(Arc::new(Named(name)));
        }
        let order: Vec<_> = std::iter::from_fn(|| triggers.pop()).map(|source| source.id().handle).collect();
        assert_eq!(order, [3, 1, 2]);
        triggers.insert(Arc::new(Named(3)));
        assert!(!triggers.is_empty(), "popped, so it may be queued again");
    }

    #[test]
    fn long_queue_lists_each_evd_once_in_trigger_order() {
        let mut triggers = TriggerQueue::default();
        let mut expected = VecDeque::new();
        // The queue grows beyond the length that is searched, shrinks below it, and grows again.
        for (first, inserts, pops) in [(0, 20, 17), (15, 20, 30), (40, 5, 0), (38, 12, 18)] {
            for name in (first..first + inserts).chain(first..first + inserts) {
                triggers.insert(Arc::new(Named(name)));
                if !expected.contains(&name) {
                    expected.push_back(name);
                }
            }
            for _ in 0..pops.min(expected.len()) {
                assert_eq!(triggers.pop().map(|source| source.id().handle), expected.pop_front());
            }
        }
        assert!(expected.is_empty() && triggers.is_empty() && triggers.members.is_empty());
    }
}
