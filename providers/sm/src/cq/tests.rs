//! Tests of completion queues with fake connections. Polls of few and of many connections return all completions, a
//! busy connection does not delay the others, and the empty check watches all polled connections.
#![forbid(unsafe_code)]

use dapl::runtime::empty_check::{AwaitedProgress, QueueCheck, RingWatch};
use dapl::runtime::sync::AtomicPtr;

use super::*;

struct FakeConnection {
    cq: Arc<CqCore>,
    /// Number of completions that were polled.
    polled: AtomicU32,
    /// Whether each poll fills the poller's array. Otherwise a connection has one completion after [`Self::fill`].
    is_endless: bool,
    has_wake_flags: AtomicBool,
    watch: Pooled<RingWatch>,
}

impl FakeConnection {
    fn new(cq: &Cq, is_endless: bool) -> Arc<Self> {
        let watch = Pooled::<RingWatch>::take();
        watch.set_wait(if is_endless { AwaitedProgress::Other } else { AwaitedProgress::Nothing });
        Arc::new(FakeConnection {
            cq: cq.0.clone(),
            polled: AtomicU32::new(0),
            is_endless,
            has_wake_flags: true.into(),
            watch,
        })
    }

    /// Creates an active connection without a completion.
    fn idle(cq: &Cq) -> Arc<Self> {
        let conn = Self::new(cq, false);
        cq.0.add_active(conn.clone());
        conn
    }

    fn fill(&self) {
        self.watch.set_wait(AwaitedProgress::Other);
    }
}

impl PolledConnection for FakeConnection {
    fn poll(&self, out: &mut CompletionWriter<'_>) -> bool {
        while !out.is_full() {
            out.put(&self.cq, Completion::default());
            self.polled.fetch_add(1, Ordering::Relaxed);
            if !self.is_endless {
                self.watch.set_wait(AwaitedProgress::Nothing);
                break;
            }
        }
        false
    }
    fn watch(&self) -> &'static RingWatch {
        self.watch.get()
    }
    fn has_ended(&self) -> bool {
        false
    }
    fn is_polled(&self) -> bool {
        true
    }
    fn was_idle(&self) -> bool {
        false
    }
    fn has_unread(&self) -> bool {
        false
    }
    fn clear_wake_flags(&self) {
        self.has_wake_flags.store(false, Ordering::Relaxed);
    }
    fn serve(&self) {}
    fn stop_polling(&self) {}
}

struct NoWaiter;

impl CqSink for NoWaiter {
    fn notify(&self) {}
}

#[test]
fn poll_takes_equally_from_all_connections_and_queues_no_completion() {
    let sink: Weak<dyn CqSink> = Weak::<NoWaiter>::new();
    let cq = Cq::new(sink, Arc::new(Jobs::new().unwrap()), 0);
    let floods: Vec<_> = (0..3).map(|_| FakeConnection::new(&cq, true)).collect();
    floods.iter().for_each(|flood| cq.0.add_active(flood.clone()));
    let mut out = [Completion::default(); 16];
    for _ in 0..6 {
        assert_eq!(cq.poll(&mut out), 16);
    }
    assert!(cq.0.ready.is_empty(), "no completion was queued");
    assert_eq!(floods.iter().map(|flood| flood.polled.load(Ordering::Relaxed)).collect::<Vec<_>>(), [32; 3]);
}

#[test]
fn polls_of_many_connections_find_every_completion_in_turn() {
    let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
    let conns: Vec<_> = (0..100).map(|_| FakeConnection::idle(&cq)).collect();
    let mut out = [Completion::default(); 16];
    let mut poll = || cq.poll(&mut out);
    for n in (0..100).chain([70, 69, 3, 99, 98, 0]) {
        assert_eq!(poll(), 0);
        conns[n].fill();
        assert_eq!(poll(), 1, "connection {n}");
    }
    // Each poll returns the completions of neighbouring connections, and starts after the connection of the last
    // completion.
    for round in 0..3 {
        [10, 11, 14, 50, 90].iter().for_each(|n| conns[*n].fill());
        let found: Vec<usize> = (0..4).map(|_| poll()).collect();
        assert_eq!(found.iter().sum::<usize>(), 5, "round {round}: {found:?}");
        assert_eq!(found.last(), Some(&0), "round {round}: {found:?}");
    }
    conns.iter().for_each(|conn| conn.fill());
    assert_eq!((0..8).map(|_| poll()).collect::<Vec<_>>(), [16, 16, 16, 16, 16, 16, 4, 0]);
}

#[test]
fn consumer_that_always_finds_completions_counts_as_polling() {
    let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
    let conn = FakeConnection::idle(&cq);
    let mut out = [Completion::default(); 16];
    let mut polls_until_polling = || {
        let poll = |_: &u32| {
            cq.0.push(Completion::default());
            assert_eq!(cq.poll(&mut out), 1);
            cq.0.is_polled()
        };
        (1..1000).find(poll)
    };
    assert_eq!(polls_until_polling(), Some(READY_POLLS + 1));
    assert!(!conn.has_wake_flags.load(Ordering::Relaxed), "the peer sends no wake-ups");
    // The polls count for the engine's tick.
    let mut last = 0;
    assert!(cq.0.tick(&mut last) && polls_until_polling() == Some(1) && cq.0.tick(&mut last));
    assert!(!cq.0.tick(&mut last) && !cq.0.is_polled(), "no poll since the last tick");
    assert_eq!(polls_until_polling(), Some(READY_POLLS + 1));
    assert!(cq.arm(ArmMode::All).unwrap() && !cq.0.is_polled());
    cq.disarm();
    assert_eq!(polls_until_polling(), Some(READY_POLLS + 1), "after an arm");
}

#[test]
fn busy_connection_does_not_delay_other_connections() {
    let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
    let conns: Vec<_> = (0..40).map(|_| FakeConnection::idle(&cq)).collect();
    let mut out = [Completion::default(); 16];
    assert_eq!(cq.poll(&mut out), 0);
    conns[20].fill();
    let mut taken = 0;
    for _ in 0..3 {
        conns[0].fill();
        taken += cq.poll(&mut out);
    }
    assert!(conns[20].watch.has_no_progress(), "the poll after that of connection 0 begins with connection 1");
    assert_eq!(taken, 3, "one completion in each poll");
}

#[test]
fn empty_check_watches_all_polled_connections() {
    let cq = Cq::new(Weak::<NoWaiter>::new(), Arc::new(Jobs::new().unwrap()), 0);
    let check = cq.empty_check().unwrap();
    let slot: &'static AtomicPtr<EmptyCheck> = Box::leak(Box::new(AtomicPtr::new(std::ptr::null_mut())));
    QueueCheck::new(check, slot).set_queued(false);
    let mut out = [Completion::default(); 16];
    let poll = |out: &mut [Completion]| cq.poll(out);
    assert_eq!((check.is_empty(), poll(&mut out), check.is_empty()), (false, 0, true), "after the first poll");
    let conns: Vec<_> = (0..3).map(|_| FakeConnection::new(&cq, true)).collect();
    for conn in &conns {
        conn.watch.set_wait(AwaitedProgress::Nothing);
        cq.0.add_active(conn.clone());
        assert!(!check.is_empty(), "the new connection is not watched yet");
        assert_eq!((poll(&mut out), check.is_empty()), (0, true));
    }
    for conn in &conns {
        conn.watch.set_wait(AwaitedProgress::Other);
        assert_eq!((check.is_empty(), poll(&mut out)), (false, 16));
        conn.watch.set_wait(AwaitedProgress::Nothing);
        assert!(check.is_empty());
    }
    cq.0.push(Completion::default());
    assert_eq!((check.is_empty(), poll(&mut out), check.is_empty()), (false, 1, true));
    assert!(cq.arm(ArmMode::All).unwrap() && !check.is_empty(), "after an arm, the next dequeue polls");
}
