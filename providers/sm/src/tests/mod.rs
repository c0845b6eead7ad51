//! The provider as dapl sees it: two IAs in one process, with a sink that records, and peers that lie.
//!
//! `boxes`, `ends`, `sharing` and `windows` are the honest world, `liars` the other, with `folders`, `storm`, `tables` and
//! `words`; `lending` has both. `seeking` asks before somebody listens. In `kills`, `stops` and `copies` one of two processes (`other`) ends or stops, mostly at one of
//! the `points`. `waits` sleeps and is woken, very often; `knem` has a double of that device. All of it runs without libdat and
//! without dapl's objects.

mod boxes;
mod copies;
mod ends;
mod folders;
mod kills;
mod knem;
mod lending;
mod liars;
mod long;
mod long_lies;
mod other;
pub(crate) mod points;
mod seeking;
mod sharing;
mod stops;
mod storm;
mod tables;
mod waits;
mod windows;
mod words;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use parking_lot::{Condvar, Mutex};

use crate::qp::link::PidWatch;
use crate::{Cq, Mr, Qp, Request, Sm};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the sink heard.
#[derive(Debug, Eq, PartialEq)]
enum Heard {
    Established(Vec<u8>),
    Other(&'static str),
}

/// A sink that keeps everything.
#[derive(Default)]
struct Recorder {
    events: Mutex<VecDeque<(ConnId, Heard)>>,
    requests: Mutex<VecDeque<(Request, RequestInfo)>>,
    changed: Condvar,
}

impl CmSink<Sm> for Recorder {
    fn request(&self, _: ObjectId, request: Request, info: RequestInfo) -> Result<(), Request> {
        self.requests.lock().push_back((request, info));
        self.wake();
        Ok(())
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        let heard = match event {
            ConnectionEvent::Established => Heard::Established(private_data.to_vec()),
            ConnectionEvent::PeerRejected => Heard::Other("peer rejected"),
            ConnectionEvent::Rejected => Heard::Other("rejected"),
            ConnectionEvent::Unreachable => Heard::Other("unreachable"),
            ConnectionEvent::AcceptFailed => Heard::Other("accept failed"),
            ConnectionEvent::Disconnected => Heard::Other("disconnected"),
            ConnectionEvent::Broken => Heard::Other("broken"),
            ConnectionEvent::TimedOut => Heard::Other("timed out"),
        };
        self.events.lock().push_back((conn, heard));
        self.wake();
    }

    fn many_recvs(&self, ep: ObjectId) {
        self.events.lock().push_back((ConnId { ep, attempt: 0 }, Heard::Other("many receives")));
        self.wake();
    }
}

impl Recorder {
    fn wake(&self) {
        drop(self.events.lock());
        self.changed.notify_all();
    }

    /// The next event of this connection.
    fn next(&self, conn: ConnId) -> Heard {
        let until = Instant::now() + PATIENCE;
        let mut events = self.events.lock();
        loop {
            if let Some(place) = events.iter().position(|(of, _)| *of == conn) {
                return events.remove(place).unwrap().1;
            }
            assert!(!self.changed.wait_until(&mut events, until).timed_out(), "no event for {conn:?}");
        }
    }

    fn request(&self) -> (Request, RequestInfo) {
        let until = Instant::now() + PATIENCE;
        let mut events = self.events.lock();
        loop {
            if let Some(request) = self.requests.lock().pop_front() {
                return request;
            }
            assert!(!self.changed.wait_until(&mut events, until).timed_out(), "no request");
        }
    }

    fn is_silent(&self) -> bool {
        self.events.lock().is_empty() && self.requests.lock().is_empty()
    }
}

/// An open IA.
struct Side {
    ia: Sm,
    sink: Arc<Recorder>,
    pd: crate::Pd,
    cq: Arc<Cq>,
}

/// Nobody to wake: these tests poll.
struct Deaf;

impl CqSink for Deaf {
    fn notify(&self) {}
}

/// Somebody who sleeps until a completion queue tells him.
#[derive(Default)]
struct Sleeper {
    told: Mutex<bool>,
    changed: Condvar,
}

impl CqSink for Sleeper {
    fn notify(&self) {
        *self.told.lock() = true;
        self.changed.notify_all();
    }
}

impl Sleeper {
    /// The next completion; sleeps until there is one, and says whether it did.
    fn completion(&self, cq: &Cq) -> (Completion, bool) {
        let (mut out, mut slept) = ([Completion::default()], false);
        while cq.poll(&mut out) == 0 {
            if cq.arm(false).unwrap() {
                slept = true;
                self.sleep();
            }
        }
        (out[0], slept)
    }

    /// Until it is told.
    fn sleep(&self) {
        let until = Instant::now() + PATIENCE;
        let mut told = self.told.lock();
        while !*told {
            assert!(!self.changed.wait_until(&mut told, until).timed_out(), "nobody woke the sleeper");
        }
        *told = false;
    }
}

/// Puts another descriptor in the place of one that is in use.
fn replace(old: &OwnedFd, new: &OwnedFd) {
    // SAFETY: both are open; who uses the old one finds the new one there, and closes that.
    assert!(unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) } >= 0);
}

/// From now on this is the watch of a process that has died; the engine has not heard of it.
fn bury(watch: &PidWatch) {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let dead = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    child.wait().unwrap();
    replace(&watch.fd, &dead);
}

/// What was logged, by all tests of this program.
struct Log(Mutex<Vec<String>>);

static LOG: Log = Log(Mutex::new(Vec::new()));

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Did somebody log this?
fn said(text: &str) -> bool {
    LOG.0.lock().iter().any(|line| line.contains(text))
}

/// A base directory of its own for every test, gone when dropped.
struct Place(String);

impl Place {
    fn new(name: &str) -> Self {
        if log::set_logger(&LOG).is_ok() {
            log::set_max_level(log::LevelFilter::Warn);
        }
        Place(format!("/dev/shm/dapl-sm-test-{}-{name}", std::process::id()))
    }

    fn open(&self) -> Side {
        self.open_with("", Weak::<Deaf>::new())
    }

    /// With settings as in `ia_params`, and somebody to tell of completions.
    fn open_with(&self, settings: &str, sleeper: Weak<dyn CqSink>) -> Side {
        let sink = Arc::<Recorder>::default();
        let params = format!("{} {settings}", self.0);
        let ia = Sm::open(&IaSpec { name: "sm0", params: &params, library: "" }, sink.clone()).unwrap();
        let pd = ia.alloc_pd().unwrap();
        let cq = Arc::new(ia.create_cq(sleeper).unwrap());
        Side { ia, sink, pd, cq }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left in it, the tests of `ends` look at before.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Side {
    fn qp(&self) -> Qp {
        self.ia.create_qp(&self.pd, self.spec()).unwrap()
    }

    fn spec(&self) -> QpSpec<Sm> {
        QpSpec {
            ep: ObjectId::default(),
            shared: None,
            recv_cq: Some(self.cq.clone()),
            request_cq: Some(self.cq.clone()),
            max_recvs: 64,
            max_requests: 64,
            max_recv_iov: 4,
            max_request_iov: 4,
            max_reads_in: 4,
            max_reads_out: 4,
        }
    }

    fn register(&self, memory: &[u8]) -> Mr {
        let region = Region { address: memory.as_ptr() as u64, length: memory.len() as u64 };
        let all = Access { local_write: true, remote_read: true, remote_write: true };
        self.ia.register(&self.pd, region, all).unwrap()
    }

    /// The next completion.
    fn completion(&self) -> Completion {
        let until = Instant::now() + PATIENCE;
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out) == 0 {
            assert!(Instant::now() < until, "no completion");
            std::thread::yield_now();
        }
        out[0]
    }
}

fn conn(n: usize) -> ConnId {
    ConnId { ep: ObjectId { handle: n * 64, generation: 1 }, attempt: 1 }
}

fn here() -> PeerAddress {
    PeerAddress::Ip([127, 0, 0, 1].into())
}

fn segment(mr: &Mr, memory: &[u8]) -> Segment {
    Segment { key: mr.local_key(), pad: 0, address: memory.as_ptr() as u64, length: memory.len() as u64 }
}

fn token(cookie: u64) -> Token {
    Token { cookie, ..Token::default() }
}

fn wr(op: Op, segments: &[Segment], cookie: u64) -> SendWr<'_> {
    SendWr { op, segments, token: token(cookie), suppress: false, fence: false }
}

/// Two queue pairs, connected.
fn connected(a: &Side, b: &Side, qual: u64, n: usize) -> (Qp, Qp) {
    let listener = b.ia.listen(qual, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let (active, passive) = (a.qp(), b.qp());
    active.connect(&ConnectSpec { address: &here(), qual, private_data: b"hello" }, conn(n)).unwrap();
    let (request, info) = b.sink.request();
    assert_eq!(info.private_data, b"hello");
    request.accept(&passive, b"welcome", conn(n + 1)).unwrap();
    assert_eq!(a.sink.next(conn(n)), Heard::Established(b"welcome".to_vec()));
    assert_eq!(b.sink.next(conn(n + 1)), Heard::Established(vec![]));
    drop(listener);
    (active, passive)
}
