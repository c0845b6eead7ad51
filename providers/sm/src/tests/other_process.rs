//! Starts a second process for tests: this test program again, with its own IA and a role that the test selects. It
//! runs until it is killed or its role ends.
//!
//! In the roles `connects`, `parts` and `listens`, both processes use `Traffic`: sends of several lengths, RDMA writes
//! and RDMA reads at the same time, each of which must complete once and in order.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::fail_points::PLAN;
use super::*;

/// Environment variable with the role and the base directory of the second process: `<role> <base directory>`.
const ROLE: &str = "DAPL_SM_TEST_ROLE";
/// Qualifier of the listening process.
pub(super) const QUAL: u64 = 7;

/// Length of a transfer in bytes. The kernel copies it in more than two calls.
const BIG_BYTES: usize = 1_200_000;
/// Length of a message in bytes. It is sent in several fragments through the message buffer, and has more segments than
/// a rendezvous offer can name.
const FRAGMENTS_BYTES: usize = 40_000;
const SEGMENTS: usize = 8;
/// Number of posted receives, and of outstanding requests.
const RECVS: u64 = 8;
const REQUESTS: u64 = 5;
/// Flag that marks the cookie of a receive.
const RECV: u64 = 1 << 32;

/// The second process; it is killed when this object is dropped.
pub(super) struct Other(Child);

impl Other {
    /// Starts the process. `plan`: where it is killed or stopped, in the format of [`PLAN`], or empty.
    pub(super) fn start(role: &str, base: &TestBase, plan: &str, settings: &[(&str, &str)]) -> Self {
        Self::run(Command::new(std::env::current_exe().unwrap()), role, base, plan, settings)
    }

    /// Starts the process as the first process of a new pid namespace, so that its end point always has the name `1/1`.
    /// `None`: not permitted.
    pub(super) fn start_as_first(role: &str, base: &TestBase) -> Option<Self> {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            command
        };
        if !unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = unshare();
        command.arg(std::env::current_exe().unwrap());
        Some(Self::run(command, role, base, "", &[]))
    }

    fn run(mut command: Command, role: &str, base: &TestBase, plan: &str, settings: &[(&str, &str)]) -> Self {
        command.args(["--exact", "tests::other_process::child_process_runs_its_role", "--ignored", "--nocapture"]);
        // Disables the measurement of copies: the measurement passes fail points itself, and could choose a method that
        // passes none.
        command.env("DAPL_TEST_UNTIMED", "1");
        command.env(ROLE, format!("{role} {}", base.0)).envs(settings.iter().copied());
        if !plan.is_empty() {
            command.env(PLAN, plan);
        }
        Other(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Returns the exit status, if the process has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits until the process has ended.
    pub(super) fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < until, "the other process does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the first process of the namespace, and waits until it has ended.
    pub(super) fn kill_inner(&mut self) {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        let inner = std::fs::read_to_string(children).unwrap().trim().to_owned();
        let inner = rustix::process::Pid::from_raw(inner.parse().unwrap()).unwrap();
        rustix::process::kill_process(inner, rustix::process::Signal::KILL).unwrap();
        self.end(); // The process `unshare` ends after the killed process.
    }

    pub(super) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }

    /// Continues the stopped process by SIGCONT.
    pub(super) fn go_on(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::CONT).unwrap();
    }

    /// Whether a signal has stopped the process.
    pub(super) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the process was ended by SIGKILL.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// A queue pair, its memory, and the numbers of posted and completed requests.
pub(super) struct Traffic {
    pub(super) qp: Qp,
    pub(super) conn: ConnId,
    // The registration is the first member, so it is dropped before its memory, which the peer may be writing.
    out: (Mr, Vec<u8>),
    into: (Mr, Vec<u8>),
    target: (Mr, Vec<u8>),
    remote: Option<Remote>,
    recvs: WorkCounts,
    requests: WorkCounts,
    events: Vec<SinkEvent>,
}

#[derive(Debug, Default)]
struct WorkCounts {
    posted: u64,
    done: u64,
    failed: bool,
}

impl WorkCounts {
    /// Checks that completions arrive in order and once, and that only flushes follow a failure.
    fn settle(&mut self, number: u64, status: Status) {
        assert_eq!(number, self.done, "{self:?}: {status:?}");
        assert!(number < self.posted, "{self:?}: {status:?}");
        assert!(!self.failed || status == Status::Flushed, "{self:?}: {status:?}");
        self.failed |= status != Status::Success;
        self.done += 1;
    }

    fn is_complete(&self) -> bool {
        self.posted == self.done
    }
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Traffic { conn, recvs, requests, events, .. } = self;
        f.debug_struct("Traffic")
            .field("conn", conn)
            .field("recvs", recvs)
            .field("requests", requests)
            .field("events", events)
            .finish_non_exhaustive()
    }
}

impl Traffic {
    pub(super) fn new(side: &Side, conn: ConnId) -> Self {
        let memory = |length: usize| {
            let bytes = vec![1u8; length];
            let mr = side.register(&bytes);
            (mr, bytes)
        };
        let (out, into, target) = (memory(BIG_BYTES), memory(BIG_BYTES), memory(BIG_BYTES));
        let (recvs, requests) = (WorkCounts::default(), WorkCounts::default());
        let mut new =
            Traffic { qp: side.qp(), conn, out, into, target, remote: None, recvs, requests, events: Vec::new() };
        new.post_recvs();
        new
    }

    /// Returns the key and the address of the memory for the peer's RDMA, as private data.
    pub(super) fn card(&self) -> Vec<u8> {
        let (mr, memory) = &self.target;
        [&mr.remote_key().to_le_bytes()[..], &(memory.as_ptr() as u64).to_le_bytes()].concat()
    }

    pub(super) fn knows(&mut self, card: &[u8]) {
        self.remote = Some(on(card));
    }

    pub(super) fn connect(&self, address: &PeerAddress) {
        self.qp.connect(&ConnectSpec { address, qual: QUAL, private_data: &self.card() }, self.conn).unwrap();
    }

    /// Handles events. While the connection is established, keeps [`RECVS`] receives and [`REQUESTS`] requests posted.
    /// Takes completions.
    pub(super) fn go_on(&mut self, side: &Side) {
        while let Some(event) = take_event(side, self.conn) {
            if let SinkEvent::Established(card) = &event {
                assert!(self.events.is_empty(), "{:?}, then {event:?}", self.events);
                // The passive process received the peer's key with the request.
                if !card.is_empty() {
                    self.knows(card);
                }
            } else {
                assert!(!self.has_ended(), "{:?}, then {event:?}", self.events);
            }
            self.events.push(event);
        }
        if self.is_established() && !self.has_ended() {
            self.post_recvs();
            while self.requests.posted - self.requests.done < REQUESTS {
                self.post_request();
            }
        }
        let mut out = [Completion::default(); 16];
        let count = side.cq.poll(&mut out);
        for Completion { token, status, .. } in &out[..count] {
            match token.cookie & RECV {
                0 => self.requests.settle(token.cookie, *status),
                _ => self.recvs.settle(token.cookie ^ RECV, *status),
            }
        }
    }

    pub(super) fn is_established(&self) -> bool {
        matches!(self.events.first(), Some(SinkEvent::Established(_)))
    }

    /// Whether the last event of the connection has arrived.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.events.last(), Some(SinkEvent::Other(_)))
    }

    /// Whether the connection has ended and all posted work is complete.
    pub(super) fn is_settled(&self) -> bool {
        self.has_ended() && self.recvs.is_complete() && self.requests.is_complete()
    }

    /// Number of completed requests.
    pub(super) fn done(&self) -> u64 {
        self.requests.done
    }

    fn post_recvs(&mut self) {
        while self.recvs.posted - self.recvs.done < RECVS {
            let (mr, memory) = &self.into;
            self.qp.post_recv(&[segment(mr, memory)], token(RECV | self.recvs.posted)).unwrap();
            self.recvs.posted += 1;
        }
    }

    fn post_request(&mut self) {
        let number = self.requests.posted;
        let Some(remote) = self.remote else { return };
        self.post(remote, number);
        self.requests.posted += 1;
    }

    /// Posts a receive and a request that are not counted. If the receive queue is full, posts only the request.
    pub(super) fn post_blindly(&self, card: &[u8], number: u64) {
        let _ = self.qp.post_recv(&[], token(RECV));
        self.post(on(card), number);
    }

    fn post(&self, remote: Remote, number: u64) {
        let (mr, memory) = &self.out;
        let send = Op::Send { solicited: false };
        let (op, length, segments) = match number % 6 {
            0 => (send, 64, 1),
            1 => (send, FRAGMENTS_BYTES, SEGMENTS),
            2 => (Op::Write(remote), BIG_BYTES, 1),
            3 => (Op::Read(remote), BIG_BYTES, 1),
            4 => (Op::Write(remote), 200, 1), // Eager if both processes poll.
            _ => (send, BIG_BYTES, 1),
        };
        if number % 6 == 4 {
            self.qp.0.permit_eager_writes(true); // Without a pause after earlier reclaims.
        }
        let list: Vec<_> = memory[..length].chunks(length / segments).map(|part| segment(mr, part)).collect();
        self.qp.post_send(&wr(op, &list, number)).unwrap();
    }
}

/// Decodes the key and the address of the peer's memory from private data.
pub(super) fn on(card: &[u8]) -> Remote {
    let key = u32::from_le_bytes(card[..4].try_into().unwrap());
    Remote { key, address: u64::from_le_bytes(card[4..12].try_into().unwrap()) }
}

pub(super) fn take_event(side: &Side, conn: ConnId) -> Option<SinkEvent> {
    let mut events = side.sink.events.lock();
    let index = events.iter().position(|(of, _)| *of == conn)?;
    events.remove(index).map(|(_, recorded)| recorded)
}

/// Main function of the second process.
#[test]
#[ignore = "is the other process of other tests"]
fn child_process_runs_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, base) = role.split_once(' ').unwrap();
    // The parent process removes the directory.
    let base = std::mem::ManuallyDrop::new(TestBase(base.into()));
    match role {
        "listens" => listens(&base),
        "connects" => connects(&base, u64::MAX),
        "parts" => connects(&base, 9),
        "writes_invalid_data" => hostile_processes::writes_invalid_data(&base),
        "changes-user" => hostile_processes::changes_user(&base),
        "visits" => visits(&base),
        "offers" => copies_of_killed_peers::offers(&base),
        "copies" => copies_of_killed_peers::copies(&base),
        "haunts" => (0..60).for_each(|_| visits(&base)),
        _ => panic!("{role}"),
    }
}

/// Repeats `go_on` until it returns false. Usually the process is killed earlier. Fails after a time limit.
pub(super) fn while_young(mut go_on: impl FnMut() -> bool) {
    let until = Instant::now() + 3 * PATIENCE;
    while go_on() {
        assert!(Instant::now() < until, "this process was not ended");
    }
}

fn listens(base: &TestBase) {
    let side = base.open();
    let _listener = side.ia.listen(QUAL, ObjectId { handle: 4096, generation: 1 }).unwrap();
    let (mut traffic, mut attempts) = (None::<Traffic>, 0);
    while_young(|| {
        // A connection attempt that failed is not counted.
        if traffic.as_ref().is_some_and(|traffic| traffic.is_settled() && !traffic.is_established()) {
            traffic = None;
        }
        let request = if traffic.is_none() { side.sink.requests.lock().pop_front() } else { None };
        if let Some((request, info)) = request {
            attempts += 1;
            let mut new = Traffic::new(&side, ConnId { attempt: attempts, ..conn(1) });
            new.knows(&info.private_data);
            request.accept(&new.qp, &new.card(), new.conn).unwrap();
            traffic = Some(new);
        }
        traffic.iter_mut().for_each(|traffic| traffic.go_on(&side));
        !traffic.as_ref().is_some_and(|traffic| traffic.is_settled() && traffic.is_established())
    });
}

/// Connects, and retries until there is a listener. Ends after `enough` requests.
fn connects(base: &TestBase, enough: u64) {
    let side = base.open();
    let mut traffic = Traffic::new(&side, conn(1));
    traffic.connect(&here());
    while_young(|| {
        traffic.go_on(&side);
        if traffic.requests.done > enough {
            traffic.qp.abort();
            return false;
        }
        if traffic.has_ended() && !traffic.is_established() {
            traffic = Traffic::new(&side, ConnId { attempt: traffic.conn.attempt + 1, ..traffic.conn });
            traffic.connect(&here());
        }
        !traffic.is_settled()
    });
}

fn visits(base: &TestBase) {
    let side = base.open();
    // Processes with this role run at the same time, so each listens on its own qualifier.
    let listener =
        side.ia.listen(QUAL + u64::from(std::process::id()), ObjectId { handle: 4096, generation: 1 }).unwrap();
    drop((listener, side));
}
