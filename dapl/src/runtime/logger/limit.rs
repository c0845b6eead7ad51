//! Rate limit for errors and warnings: a burst of at most `BURST` lines, and after it one line per `REFILL_INTERVAL`.
//! Further lines are suppressed and counted.
//!
//! A program that loses thousands of connections at the same time must not be slowed down by its log. The current time
//! is a parameter.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Maximum number of lines in a burst.
const BURST: u32 = 256;
/// Interval after which one more line may be logged.
const REFILL_INTERVAL: Duration = Duration::from_millis(50);

/// A token bucket of log lines.
#[derive(Debug)]
pub(super) struct Limit {
    /// Lines logged since the bucket was full, minus those that time has replenished.
    owed: u32,
    /// Time of the last refill.
    since: Duration,
    /// Lines suppressed since the last logged one.
    suppressed: u64,
}

impl Limit {
    pub(super) const fn new() -> Self {
        Limit { owed: 0, since: Duration::ZERO, suppressed: 0 }
    }

    /// Returns the number of lines suppressed since the last logged one if a line may be logged at `now` (monotonic).
    /// Returns `None` if the line must be suppressed.
    pub(super) fn take(&mut self, now: Duration) -> Option<u64> {
        let passed = now.saturating_sub(self.since);
        let good = u32::try_from(passed.as_nanos() / REFILL_INTERVAL.as_nanos()).unwrap_or(u32::MAX);
        self.owed = self.owed.saturating_sub(good);
        // The remainder of an interval counts towards the next refill. If the bucket is full, the next interval begins
        // at `now`.
        self.since = if self.owed == 0 { now.max(self.since) } else { self.since + REFILL_INTERVAL * good };
        if self.owed < BURST {
            self.owed += 1;
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(limit: &mut Limit, count: u32, now: Duration) -> u32 {
        (0..count).filter(|_| limit.take(now).is_some()).count() as u32
    }

    #[test]
    fn burst_of_log_lines_passes_and_further_lines_are_suppressed() {
        let mut limit = Limit::new();
        let now = Duration::from_secs(1_000_000);
        assert_eq!(logged(&mut limit, BURST + 500, now), BURST);
        assert_eq!(logged(&mut limit, 500, now + REFILL_INTERVAL * 10), 10);
        assert_eq!(logged(&mut limit, 500, now + REFILL_INTERVAL * 10 + REFILL_INTERVAL / 2), 0);
        assert_eq!(logged(&mut limit, 500, now + REFILL_INTERVAL * 11), 1, "two half intervals count as one");
        assert_eq!(
            logged(&mut limit, 5_000, now + Duration::from_secs(3600)),
            BURST,
            "the bucket fills up, and no further"
        );
    }

    #[test]
    fn suppressed_log_lines_are_counted() {
        let mut limit = Limit::new();
        let now = Duration::from_secs(9);
        assert_eq!(logged(&mut limit, BURST + 7, now), BURST);
        assert_eq!(limit.take(now + REFILL_INTERVAL), Some(7));
        assert_eq!(limit.take(now + REFILL_INTERVAL * 2), Some(0));
    }

    #[test]
    fn log_limit_suppresses_lines_while_the_clock_is_set_back() {
        let mut limit = Limit::new();
        assert_eq!(logged(&mut limit, BURST, Duration::from_secs(5)), BURST);
        assert_eq!(logged(&mut limit, 3, Duration::ZERO), 0);
        assert_eq!(limit.take(Duration::MAX), Some(3));
    }
}
