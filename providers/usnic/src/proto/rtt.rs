//! How long a packet and its ack take: smoothed, its variation, its minimum, and the timeout that follows (RFC 9002, 5).
//!
//! Which packets may be measured (those that were sent once) is for `flight` to know.

use super::{MICROS, MILLIS, Nanos, SECONDS};

/// What can be set of time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Timing {
    /// Timeout before anything was measured (US-9).
    pub(crate) first: Nanos,
    /// No timeout is shorter,
    pub(crate) floor: Nanos,
    /// and none longer, however often it doubled.
    pub(crate) ceiling: Nanos,
    /// How long the peer waits before it acks.
    pub(crate) ack_delay: Nanos,
    /// So long without progress, and the peer is gone.
    pub(crate) give_up: Nanos,
}

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

/// A peer is believed to have waited so long at most, whatever it says: a delay too large would hide how long the path is.
const DELAY_BELIEVED: Nanos = 25 * MILLIS;

/// The minimum is that of the last one or two of these, so that a path that got longer is noticed.
const MINIMUM_HOLDS: Nanos = 10 * SECONDS;

/// Round-trip times of one connection.
#[derive(Debug)]
pub(crate) struct Rtt {
    timing: Timing,
    /// `None` before the first sample.
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    latest: Nanos,
    smoothed: Nanos,
    variation: Nanos,
    /// Of the span before, and of this one.
    minimum: [Nanos; 2],
    /// When this span began.
    since: Nanos,
}

impl Rtt {
    pub(crate) fn new(timing: Timing) -> Self {
        Rtt { timing, measured: None }
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// A packet sent once was acked after `rtt`; the peer says that its ack waited for `delay`.
    pub(crate) fn sample(&mut self, now: Nanos, rtt: Nanos, delay: Nanos) {
        let rtt = rtt.max(1);
        let Some(seen) = &mut self.measured else {
            self.measured =
                Some(Measured { latest: rtt, smoothed: rtt, variation: rtt / 2, minimum: [rtt; 2], since: now });
            return;
        };
        if now.saturating_sub(seen.since) >= MINIMUM_HOLDS {
            seen.minimum = [seen.minimum[1], rtt];
            seen.since = now;
        }
        seen.minimum[1] = seen.minimum[1].min(rtt);
        let minimum = seen.minimum[0].min(seen.minimum[1]);
        // Without the delay, but never below what the path needs.
        let rtt = rtt.saturating_sub(delay.min(DELAY_BELIEVED)).max(minimum);
        seen.latest = rtt;
        seen.variation = average(seen.variation, seen.smoothed.abs_diff(rtt), 4);
        seen.smoothed = average(seen.smoothed, rtt, 8);
    }

    /// The last one; `None` before the first sample, as with the two that follow.
    pub(crate) fn latest(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.latest)
    }

    pub(crate) fn smoothed(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.smoothed)
    }

    /// The shortest of the last 10 to 20 s.
    pub(crate) fn minimum(&self) -> Option<Nanos> {
        self.measured.map(|seen| seen.minimum[0].min(seen.minimum[1]))
    }

    /// The probe timeout after it has passed `backoff` times in vain.
    pub(crate) fn pto(&self, backoff: u32) -> Nanos {
        let base = match self.measured {
            None => self.timing.first,
            Some(seen) => {
                seen.smoothed.saturating_add(seen.variation.saturating_mul(4)).saturating_add(self.timing.ack_delay)
            }
        };
        let floored = base.max(self.timing.floor).max(1);
        floored.saturating_mul(1 << backoff.min(32)).min(self.timing.ceiling.max(self.timing.floor).max(1))
    }
}

/// `old` moved towards `new` by one part of `parts`; the sum cannot wrap.
fn average(old: Nanos, new: Nanos, parts: u64) -> Nanos {
    old - old / parts + new / parts
}
