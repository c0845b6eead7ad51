//! Whether loss comes from what we send: compares how much is lost at full load and just after a decrease.
//!
//! Where a queue overflows or a policer cuts, loss ends or shrinks at once when we send less: sending more delivers no more.
//! Where packets vanish at random, as large a part is lost at either load, and sending more delivers more. Every decrease is
//! an experiment that asks this; evidence is forgotten as newer comes.

use super::rounds::{Load, Round};

/// Loss that was seen at one load, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sent: f64,
    lost: f64,
    events: f64,
}

impl Seen {
    fn add(&mut self, round: &Round) {
        self.sent += round.sent;
        self.lost += round.lost;
        self.events += round.events;
    }

    fn forget(&mut self, kept: f64) {
        self.sent *= kept;
        self.lost *= kept;
        self.events *= kept;
    }

    fn share(&self) -> f64 {
        if self.sent > 0.0 { self.lost / self.sent } else { 0.0 }
    }
}

/// Reports of loss at low load before anything is believed of them.
const FEW: f64 = 4.0;
/// What is remembered of low and of full load, in reports of loss: past either, half of all is forgotten.
const MEMORY: (f64, f64) = (64.0, 256.0);
/// Loss at low load is at least this part of that at full load, if it is random. A policer shared evenly with another flow
/// that fills it shows less, after a decrease of three tenths.
const ALIKE: f64 = 0.55;

#[derive(Debug, Default)]
pub(super) struct Evidence {
    full: Seen,
    low: Seen,
}

impl Evidence {
    /// What this round lost is known now.
    pub(super) fn settled(&mut self, round: &Round) {
        match round.load {
            Load::Full => self.full.add(round),
            Load::Low => self.low.add(round),
            Load::Other => {}
        }
        if self.low.events > MEMORY.0 || self.full.events > MEMORY.1 {
            self.low.forget(0.5);
            self.full.forget(0.5);
        }
    }

    /// Sending less loses no smaller part. The fewer the reports, the clearer must it be.
    pub(super) fn is_random(&self) -> bool {
        let events = self.low.events;
        events >= FEW && self.low.share() * (1.0 - 1.0 / events.sqrt()) >= ALIKE * self.full.share()
    }

    /// Sending less has lost clearly less.
    pub(super) fn is_ours(&self) -> bool {
        self.full.events >= FEW && self.low.sent > 0.0 && !self.is_random()
    }

    /// So much, of so much sent, is no more than the loss that is there at low load already, with room for chance.
    pub(super) fn explains(&self, sent: f64, lost: f64, events: f64) -> bool {
        let expected = self.low.share() * sent;
        let together = lost / events.max(1.0);
        lost <= 1.5 * expected + 3.0 * (expected * together).sqrt() + together
    }
}
