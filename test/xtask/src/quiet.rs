//! Programs whose output matters to us alone: captured, and shown only when they fail.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

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
