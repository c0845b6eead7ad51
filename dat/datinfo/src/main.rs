//! `datinfo`: what the DAT registry of this machine offers, whether each adapter opens, and if not why. This page is the house.
//!
//! | room | what it knows |
//! |---|---|
//! | `options` | the command line |
//! | `libdat` | the library, found as programs find it, and what it says of itself (unsafe) |
//! | `probe` | the child: reads the registry, or opens one adapter, and answers in JSON |
//! | `child` | the parent's side: starts a child, with a limit of time, and says how it ended |
//! | `registry`, `adapter` | a child's answers, read |
//! | `attributes` | the attribute records as names, values and units |
//! | `list`, `settings`, `check` | what is printed |
//! | `doctor` | what this host, or a pair of hosts, lacks |
//! | `top` | the counters of running processes, which tell them by themselves |
//! | `system` | calls of the kernel's (unsafe) |
//!
//! Nothing of libdat or a provider runs in this process itself: one that crashes or hangs ends its child, and the listing
//! goes on. Works without a device and without rights; changes nothing. Exit status: 0, 1 if nothing is usable (`check`,
//! `doctor`: something is wrong; `top --once`: nothing to show), 2 for errors.

mod adapter;
mod attributes;
mod check;
mod child;
mod doctor;
mod libdat;
mod list;
mod options;
mod probe;
mod registry;
mod settings;
mod system;
mod top;

use std::process::ExitCode;

use clap::Parser;

use options::{Command, Options};

/// What a command answers: whether all is as it should be, or why nothing can be said.
type Result<T = bool> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.command {
        None if options.version => list::versions(&options),
        None if options.environment => settings::environment(&options),
        None if options.configuration => settings::configuration(&options),
        None => list::list(&options),
        Some(Command::Check { file }) => check::check(&options, file.as_deref()),
        Some(Command::Discover) => list::discover(&options),
        Some(Command::Doctor(wanted)) => doctor::doctor(&options, wanted),
        Some(Command::Top(wanted)) => top::top(&options, wanted),
        Some(Command::Probe { name }) => probe::run(&options, name.as_deref()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("datinfo: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints text; a reader that has gone is no error.
fn say(text: &str) {
    tell(text);
}

/// Prints text, all of it now. False: nobody reads any more.
fn tell(text: &str) -> bool {
    use std::io::Write;
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Prints JSON, one document.
fn say_json(value: &serde_json::Value) {
    say(&format!("{value:#}\n"));
}
