//! Tests the states and reactions of BBR on a model of a path. Numbers of test cases are those of
//! draft-ietf-ccwg-bbr-06, appendix A.

use super::*;
use crate::proto::congestion::Congestion;
use crate::proto::congestion::tests::model::{Model, Sender, SimPath};
use crate::proto::flight::{LostPacket, LostPackets};
use crate::proto::{MILLIS, SECONDS};

const PACKET: u64 = 1000;
const LINK: u64 = 10_000_000;
const RTT: Nanos = 10 * MILLIS;
/// Bandwidth-delay product of the path, in bytes.
const BDP: u64 = LINK / 100;

/// A model of a path with one flow.
struct Path(Model);

impl Path {
    /// Creates a path whose queue has space for two BDPs.
    fn new() -> Self {
        Path::over(SimPath { rtt: RTT, link: LINK, queue: 2 * BDP, ..SimPath::default() })
    }

    fn over(path: SimPath) -> Self {
        let mut model = Model::new(path, 5);
        let control = Congestion::Bbr(Bbr::new(PACKET, 1));
        model.add(Sender { control, packet: PACKET, limit: u64::MAX, starts: 0 });
        Path(model)
    }

    fn bbr(&mut self) -> &mut Bbr {
        match &mut self.0.flows[0].sender.control {
            Congestion::Bbr(bbr) => bbr,
            other => panic!("the flow must use BBR, not {other:?}"),
        }
    }

    /// Runs until BBR is in `state`. Returns the elapsed time.
    fn until(&mut self, state: BbrState) -> Nanos {
        let began = self.0.now;
        while self.bbr().state != state {
            self.0.run(MILLIS / 4);
            assert!(self.0.now - began < 20 * SECONDS, "BBR did not enter {state:?} within 20 s: {:?}", self.bbr());
        }
        self.0.now - began
    }
}

#[test]
fn bbr_startup_ends_when_bandwidth_stays_the_same() {
    // Test cases A.1 and A.3.
    let mut path = Path::new();
    path.until(BbrState::Drain);
    assert!(
        path.bbr().full_pipe.is_reached && path.bbr().round.count < 15,
        "startup must end by a full pipe within 15 rounds: {:?}",
        path.bbr()
    );
    let max_bw = path.bbr().max_bw.get();
    assert!(
        (LINK * 98 / 100..=LINK * 102 / 100).contains(&max_bw),
        "the bandwidth estimate {max_bw} differs from that of the link by more than 2 %"
    );
    assert!(path.until(BbrState::ProbeBwCruise) < 6 * RTT);
}

#[test]
fn startup_continues_while_app_limited_and_ends_by_loss() {
    // Test cases A.7 and A.2.
    let mut path = Path::new();
    path.0.offer(0, LINK / 4);
    path.0.run(2 * SECONDS);
    assert_eq!(path.bbr().state, BbrState::Startup);
    path.0.path.loss = 0.4;
    path.0.run(20 * RTT);
    let bbr = path.bbr();
    assert!(bbr.state != BbrState::Startup && bbr.full_pipe.is_reached, "unexpected state of BBR: {bbr:?}");
}

#[test]
fn bandwidth_probe_goes_through_refill_up_down_and_cruise() {
    // Test cases A.5 and A.8.
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    let wait = path.until(BbrState::ProbeBwRefill);
    assert!(wait <= 64 * (RTT + RTT / 8), "bandwidth is probed after at most 63 rounds, not after {wait} ns");
    path.until(BbrState::ProbeBwUp);
    assert!(path.until(BbrState::ProbeBwDown) >= 2 * RTT, "ProbeBwUp must last at least two RTTs");
    path.until(BbrState::ProbeBwCruise);
}

#[test]
fn bbr_loss_while_probing_bounds_inflight() {
    // Test case A.21.
    let mut path = Path::new();
    path.until(BbrState::ProbeBwUp);
    path.0.run(2 * RTT);
    let before = path.bbr().cwnd();
    path.0.path.loss = 0.1;
    path.0.run(3 * RTT);
    path.0.path.loss = 0.0;
    let bbr = path.bbr();
    assert!(bbr.state != BbrState::ProbeBwUp && bbr.cycle.prev_probe_too_high, "unexpected state of BBR: {bbr:?}");
    let bound = bbr.inflight_longterm;
    assert!(
        bound <= before && bound as f64 >= BETA * BDP as f64 * 0.9,
        "loss must bound the data in flight: bound {bound} bytes, before {before} bytes"
    );
    path.until(BbrState::ProbeBwCruise);
    path.0.run(RTT);
    assert!(path.bbr().cwnd() <= path.bbr().inflight_with_headroom());
}

#[test]
fn loss_while_cruising_lowers_the_short_term_bounds_until_the_next_probe() {
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    path.0.path.loss = 0.1;
    path.0.run(5 * RTT);
    path.0.path.loss = 0.0;
    let bbr = path.bbr();
    assert!(bbr.short_term.bw < INFINITY && bbr.bw < bbr.max_bw.get(), "unexpected state of BBR: {bbr:?}");
    path.until(BbrState::ProbeBwRefill);
    assert_eq!((path.bbr().short_term.bw, path.bbr().short_term.inflight), (INFINITY, INFINITY));
}

#[test]
fn probe_rtt_reduces_the_window_and_keeps_the_bandwidth_estimate() {
    // Test case A.10.
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    path.until(BbrState::ProbeRtt);
    path.0.run(5 * RTT);
    assert!(path.bbr().cwnd() <= path.bbr().probe_rtt_cwnd());
    let lasts = path.until(BbrState::ProbeBwCruise);
    assert!(
        (140 * MILLIS..300 * MILLIS).contains(&lasts),
        "ProbeRtt must last 140 to 300 ms, not {} ms",
        lasts / MILLIS
    );
    let max_bw = path.bbr().max_bw.get();
    assert!(max_bw >= LINK * 95 / 100, "the low rates of ProbeRtt must not reduce the bandwidth estimate to {max_bw}");
}

#[test]
fn bbr_skips_probe_rtt_after_idle_time() {
    // Test case A.11.
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    let now = path.0.now + 6 * SECONDS;
    path.bbr().sent(&SentPacket { now, bytes: PACKET, in_flight: PACKET, is_app_limited: true });
    let bbr = path.bbr();
    assert!(bbr.idle_restart && bbr.pacing_rate <= bbr.bw, "unexpected state of BBR: {bbr:?}");
    let rate = RateSample { delivered: PACKET, total_delivered: bbr.delivered + PACKET, ..RateSample::default() };
    let rtt = Some(2 * RTT);
    let ack = AckEvent {
        now: now + 2 * RTT,
        bytes: PACKET,
        rtt,
        srtt: RTT,
        in_flight: 0,
        rate: Some(rate),
        is_cwnd_limited: false,
        spurious: 0,
    };
    bbr.acked(&ack);
    assert!(bbr.state != BbrState::ProbeRtt && !bbr.idle_restart);
}

#[test]
fn bbr_window_has_at_least_four_packets() {
    // Test case A.14.
    let mut path = Path::over(SimPath { rtt: MILLIS, link: 100_000, queue: 20_000, ..SimPath::default() });
    path.until(BbrState::ProbeBwCruise);
    let bbr = path.bbr();
    assert!(bbr.bdp() < 2 * PACKET && bbr.cwnd() >= 4 * PACKET, "unexpected state of BBR: {bbr:?}");
    assert!(path.0.run(5 * SECONDS)[0] >= 90_000.0);
}

#[test]
fn bbr_undoes_a_spurious_loss() {
    // Test case A.18.
    let mut path = Path::new();
    path.until(BbrState::ProbeBwUp);
    path.0.run(RTT);
    let now = path.0.now;
    let bbr = path.bbr();
    let (cwnd, bound, total_delivered) = (bbr.cwnd(), bbr.inflight_longterm, bbr.delivered);
    let packet = LostPacket { bytes: PACKET, tx_in_flight: 10 * PACKET, lost: PACKET, is_app_limited: false };
    let excess = Some(packet);
    let lost = LostPackets { packets: 1, ranges: 1, last_sent: now - RTT, excess, ..LostPackets::default() };
    bbr.lost(&LossEvent { now, lost, in_flight: 9 * PACKET, total_delivered, is_persistent: false });
    assert_eq!(bbr.state, BbrState::ProbeBwDown);
    assert!(bbr.recovery.record_spurious(1));
    bbr.handle_spurious_loss();
    assert_eq!((bbr.state, bbr.inflight_longterm), (BbrState::ProbeBwRefill, bound));
    assert!(bbr.cwnd() >= cwnd);
}
