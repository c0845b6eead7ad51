//! Requests without a listener: each is repeated for `listener_wait_ms`, until a late listener gets it or it is
//! rejected. Other tests: aborted and refused requests, and an accept while the engine handles the request.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fail_points::{Point, yield_at};
use super::*;
use crate::cm::setup;
use crate::proto::machine::{DatagramDelivery, MachineInput};

/// A time that is longer than any test takes.
const LONG_LISTENER_WAIT: &str = "listener_wait_ms=60000";
const LISTENER: ObjectId = ObjectId { handle: 4096, generation: 1 };

fn ask(side: &Side, address: &PeerAddress, n: usize) -> Qp {
    let qp = side.qp();
    qp.connect(&ConnectSpec { address, qual: 9, private_data: &[n as u8] }, conn(n)).unwrap();
    qp
}

fn open(base: &TestBase, settings: &str) -> Side {
    base.open_with(settings, Weak::<IgnoreNotifications>::new())
}

#[test]
fn late_listener_gets_the_request() {
    let base = TestBase::new("seek-later");
    let (a, b) = (open(&base, LONG_LISTENER_WAIT), base.open());
    // By IP address, no end point is found at first. By path, the end point exists and answers that it has no listener.
    let path = PeerAddress::Path(b.ia.device.endpoint.path().to_path_buf());
    for (n, address) in [here(), path].iter().enumerate() {
        let active = ask(&a, address, n);
        assert!(a.sink.is_silent(), "neither connected nor rejected");
        let listener = b.ia.listen(9, LISTENER).unwrap();
        let (request, info) = b.sink.request();
        assert_eq!(info.private_data, [n as u8]);
        let passive = b.qp();
        request.accept(&passive, b"", conn(n + 2)).unwrap();
        assert_eq!(a.sink.next(conn(n)), SinkEvent::Established(vec![]));
        assert_eq!(b.sink.next(conn(n + 2)), SinkEvent::Established(vec![]));
        drop((listener, active, passive));
    }
}

#[test]
fn request_without_a_listener_is_rejected_after_the_wait() {
    let base = TestBase::new("seek-end");
    for settings in ["", "listener_wait_ms=0", "listener_wait_ms=1"] {
        let (a, b) = (open(&base, settings), base.open());
        let path = PeerAddress::Path(b.ia.device.endpoint.path().to_path_buf());
        for (n, address) in [here(), path, PeerAddress::Path("/dev/shm/dapl-no-such/1/1".into())].iter().enumerate() {
            let _active = ask(&a, address, n);
            assert_eq!(a.sink.next(conn(n)), SinkEvent::Other("rejected"), "{settings} {address:?}");
            assert!(a.ia.device.connections.lock().by_id.is_empty());
        }
    }
}

#[test]
fn end_point_of_an_exited_process_does_not_end_the_lookup() {
    let base = TestBase::new("seek-dead");
    let a = open(&base, LONG_LISTENER_WAIT);
    let quals = std::path::Path::new(&base.0).join("quals");
    std::fs::create_dir_all(&quals).unwrap();
    std::fs::write(quals.join("9"), format!("{}/4194303/1", base.0)).unwrap();
    let _active = ask(&a, &here(), 1);
    assert!(a.sink.is_silent());
    let b = base.open();
    let _listener = b.ia.listen(9, LISTENER).unwrap();
    let passive = b.qp();
    b.sink.request().0.accept(&passive, b"", conn(2)).unwrap();
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Established(vec![]));
}

#[test]
fn aborted_connect_sends_no_more_requests() {
    let base = TestBase::new("seek-over");
    let (a, b) = (open(&base, LONG_LISTENER_WAIT), base.open());
    drop(ask(&a, &here(), 1));
    let given_up = ask(&a, &here(), 2);
    given_up.abort();
    let _other = ask(&a, &here(), 3);
    let _listener = b.ia.listen(9, LISTENER).unwrap();
    let (_request, info) = b.sink.request();
    assert_eq!(info.private_data, [3]);
    assert!(b.sink.requests.lock().is_empty());
    assert_eq!(a.ia.device.connections.lock().by_id.len(), 1);
}

#[test]
fn request_refused_by_a_listener_is_rejected_without_a_retry() {
    let base = TestBase::new("seek-space");
    let (a, b) = (open(&base, LONG_LISTENER_WAIT), base.open());
    let _listener = b.ia.listen(9, LISTENER).unwrap();
    let _active = ask(&a, &here(), 1);
    let (request, _) = b.sink.request();
    request.refuse(crate::proto::handshake::ReplyResult::NoListener);
    assert_eq!(a.sink.next(conn(1)), SinkEvent::Other("rejected"));
}

/// The engine may handle a request, for example a repeated one, while the consumer accepts it.
#[test]
fn accept_succeeds_while_the_engine_handles_the_request() {
    let base = TestBase::new("seek-accepted");
    let (a, b) = (base.open(), base.open());
    let _listener = b.ia.listen(9, LISTENER).unwrap();
    yield_at(Point::BeforeReply);
    for n in 0..20 {
        let (active, passive) = (ask(&a, &here(), 2 * n), b.qp());
        let (request, _) = b.sink.request();
        let device = &b.ia.device;
        let offered: Vec<u32> = device.connections.lock().by_id.keys().copied().collect();
        let is_accepted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_accepted.load(Ordering::Relaxed) {
                    offered
                        .iter()
                        .for_each(|id| _ = setup::step(device, *id, MachineInput::Sent(DatagramDelivery::Queued)));
                }
            });
            request.accept(&passive, b"", conn(2 * n + 1)).unwrap();
            is_accepted.store(true, Ordering::Relaxed);
        });
        assert_eq!(a.sink.next(conn(2 * n)), SinkEvent::Established(vec![]), "round {n}");
        assert_eq!(b.sink.next(conn(2 * n + 1)), SinkEvent::Established(vec![]), "round {n}");
        drop(active);
        assert_eq!(b.sink.next(conn(2 * n + 1)), SinkEvent::Other("disconnected"), "round {n}");
    }
}
