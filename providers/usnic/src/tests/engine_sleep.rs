//! Tests the standby sleep of the engine, during which only polling threads receive packets.
//!
//! A thread that announces the end of its polling wakes the engine. Standby sleeps that delay packets are counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dapl::provider::{ArmMode, Completion, CompletionQueue, CqSink};

use super::fakes::*;
use crate::cq::Cq;
use crate::device;
use crate::engine::jobs::Job;
use crate::engine::polling::POLL_LIFETIME;

/// A sink that ignores notifications.
struct Silent;

impl CqSink for Silent {
    fn notify(&self) {}
}

/// Polls the queues until the engine is in standby, so that only the calling thread receives packets.
fn poll_alone(queues: &[Cq], (_, ours): &(Ia, Arc<FakeQp>), (server, theirs): &(Ia, Arc<FakeQp>)) {
    let (me, mut by_me, mut out) = (std::thread::current().id(), 0, [Completion::default()]);
    while by_me < 10 {
        theirs.post(&server.device, b"poll");
        let by = loop {
            queues.iter().for_each(|queue| assert_eq!(queue.poll(&mut out), 0));
            if let Some((_, by)) = ours.events.has(packet) {
                break by;
            }
        };
        by_me = if by == me { by_me + 1 } else { 0 };
    }
}

/// Calls `stop_polling` while the engine sleeps in standby, within [`POLL_LIFETIME`] of the last poll. Tries again if
/// this thread was preempted for so long that the engine no longer counts it as polling.
fn stop_during_standby_sleep(ia: &Ia) {
    let (device, progress) = (&ia.device, &ia.progress);
    loop {
        let begin = device::now();
        progress.poll(true);
        let must_wake = device.polling.must_wake_to_take_over(None);
        if must_wake {
            progress.stop_polling();
        } else {
            device.jobs.push(Job::Wake); // Makes a sleeping engine check whether threads poll.
        }
        if must_wake && device::now() <= begin + POLL_LIFETIME {
            return;
        }
    }
}

#[test]
fn packet_after_polling_several_queues_is_not_delayed_by_standby() {
    let (client, server) = connected("");
    let (device, progress) = (&client.0.device, &client.0.progress);
    let queues = [(); 2].map(|()| Cq::new(Weak::<Silent>::new(), progress.clone()));
    for round in 0..20 {
        poll_alone(&queues, &client, &server);
        // A consumer that waits for a completion makes the same calls: it arms the queue and stops polling.
        assert!(queues[round % 2].arm(ArmMode::All).unwrap());
        stop_during_standby_sleep(&client.0);
        let before = device.late_after_polling();
        server.1.post(&server.0.device, b"asleep");
        assert_ne!(client.1.events.wait(packet).1, std::thread::current().id());
        assert_eq!(device.late_after_polling(), before);
    }
}

#[test]
fn sleeping_thread_leaves_the_sockets_to_another_poller() {
    let (client, server) = connected("");
    let progress = &client.0.progress;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                progress.poll(true);
            }
            progress.stop_polling();
        });
        for _ in 0..20 {
            progress.poll(true);
            progress.stop_polling();
            server.1.post(&server.0.device, b"for the other");
            client.1.events.wait(packet);
        }
        stop.store(true, Ordering::SeqCst);
    });
    server.1.post(&server.0.device, b"for the engine");
    client.1.events.wait(packet);
}

#[test]
fn standby_sleeps_that_delay_data_are_counted() {
    let (client, server) = connected("");
    let (device, progress) = (&client.0.device, &client.0.progress);
    let queues = [Cq::new(Weak::<Silent>::new(), progress.clone())];
    while device.late_after_polling() == 0 {
        poll_alone(&queues, &client, &server);
        // This thread stops polling without calling `stop_polling`, like a consumer that computes.
        server.1.post(&server.0.device, b"computes");
        client.1.events.wait(packet);
    }
}
