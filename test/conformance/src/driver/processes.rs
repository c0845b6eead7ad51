//! The processes of a case: waits for their end, kills those that hang, and describes failures.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::ctx::NO_ANSWER;
use crate::ending::Ending;
use crate::flight::{self, Record};
use crate::worker::{GRACE, Task};
use crate::{names, os};

/// A failure report shows at most this many steps, DAT calls and lines of output: the last ones.
const REPORT_LINES: usize = 10;

pub(super) struct Process {
    pub(super) child: Child,
    pub(super) task: Task,
    pub(super) status: Option<ExitStatus>,
}

/// Waits for the processes of a case. After one process has failed, the other gets a short time to end. A case hangs
/// if it neither ends nor reports a step for `seconds`; then its processes are described and killed. `time_factor`
/// multiplies `seconds` for a slow machine.
pub(super) fn watch(processes: &mut [Process], seconds: u64, time_factor: u32) -> Option<String> {
    let limit = Duration::from_secs(seconds) * time_factor;
    let mut deadline = Instant::now() + limit;
    let mut has_failed = false;
    let mut steps = 0;
    let mut pause = Duration::from_micros(500);
    while processes.iter().any(|process| process.status.is_none()) {
        for process in processes.iter_mut().filter(|process| process.status.is_none()) {
            process.status = process.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::from_raw(0)));
        }
        if !has_failed && processes.iter().any(|one| one.status.is_some_and(|status| !status.success())) {
            has_failed = true;
            deadline = deadline.min(Instant::now() + GRACE * time_factor);
        }
        if Instant::now() > deadline {
            let reported = processes.iter().map(|process| flight::length_of_steps(&process.task.record)).sum();
            if !has_failed && reported > steps {
                (steps, deadline) = (reported, Instant::now() + limit);
                continue;
            }
            let running = processes.iter().filter(|process| process.status.is_none() || !has_failed);
            let hang = running.map(describe_hang).collect::<Vec<_>>().join("\n");
            end(processes);
            return Some(hang);
        }
        // No system call waits for several children with a timeout, so this polls. Most cases are short, and so are
        // the first intervals.
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(10));
    }
    None
}

pub(super) fn end(processes: &mut [Process]) {
    for process in processes.iter_mut().filter(|process| process.status.is_none()) {
        os::kill_group(process.child.id());
        process.status = process.child.wait().ok();
    }
}

/// Combines the results of both processes.
pub(super) fn combine(processes: &[Process], hang: Option<String>) -> Ending {
    let ending = processes.iter().map(ending_of).fold(Ending::Passed, Ending::worse);
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

fn ending_of(process: &Process) -> Ending {
    let text = fs::read_to_string(process.task.ending()).unwrap_or_default();
    let (written, role) = (Ending::from_text(&text), process.task.role.word());
    let status = process.status.unwrap_or_default();
    let ending = match (written, status.signal()) {
        (Some(Ending::Died), Some(libc::SIGKILL)) => Ending::Passed,
        (Some(ending @ Ending::Failed(_)), _) => ending,
        // Usually the driver killed this process, because its partner had failed or the case hung. `combine` reports
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
    let text = fs::read_to_string(process.task.record.with_extension("output")).unwrap_or_default();
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
    let (id, record) = (process.child.id(), Record::read(&process.task.record));
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
