//! BBR's minimum round-trip time, and the state ProbeRTT, which measures it with few packets in flight.
//!
//! Section numbers and names in comments are those of draft-ietf-ccwg-bbr-06. This file implements section 5.3.4.

use super::model::ShortTerm;
use super::probe_bw::AckPhase;
use super::{Bbr, BbrState, Sample};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Time after which the minimum expires: BBR.MinRTTFilterLen (2.16.1).
const MIN_RTT_FILTER_LEN: Nanos = 10 * SECONDS;
/// Interval between measurements: BBR.ProbeRTTInterval (2.16.2).
const PROBE_RTT_INTERVAL: Nanos = 5 * SECONDS;
/// Duration of a measurement: BBR.ProbeRTTDuration (2.16.2).
const PROBE_RTT_DURATION: Nanos = 200 * MILLIS;

/// The minimum round-trip time BBR.min_rtt, and the time of its next measurement (2.16).
#[derive(Debug, Default)]
pub(super) struct MinRtt {
    /// The minimum round-trip time, or `None` before the first sample.
    pub(super) min_rtt: Option<Nanos>,
    min_rtt_stamp: Nanos,
    /// BBR.probe_rtt_min_delay: the minimum round-trip time since ProbeRTT was last due.
    probe_min_delay: Option<Nanos>,
    /// BBR.probe_rtt_min_stamp: the time at which `probe_min_delay` was measured.
    probe_min_stamp: Nanos,
    is_expired: bool,
    done_stamp: Option<Nanos>,
    is_round_done: bool,
    /// Samples of packets that were sent before C.delivered reached this value count as app-limited, because ProbeRTT
    /// has reduced their rate (5.3.4.3).
    pub(super) ignored_until: u64,
}

impl Bbr {
    /// Updates both minima: UpdateMinRTT() (5.3.4.3).
    pub(super) fn update_min_rtt(&mut self, sample: &Sample) {
        let (it, now) = (&mut self.min_rtt, sample.now);
        // Before the first sample there is no minimum that could expire.
        it.is_expired = it.probe_min_delay.is_some() && now > it.probe_min_stamp.saturating_add(PROBE_RTT_INTERVAL);
        let is_lower = |rtt: &Nanos| it.probe_min_delay.is_none_or(|minimum| *rtt < minimum);
        if let Some(rtt) = sample.rtt.filter(|rtt| is_lower(rtt) || it.is_expired) {
            (it.probe_min_delay, it.probe_min_stamp) = (Some(rtt), now);
        }
        let is_expired = now > it.min_rtt_stamp.saturating_add(MIN_RTT_FILTER_LEN);
        if is_expired || it.min_rtt.is_none_or(|minimum| it.probe_min_delay < Some(minimum)) {
            (it.min_rtt, it.min_rtt_stamp) = (it.probe_min_delay, it.probe_min_stamp);
        }
    }

    /// Enters ProbeRTT when it is due: CheckProbeRTT() (5.3.4.3).
    pub(super) fn check_probe_rtt(&mut self, sample: &Sample) {
        if self.state != BbrState::ProbeRtt && self.min_rtt.is_expired && !self.idle_restart {
            self.save_cwnd(self.recovery.is_active());
            self.state = BbrState::ProbeRtt;
            self.min_rtt.done_stamp = None;
            self.cycle.ack_phase = AckPhase::ProbeStopping;
            self.round.start(self.delivered);
        }
        if self.state == BbrState::ProbeRtt {
            self.handle_probe_rtt(sample);
        }
        if sample.rate.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// Waits for few packets in flight, and then for the duration of ProbeRTT: HandleProbeRTT() (5.3.4.3).
    fn handle_probe_rtt(&mut self, sample: &Sample) {
        self.min_rtt.ignored_until = self.delivered.saturating_add(sample.in_flight).saturating_add(1);
        if self.min_rtt.done_stamp.is_none() {
            if sample.in_flight <= self.probe_rtt_cwnd() {
                self.min_rtt.done_stamp = Some(sample.now + PROBE_RTT_DURATION);
                self.min_rtt.is_round_done = false;
                self.round.start(self.delivered);
            }
            return;
        }
        self.min_rtt.is_round_done |= self.round.is_start;
        if self.min_rtt.is_round_done {
            self.check_probe_rtt_done(sample.now);
        }
    }

    /// Leaves ProbeRTT when its time is over: CheckProbeRTTDone() and ExitProbeRTT() (5.3.4.3, 5.3.4.4).
    pub(super) fn check_probe_rtt_done(&mut self, now: Nanos) {
        if self.min_rtt.done_stamp.is_none_or(|stamp| now <= stamp) {
            return;
        }
        self.min_rtt.probe_min_stamp = now;
        self.restore_cwnd();
        self.short_term = ShortTerm::default();
        if self.full_pipe.is_reached {
            self.start_probe_bw_down(now);
            self.state = BbrState::ProbeBwCruise;
        } else {
            self.state = BbrState::Startup;
        }
    }
}
