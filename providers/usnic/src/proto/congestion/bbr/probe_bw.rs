//! BBR's cycle of the states DOWN, CRUISE, REFILL and UP, which probes for bandwidth.
//!
//! Section numbers and names in comments are those of draft-ietf-ccwg-bbr-06. This file implements section 5.3.3.

use super::model::ShortTerm;
use super::{Bbr, BbrState, INFINITY, Sample};
use crate::proto::flight::is_loss_too_high;
use crate::proto::{Nanos, SECONDS};

/// Fraction of inflight_longterm that BBR leaves to other flows: BBR.Headroom (2.8).
const HEADROOM: f64 = 0.15;
/// Maximum time between probes: `PROBE_WAIT` plus a random time of up to `PROBE_WAIT_RANDOM` (5.3.3.8.2).
const PROBE_WAIT: Nanos = 2 * SECONDS;
const PROBE_WAIT_RANDOM: Nanos = SECONDS;
/// Maximum number of rounds between probes, so that Reno and CUBIC flows keep their share (5.3.3.8.3).
const RENO_ROUNDS: u64 = 63;
/// Maximum of n: in each round of UP, inflight_longterm grows by 2^n packets, and n increases by one (5.3.3.9).
const UP_ROUNDS: u32 = 30;

/// Phase of the acks relative to the probe for bandwidth: BBR.ack_phase (2.14).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum AckPhase {
    #[default]
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// State of the ProbeBW cycle (2.14).
#[derive(Debug, Default)]
pub(super) struct Cycle {
    pub(super) ack_phase: AckPhase,
    pub(super) is_bw_probe_sample: bool,
    up_acked: u64,
    /// Number of acked bytes after which inflight_longterm grows by a packet. UP sets it when it starts.
    up_acked_per_increment: u64,
    up_rounds: u32,
    pub(super) rounds_since_probe_up: u64,
    pub(super) wait: Nanos,
    stamp: Nanos,
    pub(super) prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
}

impl Bbr {
    /// Advances through the ProbeBW states: UpdateProbeBWCyclePhase() (5.3.3.9).
    pub(super) fn update_probe_bw_cycle_phase(&mut self, sample: &Sample) {
        if !self.full_pipe.is_reached || self.adapt_long_term_model(sample) {
            return;
        }
        let state = self.state;
        match state {
            BbrState::ProbeBwDown if self.is_time_to_probe_bw(sample.now) => self.start_probe_bw_refill(),
            BbrState::ProbeBwDown if self.is_time_to_cruise(sample) => self.state = BbrState::ProbeBwCruise,
            BbrState::ProbeBwCruise if self.is_time_to_probe_bw(sample.now) => self.start_probe_bw_refill(),
            BbrState::ProbeBwRefill if self.round.is_start => {
                self.cycle.is_bw_probe_sample = true;
                self.start_probe_bw_up(sample);
            }
            BbrState::ProbeBwUp if self.is_time_to_go_down(sample) => {
                self.cycle.prev_probe_too_high = false;
                self.start_probe_bw_down(sample.now);
            }
            _ => {}
        }
    }

    /// Enters DOWN, and picks the time of the next probe: StartProbeBW_DOWN() and PickProbeWait() (5.3.3.8.3).
    pub(super) fn start_probe_bw_down(&mut self, now: Nanos) {
        self.signals.reset();
        self.cycle.up_acked_per_increment = INFINITY;
        self.cycle.rounds_since_probe_up = self.next_random() & 1;
        self.cycle.wait = PROBE_WAIT + self.next_random() % PROBE_WAIT_RANDOM;
        self.cycle.stamp = now;
        self.cycle.ack_phase = AckPhase::ProbeStopping;
        self.round.start(self.delivered);
        self.state = BbrState::ProbeBwDown;
    }

    pub(super) fn start_probe_bw_refill(&mut self) {
        self.short_term = ShortTerm::default();
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.prev_probe_precautionary = false;
        self.cycle.ack_phase = AckPhase::Refilling;
        self.round.start(self.delivered);
        self.state = BbrState::ProbeBwRefill;
    }

    fn start_probe_bw_up(&mut self, sample: &Sample) {
        self.cycle.ack_phase = AckPhase::ProbeStarting;
        self.round.start(self.delivered);
        self.full_pipe.reset(sample.rate.delivery_rate);
        self.state = BbrState::ProbeBwUp;
        self.raise_inflight_longterm_slope();
    }

    /// Whether to probe for bandwidth: IsTimeToProbeBW() and IsRenoCoexistenceProbeTime() (5.3.3.8.3).
    ///
    /// The number of rounds until a probe is computed from the BDP plus its quantization budget. With the BDP alone, a
    /// BDP below one packet would cause a probe in each round.
    fn is_time_to_probe_bw(&self, now: Nanos) -> bool {
        let rounds = (self.inflight(1.0).min(self.cwnd) / self.packet).min(RENO_ROUNDS);
        now > self.cycle.stamp.saturating_add(self.cycle.wait) || self.cycle.rounds_since_probe_up >= rounds
    }

    fn is_time_to_cruise(&self, sample: &Sample) -> bool {
        sample.in_flight <= self.inflight_with_headroom() && sample.in_flight <= self.inflight(1.0)
    }

    fn is_time_to_go_down(&mut self, sample: &Sample) -> bool {
        // Deceleration of precautionary bandwidth probing (5.3.3.6).
        if self.cycle.prev_probe_too_high && sample.in_flight >= self.inflight_longterm {
            self.cycle.prev_probe_precautionary = true;
            return true;
        }
        if self.round.is_cwnd_limited() && self.cwnd >= self.inflight_longterm {
            self.full_pipe.reset(sample.rate.delivery_rate); // The bound limits the rate, so the pipe is not full.
            return false;
        }
        self.full_pipe.is_now
    }

    /// Returns inflight_longterm less the headroom for other flows, in bytes: InflightWithHeadroom() (5.3.3.9).
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_longterm == INFINITY {
            return INFINITY;
        }
        let headroom = ((HEADROOM * self.inflight_longterm as f64) as u64).max(self.packet);
        self.inflight_longterm.saturating_sub(headroom).max(self.min_pipe_cwnd())
    }

    fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(UP_ROUNDS);
        self.cycle.up_acked_per_increment = (self.cwnd / growth).max(self.packet);
    }

    /// Raises inflight_longterm during UP: ProbeInflightLongtermUpward() (5.3.3.9).
    fn probe_inflight_longterm_upward(&mut self, sample: &Sample) {
        if !self.round.is_cwnd_limited() || self.cwnd < self.inflight_longterm {
            return;
        }
        let cycle = &mut self.cycle;
        cycle.up_acked += sample.newly_acked;
        let increments = cycle.up_acked / cycle.up_acked_per_increment;
        cycle.up_acked -= increments * cycle.up_acked_per_increment;
        self.inflight_longterm = self.inflight_longterm.saturating_add(increments * self.packet);
        if self.round.is_start {
            self.raise_inflight_longterm_slope();
        }
    }

    /// Adapts inflight_longterm to an ack: AdaptLongTermModel() (5.3.3.9). Returns true if it changed the state.
    fn adapt_long_term_model(&mut self, sample: &Sample) -> bool {
        if self.cycle.ack_phase == AckPhase::ProbeStarting && self.round.is_start {
            self.cycle.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.cycle.ack_phase == AckPhase::ProbeStopping && self.round.is_start {
            self.cycle.is_bw_probe_sample = false;
            self.cycle.ack_phase = AckPhase::Init;
            if self.state.is_probe_bw() && !sample.is_app_limited {
                self.max_bw.advance();
            }
            // Acceleration of precautionary bandwidth probing (5.3.3.6).
            let was_safe = self.cycle.prev_probe_precautionary && !self.cycle.prev_probe_too_high;
            if self.state.is_probe_bw() && was_safe {
                self.start_probe_bw_refill();
                return true;
            }
        }
        let rate = &sample.rate;
        if self.inflight_longterm != INFINITY && !is_loss_too_high(rate.lost, rate.tx_in_flight) {
            self.inflight_longterm = self.inflight_longterm.max(rate.tx_in_flight);
            if self.state == BbrState::ProbeBwUp {
                self.probe_inflight_longterm_upward(sample);
            }
        }
        false
    }

    /// Returns a pseudo-random number (splitmix64).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
