//! Malicious peers and long sends: rendezvous offers that are malformed or name inaccessible memory, invalid staged
//! data, and invalid requests to stage data. The process under test ends the connection, or refuses the inaccessible
//! memory.

use std::sync::atomic::Ordering;

use super::connection_ends::{pattern, without_cma};
use super::invalid_data::{exchange_messages, forge_fragment};
use super::long_sends::send;
use super::*;
use crate::proto::message::{Header, MessageKind};
use crate::proto::offer::{MAX_SEGMENTS, encode_segment, encode_staged};

const LENGTH: u32 = 100_000;

/// Writes a rendezvous offer to the first slot of the malicious peer's ring.
fn forge_offer(malicious: &Qp, count: u32, total: u64, parts: &[Segment]) {
    let link = malicious.0.link().unwrap();
    let words: Vec<u64> =
        std::iter::once(total).chain(parts.iter().flat_map(encode_segment)).take(1 + 2 * MAX_SEGMENTS).collect();
    for (n, word) in words.iter().enumerate() {
        link.area.word(link.geometry.requests_at() + 16 + n * 8).store(*word, Ordering::Relaxed);
    }
    forge_fragment(malicious, Header::plain(MessageKind::Offer, count).encode(), 0, |head| {
        head.iter_mut().zip(words.iter().chain(std::iter::repeat(&0))).for_each(|(to, word)| *to = *word);
    });
}

/// Waits until the receiver has written its response to an offer. Returns at once if the receiver's connection has
/// ended, because then the sender has already read the response.
fn is_answered(victim: &Qp) {
    let Some(link) = victim.0.link() else { return };
    let until = Instant::now() + PATIENCE;
    while link.area.word(link.geometry.responses_at()).load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < until, "no answer");
        std::thread::yield_now();
    }
}

#[test]
fn malformed_offer_ends_the_connection_and_inaccessible_memory_is_refused() {
    let base = TestBase::new("offer-invalid");
    let (a, b) = (base.open(), base.open());
    let good = connected(&a, &b, 7, 2);
    let (memory, other_pd) = (pattern(LENGTH as usize, 1), a.ia.alloc_pd().unwrap());
    let region = Region { address: memory.as_ptr() as u64, length: memory.len() as u64 };
    let (mr, other) = (a.register(&memory), a.ia.register(&other_pd, region, Access::default()).unwrap());
    let fine = Segment { key: mr.local_key(), pad: 0, address: region.address, length: LENGTH.into() };
    let half = Segment { length: fine.length / 2, ..fine };
    let (broken, left) = (SinkEvent::Other("broken"), SinkEvent::Other("disconnected"));
    let total = u64::from(LENGTH);
    let invalid = [
        ("no segments", 0, 0, vec![], &broken),
        ("too many segments", MAX_SEGMENTS as u32 + 1, total, vec![half; 6], &broken),
        ("a total that is too small", 1, total - 1, vec![fine], &broken),
        ("a total that is too large", 1, total + 1, vec![fine], &broken),
        ("an empty segment", 3, total, vec![half, Segment { length: 0, ..fine }, half], &broken),
        ("no such key", 1, total, vec![Segment { key: !fine.key, ..fine }], &left),
        ("a key of another domain", 1, total, vec![Segment { key: other.local_key(), ..fine }], &left),
        ("beyond its registration", 2, total, vec![half, Segment { address: fine.address + 50_001, ..half }], &left),
        ("a range that wraps", 1, total, vec![Segment { address: u64::MAX - 7, ..fine }], &left),
        ("a range below it", 1, total, vec![Segment { address: 8, ..fine }], &left),
    ];
    for (n, (what, count, total, parts, end)) in invalid.into_iter().enumerate() {
        let id = 100 + 2 * n;
        let (malicious, victim) = connected(&a, &b, 7, id);
        let space = vec![0u8; LENGTH as usize + 10];
        let space_mr = b.register(&space);
        victim.post_recv(&[segment(&space_mr, &space)], token(9)).unwrap();
        forge_offer(&malicious, count, total, &parts);
        if *end == left {
            // The consumer of a correct sender may also deregister offered memory. So the receiver sends a negative
            // response, and the sender ends the connection when it polls.
            is_answered(&victim);
            malicious.abort();
        }
        assert_eq!(b.sink.next(conn(id + 1)), *end, "{what}");
        assert_eq!(b.completion().status, Status::Flushed, "{what}");
        if *end == broken {
            assert_eq!(a.sink.next(conn(id)), left, "{what}");
        }
        exchange_messages(&a, &b, &good);
    }
}

#[test]
fn staging_of_a_wrong_number_of_bytes_ends_the_connection() {
    for (n, length) in [0, 17, 16_385, u32::MAX as usize].into_iter().enumerate() {
        let base = TestBase::new(&format!("stage-invalid-{n}"));
        let (a, b) = (base.open(), base.open());
        let (malicious, victim) = connected(&a, &b, 7, 10);
        let (out, space) = (pattern(LENGTH as usize, 1), vec![0u8; LENGTH as usize]);
        let (out_mr, space_mr) = (a.register(&out), b.register(&space));
        without_cma(&victim);
        malicious.0.link().unwrap().publish_staged(encode_staged(1, length));
        victim.post_recv(&[segment(&space_mr, &space)], token(2)).unwrap();
        // The test forges the offer, because the sender's own provider would answer the receiver's request to copy.
        let part = Segment { key: out_mr.local_key(), pad: 0, address: out.as_ptr() as u64, length: LENGTH.into() };
        forge_offer(&malicious, 1, u64::from(LENGTH), &[part]);
        assert_eq!(b.completion().status, Status::Flushed, "{length}");
        assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("broken"), "{length}");
        assert!(space.iter().all(|byte| *byte == 0), "{length}");
    }
}

#[test]
fn invalid_staging_request_ends_the_connection() {
    for (n, (slot, offset)) in [(0, 0), (2, 0), (0xFF_FFFF, 0), (1, LENGTH), (1, u32::MAX)].into_iter().enumerate() {
        let base = TestBase::new(&format!("question-invalid-{n}"));
        let (a, b) = (base.open(), base.open());
        let (victim, malicious) = connected(&a, &b, 7, 10);
        let out = pattern(LENGTH as usize, 1);
        let out_mr = a.register(&out);
        send(&victim, &[segment(&out_mr, &out)], 1);
        let link = malicious.0.link().unwrap();
        let first = link.geometry.responses_at();
        link.area.word(first + 8).store(u64::from(offset) << 32, Ordering::Relaxed);
        let word = Header::plain(MessageKind::RequestStaging, slot).encode();
        link.area.word(first).store(u64::from(word) | 1 << 32, Ordering::Release);
        link.wake_if_flagged(crate::qp::link::WAKE_ON_PROGRESS);
        assert_eq!(a.completion().status, Status::Flushed, "{slot} {offset}");
        assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("broken"), "{slot} {offset}");
    }
}
