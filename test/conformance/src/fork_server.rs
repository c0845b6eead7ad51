//! The fork server: a process that starts the processes under test by fork, and reports their ends to the driver.
//!
//! To execute the driver's program and link it dynamically takes 1.5 ms of processor time, as much as a short case. The
//! fork server does this once. It has one thread, has not loaded the library under test, and has created all cases. So
//! a child is like a new process, except that all children have the same address layout. So each child shifts the
//! addresses of its later allocations.
//!
//! The driver starts the fork server with a socket as standard input. The fork server ends when the driver closes the
//! socket or ends; its end kills the children.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{ExitCode, ExitStatus};

use crate::message::{Input, Report, Request};
use crate::worker::{self, Task};
use crate::{cases, os};

/// The argument that selects this process.
pub(crate) const WORD: &str = "fork-server";

/// Runs the fork server, and in each of its children a role.
pub(crate) fn main() -> ExitCode {
    os::die_with_parent();
    let cases = cases::all().leak();
    let served = Server::new().and_then(|mut server| server.serve());
    match served {
        Ok(Some(task)) => worker::main(&task, cases),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dapl-conformance fork-server: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Server {
    socket: UnixStream,
    input: Input,
    signals: os::ChildSignals,
    /// Children that have not ended, by process id: their run and the index of their task in it.
    running: BTreeMap<u32, (usize, usize)>,
}

impl Server {
    fn new() -> io::Result<Self> {
        Ok(Server {
            socket: io::stdin().as_fd().try_clone_to_owned()?.into(),
            input: Input::default(),
            signals: os::ChildSignals::block()?,
            running: BTreeMap::new(),
        })
    }

    /// Serves the driver until it closes the socket. In a forked child, returns the child's task.
    fn serve(&mut self) -> io::Result<Option<Task>> {
        loop {
            let has_input = self.signals.wait(self.socket.as_fd())?;
            self.report_ended()?;
            if !has_input {
                continue;
            }
            if !self.input.read(&mut self.socket)? {
                return Ok(None);
            }
            while let Some(words) = self.input.next() {
                match Request::from_words(&words).ok_or_else(|| io::Error::other("invalid request"))? {
                    Request::Kill(run) => self.kill(run),
                    Request::Start(run, tasks) => {
                        if let Some(task) = self.start(run, tasks)? {
                            return Ok(Some(task));
                        }
                    }
                }
            }
        }
    }

    fn report_ended(&mut self) -> io::Result<()> {
        while let Some((id, status)) = os::ended_child() {
            if let Some((run, process)) = self.running.remove(&id) {
                Report::Ended(process, ExitStatus::from_raw(status)).send(run, &mut self.socket)?;
            }
        }
        Ok(())
    }

    fn kill(&self, run: usize) {
        self.running.iter().filter(|(_, (of, _))| *of == run).for_each(|(id, _)| os::kill_group(*id));
    }

    /// Starts the processes of a run. In a forked child, returns the child's task.
    fn start(&mut self, run: usize, tasks: Vec<Task>) -> io::Result<Option<Task>> {
        let report = match self.fork_all(run, tasks) {
            Ok(Side::Child(task)) => return Ok(Some(task)),
            Ok(Side::Parent(ids)) => Report::Started(ids),
            Err(error) => {
                self.kill(run);
                self.running.retain(|_, (of, _)| *of != run);
                Report::Failed(error.to_string())
            }
        };
        report.send(run, &mut self.socket)?;
        Ok(None)
    }

    /// Forks a child per task. Two children are connected by a socket pair.
    fn fork_all(&mut self, run: usize, tasks: Vec<Task>) -> io::Result<Side> {
        let (one, other) = UnixStream::pair()?;
        let mut ids = Vec::new();
        for (index, (task, channel)) in tasks.into_iter().zip([one, other]).enumerate() {
            let Some(id) = fork(&task, channel.into())? else { return Ok(Side::Child(task)) };
            self.running.insert(id, (run, index));
            ids.push(id);
        }
        Ok(Side::Parent(ids))
    }
}

/// The process that returns from the forks of a run.
enum Side {
    /// The fork server, with the ids of the children.
    Parent(Vec<u32>),
    /// The child for this task.
    Child(Task),
}

/// Forks a child for a task, and returns its process id, or `None` in the child. The child has a process group of its
/// own, `channel` as standard input, and the task's output file as output.
fn fork(task: &Task, channel: OwnedFd) -> io::Result<Option<u32>> {
    let output = File::create(task.output())?.into();
    let server = std::process::id();
    let child = os::fork()?;
    if child.is_none() {
        os::die_with_parent();
        if parent_id() != server {
            os::leave(1);
        }
        os::lead_group();
        os::replace_standard_streams(&channel, &output);
        os::shift_addresses();
    }
    Ok(child)
}
