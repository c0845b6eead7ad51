//! The suite `rxe`: what a guest offers, one check per line, as cargo's suites report.
//!
//! Says "skipped" on a machine that can run no guest; `--required` makes that a failure.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use dapl_test::stage::Profile;

use super::{Guest, Link, prepare};
use crate::tree::{self, Tree};
use crate::{Result, setup};

/// The slowest takes some seconds; a machine under load more. A hang ends here.
const LIMIT: Duration = Duration::from_secs(120);

/// perftest with itself: $1 is the address of the server, the rest a program and its arguments. 4853 is its port.
const WITH_ITSELF: &str = r#"
address=$1; shift
"$@" & server=$!
until grep -qi ':4853 ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 1; sleep 0.1; done
"$@" "$address" && wait $server"#;

/// dtest's two processes: $1 is the program. The client waits for its server.
const DTEST: &str = r#"
"$1" -s -P sm0 & server=$!
"$1" -P sm0 -h localhost && wait $server"#;

/// perftest's client: waits for the server on another machine. $1 is its address, the rest a program and its arguments.
const CLIENT: &str = r#"
address=$1; shift
for try in 1 2 3 4 5 6 7 8 9 10; do "$@" "$address" && exit 0; sleep 1; done; exit 1"#;

/// Runs it.
pub(crate) fn run(arguments: &[&str]) -> Result {
    let (mut is_required, mut is_pair) = (false, false);
    for argument in arguments {
        match *argument {
            "--required" => is_required = true,
            "--pair" => is_pair = true,
            other => return Err(format!("test rxe: {other} is not understood; see cargo xtask --help")),
        }
    }
    match setup::require(&[setup::DEVINFO, setup::PERFTEST, setup::PING]).and_then(|()| prepare()) {
        Ok(()) => {}
        Err(reason) if is_required => return Err(format!("no guest can run here: {reason}")),
        Err(reason) => {
            println!("\nskipped: {reason}\nskipped: NOTHING of the suite rxe was tested\n");
            return Ok(());
        }
    }
    let mut report = Report::default();
    let tree = tree::build(Profile::Release)?;
    let run = if is_pair { pair(&mut report) } else { alone(&mut report, &tree) };
    report.end(run)
}

fn alone(report: &mut Report, tree: &Tree) -> Result {
    let mut guest = Guest::boot(Link::Alone)?;
    report.line("guest_boots", true);
    report.check(&mut guest, "device_is_there", &shell("ibv_devinfo -d rxe0 && rdma link && uname -r", &[]))?;
    let address = Link::Alone.address();
    for program in ["ib_send_lat", "ib_write_bw"] {
        let command = shell(WITH_ITSELF, &[address, program, "-d", "rxe0", "-n", "200", "-F"]);
        report.check(&mut guest, &format!("{program}_over_rxe"), &command)?;
    }
    let mut dtest = shell(DTEST, &[&tree.dtest.display().to_string()]);
    dtest.env("LD_LIBRARY_PATH", &tree.stage.lib).env("DAT_OVERRIDE", &tree.conf);
    report.check(&mut guest, "dtest_over_sm", &dtest)?;
    files_come_back(report, &mut guest)?;
    guest.off()?;
    report.line("guest_goes", true);
    Ok(())
}

fn files_come_back(report: &mut Report, guest: &mut Guest) -> Result {
    let file = guest.share().join("kept");
    let status = guest.run(&shell("echo kept >\"$1\"; exit 7", &[&file.display().to_string()]), LIMIT, show)?;
    let is_kept = std::fs::read_to_string(&file).is_ok_and(|text| text == "kept\n");
    report.line("status_and_files_come_back", status == 7 && is_kept);
    Ok(())
}

/// Two guests with a wire between them.
fn pair(report: &mut Report) -> Result {
    let mut first = Guest::boot(Link::First)?;
    let mut second = Guest::boot(Link::Second(&first))?;
    report.line("guests_boot", true);
    let address = Link::First.address();
    report.check(&mut second, "ping_over_the_wire", &shell("ping -c 3 -W 10 \"$1\"", &[address]))?;
    let program = ["ib_send_lat", "-d", "rxe0", "-n", "200", "-F"];
    first.start(&shell("exec \"$@\"", &program))?;
    report.check(&mut second, "ib_send_lat_over_the_wire", &shell(CLIENT, &[&[address], &program[..]].concat()))?;
    let status = first.finish(LIMIT, show)?;
    report.line("its_server_ends_well", status == 0);
    second.off()?;
    first.off()?;
    report.line("guests_go", true);
    Ok(())
}

/// A shell's text, with what it calls $1 and on.
fn shell(text: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text, "sh"]).args(arguments);
    command
}

fn show(line: &str) {
    println!("guest | {line}");
}

#[derive(Default)]
struct Report {
    passed: u32,
    failed: u32,
}

impl Report {
    /// A command that must end well.
    fn check(&mut self, guest: &mut Guest, name: &str, command: &Command) -> Result {
        let status = guest.run(command, LIMIT, show);
        self.line(name, matches!(status, Ok(0)));
        status.map(drop)
    }

    fn line(&mut self, name: &str, is_good: bool) {
        *(if is_good { &mut self.passed } else { &mut self.failed }) += 1;
        println!("test {name} ... {}", if is_good { "ok" } else { "FAILED" });
    }

    /// The last line, and what the suite answers. A guest that broke is a failure more.
    fn end(mut self, run: Result) -> Result {
        if let Err(reason) = &run {
            self.failed += 1;
            eprintln!("{reason}");
        }
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        println!("\ntest result: {verdict}. {} passed; {} failed", self.passed, self.failed);
        if self.failed == 0 { Ok(()) } else { Err("suite rxe failed".to_owned()) }
    }
}
