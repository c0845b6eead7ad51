//! What a suite says: a line per check, then a verdict, as cargo's suites do. What a guest said is shown only of a failure.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::keeper::{Answer, Keeper};
use super::setting::Job;
use crate::Result;

/// Counts, and says what it counts.
pub(super) struct Report {
    filters: Vec<String>,
    passed: u32,
    failed: Vec<String>,
    left_out: u32,
    began: Instant,
}

impl Report {
    /// Of the checks whose name has one of these in it; with none, of all.
    pub(super) fn new(filters: Vec<String>) -> Self {
        Report { filters, passed: 0, failed: Vec::new(), left_out: 0, began: Instant::now() }
    }

    /// Whether a check is asked for. Who asks runs it.
    pub(super) fn wants(&mut self, name: &str) -> bool {
        let is_wanted = self.filters.is_empty() || self.filters.iter().any(|filter| is_part(filter, name));
        self.left_out += u32::from(!is_wanted);
        is_wanted
    }

    /// What of a name's inside is asked for: of `conformance::ep_` the rest. Nothing: all of it.
    pub(super) fn inside(&self, name: &str) -> Vec<&str> {
        let rest = |filter: &'_ String| -> Option<usize> {
            filter.strip_prefix(name)?.strip_prefix("::").map(|rest| filter.len() - rest.len())
        };
        self.filters.iter().filter_map(|filter| rest(filter).map(|at| &filter[at..])).collect()
    }

    /// Runs a command that must end well.
    pub(super) fn check(&mut self, keeper: &mut Keeper, name: &str, limit: Duration, job: &Job) {
        if self.wants(name) {
            let answer = keeper.run(job, limit);
            self.answer(name, answer);
        }
    }

    /// What a command answered that must end well.
    pub(super) fn answer(&mut self, name: &str, answer: Answer) {
        match answer.result {
            Ok(0) => self.line(name, Ok(())),
            Ok(status) => self.line(name, Err(answer.with(&format!("status {status}")))),
            Err(ref reason) => self.line(name, Err(answer.with(reason))),
        }
    }

    /// One check more, and why it failed.
    pub(super) fn line(&mut self, name: &str, result: Result) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("test {name} ... ok");
            }
            Err(reason) => {
                self.failed.push(name.to_owned());
                println!("test {name} ... FAILED\n--- {name}\n{reason}\n---");
            }
        }
    }

    /// The last lines, and what the suite answers.
    pub(super) fn end(self) -> Result {
        if self.passed == 0 && self.failed.is_empty() {
            return Err("test rxe: no check is called so".to_owned());
        }
        if !self.failed.is_empty() {
            println!("\nfailures:\n    {}", self.failed.join("\n    "));
        }
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let (passed, failed, left_out) = (self.passed, self.failed.len(), self.left_out);
        let seconds = self.began.elapsed().as_secs();
        println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {left_out} filtered out; {seconds} s\n");
        if failed == 0 { Ok(()) } else { Err("suite rxe failed".to_owned()) }
    }
}

/// A part of the name, or the name and something of its inside.
fn is_part(filter: &str, name: &str) -> bool {
    name.contains(filter) || filter.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_choose_checks_and_what_is_inside() {
        let mut report = Report::new(vec!["dtest::rdma".to_owned(), "conformance::ep_".to_owned()]);
        assert!(report.wants("dtest::rdma_polling") && report.wants("conformance") && !report.wants("unit::daplverbs"));
        assert_eq!((report.inside("conformance"), report.inside("dtest")), (vec!["ep_"], vec!["rdma"]));
        assert!(Report::new(Vec::new()).wants("anything"));
        assert!(report.end().is_err(), "nothing was run");
    }

    #[test]
    fn a_failure_is_the_answer() {
        let mut report = Report::new(Vec::new());
        report.answer("good", Answer { result: Ok(0), said: Vec::new() });
        report.answer("bad", Answer { result: Ok(3), said: vec!["why".to_owned()] });
        assert_eq!((report.passed, &report.failed[..]), (1, &["bad".to_owned()][..]));
        assert!(report.end().is_err());
    }
}
