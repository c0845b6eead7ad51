//! dapltest: tests an interface adapter through uDAPL, with the command line of the C implementation's dapltest and
//! more options.
//!
//! ```text
//! dapltest -T S -D sm0                                                      the server, for concurrent clients
//! dapltest -T T -D sm0 -s localhost -V client SR 1024 4 server RW 2048 1    a transaction
//! dapltest -T P -D sm0 -s localhost -m p RW 4096                            performance
//! dapltest -T P -D sm0 -s localhost --sizes 1..1M --duration 10s SR         performance of all sizes
//! dapltest -T L -D sm0 -m 1000                                              limits
//! dapltest -T F -D sm0                                                      results of calls
//! dapltest -T Q -D sm0 -s localhost                                         ends the server
//! ```
//!
//! Modules, from the bottom up: `dat` (calls of libdat by `udapl`), `failure`, `stop`, `cpu`; `operation`, `amounts`,
//! `script`, `wire` (parsers and encoders without I/O); `common` (options that every test accepts); `progress`,
//! `header`, `report`; `shared_objects`, `channel` (the control connection); `client`, `server`; the tests
//! `transaction`, `performance`, `limits`, `functional`; `options`.
//!
//! Only `dat` and `cpu` have unsafe code. The program uses the C ABI alone, so it runs over any libdat.so.1. A test
//! fails if an expected event does not arrive within the time limit.

/// Prints a line to standard output. Unlike the macro of `std`, ignores a closed pipe, as after `... | head -1`.
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod amounts;
mod channel;
mod client;
mod common;
mod cpu;
mod dat;
mod failure;
mod functional;
mod header;
mod limits;
mod operation;
mod options;
mod performance;
mod progress;
mod report;
mod script;
mod server;
mod shared_objects;
mod stop;
mod transaction;
mod wire;

use std::process::ExitCode;

use common::Common;
use failure::Result;
use options::Command;
use report::Report;

fn main() -> ExitCode {
    let (common, command) = match options::parse(std::env::args_os().collect()) {
        Ok(read) => read,
        Err(said) => {
            // clap prints help to standard output and errors to standard error. A closed pipe is ignored.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2));
        }
    };
    if let Err(error) = dat::raw::load() {
        eprintln!("dapltest: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = stop::listen() {
        eprintln!("dapltest: cannot handle signals: {error}");
        return ExitCode::FAILURE;
    }
    match run(&common, command) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs the command. Returns whether it succeeded.
fn run(common: &Common, command: Command) -> bool {
    let (name, result) = match command {
        Command::List => {
            functional::list();
            return true;
        }
        Command::Serve => ("server", server::run(common).map(|()| None)),
        Command::Quit { host } => ("quit", client::quit(common, &host).map(|()| None)),
        Command::Transaction { host, test } => ("transaction", transaction::run(common, &host, &test).map(Some)),
        Command::Performance { host, test } => ("performance", performance::run(common, &host, &test).map(Some)),
        Command::Limits { width, maximum, limits } => {
            ("limits", limits::run(common, width, maximum, &limits).map(Some))
        }
        Command::Functional { choices, is_verbose } => {
            ("functional", functional::run(common, &choices, is_verbose).map(Some))
        }
    };
    publish(common, name, result)
}

fn publish(common: &Common, name: &str, result: Result<Option<Report>>) -> bool {
    match result {
        Ok(Some(report)) => report.publish(),
        Ok(None) => true,
        Err(failure) if is_test(name) => Report::of_failure(name, common, &failure).publish(),
        Err(failure) => {
            eprintln!("dapltest: {failure}");
            false
        }
    }
}

/// Whether this is a test with results, in contrast to the server and to `-T Q`.
fn is_test(name: &str) -> bool {
    !["server", "quit"].contains(&name)
}
