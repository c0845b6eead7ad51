//! Tests of kernel copies from and to a process that dies. If the target of large copies is killed, each request of the
//! initiator completes once and in order. If the initiator is killed, the target gets one event and continues.
//!
//! Other tests simulate a new process that has the id of the dead one. No data is copied from or to the new process for
//! a connection of the dead process, and the connections of the new process stay.

use super::invalid_data::exchange_messages;
use super::killed_processes::is_empty;
use super::other_process::{Other, QUAL, on, take_event, was_killed, while_young};
use super::*;

/// Length of a copy in bytes: much more than the kernel copies in one call.
const BIG: usize = 16 << 20;
/// Number of outstanding requests.
const REQUESTS: u64 = 4;
/// Number of rounds for each kind of death.
const ROUNDS: u32 = 15;

fn card(memory: &[u8], mr: &Mr) -> Vec<u8> {
    [&mr.remote_key().to_le_bytes()[..], &(memory.as_ptr() as u64).to_le_bytes()].concat()
}

/// Main function of the target process: registers memory, and waits.
pub(super) fn offers(base: &TestBase) {
    let side = base.open();
    let (qp, memory) = (side.qp(), vec![1u8; BIG]);
    let mr = side.register(&memory);
    let _listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let (request, _) = side.sink.request();
    request.accept(&qp, &card(&memory, &mr), conn(1)).unwrap();
    while_young(|| {
        std::thread::sleep(Duration::from_millis(100));
        true
    });
}

/// Main function of the initiator process: writes to the peer's memory and reads from it until it is killed.
pub(super) fn copies(base: &TestBase) {
    let side = base.open();
    let mut streams = Streams::new(&side);
    streams.qp.connect(&ConnectSpec { address: &here(), qual: QUAL, private_data: &[] }, conn(1)).unwrap();
    let SinkEvent::Established(card) = side.sink.next(conn(1)) else { panic!() };
    while_young(|| {
        streams.go_on(&side, on(&card));
        true
    });
}

/// A sequence of large copies, and the numbers of posted and completed copies.
struct Streams {
    qp: Qp,
    memory: Vec<u8>,
    mr: Mr,
    posted: u64,
    done: u64,
    last: Status,
}

impl Streams {
    fn new(side: &Side) -> Self {
        let memory = vec![2u8; BIG];
        let mr = side.register(&memory);
        Streams { qp: side.qp(), memory, mr, posted: 0, done: 0, last: Status::Success }
    }

    /// Posts copies until [`REQUESTS`] are outstanding, unless a copy has failed. Then takes completions.
    fn go_on(&mut self, side: &Side, remote: Remote) {
        while self.last == Status::Success && self.posted - self.done < REQUESTS {
            let op = if self.posted.is_multiple_of(2) { Op::Write(remote) } else { Op::Read(remote) };
            self.qp.post_send(&wr(op, &[segment(&self.mr, &self.memory)], self.posted)).unwrap();
            self.posted += 1;
        }
        let mut out = [Completion::default(); 4];
        let count = side.cq.poll(&mut out);
        for Completion { token, status, .. } in &out[..count] {
            assert_eq!(token.cookie, self.done, "completions arrive in order and once");
            assert!(self.last == Status::Success || *status == Status::Flushed, "{:?}, then {status:?}", self.last);
            assert!(matches!(status, Status::Success | Status::Transport | Status::Flushed), "{status:?}");
            (self.last, self.done) = (*status, self.done + 1);
        }
    }
}

/// Kills the process at a time that differs from round to round.
fn kill(other: &mut Other, round: u32) {
    std::thread::sleep(Duration::from_micros(u64::from(round) * 1370));
    rustix::process::kill_process(other.pid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn large_copies_to_a_killed_target_complete_once_and_in_order() {
    let base = TestBase::new("target-dies");
    let (side, friend) = (base.open(), base.open());
    let good = connected(&friend, &side, QUAL + 1, 100);
    for round in 0..ROUNDS {
        let mut other = Other::start("offers", &base, "", &[]);
        let mut streams = Streams::new(&side);
        let mut attempt = ConnId { attempt: 0, ..conn(1) };
        let until = Instant::now() + PATIENCE;
        let card = loop {
            attempt.attempt += 1;
            let address = here();
            streams.qp.connect(&ConnectSpec { address: &address, qual: QUAL, private_data: &[] }, attempt).unwrap();
            match side.sink.next(attempt) {
                SinkEvent::Established(card) => break card,
                SinkEvent::Other(event) => assert_eq!(event, "rejected"), // No process listens yet.
                SinkEvent::Rejected(data) => panic!("rejected with {data:?}"),
            }
            streams.qp.reset().unwrap();
            assert!(Instant::now() < until, "the target process does not accept");
        };
        let killer = std::thread::spawn(move || {
            kill(&mut other, round);
            other.end()
        });
        let mut end = None;
        // If all posted requests are complete when the connection ends, only later requests are flushed.
        while end.is_none() || streams.posted > streams.done || streams.last == Status::Success {
            streams.go_on(&side, on(&card));
            end = end.or_else(|| take_event(&side, attempt));
            assert!(Instant::now() < until, "{end:?}: {} of {} done", streams.done, streams.posted);
        }
        assert!(was_killed(killer.join().unwrap()));
        assert_ne!(streams.last, Status::Success, "work posted after the failure does not succeed");
        assert!(matches!(end, Some(SinkEvent::Other("broken" | "disconnected"))), "{end:?}");
        exchange_messages(&friend, &side, &good);
        assert!(side.sink.is_silent(), "one event per connection");
    }
    drop((good, side, friend));
    assert!(is_empty(&base));
}

#[test]
fn target_survives_a_killed_initiator_of_large_copies() {
    let base = TestBase::new("initiator-dies");
    let (side, friend) = (base.open(), base.open());
    let good = connected(&friend, &side, QUAL + 1, 100);
    let memory = vec![0u8; BIG + 8192];
    let (inside, outside) = (&memory[4096..BIG + 4096], [&memory[..4096], &memory[BIG + 4096..]]);
    let mr = side.register(inside);
    for round in 0..ROUNDS {
        let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
        let mut other = Other::start("copies", &base, "", &[]);
        let qp = side.qp();
        let attempt = ConnId { attempt: round + 1, ..conn(1) };
        qp.post_recv(&[], token(7)).unwrap();
        side.sink.request().0.accept(&qp, &card(inside, &mr), attempt).unwrap();
        assert_eq!(side.sink.next(attempt), SinkEvent::Established(vec![]));
        kill(&mut other, round);
        assert_eq!(side.sink.next(attempt), SinkEvent::Other("disconnected"));
        let flushed = side.completion();
        assert_eq!((flushed.token.cookie, flushed.status), (7, Status::Flushed));
        assert!(was_killed(other.end()));
        exchange_messages(&friend, &side, &good);
        assert!(side.sink.is_silent(), "one event per connection");
        drop(listener);
    }
    assert!(outside.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)));
    drop((mr, good, side, friend));
    assert!(is_empty(&base));
}

/// Simulates that the process has died, that another process has the same id now, and that the engine has not noticed
/// the death yet.
#[test]
fn no_data_is_copied_to_or_from_a_new_process_with_the_peers_id() {
    for read in [false, true] {
        let base = TestBase::new(&format!("id-again-{read}"));
        let (a, b) = (base.open(), base.open());
        let (active, passive) = connected(&a, &b, 7, 10);
        let (mine, other) = (vec![1u8; 64], vec![2u8; 64]);
        let (mine_mr, other_mr) = (a.register(&mine), b.register(&other));
        let remote = Remote { key: other_mr.remote_key(), address: other.as_ptr() as u64 };
        let op = if read { Op::Read(remote) } else { Op::Write(remote) };
        let link = active.0.link().unwrap();
        let peer = &link.peer_side().unwrap().peer;
        assert!(peer.cma.load(std::sync::atomic::Ordering::Relaxed), "the test needs cross-memory attach");
        mark_dead(peer.watch.as_ref().unwrap());
        active.post_send(&wr(op, &[segment(&mine_mr, &mine)], 1)).unwrap();
        assert_eq!(a.completion().status, Status::Transport);
        assert_eq!(a.sink.next(conn(10)), SinkEvent::Other("broken"));
        assert!(mine == [1; 64] && other == [2; 64]);
        drop((active, passive));
    }
}

#[test]
fn new_process_with_a_reused_id_gets_its_own_pid_watch() {
    let base = TestBase::new("watch-again");
    let a = base.open();
    let mut connections = a.ia.device.connections.lock();
    let mine = std::process::id() as i32;
    let first = connections.watch(mine).unwrap();
    assert!(Arc::ptr_eq(&first, &connections.watch(mine).unwrap()), "all connections to a process share its watch");
    mark_dead(&first);
    let second = connections.watch(mine).unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && first.is_dead() && !second.is_dead());
}

/// A death ends the connections of the dead process, but not the connections of a later process with the same id.
#[test]
fn late_exit_report_ends_no_connection_of_a_new_process_with_that_id() {
    let base = TestBase::new("late-death");
    let (a, b) = (base.open(), base.open());
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&dead);
    let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let watch = Arc::new(PidWatch { fd });
    dead.wait().unwrap();
    let pair = connected(&a, &b, 7, 10);
    let mine = std::process::id() as i32;
    a.ia.device.connections.lock().new_watches.push((mine, watch.clone()));
    a.ia.device.jobs.wake();
    // The engine has noticed the death before it receives this request.
    let late = connected(&a, &b, 8, 20);
    exchange_messages(&a, &b, &pair);
    exchange_messages(&a, &b, &late);
    assert!(a.sink.is_silent() && b.sink.is_silent());
}
