//! What the controllers reach on the model of a path, as shares and ratios.

use super::model::{Model, Road, Sender};
use super::{Algorithm, Congestion, Controller, Cubic, Loss, Sample, TARGET};
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

fn ours() -> Sender {
    Sender {
        control: Congestion::new(Algorithm::Delay, 1472, TARGET),
        packet: 1472,
        train: 1472,
        patience: (MILLIS, 2 * MILLIS),
        limit: u64::MAX,
        starts: 0,
    }
}

/// The kernel's TCP, as to windows and timeouts.
fn tcp() -> Sender {
    let control = Congestion::new(Algorithm::Cubic, 1448, TARGET);
    Sender { control, packet: 1448, train: 1448, patience: (8 * MILLIS, 200 * MILLIS), ..ours() }
}

/// The same with segmentation offload: what is lost is lost by trains.
fn tcp_in_trains() -> Sender {
    Sender { train: 44 * 1448, ..tcp() }
}

/// Bytes a second of each, once they know the path.
fn rates(road: Road, seed: u64, senders: Vec<Sender>, warm: Nanos, time: Nanos) -> Vec<f64> {
    let mut model = Model::new(road, seed);
    for sender in senders {
        model.add(sender);
    }
    model.run(warm);
    model.run(time)
}

fn alone(road: Road, seed: u64, sender: Sender) -> f64 {
    rates(road, seed, vec![sender], 200 * MILLIS, 200 * MILLIS)[0]
}

/// Each one's part of what passes in all.
fn shares(road: Road, seed: u64, senders: Vec<Sender>, time: Nanos) -> (Vec<f64>, f64) {
    let rates = rates(road, seed, senders, SECONDS, time);
    let all: f64 = rates.iter().sum();
    (rates.iter().map(|rate| rate / all).collect(), all)
}

#[test]
fn random_loss_costs_less_than_it_costs_tcp() {
    for (loss, least) in [(0.01, 0.7), (0.05, 1.0)] {
        for (rtt, seed) in [(30, 1), (100, 2), (100, 3)] {
            let road = Road { rtt: rtt * MICROS, loss, ..Road::default() };
            let theirs = alone(road, seed, tcp_in_trains());
            for train in [1472, 44 * 1472] {
                let ratio = alone(road, seed, Sender { train, ..ours() }) / theirs;
                assert!(ratio >= least, "{loss} lost at {rtt} us in trains of {train}: {ratio:.2} of TCP");
            }
        }
    }
}

#[test]
fn heavy_loss_is_always_answered() {
    for loss in [0.3, 0.5, 0.9] {
        let road = Road { rtt: 100 * MICROS, loss, ..Road::default() };
        let rate = alone(road, 5, ours());
        assert!(rate < road.link as f64 / 100.0, "{loss}: {rate:.0}");
        assert!(rate > 0.0 || loss > 0.5, "{loss}: nothing arrives");
    }
}

#[test]
fn a_policer_is_shared_with_tcp() {
    let cases = [(12_500_000, 50, 1_000_000), (50_000_000, 50, 50_000_000), (125_000_000, 50, 1_000_000)];
    for (rate, rtt, burst) in cases.into_iter().chain([(125_000_000, 200, 1_000_000)]) {
        let road = Road { rtt: rtt * MICROS, policer: Some((rate, burst)), ..Road::default() };
        let (share, all) = shares(road, 7, vec![ours(), tcp()], 4 * SECONDS);
        assert!(share.iter().all(|share| *share >= 0.25), "{rate} at {rtt} us, {burst} saved: {share:.2?}");
        assert!(all >= 0.8 * rate as f64, "{rate} at {rtt} us: only {all:.0} pass");
    }
}

#[test]
fn a_policer_is_shared_on_busy_machines_too() {
    // The last lets pass what it has saved up in a second.
    let roads = [((5, 1), 262_144), ((2, 2), 262_144), ((1, 2), 262_144), ((50, 20), 262_144), ((5, 1), 25_000_000)];
    for ((mean, longest), saved) in roads {
        for (mine, theirs) in [(1, 1), (44, 1), (1, 44), (44, 44)] {
            let senders = [Sender { train: mine * 1472, ..ours() }, Sender { train: theirs * 1448, ..tcp() }];
            let stalls = Some((mean * MILLIS, longest * MILLIS));
            let road = Road { rtt: 100 * MICROS, policer: Some((25_000_000, saved)), stalls, ..Road::default() };
            let name = format!("{saved} saved, {mean} ms between stalls, trains of {mine} and {theirs}");
            let (share, all) = shares(road, 7, senders.into(), 8 * SECONDS);
            assert!(share.iter().all(|share| *share >= 0.25), "{name}: {share:.2?}");
            assert!(all >= 20e6, "{name}: only {all:.0} pass");
        }
    }
}

#[test]
fn a_queue_that_tcp_fills_is_shared() {
    for (rtt, queue) in [(50, 125_000), (50, 1_000_000), (1000, 1_000_000), (10_000, 1_000_000)] {
        for seed in 1..4 {
            let road = Road { rtt: rtt * MICROS, link: 25_000_000, queue, ..Road::default() };
            let (share, all) = shares(road, seed, vec![ours(), tcp()], 8 * SECONDS);
            assert!(share.iter().all(|share| *share >= 0.25), "{queue} bytes, {rtt} us, {seed}: {share:.2?}");
            assert!(all >= 0.9 * road.link as f64, "{queue} bytes, {rtt} us: only {all:.0} pass");
        }
    }
}

#[test]
fn a_full_queue_of_this_host_is_one_decrease_in_a_round_trip() {
    for algorithm in [Algorithm::Delay, Algorithm::Cubic] {
        let mut one = Congestion::new(algorithm, 1000, TARGET);
        one.acked(&sample(MILLIS, 1000));
        let before = one.window();
        for at in 1..10 {
            one.overflowed(2 * MILLIS + at);
        }
        let after = one.window();
        assert!(after >= before * 6 / 10 && after < before, "{after} of {before}");
        one.overflowed(3 * MILLIS);
        assert!(one.window() < after, "it is full still, a round trip later");
    }
}

#[test]
fn a_policer_is_filled_and_little_is_lost() {
    for (rate, rtt) in [(12_500_000, 50), (125_000_000, 50), (125_000_000, 1000)] {
        let road = Road { rtt: rtt * MICROS, policer: Some((rate, 1_000_000)), ..Road::default() };
        let mut model = Model::new(road, 9);
        model.add(ours());
        model.run(SECONDS);
        let before = model.flows[0].lost;
        let passes = model.run(SECONDS)[0];
        let lost = (model.flows[0].lost - before) as f64 / passes;
        assert!(passes >= 0.85 * rate as f64 && lost < 0.1, "{rate} at {rtt} us: {passes:.0} pass, {lost:.3} lost");
    }
}

#[test]
fn a_shallow_queue_is_shared_with_tcp() {
    for (link, rtt, packets) in
        [(12_500_000, 50, 40), (12_500_000, 2000, 10), (125_000_000, 50, 10), (125_000_000, 50, 40)]
    {
        let road = Road { rtt: rtt * MICROS, link, queue: packets * 1500, ..Road::default() };
        let (share, all) = shares(road, 7, vec![ours(), tcp()], 3 * SECONDS);
        assert!(share.iter().all(|share| *share >= 0.25), "{packets} packets at {link}, {rtt} us: {share:.2?}");
        assert!(all >= 0.9 * link as f64, "{packets} packets at {link}, {rtt} us: only {all:.0} pass");
    }
}

#[test]
fn a_deep_queue_stays_near_the_target() {
    for (link, rtt) in [(12_500_000, 2000), (125_000_000, 50), (125_000_000, 2000), (1_250_000_000, 200)] {
        let road = Road { rtt: rtt * MICROS, link, queue: 20_000_000, ..Road::default() };
        let run = |sender| {
            let mut model = Model::new(road, 3);
            model.add(sender);
            model.run(500 * MILLIS);
            (model.run(500 * MILLIS)[0], model.flows[0].mean_delay())
        };
        let (rate, delay) = run(ours());
        assert!(rate >= 0.9 * link as f64, "{link} at {rtt} us: {rate:.0}");
        assert!(delay <= 3 * TARGET / 2, "{link} at {rtt} us: waits {delay} ns");
        let (_, theirs) = run(tcp());
        assert!(theirs > 5 * delay, "{link} at {rtt} us: TCP waits {theirs} ns, so that this shows nothing");
    }
}

#[test]
fn a_busy_machine_does_not_collapse_the_window() {
    for (mean, ratio) in [(20, 0.8), (5, 0.5)] {
        for rtt in [10, 50] {
            let road = Road { rtt: rtt * MICROS, stalls: Some((mean * MILLIS, 4 * MILLIS)), ..Road::default() };
            for (limit, ratio) in [(200_000, 0.85), (4_000_000, ratio)] {
                let run = |sender| alone(road, 11, Sender { limit, ..sender });
                let (rate, theirs) = (run(ours()), run(tcp()));
                assert!(rate >= ratio * theirs, "{limit} at {rtt} us, each {mean} ms: {rate:.0} of {theirs:.0}");
            }
        }
    }
}

#[test]
fn our_flows_share_alike() {
    let queues = [(12_500_000, 2000, 300), (125_000_000, 50, 300), (12_500_000, 50, 40)];
    let late = |starts| Sender { starts: starts * MILLIS, ..ours() };
    for (link, rtt, packets) in queues {
        let road = Road { rtt: rtt * MICROS, link, queue: packets * 1500, ..Road::default() };
        for count in [2, 4] {
            let senders = (0..count).map(|flow| late(20 * flow)).collect();
            let (share, _) = shares(road, 13, senders, 4 * SECONDS);
            let least = 0.3 / count as f64;
            assert!(share.iter().all(|share| *share >= least), "queue of {packets} at {link}, {rtt} us: {share:.2?}");
        }
    }
    let road = Road { policer: Some((125_000_000, 1_000_000)), ..Road::default() };
    let (share, _) = shares(road, 13, vec![ours(), late(100)], 4 * SECONDS);
    assert!(share.iter().all(|share| *share >= 0.25), "policer: {share:.2?}");
}

#[test]
fn too_little_to_send_neither_inflates_nor_deflates() {
    let mut model = Model::new(Road::default(), 17);
    model.add(ours());
    model.offer(0, 5_000_000);
    let before = model.flows[0].window();
    model.run(SECONDS);
    let after = model.flows[0].window();
    assert!(after <= before + 2 * 1472, "grew from {before} to {after} while there was little to send");
    for loss in [0.0, 0.01] {
        let mut model = Model::new(Road { link: 500_000_000, ..Road::default() }, 17);
        model.add(ours());
        model.run(300 * MILLIS);
        let before = model.flows[0].window();
        model.road.loss = loss;
        model.offer(0, 5_000_000);
        model.run(SECONDS);
        let after = model.flows[0].window();
        assert!(before > 100_000 && after * 10 >= before * 9 && after <= before + 2 * 1472, "{before} became {after}");
    }
}

#[test]
fn silence_shrinks_the_window_to_a_packet_and_acks_bring_it_back() {
    for algorithm in [Algorithm::Delay, Algorithm::Cubic] {
        let mut one = Congestion::new(algorithm, 1000, TARGET);
        let before = one.window();
        one.timed_out(MILLIS);
        one.timed_out(3 * MILLIS);
        assert!(one.window() >= before, "two probes may be a busy machine");
        one.timed_out(7 * MILLIS);
        assert!(one.window() <= 2000);
        let mut now = 8 * MILLIS;
        for _ in 0..40 {
            now += 100 * MICROS;
            one.sent(now, 1000, 1000);
            one.acked(&sample(now + 50 * MICROS, 1000));
        }
        assert!(one.window() >= before * 6 / 10, "{}", one.window());
    }
}

fn sample(now: Nanos, bytes: u64) -> Sample {
    let rtt = 50 * MICROS;
    Sample { now, bytes, rtt: Some(rtt), min_rtt: rtt, srtt: rtt, in_flight: 0, app_limited: false }
}

#[test]
fn what_was_in_flight_together_is_one_decrease() {
    for algorithm in [Algorithm::Delay, Algorithm::Cubic] {
        let mut one = Congestion::new(algorithm, 1000, TARGET);
        let before = one.window();
        for at in 1..10 {
            let now = MILLIS + at;
            one.lost(&Loss { now, bytes: 1000, in_flight: 10_000 - at * 1000, first_sent: at });
        }
        assert!(one.window() >= before * 6 / 10 && one.window() < before, "{} of {before}", one.window());
    }
}

#[test]
fn cubic_comes_back_to_its_peak_in_time_not_in_round_trips() {
    // RFC 9438, 4.2: after a loss at 1000 packets it takes K = cbrt(1000 * 0.3 / 0.4) = 9.1 s to be there again.
    for rtt in [20 * MILLIS, 200 * MILLIS] {
        let mut one = Cubic::new(1000);
        let mut now = 0;
        while one.window() < 1_000_000 {
            one.acked(&Sample { srtt: rtt, rtt: Some(rtt), min_rtt: rtt, ..sample(now, one.window()) });
            now += rtt;
        }
        let peak = one.window();
        one.lost(&Loss { now, bytes: 1000, in_flight: 999_000, first_sent: now });
        let began = now;
        while one.window() < peak * 99 / 100 {
            now += rtt;
            one.acked(&Sample { srtt: rtt, rtt: Some(rtt), min_rtt: rtt, ..sample(now, one.window()) });
        }
        let seconds = (now - began) as f64 / SECONDS as f64;
        assert!((4.0..11.0).contains(&seconds), "{seconds:.1} s at a round trip of {rtt} ns");
    }
}
