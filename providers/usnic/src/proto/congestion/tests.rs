//! Tests the throughput and the queueing delay of the algorithms on a simulated path, and their reactions to single
//! events such as losses or a full local queue.

pub(super) mod model;

use self::model::{Model, Sender, SimPath};
use super::{AckEvent, Algorithm, Congestion, Controller, Cubic, Local, LossEvent};
use crate::proto::flight::{LostPackets, RateSample};
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

const PACKET: u64 = 1472;
const PATH_ALGORITHMS: [Algorithm; 2] = [Algorithm::Bbr, Algorithm::Cubic];

fn sender(algorithm: Algorithm, seed: u64) -> Sender {
    Sender { control: Congestion::new(algorithm, PACKET, 1 << 20, seed), packet: PACKET, limit: u64::MAX, starts: 0 }
}

/// Returns the throughput of each flow after a warm-up, in bytes per second.
fn rates(path: SimPath, seed: u64, senders: Vec<Sender>, warm: Nanos, time: Nanos) -> Vec<f64> {
    let mut model = Model::new(path, seed);
    for sender in senders {
        model.add(sender);
    }
    model.run(warm);
    model.run(time)
}

fn alone(path: SimPath, seed: u64, sender: Sender) -> f64 {
    rates(path, seed, vec![sender], SECONDS, 4 * SECONDS)[0]
}

/// Returns each flow's share of the total throughput, and the total throughput in bytes per second.
fn shares(path: SimPath, seed: u64, senders: Vec<Sender>, time: Nanos) -> (Vec<f64>, f64) {
    let rates = rates(path, seed, senders, 5 * SECONDS, time);
    let all: f64 = rates.iter().sum();
    (rates.iter().map(|rate| rate / all).collect(), all)
}

#[test]
fn single_flow_reaches_85_percent_of_the_link_rate() {
    let roads = [(12_500_000, 2000, 40), (12_500_000, 20_000, 170), (125_000_000, 200, 40), (25_000_000, 50, 100)];
    for algorithm in PATH_ALGORITHMS {
        for (link, rtt, packets) in roads {
            let path = SimPath { rtt: rtt * MICROS, link, queue: packets * PACKET, ..SimPath::default() };
            let rate = alone(path, 7, sender(algorithm, 1));
            assert!(
                rate >= 0.85 * link as f64,
                "{algorithm:?}: {rate:.0} of {link} bytes/s at an RTT of {rtt} us with a queue of {packets} packets"
            );
        }
    }
}

#[test]
fn bbr_keeps_a_deep_queue_short_and_cubic_does_not() {
    for (link, rtt) in [(12_500_000, 20_000), (125_000_000, 2000)] {
        let path = SimPath { rtt: rtt * MICROS, link, queue: 20_000_000, ..SimPath::default() };
        let delay = |algorithm| {
            let mut model = Model::new(path, 3);
            model.add(sender(algorithm, 3));
            model.run(2 * SECONDS);
            model.run(2 * SECONDS);
            model.flows[0].mean_delay()
        };
        let (bbr, cubic) = (delay(Algorithm::Bbr), delay(Algorithm::Cubic));
        assert!(
            bbr < rtt * MICROS / 2,
            "{link} bytes/s at an RTT of {rtt} us: BBR causes a queueing delay of {bbr} ns"
        );
        assert!(
            cubic > 2 * bbr,
            "{link} bytes/s at an RTT of {rtt} us: the queueing delay is {cubic} ns with CUBIC and {bbr} ns with BBR"
        );
    }
}

#[test]
fn bbr_tolerates_one_percent_of_random_loss() {
    for (rtt, seed) in [(100, 1), (1000, 2), (20_000, 3)] {
        let path = SimPath { rtt: rtt * MICROS, link: 25_000_000, queue: 1_000_000, loss: 0.01, ..SimPath::default() };
        let (bbr, cubic) =
            (alone(path, seed, sender(Algorithm::Bbr, 1)), alone(path, seed, sender(Algorithm::Cubic, 1)));
        assert!(bbr >= 0.8 * path.link as f64, "RTT of {rtt} us: BBR reaches only {bbr:.0} bytes/s");
        assert!(
            rtt < 20_000 || bbr > 2.0 * cubic,
            "RTT of {rtt} us: BBR reaches {bbr:.0} bytes/s, not twice the {cubic:.0} bytes/s of CUBIC"
        );
    }
}

#[test]
fn fifty_percent_loss_reduces_the_rate_without_stopping_the_flow() {
    for algorithm in PATH_ALGORITHMS {
        let path = SimPath { rtt: MILLIS, loss: 0.5, link: 125_000_000, ..SimPath::default() };
        let rate = alone(path, 5, sender(algorithm, 1));
        assert!(rate > 0.0 && rate < 0.1 * path.link as f64, "{algorithm:?}: {rate:.0} bytes/s with 50 % loss");
    }
}

#[test]
fn flows_of_one_algorithm_each_get_a_quarter_of_a_shared_link() {
    for algorithm in PATH_ALGORITHMS {
        for (link, rtt, packets) in [(12_500_000, 2000, 40), (12_500_000, 10_000, 100), (25_000_000, 100, 100)] {
            let path = SimPath { rtt: rtt * MICROS, link, queue: packets * PACKET, ..SimPath::default() };
            let late = |flow| Sender { starts: flow * 300 * MILLIS, ..sender(algorithm, flow) };
            let (share, all) = shares(path, 13, vec![late(1), late(2)], 20 * SECONDS);
            let name = format!("{algorithm:?}: {link} at {rtt} us, {packets} packets");
            assert!(
                share.iter().all(|share| *share >= 0.25),
                "{name}: each flow must get a quarter of the link, but the shares are {share:.2?}"
            );
            assert!(all >= 0.85 * link as f64, "{name}: both flows together reach only {all:.0} bytes/s");
        }
    }
}

#[test]
fn bbr_conforms_to_a_token_bucket_policer() {
    // Test case A.17 of draft-ietf-ccwg-bbr-06.
    for (rate, rtt) in [(12_500_000, 2000), (25_000_000, 500)] {
        let path = SimPath { rtt: rtt * MICROS, policer: Some((rate, 262_144)), ..SimPath::default() };
        let mut model = Model::new(path, 9);
        model.add(sender(Algorithm::Bbr, 1));
        model.run(4 * SECONDS);
        let before = model.flows[0].lost;
        let passes = model.run(4 * SECONDS)[0];
        let lost = (model.flows[0].lost - before) as f64 / 4.0 / passes;
        assert!(
            passes >= 0.6 * rate as f64 && lost < 0.2,
            "policer of {rate} bytes/s, RTT of {rtt} us: {passes:.0} bytes/s pass, and the fraction {lost:.3} is lost"
        );
    }
}

#[test]
fn stalling_hosts_keep_a_fifth_of_the_throughput() {
    // The hosts have more runnable threads than CPUs. This causes pauses of up to 8 ms, without loss.
    for algorithm in PATH_ALGORITHMS {
        for mean in [20, 5] {
            let quiet = SimPath { rtt: 50 * MICROS, link: 100_000_000, ..SimPath::default() };
            let path = SimPath { stalls: Some((mean * MILLIS, 8 * MILLIS)), ..quiet };
            let control = |limit| Sender { limit, ..sender(algorithm, 2) };
            let rate = alone(path, 11, control(4_000_000));
            // With a mean of 5 ms between pauses, each host pauses about half of the time.
            let least = if mean == 20 { 0.5 } else { 0.2 };
            assert!(rate >= least * path.link as f64, "{algorithm:?}, pauses every {mean} ms: {rate:.0} bytes/s");
        }
    }
}

#[test]
fn bbr_follows_a_link_that_becomes_faster_or_slower() {
    // Test cases A.15 and A.16 of draft-ietf-ccwg-bbr-06.
    let path = SimPath { rtt: 10 * MILLIS, link: 1_250_000, queue: 200_000, ..SimPath::default() };
    let mut model = Model::new(path, 3);
    model.add(sender(Algorithm::Bbr, 5));
    model.run(5 * SECONDS);
    model.path.link = 12_500_000;
    model.run(10 * SECONDS);
    let fast = model.run(4 * SECONDS)[0];
    assert!(fast >= 0.85 * 12_500_000.0, "the flow reaches only {fast:.0} bytes/s on the faster link");
    model.path.link = 1_250_000;
    model.run(10 * SECONDS);
    let lost = model.flows[0].lost;
    let slow = model.run(4 * SECONDS)[0];
    let lost = (model.flows[0].lost - lost) as f64 / 4.0 / slow;
    assert!(
        slow >= 0.85 * 1_250_000.0 && lost < 0.1,
        "on the slower link, the flow reaches {slow:.0} bytes/s and loses the fraction {lost:.3}"
    );
}

#[test]
fn window_after_an_app_limited_phase_is_8_packets_to_300_kilobytes() {
    for algorithm in PATH_ALGORITHMS {
        let mut model = Model::new(SimPath { link: 500_000_000, ..SimPath::default() }, 17);
        model.add(sender(algorithm, 1));
        model.offer(0, 5_000_000);
        model.run(4 * SECONDS);
        let after = model.flows[0].cwnd();
        assert!(
            (8 * PACKET..=300_000).contains(&after),
            "{algorithm:?}: the window is {after} bytes after the app-limited phase"
        );
        assert!(model.run(SECONDS)[0] >= 4_900_000.0);
    }
}

/// Builds an ack of `bytes` that were sent at `send_time`, which starts a new round.
fn ack(now: Nanos, bytes: u64, send_time: Nanos, delivered: u64) -> AckEvent {
    let rate = RateSample {
        delivered: bytes,
        prior_delivered: delivered.saturating_sub(bytes),
        total_delivered: delivered,
        tx_in_flight: bytes,
        send_time,
        ..RateSample::default()
    };
    AckEvent {
        now,
        bytes,
        rtt: Some(now - send_time),
        srtt: now - send_time,
        in_flight: 0,
        rate: Some(rate),
        is_cwnd_limited: true,
        spurious: 0,
    }
}

fn loss(now: Nanos, last_sent: Nanos, packets: u32) -> LossEvent {
    let lost = LostPackets { packets, ranges: packets, last_sent, ..LostPackets::default() };
    LossEvent { now, lost, in_flight: 0, total_delivered: 0, is_persistent: false }
}

#[test]
fn losses_in_one_round_trip_decrease_the_window_once() {
    for (algorithm, part) in [(Algorithm::Cubic, 7), (Algorithm::Local, 5)] {
        let mut control = Congestion::new(algorithm, 1000, 10_000, 1);
        for at in 1..10 {
            control.lost(&loss(MILLIS + at, at, 1));
        }
        assert_eq!(control.cwnd(), part * 1000, "{algorithm:?}: wrong window after the loss");
        control.lost(&loss(4 * MILLIS, 3 * MILLIS, 1));
        assert!(
            control.cwnd() < part * 1000,
            "{algorithm:?}: the loss of a packet that was sent after the decrease must decrease the window again"
        );
    }
}

#[test]
fn full_local_queue_decreases_the_window_once_per_round_trip() {
    for algorithm in [Algorithm::Cubic, Algorithm::Local] {
        let mut control = Congestion::new(algorithm, 1000, 10_000, 1);
        control.acked(&ack(2 * MILLIS, 1000, MILLIS, 1000));
        let before = control.cwnd();
        (1..10).for_each(|at| control.overflowed(2 * MILLIS + at));
        let after = control.cwnd();
        assert!(
            after >= before / 2 && after < before,
            "the window must shrink once, but at most by half: {after} of {before} bytes"
        );
        control.overflowed(4 * MILLIS);
        assert!(control.cwnd() < after, "a queue that is full one RTT later decreases the window again");
    }
}

#[test]
fn persistent_congestion_reduces_the_window_to_one_or_two_packets() {
    for (algorithm, least) in [(Algorithm::Bbr, 1000), (Algorithm::Cubic, 2000), (Algorithm::Local, 2000)] {
        let mut control = Congestion::new(algorithm, 1000, 10_000, 1);
        control.lost(&LossEvent { is_persistent: true, ..loss(SECONDS, 1, 2) });
        assert_eq!(control.cwnd(), least, "{algorithm:?}: wrong window after the loss");
        for round in 1..20 {
            let now = SECONDS + round * 10 * MILLIS;
            control.acked(&ack(now, 2000, now - MILLIS, round * 2000));
        }
        assert!(control.cwnd() >= 4000, "{algorithm:?}: after 20 rounds, the window is only {} bytes", control.cwnd());
    }
}

#[test]
fn cubic_undoes_a_decrease_by_spurious_loss() {
    // A spurious loss is undone (RFC 9438, 4.9).
    let mut cubic = Cubic::new(1000);
    cubic.lost(&loss(10 * MILLIS, MILLIS, 3));
    assert_eq!(cubic.cwnd(), 7000);
    cubic.acked(&AckEvent { spurious: 2, ..ack(11 * MILLIS, 1000, 2 * MILLIS, 1000) });
    assert_eq!(cubic.cwnd(), 7000, "one of three losses was real, so the window stays decreased");
    cubic.acked(&AckEvent { spurious: 1, is_cwnd_limited: false, ..ack(12 * MILLIS, 1000, 2 * MILLIS, 2000) });
    assert!(
        cubic.cwnd() >= 10_000,
        "the window must be restored when all losses were spurious, but is {} bytes",
        cubic.cwnd()
    );
}

#[test]
fn cubic_returns_to_its_peak_in_4_to_12_seconds_at_20_and_200_ms_rtt() {
    // RFC 9438, 4.2: after a loss at 1000 packets, the window reaches 1000 packets again after K = cbrt(1000 * 0.3 /
    // 0.4) = 9.1 s.
    for rtt in [20 * MILLIS, 200 * MILLIS] {
        let mut cubic = Cubic::new(1000);
        let (mut now, mut delivered) = (rtt, 0);
        let round = |cubic: &mut Cubic, now: Nanos, delivered: &mut u64| {
            *delivered += cubic.cwnd();
            cubic.acked(&ack(now, cubic.cwnd(), now - rtt, *delivered));
        };
        while cubic.cwnd() < 1_000_000 {
            round(&mut cubic, now, &mut delivered);
            now += rtt;
        }
        let peak = cubic.cwnd();
        cubic.lost(&loss(now, now - 1, 1));
        let began = now;
        now += 2 * rtt;
        while cubic.cwnd() < peak * 99 / 100 {
            round(&mut cubic, now, &mut delivered);
            now += rtt;
        }
        let seconds = (now - began) as f64 / SECONDS as f64;
        assert!(
            (4.0..12.0).contains(&seconds),
            "the window returned to its peak after {seconds:.1} s at an RTT of {rtt} ns, instead of 4 to 12 s"
        );
    }
}

#[test]
fn local_window_is_the_peers_buffer_until_it_overflows() {
    let mut local = Local::new(65_507, 8 << 20);
    assert_eq!((local.cwnd(), local.pacing_rate()), (8 << 20, None));
    local.lost(&loss(10 * MILLIS, MILLIS, 4));
    assert_eq!(local.cwnd(), 4 << 20);
    let mut delivered = 0;
    for round in 1..100u64 {
        delivered += local.cwnd();
        local.acked(&ack(round * 20 * MILLIS, local.cwnd(), round * 20 * MILLIS - MILLIS, delivered));
    }
    assert!(local.cwnd() > 8 << 20, "the window must grow with each round trip, but is {} bytes", local.cwnd());
}
