//! Hostile processes. One rewrites all memory that it may write while the process under test runs; one belongs to
//! another user. The process under test completes its requests in order, drops the hostile peers with a log line,
//! accesses only granted memory, and serves correct peers meanwhile.

use std::sync::atomic::Ordering;

use dapl_software::memory::regions::{KEY, RIGHTS, RegionStore};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::Uid;

use super::invalid_data::{exchange_messages, params};
use super::other_process::{Other, QUAL, Traffic, on, was_killed};
use super::*;
use crate::memory::map::SharedMapping;
use crate::proto::handshake::{Datagram, Geometry};
use crate::qp::link::{ConnectionMemory, WAKE_ON_PROGRESS, WAKE_ON_REQUESTS};

/// Number of consecutive connections that a hostile process makes.
const ROUNDS: u64 = 80;
/// Exit status of a process that may not change its user.
const NO_RIGHT: i32 = 3;

/// A deterministic random generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random word. Most words are valid values of some field.
    fn word(&mut self) -> u64 {
        let word = self.next();
        match self.next() % 4 {
            0 => word,
            1 => word & 0xFFFF | (1 + self.next() % 3) << 32,
            2 => word % 512,
            _ => u64::MAX << (word % 64),
        }
    }
}

/// Main function of the process that connects many times, and writes invalid data during each connection.
pub(super) fn writes_invalid_data(base: &TestBase) {
    let side = base.open();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for round in 0..ROUNDS {
        let conn = ConnId { attempt: round as u32, ..conn(1) };
        let traffic = Traffic::new(&side, conn);
        traffic.connect(&here());
        match side.sink.next(conn) {
            SinkEvent::Established(card) => write_invalid_data(&side, &traffic, &card, round, &mut random),
            // The reply to an invalid request of an earlier round may match this attempt, and reject it.
            SinkEvent::Other("rejected") => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
        drop(traffic);
        while side.cq.poll(&mut [Completion::default(); 16]) > 0 {}
        side.sink.events.lock().clear();
    }
}

fn write_invalid_data(side: &Side, traffic: &Traffic, card: &[u8], round: u64, random: &mut Random) {
    let Some(link) = traffic.qp.0.link() else { return };
    for step in 0..12 {
        traffic.post_blindly(card, step);
        match round % 5 {
            0 => rewrite(&link.area, random),
            1 => rewrite(&link.rma, random),
            2 => (0..200).for_each(|_| tamper(&link, random)),
            3 => (0..200).for_each(|_| corrupt_registration(side, on(&traffic.card()).key, random)),
            _ => (0..20).for_each(|_| send_invalid(side, &link, random)),
        }
        link.wake_if_flagged(WAKE_ON_REQUESTS | WAKE_ON_PROGRESS);
        side.cq.poll(&mut [Completion::default(); 16]);
    }
}

/// Overwrites the area or the RMA buffer with random words.
fn rewrite(area: &SharedMapping, random: &mut Random) {
    for at in (0..area.len()).step_by(8) {
        area.word(at).store(random.word(), Ordering::Release);
    }
}

/// Overwrites a random word of the control page or the first slots, which the peer interprets, and a word of the RMA
/// buffer.
fn tamper(link: &ConnectionMemory, random: &mut Random) {
    let at = (random.next() as usize % (4096 + 64 * 128)) & !7;
    link.area.word(at).store(random.word(), Ordering::Release);
    link.rma.word((random.next() as usize % 4096) & !7).store(random.word(), Ordering::Release);
}

/// Overwrites the key or the rights of a registration.
fn corrupt_registration(side: &Side, key: u32, random: &mut Random) {
    let field = if random.next().is_multiple_of(2) { KEY } else { RIGHTS };
    side.ia.device.regions.store.words(key)[field].store(random.word(), Ordering::Release);
}

/// Sends one to eight random bytes to the FIFO, and a datagram to the socket, of which some bytes may be changed or
/// missing.
fn send_invalid(side: &Side, link: &ConnectionMemory, random: &mut Random) {
    let Some(peer_side) = link.peer_side() else { return };
    let bytes = random.next().to_le_bytes();
    let _ = rustix::io::write(&peer_side.peer.fifo, &bytes[..1 + random.next() as usize % 8]);
    let datagrams = [
        Datagram::Request { id: link.id, params: params(random.next(), Geometry::LOCAL), private_data: vec![1; 12] },
        Datagram::Ack { client: link.id, server: peer_side.id, token: 0 },
        Datagram::Reset { from: link.id, to: peer_side.id, token: 0 },
    ];
    let mut bytes = datagrams[random.next() as usize % 3].encode();
    for _ in 0..random.next() % 4 {
        let at = random.next() as usize % bytes.len();
        bytes[at] = random.next() as u8;
    }
    bytes.truncate(bytes.len() - random.next() as usize % 3);
    let _ = side.ia.device.socket.send(&peer_side.peer.path, &bytes, &[]);
}

fn survives_invalid_data(name: &str, settings: &[(&str, &str)]) {
    let base = TestBase::new(name);
    let (side, friend) = (base.open(), base.open());
    let good = connected(&friend, &side, QUAL + 1, 100);
    let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let own = vec![5u8; 1 << 16];
    let local = Access { local_write: true, ..Access::default() };
    let region = Region { address: own.as_ptr() as u64, length: own.len() as u64 };
    let _kept = side.ia.register(&side.pd, region, local).unwrap();
    let mut hostile = Other::start("writes_invalid_data", &base, "", settings);
    let (mut traffic, mut served) = (None::<Traffic>, 0);
    let until = Instant::now() + 3 * PATIENCE;
    loop {
        if traffic.is_none() {
            let request = side.sink.requests.lock().pop_front();
            if let Some((request, info)) = request
                && info.private_data.len() >= 12
            {
                served += 1;
                let mut new = Traffic::new(&side, ConnId { attempt: served, ..conn(1) });
                new.knows(&info.private_data);
                request.accept(&new.qp, &new.card(), new.conn).unwrap();
                traffic = Some(new);
            }
        }
        traffic.iter_mut().for_each(|traffic| traffic.go_on(&side));
        if traffic.as_ref().is_some_and(Traffic::is_settled) {
            traffic = None;
            exchange_messages(&friend, &side, &good);
        }
        if traffic.is_none()
            && side.sink.requests.lock().is_empty()
            && let Some(status) = hostile.ended()
        {
            assert!(status.success(), "{status:?}");
            break;
        }
        assert!(Instant::now() < until, "not over after {served} connections");
    }
    assert!(u64::from(served) >= ROUNDS / 2, "{served}");
    exchange_messages(&friend, &side, &good);
    assert_eq!(own, [5u8; 1 << 16]);
    assert!(was_logged("dropped: the peer sent"), "the reason was not logged");
    drop((listener, good));
}

#[test]
fn a_process_that_overwrites_all_shared_memory_does_not_crash_others() {
    survives_invalid_data("storm-kernel", &[]);
}

#[test]
fn overwriting_shared_memory_with_shared_buffers_crashes_no_process() {
    survives_invalid_data("storm-buffers", &[("DAPL_SM_RMA", "mmap")]);
}

/// Main function of a process that connects a socket to the process under test, changes its user, and then sends
/// datagrams.
pub(super) fn changes_user(base: &TestBase) {
    let side = base.open();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(format!("{}/changed/sock", base.0)).unwrap()).unwrap();
    let victim = side.ia.device.endpoint.base.find_listener(QUAL).unwrap().unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(victim.join("sock")).unwrap()).unwrap();
    let absent = Uid::from_raw(65_534);
    if rustix::thread::set_thread_res_uid(absent, absent, absent).is_err() {
        std::process::exit(NO_RIGHT);
    }
    let request = Datagram::Request { id: 5, params: params(1, Geometry::LOCAL), private_data: vec![] };
    for bytes in [request.encode(), vec![1, 9, 0, 0, 5, 0, 0, 0], vec![]] {
        rustix::net::send(&socket, &bytes, SendFlags::empty()).unwrap();
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

#[test]
fn datagrams_of_another_user_are_dropped() {
    let base = TestBase::new("another-user");
    let (side, friend) = (base.open(), base.open());
    let good = connected(&friend, &side, QUAL + 1, 100);
    let listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    std::fs::create_dir(format!("{}/changed", base.0)).unwrap();
    let status = Other::start("changes-user", &base, "", &[]).end();
    if status.code() == Some(NO_RIGHT) {
        eprintln!("skipped: no permission to change the user id");
        return;
    }
    assert!(was_killed(status), "{status:?}");
    // When this connection is established, the engine has read the datagrams of the other process.
    let late = connected(&friend, &side, QUAL + 2, 200);
    assert!(side.sink.is_silent());
    assert!(was_logged(&format!("{}/changed dropped: the sender has uid 65534", base.0)));
    exchange_messages(&friend, &side, &good);
    drop((listener, late));
}
