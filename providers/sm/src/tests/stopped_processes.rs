//! One of two processes is stopped while it starts, during the handshake or later, and continues. If it continues
//! before the give-up time, the connection is not affected. Otherwise each process gets one event for the end of the
//! connection, and its flushes. A reply that a process sent before it exited is still accepted.

use std::os::fd::AsFd;

use super::fail_points::Point::{self, *};
use super::invalid_data::{TestClient, params};
use super::killed_processes::is_empty;
use super::other_process::{Other, QUAL, Traffic};
use super::*;
use crate::device::Device;
use crate::engine::Engine;
use crate::memory::map::SharedMapping;
use crate::proto::handshake::{Datagram, Geometry, ReplyResult};

/// Number of times that the process passes the point of a transfer before it is stopped.
const PASSES: u32 = 2;
/// Number of copies during the handshake, which test whether the kernel permits copies.
pub(super) const PROBES: u32 = 3;
const IMPATIENT: [(&str, &str); 2] = [("DAPL_KEEPALIVE_MS", "100"), ("DAPL_GIVE_UP_MS", "1000")];

fn plan(point: Point, passes: u32) -> String {
    format!("{point:?} {passes} stop")
}

fn await_stop(other: &Other, point: Point) {
    let until = Instant::now() + PATIENCE;
    while !other.is_stopped() {
        assert!(Instant::now() < until, "{point:?} is not reached");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts two processes and stops the one in `role` when it reaches `point` after `passes` earlier passes, for longer
/// than its peer's give-up time. Then continues it, and checks the events of both.
fn stops(role: &str, point: Point, passes: u32, settings: &[(&str, &str)]) {
    let base = TestBase::new(&format!("stop-{role}-{point:?}"));
    let impatient = [&IMPATIENT, settings].concat();
    let survives = if role == "listens" { "connects" } else { "listens" };
    let mut survivor = Other::start(survives, &base, "", &impatient);
    let mut stopped = Other::start(role, &base, &plan(point, passes), settings);
    assert!(survivor.end().success(), "{point:?}: the running process gets one event and its flushes");
    assert!(stopped.is_stopped(), "{point:?}");
    stopped.go_on();
    assert!(stopped.end().success(), "{point:?}: the stopped process gets one event and its flushes");
    assert!(is_empty(&base), "{point:?}");
}

#[test]
fn process_stopped_during_a_transfer_gets_one_event_when_it_continues() {
    for point in [SlotFilled, BeforePublish, KeyAnnounced, SegmentCopied, HelpAsked, HelpClaimed] {
        stops("listens", point, PASSES, &[]);
    }
    for point in [KernelAsked, KernelAnswered] {
        stops("listens", point, PROBES + PASSES, &[]);
    }
    for point in [LinesFilled, TargetHeld, FragmentFilled] {
        stops("connects", point, PASSES, &[("DAPL_SM_RMA", "mmap")]);
    }
}

#[test]
fn process_stopped_after_the_handshake_gets_one_event_when_it_continues() {
    for point in [Confirmed, Reported] {
        stops("listens", point, 0, &[]);
    }
    for point in [AfterAck, Confirmed, Reported] {
        stops("connects", point, 0, &[]);
    }
}

/// Starts two processes, and stops the one in `role` at `point` for a short time, so that its peer retransmits the
/// request or reply.
fn pauses(role: &str, point: Point) {
    let base = TestBase::new(&format!("pause-{role}-{point:?}"));
    let partner = if role == "listens" { "parts" } else { "listens" };
    let mut partner = Other::start(partner, &base, "", &[]);
    let mut stopped = Other::start(role, &base, &plan(point, 0), &[]);
    await_stop(&stopped, point);
    // The peer retransmits several times meanwhile. The test does not depend on the number.
    std::thread::sleep(Duration::from_millis(150));
    stopped.go_on();
    assert!(partner.end().success() && stopped.end().success(), "{point:?}");
    assert!(is_empty(&base), "{point:?}");
}

#[test]
fn pause_of_the_listener_during_start_or_handshake_ends_no_connection() {
    for point in [
        FolderBegun,
        FolderHasLockFile,
        FolderBuilt,
        FolderNamed,
        QualOpened,
        QualLocked,
        QualWritten,
        RequestReceived,
        BeforeReply,
        AfterRequestOrReply,
        Confirmed,
        Reported,
    ] {
        pauses("listens", point);
    }
}

#[test]
fn pause_of_the_requester_during_start_or_handshake_ends_no_connection() {
    for point in [
        FolderBegun,
        FolderHasLockFile,
        FolderBuilt,
        FolderNamed,
        BeforeRequest,
        AfterRequestOrReply,
        ReplyReceived,
        BeforeAck,
        AfterAck,
        Confirmed,
        Reported,
    ] {
        pauses("parts", point);
    }
}

/// A client that stops after it was accepted is given up. When it continues, it notices the end.
#[test]
fn accepted_client_that_stops_times_out_and_sees_the_end_afterwards() {
    for point in [ReplyReceived, BeforeAck] {
        let base = TestBase::new(&format!("unacknowledged-{point:?}"));
        let side = base.open_with("keepalive_ms=100 give_up_ms=1000", Weak::<IgnoreNotifications>::new());
        let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
        let mut other = Other::start("connects", &base, &plan(point, 0), &[]);
        let (request, info) = side.sink.request();
        let mut traffic = Traffic::new(&side, conn(1));
        traffic.knows(&info.private_data);
        request.accept(&traffic.qp, &traffic.card(), traffic.conn).unwrap();
        let until = Instant::now() + PATIENCE;
        while !traffic.is_settled() {
            traffic.go_on(&side);
            assert!(Instant::now() < until, "{point:?} is not over");
        }
        assert!(!traffic.is_established() && other.is_stopped(), "{traffic:?}");
        other.go_on();
        // The other process may request a further connection.
        let mut again: Option<Traffic> = None;
        while other.ended().is_none_or(|status| panic_unless(status.success())) {
            if let Some((request, info)) = side.sink.requests.lock().pop_front() {
                let mut new = Traffic::new(&side, ConnId { attempt: 2, ..conn(1) });
                new.knows(&info.private_data);
                request.accept(&new.qp, &new.card(), new.conn).unwrap();
                again = Some(new);
            }
            again.iter_mut().for_each(|traffic| traffic.go_on(&side));
            again.take_if(|traffic| traffic.done() > 0);
            assert!(Instant::now() < until + PATIENCE, "{point:?}: it does not end");
        }
        drop((traffic, again, listener, side));
        assert!(is_empty(&base), "{point:?}");
    }
}

/// Fails the test unless `good` is true. Returns false, which continues the loop.
fn panic_unless(good: bool) -> bool {
    assert!(good, "the other process failed");
    false
}

#[test]
fn reply_of_an_exited_process_establishes_the_connection() {
    let base = TestBase::new("last-word");
    let sink = Arc::<Recorder>::default();
    std::fs::DirBuilder::new().recursive(true).create(&base.0).unwrap();
    std::fs::set_permissions(&base.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let device = Arc::new(Device::open(&IaSpec { name: "sm0", params: &base.0, library: "" }, sink.clone()).unwrap());
    let mut engine = Engine::new(device.clone()).unwrap();
    let client = TestClient::new(&base);
    let spec = QpSpec {
        ep: ObjectId::default(),
        shared: None,
        recv_cq: None,
        request_cq: None,
        max_recvs: 1,
        max_requests: 1,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_reads_in: 1,
        max_reads_out: 1,
    };
    let qp = Qp::new(device.clone(), 1, spec);
    let address = PeerAddress::Path(client.path.clone());
    qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: &[] }, conn(1)).unwrap();
    let Datagram::Request { id, params: asked, .. } = client.answer() else { panic!() };
    let geometry = Geometry::LOCAL;
    let reply = |result, accepted, fds: &[_]| {
        let reply = Datagram::Reply { client: id, server: 3, token: asked.token, result, accepted };
        client.socket.send(device.endpoint.path(), &reply.encode(), fds).unwrap();
    };
    reply(ReplyResult::Pending, None, &[]);
    engine.read_datagrams();
    let sealed = |len| SharedMapping::create("area", len, false).unwrap().1;
    let fds = [sealed(geometry.area_len()), sealed(geometry.rma_len()), sealed(16 * 64)];
    reply(ReplyResult::Accepted, Some((params(asked.token, geometry), vec![])), &fds.each_ref().map(|fd| fd.as_fd()));
    // Simulates the exit of the peer process.
    mark_dead(device.connections.lock().by_id[&id].watch.as_ref().unwrap());
    engine.process_died(std::process::id() as i32);
    assert_eq!(sink.next(conn(1)), SinkEvent::Established(vec![]));
}
