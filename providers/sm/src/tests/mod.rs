//! Tests of the provider through its interface to dapl: two IAs in one process, with a sink that records events.
//!
//! In most files both peers are correct. Malicious peers are in the files of invalid data, invalid offers and changing
//! tables, and in single tests of `eager_writes`, `exports`, `extensions`, `fifo` and `long_sends`. Some files use a
//! second process (`other_process`): it is hostile in `hostile_processes`, and it ends or stops in `killed_processes`,
//! `stopped_processes` and `copies_of_killed_peers`, mostly at one of the `fail_points`. `sleeping_receivers` sleeps
//! and wakes many times; `knem` uses a fake device. All tests run without libdat and without dapl's objects.

mod base_directory;
mod changing_tables;
mod connection_ends;
mod copies_of_killed_peers;
mod eager_writes;
mod exports;
mod extensions;
pub(crate) mod fail_points;
mod fast_path;
mod fifo;
mod hostile_processes;
mod invalid_data;
mod invalid_offers;
mod killed_processes;
mod knem;
mod listener_retry;
mod long_sends;
mod long_writes;
mod other_process;
mod requirements;
mod sleeping_receivers;
mod srq;
mod stopped_processes;
mod windows;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::*;
use dapl::runtime::handle::ObjectId;
use parking_lot::{Condvar, Mutex};

use crate::qp::link::PidWatch;
use crate::{ConnectionRequest, Cq, Mr, Qp, Sm};

/// Time limit of a wait in a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// All access rights except atomic operations.
const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, zero_based: false };

/// A report that the sink received.
#[derive(Debug, Eq, PartialEq)]
enum SinkEvent {
    Established(Vec<u8>),
    Rejected(Vec<u8>),
    Other(&'static str),
}

/// A sink that records all reports.
#[derive(Default)]
struct Recorder {
    events: Mutex<VecDeque<(ConnId, SinkEvent)>>,
    requests: Mutex<VecDeque<(ConnectionRequest, RequestInfo)>>,
    changed: Condvar,
}

impl CmSink<Sm> for Recorder {
    fn request(&self, _: ObjectId, request: ConnectionRequest, info: RequestInfo) -> Result<(), ConnectionRequest> {
        self.requests.lock().push_back((request, info));
        self.wake();
        Ok(())
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        let recorded = match event {
            ConnectionEvent::Established => SinkEvent::Established(private_data.to_vec()),
            ConnectionEvent::PeerRejected if !private_data.is_empty() => SinkEvent::Rejected(private_data.to_vec()),
            ConnectionEvent::PeerRejected => SinkEvent::Other("peer rejected"),
            ConnectionEvent::Rejected => SinkEvent::Other("rejected"),
            ConnectionEvent::Unreachable => SinkEvent::Other("unreachable"),
            ConnectionEvent::AcceptFailed => SinkEvent::Other("accept failed"),
            ConnectionEvent::Disconnected => SinkEvent::Other("disconnected"),
            ConnectionEvent::Broken => SinkEvent::Other("broken"),
            ConnectionEvent::TimedOut => SinkEvent::Other("timed out"),
        };
        self.events.lock().push_back((conn, recorded));
        self.wake();
    }

    fn many_recvs(&self, ep: ObjectId) {
        self.events.lock().push_back((ConnId { ep, attempt: 0 }, SinkEvent::Other("many receives")));
        self.wake();
    }
}

impl Recorder {
    fn wake(&self) {
        drop(self.events.lock());
        self.changed.notify_all();
    }

    /// Waits for the next event of this connection.
    fn next(&self, conn: ConnId) -> SinkEvent {
        let until = Instant::now() + PATIENCE;
        let mut events = self.events.lock();
        loop {
            if let Some(index) = events.iter().position(|(of, _)| *of == conn) {
                return events.remove(index).unwrap().1;
            }
            assert!(!self.changed.wait_until(&mut events, until).timed_out(), "no event for {conn:?}");
        }
    }

    fn request(&self) -> (ConnectionRequest, RequestInfo) {
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

/// An IA with the PD and the CQ that its queue pairs use, and a record of its events.
struct Side {
    ia: Sm,
    sink: Arc<Recorder>,
    pd: crate::Pd,
    cq: Arc<Cq>,
}

/// A sink that ignores notifications, because these tests poll.
struct IgnoreNotifications;

impl CqSink for IgnoreNotifications {
    fn notify(&self) {}
}

/// A thread that sleeps until a completion queue notifies it.
#[derive(Default)]
struct Sleeper {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl CqSink for Sleeper {
    fn notify(&self) {
        *self.notified.lock() = true;
        self.changed.notify_all();
    }
}

impl Sleeper {
    /// Returns the next completion, and whether the thread slept until it arrived.
    fn completion(&self, cq: &Cq) -> (Completion, bool) {
        let (mut out, mut slept) = ([Completion::default()], false);
        while cq.poll(&mut out) == 0 {
            if cq.arm(ArmMode::All).unwrap() {
                slept = true;
                self.sleep();
            }
        }
        (out[0], slept)
    }

    /// Sleeps until the completion queue notifies the thread.
    fn sleep(&self) {
        let until = Instant::now() + PATIENCE;
        let mut notified = self.notified.lock();
        while !*notified {
            assert!(!self.changed.wait_until(&mut notified, until).timed_out(), "the sleeper was not woken");
        }
        *notified = false;
    }
}

/// Replaces an open descriptor by a duplicate of another descriptor.
fn replace(old: &OwnedFd, new: &OwnedFd) {
    // SAFETY: both descriptors are open. Users of the old number then use the new file, and close it.
    assert!(unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) } >= 0);
}

/// Replaces the watch of a process by the watch of a dead process, without notifying the engine.
fn mark_dead(watch: &PidWatch) {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let dead = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    child.wait().unwrap();
    replace(&watch.fd, &dead);
}

/// Log lines of all tests of this program.
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

/// Whether a line that contains `text` was logged.
fn was_logged(text: &str) -> bool {
    LOG.0.lock().iter().any(|line| line.contains(text))
}

/// A base directory per test, removed when dropped.
struct TestBase(String);

impl TestBase {
    fn new(name: &str) -> Self {
        if log::set_logger(&LOG).is_ok() {
            log::set_max_level(log::LevelFilter::Warn);
        }
        TestBase(format!("/dev/shm/dapl-sm-test-{}-{name}", std::process::id()))
    }

    fn open(&self) -> Side {
        self.open_with("", Weak::<IgnoreNotifications>::new())
    }

    /// Opens an IA with these settings, in the format of `ia_params`. Its completion queues notify `sleeper`.
    fn open_with(&self, settings: &str, sleeper: Weak<dyn CqSink>) -> Side {
        let sink = Arc::<Recorder>::default();
        let params = format!("{} {settings}", self.0);
        let ia = Sm::open(&IaSpec { name: "sm0", params: &params, library: "" }, sink.clone()).unwrap();
        let pd = ia.alloc_pd().unwrap();
        let cq = Arc::new(ia.create_cq(sleeper).unwrap());
        Side { ia, sink, pd, cq }
    }
}

impl Drop for TestBase {
    fn drop(&mut self) {
        // A test that checks the content of the directory does this before it drops the base.
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
        self.ia.register(&self.pd, region, ALL).unwrap()
    }

    /// Polls for the next completion.
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
    // `announced` is true, as in posts by dapl. A deregistration does not wait for these posts, but no test deregisters
    // memory during a post.
    SendWr { op, segments, token: token(cookie), suppress: false, fence: false, announced: true }
}

/// Returns two connected queue pairs.
fn connected(a: &Side, b: &Side, qual: u64, n: usize) -> (Qp, Qp) {
    connect_qps(a, b, qual, n, (a.qp(), b.qp()))
}

/// Connects the first queue pair, of `a`, to the second, of `b`.
fn connect_qps(a: &Side, b: &Side, qual: u64, n: usize, (active, passive): (Qp, Qp)) -> (Qp, Qp) {
    let listener = b.ia.listen(qual, ObjectId { handle: 4096, generation: 1 }).unwrap();
    active.connect(&ConnectSpec { address: &here(), qual, private_data: b"hello" }, conn(n)).unwrap();
    let (request, info) = b.sink.request();
    assert_eq!(info.private_data, b"hello");
    request.accept(&passive, b"welcome", conn(n + 1)).unwrap();
    assert_eq!(a.sink.next(conn(n)), SinkEvent::Established(b"welcome".to_vec()));
    assert_eq!(b.sink.next(conn(n + 1)), SinkEvent::Established(vec![]));
    drop(listener);
    (active, passive)
}
