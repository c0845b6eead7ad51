//! Pacing rate and congestion window from the model (5.6).

use super::{Bbr, Sample, State};
use crate::proto::congestion::{INITIAL_PACKETS, send_quantum};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Percentage by which pacing stays below the bandwidth: BBR.PacingMarginPercent (2.5).
const PACING_MARGIN_PERCENT: f64 = 1.0;
/// Minimum window in send quanta: BBR.offload_budget where sender and receiver batch as TCP does (5.5.8.1).
const OFFLOAD_QUANTA: u64 = 3;

/// InitPacingRate() (5.6.2).
pub(super) fn initial_pacing_rate(cwnd: u64, srtt: Nanos) -> u64 {
    let srtt = if srtt == 0 { MILLIS } else { srtt };
    (State::Startup.pacing_gain() * cwnd as f64 * SECONDS as f64 / srtt as f64) as u64
}

impl Bbr {
    /// UpdateControlParameters() (5.2.3).
    pub(super) fn update_control_parameters(&mut self, sample: &Sample, srtt: Nanos) {
        if !self.has_seen_rtt && srtt > 0 {
            self.has_seen_rtt = true;
            self.pacing_rate = initial_pacing_rate(INITIAL_PACKETS * self.packet, srtt);
        }
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(sample);
    }

    /// SetPacingRateWithGain() (5.6.2).
    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        let rate = (gain * self.bw as f64 * (100.0 - PACING_MARGIN_PERCENT) / 100.0) as u64;
        if self.full_pipe.is_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// SetCwnd() (5.6.4.6).
    fn set_cwnd(&mut self, sample: &Sample) {
        let most = self.max_inflight();
        let grown = self.cwnd.saturating_add(sample.newly_acked);
        if self.full_pipe.is_reached {
            self.cwnd = grown.min(most);
        } else if self.cwnd < most || self.delivered < INITIAL_PACKETS * self.packet {
            self.cwnd = grown;
        }
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd()); // BoundCwndForProbeRTT() (5.6.4.5)
        }
        self.bound_cwnd_for_model();
    }

    /// BoundCwndForModel() (5.6.4.7).
    fn bound_cwnd_for_model(&mut self) {
        let cap = match self.state {
            State::ProbeBwCruise | State::ProbeRtt => self.inflight_with_headroom(),
            state if state.is_probe_bw() => self.inflight_longterm,
            _ => super::INFINITY,
        };
        let cap = cap.min(self.short_term.inflight).max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }

    /// BDPMultiple() (5.6.4.2).
    fn bdp_multiple(&self, gain: f64) -> u64 {
        match self.min_rtt.get() {
            None => INITIAL_PACKETS * self.packet,
            Some(_) => (gain * self.bdp() as f64) as u64,
        }
    }

    /// QuantizationBudget() (5.6.4.2).
    fn quantization_budget(&self, inflight: u64) -> u64 {
        let offload = OFFLOAD_QUANTA * send_quantum(self.pacing_rate, self.packet);
        let budget = inflight.max(offload).max(self.min_pipe_cwnd());
        if self.state == State::ProbeBwUp { budget + 2 * self.packet } else { budget }
    }

    /// Inflight() (5.6.4.2).
    pub(super) fn inflight(&self, gain: f64) -> u64 {
        self.quantization_budget(self.bdp_multiple(gain))
    }

    /// UpdateMaxInflight() (5.6.4.2).
    fn max_inflight(&self) -> u64 {
        let inflight = self.bdp_multiple(self.state.cwnd_gain()).saturating_add(self.extra_acked.get());
        self.quantization_budget(inflight)
    }

    /// ProbeRTTCwnd() (5.6.4.5).
    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(State::ProbeRtt.cwnd_gain()).max(self.min_pipe_cwnd())
    }

    /// SaveCwnd() (5.6.4.4).
    pub(super) fn save_cwnd(&mut self, is_in_recovery: bool) {
        let is_modulated = is_in_recovery || self.state == State::ProbeRtt;
        self.prior_cwnd = if is_modulated { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    /// RestoreCwnd() (5.6.4.4).
    pub(super) fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }
}
