//! Tests a sender and a receiver in virtual time, over a path that drops, duplicates, delays and reorders packets and
//! acks.

use super::*;
use crate::proto::acks::AckClock;
use crate::proto::received::{Arrival, Received};
use crate::proto::wire::RANGES;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Faults of the path. Rates are in packets per thousand.
#[derive(Clone, Copy, Debug, Default)]
struct NetworkConditions {
    loses: u64,
    loses_acks: u64,
    duplicates: u64,
    reorders: u64,
    /// Maximum delay of a reordered packet.
    late: Nanos,
    /// Time from which the path is slower, and the additional delay in each direction.
    slower: Option<(Nanos, Nanos)>,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum InFlight {
    Packet(u32),
    Ack(u32, Vec<(u32, u32)>, u64),
}

/// A sender that keeps up to [`CWND`] packets in flight, a receiver, and the path between them.
struct SimTransfer {
    flight: UnackedPackets<u32>,
    received: Received,
    clock: AckClock,
    wire: BinaryHeap<Reverse<(Nanos, u64, InFlight)>>,
    conditions: NetworkConditions,
    random: u64,
    now: Nanos,
    sequence: u64,
    /// Number of times that each packet was acked.
    done: BTreeMap<u32, u32>,
    /// Number of packets that the receiver has accepted.
    accepted: u32,
    wasted: u64,
}

const ONE_WAY: Nanos = 100 * MICROS;
const CWND: u32 = 256;
/// Time between two transmissions.
const SEND_INTERVAL: Nanos = MICROS;

impl SimTransfer {
    fn new(start: u32, seed: u64, conditions: NetworkConditions) -> Self {
        SimTransfer {
            flight: UnackedPackets::new(Psn(start), Timing::default()),
            received: Received::new(Psn(start)),
            clock: AckClock::new(50 * MICROS, 64),
            wire: BinaryHeap::new(),
            conditions,
            random: seed | 1,
            now: 1,
            sequence: 0,
            done: BTreeMap::new(),
            accepted: 0,
            wasted: 0,
        }
    }

    fn random(&mut self, of_thousand: u64) -> bool {
        self.any() % 1000 < of_thousand
    }

    /// Returns a pseudo-random number (xorshift64).
    fn any(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 3
    }

    fn put_on_path(&mut self, what: InFlight) {
        let loses =
            if matches!(what, InFlight::Packet(_)) { self.conditions.loses } else { self.conditions.loses_acks };
        if self.random(loses) {
            return;
        }
        let copies = 1 + u32::from(self.random(self.conditions.duplicates));
        for _ in 0..copies {
            let late = if self.random(self.conditions.reorders) { self.any() % (self.conditions.late + 1) } else { 0 };
            let slow = self.conditions.slower.filter(|(from, _)| *from <= self.now).map_or(0, |(_, by)| by);
            self.sequence += 1;
            self.wire.push(Reverse((self.now + ONE_WAY + slow + late, self.sequence, what.clone())));
        }
    }

    /// Sends as many packets as the window allows: retransmissions first, then new packets.
    fn send(&mut self, left: &mut u32) {
        loop {
            let may = self.flight.packets() < CWND || self.flight.probes > 0;
            if let (true, Some((psn, _))) = (may, self.flight.lost()) {
                self.flight.record_retransmission(self.now, psn);
                self.put_on_path(InFlight::Packet(psn.0));
            } else if may && *left > 0 && self.flight.free_slots() > 0 {
                *left -= 1;
                let psn = self.flight.sent(self.now, 1000, *left);
                self.put_on_path(InFlight::Packet(psn.0));
            } else {
                return;
            }
            self.now += SEND_INTERVAL;
        }
    }

    fn packet(&mut self, psn: Psn) {
        let arrival = self.received.classify(psn);
        assert_ne!(arrival, Arrival::Outside, "a valid sender stays within the window");
        self.wasted += u64::from(arrival == Arrival::Duplicate);
        let moved = self.received.accept(psn);
        self.accepted += moved;
        self.clock.record_arrival(self.now, arrival, false, moved > 1);
    }

    fn ack(&mut self) {
        let mut ranges = [SackRange::default(); RANGES];
        let count = self.received.ranges(&mut ranges);
        let traced = ranges[..count].iter().map(|range| (range.first.get(), range.end.get())).collect();
        let delay = u64::from(self.clock.ack_packet_sent(self.now)) * MICROS;
        self.put_on_path(InFlight::Ack(self.received.next().0, traced, delay));
    }

    fn acked(&mut self, next: u32, ranges: &[(u32, u32)], delay: Nanos) {
        let ranges: Vec<SackRange> =
            ranges.iter().map(|&(first, end)| SackRange { first: first.into(), end: end.into() }).collect();
        let done = &mut self.done;
        self.flight
            .acked(self.now, Psn(next), &ranges, delay, &mut |_, what| *done.entry(what).or_default() += 1)
            .expect("acknowledgements of a valid peer are within the window");
    }

    /// Sends `count` packets, and runs until all are complete. Returns the final state.
    fn run(mut self, count: u32) -> Result<Self, TestCaseError> {
        let mut left = count;
        while left > 0 || !self.flight.is_empty() {
            self.send(&mut left);
            let arrives = self.wire.peek().map(|Reverse((at, ..))| *at);
            let due = [arrives, self.flight.deadline(), self.clock.deadline()].into_iter().flatten().min();
            let due = due.expect("a transfer that is not complete has a deadline");
            self.now = self.now.max(due);
            prop_assert!(
                self.now < 600 * SECONDS,
                "the transfer does not complete within 600 s: {:?}",
                self.flight.counters
            );
            if self.clock.is_due(self.now) {
                self.ack();
            }
            while let Some(Reverse((at, _, what))) = self.wire.peek().cloned()
                && at <= self.now
            {
                self.wire.pop();
                match what {
                    InFlight::Packet(psn) => self.packet(Psn(psn)),
                    InFlight::Ack(next, ranges, delay) => self.acked(next, &ranges, delay),
                }
            }
            if self.flight.deadline().is_some_and(|deadline| deadline <= self.now) {
                prop_assert_ne!(self.flight.on_time(self.now), ExpiredTimer::GiveUp);
            }
            self.flight.ring.walk();
        }
        prop_assert_eq!(
            (self.accepted, self.done.len() as u32),
            (count, count),
            "all packets must arrive and be acked"
        );
        prop_assert!(self.done.values().all(|times| *times == 1), "each packet is reported as acked once");
        Ok(self)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_packets_arrive_under_random_conditions(
        start in prop_oneof![prop::sample::select(STARTS.to_vec()), any::<u32>()],
        seed: u64,
        loses in 0..300u64, loses_acks in 0..300u64, duplicates in 0..200u64, reorders in 0..500u64,
        late in prop_oneof![Just(0), 0..ONE_WAY, 0..20 * MILLIS],
    ) {
        SimTransfer::new(start, seed, NetworkConditions { loses, loses_acks, duplicates, reorders, late, slower: None }).run(2000)?;
    }
}

fn through(conditions: NetworkConditions) -> SimTransfer {
    SimTransfer::new(u32::MAX - 500, 0x5eed, conditions).run(20_000).unwrap()
}

#[test]
fn clean_path_has_no_retransmission() {
    let world = through(NetworkConditions::default());
    let counters = world.flight.counters;
    assert_eq!((counters.losses, counters.probes, world.wasted), (0, 0, 0));
    let trip = world.flight.rtt.srtt().unwrap();
    assert!((2 * ONE_WAY..2 * ONE_WAY + CWND as u64 * SEND_INTERVAL).contains(&trip), "the smoothed RTT is {trip} ns");
}

#[test]
fn lossy_path_has_few_spurious_retransmissions() {
    let world = through(NetworkConditions { loses: 50, loses_acks: 50, ..NetworkConditions::default() });
    let counters = world.flight.counters;
    assert!(
        counters.losses + counters.probes < 20_000 * 6 / 100,
        "more than 6 % of the packets were retransmitted: {counters:?}"
    );
    assert!(world.wasted < 20, "{} packets were received twice, instead of fewer than 20", world.wasted);
    assert!(counters.probes < 100, "100 or more probes were sent: {counters:?}");
}

#[test]
fn loss_thresholds_adapt_to_reordering() {
    let conditions = NetworkConditions { reorders: 100, late: 60 * MICROS, ..NetworkConditions::default() };
    let world = through(conditions);
    let counters = world.flight.counters;
    assert!(
        counters.spurious_losses > 0 && world.wasted < 400,
        "thresholds did not adapt: {} duplicates, {counters:?}",
        world.wasted
    );
}

#[test]
fn rtt_follows_a_large_increase_of_delay() {
    // The delay suddenly increases, as if other traffic had filled a queue. At first all packets in flight are
    // retransmitted spuriously.
    for (seed, by) in [(1, 2 * MILLIS), (2, 5 * MILLIS), (3, 20 * MILLIS), (4, 50 * MILLIS)] {
        let conditions =
            NetworkConditions { slower: Some((10 * MILLIS, by)), loses: 2, ..NetworkConditions::default() };
        let world = SimTransfer::new(7, seed, conditions).run(40_000).unwrap();
        let trip = world.flight.rtt.srtt().unwrap();
        assert!(
            (2 * by..3 * by).contains(&trip),
            "the smoothed RTT is {trip} ns instead of about {} ns",
            2 * (by + ONE_WAY)
        );
        assert!(
            world.wasted < 4_000,
            "delay of {by} ns: {} of 40,000 packets were received twice: {:?}",
            world.wasted,
            world.flight.counters
        );
    }
}
