//! Adaptive spin time of a wait: it grows after successful polling and shrinks after unsuccessful polling. Used by
//! waits on EVDs and CNOs.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::runtime::shared_cpu;
use crate::runtime::wait::{self, Deadline};

/// Minimum spin time before a sleep, in nanoseconds: about the cost of a sleep and a wake-up. A lower maximum of the
/// provider takes precedence.
const SHORTEST: u32 = 2_000;
/// After each group of this many unsuccessful spins, the next spin has the maximum length.
const TRY_ALL: u32 = 8;

/// Adaptive length of the next spin.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    /// Length of the next spin in nanoseconds.
    next: AtomicU32,
    /// Number of unsuccessful spins.
    unsuccessful: AtomicU32,
}

impl Default for SpinBudget {
    fn default() -> Self {
        SpinBudget { next: AtomicU32::new(SHORTEST), unsuccessful: AtomicU32::new(0) }
    }
}

impl SpinBudget {
    /// Calls `poll` until it returns a result, for the adaptive time, but at most `longest` nanoseconds and at most until
    /// the deadline. If `longest` is 0, it does not call `poll`.
    pub(crate) fn poll<T>(&self, longest: u32, deadline: Deadline, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        if longest == 0 || cfg!(loom) {
            return None; // loom models have no clock
        }
        let budget = self.begin(longest);
        let end = wait::now() + u64::from(budget);
        loop {
            shared_cpu::relax();
            if let Some(found) = poll() {
                self.succeeded(budget, longest);
                return Some(found);
            }
            let now = wait::now();
            if now >= end || deadline.has_passed(now) {
                self.failed(budget, longest);
                return None;
            }
        }
    }

    /// Returns the length of a spin that begins now, in nanoseconds, at most `longest`.
    fn begin(&self, longest: u32) -> u32 {
        self.next.load(Ordering::Relaxed).min(longest)
    }

    /// Records that a spin of `budget` nanoseconds was successful, and doubles the length of the next spin, up to
    /// `longest`.
    fn succeeded(&self, budget: u32, longest: u32) {
        self.set(budget.saturating_mul(2).min(longest));
    }

    /// Records that a spin was unsuccessful, and halves the length of the next spin, but not below `SHORTEST`. After
    /// every eighth unsuccessful spin, the next spin has the length `longest`. Otherwise two processes that wait for
    /// each other would both go to sleep quickly, and never detect that polling is faster.
    fn failed(&self, budget: u32, longest: u32) {
        let unsuccessful = self.unsuccessful.load(Ordering::Relaxed).wrapping_add(1);
        self.unsuccessful.store(unsuccessful, Ordering::Relaxed);
        self.set(if unsuccessful.is_multiple_of(TRY_ALL) { longest } else { (budget / 2).max(SHORTEST) });
    }

    /// Sets the length of the next spin, in nanoseconds.
    pub(crate) fn set(&self, nanoseconds: u32) {
        self.next.store(nanoseconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_budget_grows_with_success_and_shrinks_with_failure() {
        let (budget, longest) = (SpinBudget::default(), 50_000);
        assert_eq!(budget.begin(1_000), 1_000, "never longer than allowed");
        budget.succeeded(budget.begin(longest), longest);
        assert_eq!(budget.begin(longest), 2 * SHORTEST);
        let mut seen = Vec::new();
        for _ in 0..TRY_ALL {
            budget.failed(budget.begin(longest), longest);
            seen.push(budget.begin(longest));
        }
        assert!(seen[..TRY_ALL as usize - 1].iter().all(|next| *next == SHORTEST));
        assert_eq!(seen.last(), Some(&longest), "every eighth spin uses the full limit");
    }
}
