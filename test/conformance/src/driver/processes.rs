//! The processes of a case: waits for their end, kills those that hang, and describes failures.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::launcher::Launcher;
use crate::ctx::NO_ANSWER;
use crate::flight::{self, Record, Seen};
use crate::message::Report;
use crate::names;
use crate::worker::{Ending, GRACE, Task};

/// A failure report shows at most this many steps, DAT calls and lines of output: the last ones.
const REPORT_LINES: usize = 10;
/// Additional time for the report of a process that has ended just before the deadline. On a busy machine, and after the
/// machine was suspended, the report arrives later than the deadline.
const LATE_REPORT: Duration = Duration::from_millis(500);

struct Process {
    task: Task,
    id: u32,
    status: Option<ExitStatus>,
}

/// The processes of a run.
pub(super) struct Processes<'a> {
    launcher: &'a Launcher,
    run: usize,
    reports: Receiver<Report>,
    all: Vec<Process>,
    /// Reason for which the processes could not be started.
    refused: Option<String>,
}

impl<'a> Processes<'a> {
    /// Starts the processes.
    pub(super) fn start(launcher: &'a Launcher, run: usize, tasks: Vec<Task>) -> io::Result<Self> {
        let reports = launcher.start(run, tasks.clone())?;
        let all = tasks.into_iter().map(|task| Process { task, id: 0, status: None }).collect();
        Ok(Processes { launcher, run, reports, all, refused: None })
    }

    /// Waits for the processes. After one process has failed, the other gets a short time to end. A case hangs if it
    /// neither ends nor reports a step for `seconds`; then its processes are described and killed. `time_factor`
    /// multiplies `seconds` for a slow machine.
    pub(super) fn watch(&mut self, seconds: u64, time_factor: u32) -> io::Result<Option<String>> {
        let limit = Duration::from_secs(seconds) * time_factor;
        let mut deadline = Instant::now() + limit;
        let mut has_failed = false;
        let mut steps = 0;
        while self.is_running() {
            if self.receive(deadline.saturating_duration_since(Instant::now()))? || self.receive(LATE_REPORT)? {
                if !has_failed && self.has_failed() {
                    has_failed = true;
                    deadline = deadline.min(Instant::now() + GRACE * time_factor);
                }
                continue;
            }
            let reported = self.all.iter().map(|process| flight::length_of_steps(&process.task.record)).sum();
            if !has_failed && reported > steps {
                (steps, deadline) = (reported, Instant::now() + limit);
                continue;
            }
            let running = self.all.iter().filter(|process| process.status.is_none() || !has_failed);
            let hang = running.map(describe_hang).collect::<Vec<_>>().join("\n");
            self.end()?;
            return Ok(Some(hang));
        }
        Ok(None)
    }

    fn is_running(&self) -> bool {
        self.refused.is_none() && self.all.iter().any(|process| process.status.is_none())
    }

    fn has_failed(&self) -> bool {
        self.all.iter().any(|process| process.status.is_some_and(|status| !status.success()))
    }

    /// Waits for a report, and returns whether one has arrived in time.
    fn receive(&mut self, time: Duration) -> io::Result<bool> {
        match self.reports.recv_timeout(time) {
            Ok(Report::Started(ids)) => self.all.iter_mut().zip(ids).for_each(|(process, id)| process.id = id),
            Ok(Report::Ended(index, status)) => self.all[index].status = Some(status),
            Ok(Report::Failed(why)) => self.refused = Some(why),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => return Err(self.launcher.ended()),
        }
        Ok(true)
    }

    /// Kills the processes that have not ended, and waits for them.
    fn end(&mut self) -> io::Result<()> {
        self.launcher.kill(self.run)?;
        while self.is_running() {
            self.receive(Duration::MAX)?;
        }
        Ok(())
    }

    /// Combines the results of all processes.
    pub(super) fn ending(&self, hang: Option<String>) -> Ending {
        if let Some(why) = &self.refused {
            return Ending::Failed(format!("cannot start its processes: {why}"));
        }
        let ending = self.all.iter().map(ending_of).fold(Ending::Passed, Ending::worse);
        match (ending, hang) {
            (Ending::Followed, None) => {
                Ending::Failed("killed by another process, or by the kernel if memory ran out".to_owned())
            }
            (ending, None) => ending,
            // If one role got no message, the current DAT call of its partner shows the reason.
            (Ending::Failed(why), Some(text)) if why.contains(NO_ANSWER) => Ending::Failed(format!("{why}\n{text}")),
            (Ending::Failed(why), Some(_)) => Ending::Failed(why),
            (_, Some(text)) => Ending::Failed(format!("HANGS\n{text}")),
        }
    }

    /// Returns what the processes have observed.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.all.iter().flat_map(|process| Record::read(&process.task.record).seen()).collect()
    }
}

impl Drop for Processes<'_> {
    fn drop(&mut self) {
        self.launcher.forget(self.run);
    }
}

fn ending_of(process: &Process) -> Ending {
    let text = fs::read_to_string(process.task.ending()).unwrap_or_default();
    let (written, role) = (Ending::from_text(&text), process.task.role.word());
    let status = process.status.unwrap_or_default();
    let ending = match (written, status.signal()) {
        (Some(Ending::Died), Some(libc::SIGKILL)) => Ending::Passed,
        (Some(ending @ Ending::Failed(_)), _) => ending,
        // Usually the driver killed this process, because its partner had failed or the case hung. `ending` reports
        // other causes.
        (_, Some(libc::SIGKILL)) => Ending::Followed,
        (Some(_), Some(signal)) => Ending::Failed(format!(
            "{role}: signal {signal} after it had written its result{}",
            describe_last_call(process)
        )),
        (None, Some(signal)) => Ending::Failed(format!("{role}: signal {signal}{}", describe_last_call(process))),
        (Some(ending), None) if status.success() || ending == Ending::Followed => ending,
        (_, None) => Ending::Failed(format!("{role}: {status}{}", describe_last_call(process))),
    };
    match ending {
        Ending::Failed(why) => Ending::Failed(why + &describe_threads(process) + &process_output(process)),
        ending => ending,
    }
}

/// Lists the threads that were inside a DAT function when the process failed.
fn describe_threads(process: &Process) -> String {
    let inside = Record::read(&process.task.record).inside();
    inside.iter().map(|(thread, function, _)| format!("\n    thread {thread} was in {function}")).collect()
}

/// Last lines of the output of the process, which includes the library's log.
fn process_output(process: &Process) -> String {
    let text = fs::read_to_string(process.task.output()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(REPORT_LINES)..]
        .iter()
        .map(|line| format!("\n    {}| {line}", process.task.role.word()))
        .collect()
}

/// Last DAT call and last step of a process that crashed.
fn describe_last_call(process: &Process) -> String {
    let record = Record::read(&process.task.record);
    let call = record
        .calls(1)
        .into_iter()
        .map(|(_, function, code, _)| format!(", last {function} = {}", names::of_code(code)));
    let step = record.steps(1).into_iter().map(|step| format!(", at {step:?}"));
    call.chain(step).collect()
}

/// Describes a hanging process: the current and the last DAT calls, the last steps, the system call of each thread, and
/// the output.
fn describe_hang(process: &Process) -> String {
    use std::fmt::Write;
    let (id, record) = (process.id, Record::read(&process.task.record));
    let state = match process.status {
        Some(status) => format!("{status}"),
        None => "still running".to_owned(),
    };
    let mut text = format!("    {} (process {id}, {state})", process.task.role.word());
    for (thread, function, time) in record.inside() {
        let _ = write!(text, "\n      thread {thread} in {function} for {:.3} s", time.as_secs_f64());
    }
    for step in record.steps(REPORT_LINES) {
        let _ = write!(text, "\n      step {step}");
    }
    for (thread, function, code, ago) in record.calls(REPORT_LINES) {
        let code = names::of_code(code);
        let _ = write!(text, "\n      {:8.3} s ago, thread {thread}: {function} = {code}", ago.as_secs_f64());
    }
    for thread in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default().trim().to_owned();
        let number = thread.file_name().to_string_lossy().into_owned();
        let _ = write!(text, "\n      {number} {}: {} syscall {}", read("comm"), read("wchan"), read("syscall"));
    }
    text + &process_output(process)
}
