//! The parent's side of a probe: starts this program as a child with a time limit, and reports how the child ended.
//!
//! A child that hangs is killed. Threads read the child's whole output, so that the child does not block on a full
//! pipe, and store it up to a limit.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::options::{Api, Options};

/// Maximum number of bytes stored of a child's output, so that a provider that prints without end does not exhaust the
/// memory.
const MOST: u64 = 4 << 20;

/// Output and exit of a child.
#[derive(Debug)]
pub(crate) struct ChildResult {
    /// JSON values that the child has printed, one per line, in order.
    pub(crate) answers: Vec<Value>,
    /// Output of the child and its libraries on stderr.
    pub(crate) stderr: String,
    pub(crate) end: ChildExit,
}

/// How the child ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ChildExit {
    /// The child exited with status 0.
    Well,
    /// The child exited with a status other than 0, or was killed by a signal; as text.
    Badly(String),
    /// The child did not end within this many seconds, and was killed.
    Hung(u64),
}

/// Starts a probe of the registry, or of the adapter with this escaped name, and waits until it ends. `conf` is the
/// only dat.conf that the probe reads; if it is `None`, the probe reads the files that programs read.
pub(crate) fn probe(
    options: &Options,
    name: Option<&str>,
    api: Api,
    conf: Option<&Path>,
) -> Result<ChildResult, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find the file of this program: {error}"))?;
    let mut command = Command::new(program);
    if let Some(libdat) = &options.libdat {
        command.arg("--libdat").arg(libdat);
    }
    if let Some(conf) = conf {
        command.env("DAT_OVERRIDE", conf);
    }
    if options.thread_safe {
        command.arg("--thread-safe");
    }
    command.arg("--api").arg(api.to_string());
    command.arg("probe").args(name.map(|name| ["--", name]).iter().flatten());
    // The child logs failed opens and invalid lines to stderr without a limit, whatever the user's settings are.
    command.env("DAT_DBG_TYPE", "0x3").env("DAT_DBG_DEST", "1").env_remove("DAT_DBG_LEVEL");
    command.env("DAPL_DBG_TYPE", "0x3").env("DAPL_DBG_DEST", "1");
    run(command, Duration::from_secs(options.timeout))
}

fn run(mut command: Command, limit: Duration) -> Result<ChildResult, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start a probe: {error}"))?;
    let stdout = drain(child.stdout.take().expect("`spawn` has created a pipe for the child's output"));
    let stderr = drain(child.stderr.take().expect("`spawn` has created a pipe for the child's output"));
    let end = match wait(&mut child, limit) {
        Some(status) => end_of(status),
        None => {
            // Both calls fail only if the child has already ended.
            let _ = child.kill();
            let _ = child.wait();
            ChildExit::Hung(limit.as_secs())
        }
    };
    let text = |reader: JoinHandle<Vec<u8>>| String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
    let answers = text(stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok(ChildResult { answers, stderr: text(stderr), end })
}

/// Waits until the child ends. `None` if the time limit has passed.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn end_of(status: ExitStatus) -> ChildExit {
    match (status.code(), status.signal()) {
        (Some(0), _) => ChildExit::Well,
        (Some(code), _) => ChildExit::Badly(format!("the probe process exited with status {code}")),
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            ChildExit::Badly(format!("the probe process was killed by signal {signal}{}", name_of(signal)))
        }
    }
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

fn drain(from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut from = from;
        // Output beyond the limit is read and dropped, because the child would block on a full pipe.
        let _ = (&mut from).take(MOST).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: u64) -> ChildResult {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_secs(limit)).unwrap()
    }

    #[test]
    fn success_failure_signal_and_timeout_of_a_child_are_distinguished() {
        assert_eq!(shell("exit 0", 60).end, ChildExit::Well);
        assert_eq!(shell("exit 3", 60).end, ChildExit::Badly("the probe process exited with status 3".to_owned()));
        assert_eq!(
            shell("kill -SEGV $$", 60).end,
            ChildExit::Badly("the probe process was killed by signal 11 (SIGSEGV)".to_owned())
        );
        assert_eq!(shell("exec sleep 600", 1).end, ChildExit::Hung(1));
    }

    #[test]
    fn only_json_counts_as_an_answer_and_long_output_does_not_block_the_child() {
        let outcome = shell("echo noise; echo '{\"a\":1}'; echo '{'; echo x >&2", 60);
        assert_eq!((outcome.answers.len(), outcome.stderr.as_str()), (1, "x\n"));
        let outcome = shell("head -c 20000000 /dev/zero; echo y >&2", 60);
        assert_eq!((outcome.answers.len(), outcome.end, outcome.stderr.as_str()), (0, ChildExit::Well, "y\n"));
    }
}
