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
    members: HashSet<ObjectId, BuildHasherDefault<HandleHasher>>,
}

impl TriggerQueue {
    /// Appends an EVD, unless it is queued already.
    pub(super) fn insert(&mut self, source: Arc<dyn EvdSource>) {
        if self.members.insert(source.id()) {
            self.queue.push_back(source);
        }
    }

    /// Removes and returns the EVD that triggered first.
    pub(super) fn pop(&mut self) -> Option<Arc<dyn EvdSource>> {
        let source = self.queue.pop_front()?;
        self.members.remove(&source.id());
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
}
