//! Packets and deadlines while a thread polls, and after it stops.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fakes::*;
use crate::device::now;
use crate::proto::MILLIS;

#[test]
fn deadlines_are_met_without_polling() {
    let ((client, ours), _server) = connected("");
    for _ in 0..3 {
        *ours.deadline.lock().unwrap() = Some(now() + 3 * MILLIS);
        let opened = ours.opened.lock().unwrap();
        let next_service = opened.as_ref().unwrap().next_service.clone();
        drop(opened);
        client.device.schedule(ours.number(), &next_service, &ours.pending_work());
        ours.events.wait(|event| (*event == Recorded::OnTime).then_some(()));
    }
}

#[test]
fn polling_thread_receives_and_the_engine_takes_over_when_it_stops() {
    let ((client, ours), (server, theirs)) = connected("");
    let me = std::thread::current().id();
    let mut by_me = 0;
    for round in 0u32.. {
        theirs.post(&server.device, b"poll");
        let by = loop {
            client.progress.poll(true);
            if let Some((_, by)) = ours.events.has(packet) {
                break by;
            }
        };
        by_me = if by == me { by_me + 1 } else { 0 };
        // The engine may receive the first packets, and those that arrive while this thread is preempted.
        if by_me == 10 {
            break;
        }
        assert!(round < 100_000, "the polling thread received too few packets in 100000 rounds");
    }
    // This thread stops polling without calling `stop_polling`.
    theirs.post(&server.device, b"engine");
    assert_ne!(ours.events.wait(packet).1, me);
    // This thread polls, and then stops with `stop_polling`.
    client.progress.poll(true);
    client.progress.stop_polling();
    theirs.post(&server.device, b"asleep");
    assert_ne!(ours.events.wait(packet).1, me);
    assert!(!client.device.polling.is_polled(now()));
}

#[test]
fn poll_during_placement_finds_complete_data() {
    let ia = Ia::open("127.0.0.1", "");
    let (is_complete, begun) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let progress = ia.progress.pass.lock();
            ia.progress.is_placing.store(true, Ordering::SeqCst);
            begun.wait();
            // Gives the polling thread time to find `is_placing` set, and to wait for the lock of the pass.
            (0..1000).for_each(|_| std::thread::yield_now());
            is_complete.store(true, Ordering::SeqCst);
            ia.progress.is_placing.store(false, Ordering::SeqCst);
            drop(progress);
        });
        begun.wait();
        ia.progress.poll(true);
        assert!(is_complete.load(Ordering::SeqCst), "the bytes must be complete before their completion is visible");
    });
}

#[test]
fn deadline_is_met_after_polling_stops() {
    let ((client, ours), _server) = connected("");
    let next_service = ours.opened.lock().unwrap().as_ref().unwrap().next_service.clone();
    for is_reported in [true, false] {
        client.progress.poll(true);
        *ours.deadline.lock().unwrap() = Some(now() + 5 * MILLIS);
        client.device.schedule(ours.number(), &next_service, &ours.pending_work());
        client.progress.poll(true);
        if is_reported {
            client.progress.stop_polling();
        }
        ours.events.wait(|event| (*event == Recorded::OnTime).then_some(()));
    }
}
