//! FIFOs that are full, shrunk, replaced, or read by other processes, forged FIFO words, and end point directories that
//! are removed. A message whose wake-up was lost is delivered at a heartbeat, and forged words have no effect.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use super::invalid_data::exchange_messages;
use super::*;
use crate::engine::wake::{WakeResult, write_word};
use crate::proto::message::{FifoWord, ID_MASK};

/// The shortest heartbeat interval that can be set.
const SHORTEST_HEARTBEAT: &str = "keepalive_ms=100";

/// Opens an IA with short heartbeats. Returns it with the sleeper that its completion queue notifies.
fn sleeper(base: &TestBase) -> (Side, Arc<Sleeper>) {
    let sleeper = Arc::<Sleeper>::default();
    let weak: Weak<Sleeper> = Arc::downgrade(&sleeper);
    (base.open_with(SHORTEST_HEARTBEAT, weak), sleeper)
}

/// Sends one message and waits for it. The wait sleeps unless the message has already arrived.
fn wakes(from: (&Side, &Qp), to: (&Side, &Qp, &Sleeper), cookie: u64) {
    send(from, cookie);
    let (completion, _) = to.2.completion(&to.0.cq);
    assert_eq!((completion.token.cookie, completion.status), (cookie, Status::Success));
    assert_eq!(from.0.completion().token.cookie, cookie);
    to.1.post_recv(&[], token(cookie + 1)).unwrap();
}

fn send((_, qp): (&Side, &Qp), cookie: u64) {
    qp.post_send(&wr(Op::Send { solicited: false }, &[], cookie)).unwrap();
}

/// Sleeps in a separate thread, then calls `wake` in this thread. Returns the completion that ended the sleep.
fn while_asleep(side: &Side, sleeper: &Sleeper, wake: impl FnOnce()) -> Completion {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| sleeper.completion(&side.cq));
        let until = Instant::now() + PATIENCE;
        while !side.cq.0.is_armed() {
            assert!(Instant::now() < until, "the thread does not arm the completion queue");
            std::thread::yield_now();
        }
        wake();
        thread.join().unwrap().0
    })
}

fn fifo_of(qp: &Qp) -> OwnedFd {
    qp.0.link().unwrap().peer_side().unwrap().peer.fifo.try_clone().unwrap()
}

#[test]
fn message_with_lost_wake_up_is_delivered_at_a_heartbeat() {
    let base = TestBase::new("lost-words");
    let (a, (b, sleeper)) = (base.open(), sleeper(&base));
    let (active, passive) = connected(&a, &b, 7, 10);
    let (_reader, pipe) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    replace(&active.0.link().unwrap().peer_side().unwrap().peer.fifo, &pipe);
    passive.post_recv(&[], token(1)).unwrap();
    for n in 1..4 {
        let completion = while_asleep(&b, &sleeper, || send((&a, &active), n));
        assert_eq!((completion.token.cookie, completion.status), (n, Status::Success));
        assert_eq!(a.completion().token.cookie, n);
        passive.post_recv(&[], token(n + 1)).unwrap();
    }
    // A sleeping thread is also woken when a send that it waits for completes.
    active.post_recv(&[], token(9)).unwrap();
    let completion = while_asleep(&b, &sleeper, || {
        send((&b, &passive), 10);
        assert_eq!(a.completion().token.cookie, 9);
    });
    assert_eq!((completion.token.cookie, completion.status), (10, Status::Success));
}

/// Fills the FIFO of an IA whose engine is blocked, sends a message, and releases the engine.
fn fills(shrink: bool) {
    let base = TestBase::new(&format!("full-{shrink}"));
    let (a, c, (b, sleeper)) = (base.open(), base.open(), sleeper(&base));
    let (active, passive) = connected(&a, &b, 7, 10);
    let listener = b.ia.listen(8, ObjectId { handle: 4096, generation: 1 }).unwrap();
    passive.post_recv(&[], token(1)).unwrap();
    let other = c.qp();
    let fifo = fifo_of(&active);
    let completion = while_asleep(&b, &sleeper, || {
        let held_up = b.sink.events.lock();
        other.connect(&ConnectSpec { address: &here(), qual: 8, private_data: &[] }, conn(20)).unwrap();
        let until = Instant::now() + PATIENCE;
        while b.sink.requests.lock().is_empty() {
            assert!(Instant::now() < until, "no request");
            std::thread::yield_now();
        }
        if shrink {
            rustix::pipe::fcntl_setpipe_size(&fifo, 4096).unwrap();
        }
        while write_word(&fifo, FifoWord::Wake(ID_MASK)) == WakeResult::Sent {}
        send((&a, &active), 1);
        // Other processes that write to the FIFO do not block either.
        let friend = connected(&a, &c, 9, 30);
        exchange_messages(&a, &c, &friend);
        drop(held_up);
    });
    assert_eq!((completion.token.cookie, completion.status), (1, Status::Success));
    drop((listener, other));
}

#[test]
fn full_fifo_loses_no_wake_up() {
    fills(false);
}

#[test]
fn shrunk_fifo_does_not_block_writers() {
    fills(true);
}

#[test]
fn forged_fifo_words_have_no_effect() {
    let base = TestBase::new("forged-words");
    let (a, (b, sleeper)) = (base.open(), sleeper(&base));
    let (active, passive) = connected(&a, &b, 7, 10);
    let fifo = fifo_of(&active);
    passive.post_recv(&[], token(1)).unwrap();
    let id = active.0.link().unwrap().peer_side().unwrap().id;
    for n in 0..2000u32 {
        // Forged ids: small numbers, neighbours of the valid id, other generations of it, and the valid id itself.
        let forged = [n, id ^ n, id.wrapping_add(n << 16) & ID_MASK, id][n as usize % 4];
        for note in [FifoWord::Reset(forged), FifoWord::Alive(forged), FifoWord::Wake(forged)] {
            write_word(&fifo, note);
        }
    }
    (1..20).for_each(|n| wakes((&a, &active), (&b, &passive, &sleeper), n));
    assert!(a.sink.is_silent() && b.sink.is_silent());
}

/// Creates an object of this kind at the path of a FIFO that was moved to `aside`.
fn put(kind: &str, at: &Path, aside: &Path) {
    let make = |path: &Path| rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
    match kind {
        "a fifo without a reader" => make(at),
        "a file" => fs::write(at, "").unwrap(),
        "a folder" => fs::create_dir(at).unwrap(),
        "a link to the true one" => symlink(aside, at).unwrap(),
        "the true one by another name" => fs::hard_link(aside, at).unwrap(),
        _ => {}
    }
}

fn take_away(at: &Path) {
    let _ = fs::remove_file(at).or_else(|_| fs::remove_dir(at));
}

const KINDS: [&str; 6] = [
    "a fifo without a reader",
    "a file",
    "a folder",
    "a link to the true one",
    "the true one by another name",
    "nothing",
];

#[test]
fn peer_whose_fifo_was_replaced_is_rejected() {
    let base = TestBase::new("drained-fifo");
    let (a, b) = (base.open(), base.open());
    let id = ObjectId { handle: 4096, generation: 1 };
    let listener = b.ia.listen(7, id).unwrap();
    let spec = ConnectSpec { address: &here(), qual: 7, private_data: &[] };
    for (n, kind) in KINDS.into_iter().enumerate() {
        let aside = Path::new(&base.0).join("aside");
        // The FIFO is replaced before the request, or between the request and its answer.
        for late in [false, true] {
            let of = conn(10 + 4 * n + 2 * usize::from(late));
            let at = if late { &b } else { &a }.ia.device.endpoint.path().join("fifo");
            let drain = || {
                fs::rename(&at, &aside).unwrap();
                put(kind, &at, &aside);
            };
            let (active, passive) = (a.qp(), b.qp());
            if late {
                active.connect(&spec, of).unwrap();
                let (request, _) = b.sink.request();
                drain();
                request.accept(&passive, &[], conn(500)).unwrap();
                assert_eq!(a.sink.next(of), SinkEvent::Other("rejected"), "{kind}");
                assert_eq!(b.sink.next(conn(500)), SinkEvent::Other("accept failed"), "{kind}");
            } else {
                drain();
                active.connect(&spec, of).unwrap();
                assert_eq!(a.sink.next(of), SinkEvent::Other("rejected"), "{kind}");
            }
            assert!(a.sink.is_silent() && b.sink.is_silent(), "{kind}");
            take_away(&at);
            fs::rename(&aside, &at).unwrap();
        }
    }
    drop(listener);
    exchange_messages(&a, &b, &connected(&a, &b, 7, 900));
}

#[test]
fn message_is_delivered_although_another_reader_drains_the_fifo() {
    let base = TestBase::new("reader");
    let (a, (b, sleeper)) = (base.open(), sleeper(&base));
    let at = b.ia.device.endpoint.path().join("fifo");
    fs::remove_file(&at).unwrap();
    rustix::fs::mkfifoat(CWD, &at, Mode::RUSR | Mode::WUSR).unwrap();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reader = rustix::fs::open(&at, flags, Mode::empty()).unwrap();
    let (active, passive) = connected(&a, &b, 7, 10);
    passive.post_recv(&[], token(1)).unwrap();
    let completion = while_asleep(&b, &sleeper, || send((&a, &active), 1));
    assert_eq!((completion.token.cookie, completion.status), (1, Status::Success));
    assert!(rustix::io::read(&reader, &mut [0; 64]).unwrap() >= 4, "the other reader has drained a FIFO word");
}

#[test]
fn removed_end_point_directory_ends_no_connection() {
    let base = TestBase::new("vanished");
    let (a, (b, sleeper)) = (base.open(), sleeper(&base));
    let (active, passive) = connected(&a, &b, 7, 10);
    let address = PeerAddress::Path(b.ia.device.endpoint.path().to_path_buf());
    fs::remove_dir_all(b.ia.device.endpoint.path()).unwrap();
    passive.post_recv(&[], token(1)).unwrap();
    (1..20).for_each(|n| wakes((&a, &active), (&b, &passive, &sleeper), n));
    let qp = a.qp();
    qp.connect(&ConnectSpec { address: &address, qual: 7, private_data: &[] }, conn(20)).unwrap();
    assert_eq!(a.sink.next(conn(20)), SinkEvent::Other("rejected"), "a removed end point is not found");
    active.abort();
    assert_eq!(b.sink.next(conn(11)), SinkEvent::Other("disconnected"));
    drop((active, passive, qp, a, b));
    assert!(!Path::new(&base.0).join("quals").exists());
}
