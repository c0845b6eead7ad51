//! Computes the delays between repetitions of a connection request that found no listener. The caller sets timers.
#![forbid(unsafe_code)]

use std::time::Duration;

/// The first delay. Each later delay is twice as long, up to `MAX`. Both are short compared with the time that a
/// program needs to start.
pub const FIRST: Duration = Duration::from_millis(1);
const MAX: Duration = Duration::from_millis(8);

/// Returns the delay that follows `delay`.
pub fn next(delay: Duration) -> Duration {
    (delay * 2).min(MAX)
}

/// The retry schedule of one connection request.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Remaining part of `listener_wait_ms`.
    remaining: Duration,
    next: Duration,
}

impl Retry {
    /// Creates the schedule of a request that is repeated for `listener_wait` in total, or never if this time is zero.
    pub fn new(listener_wait: Duration) -> Self {
        Retry { remaining: listener_wait, next: FIRST }
    }

    /// Returns the delay before the next repetition, or `None` if the time is used up, so that the connection attempt
    /// fails.
    pub fn next_delay(&mut self) -> Option<Duration> {
        let delay = self.next.min(self.remaining);
        self.remaining -= delay;
        self.next = next(self.next);
        Some(delay).filter(|delay| !delay.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays_ms(listener_wait_ms: u64) -> Vec<u128> {
        let mut retry = Retry::new(Duration::from_millis(listener_wait_ms));
        std::iter::from_fn(|| retry.next_delay()).map(|delay| delay.as_millis()).collect()
    }

    #[test]
    fn delays_double_up_to_the_maximum_and_sum_to_listener_wait() {
        assert_eq!(delays_ms(50), [1, 2, 4, 8, 8, 8, 8, 8, 3]);
        assert_eq!(delays_ms(1), [1]);
        assert!(delays_ms(0).is_empty());
    }
}
