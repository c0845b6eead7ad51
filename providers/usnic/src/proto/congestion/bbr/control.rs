//! Computes the pacing rate and the congestion window of BBR from the model of the path.
//!
//! Section numbers and names in comments are those of draft-ietf-ccwg-bbr-06. This file implements section 5.6.

use super::{Bbr, BbrState, Sample};
use crate::proto::congestion::{INITIAL_PACKETS, send_quantum};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Percentage by which the pacing rate stays below the product of gain and estimated bandwidth, so that queues on the
/// path become shorter: BBR.PacingMarginPercent (2.5).
const PACING_MARGIN_PERCENT: f64 = 1.0;
/// Minimum amount in flight, in send quanta, so that sender and receiver can batch packets: BBR.offload_budget, as for
/// TCP (5.5.8.1).
const OFFLOAD_QUANTA: u64 = 3;

/// Returns the pacing rate in bytes per second before the first bandwidth sample: InitPacingRate() (5.6.2).
pub(super) fn initial_pacing_rate(cwnd: u64, srtt: Nanos) -> u64 {
    let srtt = if srtt == 0 { MILLIS } else { srtt };
    (BbrState::Startup.pacing_gain() * cwnd as f64 * SECONDS as f64 / srtt as f64) as u64
}

impl Bbr {
    /// Updates the pacing rate and the window after an ack: UpdateControlParameters() (5.2.3).
    pub(super) fn update_control_parameters(&mut self, sample: &Sample, srtt: Nanos) {
        if !self.has_seen_rtt && srtt > 0 {
            self.has_seen_rtt = true;
            self.pacing_rate = initial_pacing_rate(INITIAL_PACKETS * self.packet, srtt);
        }
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(sample);
    }

    /// Sets the pacing rate to `gain` times the bandwidth, less a margin: SetPacingRateWithGain() (5.6.2). The rate
    /// does not fall before the pipe is full.
    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        let rate = (gain * self.bw as f64 * (100.0 - PACING_MARGIN_PERCENT) / 100.0) as u64;
        if self.full_pipe.is_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Grows the window by the newly acked bytes, up to the maximum amount in flight once the pipe is full. Then
    /// applies the bounds of the state and of the model: SetCwnd() (5.6.4.6).
    fn set_cwnd(&mut self, sample: &Sample) {
        let most = self.max_inflight();
        let grown = self.cwnd.saturating_add(sample.newly_acked);
        if self.full_pipe.is_reached {
            self.cwnd = grown.min(most);
        } else if self.cwnd < most || self.delivered < INITIAL_PACKETS * self.packet {
            self.cwnd = grown;
        }
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
        if self.state == BbrState::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd()); // BoundCwndForProbeRTT() (5.6.4.5).
        }
        self.bound_cwnd_for_model();
    }

    /// Limits the window to the long-term and short-term bounds of the model: BoundCwndForModel() (5.6.4.7).
    fn bound_cwnd_for_model(&mut self) {
        let cap = match self.state {
            BbrState::ProbeBwCruise | BbrState::ProbeRtt => self.inflight_with_headroom(),
            state if state.is_probe_bw() => self.inflight_longterm,
            _ => super::INFINITY,
        };
        let cap = cap.min(self.short_term.inflight).max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }

    /// Returns `gain` times the bandwidth-delay product, in bytes: BDPMultiple() (5.6.4.2).
    fn bdp_multiple(&self, gain: f64) -> u64 {
        match self.min_rtt.min_rtt {
            None => INITIAL_PACKETS * self.packet,
            Some(_) => (gain * self.bdp() as f64) as u64,
        }
    }

    /// Raises `inflight` to the minimum that batching and the probing for bandwidth need: QuantizationBudget()
    /// (5.6.4.2).
    fn quantization_budget(&self, inflight: u64) -> u64 {
        let offload = OFFLOAD_QUANTA * send_quantum(self.pacing_rate, self.packet);
        let budget = inflight.max(offload).max(self.min_pipe_cwnd());
        if self.state == BbrState::ProbeBwUp { budget + 2 * self.packet } else { budget }
    }

    /// Returns the target amount in flight for this gain, in bytes: Inflight() (5.6.4.2).
    pub(super) fn inflight(&self, gain: f64) -> u64 {
        self.quantization_budget(self.bdp_multiple(gain))
    }

    /// Returns the maximum amount in flight, in bytes, with an allowance for aggregated acks: UpdateMaxInflight()
    /// (5.6.4.2).
    fn max_inflight(&self) -> u64 {
        let inflight = self.bdp_multiple(self.state.cwnd_gain()).saturating_add(self.extra_acked.get());
        self.quantization_budget(inflight)
    }

    /// Returns the window during ProbeRTT, in bytes: ProbeRTTCwnd() (5.6.4.5).
    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(BbrState::ProbeRtt.cwnd_gain()).max(self.min_pipe_cwnd())
    }

    /// Saves the window before loss recovery or ProbeRTT reduces it: SaveCwnd() (5.6.4.4).
    pub(super) fn save_cwnd(&mut self, is_in_recovery: bool) {
        let is_modulated = is_in_recovery || self.state == BbrState::ProbeRtt;
        self.prior_cwnd = if is_modulated { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    /// Restores the saved window: RestoreCwnd() (5.6.4.4).
    pub(super) fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }
}
