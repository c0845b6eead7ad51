//! Number of outstanding receives of an SRQ, and its limit (spec/events 6).
//!
//! Both numbers are in one atomic word, so that posts, dequeued completions and resizes change them together without a
//! lock.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Capacity in the upper half, number of outstanding receives in the lower half.
#[derive(Debug)]
pub(super) struct SrqCapacity(AtomicU64);

impl SrqCapacity {
    pub(super) fn new(capacity: u32) -> Self {
        SrqCapacity(AtomicU64::new(join(capacity, 0)))
    }

    pub(super) fn capacity(&self) -> u32 {
        split(self.0.load(Ordering::Acquire)).0
    }

    pub(super) fn outstanding(&self) -> u32 {
        split(self.0.load(Ordering::Acquire)).1
    }

    /// Counts a posted receive. Returns false if the SRQ is full.
    pub(super) fn take(&self) -> bool {
        self.update(|capacity, outstanding| (outstanding < capacity).then(|| (capacity, outstanding + 1)))
    }

    /// Subtracts a receive whose completion was dequeued, or whose post failed. The number never falls below 0: a
    /// completion of a freed SRQ may be dequeued after the handle was reused for another SRQ.
    pub(super) fn release(&self) {
        self.update(|capacity, outstanding| Some((capacity, outstanding.checked_sub(1)?)));
    }

    /// Changes the capacity. Returns false if more receives are outstanding.
    pub(super) fn resize(&self, capacity: u32) -> bool {
        self.update(|_, outstanding| (outstanding <= capacity).then_some((capacity, outstanding)))
    }

    fn update(&self, step: impl Fn(u32, u32) -> Option<(u32, u32)>) -> bool {
        let step = |word| {
            let (capacity, outstanding) = split(word);
            step(capacity, outstanding).map(|(capacity, outstanding)| join(capacity, outstanding))
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }
}

fn join(capacity: u32, outstanding: u32) -> u64 {
    u64::from(capacity) << 32 | u64::from(outstanding)
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srq_capacity_limits_outstanding_receives() {
        let capacity = SrqCapacity::new(2);
        assert_eq!([capacity.take(), capacity.take(), capacity.take()], [true, true, false]);
        capacity.release();
        assert_eq!((capacity.outstanding(), capacity.take(), capacity.outstanding()), (1, true, 2));
    }

    #[test]
    fn srq_shrink_is_limited_by_outstanding_receives() {
        let capacity = SrqCapacity::new(3);
        assert!(capacity.take() && capacity.take());
        assert_eq!((capacity.resize(1), capacity.capacity()), (false, 3));
        assert_eq!((capacity.resize(2), capacity.capacity(), capacity.take()), (true, 2, false));
    }

    #[test]
    fn outstanding_srq_receives_do_not_fall_below_zero() {
        let capacity = SrqCapacity::new(1);
        capacity.release();
        assert_eq!((capacity.outstanding(), capacity.capacity(), capacity.take()), (0, 1, true));
    }
}
