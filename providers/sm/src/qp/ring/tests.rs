//! Tests of the slot rings: order over many laps, runs of filled slots, invalid counts of consumed slots, and a reader
//! and a writer in two threads.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::*;
use crate::proto::message::MessageKind;

fn pair(slots: u32) -> (Writer, Reader) {
    let (local, fd) = SharedMapping::create("ring", 8192, true).unwrap();
    let of_peer = SharedMapping::of_peer(&fd, 8192, false).unwrap();
    (Writer::new(Arc::new(local), 4096, slots), Reader::new(Arc::new(of_peer), 4096, slots))
}

#[test]
fn ring_keeps_order_over_many_laps() {
    let (mut writer, mut reader) = pair(8);
    let mut oracle = VecDeque::new();
    let mut random = 12345u64;
    for step in 0..20_000u64 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        if random >> 63 == 0 && !writer.is_full() {
            writer
                .push(Header::plain(MessageKind::Send, 8), &SlotFields { aux: step as u32, total: Some(step), ack: 0 });
            oracle.push_back(step);
        } else if let Peeked::Entry(_) = reader.peek() {
            let payload = reader.fields();
            assert_eq!(oracle.pop_front(), payload.total);
            reader.advance();
            assert_eq!(writer.set_consumed_low(reader.consumed() as u32), Some(()));
        } else {
            assert!(oracle.is_empty() || writer.is_full());
        }
    }
}

#[test]
fn run_of_slots_ends_at_an_empty_slot_or_at_the_end_of_the_ring() {
    let (mut writer, mut reader) = pair(8);
    for (sent, expected) in [(3, [3, 0]), (8, [5, 3]), (5, [5, 0]), (0, [0, 0])] {
        for n in 0..sent {
            writer.publish_send(writer.next_slot(), n, 10 * u32::from(n));
            writer.advance(writer.next(), n, 1);
        }
        let mut number = 0;
        for count in expected {
            let run = reader.next_run();
            let found = run.slots().iter().map_while(|slot| run.inline_send(slot));
            let lengths: Vec<_> = found.map(|(_, length, is_solicited)| (length, is_solicited)).collect();
            assert!(lengths.iter().copied().eq((number..number + count).map(|length| (length, false))));
            number += count;
            if count > 0 {
                assert_eq!(u64::from(reader.advance_run(count as usize)), 10 * (number - 1));
            }
        }
        assert_eq!(writer.set_consumed(reader.consumed()), Some(()));
    }
}

#[test]
fn consumed_count_beyond_the_published_slots_is_an_error() {
    let (mut writer, _reader) = pair(8);
    assert_eq!(writer.set_consumed(1), None);
    assert_eq!(writer.set_consumed_low(3), None);
    writer.push(Header::plain(MessageKind::Send, 0), &SlotFields::default());
    assert_eq!(writer.set_consumed_low(1), Some(()));
    assert_eq!(writer.set_consumed_low(0), Some(()), "an older count has no effect");
    assert_eq!(writer.consumed(), 1);
}

#[test]
fn reader_thread_gets_every_slot_of_the_writer_thread_once() {
    let (mut writer, mut reader) = pair(16);
    let consumed = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200_000u64 {
                while writer.is_full() {
                    writer.set_consumed(consumed.load(Ordering::Acquire)).unwrap();
                    std::thread::yield_now();
                }
                writer.push(Header::plain(MessageKind::Send, 8), &SlotFields { total: Some(n), ack: 0, aux: 0 });
            }
        });
        let mut n = 0;
        while n < 200_000u64 {
            match reader.peek() {
                Peeked::Entry(_) => {
                    assert_eq!(reader.fields().total, Some(n));
                    reader.advance();
                    consumed.store(reader.consumed(), Ordering::Release);
                    n += 1;
                }
                Peeked::Empty => std::thread::yield_now(),
                Peeked::Invalid => panic!(),
            }
        }
    });
}
