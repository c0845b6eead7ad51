//! CUBIC (RFC 9438): for long paths, where a window must grow by time and not by round trips.
//!
//! Loss is its only signal besides a rise of the round trip that ends slow start (after RFC 9406). One decrease for what was
//! in flight together.

use super::{Controller, INITIAL_PACKETS, Loss, Sample, pace};
use crate::proto::{MILLIS, Nanos};

/// Share of the window that is left after a loss (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// Growth of the cube, in packets per second cubed (RFC 9438, 5).
const CUBE: f64 = 0.4;
/// Packets a round trip that make up for a milder decrease beside Reno (RFC 9438, 4.3).
const FRIENDLY: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Probe timeouts in a row after which nothing is believed to be in flight.
const SILENT: u32 = 3;
/// Packets that the window never falls below.
const LEAST: f64 = 2.0;
/// Rise of the round trip that ends slow start: bounds of an eighth of it (RFC 9406, 4.3).
const RISE: (Nanos, Nanos) = (4 * MILLIS, 16 * MILLIS);

/// Everything is in bytes but `peak` and the cube, which the RFC gives in packets.
#[derive(Debug)]
pub(crate) struct Cubic {
    packet: f64,
    window: f64,
    threshold: f64,
    /// Window in packets before the last decrease.
    peak: f64,
    /// When the present cube began, and its window in packets then; `None`: with the next ack.
    epoch: Option<(Nanos, f64)>,
    /// What Reno would have by now, in bytes.
    reno: f64,
    /// What was sent before this belongs to the last decrease.
    cut_at: Option<Nanos>,
    timeouts: u32,
    srtt: Nanos,
    /// Since when the sender has not filled the window: the cube does not grow meanwhile.
    idle_from: Option<Nanos>,
}

impl Cubic {
    pub(crate) fn new(packet: u64) -> Self {
        let packet = packet.max(1) as f64;
        Cubic {
            packet,
            window: packet * INITIAL_PACKETS as f64,
            threshold: f64::INFINITY,
            peak: 0.0,
            epoch: None,
            reno: 0.0,
            cut_at: None,
            timeouts: 0,
            srtt: 0,
            idle_from: None,
        }
    }

    fn decrease(&mut self, now: Nanos) {
        let packets = self.window / self.packet;
        // Fast convergence: who is on the way down leaves room for newcomers.
        self.peak = if packets < self.peak { packets * (1.0 + BETA) / 2.0 } else { packets };
        self.window = (self.window * BETA).max(LEAST * self.packet);
        self.threshold = self.window;
        self.epoch = None;
        self.cut_at = Some(now);
    }

    fn grow(&mut self, sample: &Sample) {
        let (began, start) = *self.epoch.get_or_insert_with(|| {
            self.reno = self.window;
            (sample.now, self.window / self.packet)
        });
        let cube_root = ((self.peak - start).max(0.0) / CUBE).cbrt();
        let top = self.peak.max(start);
        let ahead = sample.now.saturating_sub(began).saturating_add(sample.srtt);
        let target = (top + CUBE * (ahead as f64 / 1e9 - cube_root).powi(3)) * self.packet;
        let target = target.clamp(self.window, self.window * 1.5);
        let share = sample.bytes as f64 / self.window;
        let slope = if self.reno >= self.peak * self.packet { 1.0 } else { FRIENDLY };
        self.reno += slope * self.packet * share;
        self.window = (self.window + (target - self.window) * share).max(self.reno);
    }
}

impl Controller for Cubic {
    fn sent(&mut self, now: Nanos, _bytes: u64, _in_flight: u64) {
        // Time that passed without filling the window is taken out of the cube (RFC 9438, 5.8).
        if let (Some(from), Some((began, _))) = (self.idle_from.take(), self.epoch.as_mut()) {
            *began = began.saturating_add(now.saturating_sub(from)).min(now);
        }
    }

    fn acked(&mut self, sample: &Sample) {
        self.timeouts = 0;
        self.srtt = sample.srtt;
        if sample.app_limited {
            self.idle_from.get_or_insert(sample.now);
            return;
        }
        self.idle_from = None;
        if self.window >= self.threshold {
            return self.grow(sample);
        }
        self.window = (self.window + sample.bytes as f64).min(self.threshold);
        let rise = (sample.min_rtt / 8).clamp(RISE.0, RISE.1);
        if sample.rtt.is_some_and(|rtt| rtt > sample.min_rtt.saturating_add(rise)) {
            self.threshold = self.window;
        }
    }

    fn lost(&mut self, loss: &Loss) {
        if self.cut_at.is_none_or(|at| loss.first_sent > at) {
            self.decrease(loss.now);
        }
    }

    fn overflowed(&mut self, now: Nanos) {
        if self.cut_at.is_none_or(|at| now > at.saturating_add(self.srtt)) {
            self.decrease(now);
        }
    }

    fn timed_out(&mut self, now: Nanos) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts == SILENT {
            self.decrease(now);
            self.window = LEAST * self.packet;
        }
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn rate(&self) -> Option<u64> {
        let gain = if self.window < self.threshold { 2.0 } else { 1.25 };
        pace(self.window, self.packet, self.srtt, gain)
    }

    fn goes_by_rate(&self) -> bool {
        false
    }

    fn resize(&mut self, packet: u64) {
        self.peak *= self.packet;
        self.packet = packet.max(1) as f64;
        self.peak /= self.packet;
        self.epoch = None;
        self.window = self.window.max(LEAST * self.packet);
    }
}
