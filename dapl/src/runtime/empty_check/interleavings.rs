//! A loom model of the path of a completion. A peer fills a slot, and one thread moves the message to the CQ's list of
//! ready completions and then to the queue of the EVD. Meanwhile another thread, which knows that the message was sent,
//! reads the `EmptyCheck`. The check must never report that the EVD is empty.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::runtime::sync::AtomicBool;

#[test]
fn message_queued_before_an_empty_check_is_found() {
    loom::model(|| {
        let (check, watch) = (Arc::new(Pooled::<EmptyCheck>::take()), Arc::new(Pooled::<RingWatch>::take()));
        let ring: &'static [AtomicU64; 2] = Box::leak(Box::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let is_sent = Arc::new(AtomicBool::new(false));
        // SAFETY: the ring is never freed.
        unsafe { watch.set_next(&ring[0], 1) };
        check.watch([watch.get()].into_iter());
        check.has_queued.store(0, Ordering::Relaxed);
        let peer = {
            let is_sent = is_sent.clone();
            thread::spawn(move || {
                ring[0].store(1 << 32, Ordering::Release);
                is_sent.store(true, Ordering::Release);
            })
        };
        let mover = {
            let (check, watch) = (check.clone(), watch.clone());
            thread::spawn(move || {
                if ring[0].load(Ordering::Acquire) != 0 {
                    check.set_ready(true);
                    // SAFETY: the ring is never freed.
                    unsafe { watch.set_next(&ring[1], 1) };
                    check.has_queued.store(1, Ordering::Release);
                    check.set_ready(false);
                }
            })
        };
        if is_sent.load(Ordering::Acquire) {
            assert!(!check.is_empty(), "the message is in the ring, in the list, or in the queue");
        }
        peer.join().unwrap();
        mover.join().unwrap();
        assert!(!check.is_empty());
    });
}
