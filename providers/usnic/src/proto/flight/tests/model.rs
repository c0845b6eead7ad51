//! Compares the unacked packets with a model, a list of packets, after random calls and arbitrary acks.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// A call that is applied to the sender and to the model.
#[derive(Clone, Debug)]
enum ModelStep {
    Send(u32),
    Ack(i32, Vec<(i32, i32)>),
    /// Retransmits up to this number of the packets that are queued for retransmission.
    Resend(u32),
    /// Records a retransmission of this packet, whatever its state, and replaces its retransmission data by equal data.
    Again(i32),
    Wait(Nanos),
}

/// Generates a distance from the first PSN: near the packets in flight, or any distance.
fn distance() -> impl Strategy<Value = i32> {
    prop_oneof![8 => 0..40i32, 3 => -5..300i32, 1 => -9000..9000i32, 1 => any::<i32>()]
}

/// Generates a range of distances: a valid one, or any range.
fn range() -> impl Strategy<Value = (i32, i32)> {
    prop_oneof![
        9 => (1..60i32, 1..9i32).prop_map(|(first, length)| (first, first + length)),
        1 => (distance(), distance()),
    ]
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        4 => (1..60u32).prop_map(ModelStep::Send),
        1 => Just(ModelStep::Send(u32::MAX)),
        6 => (distance(), prop::collection::vec(range(), 0..5)).prop_map(|(next, ranges)| ModelStep::Ack(next, ranges)),
        3 => Just(ModelStep::Ack(0, vec![(1, 9)])),
        3 => (1..50u32).prop_map(ModelStep::Resend),
        1 => distance().prop_map(ModelStep::Again),
        3 => prop_oneof![0..300 * MICROS, 0..10 * MILLIS, 0..5 * SECONDS].prop_map(ModelStep::Wait),
    ]
}

/// For each packet that was sent, by its distance from the first packet: whether it is unacked.
#[derive(Default)]
struct Model {
    waits: Vec<bool>,
}

impl Model {
    /// Returns the first unacked packet.
    fn first(&self) -> usize {
        self.waits.iter().position(|waits| *waits).unwrap_or(self.waits.len())
    }

    /// Applies an ack, and returns the newly acked packets. An ack with an invalid part has no effect.
    fn ack(&mut self, next: i64, ranges: &[(i64, i64)]) -> Result<Vec<u32>, ()> {
        let (first, sent) = (self.first() as i64, self.waits.len() as i64);
        let is_near = (sent - 4096..=sent).contains(&next) || (first - 4096..=first).contains(&next);
        if !is_near || ranges.iter().any(|&(from, end)| from < next || from >= end || end > sent) {
            return Err(());
        }
        let mut done = Vec::new();
        if next >= first {
            for at in (first..next).chain(ranges.iter().flat_map(|&(from, end)| from..end)) {
                if std::mem::take(&mut self.waits[at as usize]) {
                    done.push(at as u32);
                }
            }
        }
        Ok(done)
    }
}

/// Checks that the flight and the model have the same state for every packet.
fn agree(sender: &Sender, model: &Model) -> Result<(), TestCaseError> {
    let in_flight_count: HashSet<Psn> = sender.flight.ring.walk().into_iter().collect();
    let (first, sent) = (model.first(), model.waits.len());
    let psn = |at: usize| sender.first.plus(at as u32);
    prop_assert_eq!((sender.flight.cumulative(), sender.flight.next_psn()), (psn(first), psn(sent)));
    prop_assert_eq!(
        (sender.flight.free_slots(), sender.flight.is_empty()),
        (4096 - (sent - first) as u32, first == sent)
    );
    let mut lost = 0;
    for at in first..sent {
        let state = sender.flight.state(psn(at));
        prop_assert_eq!(model.waits[at], matches!(state, PsnState::InFlight | PsnState::Lost), "packet {}", at);
        lost += u32::from(state == PsnState::Lost);
        prop_assert_eq!(state == PsnState::InFlight, in_flight_count.contains(&psn(at)));
    }
    let first_lost = (first..sent).find(|&at| sender.flight.state(psn(at)) == PsnState::Lost);
    prop_assert_eq!(sender.flight.lost(), first_lost.map(|at| (psn(at), at as u32)));
    prop_assert_eq!((sender.flight.lost_packets(), sender.flight.packets() as usize), (lost, in_flight_count.len()));
    prop_assert_eq!(sender.flight.bytes(), in_flight_count.len() as u64 * 100);
    prop_assert_eq!(
        sender.flight.deadline().is_some(),
        !in_flight_count.is_empty(),
        "there is a deadline exactly while packets are in flight"
    );
    Ok(())
}

fn run(start: u32, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
    let (mut sender, mut model) = (Sender::new(start), Model::default());
    for step in steps {
        let base = model.first() as i64;
        match step {
            ModelStep::Send(count) => {
                let count = count.min(sender.flight.free_slots());
                sender.send(count);
                model.waits.resize(model.waits.len() + count as usize, true);
            }
            ModelStep::Ack(next, ranges) => {
                let far = |distance: i32| base as i32 + distance.clamp(-(1 << 30), 1 << 30);
                let wide = |&(from, end): &(i32, i32)| (i64::from(far(from)), i64::from(far(end)));
                let expected = model.ack(i64::from(far(next)), &ranges.iter().map(wide).collect::<Vec<_>>());
                let ranges: Vec<_> = ranges.iter().map(|&(from, end)| (far(from), far(end))).collect();
                sender.done.clear();
                let result = sender.ack(far(next), &ranges);
                prop_assert_eq!(result.is_err(), expected.is_err());
                prop_assert_eq!(&sender.done, &expected.unwrap_or_default());
                prop_assert!(result.is_err() || result.is_ok_and(|acked| acked.packets as usize == sender.done.len()));
            }
            ModelStep::Resend(count) => {
                for _ in 0..count {
                    let Some((psn, _)) = sender.flight.lost() else { break };
                    sender.flight.record_retransmission(sender.now, psn);
                    prop_assert_eq!(sender.flight.state(psn), PsnState::InFlight);
                }
            }
            ModelStep::Again(distance) => {
                let at = (base as u32).wrapping_add_signed(distance);
                sender.flight.record_retransmission(sender.now, sender.first.plus(at));
                sender.flight.replace_data(sender.first.plus(at), at);
            }
            ModelStep::Wait(time) => {
                sender.now += time;
                let mut calls = 0;
                while sender.flight.deadline().is_some_and(|deadline| deadline <= sender.now) {
                    if sender.flight.on_time(sender.now) == ExpiredTimer::GiveUp {
                        break;
                    }
                    calls += 1;
                    prop_assert!(calls < 10, "a deadline that has expired must not expire again");
                }
            }
        }
        agree(&sender, &model)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flight_matches_a_model_with_a_state_per_packet(
        start in prop_oneof![prop::sample::select(STARTS.to_vec()), any::<u32>()],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(start, steps)?;
    }
}

#[test]
fn invalid_and_old_acks_change_nothing() {
    let mut sender = Sender::with(u32::MAX - 20, 100);
    let mut bits = 1u32;
    for _ in 0..20_000 {
        // Random values of a linear congruential generator. None of these acks is valid for the sent packets.
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let far = (bits >> 2) as i32 + 101;
        assert!(sender.ack(far, &[]).is_err());
        assert!(sender.ack(0, &[(5, 1), (far, far + 1), (1, far)]).is_err());
        assert!(sender.ack(0, &[(far, 7)]).is_err());
        assert!(sender.ack(-1 - (bits % 4000) as i32, &[]).unwrap().old);
    }
    assert_eq!((sender.flight.packets(), sender.flight.lost_packets(), sender.done.len()), (100, 0, 0));
    assert_eq!((sender.flight.counters.beyond_sent, sender.flight.counters.old), (60_000, 20_000));
    assert_eq!(sender.ack(100, &[]).unwrap().packets, 100);
}
