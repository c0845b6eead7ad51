//! BBR's model of the path: bandwidth, ack aggregation, and bounds set by congestion signals.
//!
//! Section numbers and names in comments are those of draft-ietf-ccwg-bbr-06. This file implements the bandwidth, ack
//! aggregation and congestion signals of section 5.5 (5.5.5, 5.5.6, 5.5.9 to 5.5.11), and the detection of a full pipe
//! (5.3.1.2). Rounds (5.5.1) are in `congestion::round`.

use super::{BETA, Bbr, BbrState, INFINITY, INITIAL_PACKETS, LossEvent, Sample};
use crate::proto::flight::LostPacket;
use crate::proto::{Nanos, SECONDS};

/// The pipe is full if the delivery rate grows by less than this factor in each of `FULL_BW_COUNT` rounds (5.3.1.2).
const FULL_BW_GROWTH: f64 = 1.25;
const FULL_BW_COUNT: u32 = 3;
/// Number of rounds in the maximum filter of extra_acked: BBR.ExtraAckedFilterLen (2.12).
const EXTRA_ACKED_FILTER_LEN: u64 = 10;
/// Loss rate above which the amount in flight is too high: BBR.LossThresh (2.8).
const LOSS_THRESH: f64 = 0.02;

/// Maximum bandwidth in the previous and the current ProbeBW cycle, in bytes per second: BBR.max_bw_filter,
/// BBR.MaxBwFilterLen = 2 (2.11, 5.5.6).
#[derive(Debug, Default)]
pub(super) struct MaxBw([u64; 2]);

impl MaxBw {
    pub(super) fn get(&self) -> u64 {
        self.0[0].max(self.0[1])
    }

    fn update(&mut self, rate: u64) {
        self.0[1] = self.0[1].max(rate);
    }

    /// Starts a new cycle of the filter: AdvanceMaxBwFilter() (5.5.6). A cycle without a sample is not counted.
    pub(super) fn advance(&mut self) {
        if self.0[1] > 0 {
            self.0 = [self.0[1], 0];
        }
    }
}

/// Bounds that loss sets until the next probe for bandwidth: bw_shortterm in bytes per second, and inflight_shortterm
/// in bytes (2.9).
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortTerm {
    pub(super) bw: u64,
    pub(super) inflight: u64,
}

impl Default for ShortTerm {
    /// Returns bounds without effect: ResetShortTermModel() (5.5.10.3).
    fn default() -> Self {
        ShortTerm { bw: INFINITY, inflight: INFINITY }
    }
}

/// State to restore when a loss turns out to be spurious (2.15).
#[derive(Debug, Default)]
pub(super) struct Undo {
    pub(super) state: Option<BbrState>,
    short_term: ShortTerm,
    inflight_longterm: u64,
}

/// Detects a full pipe: the delivery rate no longer grows (2.13, 5.3.1.2).
#[derive(Debug, Default)]
pub(super) struct FullPipe {
    pub(super) is_reached: bool,
    pub(super) is_now: bool,
    bw: u64,
    count: u32,
}

impl FullPipe {
    /// Starts a new detection with the rate `bw` as baseline: ResetFullBW() (5.3.1.2).
    pub(super) fn reset(&mut self, bw: u64) {
        *self = FullPipe { is_reached: self.is_reached, bw, ..FullPipe::default() };
    }

    /// Counts rounds without sufficient growth of the rate: CheckFullBWReached() (5.3.1.2).
    pub(super) fn check(&mut self, is_checked: bool, rate: u64) {
        if self.is_now || !is_checked {
            return;
        }
        if rate as f64 >= self.bw as f64 * FULL_BW_GROWTH {
            return self.reset(rate);
        }
        self.count += 1;
        self.is_now = self.count >= FULL_BW_COUNT;
        self.is_reached |= self.is_now;
    }
}

/// Estimator of ack aggregation, ExtraACKed (2.12, 5.5.9): bytes acked in excess of those that the estimated bandwidth
/// delivers.
#[derive(Debug, Default)]
pub(super) struct ExtraAcked {
    interval_start: Nanos,
    delivered: u64,
    /// Maximum of the previous half of the filter, and of the current half.
    max: [u64; 2],
    /// Round in which the current half of the filter started.
    since: u64,
}

impl ExtraAcked {
    /// Restarts after the connection was idle (5.4.1): begins a new interval without acked data.
    pub(super) fn restart(&mut self, now: Nanos) {
        (self.interval_start, self.delivered) = (now, 0);
    }

    pub(super) fn get(&self) -> u64 {
        self.max[0].max(self.max[1])
    }

    /// Adds an ack: UpdateACKAggregation() (5.5.9). The maximum filter consists of two halves.
    pub(super) fn update(&mut self, sample: &Sample, bw: u64, cwnd: u64, is_full: bool, round: u64) {
        let interval = sample.now.saturating_sub(self.interval_start);
        let mut expected = (u128::from(bw) * u128::from(interval) / u128::from(SECONDS)).min(u64::MAX.into()) as u64;
        if self.delivered <= expected {
            (self.delivered, self.interval_start, expected) = (0, sample.now, 0);
        }
        self.delivered += sample.newly_acked;
        let length = if is_full { EXTRA_ACKED_FILTER_LEN / 2 } else { 1 };
        if round >= self.since + length {
            (self.max, self.since) = ([self.max[1], 0], round);
        }
        self.max[1] = self.max[1].max((self.delivered - expected).min(cwnd));
    }
}

/// Congestion signals of the current round (2.10, 5.5.10.3).
#[derive(Debug, Default)]
pub(super) struct Signals {
    bw_latest: u64,
    pub(super) inflight_latest: u64,
    loss_round_delivered: u64,
    pub(super) loss_round_start: bool,
    is_loss_in_round: bool,
    /// Number of discontiguous ranges of lost packets: in this round, and in the previous round.
    ranges: [u32; 2],
}

impl Signals {
    /// Clears the signals: ResetCongestionSignals() (5.5.10.3).
    pub(super) fn reset(&mut self) {
        self.is_loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// Restarts the measurement at the end of a round: AdvanceLatestDeliverySignals() (5.5.10.3).
    pub(super) fn advance(&mut self, sample: &Sample) {
        if self.loss_round_start {
            self.bw_latest = sample.rate.delivery_rate;
            self.inflight_latest = sample.rate.delivered;
        }
    }

    pub(super) fn lost_ranges(&self) -> u32 {
        self.ranges[1]
    }
}

impl Bbr {
    /// Adds a sample to the maxima of the round: UpdateLatestDeliverySignals() (5.5.10.3).
    pub(super) fn update_latest_delivery_signals(&mut self, sample: &Sample) {
        let (signals, rate) = (&mut self.signals, &sample.rate);
        signals.bw_latest = signals.bw_latest.max(rate.delivery_rate);
        signals.inflight_latest = signals.inflight_latest.max(rate.delivered);
        signals.loss_round_start = rate.prior_delivered >= signals.loss_round_delivered;
        if signals.loss_round_start {
            signals.loss_round_delivered = rate.total_delivered;
            signals.ranges = [0, signals.ranges[0]];
        }
    }

    /// Updates the bandwidth, and at the end of a round the bounds: UpdateMaxBw() and UpdateCongestionSignals() (5.5.5,
    /// 5.5.10.3).
    pub(super) fn update_congestion_signals(&mut self, sample: &Sample) {
        let rate = sample.rate.delivery_rate;
        if rate > 0 && (rate >= self.max_bw.get() || !sample.is_app_limited) {
            self.max_bw.update(rate);
        }
        if self.signals.loss_round_start {
            self.adapt_lower_bounds();
            self.signals.is_loss_in_round = false;
        }
    }

    /// Lowers the short-term bounds after a round with loss: AdaptLowerBoundsFromCongestion() (5.5.10.3).
    fn adapt_lower_bounds(&mut self) {
        if self.state.is_probing_bw() || !self.signals.is_loss_in_round {
            return;
        }
        let lower = |bound: u64, first: u64, latest: u64| {
            let bound = if bound == INFINITY { first } else { bound };
            latest.max((BETA * bound as f64) as u64)
        };
        self.short_term = ShortTerm {
            bw: lower(self.short_term.bw, self.max_bw.get(), self.signals.bw_latest),
            inflight: lower(self.short_term.inflight, self.cwnd, self.signals.inflight_latest),
        };
    }

    /// Records a loss in this round, and saves the state for undo: NoteLoss() and SaveStateUponLoss() (5.5.10.2,
    /// 5.5.11.1).
    pub(super) fn note_loss(&mut self, ranges: u32) {
        let signals = &mut self.signals;
        if !signals.is_loss_in_round {
            signals.loss_round_delivered = self.delivered;
            self.undo = Undo { state: None, short_term: self.short_term, inflight_longterm: self.inflight_longterm };
        }
        signals.is_loss_in_round = true;
        signals.ranges[0] = signals.ranges[0].saturating_add(ranges);
    }

    /// Processes all lost packets of an event: HandleLostPacket() (5.5.10.2).
    pub(super) fn handle_lost_packets(&mut self, loss: &LossEvent) {
        self.note_loss(loss.lost.ranges);
        if let Some(packet) = loss.lost.excess.filter(|_| self.cycle.is_bw_probe_sample) {
            self.handle_inflight_too_high(&packet, loss.now);
        }
    }

    /// Sets the long-term bound after too much loss during a probe for bandwidth: HandleInflightTooHigh() (5.5.10.2).
    fn handle_inflight_too_high(&mut self, packet: &LostPacket, now: Nanos) {
        self.cycle.prev_probe_too_high = true;
        self.cycle.is_bw_probe_sample = false; // Each probe causes at most one reaction.
        if !packet.is_app_limited {
            let least = (self.target_inflight() as f64 * BETA) as u64;
            self.inflight_longterm = inflight_at_loss(packet).max(least);
        }
        if self.state == BbrState::ProbeBwUp {
            self.undo.state = Some(BbrState::ProbeBwUp);
            self.start_probe_bw_down(now);
        }
    }

    /// Restores the bounds and the state after a spurious loss: HandleSpuriousLossDetection() (5.5.11.2).
    pub(super) fn handle_spurious_loss(&mut self) {
        self.restore_cwnd();
        self.signals.is_loss_in_round = false;
        self.full_pipe.reset(0);
        self.short_term.bw = self.short_term.bw.max(self.undo.short_term.bw);
        self.short_term.inflight = self.short_term.inflight.max(self.undo.short_term.inflight);
        self.inflight_longterm = self.inflight_longterm.max(self.undo.inflight_longterm);
        match self.undo.state.take() {
            Some(BbrState::Startup) => {
                self.full_pipe.is_reached = false;
                if self.state != BbrState::ProbeRtt {
                    self.state = BbrState::Startup;
                }
            }
            Some(_) if self.state != BbrState::ProbeBwUp && self.state != BbrState::ProbeRtt => {
                self.start_probe_bw_refill()
            }
            _ => {}
        }
    }

    /// Returns the smaller of the bandwidth-delay product and the window, in bytes: TargetInflight() (5.3.3.8.3).
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp().min(self.cwnd)
    }

    /// Returns the bandwidth-delay product in bytes: BBR.bdp (2.9.2).
    pub(super) fn bdp(&self) -> u64 {
        let Some(min_rtt) = self.min_rtt.min_rtt else { return self.packet * INITIAL_PACKETS };
        u64::try_from(u128::from(self.bw) * u128::from(min_rtt) / u128::from(SECONDS)).unwrap_or(u64::MAX)
    }
}

/// Returns the number of bytes in flight at which the loss rate became too high: InflightAtLoss() (5.5.10.2).
fn inflight_at_loss(packet: &LostPacket) -> u64 {
    let inflight_prev = packet.tx_in_flight.saturating_sub(packet.bytes) as f64;
    let lost_prev = packet.lost.saturating_sub(packet.bytes) as f64;
    let lost_prefix = (LOSS_THRESH * inflight_prev - lost_prev) / (1.0 - LOSS_THRESH);
    (inflight_prev + lost_prefix).max(0.0) as u64
}
