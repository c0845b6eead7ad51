//! Tests of loss recovery: single rules, comparison with a model, and a path that loses and reorders packets.

mod model;
mod path;

use super::super::{MICROS, MILLIS, SECONDS};
use super::*;
use crate::proto::wire::SackRange;

/// First PSNs, such that PSNs cross a multiple of the window, the change of the sign bit, or the wrap to 0.
const STARTS: [u32; 7] = [0, 1, 4090, (1 << 31) - 3, 1 << 31, u32::MAX - 2, u32::MAX];
const TRIP: Nanos = 800 * MICROS;

/// A sender of packets whose retransmission data is their distance from the first PSN.
struct Sender {
    flight: UnackedPackets<u32>,
    first: Psn,
    now: Nanos,
    done: Vec<u32>,
}

impl Sender {
    fn new(first: u32) -> Self {
        let flight = UnackedPackets::new(Psn(first), Timing::default());
        Sender { flight, first: Psn(first), now: 1_000, done: Vec::new() }
    }

    /// Creates a sender with a measured round trip of `TRIP` and `count` packets in flight.
    fn with(first: u32, count: u32) -> Self {
        let mut sender = Sender::new(first.wrapping_sub(1));
        sender.send(1);
        sender.now += TRIP;
        sender.ack(1, &[]).expect("the ack is within the sent range");
        sender.first = Psn(first);
        sender.flight.ring.free_memory();
        sender.done.clear();
        sender.send(count);
        sender
    }

    fn send(&mut self, count: u32) {
        for _ in 0..count {
            let distance = self.flight.next_psn().since(self.first).unsigned_abs();
            self.flight.sent(self.now, 100, distance);
        }
    }

    /// Processes an ack of all packets before `next`, and of the ranges.
    fn ack(&mut self, next: i32, ranges: &[(i32, i32)]) -> Result<AckResult, OutOfWindow> {
        let at = |distance: i32| self.first.0.wrapping_add_signed(distance);
        let ranges: Vec<SackRange> =
            ranges.iter().map(|&(first, end)| SackRange { first: at(first).into(), end: at(end).into() }).collect();
        let done = &mut self.done;
        let result = self.flight.acked(self.now, Psn(at(next)), &ranges, 0, &mut |_, what| done.push(what));
        self.flight.ring.walk();
        result
    }

    fn lost(&mut self, next: i32, ranges: &[(i32, i32)]) -> u32 {
        self.ack(next, ranges).expect("the ack is within the sent range").lost.packets
    }

    /// Retransmits all queued packets. Returns their distances from the first PSN.
    fn resend(&mut self) -> Vec<u32> {
        let mut resent = Vec::new();
        while let Some((psn, what)) = self.flight.lost() {
            self.flight.record_retransmission(self.now, psn);
            resent.push(what);
        }
        resent
    }

    fn state(&self, distance: u32) -> PsnState {
        self.flight.state(self.first.plus(distance))
    }

    /// Advances the clock to the deadline, and calls `on_time`.
    fn wait(&mut self) -> ExpiredTimer {
        self.now = self.flight.deadline().expect("a flight with packets has a deadline");
        self.flight.on_time(self.now)
    }
}

#[test]
fn packet_goes_from_in_flight_to_lost_to_in_flight_to_acked() {
    for start in STARTS {
        let mut sender = Sender::with(start, 4);
        assert_eq!(
            (sender.state(0), sender.state(3), sender.state(4)),
            (PsnState::InFlight, PsnState::InFlight, PsnState::Unsent)
        );
        assert_eq!((sender.flight.bytes(), sender.flight.packets(), sender.flight.free_slots()), (400, 4, 4092));
        sender.now += TRIP;
        let acked = sender.ack(0, &[(1, 4)]).unwrap();
        assert_eq!((acked.packets, acked.bytes, acked.advanced, acked.lost.packets), (3, 300, false, 1));
        assert_eq!((acked.lost.bytes, acked.lost.first_sent), (100, sender.now - TRIP));
        assert_eq!((sender.state(0), sender.state(1)), (PsnState::Lost, PsnState::Acked));
        assert_eq!((sender.flight.bytes(), sender.flight.lost_packets(), sender.flight.free_slots()), (0, 1, 4092));
        assert_eq!(sender.resend(), [0]);
        assert_eq!(
            (sender.state(0), sender.flight.retransmit_cause(Psn(start)), sender.flight.lost_packets()),
            (PsnState::InFlight, Some(RetransmitCause::Loss), 0)
        );
        sender.now += TRIP;
        assert!(sender.ack(4, &[]).unwrap().advanced);
        assert_eq!(
            (sender.done.as_slice(), sender.flight.is_empty(), sender.state(0)),
            ([1, 2, 3, 0].as_slice(), true, PsnState::Acked)
        );
        assert_eq!((sender.flight.deadline(), sender.flight.free_slots()), (None, 4096));
    }
}

#[test]
fn retransmission_data_can_change_until_acked() {
    let mut sender = Sender::with(u32::MAX, 3);
    [u32::MAX, 0, 1, 2].iter().for_each(|&psn| sender.flight.replace_data(Psn(psn), 70 + psn % 10));
    sender.ack(1, &[]).unwrap();
    sender.flight.replace_data(Psn(u32::MAX), 80);
    sender.ack(3, &[]).unwrap();
    assert_eq!(sender.done, [75, 70, 71], "only the data of the named packets changes");
}

#[test]
fn three_later_acked_packets_declare_a_loss_and_fewer_do_not() {
    let mut sender = Sender::with(0, 6);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 3)]), 0);
    assert_eq!(sender.lost(1, &[(2, 3), (4, 5)]), 0, "packet 3 is not lost, because only one later packet was acked");
    let mut sender = Sender::with(0, 6);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(2, 5)]), 2, "packets 0 and 1 are lost");
    assert_eq!(sender.resend(), [0, 1]);
}

#[test]
fn overtaken_packet_is_lost_after_nine_eighths_of_an_rtt() {
    let mut sender = Sender::with(0, 2);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 2)]), 0);
    let sent = sender.now - TRIP;
    assert_eq!(sender.flight.deadline(), Some(sent + TRIP * 9 / 8));
    assert_eq!(sender.flight.on_time(sent + TRIP * 9 / 8 - 1), ExpiredTimer::Nothing);
    let ExpiredTimer::Lost(lost) = sender.flight.on_time(sent + TRIP * 9 / 8) else {
        panic!("packet 0 must be declared lost after 9/8 of the RTT")
    };
    assert_eq!((lost.packets, lost.bytes, lost.ranges, lost.first_sent, lost.last_sent), (1, 100, 1, sent, sent));
    assert_eq!(sender.flight.deadline(), None, "a lost packet has no deadline until it is retransmitted");

    let mut near = Sender::new(0);
    near.send(1);
    near.now += 20 * MICROS;
    near.ack(1, &[]).unwrap();
    near.send(2);
    near.now += 20 * MICROS;
    near.ack(1, &[(2, 3)]).unwrap();
    assert_eq!(near.flight.deadline(), Some(near.now + 50 * MICROS), "the reordering time has a minimum");
}

#[test]
fn only_packets_sent_after_a_retransmission_declare_it_lost() {
    let mut sender = Sender::with(0, 4);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 4)]), 1);
    sender.resend();
    sender.send(3);
    sender.now += TRIP / 2;
    assert_eq!(sender.lost(0, &[(1, 4)]), 0, "packets that were sent before the retransmission do not count");
    sender.now += TRIP / 2;
    assert_eq!(sender.lost(0, &[(1, 7)]), 1, "three packets sent after the retransmission show that it is lost");
    assert_eq!((sender.resend(), sender.flight.counters.losses), (vec![0], 2));
}

#[test]
fn spurious_retransmissions_do_not_count_as_later_packets() {
    let mut sender = Sender::with(0, 10);
    (0..3).for_each(|_| sender.flight.record_retransmission(sender.now, Psn(5)));
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 2)]), 0, "spurious retransmissions do not count as later packets");
    sender.ack(10, &[]).unwrap();
    sender.send(10);
    sender.now += TRIP;
    assert_eq!(sender.lost(10, &[(11, 14)]), 1, "spurious retransmissions are forgotten after a cumulative ack");
}

#[test]
fn duplicate_ack_with_a_gap_retransmits_once() {
    let mut sender = Sender::with(0, 3);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 2)]), 0);
    assert_eq!(sender.lost(0, &[(1, 3)]), 1);
    assert_eq!(sender.lost(0, &[(1, 3)]), 0, "a packet that is queued for retransmission is not lost again");
    assert_eq!(sender.resend(), [0]);
    for _ in 0..1000 {
        sender.now += TRIP / 1000;
        assert_eq!(sender.lost(0, &[(1, 3)]), 0, "the retransmission is in flight");
    }
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(1, 3)]), 1, "the retransmission is lost after its RTT");
    let counters = sender.flight.counters;
    assert_eq!((counters.losses, counters.repeated, counters.spurious_losses), (2, 1003, 0));
}

#[test]
fn repeated_acks_without_a_gap_declare_no_loss() {
    let mut sender = Sender::with(0, 5);
    for _ in 0..100 {
        assert_eq!(sender.ack(0, &[]).unwrap(), AckResult::default());
    }
    assert_eq!(sender.flight.packets(), 5);
}

#[test]
fn old_and_invalid_acks_are_ignored() {
    for start in STARTS {
        let mut sender = Sender::with(start, 10);
        sender.ack(4, &[]).unwrap();
        sender.now += 3 * TRIP;
        assert!(sender.ack(3, &[]).unwrap().old && sender.ack(-4092, &[(5, 7)]).unwrap().old);
        assert_eq!(sender.flight.counters.old, 2);
        let foreign = [11, 4096, -4093, 1 << 30, i32::MAX, i32::MIN, -(1 << 30)];
        foreign.iter().for_each(|&next| {
            assert_eq!(sender.ack(next, &[]), Err(OutOfWindow), "an ack of {next} is outside of the window")
        });
        let (low, high) = (i32::MIN, i32::MAX);
        let hostile =
            [(7, 7), (7, 6), (6, 11), (3, 6), (low, high), (high, low), (5, low), (-1, 6), (11, 12), (10, 11)];
        for range in hostile {
            assert_eq!(sender.ack(5, &[(6, 7), range]), Err(OutOfWindow), "range {range:?} is outside of the window");
        }
        assert_eq!(sender.flight.counters.beyond_sent, (foreign.len() + hostile.len()) as u64);
        assert_eq!(
            (sender.flight.packets(), sender.flight.cumulative()),
            (6, Psn(start).plus(4)),
            "a rejected ack has no effect"
        );
        assert_eq!(sender.done, [0, 1, 2, 3]);
    }
}

#[test]
fn unordered_and_overlapping_sack_ranges_ack_each_packet_once() {
    let mut sender = Sender::with(7, 8);
    sender.ack(0, &[(6, 8), (2, 4), (3, 7), (2, 4)]).unwrap();
    assert_eq!(sender.done, [6, 7, 2, 3, 4, 5]);
    sender.ack(2, &[]).unwrap();
    assert_eq!(
        (sender.flight.is_empty(), sender.done.len()),
        (true, 8),
        "an ack that contradicts an earlier one leaves no packet in flight"
    );
}

#[test]
fn timeouts_double_and_probe_with_one_or_two_packets() {
    let mut sender = Sender::new(0);
    sender.send(50);
    let start = sender.now;
    assert_eq!(
        sender.flight.deadline(),
        Some(start + 100 * MILLIS),
        "the first timeout is 100 ms without an RTT sample"
    );
    assert_eq!(sender.flight.on_time(start + 100 * MILLIS - 1), ExpiredTimer::Nothing);
    assert_eq!((sender.wait(), sender.flight.probes), (ExpiredTimer::Probe(1), 1));
    assert_eq!(sender.flight.retransmit_cause(Psn(0)), Some(RetransmitCause::Pto));
    assert_eq!(sender.resend(), [0]);
    assert_eq!((sender.flight.probes, sender.flight.pto_count()), (0, 1));
    assert_eq!((sender.wait(), sender.now), (ExpiredTimer::Probe(2), start + 300 * MILLIS));
    assert_eq!(sender.resend(), [1, 2], "the probes are the packets that were sent first");
    assert_eq!((sender.wait(), sender.now), (ExpiredTimer::Probe(2), start + 700 * MILLIS));
    sender.resend();
    assert_eq!(sender.flight.counters.probes, 5);
    sender.ack(49, &[]).unwrap();
    assert_eq!((sender.flight.pto_count(), sender.flight.probes), (0, 0), "an ack resets the backoff and the probes");
    assert_eq!(sender.resend(), [49], "packet 49 is lost, because later probes were acked");
    for _ in 0..3 {
        assert_eq!(
            (sender.wait(), sender.flight.probes),
            (ExpiredTimer::Probe(1), 1),
            "only one packet is in flight, so there is one probe"
        );
        sender.resend();
    }
}

#[test]
fn timeout_follows_the_rtt_and_restarts_on_progress() {
    let mut sender = Sender::with(0, 1);
    // The probe timeout is the RTT + 4 * variation + ack delay = 0.8 ms + 4 * 0.4 ms + 0.05 ms = 2.45 ms.
    assert_eq!(sender.flight.deadline(), Some(sender.now + 2450 * MICROS));
    let start = sender.now;
    sender.now += MILLIS;
    sender.send(1);
    assert_eq!(sender.flight.deadline(), Some(start + 2450 * MICROS), "the deadline is that of the oldest packet");
    sender.now += MILLIS;
    sender.ack(1, &[]).unwrap();
    let deadline = sender.now + sender.flight.rtt.pto(0);
    assert_eq!(sender.flight.deadline(), Some(deadline), "every progress restarts the timeout");
    assert!(deadline > start + 2450 * MICROS);
}

#[test]
fn peer_times_out_only_without_progress() {
    let mut sender = Sender::with(0, 2);
    let start = sender.now;
    let end = loop {
        match sender.wait() {
            ExpiredTimer::Probe(_) => assert!(!sender.resend().is_empty()),
            other => break other,
        }
    };
    assert_eq!((end, sender.now), (ExpiredTimer::GiveUp, start + 20 * SECONDS));
    assert_eq!(
        sender.flight.on_time(sender.now),
        ExpiredTimer::GiveUp,
        "a connection that was given up stays given up"
    );

    let mut sender = Sender::with(0, 0);
    sender.now += 3600 * SECONDS;
    sender.send(1);
    let start = sender.now;
    while sender.wait() != ExpiredTimer::GiveUp {
        sender.resend();
    }
    assert_eq!(sender.now, start + 20 * SECONDS, "idle time does not count");

    let mut sender = Sender::with(0, 3);
    let start = sender.now;
    for next in 1..=2 {
        while sender.now < start + next * 15 * SECONDS {
            assert!(matches!(sender.wait(), ExpiredTimer::Probe(_)));
            sender.resend();
        }
        sender.ack(next as i32, &[]).unwrap();
    }
}

#[test]
fn process_that_slept_probes_before_it_gives_up() {
    let mut sender = Sender::with(0, 2);
    sender.now += 3600 * SECONDS;
    for _ in 0..3 {
        assert!(matches!(sender.flight.on_time(sender.now), ExpiredTimer::Probe(_)));
        sender.resend();
        sender.now = sender.flight.deadline().unwrap();
    }
    assert_eq!(sender.flight.on_time(sender.now), ExpiredTimer::GiveUp);
}

#[test]
fn only_packets_sent_once_give_rtt_samples() {
    let mut sender = Sender::with(0, 4);
    sender.now += TRIP;
    sender.ack(0, &[(1, 4)]).unwrap();
    sender.resend();
    sender.now += 5 * TRIP;
    assert_eq!(sender.ack(4, &[]).unwrap().rtt, None);
    assert_eq!(sender.flight.rtt.latest_rtt(), Some(TRIP));
    sender.send(3);
    sender.now += 2 * TRIP;
    assert_eq!(sender.ack(4, &[(6, 7)]).unwrap().rtt, Some(2 * TRIP));
    sender.now += TRIP / 10;
    assert_eq!(sender.ack(7, &[]).unwrap().rtt, None, "acknowledgements that were overtaken give no RTT sample");
}

#[test]
fn spurious_retransmission_raises_the_loss_thresholds() {
    let mut sender = Sender::with(0, 40);
    sender.now += TRIP;
    assert_eq!(sender.lost(0, &[(3, 6)]), 3);
    assert_eq!(sender.resend(), [0, 1, 2]);
    sender.now += 10 * MICROS;
    let acked = sender.ack(6, &[]).unwrap();
    assert_eq!(
        (acked.spurious, acked.lost.packets),
        (3, 0),
        "acks faster than an RTT show spurious retransmissions, which prove no other loss"
    );
    assert_eq!(sender.flight.counters.spurious_losses, 3);
    assert_eq!(sender.lost(6, &[(7, 12)]), 0, "five later packets are fewer than the raised threshold");
    assert_eq!(sender.lost(6, &[(7, 16)]), 1, "nine later packets reach the raised threshold");
}

#[test]
fn early_acks_of_retransmissions_do_not_lengthen_the_rtt() {
    let mut sender = Sender::with(0, 40);
    sender.now += 100 * MILLIS;
    for packet in 1..=40 {
        if sender.resend().is_empty() {
            assert!(matches!(sender.wait(), ExpiredTimer::Probe(_)));
            sender.resend();
        }
        sender.now += TRIP * 6 / 10;
        sender.ack(packet, &[]).unwrap();
    }
    assert!(
        sender.flight.rtt.srtt().unwrap() <= TRIP,
        "early acks must not lengthen the RTT: {:?}",
        &sender.flight.rtt
    );
}

#[test]
fn loss_thresholds_are_bounded_and_shrink_again() {
    let mut sender = Sender::with(0, 0);
    let mut base = 0;
    for round in 0..20 {
        sender.send(100);
        sender.now += TRIP;
        let lost = sender.lost(base, &[(base + 1, base + 100)]);
        assert_eq!(lost, 1, "round {round}: the overtaken packet must be declared lost");
        assert_eq!(sender.ack(base + 100, &[]).unwrap().spurious, 1, "the late ack shows that the loss was spurious");
        base += 100;
    }
    // Causes enough real losses to shrink the thresholds.
    for _ in 0..64 * 5 {
        sender.send(50);
        sender.now += TRIP;
        assert_eq!(sender.lost(base, &[(base + 1, base + 50)]), 1);
        sender.resend();
        sender.now += TRIP;
        assert_eq!(sender.ack(base + 50, &[]).unwrap().spurious, 0);
        base += 50;
    }
    sender.send(4);
    sender.now += TRIP;
    assert_eq!(sender.lost(base, &[(base + 1, base + 4)]), 1, "the threshold has shrunk to three later packets");
}

#[test]
fn flight_memory_follows_load_and_is_freed_when_idle() {
    let mut sender = Sender::with(u32::MAX - 1000, 16);
    assert_eq!(sender.flight.ring.capacity(), 16);
    sender.send(1);
    assert_eq!(sender.flight.ring.capacity(), 32);
    sender.send(sender.flight.free_slots());
    assert_eq!((sender.flight.ring.capacity(), sender.flight.free_slots()), (4096, 0));
    sender.flight.free_memory();
    assert_eq!(sender.flight.ring.capacity(), 4096, "the ring is not freed while packets are in flight");
    for next in 1..=4096 {
        sender.ack(next, &[]).unwrap();
    }
    assert!(sender.done.iter().copied().eq(0..4096), "growth of the ring keeps all packets in order");
    sender.flight.free_memory();
    assert_eq!(sender.flight.ring.capacity(), 0);
    sender.send(3);
    assert_eq!((sender.flight.ring.capacity(), sender.state(4098)), (16, PsnState::InFlight));
    assert!(size_of::<UnackedPackets<[u64; 4]>>() < 2048, "the flight of an idle connection uses less than 2048 bytes");
}
