//! Delays between repetitions of a connection request that found no listener. Reads no clock.
#![forbid(unsafe_code)]

use std::time::Duration;

/// The first delay. Each later one is twice as long, up to `LAST`. Both are short compared with the start of a program.
pub const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(8);

/// The delay that follows this one.
pub fn next(wait: Duration) -> Duration {
    (wait * 2).min(LAST)
}

/// The part of `listener_wait_ms` that is left for one request.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    left: Duration,
    next: Duration,
}

impl Retry {
    /// For a request that is repeated for `listener_wait` in total. Zero: it is not repeated.
    pub fn new(listener_wait: Duration) -> Self {
        Retry { left: listener_wait, next: FIRST }
    }

    /// The delay before the next repetition. `None`: the time is used up, and the request is rejected.
    pub fn wait(&mut self) -> Option<Duration> {
        let wait = self.next.min(self.left);
        self.left -= wait;
        self.next = next(self.next);
        Some(wait).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(milliseconds: u64) -> Vec<u128> {
        let mut retry = Retry::new(Duration::from_millis(milliseconds));
        std::iter::from_fn(|| retry.wait()).map(|wait| wait.as_millis()).collect()
    }

    #[test]
    fn waits_double_and_sum_to_the_setting() {
        assert_eq!(waits(50), [1, 2, 4, 8, 8, 8, 8, 8, 3]);
        assert_eq!(waits(1), [1]);
        assert!(waits(0).is_empty());
    }
}
