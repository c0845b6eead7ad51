//! Spreads packets over time: a token bucket, kept as the time at which it is full again.
//!
//! The caller asks before it sends and tells afterwards; the rate is the controller's. The bucket holds one train, or what a
//! late timer has to make up for, whichever is less, and always one packet. Keeps no timer and no packet.

use super::{MILLIS, Nanos, SECONDS};

/// What may leave at once: one train (64 KiB).
pub(crate) const BURST: u64 = 65_536;
/// The bucket holds what this long earns, if that is less: a timer is not later than this as a rule.
const SLACK: Nanos = MILLIS;
/// Nobody waits longer than this for a packet, whatever rates were in the past.
const LONGEST: Nanos = SECONDS;

#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// When the bucket is full again.
    full_at: Nanos,
    /// How long an empty bucket takes to fill.
    depth: Nanos,
    /// Of the last packet; 0: unpaced.
    rate: u64,
}

/// How long so many bytes take.
fn time(bytes: u64, rate: u64) -> Nanos {
    let nanos = u128::from(bytes) * u128::from(SECONDS) / u128::from(rate.max(1));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX).min(LONGEST)
}

impl Pacer {
    /// `Err`: not before that time. More than the bucket holds goes when the bucket is full.
    pub(crate) fn ready(&self, now: Nanos, bytes: u64) -> Result<(), Nanos> {
        if self.rate == 0 {
            return Ok(());
        }
        let room = self.depth.saturating_sub(time(bytes, self.rate));
        let at = self.full_at.saturating_sub(room);
        if at <= now { Ok(()) } else { Err(at) }
    }

    /// So much has left, at this rate; `None`: nothing is paced.
    pub(crate) fn spent(&mut self, now: Nanos, bytes: u64, rate: Option<u64>) {
        self.rate = rate.unwrap_or(0);
        if self.rate == 0 {
            self.full_at = now;
            return;
        }
        self.depth = time(BURST, self.rate).min(SLACK);
        self.full_at = self.full_at.max(now).saturating_add(time(bytes, self.rate)).min(now.saturating_add(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets as soon as it may, for a second; says how many bytes left, and the most within a millisecond.
    fn second(bytes: u64, rate: u64) -> (u64, u64) {
        let (mut pacer, mut now, mut sent, mut slot, mut in_slot, mut most) = (Pacer::default(), 0, 0, 0, 0, 0);
        pacer.spent(0, 0, Some(rate));
        while now < SECONDS {
            match pacer.ready(now, bytes) {
                Err(at) => {
                    assert!(at > now, "a wait that ends");
                    now = at;
                }
                Ok(()) => {
                    pacer.spent(now, bytes, Some(rate));
                    sent += bytes;
                    (slot, in_slot) =
                        if now / MILLIS == slot { (slot, in_slot + bytes) } else { (now / MILLIS, bytes) };
                    most = most.max(in_slot);
                }
            }
        }
        (sent, most)
    }

    #[test]
    fn a_second_carries_the_rate_and_no_burst_exceeds_a_train() {
        for (bytes, rate) in [(1472, 10_000_000), (1472, 1_000_000_000), (65_000, 1_000_000_000), (1172, 40_000)] {
            let (sent, most) = second(bytes, rate);
            let slack = BURST + bytes;
            assert!(sent >= rate - bytes && sent <= rate + slack, "{bytes} at {rate}: {sent}");
            assert!(most <= rate / 1000 + slack.min(rate / 1000 + 2 * bytes), "{bytes} at {rate}: burst of {most}");
        }
    }

    #[test]
    fn idle_time_earns_one_bucket_and_no_more() {
        let mut pacer = Pacer::default();
        pacer.spent(0, 1000, Some(1_000_000_000));
        let (now, mut sent) = (10 * SECONDS, 0);
        while pacer.ready(now, 1000).is_ok() {
            pacer.spent(now, 1000, Some(1_000_000_000));
            sent += 1000;
        }
        assert_eq!(sent, BURST / 1000 * 1000);
    }

    #[test]
    fn no_rate_is_no_wait() {
        let mut pacer = Pacer::default();
        for _ in 0..1000 {
            assert_eq!(pacer.ready(5, BURST), Ok(()));
            pacer.spent(5, BURST, None);
        }
        pacer.spent(5, BURST, Some(1));
        assert!(pacer.ready(5, 1).is_err());
        pacer.spent(6, 1, None);
        assert_eq!(pacer.ready(6, BURST), Ok(()), "an old debt is forgotten with the rate");
    }

    #[test]
    fn extremes_neither_overflow_nor_wait_for_ever() {
        let mut pacer = Pacer::default();
        pacer.spent(0, u64::MAX, Some(1));
        assert_eq!(pacer.ready(0, u64::MAX), Err(LONGEST));
        assert_eq!(pacer.ready(LONGEST, u64::MAX), Ok(()));
        pacer.spent(Nanos::MAX - 1, u64::MAX, Some(u64::MAX));
        assert_eq!(pacer.ready(Nanos::MAX, 1), Ok(()));
    }
}
