//! Tests of the empty check, with fake rings in the memory of the test.

use super::*;

/// A ring of two slots, which are never freed.
type Ring = &'static [AtomicU64; 2];

fn ring() -> Ring {
    Box::leak(Box::default())
}

/// A check of an empty queue, and the watches of its connections, each with an empty ring.
fn checked(connections: usize) -> (Pooled<EmptyCheck>, Vec<(Pooled<RingWatch>, Ring)>) {
    let check = Pooled::<EmptyCheck>::take();
    let watches: Vec<_> = (0..connections).map(|_| (Pooled::<RingWatch>::take(), ring())).collect();
    for (watch, ring) in &watches {
        // SAFETY: the ring is never freed.
        unsafe { watch.set_next(&ring[0], 5) };
    }
    check.watch(watches.iter().map(|(watch, _)| watch.get()));
    check.has_queued.store(0, Ordering::Relaxed);
    (check, watches)
}

#[test]
fn empty_check_reports_not_empty_if_any_watched_word_shows_work() {
    for connections in [0, 1, 2, 3, WATCHES] {
        let (check, watches) = checked(connections);
        assert!(check.is_empty(), "{connections} connections");
        check.set_ready(true);
        assert!(!check.is_empty());
        check.set_ready(false);
        check.begin_pass();
        assert!(!check.is_empty());
        check.end_pass();
        check.has_queued.store(1, Ordering::Relaxed);
        assert!(!check.is_empty());
        check.has_queued.store(0, Ordering::Relaxed);
        for (watch, ring) in &watches {
            ring[0].store(4 << 32 | 7, Ordering::Relaxed);
            assert!(check.is_empty(), "a slot of the lap before");
            ring[0].store(5 << 32 | 7, Ordering::Relaxed);
            assert!(!check.is_empty());
            // SAFETY: the ring is never freed.
            unsafe { watch.set_next(&ring[1], 5) };
            assert!(check.is_empty(), "taken");
            watch.set_wait(AwaitedProgress::Other);
            assert!(!check.is_empty());
            watch.set_wait(AwaitedProgress::Nothing);
        }
        check.set_stale();
        assert!(!check.is_empty() && check.is_stale());
    }
}

#[test]
fn empty_check_reports_not_empty_in_one_of_1024_calls() {
    let (check, _watches) = checked(1);
    let locked: Vec<_> = (1..=3000).filter(|_| !check.is_empty()).collect();
    assert_eq!(locked, [LOCKED_POLL_INTERVAL, 2 * LOCKED_POLL_INTERVAL]);
}

#[test]
fn empty_check_reports_not_empty_if_a_consumed_count_exceeds_the_known() {
    let (check, watches) = checked(2);
    let (watch, taken) = (&watches[1].0, ring());
    // SAFETY: the word is never freed.
    unsafe { watch.set_consumed_word(&taken[0]) };
    watch.set_wait(AwaitedProgress::Count);
    let set = |published: u64, carried, known| {
        taken[0].store(published, Ordering::Relaxed);
        watch.set_carried_ack(carried);
        watch.set_known(known);
        check.is_empty()
    };
    assert!(set(0, 0, 0) && set(3, 0, 3) && set(0, 3, 3));
    assert!(!set(4, 0, 3) && !set(0, 4, 3));
    let wraps = 1 << 32;
    assert!(set(wraps, 0, wraps) && !set(wraps, 1, wraps) && !set(wraps + 1, 0, wraps) && !set(wraps, 0, wraps - 1));
    watch.set_wait(AwaitedProgress::Nothing);
    assert!(set(4, 4, 3), "no request waits");
}

#[test]
fn empty_check_reports_not_empty_for_more_connections_than_watches() {
    let (check, watches) = checked(WATCHES + 1);
    assert!(!check.is_empty());
    check.watch(watches[1..].iter().map(|(watch, _)| watch.get()));
    assert!(check.is_empty());
}

#[test]
fn reused_empty_check_object_is_reset() {
    for _ in 0..3 {
        let (check, watches) = checked(3);
        assert!(check.is_empty());
        watches[0].0.set_wait(AwaitedProgress::Other);
        check.set_ready(true);
        drop(watches);
        let check = check; // returned to the pool before the next iteration
        assert!(!check.is_empty());
    }
    let check = Pooled::<EmptyCheck>::take();
    assert!(!check.is_empty() && check.is_stale() && !EmptyCheck::never().is_empty());
}
