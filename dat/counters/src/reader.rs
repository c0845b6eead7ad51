//! Finds the processes of this host that publish counters, and reads their counters, for tools.
//!
//! Only processes of this user are queried. An answer is accepted only if the kernel reports that the answering process
//! belongs to the user in the socket's name. Up to `TOGETHER` processes are queried concurrently, with a limit on
//! time and memory for each, and for all together. A process that is stopped, dies during the query or sends invalid
//! data yields a [`ReadError`]; the results of other processes are returned nevertheless.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::socket::{self, PeerCredentials, SocketName};
use crate::text::{self, MOST, ParseError, Process};

/// Time limit for the answer of one process. A process serves one tool at a time, and a slow tool for at most a second
/// (`dapl::stats::publication`).
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Number of processes that are queried at the same time. Each query needs a file descriptor.
const TOGETHER: usize = 128;

/// Time limit of a run. After it no more processes are queried.
const RUN_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of bytes read in one run, from all processes together.
const CAPACITY: usize = 64 << 20;

/// A process that publishes counters.
#[derive(Debug)]
pub struct PublishedProcess {
    /// Process id, in the PID namespace of the process.
    pub pid: u32,
    /// Number of the socket in its process. Each provider library has its own socket, so a process with two libraries
    /// is listed twice.
    pub number: u32,
    /// Name of the process as `ps` shows it, even if the process does not answer. `None` if the connection failed, if
    /// the process has ended, or if the caller's PID namespace does not contain it.
    pub program: Option<String>,
    /// Counters of the process, or the reason why they could not be read.
    pub result: Result<Process, ReadError>,
}

/// Reason why the counters of a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The process does not answer, or does not finish its answer.
    #[error("no answer within {} s: the process is stopped, stuck, or short of CPU", ANSWER_LIMIT.as_secs())]
    Timeout,
    /// The accept queue of the process is full.
    #[error("too many queries wait for an answer: the process is stopped or stuck")]
    Busy,
    /// The process uses this other version of the format.
    #[error(
        "the process publishes its counters in version \"{0}\", which this program does not support: use the tools of \
         that version"
    )]
    Version(String),
    /// The process closed the connection before the end of the text.
    #[error("the process closed the connection early: it has ended, or closed its adapters")]
    Incomplete,
    /// The answer does not have the text format.
    #[error("the process sends invalid data: it does not use these libraries, or its memory is damaged")]
    Invalid,
    /// The answer is longer than [`MOST`], or the answers of this run together exceed the limit of a run.
    #[error(
        "the answer exceeds {} MiB, or all answers together exceed {} MiB, the limit of a sample",
        MOST >> 20,
        CAPACITY >> 20
    )]
    TooMuch,
    /// The process was not queried, because the time limit of the run had passed.
    #[error("not queried: the queries of other processes took {} s, the limit of a sample", RUN_LIMIT.as_secs())]
    Skipped,
    /// An error of the operating system.
    #[error("the process cannot be queried: {0}")]
    System(io::Error),
}

impl ReadError {
    /// Short identifier of the error, such as `busy`, for programs.
    pub fn identifier(&self) -> &'static str {
        match self {
            ReadError::Timeout => "silent",
            ReadError::Busy => "busy",
            ReadError::Version(_) => "version",
            ReadError::Incomplete => "cut",
            ReadError::Invalid => "nonsense",
            ReadError::TooMuch => "too-much",
            ReadError::Skipped => "skipped",
            ReadError::System(_) => "system",
        }
    }
}

impl From<ParseError> for ReadError {
    fn from(fault: ParseError) -> Self {
        match fault {
            ParseError::Version(version) => ReadError::Version(version),
            ParseError::Incomplete => ReadError::Incomplete,
            ParseError::Invalid => ReadError::Invalid,
        }
    }
}

/// Queries all processes of this user that publish counters in this network namespace, in the order of their ids.
/// Returns within 12 seconds (`RUN_LIMIT` plus `ANSWER_LIMIT`), and in milliseconds if every process answers.
///
/// Errors: the list of local sockets cannot be read.
pub fn processes() -> io::Result<Vec<PublishedProcess>> {
    let me = rustix::process::geteuid().as_raw();
    let list = std::fs::read("/proc/net/unix")?;
    let names = names(&String::from_utf8_lossy(&list), me);
    let (end, mut capacity) = (Instant::now() + RUN_LIMIT, CAPACITY);
    Ok(names.chunks(TOGETHER).flat_map(|some| ask(some, end, &mut capacity)).collect())
}

/// Finds the sockets of this user in the text of `/proc/net/unix`, where abstract names begin with `@`. Removes
/// duplicates, because a listener and its connections have the same name.
fn names(list: &str, uid: u32) -> Vec<SocketName> {
    let own =
        list.lines().filter_map(|line| SocketName::read(line.rsplit_once(" @")?.1)).filter(|name| name.uid == uid);
    let mut names: Vec<_> = own.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Queries these processes concurrently. Omits processes that have ended, and sockets whose name states a wrong user.
fn ask(names: &[SocketName], end: Instant, capacity: &mut usize) -> Vec<PublishedProcess> {
    let began = Instant::now();
    let is_late = began >= end;
    let start = |name: &SocketName| match connect(*name) {
        _ if is_late => Some(ProcessQuery::failed(*name, ReadError::Skipped)),
        Ok((socket, peer)) => {
            Some(ProcessQuery { name: *name, pid: peer.pid, socket: Some(socket), bytes: Vec::new(), error: None })
        }
        Err(ReadError::System(error)) if is_gone(&error) => None,
        Err(error) => Some(ProcessQuery::failed(*name, error)),
    };
    let mut queries: Vec<ProcessQuery> = names.iter().filter_map(start).collect();
    listen(&mut queries, began + ANSWER_LIMIT, capacity);
    queries.into_iter().map(ProcessQuery::found).collect()
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied)
}

fn connect(name: SocketName) -> Result<(OwnedFd, PeerCredentials), ReadError> {
    let socket = socket::connect(name).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => ReadError::Busy,
        _ => ReadError::System(error),
    })?;
    match socket::peer(&socket) {
        Ok(peer) if peer.uid == name.uid => Ok((socket, peer)),
        Ok(_) => Err(ReadError::System(io::ErrorKind::PermissionDenied.into())),
        Err(error) => Err(ReadError::System(error)),
    }
}

/// A query for the counters of one process.
struct ProcessQuery {
    name: SocketName,
    /// Process id of the queried process in this PID namespace, if it is known.
    pid: Option<u32>,
    /// The connection, until the answer is complete.
    socket: Option<OwnedFd>,
    bytes: Vec<u8>,
    error: Option<ReadError>,
}

impl ProcessQuery {
    fn failed(name: SocketName, error: ReadError) -> Self {
        ProcessQuery { name, pid: None, socket: None, bytes: Vec::new(), error: Some(error) }
    }

    /// Reads available bytes. Closes the connection when the answer is complete or too long, and after an error.
    fn take(&mut self, piece: &mut [u8], capacity: &mut usize) {
        let Some(socket) = &self.socket else { return };
        match rustix::net::recv(socket, &mut *piece, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.socket = None,
            Ok((count, _)) if self.bytes.len() + count <= MOST && count <= *capacity => {
                *capacity -= count;
                self.bytes.extend_from_slice(&piece[..count]);
            }
            Ok(_) => self.stop(ReadError::TooMuch),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The process closed its listening socket before it accepted this connection.
            Err(Errno::CONNRESET) => self.stop(ReadError::Incomplete),
            Err(error) => self.stop(ReadError::System(error.into())),
        }
    }

    fn stop(&mut self, error: ReadError) {
        (self.socket, self.bytes, self.error) = (None, Vec::new(), Some(error));
    }

    fn found(self) -> PublishedProcess {
        let result = match self.error {
            Some(error) => Err(error),
            None => text::read(&self.bytes).map_err(ReadError::from),
        };
        let program = self.pid.and_then(|pid| std::fs::read(format!("/proc/{pid}/comm")).ok());
        let program = program.map(|name| text::shown(String::from_utf8_lossy(&name).trim_end()));
        PublishedProcess { pid: self.name.pid, number: self.name.number, program, result }
    }
}

/// Reads the answers until every process has closed its connection or the deadline has passed. A process that has not
/// closed its connection by then gets [`ReadError::Timeout`].
fn listen(queries: &mut [ProcessQuery], deadline: Instant, capacity: &mut usize) {
    let mut piece = vec![0; 1 << 16];
    loop {
        let speaking: Vec<usize> = (0..queries.len()).filter(|at| queries[*at].socket.is_some()).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        if speaking.is_empty() || left.is_zero() {
            return speaking.into_iter().for_each(|at| queries[at].stop(ReadError::Timeout));
        }
        let mut fds: Vec<_> =
            queries.iter().filter_map(|one| one.socket.as_ref()).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                drop(fds);
                return speaking.into_iter().for_each(|at| queries[at].stop(ReadError::System(error.into())));
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let ready = speaking.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        ready.for_each(|(at, _)| queries[at].take(&mut piece, capacity));
    }
}

#[cfg(test)]
mod tests;
