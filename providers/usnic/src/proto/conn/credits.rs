//! Credits: the limit up to which the peer has receives for sends, and RNR probes while a send waits for a credit.
//!
//! The peer's acks advertise new receives. Such an ack may be lost, so the sender sends RNR probes while a send waits:
//! the first after a round trip, the next at doubled intervals. The probes end when no send waits, or at the limit of
//! the setting `rnr_retry`. A send that waits for a long time is reported once.

use zerocopy::network_endian::U32;

use crate::proto::wire::AckFields;
use crate::proto::{MILLIS, Nanos};

/// Maximum interval between RNR probes, in nanoseconds.
const MAX_PROBE_INTERVAL: Nanos = 100 * MILLIS;

/// Time in nanoseconds after which a waiting send is overdue, and reported.
const OVERDUE: Nanos = dapl_software::overdue::OVERDUE.as_nanos() as Nanos;

#[derive(Debug)]
pub(super) struct SendCredits {
    /// Credit limit: the peer has a receive for each send whose number is below this value.
    pub(super) limit: u32,
    /// Serial number of the ack that contained the limit.
    serial: u16,
    probing: Option<RnrProbing>,
}

#[derive(Clone, Copy, Debug)]
struct RnrProbing {
    at: Nanos,
    wait: Nanos,
    count: u32,
    /// Number of the send that waits.
    send: u32,
    /// Time at which the send began to wait.
    since: Nanos,
    /// Whether the send was reported as overdue.
    is_reported: bool,
}

/// An RNR probe that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RnrProbe {
    /// Number of probes since the probing began, including this one.
    pub(super) count: u32,
    /// Time for which the send has waited, if it is overdue and was not reported yet.
    pub(super) overdue: Option<Nanos>,
}

impl SendCredits {
    pub(super) fn new(limit: u32) -> Self {
        SendCredits { limit, serial: 0, probing: None }
    }

    /// Updates the credit limit from an ack, unless a later ack is already processed. With an SRQ the limit may also
    /// decrease, so an old ack could cause the withdrawal of a send that the peer has received.
    #[inline]
    pub(super) fn update(&mut self, ack: &AckFields) {
        let serial = ack.serial.get();
        if serial.wrapping_sub(self.serial) as i16 >= 0 {
            (self.serial, self.limit) = (serial, ack.credits.get());
        }
    }

    /// Builds an ack of all packets before `next` that leaves the credit limit unchanged.
    pub(super) fn with_next(&self, next: U32) -> AckFields {
        AckFields { next, credits: self.limit.into(), serial: self.serial.into(), ..AckFields::default() }
    }

    /// Starts probing, because the send with number `send` waits for a credit. `wait` is the time until the first
    /// probe, about a round trip.
    pub(super) fn wait(&mut self, now: Nanos, wait: Nanos, send: u32) {
        if self.probing.is_none() {
            let wait = wait.clamp(1, MAX_PROBE_INTERVAL);
            let at = now.saturating_add(wait);
            self.probing = Some(RnrProbing { at, wait, count: 0, send, since: now, is_reported: false });
        }
    }

    /// Stops probing, because no send waits for a credit.
    pub(super) fn stop(&mut self) {
        self.probing = None;
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.probing.map(|probing| probing.at)
    }

    /// Returns the RNR probe that is due, if any. `send` is the number of the first send that waits.
    pub(super) fn on_time(&mut self, now: Nanos, send: u32) -> Option<RnrProbe> {
        let probing = self.probing.as_mut().filter(|probing| probing.at <= now)?;
        probing.wait = probing.wait.saturating_mul(2).min(MAX_PROBE_INTERVAL);
        probing.at = now.saturating_add(probing.wait);
        probing.count = probing.count.saturating_add(1);
        if probing.send != send {
            (probing.send, probing.since, probing.is_reported) = (send, now, false);
        }
        let age = now.saturating_sub(probing.since);
        let overdue = (age >= OVERDUE && !probing.is_reported).then_some(age);
        probing.is_reported |= overdue.is_some();
        Some(RnrProbe { count: probing.count, overdue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SECONDS;

    #[test]
    fn an_overdue_send_is_reported_once() {
        let mut credits = SendCredits::new(0);
        let probe = |credits: &mut SendCredits, second, send| credits.on_time(second * SECONDS, send).unwrap().overdue;
        credits.wait(0, 1, 7);
        assert_eq!(probe(&mut credits, 9, 7), None);
        assert_eq!(probe(&mut credits, 12, 7), Some(12 * SECONDS));
        assert_eq!(probe(&mut credits, 30, 7), None, "an overdue send is reported only once");
        assert_eq!(probe(&mut credits, 31, 8), None, "the next send is not overdue yet");
        assert_eq!(probe(&mut credits, 41, 8), Some(10 * SECONDS));
        credits.stop();
        credits.wait(50 * SECONDS, 1, 8);
        assert_eq!(probe(&mut credits, 55, 8), None, "the send got a receive in between, so its wait starts again");
    }
}
