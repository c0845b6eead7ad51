//! Keeps one guest, or two connected ones: boots them when needed, and again after a failure. The output of a guest
//! is printed only with a failure.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use super::setting::Job;
use crate::Result;
use crate::guest::{Clock, Guest, GuestNetwork};
use crate::report::Report;

/// Script that ends a job at its time limit and reports where the job hangs. The guest continues to run.
const WATCH: &str = include_str!("watch.sh");
/// Time limit for the script's report of a hang. After that, the guest is ended.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

/// Exit status and output of a command.
pub(super) struct GuestOutput {
    pub(super) result: Result<i32>,
    pub(super) lines: Vec<String>,
}

impl GuestOutput {
    /// Describes the result, with `reason` as the last line.
    pub(super) fn with(&self, reason: &str) -> String {
        let lines: String = self.lines.iter().map(|line| format!("guest | {line}\n")).collect();
        format!("{lines}{reason}")
    }

    fn failed(reason: String) -> Self {
        GuestOutput { result: Err(reason), lines: Vec::new() }
    }
}

impl Report {
    /// Runs a command that must succeed, and reports the result.
    pub(super) fn check(&mut self, keeper: &mut Keeper, name: &str, limit: Duration, job: &Job) {
        if self.wants(name) {
            let answer = keeper.run(job, limit);
            self.answer(name, answer);
        }
    }

    /// Reports the result of a command that must have succeeded.
    pub(super) fn answer(&mut self, name: &str, answer: GuestOutput) {
        match answer.result {
            Ok(0) => self.line(name, Ok(())),
            Ok(status) => self.line(name, Err(answer.with(&format!("ended with status {status}, expected 0")))),
            Err(ref reason) => self.line(name, Err(answer.with(reason))),
        }
    }
}

/// One guest: booted when the first job needs it, and again by the next job after a failure.
#[derive(Default)]
pub(super) struct Keeper {
    guest: Option<Guest>,
}

impl Keeper {
    /// Returns the guest, and boots it if none is running.
    pub(super) fn guest(&mut self) -> Result<&mut Guest> {
        if self.guest.is_none() {
            self.guest = Some(Guest::boot(GuestNetwork::Alone)?);
        }
        Ok(self.guest.as_mut().expect("the guest is set: it was booted above"))
    }

    /// The folder shared with the guest.
    pub(super) fn share(&mut self) -> Result<PathBuf> {
        Ok(self.guest()?.share().to_path_buf())
    }

    /// Runs a job in the guest, which is booted if none is running.
    pub(super) fn run(&mut self, job: &Job, limit: Duration) -> GuestOutput {
        self.run_seen(job, limit, |_| {})
    }

    /// Same as `run`; `see` gets each line of output.
    pub(super) fn run_seen(&mut self, job: &Job, limit: Duration, mut see: impl FnMut(&str)) -> GuestOutput {
        let guest = match self.guest() {
            Ok(guest) => guest,
            Err(reason) => return GuestOutput::failed(reason),
        };
        let mut lines = Vec::new();
        let mut result = guest.run(&job.watched(WATCH, limit), limit + REPORT_LIMIT, |line| {
            see(line);
            lines.push(line.to_owned());
        });
        if let Err(ref mut reason) = result {
            *reason += "\nthe guest is killed; the next check boots another";
            self.guest = None;
        }
        GuestOutput { result, lines }
    }

    /// Powers the guest off if it runs.
    pub(super) fn off(&mut self) -> Option<Result> {
        self.guest.take().map(Guest::off)
    }
}

/// Two guests with a wire between them: booted when the first job needs them, and again by the next job after a
/// failure.
#[derive(Default)]
pub(super) struct Wire {
    ends: Option<[Guest; 2]>,
}

/// Commands for the two guests.
pub(super) struct TwoGuestJobs<'a> {
    /// Guest in which the server runs: 0 or 1.
    pub(super) host: usize,
    pub(super) serve: &'a Job,
    /// Server output that starts the client.
    pub(super) ready: &'a str,
    pub(super) call: &'a Job,
    /// Time limit for each program.
    pub(super) limit: Duration,
}

impl Wire {
    fn ends(&mut self) -> Result<&mut [Guest; 2]> {
        if self.ends.is_none() {
            let first = Guest::launch(GuestNetwork::First, Clock::Time)?;
            let second = Guest::launch(GuestNetwork::Second(&first), Clock::Time)?;
            self.ends = Some([first.await_boot()?, second.await_boot()?]);
        }
        Ok(self.ends.as_mut().expect("both guests are set: they were booted above"))
    }

    /// Runs a job in one guest.
    pub(super) fn run(&mut self, end: usize, job: &Job, limit: Duration) -> GuestOutput {
        let mut lines = Vec::new();
        let result = self.ends().and_then(|ends| {
            ends[end].run(&job.watched(WATCH, limit), limit + REPORT_LIMIT, |line| lines.push(line.to_owned()))
        });
        self.check_output(result, lines)
    }

    /// Runs a job in each guest. Returns the higher exit status, which is 0 only if both succeeded.
    pub(super) fn meet(&mut self, ends_of: &TwoGuestJobs<'_>) -> GuestOutput {
        let (mut lines, mut others) = (Vec::new(), Vec::new());
        let result = self.ends().and_then(|ends| {
            let (host, guest) = (ends_of.host, 1 - ends_of.host);
            let limit = ends_of.limit + REPORT_LIMIT;
            ends[host].start(&ends_of.serve.watched(WATCH, ends_of.limit))?;
            let mut called = Ok(1);
            // If the server ends before it prints `ready`, no client runs. The result is then the server's exit status,
            // but at least 1.
            if ends[host].await_line(ends_of.ready, limit, |line| lines.push(line.to_owned()))? {
                let call = ends_of.call.watched(WATCH, ends_of.limit);
                called = ends[guest].run(&call, limit, |line| others.push(format!("   client: {line}")));
            }
            let served = ends[host].finish(limit, |line| lines.push(line.to_owned()))?;
            Ok(served.max(called?))
        });
        lines.append(&mut others);
        self.check_output(result, lines)
    }

    fn check_output(&mut self, mut result: Result<i32>, lines: Vec<String>) -> GuestOutput {
        if let Err(ref mut reason) = result {
            *reason += "\nboth guests are killed; the next check boots others";
            self.ends = None;
        }
        GuestOutput { result, lines }
    }

    /// Powers both guests off if they run.
    pub(super) fn off(&mut self) -> Option<Result> {
        let [first, second] = self.ends.take()?;
        Some(second.off().and(first.off()))
    }
}
