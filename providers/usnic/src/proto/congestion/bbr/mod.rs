//! BBRv3 according to draft-ietf-ccwg-bbr-06. Section numbers and names in comments are those of this draft.
//!
//! A model of the path, with the bandwidth `max_bw` and the round-trip time `min_rtt`, determines the pacing rate and
//! the congestion window. Loss is a congestion signal: while BBR probes for bandwidth (in Startup, REFILL and UP), if
//! its rate is above 2 %; at other times at any rate. Delay is no signal, so the scheduling delays of a host with too
//! few CPUs do not reduce the rate.
//!
//! `model` contains the model of the path, the states in `probe_bw` and `probe_rtt` measure its values, and `control`
//! computes the window and the rate.

mod control;
mod model;
mod probe_bw;
mod probe_rtt;
#[cfg(test)]
mod tests;

use super::recovery::Recovery;
use super::round::Round;
use super::{AckEvent, Controller, INITIAL_PACKETS, LossEvent, RateSample, SentPacket};
use crate::proto::Nanos;
use crate::proto::flight::is_loss_too_high;
use model::{FullPipe, MaxBw, ShortTerm, Signals, Undo};
use probe_bw::Cycle;
use probe_rtt::MinRtt;

/// Value of a bound that has no effect.
const INFINITY: u64 = u64::MAX;
/// Minimum congestion window in packets: BBR.MinPipeCwnd (2.8).
const MIN_PIPE_PACKETS: u64 = 4;
/// Factor of the multiplicative decrease after a round with loss: BBR.Beta (2.8).
const BETA: f64 = 0.7;
/// Minimum number of lost ranges of packets in a round at which loss ends Startup: BBRStartupFullLossCnt (5.3.1.3).
const STARTUP_FULL_LOSS_COUNT: u32 = 6;
/// Maximum number of rounds in Drain (5.3.2).
const DRAIN_ROUNDS: u64 = 3;

/// State of the state machine: BBR.state (5.1.1).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum BbrState {
    #[default]
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt,
}

impl BbrState {
    /// Returns the pacing gain of the state (table in 5.6.1).
    fn pacing_gain(self) -> f64 {
        match self {
            BbrState::Startup => 2.77,
            BbrState::Drain => 0.5,
            BbrState::ProbeBwDown => 0.90,
            BbrState::ProbeBwCruise | BbrState::ProbeBwRefill | BbrState::ProbeRtt => 1.0,
            BbrState::ProbeBwUp => 1.25,
        }
    }

    /// Returns the gain of the congestion window in this state (table in 5.6.1).
    fn cwnd_gain(self) -> f64 {
        match self {
            BbrState::ProbeBwUp => 2.25,
            BbrState::ProbeRtt => 0.5,
            _ => 2.0,
        }
    }

    /// Whether the state is one of the four ProbeBW states: IsInAProbeBWState() (5.3.3.9).
    fn is_probe_bw(self) -> bool {
        matches!(self, BbrState::ProbeBwDown | BbrState::ProbeBwCruise | BbrState::ProbeBwRefill | BbrState::ProbeBwUp)
    }

    /// Whether the state probes for bandwidth: IsProbingBW() (5.3.3.9).
    fn is_probing_bw(self) -> bool {
        matches!(self, BbrState::Startup | BbrState::ProbeBwRefill | BbrState::ProbeBwUp)
    }
}

/// The rate sample of an ack, with further values that the algorithm needs.
#[derive(Clone, Copy, Debug)]
struct Sample {
    now: Nanos,
    newly_acked: u64,
    rtt: Option<Nanos>,
    in_flight: u64,
    rate: RateSample,
    /// Whether a low rate says nothing about the path, because the sample is app-limited (RS.is_app_limited) or was
    /// taken in ProbeRTT (5.3.4.3).
    is_app_limited: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Bbr {
    packet: u64,
    random: u64,
    state: BbrState,
    round: Round,
    recovery: Recovery,
    idle_restart: bool,
    drain_start_round: u64,
    /// C.delivered: total number of bytes delivered.
    delivered: u64,

    // Control parameters (2.4).
    cwnd: u64,
    prior_cwnd: u64,
    pacing_rate: u64,
    has_seen_rtt: bool,

    // Model of the path (2.9).
    max_bw: MaxBw,
    bw: u64,
    short_term: ShortTerm,
    inflight_longterm: u64,
    extra_acked: model::ExtraAcked,
    full_pipe: FullPipe,
    signals: Signals,
    undo: Undo,
    min_rtt: MinRtt,
    cycle: Cycle,
}

impl Bbr {
    /// Initializes the state machine: OnInit() (5.2.1).
    pub(crate) fn new(packet: u64, seed: u64) -> Self {
        let packet = packet.max(1);
        let cwnd = packet * INITIAL_PACKETS;
        Bbr {
            packet,
            random: seed,
            cwnd,
            pacing_rate: control::initial_pacing_rate(cwnd, 0),
            inflight_longterm: INFINITY,
            ..Bbr::default()
        }
    }

    fn min_pipe_cwnd(&self) -> u64 {
        MIN_PIPE_PACKETS * self.packet
    }

    /// Updates the model and the state after an ack: UpdateModelAndState() (5.2.3).
    fn update_model_and_state(&mut self, sample: &Sample) {
        self.update_latest_delivery_signals(sample);
        self.update_congestion_signals(sample);
        self.extra_acked.update(sample, self.bw, self.cwnd, self.full_pipe.is_reached, self.round.count);
        let is_checked = self.round.is_start && !sample.is_app_limited;
        self.full_pipe.check(is_checked, sample.rate.delivery_rate);
        self.check_startup_done(sample);
        self.check_drain_done(sample);
        self.update_probe_bw_cycle_phase(sample);
        self.update_min_rtt(sample);
        self.check_probe_rtt(sample);
        self.signals.advance(sample);
        // Limits the bandwidth to the short-term bound: BoundBWForModel() (5.5.10.3).
        self.bw = self.max_bw.get().min(self.short_term.bw);
    }

    /// Leaves Startup when the pipe is full or loss is high: CheckStartupDone() and CheckStartupHighLoss() (5.3.1.1 and
    /// 5.3.1.3).
    fn check_startup_done(&mut self, sample: &Sample) {
        if self.state != BbrState::Startup {
            return;
        }
        let is_lossy = self.signals.loss_round_start
            && self.recovery.is_active()
            && self.signals.lost_ranges() >= STARTUP_FULL_LOSS_COUNT
            && is_loss_too_high(sample.rate.lost, sample.rate.tx_in_flight);
        if is_lossy {
            self.undo.state = Some(BbrState::Startup);
            self.full_pipe.is_reached = true;
            self.inflight_longterm = self.bdp().max(self.signals.inflight_latest);
        }
        if self.full_pipe.is_reached {
            self.state = BbrState::Drain; // Drains the queue: EnterDrain() (5.3.2).
            self.drain_start_round = self.round.count;
        }
    }

    /// Leaves Drain when the queue has drained, or after [`DRAIN_ROUNDS`]: CheckDrainDone() (5.3.2).
    fn check_drain_done(&mut self, sample: &Sample) {
        let is_late = self.round.count > self.drain_start_round + DRAIN_ROUNDS;
        if self.state == BbrState::Drain && (is_late || sample.in_flight <= self.inflight(1.0)) {
            self.start_probe_bw_down(sample.now);
        }
    }
}

impl Controller for Bbr {
    /// Adapts to a restart from idle: HandleRestartFromIdle() (5.4.1).
    fn sent(&mut self, sent: &SentPacket) {
        if sent.in_flight > sent.bytes || !sent.is_app_limited {
            return;
        }
        self.idle_restart = true;
        self.extra_acked.restart(sent.now);
        if self.state.is_probe_bw() {
            self.set_pacing_rate(1.0);
        } else if self.state == BbrState::ProbeRtt {
            self.check_probe_rtt_done(sent.now);
        }
    }

    /// Processes an ack: UpdateOnACK() (5.2.3).
    fn acked(&mut self, ack: &AckEvent) {
        let Some(rate) = ack.rate else { return };
        self.delivered = rate.total_delivered;
        if self.recovery.record_spurious(ack.spurious) {
            self.handle_spurious_loss();
        }
        if self.recovery.acked(rate.send_time) {
            self.restore_cwnd();
        }
        self.round.acked(&rate, ack.is_cwnd_limited);
        if self.round.is_start {
            self.cycle.rounds_since_probe_up += 1;
        }
        let sample = Sample {
            now: ack.now,
            newly_acked: ack.bytes,
            rtt: ack.rtt,
            in_flight: ack.in_flight,
            rate,
            is_app_limited: rate.is_app_limited || rate.prior_delivered < self.min_rtt.ignored_until,
        };
        self.update_model_and_state(&sample);
        self.update_control_parameters(&sample, ack.srtt);
    }

    fn lost(&mut self, loss: &LossEvent) {
        self.delivered = loss.total_delivered;
        let was_active = self.recovery.is_active();
        if self.recovery.lost(loss) {
            self.save_cwnd(was_active); // Saves the window for restoration: OnEnterFastRecovery() (5.6.4.4).
        }
        self.handle_lost_packets(loss);
        if loss.is_persistent {
            // Persistent congestion has the effect of an RTO: OnEnterRTO() (5.6.4.4).
            self.cwnd = loss.in_flight + self.packet;
        }
    }

    /// Records the overflow as a loss in this round. The loss lowers the short-term bounds, unless BBR is probing for
    /// bandwidth.
    fn overflowed(&mut self, _now: Nanos) {
        self.note_loss(0);
    }

    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate.max(1))
    }

    fn resize(&mut self, packet: u64) {
        self.packet = packet.max(1);
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
    }
}
