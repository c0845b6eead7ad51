//! Estimates of the round-trip time: latest_rtt, smoothed_rtt, rttvar and min_rtt (RFC 9002, 5), and the probe timeout
//! (RFC 9002, 6.2.1).
//!
//! The caller, `flight`, samples only packets that were sent once, or of which the acked transmission is known.

#[cfg(test)]
use super::MICROS;
use super::{MILLIS, Nanos, SECONDS};

/// Configuration of the timeouts, in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Timing {
    /// Probe timeout before the first RTT sample (US-9).
    pub(crate) first: Nanos,
    /// Minimum of the probe timeout: kGranularity (RFC 9002, 6.2.1).
    pub(crate) floor: Nanos,
    /// Maximum of the probe timeout, after any number of doublings. It limits how long a path that works again stays
    /// unused.
    pub(crate) ceiling: Nanos,
    /// The peer's maximum ack delay: max_ack_delay (RFC 9002, 6.2.1).
    pub(crate) ack_delay: Nanos,
    /// Time without newly acked packets after which the peer has timed out.
    pub(crate) give_up: Nanos,
}

#[cfg(test)]
impl Default for Timing {
    fn default() -> Self {
        Timing {
            first: 100 * MILLIS,
            floor: MILLIS,
            ceiling: 2 * SECONDS,
            ack_delay: 50 * MICROS,
            give_up: 20 * SECONDS,
        }
    }
}

/// Largest ack delay that is subtracted (max_ack_delay, RFC 9002, 5.3).
const MAX_ACK_DELAY: Nanos = 25 * MILLIS;

/// Length of the intervals for min_rtt, in nanoseconds: BBR.MinRTTFilterLen (draft-ietf-ccwg-bbr-06, 2.16.1). min_rtt is
/// the minimum of the current and the previous interval, so that it increases if the path becomes longer (RFC 9002,
/// 5.2).
const MIN_RTT_WINDOW: Nanos = 10 * SECONDS;

/// Round-trip times of one connection.
#[derive(Debug)]
pub(crate) struct Rtt {
    pub(crate) timing: Timing,
    /// The estimates, or `None` before the first sample.
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    latest_rtt: Nanos,
    srtt: Nanos,
    rttvar: Nanos,
    /// Minimum RTT of the previous interval, and of the current interval.
    min_rtt: [Nanos; 2],
    /// Start of the current interval of `min_rtt`.
    since: Nanos,
}

impl Rtt {
    pub(crate) fn new(timing: Timing) -> Self {
        Rtt { timing, measured: None }
    }

    /// Records an RTT sample. `delay` is the time by which the peer delayed the ack.
    pub(crate) fn record_sample(&mut self, now: Nanos, rtt: Nanos, delay: Nanos) {
        let rtt = rtt.max(1);
        let Some(seen) = &mut self.measured else {
            self.measured =
                Some(Measured { latest_rtt: rtt, srtt: rtt, rttvar: rtt / 2, min_rtt: [rtt; 2], since: now });
            return;
        };
        if now.saturating_sub(seen.since) >= MIN_RTT_WINDOW {
            seen.min_rtt = [seen.min_rtt[1], rtt];
            seen.since = now;
        }
        seen.min_rtt[1] = seen.min_rtt[1].min(rtt);
        let minimum = seen.min_rtt[0].min(seen.min_rtt[1]);
        // Subtracts the peer's ack delay, but never below min_rtt.
        let rtt = rtt.saturating_sub(delay.min(MAX_ACK_DELAY)).max(minimum);
        seen.latest_rtt = rtt;
        seen.rttvar = ewma(seen.rttvar, seen.srtt.abs_diff(rtt), 4);
        seen.srtt = ewma(seen.srtt, rtt, 8);
    }

    /// Returns the latest sample, or `None` before the first sample.
    pub(crate) fn latest_rtt(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.latest_rtt)
    }

    pub(crate) fn srtt(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.srtt)
    }

    /// Returns the minimum RTT of the current and the previous interval of [`MIN_RTT_WINDOW`].
    pub(crate) fn min_rtt(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.min_rtt[0].min(seen.min_rtt[1]))
    }

    /// Returns the probe timeout (PTO) after `backoff` consecutive probe timeouts.
    pub(crate) fn pto(&self, backoff: u32) -> Nanos {
        let base = match self.measured {
            None => self.timing.first,
            Some(seen) => seen.srtt.saturating_add(seen.rttvar.saturating_mul(4)).saturating_add(self.timing.ack_delay),
        };
        let floored = base.max(self.timing.floor).max(1);
        floored.saturating_mul(1 << backoff.min(32)).min(self.timing.ceiling.max(self.timing.floor).max(1))
    }
}

/// Updates an exponentially weighted moving average: moves `old` towards `new` by 1 / `parts`, without overflow.
fn ewma(old: Nanos, new: Nanos, parts: u64) -> Nanos {
    old - old / parts + new / parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rtt(samples: &[(Nanos, Nanos)]) -> Rtt {
        let mut rtt = Rtt::new(Timing::default());
        samples.iter().for_each(|&(sample, delay)| rtt.record_sample(0, sample, delay));
        rtt
    }

    #[test]
    fn default_timeout_applies_before_the_first_rtt_sample() {
        let rtt = rtt(&[]);
        assert_eq!((rtt.latest_rtt(), rtt.srtt(), rtt.min_rtt()), (None, None, None));
        assert_eq!((rtt.pto(0), rtt.pto(1), rtt.pto(2)), (100 * MILLIS, 200 * MILLIS, 400 * MILLIS));
    }

    #[test]
    fn first_sample_is_used_directly_and_later_ones_are_averaged() {
        let one = rtt(&[(8 * MILLIS, 0)]);
        assert_eq!((one.srtt(), one.min_rtt()), (Some(8 * MILLIS), Some(8 * MILLIS)));
        assert_eq!(one.pto(0), 8 * MILLIS + 4 * 4 * MILLIS + 50 * MICROS);
        let two = rtt(&[(8 * MILLIS, 0), (16 * MILLIS, 0)]);
        assert_eq!((two.latest_rtt(), two.srtt()), (Some(16 * MILLIS), Some(9 * MILLIS)));
        // The rttvar is 3/4 of 4 ms plus 1/4 of 8 ms, which is 5 ms.
        assert_eq!(two.pto(0), 9 * MILLIS + 4 * 5 * MILLIS + 50 * MICROS);
    }

    #[test]
    fn peer_ack_delay_is_subtracted_within_bounds() {
        assert_eq!(rtt(&[(MILLIS, 0), (3 * MILLIS, MILLIS)]).latest_rtt(), Some(2 * MILLIS));
        assert_eq!(
            rtt(&[(MILLIS, 0), (3 * MILLIS, Nanos::MAX)]).latest_rtt(),
            Some(MILLIS),
            "subtracting the ack delay does not go below the minimum RTT"
        );
        assert_eq!(
            rtt(&[(MILLIS, 0), (SECONDS, SECONDS)]).latest_rtt(),
            Some(975 * MILLIS),
            "at most the maximum ack delay is subtracted"
        );
    }

    #[test]
    fn probe_timeout_stays_within_its_bounds() {
        let near = rtt(&[(20 * MICROS, 0); 9]);
        assert_eq!((near.pto(0), near.pto(1), near.pto(3)), (MILLIS, 2 * MILLIS, 8 * MILLIS));
        assert_eq!((near.pto(40), near.pto(u32::MAX)), (2 * SECONDS, 2 * SECONDS));
        let odd = Rtt::new(Timing { first: 0, floor: 0, ceiling: 0, ..Timing::default() });
        assert_eq!(
            odd.pto(u32::MAX),
            1,
            "the timeout is at least 1 ns, so that a timer does not expire repeatedly at the same time"
        );
    }

    #[test]
    fn min_rtt_increases_with_a_longer_path() {
        let mut rtt = rtt(&[(MILLIS, 0)]);
        rtt.record_sample(5 * SECONDS, 9 * MILLIS, 0);
        rtt.record_sample(12 * SECONDS, 9 * MILLIS, 0);
        assert_eq!(rtt.min_rtt(), Some(MILLIS));
        rtt.record_sample(23 * SECONDS, 9 * MILLIS, 0);
        assert_eq!(rtt.min_rtt(), Some(9 * MILLIS));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_samples_keep_min_rtt_and_timeout_within_their_bounds(samples in prop::collection::vec(any::<(u64, u64, u64)>(), 0..50), backoff: u32) {
            let mut rtt = Rtt::new(Timing::default());
            for (now, sample, delay) in samples {
                rtt.record_sample(now, sample, delay);
                prop_assert!(rtt.min_rtt() <= rtt.latest_rtt());
                prop_assert!(rtt.latest_rtt() <= Some(sample.max(1)).max(rtt.min_rtt()));
            }
            prop_assert!((MILLIS..=2 * SECONDS).contains(&rtt.pto(backoff)));
        }
    }
}
