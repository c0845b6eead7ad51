//! `datinfo doctor`: finds problems that affect DAT on this host, or on the path to another host, and proposes
//! remedies.
//!
//! `host` checks this machine. `pair` checks the path to another host with the probes of `path` and the datagrams of
//! `wire`; `serve` answers both. Each result is a finding, with a remedy if there is a problem and a remedy is known.
//! The command changes nothing and needs no privileges.

mod host;
mod pair;
mod path;
mod serve;
mod wire;

use std::fmt::Write;

use dat_settings::{SettingsTable, USNIC};
use serde_json::{Value, json};

use crate::options::{self, Options};
use crate::print_result;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Grade {
    /// No problem.
    Good,
    /// Information without a rating.
    Note,
    /// A feature is slow or limited, or one adapter does not open. DAT can be used.
    Warning,
    /// The checked feature does not work. `datinfo doctor` then exits with status 1.
    Bad,
}

/// Result of one check.
#[derive(Clone, Debug)]
struct Finding {
    grade: Grade,
    /// Subject of the check.
    about: &'static str,
    /// Result in words.
    found: String,
    /// Remedy; empty if none is needed or known.
    remedy: String,
}

impl Finding {
    fn new(grade: Grade, about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { grade, about, found: found.into(), remedy: remedy.into() }
    }

    fn good(about: &'static str, found: impl Into<String>) -> Self {
        Self::new(Grade::Good, about, found, "")
    }

    fn note(about: &'static str, found: impl Into<String>) -> Self {
        Self::new(Grade::Note, about, found, "")
    }

    fn warning(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Grade::Warning, about, found, remedy)
    }

    fn bad(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Grade::Bad, about, found, remedy)
    }
}

impl Grade {
    fn grade_name(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Warning => "warning",
            Grade::Bad => "bad",
        }
    }
}

/// Runs the requested checks, and returns true if no finding is bad. With `--serve`, answers other hosts instead.
pub(crate) fn doctor(options: &Options, wanted: &options::Doctor) -> crate::Result {
    let port = wanted.port.unwrap_or_else(usnic_port);
    if wanted.serve {
        if options.json {
            return Err("--serve prints no results: use --json with datinfo doctor on the other host".to_owned());
        }
        return serve::serve(port);
    }
    let mut findings = Vec::new();
    match &wanted.host {
        None => host::check_host(options, wanted.need, port, &mut findings),
        Some(host) => pair::check_pair(host, port, &mut findings)?,
    }
    let is_well = findings.iter().all(|finding| finding.grade != Grade::Bad);
    print_result(options, || document(&findings, is_well), || lines(&findings));
    Ok(is_well)
}

fn document(findings: &[Finding], is_well: bool) -> Value {
    let rows: Vec<Value> = findings
        .iter()
        .map(|Finding { grade, about, found, remedy }| {
            json!({"grade": grade.grade_name(), "about": about, "found": found, "remedy": remedy})
        })
        .collect();
    json!({"well": is_well, "findings": rows})
}

fn lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { grade, about, found, remedy } in findings {
        let _ = writeln!(text, "{:<8} {about}: {found}", grade.grade_name());
        if !remedy.is_empty() {
            let _ = writeln!(text, "         -> {remedy}");
        }
    }
    text
}

/// Value of a numeric setting from the environment, or its default.
fn in_effect(table: &'static SettingsTable, name: &str) -> u64 {
    let Some(setting) = table.named(name) else { return 0 };
    let given = std::env::var(setting.variable).ok().and_then(|text| table.value(setting, &text).ok());
    given.unwrap_or_else(|| setting.values.default()).parse().unwrap_or(0)
}

fn usnic_port() -> u16 {
    u16::try_from(in_effect(&USNIC, "port")).unwrap_or(0)
}
