//! Environment of the suite `net`: the staged libraries, a registry for each side of a link, dtest, and `test/c/net.c`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, Sandbox};
use dapl_test::stage::{Profile, Stage};

use super::flows::SUCCESS_LINE;
use super::wire::{ADDRESSES, DEVICE, V6, Wire};
use crate::{Result, tree};

/// Time limit of a run: longer than any correct run, even with heavy loss on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(240);

/// Names and values of environment variables.
pub(super) type Environment<'a> = &'a [(&'a str, &'a str)];

/// IP version of the link, which also decides how the adapter is named.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    /// The adapter is named by its interface.
    V4,
    /// The adapter is named by its address.
    V6,
}

impl Family {
    /// Server address for the option `-h`.
    pub(super) fn host(self) -> &'static str {
        match self {
            Family::V4 => ADDRESSES[0],
            Family::V6 => V6[0],
        }
    }

    /// The device name of the adapter on one side of the link: interface or address.
    fn place(self, end: usize) -> &'static str {
        match self {
            Family::V4 => DEVICE,
            Family::V6 => V6[end],
        }
    }
}

fn registry(place: &str) -> String {
    format!("usnic0 u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"{place}\" \"\"\n")
}

/// Starts a program on one side of the link, with its sandbox's registry and these variables.
fn start(wire: &Wire, end: usize, sandbox: &Sandbox, program: &Path, arguments: &[&str], set: Environment<'_>) -> Run {
    let mut command = sandbox.command(program, arguments);
    // By default, sandboxes use different ports so that they can share a host. Here server and client must use the same
    // port.
    command.env("DAPL_USNIC_PORT", PORT);
    Run::start(wire.command(end, command.envs(set.iter().copied())))
}

/// UDP port of server and client.
pub(super) const PORT: &str = "17471";

/// The environment, built with all assertions.
pub(super) struct Setting {
    stage: Stage,
    dtest: PathBuf,
    net: PathBuf,
}

/// A running server at end 0 with its client at end 1.
pub(super) struct Pair {
    pub(super) server: Run,
    pub(super) client: Run,
    _sandboxes: [Sandbox; 2],
}

impl Setting {
    /// Builds the environment.
    pub(super) fn build() -> Result<Self> {
        let tree = tree::build(Profile::Dev)?;
        Ok(Setting { net: run::program(&tree.stage, "test/c/net.c"), dtest: tree.dtest, stage: tree.stage })
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Creates a sandbox for the programs on one side of the link.
    pub(super) fn sandbox(&self, family: Family, end: usize) -> Sandbox {
        Sandbox::new(&self.stage, Some(&registry(family.place(end))))
    }

    /// Runs dtest between the ends, with the same options on both sides. It must succeed.
    pub(super) fn dtest(&self, wire: &Wire, family: Family, options: &[&str]) -> Result {
        // The time limit of each event is long because of heavy loss.
        let common = [&["-P", "usnic0", "-t", "200"], options].concat();
        self.start(wire, family, &self.dtest, [&common, &common], [&[], &[]]).end_well("dtest: OK (checked ")
    }

    /// Starts `net` between the ends, both sides with these options, and waits until data flow.
    pub(super) fn flow(&self, wire: &Wire, family: Family, options: &[&str]) -> Pair {
        self.flow_with(wire, family, options, [&[], &[]])
    }

    /// Same as `flow`, with environment variables for the server and for the client.
    pub(super) fn flow_with(&self, wire: &Wire, family: Family, options: &[&str], set: [Environment<'_>; 2]) -> Pair {
        let pair = self.begin(wire, family, options, set);
        pair.client.wait_for("flowing", LIMIT);
        pair.server.wait_for("flowing", LIMIT);
        pair
    }

    /// Same as `flow_with`, without waiting for data.
    pub(super) fn begin(&self, wire: &Wire, family: Family, options: &[&str], set: [Environment<'_>; 2]) -> Pair {
        let server = [&["-s"], options].concat();
        self.start(wire, family, &self.net, [&server, options], set)
    }

    fn start(
        &self,
        wire: &Wire,
        family: Family,
        program: &Path,
        [server, client]: [&[&str]; 2],
        set: [Environment<'_>; 2],
    ) -> Pair {
        let sandboxes = [0, 1].map(|end| self.sandbox(family, end));
        let start = |end: usize, arguments: &[&str]| start(wire, end, &sandboxes[end], program, arguments, set[end]);
        let server = start(0, server);
        server.wait_for("listening", LIMIT);
        let client = start(1, &[&["-h", family.host()], client].concat());
        Pair { server, client, _sandboxes: sandboxes }
    }

    /// Runs `net` between two addresses of end 0 until it ends. Both sides print their counters when the connection
    /// ends.
    pub(super) fn flow_within(&self, wire: &Wire, client_at: &str) -> Result<[Finished; 2]> {
        let places = [ADDRESSES[0], client_at];
        let sandboxes = places.map(|place| Sandbox::new(&self.stage, Some(&registry(place))));
        let shown: Environment<'_> = &[("DAPL_DBG_TYPE", "0x2b")];
        let start = |side: usize, arguments: &[&str]| start(wire, 0, &sandboxes[side], &self.net, arguments, shown);
        let server = start(0, &["-s", "-2"]);
        server.wait_for("listening", LIMIT);
        let client = start(1, &["-h", places[0], "-2"]).finish(LIMIT);
        let server = server.finish(LIMIT);
        check_output("server", &server, SUCCESS_LINE)?;
        check_output("client", &client, SUCCESS_LINE)?;
        Ok([server, client])
    }
}

impl Pair {
    /// Waits for both sides. The last line of each must contain `last`.
    pub(super) fn end_well(self, last: &str) -> Result {
        self.finish(last).map(drop)
    }

    /// Same as `end_well`, and returns the client's output.
    pub(super) fn finish(self, last: &str) -> Result<Finished> {
        let client = self.client.finish(LIMIT);
        // If the client has failed, the server might wait for a long time.
        if !client.status.success() {
            let server = self.server.so_far();
            return Err(format!(
                "the client failed: {}\n{}{}\noutput of the server so far: {server}",
                client.status, client.stdout, client.stderr
            ));
        }
        let server = self.server.finish(LIMIT);
        check_output("server", &server, last)?;
        check_output("client", &client, last)?;
        Ok(client)
    }
}

/// Checks that a program succeeded and that its last line contains `last`.
pub(super) fn check_output(who: &str, finished: &Finished, last: &str) -> Result {
    let output = finished.stdout.lines().last().unwrap_or_default();
    match finished.status.success() && output.contains(last) {
        true => Ok(()),
        false => Err(format!(
            "{who}: {}, the last line does not contain {last:?}\n{}{}",
            finished.status, finished.stdout, finished.stderr
        )),
    }
}

/// Starts a system program on one side of the link.
pub(super) fn other(wire: &Wire, end: usize, command: &Command) -> Run {
    Run::start(wire.command(end, command))
}
