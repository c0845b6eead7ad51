//! Runs a server and its clients on chosen processors, and collects their output.
//!
//! Works with any programs. Every wait has a time limit.
#![forbid(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use dapl_test::run::Run;

use crate::Result;

/// Time limit, longer than any measurement even if both sides share a processor.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a client in seconds, slightly shorter than `LIMIT`.
const CLIENT_LIMIT: &str = "110";
/// Signal number that ends a killed process.
const SIGKILL: i32 = 9;

/// Processors of the server and its clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cores {
    /// The server on processor 0, clients on 1.
    Apart,
    /// Server and clients on processor 0.
    Together,
    /// Server and clients on processors 0 and 1, as the scheduler decides.
    Any,
}

impl Cores {
    pub(super) fn server(self) -> &'static str {
        match self {
            Cores::Apart | Cores::Together => "0",
            Cores::Any => "0,1",
        }
    }

    pub(super) fn client(self) -> &'static str {
        match self {
            Cores::Apart => "1",
            Cores::Together => "0",
            Cores::Any => "0,1",
        }
    }
}

/// How the server must end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ServerEnd {
    /// By itself, with success.
    Itself,
    /// By SIGKILL, which the server sends to itself.
    Suicide,
    /// By SIGKILL, which xtask sends when the clients have ended.
    Killed,
}

/// Standard output of the server and of all clients, in order.
pub(super) struct PairOutput {
    pub(super) server: String,
    pub(super) client: String,
}

/// Runs a server and, when it is ready, `clients` clients.
pub(super) fn pair(
    server: &Command,
    is_ready: impl Fn(&Run) -> bool,
    (client, clients): (&Command, u32),
    cores: Cores,
    server_end: ServerEnd,
) -> Result<PairOutput> {
    let started = Instant::now();
    let mut server = Run::start(pin(cores.server(), server));
    while !is_ready(&server) {
        if server.has_ended() {
            return Err(format!("the server of {client:?} ended before it was ready: {}", server.so_far()));
        }
        if started.elapsed() > LIMIT {
            return Err(format!("the server of {client:?} is not ready after {LIMIT:?}"));
        }
        // The condition is a line of output, a file or an open port. Not all of these can be waited for, so this polls.
        std::thread::sleep(Duration::from_millis(5));
    }
    let running: Vec<Run> = (0..clients).map(|_| Run::start(pin(cores.client(), &limited(client)))).collect();
    let mut output = String::new();
    for run in running {
        let finished = run.finish(LIMIT);
        if !finished.status.success() {
            let (status, text) = (finished.status, finished.stdout + &finished.stderr);
            let so_far = server.so_far();
            return Err(format!("{client:?} failed: {status}\n{text}\noutput of the server so far: {so_far}"));
        }
        output += &finished.stdout;
    }
    if server_end == ServerEnd::Killed {
        server.kill();
    }
    let server = server.finish(LIMIT);
    let ended_as_it_should = match server_end {
        ServerEnd::Itself => server.status.success(),
        ServerEnd::Suicide | ServerEnd::Killed => server.status.signal() == Some(SIGKILL),
    };
    if !ended_as_it_should {
        return Err(format!("the server of {client:?} failed: {}\n{}{}", server.status, server.stdout, server.stderr));
    }
    Ok(PairOutput { server: server.stdout, client: output })
}

/// Limits a client's time, so that a hang fails only this measurement. SIGKILL is used because some peers ignore
/// other signals.
fn limited(client: &Command) -> Command {
    wrapped("timeout", &["-s", "KILL", CLIENT_LIMIT], client)
}

/// Pins a command to the processors of a `taskset` list.
fn pin(processor: &str, command: &Command) -> Command {
    wrapped("taskset", &["-c", processor], command)
}

fn wrapped(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn output_of_server_and_clients_is_read_and_both_must_succeed() {
        let run = |server: &str, client: &str, server_end| {
            pair(&shell(server), |_| true, (&shell(client), 2), Cores::Together, server_end)
        };
        let output = run("echo served", "echo asked", ServerEnd::Itself).unwrap();
        assert_eq!((&*output.server, &*output.client), ("served\n", "asked\nasked\n"));
        assert!(run("exit 1", "true", ServerEnd::Itself).is_err_and(|reason| reason.starts_with("the server of")));
        assert!(run("true", "echo why >&2; exit 1", ServerEnd::Itself).is_err_and(|reason| reason.contains("why")));
        assert!(
            run("kill -9 $$", "true", ServerEnd::Suicide).is_ok() && run("true", "true", ServerEnd::Suicide).is_err()
        );
        assert!(run("exec sleep 1000", "true", ServerEnd::Killed).is_ok());
    }

    #[test]
    fn exited_server_is_not_waited_for() {
        let (server, client) = (shell("echo alas"), shell("true"));
        let output = pair(&server, |_| false, (&client, 1), Cores::Together, ServerEnd::Itself);
        assert!(output.is_err_and(|reason| reason.contains("alas")));
    }
}
