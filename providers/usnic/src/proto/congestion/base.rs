//! The least round trip of late: what the path itself takes.

use crate::proto::Nanos;

/// The least round trip of late.
#[derive(Debug)]
pub(super) struct Base {
    /// It is forgotten after one to two of these.
    memory: Nanos,
    since: Nanos,
    now: Nanos,
    before: Nanos,
}

impl Base {
    pub(super) fn new(memory: Nanos) -> Self {
        Base { memory, since: 0, now: Nanos::MAX, before: Nanos::MAX }
    }

    pub(super) fn seen(&mut self, now: Nanos, rtt: Nanos) {
        if now.saturating_sub(self.since) > self.memory {
            (self.since, self.before, self.now) = (now, self.now, Nanos::MAX);
        }
        self.now = self.now.min(rtt);
    }

    pub(super) fn rtt(&self) -> Nanos {
        self.now.min(self.before)
    }
}
