//! Delay-based AIMD with a target, and loss as the backstop.

use super::{Controller, INITIAL_PACKETS, Loss, Sample, pace};
use crate::proto::Nanos;

/// Probe timeouts in a row after which nothing is believed to be in flight.
const SILENT: u32 = 3;

#[derive(Debug)]
pub(crate) struct Delay {
    packet: f64,
    target: Nanos,
    window: f64,
    threshold: f64,
    cut_at: Nanos,
    timeouts: u32,
    srtt: Nanos,
    /// Least round trip in this round, and when the round began.
    round: (Nanos, Nanos),
}

impl Delay {
    pub(crate) fn new(packet: u64, target: Nanos) -> Self {
        let packet = packet.max(1) as f64;
        Delay {
            packet,
            target,
            window: packet * INITIAL_PACKETS as f64,
            threshold: f64::INFINITY,
            cut_at: 0,
            timeouts: 0,
            srtt: 0,
            round: (Nanos::MAX, 0),
        }
    }

    fn cut(&mut self, now: Nanos, share: f64) {
        self.window = (self.window * share).max(self.packet / 64.0);
        self.threshold = self.window;
        self.cut_at = now;
    }
}

impl Controller for Delay {
    fn sent(&mut self, _now: Nanos, _bytes: u64, _in_flight: u64) {}

    fn acked(&mut self, sample: &Sample) {
        self.timeouts = 0;
        self.srtt = sample.srtt;
        self.round.0 = self.round.0.min(sample.rtt.unwrap_or(Nanos::MAX));
        if sample.now.saturating_sub(self.round.1) >= sample.srtt {
            if self.round.0 != Nanos::MAX && self.round.0 > sample.min_rtt.saturating_add(self.target) {
                self.cut(sample.now, 0.7);
            }
            self.round = (Nanos::MAX, sample.now);
        }
        if !sample.app_limited {
            let bytes = sample.bytes as f64;
            let slope = if self.window < self.threshold { 1.0 } else { self.packet / self.window };
            self.window += bytes * slope.min(1.0);
        }
    }

    fn lost(&mut self, loss: &Loss) {
        if loss.first_sent > self.cut_at {
            self.cut(loss.now, 0.7);
        }
    }

    fn timed_out(&mut self, now: Nanos) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts == SILENT {
            self.cut(now, 0.7);
            self.window = self.packet;
        }
    }

    fn window(&self) -> u64 {
        self.window.max(self.packet) as u64
    }

    fn rate(&self) -> Option<u64> {
        let gain = if self.window < self.threshold { 2.0 } else { 1.25 };
        pace(self.window, self.packet, self.srtt, gain)
    }

    fn resize(&mut self, packet: u64) {
        self.packet = packet.max(1) as f64;
    }
}
