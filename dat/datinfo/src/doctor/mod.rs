//! `datinfo doctor`: what this host, or the path to another one, lacks for DAT, and what helps.
//!
//! `host` looks at this machine, `pair` asks another one: by the probes of `path`, which `serve` answers too, and
//! in the datagrams of `wire`. Everything is a finding with its remedy. Nothing is changed, and no rights are needed; what
//! cannot be seen without them is told as such.

mod host;
mod pair;
mod path;
mod serve;
mod wire;

use std::fmt::Write;

use dat_settings::{Table, USNIC};
use serde_json::{Value, json};

use crate::options::{self, Options};
use crate::{say, say_json};

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing; nothing is missing.
    Note,
    /// It works, but not as well as it could.
    Warning,
    /// Something does not work.
    Bad,
}

/// What was looked at and found.
#[derive(Clone, Debug)]
struct Finding {
    grade: Grade,
    /// What was looked at.
    about: &'static str,
    /// What is so.
    found: String,
    /// What helps; empty if nothing has to.
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
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Warning => "warning",
            Grade::Bad => "bad",
        }
    }
}

/// Looks at what is asked for; whether nothing is bad.
pub(crate) fn doctor(options: &Options, wanted: &options::Doctor) -> crate::Result {
    let port = wanted.port.unwrap_or_else(usnic_port);
    if wanted.serve {
        return serve::serve(port);
    }
    let mut findings = Vec::new();
    match &wanted.host {
        None => host::look(options, wanted.need, port, &mut findings),
        Some(host) => pair::look(host, port, &mut findings)?,
    }
    let is_well = findings.iter().all(|finding| finding.grade != Grade::Bad);
    match options.json {
        true => say_json(&document(&findings, is_well)),
        false => say(&lines(&findings)),
    }
    Ok(is_well)
}

fn document(findings: &[Finding], is_well: bool) -> Value {
    let rows: Vec<Value> = findings
        .iter()
        .map(|Finding { grade, about, found, remedy }| {
            json!({"grade": grade.word(), "about": about, "found": found, "remedy": remedy})
        })
        .collect();
    json!({"well": is_well, "findings": rows})
}

fn lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { grade, about, found, remedy } in findings {
        let _ = writeln!(text, "{:<8} {about}: {found}", grade.word());
        if !remedy.is_empty() {
            let _ = writeln!(text, "         -> {remedy}");
        }
    }
    text
}

/// A number of a table's, as it is in effect for adapters whose line says nothing else.
fn in_effect(table: &'static Table, name: &str) -> u64 {
    let Some(setting) = table.named(name) else { return 0 };
    let given = std::env::var(setting.variable).ok().and_then(|text| table.value(setting, &text).ok());
    given.unwrap_or_else(|| setting.values.default()).parse().unwrap_or(0)
}

fn usnic_port() -> u16 {
    u16::try_from(in_effect(&USNIC, "port")).unwrap_or(0)
}
