//! Runs programs and shows their output only on failure. Reports the duration of long steps.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use dapl_test::stage::workspace;

use crate::Result;

/// Returns a command for the cargo that runs this program, in the workspace directory.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

/// Runs a command, which must succeed.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Output> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the standard output of a command.
pub(crate) fn text_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run_quietly(command)?.stdout).into_owned())
}

/// Runs a command. Returns the command's output (both streams in order) and whether the command succeeded. The output
/// goes to a file: a child that outlives the command keeps the output open, and a read from a pipe would wait for that
/// child.
pub(crate) fn capture(command: &mut Command, log: &Path) -> Result<(Vec<u8>, bool)> {
    let failed = |error: std::io::Error| format!("{}: {error}", log.display());
    log.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let output = File::create(log).map_err(failed)?;
    let both = output.try_clone().map_err(failed)?;
    let status = command.stdin(Stdio::null()).stdout(output).stderr(both).status().map_err(failed)?;
    Ok((fs::read(log).map_err(failed)?, status.success()))
}

/// Runs a long step: prints a line at its start, and one with its duration at its end.
pub(crate) fn step<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {name} ...");
    let start = Instant::now();
    let result = body();
    let end = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!("xtask: {name}: {end} after {:.1} s", start.elapsed().as_secs_f64());
    result
}
