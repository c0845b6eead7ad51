//! Output of suites that this program runs without cargo: one line per check and a summary, in cargo's format.
#![forbid(unsafe_code)]

use std::time::Instant;

use crate::Result;

/// Counts and prints results.
pub(crate) struct Report {
    suite: &'static str,
    filters: Vec<String>,
    passed: u32,
    failed: Vec<String>,
    left_out: u32,
    began: Instant,
}

impl Report {
    /// Creates a report for checks whose names contain one of the filters, or for all checks without filters.
    pub(crate) fn new(suite: &'static str, filters: Vec<String>) -> Self {
        Report { suite, filters, passed: 0, failed: Vec::new(), left_out: 0, began: Instant::now() }
    }

    /// Whether a check is selected. The caller runs selected checks.
    pub(crate) fn wants(&mut self, name: &str) -> bool {
        let is_wanted = self.filters.is_empty() || self.filters.iter().any(|filter| is_part(filter, name));
        self.left_out += u32::from(!is_wanted);
        is_wanted
    }

    /// Returns the filters for the parts of a check: `ep_` if the check is `conformance` and a filter is
    /// `conformance::ep_`. An empty list selects all parts.
    pub(crate) fn inside(&self, name: &str) -> Vec<&str> {
        let rest = |filter: &'_ String| -> Option<usize> {
            filter.strip_prefix(name)?.strip_prefix("::").map(|rest| filter.len() - rest.len())
        };
        self.filters.iter().filter_map(|filter| rest(filter).map(|at| &filter[at..])).collect()
    }

    /// Prints the result of a check and counts it.
    pub(crate) fn line(&mut self, name: &str, result: Result) {
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

    /// Prints the summary, and returns the result of the suite.
    pub(crate) fn end(self) -> Result {
        if self.passed == 0 && self.failed.is_empty() {
            return Err(format!("test {}: no check matches the names given", self.suite));
        }
        if !self.failed.is_empty() {
            println!("\nfailures:\n    {}", self.failed.join("\n    "));
        }
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let (passed, failed, left_out) = (self.passed, self.failed.len(), self.left_out);
        let seconds = self.began.elapsed().as_secs();
        println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {left_out} filtered out; {seconds} s\n");
        if failed == 0 { Ok(()) } else { Err(format!("suite {} failed", self.suite)) }
    }
}

/// Whether a filter selects a check: the filter is a part of the name, or is the name followed by `::` and a part of the
/// check.
fn is_part(filter: &str, name: &str) -> bool {
    name.contains(filter) || filter.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_select_checks_and_their_parts() {
        let mut report = Report::new("s", vec!["dtest::rdma".to_owned(), "conformance::ep_".to_owned()]);
        assert!(report.wants("dtest::rdma_polling") && report.wants("conformance") && !report.wants("unit::daplverbs"));
        assert_eq!((report.inside("conformance"), report.inside("dtest")), (vec!["ep_"], vec!["rdma"]));
        assert!(Report::new("s", Vec::new()).wants("anything"));
        assert!(report.end().is_err(), "a report without runs succeeds");
    }

    #[test]
    fn a_failed_check_fails_the_report() {
        let mut report = Report::new("s", Vec::new());
        report.line("good", Ok(()));
        report.line("bad", Err("why".to_owned()));
        assert_eq!((report.passed, &report.failed[..]), (1, &["bad".to_owned()][..]));
        assert!(report.end().is_err());
    }
}
