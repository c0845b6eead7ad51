//! Watermarks: limits for the number of receives.
//!
//! Providers keep a [`HighWatermark`] per queue pair and a [`LowWatermark`] per SRQ, under the lock that guards the
//! receives, and check the number after each change. Without a watermark, a check is one comparison. The provider
//! reports the crossings that a check returns.
#![forbid(unsafe_code)]

/// Watermarks for the outstanding receives of a queue pair (spec/events 5.6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HighWatermark {
    /// Largest number of receives that crosses no watermark.
    quiet: u32,
    soft: Option<u32>,
    hard: Option<u32>,
}

/// The watermarks that a number of receives exceeds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CrossedWatermarks {
    /// The number exceeds the soft watermark for the first time since the watermark was set.
    pub soft: bool,
    /// The number exceeds the hard watermark, which ends the connection. Every check reports this while the number
    /// exceeds it.
    pub hard: bool,
}

impl Default for HighWatermark {
    fn default() -> Self {
        HighWatermark::new(None, None)
    }
}

impl HighWatermark {
    /// Sets both watermarks; `None` disables a watermark.
    pub fn new(soft: Option<u32>, hard: Option<u32>) -> Self {
        let quiet = soft.unwrap_or(u32::MAX).min(hard.unwrap_or(u32::MAX));
        HighWatermark { quiet, soft, hard }
    }

    /// The largest number of receives that crosses no watermark.
    pub fn max_unchecked(&self) -> u32 {
        self.quiet
    }

    /// Whether [`Self::check`] would report a crossing.
    #[inline]
    pub fn is_crossed(&self, count: u32) -> bool {
        count > self.quiet
    }

    /// Checks the current number of receives.
    #[inline]
    pub fn check(&mut self, count: u32) -> CrossedWatermarks {
        if self.is_crossed(count) { self.mark_crossed(count) } else { CrossedWatermarks::default() }
    }

    #[cold]
    fn mark_crossed(&mut self, count: u32) -> CrossedWatermarks {
        let is_above = |mark: Option<u32>| mark.is_some_and(|mark| count > mark);
        let crossed = CrossedWatermarks { soft: is_above(self.soft), hard: is_above(self.hard) };
        if crossed.soft {
            *self = HighWatermark::new(None, self.hard);
        }
        crossed
    }
}

/// Low watermark for the available receives of an SRQ (spec/events 6.6).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LowWatermark(u32);

impl LowWatermark {
    /// Sets the watermark; 0 disables it.
    pub fn new(limit: u32) -> Self {
        LowWatermark(limit)
    }

    /// Checks the number of available receives. Returns true if it is below the watermark for the first time since the
    /// watermark was set.
    #[inline]
    pub fn check(&mut self, available: u32) -> bool {
        let crossed = available < self.0;
        if crossed {
            self.0 = 0;
        }
        crossed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: CrossedWatermarks = CrossedWatermarks { soft: false, hard: false };
    const SOFT: CrossedWatermarks = CrossedWatermarks { soft: true, hard: false };
    const HARD: CrossedWatermarks = CrossedWatermarks { soft: false, hard: true };

    #[test]
    fn no_watermark_is_reported_before_one_is_set() {
        let mut high = HighWatermark::default();
        assert_eq!([0, 1, u32::MAX].map(|count| high.check(count)), [NOTHING; 3]);
        let mut low = LowWatermark::default();
        assert_eq!([0, 1].map(|count| low.check(count)), [false; 2]);
    }

    #[test]
    fn soft_watermark_is_reported_once_until_set_again() {
        let mut high = HighWatermark::new(Some(2), None);
        assert_eq!([2, 3, 4, 1, 3].map(|count| high.check(count)), [NOTHING, SOFT, NOTHING, NOTHING, NOTHING]);
        high = HighWatermark::new(Some(2), None);
        assert_eq!(high.check(3), SOFT, "at once");
    }

    #[test]
    fn hard_watermark_is_reported_while_exceeded() {
        let mut high = HighWatermark::new(Some(0), Some(2));
        assert_eq!(high.check(3), CrossedWatermarks { soft: true, hard: true });
        assert_eq!([3, 2, 3].map(|count| high.check(count)), [HARD, NOTHING, HARD]);
    }

    #[test]
    fn low_watermark_is_reported_once_until_set_again() {
        let mut low = LowWatermark::new(2);
        assert_eq!([3, 2, 1, 0].map(|count| low.check(count)), [false, false, true, false]);
        low = LowWatermark::new(1);
        assert_eq!([1, 0, 0].map(|count| low.check(count)), [false, true, false]);
    }
}
