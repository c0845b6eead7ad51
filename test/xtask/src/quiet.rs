//! Programs whose output matters to us alone: captured, and shown only when they fail. Long steps, each with its time.
#![forbid(unsafe_code)]

use std::process::{Command, Output};
use std::time::Instant;

use crate::Result;

/// Runs it to a good end.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Output> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// What it said on standard output.
pub(crate) fn text_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run_quietly(command)?.stdout).into_owned())
}

/// Runs a part of a command that takes long: one line when it begins, and one with its time when it is over.
pub(crate) fn step<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {name} ...");
    let start = Instant::now();
    let result = body();
    let end = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!("xtask: {name}: {end} after {:.1} s", start.elapsed().as_secs_f64());
    result
}
