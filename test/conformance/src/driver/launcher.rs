//! The driver's side of the fork server: starts it, sends it requests, and distributes its reports to the runs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::fork_server;
use crate::message::{Input, Report, Request};
use crate::worker::Task;

/// Channels to the runs, by number of the run; `None` after the fork server has ended.
type Runs = Mutex<Option<BTreeMap<usize, Sender<Report>>>>;

/// A connection to a fork server. The drop ends the fork server.
pub(super) struct Launcher {
    server: Mutex<Child>,
    socket: Mutex<UnixStream>,
    runs: Arc<Runs>,
    receiver: Option<JoinHandle<()>>,
}

impl Launcher {
    /// Starts the fork server.
    pub(super) fn new() -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        // Cases connect thousands of times to a qualifier without a listener. By default the verbs provider retries
        // such a connect for 50 ms before it rejects the connect.
        command.env("DAPL_LISTENER_WAIT_MS", "0");
        let server = command.arg(fork_server::WORD).stdin(Stdio::from(OwnedFd::from(other))).spawn()?;
        let runs = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let (from, to) = (socket.try_clone()?, Arc::clone(&runs));
        let receiver = std::thread::Builder::new().spawn(move || distribute(from, &to))?;
        Ok(Launcher { server: server.into(), socket: socket.into(), runs, receiver: Some(receiver) })
    }

    /// Starts the processes of a run, and returns the reports about them.
    pub(super) fn start(&self, run: usize, tasks: Vec<Task>) -> io::Result<Receiver<Report>> {
        let (sender, reports) = mpsc::channel();
        match &mut *self.runs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(runs) => runs.insert(run, sender),
            None => return Err(self.ended()),
        };
        self.send(&Request::Start(run, tasks))?;
        Ok(reports)
    }

    /// Kills the processes of a run. Their ends are reported as usual.
    pub(super) fn kill(&self, run: usize) -> io::Result<()> {
        self.send(&Request::Kill(run))
    }

    /// Stops the reports about a run.
    pub(super) fn forget(&self, run: usize) {
        if let Some(runs) = &mut *self.runs.lock().unwrap_or_else(PoisonError::into_inner) {
            runs.remove(&run);
        }
    }

    /// Waits until the fork server has exited, and returns its status as an error.
    pub(super) fn ended(&self) -> io::Error {
        match self.server.lock().unwrap_or_else(PoisonError::into_inner).wait() {
            Ok(status) => io::Error::other(format!("the fork server ended early ({status})")),
            Err(error) => error,
        }
    }

    fn send(&self, request: &Request) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        request.send(&mut *socket).map_err(|_| self.ended())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The fork server ends when it reads the end of the socket.
        let _ = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
        let _ = self.receiver.take().map(JoinHandle::join);
        let _ = self.server.get_mut().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// Passes on the reports until the fork server ends. Then no receiver gets further reports.
fn distribute(mut socket: UnixStream, runs: &Runs) {
    let mut input = Input::default();
    while input.read(&mut socket).unwrap_or(false) {
        while let Some(words) = input.next() {
            let Some((run, report)) = Report::from_words(&words) else { continue };
            let all = runs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(to) = all.as_ref().and_then(|all| all.get(&run)) {
                // The receiver may have given up.
                let _ = to.send(report);
            }
        }
    }
    *runs.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
