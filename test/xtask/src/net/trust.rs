//! Delivery of connection requests between users. Processes of one user share the setup port and pass requests on to
//! each other. A process of another user gets no request and cannot block a listener. While one process is stopped, the
//! others still get their requests.
#![forbid(unsafe_code)]

use std::process::Command;

use dapl_test::run::{self, Run, Sandbox};

use super::Check;
use super::setting::{Environment, Family, LIMIT, PORT, Setting, check_output};
use super::settings::{KEY, KeyFile};
use super::wire::{ADDRESSES, Wire};
use crate::Result;
use crate::quiet::run_quietly;

/// User of the attacking processes.
const ANOTHER_USER: &str = "65534";
const OK: &str = "listeners: OK";

/// All checks of this module.
pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("trust::another_user_gets_no_request", |s, wire| another_user(s, wire, &[])),
        Check::new("trust::another_user_gets_no_request_with_a_key", |s, wire| {
            let key = KeyFile::new("trust", "a secret that the other user does not have")?;
            another_user(s, wire, &[(KEY, &key.path())])
        }),
        Check::new("trust::a_stopped_process_keeps_no_request", stopped),
    ]
}

/// The hosts on which a check's programs run. Programs on the listeners' host share a base directory.
struct Hosts<'a> {
    setting: &'a Setting,
    wire: &'a Wire,
    sandboxes: [Sandbox; 2],
    set: Environment<'a>,
}

impl<'a> Hosts<'a> {
    fn new(setting: &'a Setting, wire: &'a Wire, set: Environment<'a>) -> Self {
        Hosts { setting, wire, sandboxes: [0, 1].map(|end| setting.sandbox(Family::V4, end)), set }
    }

    fn start(&self, end: usize, arguments: &[&str]) -> Run {
        let program = run::program(self.setting.stage(), "test/c/listeners.c");
        let mut command = self.sandboxes[end].command(program, arguments);
        command.env("DAPL_USNIC_PORT", PORT).envs(self.set.iter().copied());
        Run::start(self.wire.command(end, &command))
    }

    fn listener(&self, qual: &str) -> Run {
        let listener = self.start(0, &["-s", qual]);
        listener.wait_for("listening", LIMIT);
        listener
    }

    /// Runs a client on one side of the link. The client must succeed.
    fn client(&self, end: usize, arguments: &[&str]) -> Result {
        let client = self.start(end, &[&["-h", ADDRESSES[0]], arguments].concat());
        check_output("client", &client.finish(LIMIT), OK)
    }
}

/// A process of another user tries to receive requests for a qualifier, before and while root listens on this
/// qualifier. It must get none.
fn another_user(setting: &Setting, wire: &Wire, set: Environment<'_>) -> Result {
    let hosts = Hosts::new(setting, wire, set);
    let _port = hosts.listener("1");
    let directory = hosts.sandboxes[0].sm().display().to_string();
    let attack = ["-a", ADDRESSES[0], "-u", ANOTHER_USER, "-p", PORT, "-d", &directory, "2"];
    let attacker = hosts.start(0, &attack);
    attacker.wait_for("waiting", LIMIT);
    hosts.client(1, &["-e", "2"]).map_err(|why| format!("a connect while no program listens: {why}"))?;
    let _listener = hosts.listener("2");
    hosts.client(1, &["-n", "8", "2"])?;
    hosts.client(0, &["2"]).map_err(|why| format!("a connect from the same host: {why}"))?;
    // This client does not share the listener's base directory, but its request still reaches the port.
    hosts
        .client(0, &["-u", ANOTHER_USER, "2"])
        .map_err(|why| format!("a connect from another user's process: {why}"))?;
    match attacker.has_printed("got a request") || attacker.has_ended() {
        false => Ok(()),
        true => Err(format!("the process of the other user received a request or ended: {}", attacker.so_far())),
    }
}

/// Stops one of two listeners on a port, first the older, then the newer. All clients of the running listener must be
/// served.
fn stopped(setting: &Setting, wire: &Wire) -> Result {
    let hosts = Hosts::new(setting, wire, &[]);
    let listeners = [hosts.listener("1"), hosts.listener("2")];
    for (which, served) in [(0, "2"), (1, "1")] {
        signal(&listeners[which], "STOP")?;
        hosts
            .client(1, &["-n", "8", served])
            .map_err(|why| format!("a connect while listener {which} is stopped: {why}"))?;
        signal(&listeners[which], "CONT")?;
    }
    // A process that starts later must still be able to share the port.
    signal(&listeners[0], "STOP")?;
    let _third = hosts.listener("3");
    hosts.client(1, &["-n", "8", "3"])?;
    signal(&listeners[0], "CONT")?;
    hosts.client(1, &["1"])
}

fn signal(run: &Run, name: &str) -> Result {
    run_quietly(Command::new("sh").args(["-c", &format!("kill -{name} {}", run.id())])).map(drop)
}
