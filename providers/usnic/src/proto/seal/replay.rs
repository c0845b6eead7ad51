//! Replay window: accepts each counter once, and rejects counters that are too old.

use crate::proto::WINDOW;
use crate::proto::bits::Bits;
use crate::proto::psn::Psn;

/// Width of the window in counters: twice the maximum number of data packets in flight, because ack and control packets
/// also use counters.
pub(crate) const WIDTH: u64 = 2 * WINDOW as u64;

/// The accepted counters among the last [`WIDTH`].
#[derive(Clone, Debug)]
pub(crate) struct ReplayWindow {
    /// One more than the highest accepted counter.
    end: u64,
    seen: Bits<{ WIDTH as usize / 64 }>,
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { end: 0, seen: Bits::new() }
    }

    /// Whether the counter is within or ahead of the window, and was not accepted before. `u64::MAX` is never accepted,
    /// because `end` cannot be one more than it.
    pub(crate) fn is_new(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter != u64::MAX;
        }
        self.end - counter <= WIDTH && !self.seen.has(place(counter))
    }

    /// Records an accepted counter.
    pub(crate) fn take(&mut self, counter: u64) {
        if counter >= self.end {
            // Clears the bits of the counters that enter the window.
            let count = (counter - self.end + 1).min(WIDTH);
            self.seen.clear_run(place(self.end), count as u32);
            self.end = counter + 1;
        }
        self.seen.set(place(counter));
    }
}

/// Returns the index of a counter in the ring: its lower 32 bits.
fn place(counter: u64) -> Psn {
    Psn(counter as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn try_take(window: &mut ReplayWindow, counter: u64) -> bool {
        let is_new = window.is_new(counter);
        if is_new {
            window.take(counter);
        }
        is_new
    }

    #[test]
    fn each_counter_is_accepted_once_and_old_ones_are_rejected() {
        let mut window = ReplayWindow::new();
        assert!(try_take(&mut window, 0) && !try_take(&mut window, 0));
        assert!(try_take(&mut window, WIDTH), "a counter at the end of the window is new");
        assert!(!window.is_new(0), "a counter before the window is too old");
        assert!(
            try_take(&mut window, 1) && !try_take(&mut window, 1),
            "the oldest counter in the window is accepted once"
        );
        assert!(try_take(&mut window, 10 * WIDTH));
        assert!(!window.is_new(WIDTH) && !window.is_new(9 * WIDTH) && window.is_new(9 * WIDTH + 1));
    }

    #[test]
    fn counters_of_the_replay_window_do_not_wrap() {
        let mut window = ReplayWindow::new();
        assert!(try_take(&mut window, u64::MAX - 1));
        assert!(!window.is_new(u64::MAX) && !window.is_new(u64::MAX - 1) && window.is_new(u64::MAX - 2));
        assert!(!window.is_new(0));
    }

    proptest! {
        #[test]
        fn replay_window_matches_a_model_set(
            steps in prop::collection::vec(0..20_000u64, 1..400),
            start in 0..200_000u64,
        ) {
            let (mut window, mut taken, mut highest) = (ReplayWindow::new(), HashSet::new(), None::<u64>);
            for (place, step) in steps.into_iter().enumerate() {
                // Counters grow in small and in large steps, and sometimes decrease.
                let counter = start + place as u64 * 200 + if step < 15_000 { step % 300 } else { step };
                let too_old = highest.is_some_and(|highest| counter + WIDTH <= highest);
                let expected = !too_old && taken.insert(counter);
                prop_assert_eq!(try_take(&mut window, counter), expected, "counter {}", counter);
                highest = highest.max(Some(counter));
            }
        }
    }
}
