//! One of two processes is killed while it creates its files, connects, transfers data, disconnects, cleans up or
//! closes the IA. The other process gets at most one event and its flushes, continues to serve other processes, and no
//! file remains. The last test replaces the killed process by a new one with the same process id and end point
//! directory, to which the other process connects again.

use super::fail_points::Point::{self, *};
use super::other_process::{Other, QUAL, Traffic, was_killed};
use super::stopped_processes::PROBES;
use super::*;

/// Number of times that the process passes the point before it is killed.
const PASSES: u32 = 2;

fn plan(point: Point, passes: u32) -> String {
    format!("{point:?} {passes} kill")
}

pub(super) fn is_empty(base: &TestBase) -> bool {
    let left: Vec<_> = std::fs::read_dir(&base.0).unwrap().flatten().map(|e| e.path()).collect();
    left.is_empty() || panic!("{left:?}")
}

/// Checks that a connect of a live process succeeds.
fn serves_others(side: &Side, base: &TestBase) {
    let friend = base.open();
    let qp = friend.qp();
    qp.connect(&ConnectSpec { address: &here(), qual: QUAL, private_data: b"friend" }, conn(9)).unwrap();
    loop {
        let (request, info) = side.sink.request();
        if info.private_data != b"friend" {
            // This request of the dead process arrives late.
            let late = side.qp();
            request.accept(&late, &[], conn(8)).unwrap();
            assert_eq!(side.sink.next(conn(8)), SinkEvent::Other("accept failed"));
            continue;
        }
        let mine = side.qp();
        request.accept(&mine, &[], conn(10)).unwrap();
        assert_eq!(friend.sink.next(conn(9)), SinkEvent::Established(vec![]));
        assert_eq!(side.sink.next(conn(10)), SinkEvent::Established(vec![]));
        return;
    }
}

/// Starts another process that connects to this process and is killed at `point`. Checks the events and files.
fn dies_connecting(point: Point, passes: u32, settings: &[(&str, &str)]) {
    dies_as("connects", point, passes, settings);
}

fn dies_as(role: &str, point: Point, passes: u32, settings: &[(&str, &str)]) {
    let base = TestBase::new(&format!("kill-c-{point:?}-{passes}-{}", settings.len()));
    let side = base.open();
    let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let mut other = Other::start(role, &base, &plan(point, passes), settings);
    let mut traffic: Option<Traffic> = None;
    let until = Instant::now() + PATIENCE;
    loop {
        let request = side.sink.requests.lock().pop_front();
        if let Some((request, info)) = request {
            assert!(traffic.is_none(), "{point:?}: one request only");
            let mut new = Traffic::new(&side, conn(1));
            new.knows(&info.private_data);
            request.accept(&new.qp, &new.card(), new.conn).unwrap();
            traffic = Some(new);
        }
        traffic.iter_mut().for_each(|traffic| traffic.go_on(&side));
        let over = traffic.as_ref().is_none_or(Traffic::is_settled);
        if over && let Some(status) = other.ended() {
            assert!(was_killed(status), "{point:?}: {status:?}");
            break;
        }
        assert!(Instant::now() < until, "{point:?} is not over");
    }
    serves_others(&side, &base);
    assert!(side.sink.is_silent() && side.cq.poll(&mut [Completion::default()]) == 0, "{point:?}");
    drop((traffic, listener, side));
    assert!(is_empty(&base), "{point:?}");
}

/// Connects to another process, which is killed at `point`, with retries until it listens. Checks the events and files.
fn dies_listening(point: Point, passes: u32, settings: &[(&str, &str)]) {
    let base = TestBase::new(&format!("kill-l-{point:?}-{passes}-{}", settings.len()));
    let side = base.open();
    let mut other = Other::start("listens", &base, &plan(point, passes), settings);
    let mut traffic: Option<Traffic> = None;
    let until = Instant::now() + PATIENCE;
    for attempt in 1.. {
        let status = other.ended();
        let new = Traffic::new(&side, ConnId { attempt, ..conn(1) });
        new.connect(&here());
        let mut now = new;
        while !now.is_settled() {
            if now.has_ended() && !now.is_established() {
                now.qp.abort(); // A rejected attempt does not flush the posted work, so the test ends it.
            }
            now.go_on(&side);
            assert!(Instant::now() < until, "{point:?} is not over");
        }
        let was_connected = now.is_established();
        traffic = Some(now);
        if let Some(status) = status {
            assert!(was_killed(status) && !was_connected, "{point:?}: {status:?}");
            break;
        }
    }
    let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    serves_others(&side, &base);
    assert!(side.sink.is_silent() && side.cq.poll(&mut [Completion::default()]) == 0, "{point:?}");
    drop((traffic, listener, side));
    assert!(is_empty(&base), "{point:?}");
}

#[test]
fn kill_during_end_point_creation_leaves_no_files() {
    for point in [FolderBegun, FolderHasLockFile, FolderBuilt, FolderNamed] {
        dies_connecting(point, 0, &[]);
        dies_listening(point, 0, &[]);
    }
}

#[test]
fn kill_during_listener_creation_leaves_no_files() {
    for point in [QualOpened, QualLocked, QualWritten] {
        dies_listening(point, 0, &[]);
    }
}

#[test]
fn kill_of_the_client_during_handshake_gives_one_event() {
    for point in [BeforeRequest, AfterRequestOrReply, ReplyReceived, BeforeAck, AfterAck, Confirmed, Reported] {
        dies_connecting(point, 0, &[]);
    }
}

#[test]
fn kill_of_the_listener_during_handshake_gives_one_event() {
    for point in [RequestReceived, BeforeReply, AfterRequestOrReply, Confirmed, Reported] {
        dies_listening(point, 0, &[]);
    }
}

#[test]
fn kill_during_a_message_gives_one_event() {
    let points = [
        SlotReserved,
        SlotFilled,
        LinesReserved,
        LinesFilled,
        BeforePublish,
        AfterPublish,
        FragmentCopied,
        BeforeTelling,
        Completed,
    ];
    for point in points {
        dies_connecting(point, PASSES, &[]);
        dies_listening(point, PASSES, &[]);
    }
}

#[test]
fn kill_during_a_long_message_gives_one_event() {
    for point in [OfferReserved, Offered, OfferRead, HelpAsked, HelpSeen, HelpClaimed, PartFetched] {
        dies_connecting(point, PASSES, &[]);
        dies_listening(point, PASSES, &[]);
    }
}

#[test]
fn kill_during_rdma_by_the_kernel_gives_one_event() {
    for point in [KeyAnnounced, SegmentCopied] {
        dies_connecting(point, PASSES, &[]);
        dies_listening(point, PASSES, &[]);
    }
    for point in [KernelAsked, KernelAnswered] {
        for passes in [1, PROBES + PASSES] {
            dies_connecting(point, passes, &[]);
            dies_listening(point, passes, &[]);
        }
    }
}

#[test]
fn kill_during_rdma_by_shared_buffers_gives_one_event() {
    for point in [FragmentReserved, FragmentFilled, TargetHeld, TargetCopied] {
        dies_connecting(point, PASSES, &[("DAPL_SM_RMA", "mmap")]);
        dies_listening(point, PASSES, &[("DAPL_SM_RMA", "mmap")]);
    }
}

#[test]
fn kill_during_an_eager_write_gives_one_event() {
    for point in [EagerClaimed, EagerReclaimed] {
        dies_connecting(point, 0, &[]);
        dies_listening(point, 0, &[]);
    }
}

#[test]
fn kill_during_disconnect_gives_one_event() {
    dies_as("parts", MarkedEnded, 0, &[]);
}

#[test]
fn kill_during_cleaning_or_close_leaves_no_files() {
    let leaving = (0..3).map(|passes| (Leaving, passes));
    for (point, passes) in [(CleanerLocked, 0), (CleanerMovedAside, 0), (CleanerRemoved, 0)].into_iter().chain(leaving)
    {
        let base = TestBase::new(&format!("kill-{point:?}"));
        let living = base.open();
        let dead = std::path::PathBuf::from(&base.0).join("1/1");
        std::fs::create_dir_all(dead.join("conns/77")).unwrap();
        std::fs::write(dead.join("lock"), "").unwrap();
        let mut other = Other::start("visits", &base, &plan(point, passes), &[]);
        assert!(was_killed(other.end()), "{point:?}");
        assert!(living.ia.device.endpoint.path().join("lock").exists(), "{point:?}");
        serves_others_by(living, &base);
        assert!(is_empty(&base), "{point:?}");
    }
}

fn serves_others_by(side: Side, base: &TestBase) {
    let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    serves_others(&side, base);
    drop((listener, side));
}

#[test]
fn concurrent_open_clean_and_kills_leave_no_files() {
    let base = TestBase::new("many");
    let mut visitors: Vec<_> = (0..3).map(|_| Other::start("haunts", &base, "", &[])).collect();
    for (n, point) in
        [FolderBegun, FolderHasLockFile, FolderBuilt, FolderNamed, QualOpened, QualLocked, Leaving, Leaving]
            .into_iter()
            .enumerate()
    {
        assert!(was_killed(Other::start("visits", &base, &plan(point, n as u32 / 6), &[]).end()), "{point:?}");
    }
    for visitor in &mut visitors {
        assert!(visitor.end().success());
    }
    drop(base.open());
    assert!(is_empty(&base));
}

/// Connects to this end point, with retries, and transfers data until `enough` requests are complete. Fails if an
/// established connection ends earlier.
fn reaches(side: &Side, address: &PeerAddress, first: &mut u32, enough: u64) -> Traffic {
    let until = Instant::now() + PATIENCE;
    loop {
        *first += 1;
        let mut traffic = Traffic::new(side, ConnId { attempt: *first, ..conn(1) });
        traffic.connect(address);
        while !traffic.is_settled() {
            traffic.go_on(side);
            if traffic.has_ended() && !traffic.is_established() {
                traffic.qp.abort();
            } else if traffic.done() >= enough {
                return traffic;
            }
            assert!(Instant::now() < until, "{address:?} is not reached");
        }
        assert!(!traffic.is_established(), "it ended too soon: {traffic:?}");
    }
}

#[test]
fn restarted_process_with_the_same_name_is_reached() {
    let base = TestBase::new("again");
    let side = base.open();
    let address = PeerAddress::Path(format!("{}/1/1", base.0).into());
    let mut attempts = 0;
    let Some(mut epoch) = Other::start_as_first("listens", &base) else {
        eprintln!("skipped: no permission to create a pid namespace");
        return;
    };
    for _ in 0..3 {
        let mut traffic = reaches(&side, &address, &mut attempts, 20);
        // Kills the process, and starts a new one without waiting until the engine of `side` has noticed the exit.
        epoch.kill_inner();
        epoch = Other::start_as_first("listens", &base).unwrap();
        let until = Instant::now() + PATIENCE;
        while !traffic.is_settled() {
            traffic.go_on(&side);
            assert!(Instant::now() < until, "the end of the old epoch is not received");
        }
    }
    drop(reaches(&side, &address, &mut attempts, 20));
    // The last process ends by itself, because its established connection has ended.
    epoch.end();
    drop((base.open(), side));
    assert!(is_empty(&base));
}
