//! What passes where loss comes from congestion, and how long a round must therefore be.
//!
//! A path that holds only a few packets cannot be shared by windows in whole packets: steps of half a packet a round trip
//! lose so much that TCP beside us lives in timeouts. So rounds are made long enough for some packets at the rate that passes,
//! as if the path were longer. The rate is the most of late, for our own share says little: who goes by that yields for ever.

use crate::proto::{MILLIS, Nanos, SECONDS};

/// A round is so long where so many packets a second pass: room for 42 packets. It grows with the root only of a lower rate:
/// with the rate itself, who gets little would be gentler in proportion, and get little for ever.
const ROUND: (f64, f64) = (500_000.0, 85_000.0);
/// The longest that a round is made: on longer paths TCP has timeouts that fit the path.
const LONGEST: Nanos = 4 * MILLIS;
/// Time over which arrivals are counted.
const SPAN: Nanos = 20 * MILLIS;
/// The most is forgotten after one to two of these.
const MEMORY: Nanos = 2 * SECONDS;
/// The same of the best.
const BEST: Nanos = 10 * SECONDS;

#[derive(Debug, Default)]
pub(super) struct Capacity {
    /// When this span began, and what arrived in it.
    since: Nanos,
    bytes: u64,
    /// Whether congestion was answered in this span, and in the one before: only then is the rate the path's own.
    lossy: (bool, bool),
    /// Bytes a second: the most of late, and of the time before.
    most: (f64, f64),
    /// The same, whether packets were lost or not.
    best: (f64, f64),
    best_until: Nanos,
    forget_at: Nanos,
}

impl Capacity {
    pub(super) fn acked(&mut self, now: Nanos, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let span = now.saturating_sub(self.since);
        if span < SPAN {
            return;
        }
        let rate = self.bytes as f64 * SECONDS as f64 / span as f64;
        self.best.0 = self.best.0.max(rate);
        if self.lossy == (true, true) {
            self.most.0 = self.most.0.max(rate);
        }
        (self.since, self.bytes, self.lossy) = (now, 0, (false, self.lossy.0));
        if now >= self.forget_at {
            self.most = (0.0, self.most.0);
            self.forget_at = now.saturating_add(MEMORY);
        }
        if now >= self.best_until {
            self.best = (0.0, self.best.0);
            self.best_until = now.saturating_add(BEST);
        }
    }

    /// Congestion was answered.
    pub(super) fn congested(&mut self) {
        self.lossy.0 = true;
    }

    /// Bytes a second that have arrived of late, at best.
    pub(super) fn best(&self) -> f64 {
        self.best.0.max(self.best.1)
    }

    /// Bytes a second that pass where packets are lost by congestion; 0: not known.
    pub(super) fn most(&self) -> f64 {
        self.most.0.max(self.most.1)
    }
}

/// What a round should last at least where so many bytes a second pass.
pub(super) fn round(passes: f64, packet: f64) -> Nanos {
    let rate = passes / packet;
    if rate > 0.0 { ((ROUND.0 * (ROUND.1 / rate).sqrt()) as Nanos).min(LONGEST) } else { 0 }
}
