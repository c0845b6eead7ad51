//! Credits: the number of sends that find a posted receive at the peer, and RNR probes when there are none.
//!
//! The peer announces new receives by itself; since an announcement may be lost, a waiting send probes, after a round
//! trip at first and with growing intervals. Without a limit (`rnr_retry`) it probes for ever.

use zerocopy::network_endian::U32;

use crate::proto::wire::Ack;
use crate::proto::{MILLIS, Nanos};

/// The longest between two questions.
const RAREST: Nanos = 100 * MILLIS;

#[derive(Debug)]
pub(super) struct Credits {
    /// Sends with a number below find a receive.
    pub(super) there: u32,
    /// Of the latest ack.
    serial: u16,
    probing: Option<Probing>,
}

#[derive(Clone, Copy, Debug)]
struct Probing {
    at: Nanos,
    wait: Nanos,
    count: u32,
}

impl Credits {
    pub(super) fn new(there: u32) -> Self {
        Credits { there, serial: 0, probing: None }
    }

    /// Takes the count of an ack, unless a later one came before it. The count of a shared receive queue may decrease, so an
    /// old count would take back a send that the peer has received.
    #[inline]
    pub(super) fn update(&mut self, ack: &Ack) {
        let serial = ack.serial.get();
        if serial.wrapping_sub(self.serial) as i16 >= 0 {
            (self.serial, self.there) = (serial, ack.credits.get());
        }
    }

    /// The latest count, as an ack of everything before `next`.
    pub(super) fn with_next(&self, next: U32) -> Ack {
        Ack { next, credits: self.there.into(), serial: self.serial.into(), ..Ack::default() }
    }

    /// A send waits for one. `wait`: about a round trip.
    pub(super) fn wait(&mut self, now: Nanos, wait: Nanos) {
        if self.probing.is_none() {
            let wait = wait.clamp(1, RAREST);
            self.probing = Some(Probing { at: now.saturating_add(wait), wait, count: 0 });
        }
    }

    /// Nothing waits for one.
    pub(super) fn stop(&mut self) {
        self.probing = None;
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.probing.map(|probing| probing.at)
    }

    /// Is the peer to be asked now? The how manieth time.
    pub(super) fn on_time(&mut self, now: Nanos) -> Option<u32> {
        let probing = self.probing.as_mut().filter(|probing| probing.at <= now)?;
        probing.wait = probing.wait.saturating_mul(2).min(RAREST);
        probing.at = now.saturating_add(probing.wait);
        probing.count = probing.count.saturating_add(1);
        Some(probing.count)
    }
}
