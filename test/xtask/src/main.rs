//! The project's commands. `cargo xtask --help` lists them; README shows `demo` and `test`.
//!
//! Commands that need Debian packages check for them by `setup`. Commands that need the built libraries as in an
//! install use `tree`.

/// Prints a line to standard output. Unlike the macro of `std`, ignores a closed pipe, as after `... | head -1`.
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints text to standard output, and ignores a closed pipe.
macro_rules! print {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = write!(std::io::stdout(), $($text)*);
    }};
}

mod bench;
mod cli;
mod conformance;
mod coverage;
mod demo;
mod guest;
mod install;
mod iperf;
mod json;
mod layout;
mod man;
mod net;
mod new_provider;
mod packages;
mod programs;
mod proofs;
mod quiet;
mod reference;
mod release;
mod report;
mod setup;
mod suites;
mod tree;

use std::process::ExitCode;

use clap::Parser;

use cli::{Bench, BenchOf, Cli, Command};

/// Result of a command: an error message if it failed.
type Result<T = ()> = std::result::Result<T, String>;

fn main() -> ExitCode {
    // The suites' helpers panic with the output of a compiler or program, so only that text is printed.
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        eprintln!("xtask: {}", text.unwrap_or("failed"));
    }));
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result {
    match command {
        Command::Demo => demo::run(),
        Command::Test(test) => suites::run(&test),
        Command::Guest(guest) => guest::command::run(&guest),
        Command::Bench(Bench { one: None, quick }) => bench::all(quick),
        Command::Bench(Bench { one: Some(one), .. }) => match one {
            BenchOf::Report { from, output } => bench::page(from, output),
            BenchOf::Sm(selection) => bench::sm(&selection),
            BenchOf::Usnic(selection) => bench::usnic(&selection),
            BenchOf::Evd => bench::evd(),
            BenchOf::Instructions { write, providers } => bench::instructions(&providers, write),
            BenchOf::Verbs { clock, selection } => bench::verbs(clock, &selection),
        },
        Command::Setup => setup::run(),
        Command::Build { debug } => tree::build(cli::profile(debug)).map(|tree| tree.announce()),
        Command::Man { directory } => man::run(directory),
        Command::Settings => man::write_settings(),
        Command::Install(install) => install::install(&install),
        Command::NewProvider { name, path } => new_provider::run(&name, path.as_deref()),
        Command::Deb(arguments) => packages::deb::run(&arguments),
        Command::Rpm(arguments) => packages::rpm::run(&arguments),
        Command::Uninstall(install) => install::uninstall(&install),
    }
}
