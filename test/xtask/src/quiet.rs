//! Runs programs and captures their output, which is shown on failure or, by `capture_and_show`, while they run.
//! Reports the duration of long steps.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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
    let failed = |error: io::Error| format!("{}: {error}", log.display());
    let status = send_output_to(command, log).and_then(Command::status).map_err(failed)?;
    Ok((fs::read(log).map_err(failed)?, status.success()))
}

/// Like [`capture`], but also copies the output to standard output while the command runs.
pub(crate) fn capture_and_show(command: &mut Command, log: &Path) -> Result<(Vec<u8>, bool)> {
    let failed = |error: io::Error| format!("{}: {error}", log.display());
    let mut child = send_output_to(command, log).and_then(Command::spawn).map_err(failed)?;
    let mut written = File::open(log).map_err(failed)?;
    loop {
        // The status is read before the copy, so that the last copy contains everything that the command has written.
        let status = child.try_wait().map_err(failed)?;
        io::copy(&mut written, &mut io::stdout()).and_then(|_| io::stdout().flush()).map_err(failed)?;
        match status {
            Some(status) => return Ok((fs::read(log).map_err(failed)?, status.success())),
            // No call of std waits for the end of a child and for growth of a file.
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn send_output_to<'a>(command: &'a mut Command, log: &Path) -> io::Result<&'a mut Command> {
    log.parent().map_or(Ok(()), fs::create_dir_all)?;
    let output = File::create(log)?;
    let both = output.try_clone()?;
    Ok(command.stdin(Stdio::null()).stdout(output).stderr(both))
}

/// The part of a test program's output that explains its failure: from the failures of the test harness or the first
/// report of ThreadSanitizer on, or else the last lines. At most [`EXPLANATION`] lines.
pub(crate) fn explanation(output: &[u8]) -> String {
    let output = String::from_utf8_lossy(output);
    let lines: Vec<&str> = output.lines().collect();
    let start = lines.iter().position(|line| *line == "failures:" || line.starts_with("WARNING: ThreadSanitizer"));
    let start = start.unwrap_or(lines.len().saturating_sub(EXPLANATION));
    lines[start..].iter().take(EXPLANATION).map(|line| format!("    {line}\n")).collect()
}

/// Maximum number of lines of an explanation.
const EXPLANATION: usize = 60;

/// Runs a long step: prints a line at its start, and one with its duration at its end.
pub(crate) fn step<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {name} ...");
    let start = Instant::now();
    let result = body();
    let end = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!("xtask: {name}: {end} after {:.1} s", start.elapsed().as_secs_f64());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_excerpt_starts_at_the_failures_or_has_the_last_lines() {
        let harness = b"test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n";
        assert_eq!(explanation(harness), "    failures:\n    \n    ---- b stdout ----\n    why\n");
        let long: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let last = explanation(long.as_bytes());
        assert_eq!((last.lines().count(), last.lines().next()), (EXPLANATION, Some("    line 40")));
        assert_eq!(explanation(b""), "");
    }

    #[test]
    fn shown_output_is_also_in_the_log() {
        let directory = std::env::temp_dir().join(format!("xtask-quiet-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let captured = capture_and_show(&mut command, &directory.join("log"));
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(captured, Ok((b"out\nerr\n".to_vec(), false)));
    }
}
