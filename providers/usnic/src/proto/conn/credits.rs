//! Credits: the number of sends for which the peer has posted receives, and RNR probes when there are none.
//!
//! The peer announces new receives. Since an announcement may be lost, a waiting send probes for receives, first after
//! a round trip and then with growing intervals. Without a limit (`rnr_retry`) it probes forever.

use zerocopy::network_endian::U32;

use crate::proto::wire::Ack;
use crate::proto::{MILLIS, Nanos};

/// Maximum interval between probes.
const RAREST: Nanos = 100 * MILLIS;

#[derive(Debug)]
pub(super) struct Credits {
    /// Number of sends that have a receive: sends with numbers below this.
    pub(super) there: u32,
    /// Serial number of the latest ack.
    serial: u16,
    probing: Option<CreditProbing>,
}

#[derive(Clone, Copy, Debug)]
struct CreditProbing {
    at: Nanos,
    wait: Nanos,
    count: u32,
}

impl Credits {
    pub(super) fn new(there: u32) -> Self {
        Credits { there, serial: 0, probing: None }
    }

    /// Updates the credit count from an ack, unless a later ack came before. The count of a shared receive queue may
    /// decrease, so an old count could withdraw a send that the peer has received.
    #[inline]
    pub(super) fn update(&mut self, ack: &Ack) {
        let serial = ack.serial.get();
        if serial.wrapping_sub(self.serial) as i16 >= 0 {
            (self.serial, self.there) = (serial, ack.credits.get());
        }
    }

    /// An ack with the latest credit count that acknowledges all packets before `next`.
    pub(super) fn with_next(&self, next: U32) -> Ack {
        Ack { next, credits: self.there.into(), serial: self.serial.into(), ..Ack::default() }
    }

    /// Starts probing, because a send waits for a credit. `wait`: about a round trip.
    pub(super) fn wait(&mut self, now: Nanos, wait: Nanos) {
        if self.probing.is_none() {
            let wait = wait.clamp(1, RAREST);
            self.probing = Some(CreditProbing { at: now.saturating_add(wait), wait, count: 0 });
        }
    }

    /// Stops probing, because no send waits for a credit.
    pub(super) fn stop(&mut self) {
        self.probing = None;
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.probing.map(|probing| probing.at)
    }

    /// Returns the number of the probe if one is to be sent now.
    pub(super) fn on_time(&mut self, now: Nanos) -> Option<u32> {
        let probing = self.probing.as_mut().filter(|probing| probing.at <= now)?;
        probing.wait = probing.wait.saturating_mul(2).min(RAREST);
        probing.at = now.saturating_add(probing.wait);
        probing.count = probing.count.saturating_add(1);
        Some(probing.count)
    }
}
