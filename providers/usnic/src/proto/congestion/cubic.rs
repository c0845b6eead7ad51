//! CUBIC (RFC 9438) with HyStart++ (RFC 9406) as slow start, paced according to RFC 9002, 7.7.

use super::hystart::HyStart;
use super::recovery::Recovery;
use super::round::Round;
use super::{AckEvent, Controller, INITIAL_PACKETS, LossEvent, MINIMUM_PACKETS, SentPacket};
use crate::proto::{Nanos, SECONDS};

/// Factor by which the window is multiplied after a loss: beta_cubic (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// C of the cubic function, in packets per second cubed (RFC 9438, 5.1).
const C: f64 = 0.4;
/// Growth in packets per round trip that gives the average window of Reno: alpha_cubic (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Pacing rate in windows per round trip (RFC 9002, 7.7).
const PACING_GAIN: f64 = 1.25;
/// Pacing rate in windows per round trip in slow start, during which the window doubles per round trip: the default of
/// Linux TCP (net.ipv4.tcp_pacing_ss_ratio).
const SLOW_START_PACING_GAIN: f64 = 2.0;

/// The variables of CUBIC. Windows are in bytes, times in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct CubicWindow {
    cwnd: f64,
    ssthresh: f64,
    /// W_max: the window before the last reduction, lowered by fast convergence (RFC 9438, 4.7).
    w_max: f64,
    /// cwnd_prior: the window before the last reduction.
    cwnd_prior: f64,
    /// W_est: estimate of the window that Reno would have.
    w_est: f64,
    /// K: time from the start of the epoch until the cubic function reaches W_max.
    k: f64,
    /// Start of the current congestion avoidance. `None` if the next ack in congestion avoidance starts a new epoch.
    epoch_start: Option<Nanos>,
}

#[derive(Debug, Default)]
pub(crate) struct Cubic {
    packet: f64,
    window: CubicWindow,
    /// The window before the last reduction, which is restored if the loss was spurious (RFC 9438, 4.9).
    undo: CubicWindow,
    hystart: HyStart,
    recovery: Recovery,
    round: Round,
    srtt: Nanos,
    /// Time since which the window is not fully used. The cubic function does not grow during that time (RFC 9438,
    /// 5.8).
    unused_since: Option<Nanos>,
}

impl Cubic {
    pub(crate) fn new(packet: u64) -> Self {
        let packet = packet.max(1) as f64;
        let window =
            CubicWindow { cwnd: packet * INITIAL_PACKETS as f64, ssthresh: f64::INFINITY, ..CubicWindow::default() };
        Cubic { packet, window, undo: window, ..Cubic::default() }
    }

    fn minimum(&self) -> f64 {
        MINIMUM_PACKETS as f64 * self.packet
    }

    /// Multiplicative decrease, with fast convergence (RFC 9438, 4.6 and 4.7).
    fn reduce(&mut self) {
        self.undo = self.window;
        let minimum = self.minimum();
        let window = &mut self.window;
        let is_lower = window.cwnd < window.w_max;
        window.w_max = if is_lower { window.cwnd * (1.0 + BETA) / 2.0 } else { window.cwnd };
        window.cwnd_prior = window.cwnd;
        window.ssthresh = (window.cwnd * BETA).max(minimum);
        window.cwnd = window.ssthresh;
        window.epoch_start = None;
    }

    fn slow_start(&mut self, ack: &AckEvent) {
        if self.round.is_start && self.hystart.end_round() {
            self.window.ssthresh = self.window.cwnd;
            return;
        }
        let growth = self.hystart.acked(ack.bytes, ack.rtt) as f64;
        self.window.cwnd = (self.window.cwnd + growth).min(self.window.ssthresh);
    }

    /// Grows the window in congestion avoidance (RFC 9438, 4.2 to 4.5 and 4.10).
    fn avoid_congestion(&mut self, ack: &AckEvent) {
        let (packet, window) = (self.packet, &mut self.window);
        let epoch_start = *window.epoch_start.get_or_insert_with(|| {
            window.w_est = window.cwnd;
            if window.w_max < window.cwnd {
                // Slow start ended without a loss, or the window has grown beyond W_max.
                window.w_max = window.cwnd;
            }
            window.k = ((window.w_max - window.cwnd) / packet / C).cbrt();
            ack.now
        });
        let t = ack.now.saturating_sub(epoch_start) as f64 / SECONDS as f64;
        let srtt = ack.srtt as f64 / SECONDS as f64;
        let cube = |t: f64| window.w_max + C * (t - window.k).powi(3) * packet;
        let share = ack.bytes as f64 / window.cwnd;
        let alpha = if window.w_est >= window.cwnd_prior { 1.0 } else { ALPHA };
        window.w_est += alpha * packet * share;
        window.cwnd = if cube(t) < window.w_est {
            window.cwnd.max(window.w_est)
        } else {
            let target = cube(t + srtt).clamp(window.cwnd, 1.5 * window.cwnd);
            window.cwnd + (target - window.cwnd) * share
        };
    }
}

impl Controller for Cubic {
    fn sent(&mut self, sent: &SentPacket) {
        if let (Some(since), Some(epoch)) = (self.unused_since.take(), self.window.epoch_start.as_mut()) {
            *epoch = epoch.saturating_add(sent.now.saturating_sub(since)).min(sent.now);
        }
    }

    fn acked(&mut self, ack: &AckEvent) {
        self.srtt = ack.srtt;
        if self.recovery.record_spurious(ack.spurious) && self.window.cwnd < self.undo.cwnd {
            self.window = self.undo;
        }
        let Some(rate) = &ack.rate else { return };
        self.recovery.acked(rate.send_time);
        self.round.acked(rate, ack.is_cwnd_limited);
        if self.recovery.is_active() {
            return;
        }
        if !self.round.is_cwnd_limited() {
            self.unused_since.get_or_insert(ack.now);
            return;
        }
        self.unused_since = None;
        if self.window.cwnd < self.window.ssthresh {
            self.slow_start(ack);
        } else {
            self.avoid_congestion(ack);
        }
    }

    fn lost(&mut self, loss: &LossEvent) {
        if self.recovery.lost(loss) {
            self.reduce();
        }
        if loss.is_persistent {
            // Persistent congestion reduces the window to its minimum (RFC 9438, 4.8; RFC 9002, 7.6.2).
            self.window.cwnd = self.minimum();
            self.window.epoch_start = None;
            self.hystart = HyStart::default();
        }
    }

    fn overflowed(&mut self, now: Nanos) {
        if self.recovery.record_congestion(now, self.srtt) {
            self.reduce();
        }
    }

    fn cwnd(&self) -> u64 {
        self.window.cwnd as u64
    }

    fn pacing_rate(&self) -> Option<u64> {
        let is_slow_start = self.window.cwnd < self.window.ssthresh;
        let gain = if is_slow_start { SLOW_START_PACING_GAIN } else { PACING_GAIN };
        let seconds = self.srtt as f64 / SECONDS as f64;
        (self.srtt > 0).then(|| ((gain * self.window.cwnd / seconds) as u64).max(1))
    }

    fn resize(&mut self, packet: u64) {
        self.packet = packet.max(1) as f64;
        self.window.cwnd = self.window.cwnd.max(self.minimum());
        self.window.epoch_start = None;
    }
}
