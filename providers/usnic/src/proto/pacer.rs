//! Pacing (RFC 9002, 7.7) by a token bucket, whose level is stored as the time at which the bucket will be full.
//!
//! The caller calls [`Pacer::may_send`] before it sends, and reports the bytes that it has sent. The congestion
//! controller determines the rate. Packets are sent in quanta (draft-ietf-ccwg-bbr-06, 5.6.3): after the bucket was
//! emptied, no packet is sent until the bucket contains one quantum, so that packets can share a GSO batch.

use super::congestion::send_quantum;
use super::{MICROS, Nanos, SECONDS};

/// Minimum size of the bucket, as a time at the pacing rate. It compensates for late timers: the timer slack of Linux
/// (50 us) and the wake-up of a thread can delay a packet by this time.
const TIMER_LATENESS: Nanos = 200 * MICROS;
/// Maximum wait of a packet, in nanoseconds, even at a low rate.
const MAX_WAIT: Nanos = SECONDS;

#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// Time at which the bucket is full again.
    full_at: Nanos,
    /// Time at which the emptied bucket contains a quantum.
    resume_at: Nanos,
    /// Time that an empty bucket needs to become full.
    depth: Nanos,
    /// Pacing rate in bytes per second at the last transmission, or 0 without pacing.
    rate: u64,
}

/// Returns the time that sending `bytes` takes at the rate, at most [`MAX_WAIT`].
#[inline]
fn time(bytes: u64, rate: u64) -> Nanos {
    (bytes.saturating_mul(SECONDS) / rate.max(1)).min(MAX_WAIT)
}

impl Pacer {
    /// Returns `Ok` if `bytes` may be sent at `now`, else the time from which they may be sent. A full bucket admits
    /// packets that are larger than its size.
    #[inline]
    pub(crate) fn may_send(&self, now: Nanos, bytes: u64) -> Result<(), Nanos> {
        if self.rate == 0 {
            return Ok(());
        }
        let spare = self.depth.saturating_sub(time(bytes, self.rate));
        let at = self.full_at.saturating_sub(spare).max(self.resume_at);
        if at <= now { Ok(()) } else { Err(at) }
    }

    /// Records that `bytes` were sent at this rate (`None` without pacing). `packet` is the size in bytes of the path's
    /// largest datagram.
    #[inline]
    pub(crate) fn record_sent(&mut self, now: Nanos, bytes: u64, rate: Option<u64>, packet: u64) {
        self.rate = rate.unwrap_or(0);
        if self.rate == 0 {
            (self.full_at, self.resume_at) = (now, now);
            return;
        }
        let quantum = time(send_quantum(self.rate, packet), self.rate);
        self.depth = quantum.max(TIMER_LATENESS);
        let spent = time(bytes, self.rate);
        self.full_at = self.full_at.max(now).saturating_add(spent).min(now.saturating_add(MAX_WAIT));
        let is_empty = self.full_at.saturating_add(spent) > now.saturating_add(self.depth);
        if is_empty {
            self.resume_at = self.full_at.saturating_sub(self.depth - quantum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MILLIS;
    use crate::proto::congestion::LARGEST_QUANTUM;

    /// Simulates a second in which packets are sent as soon as allowed. Returns the bytes sent, the maximum number of
    /// bytes within a millisecond, and the number of pauses.
    fn second(bytes: u64, rate: u64) -> (u64, u64, u64) {
        let (mut pacer, mut now, mut sent, mut slot, mut in_slot, mut most) = (Pacer::default(), 0, 0, 0, 0, 0);
        let mut pauses = 0;
        pacer.record_sent(0, 0, Some(rate), bytes);
        while now < SECONDS {
            match pacer.may_send(now, bytes) {
                Err(at) => {
                    assert!(at > now, "the pacer must name a time in the future");
                    now = at;
                    pauses += 1;
                }
                Ok(()) => {
                    pacer.record_sent(now, bytes, Some(rate), bytes);
                    sent += bytes;
                    (slot, in_slot) =
                        if now / MILLIS == slot { (slot, in_slot + bytes) } else { (now / MILLIS, bytes) };
                    most = most.max(in_slot);
                }
            }
        }
        (sent, most, pauses)
    }

    #[test]
    fn pacer_keeps_the_rate_with_bursts_of_at_most_a_token_bucket() {
        for (bytes, rate) in [(1472, 10_000_000), (1472, 1_000_000_000), (65_000, 1_000_000_000), (1172, 40_000)] {
            let (sent, most, _) = second(bytes, rate);
            let slack = send_quantum(rate, bytes).max(rate / 5_000) + 2 * bytes;
            assert!(
                sent >= rate - bytes && sent <= rate + slack,
                "packets of {bytes} bytes at {rate} bytes/s: {sent} bytes sent in a second"
            );
            assert!(
                most <= rate / 1000 + slack,
                "packets of {bytes} bytes at {rate} bytes/s: {most} bytes sent within a millisecond"
            );
        }
    }

    #[test]
    fn packets_are_sent_in_quanta() {
        for rate in [25_000_000, 1_000_000_000] {
            let (sent, _, pauses) = second(1472, rate);
            let quantum = send_quantum(rate, 1472);
            assert!(
                pauses <= sent / (quantum - 2 * 1472),
                "{pauses} pauses for {sent} bytes at {rate} bytes/s are more than one per quantum"
            );
        }
    }

    #[test]
    fn idle_time_fills_the_token_bucket_at_most_once() {
        let mut pacer = Pacer::default();
        pacer.record_sent(0, 1000, Some(100_000_000), 1000);
        let (now, mut sent) = (10 * SECONDS, 0);
        while pacer.may_send(now, 1000).is_ok() {
            pacer.record_sent(now, 1000, Some(100_000_000), 1000);
            sent += 1000;
        }
        assert_eq!(sent, LARGEST_QUANTUM / 1000 * 1000);
    }

    #[test]
    fn pacer_without_a_rate_delays_no_packet() {
        let mut pacer = Pacer::default();
        for _ in 0..1000 {
            assert_eq!(pacer.may_send(5, LARGEST_QUANTUM), Ok(()));
            pacer.record_sent(5, LARGEST_QUANTUM, None, 1000);
        }
        pacer.record_sent(5, LARGEST_QUANTUM, Some(1), 1000);
        assert!(pacer.may_send(5, 1).is_err());
        pacer.record_sent(6, 1, None, 1000);
        assert_eq!(
            pacer.may_send(6, LARGEST_QUANTUM),
            Ok(()),
            "a sender without a rate does not wait for an earlier debt"
        );
    }

    #[test]
    fn extreme_rates_neither_overflow_nor_wait_forever() {
        let mut pacer = Pacer::default();
        pacer.record_sent(0, u64::MAX, Some(1), u64::MAX);
        assert_eq!(pacer.may_send(0, u64::MAX), Err(MAX_WAIT));
        assert_eq!(pacer.may_send(MAX_WAIT, u64::MAX), Ok(()));
        pacer.record_sent(Nanos::MAX - 1, u64::MAX, Some(u64::MAX), 1);
        assert_eq!(pacer.may_send(Nanos::MAX, 1), Ok(()));
    }
}
