//! The demonstration: dtest's server and client, two processes that find the sm provider through a dat.conf.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{Finished, Run, Sandbox};
use dapl_test::stage::{self, Profile};

use crate::{Result, tree};

/// Time limit. A run takes less than a second, and longer on a loaded machine; the limit ends a hang.
const LIMIT: Duration = Duration::from_secs(120);
/// Start of dtest's last line if every byte was correct.
const LAST_LINE: &str = "dtest: OK (checked ";

/// Runs the demonstration, and prints the output of both programs.
pub(crate) fn run() -> Result {
    let tree = tree::part("libdat and daplsm", || stage::stage_alone(Profile::Dev, &["daplsm"]))?;
    let sandbox = Sandbox::new(&tree.stage, None);
    let command = |arguments: &[&str]| {
        let mut command = sandbox.command(&tree.dtest, arguments);
        command.env("DAT_OVERRIDE", &tree.conf);
        command
    };
    println!("dat.conf: {}", tree.conf.display());
    println!("dtest:    {}", tree.dtest.display());

    let server = Run::start(command(&["-s", "-P", "sm0"]));
    println!("server:   process {}", server.id());
    server.wait_for("listening", LIMIT);
    let client = Run::start(command(&["-P", "sm0", "-h", "localhost"]));
    println!("client:   process {}\n", client.id());
    let (client, server) = (client.finish(LIMIT), server.finish(LIMIT));

    report("server", &server);
    report("client", &client);
    match [("server", &server), ("client", &client)].iter().find(|(_, end)| !is_good(end)) {
        None => {
            println!("demo: OK, both processes checked all data");
            Ok(())
        }
        Some((who, end)) => Err(format!("demo: the {who} failed ({})", end.status)),
    }
}

fn report(who: &str, end: &Finished) {
    for line in end.stdout.lines() {
        println!("{who} | {line}");
    }
    for line in end.stderr.lines() {
        println!("{who} ! {line}");
    }
    println!();
}

fn is_good(end: &Finished) -> bool {
    end.status.success() && end.stdout.lines().last().is_some_and(|line| line.starts_with(LAST_LINE))
}
