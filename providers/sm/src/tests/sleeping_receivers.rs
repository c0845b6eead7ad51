//! Tests that no wake-up is lost. Threads send, sleep and wake many times, because a race may lose a wake-up only
//! rarely; the variable [`WAITS`] sets the number of waits. A thread that is not woken fails the test. The loom models
//! in `engine::wake_flags` check every order of a few steps, whereas these tests run many orders of all steps.
//!
//! Another test checks that the engine places messages at once for a program that polls memory and makes no call.

use std::sync::atomic::{AtomicU8, Ordering};

use dapl_software::cq::CompletionList;

use super::*;
use crate::cq::PolledConnection;

/// Environment variable that sets the number of waits, for example `DAPL_TEST_WAITS=10000000`.
const WAITS: &str = "DAPL_TEST_WAITS";

fn waits(usual: u64) -> u64 {
    std::env::var(WAITS).ok().map_or(usual, |text| text.parse().unwrap())
}

/// Checks that enough waits slept. Not every wait sleeps, but a test in which nearly no wait sleeps proves nothing.
fn was_asleep(slept: u64, waits: u64) {
    println!("{slept} of {waits} waits were asleep");
    assert!(slept >= waits / 10, "{slept} of {waits}");
}

/// Delays for a random time, so that the steps of the two threads interleave differently.
fn delay(random: &mut u64) {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (0..*random >> 58).for_each(|_| std::hint::spin_loop());
}

/// A completion queue, and a thread that sleeps on it.
#[derive(Default)]
struct Sleeping {
    ready: CompletionList,
    sleeper: Sleeper,
}

impl Sleeping {
    fn push(&self, n: u64) {
        if self.ready.push(Completion { token: token(n), ..Completion::default() }) {
            self.sleeper.notify();
        }
    }

    /// Returns the cookie of the next completion, and whether the thread slept before it arrived.
    fn wait(&self) -> (u64, bool) {
        let (mut out, mut slept) = ([Completion::default()], false);
        while self.ready.take(&mut out) == 0 {
            if self.ready.arm(|| ()) {
                self.sleeper.sleep();
                slept = true;
            }
        }
        (out[0].token.cookie, slept)
    }
}

#[test]
fn waiter_for_completions_is_always_woken() {
    let count = waits(200_000) / 2;
    let beds = [Sleeping::default(), Sleeping::default()];
    let side = |mine: usize, mut random: u64| {
        let mut slept = 0;
        for n in 0..count {
            delay(&mut random);
            if mine == 0 {
                beds[1].push(n);
            }
            let (got, was_asleep) = beds[mine].wait();
            assert_eq!(got, n);
            slept += u64::from(was_asleep);
            if mine == 1 {
                beds[0].push(n);
            }
        }
        slept
    };
    let slept = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(1, 7));
        side(0, 8) + other.join().unwrap()
    });
    was_asleep(slept, 2 * count);
}

#[test]
fn waiter_for_messages_is_always_woken() {
    let pairs = 4;
    let count = waits(60_000) / 2 / pairs;
    let base = TestBase::new("waits");
    let (a, b) = (base.open(), base.open());
    let slept = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..pairs)
            .flat_map(|n| {
                let [mut one, mut two] = [&a, &b].map(SleepingReceiver::new);
                connect(&a, &b, n as usize, &one.qp, &two.qp);
                [scope.spawn(move || one.play(true, count, n)), scope.spawn(move || two.play(false, count, n + 100))]
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    was_asleep(slept, 2 * pairs * count);
}

/// The wake-up flags of a new connection are already set when it is created. The engine sets them again only after
/// traffic or after a thread has polled, so connection set-up itself executes no barrier on other CPUs.
#[test]
fn first_message_of_a_new_connection_wakes_its_receiver() {
    let base = TestBase::new("first-message");
    let (a, b) = (base.open(), base.open());
    for n in 0..20 {
        let [one, two] = [&a, &b].map(SleepingReceiver::new);
        connect(&a, &b, n, &one.qp, &two.qp);
        assert!([&one, &two].iter().all(|side| side.qp.0.link().is_some_and(|link| link.is_preset())));
        for (from, to) in [(&one, &two), (&two, &one)] {
            assert!(to.cq.arm(ArmMode::All).unwrap());
            from.qp.post_send(&wr(Op::Send { solicited: false }, &[], 7)).unwrap();
            to.sleeper.sleep();
            assert_eq!(to.cq.poll(&mut [Completion::default()]), 1);
        }
    }
}

/// No engine thread has to run between the poll and the first message.
#[test]
fn first_poll_begins_to_poll_a_new_connection_without_traffic() {
    let base = TestBase::new("first-poll");
    let (a, b) = (base.open(), base.open());
    let [one, two] = [&a, &b].map(SleepingReceiver::new);
    connect(&a, &b, 0, &one.qp, &two.qp);
    let end = Instant::now() + Duration::from_secs(10);
    for side in [&one, &two] {
        // The end of set-up. If a poll came before it, set-up itself would begin to poll the connection.
        while !side.cq.0.has_connections() {
            assert!(Instant::now() < end, "set-up does not add the connection to the list of polled ones");
            std::thread::yield_now();
        }
        assert!(!side.qp.0.is_polled());
        assert_eq!(side.cq.poll(&mut [Completion::default()]), 0);
        assert!(side.qp.0.is_polled());
    }
}

/// A queue pair with a thread that sleeps until its receives complete.
struct SleepingReceiver {
    qp: Qp,
    cq: Arc<Cq>,
    sleeper: Arc<Sleeper>,
}

impl SleepingReceiver {
    fn new(side: &Side) -> Self {
        let sleeper = Arc::<Sleeper>::default();
        let weak: Weak<Sleeper> = Arc::downgrade(&sleeper);
        let cq = Arc::new(side.ia.create_cq(weak).unwrap());
        let spec = QpSpec { recv_cq: Some(cq.clone()), request_cq: None, ..side.spec() };
        let qp = side.ia.create_qp(&side.pd, spec).unwrap();
        qp.post_recv(&[], token(0)).unwrap();
        SleepingReceiver { qp, cq, sleeper }
    }

    /// Sends and waits alternately. Returns the number of waits that slept.
    fn play(&mut self, begins: bool, count: u64, mut random: u64) -> u64 {
        let mut slept = 0;
        let send = |n| {
            let silent = SendWr { suppress: true, ..wr(Op::Send { solicited: false }, &[], n) };
            self.qp.post_send(&silent).unwrap();
        };
        for n in 0..count {
            delay(&mut random);
            if begins {
                send(n);
            }
            let (got, was_asleep) = self.sleeper.completion(&self.cq);
            assert_eq!((got.token.cookie, got.status), (n, Status::Success));
            slept += u64::from(was_asleep);
            self.qp.post_recv(&[], token(n + 1)).unwrap();
            if !begins {
                send(n);
            }
        }
        slept
    }
}

fn connect(a: &Side, b: &Side, n: usize, active: &Qp, passive: &Qp) {
    let listener = b.ia.listen(7, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let of = [conn(10 + 2 * n), conn(11 + 2 * n)];
    active.connect(&ConnectSpec { address: &here(), qual: 7, private_data: &[] }, of[0]).unwrap();
    b.sink.request().0.accept(passive, &[], of[1]).unwrap();
    for (side, of) in [a, b].into_iter().zip(of) {
        assert_eq!(side.sink.next(of), SinkEvent::Established(vec![]));
    }
    drop(listener);
}

/// A program polls the memory of its receives and makes no call. Each message wakes the engine, which places the
/// message at once. Heartbeats are so rare that they do not help, and the engine has no ticks, because no queue is
/// polled.
#[test]
fn messages_polled_in_memory_are_placed_without_a_call_or_a_tick() {
    const LENGTH: usize = 4096;
    let base = TestBase::new("polled-memory");
    let rare = "keepalive_ms=50000 give_up_ms=200000";
    let sides = [0, 1].map(|_| base.open_with(rare, Weak::<IgnoreNotifications>::new()));
    let qps = connected(&sides[0], &sides[1], 7, 1);
    let ticks = || sides.iter().map(|side| format!("{:?}", side.ia.device.regions.store.ticker)).collect::<Vec<_>>();
    let (before, from) = (ticks(), vec![1u8; LENGTH]);
    let to: Vec<AtomicU8> = (0..LENGTH).map(|_| AtomicU8::new(0)).collect();
    let region = Region { address: to.as_ptr() as u64, length: LENGTH as u64 };
    let writable = Access { local_write: true, ..Access::default() };
    let sink = sides[1].ia.register(&sides[1].pd, region, writable).unwrap();
    let (source, address) = (sides[0].register(&from), region.address);
    let target = Segment { key: sink.local_key(), pad: 0, address, length: region.length };
    for n in 0..300 {
        to[LENGTH - 1].store(0, Ordering::Relaxed);
        qps.1.post_recv(&[target], token(n)).unwrap();
        qps.0.post_send(&wr(Op::Send { solicited: false }, &[segment(&source, &from)], n)).unwrap();
        let until = Instant::now() + PATIENCE;
        while to[LENGTH - 1].load(Ordering::Acquire) == 0 {
            assert!(Instant::now() < until, "message {n} waits for a call or a heartbeat");
            std::thread::yield_now();
        }
    }
    assert_eq!(ticks(), before, "a message waited for a tick");
}
