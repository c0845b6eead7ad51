//! `datinfo`: lists the DAT registry of this machine, whether each adapter opens, and if not why. Its commands also
//! show settings, explain names and numbers of DAT, check and edit a dat.conf, look for problems of hosts, and show the
//! counters of running processes.
//!
//! | module | purpose |
//! |---|---|
//! | `options` | the command line |
//! | `libdat` | loads libdat and calls it (unsafe) |
//! | `probe` | the child process: reads the registry, or opens one adapter, and answers in JSON |
//! | `child` | the parent process: starts a child with a time limit, and reports how the child ended |
//! | `registry`, `adapter` | results of a child: the registry, or whether an adapter opens |
//! | `attributes` | the attribute records as names, values and units |
//! | `list`, `settings`, `check` | output of the commands |
//! | `explain` | names and numbers of DAT |
//! | `edit` | edits a dat.conf |
//! | `nearest`, `words` | similar names; line breaks of text |
//! | `doctor` | problems of this host, or of a pair of hosts |
//! | `top` | counters of running processes |
//! | `system` | system calls (unsafe) |
//!
//! libdat and providers run only in child processes: a crash or hang ends only the child, and the listing continues. Of
//! libdat's code, the program itself contains only the parser of dat.conf. It works without a device and without
//! privileges, and changes only a dat.conf that the user asks it to edit.
//!
//! Exit status: 0 for success; 1 if no adapter is usable, if `list`, `discover` or `-c` has no adapter to print, if
//! `check` or `doctor` found a problem, if no process has answered `top --once` or `top --openmetrics`, or if `explain
//! --json` got an unknown word; 2 for errors.

mod adapter;
mod attributes;
mod check;
mod child;
mod doctor;
mod edit;
mod explain;
mod libdat;
mod list;
mod nearest;
mod options;
mod probe;
mod registry;
mod settings;
mod system;
mod top;
mod words;

use std::process::ExitCode;

use clap::Parser;
use dat_settings::log_line;

use options::{Add, Command, Options, Remove};

/// Result of a command: true for exit status 0, false for exit status 1, or an error message.
type Result<T = bool> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() && std::env::args_os().any(|word| word == "--json") => {
            return failed(true, &first_paragraph(&error.to_string()));
        }
        Err(error) => error.exit(),
    };
    let result = match &options.command {
        None if options.version => list::versions(&options),
        None if options.environment => settings::environment(&options),
        None if options.configuration => settings::configuration(&options),
        None if options.list => list::names(&options, options.all),
        None if options.add_from.is_some() => {
            edit::add(&options, &Add { from: options.add_from.clone(), ..Add::default() })
        }
        None if options.remove_from.is_some() => {
            edit::remove(&options, &Remove { from: options.remove_from.clone(), ..Remove::default() })
        }
        None => list::list(&options),
        Some(Command::List { all }) => list::names(&options, *all),
        Some(Command::Add(wanted)) => edit::add(&options, wanted),
        Some(Command::Remove(wanted)) => edit::remove(&options, wanted),
        Some(Command::SetDefault(wanted)) => edit::set_default(&options, wanted),
        Some(Command::Check { file }) => check::check(&options, file.as_deref()),
        Some(Command::Discover) => list::discover(&options),
        Some(Command::Explain { words }) => explain::explain(&options, words),
        Some(Command::Doctor(wanted)) => doctor::doctor(&options, wanted),
        Some(Command::Top(wanted)) => top::top(&options, wanted),
        Some(Command::Probe { name }) => probe::run(&options, name.as_deref()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => failed(options.json, &error),
    }
}

/// The message of a command-line error on one line, without usage and hints.
fn first_paragraph(error: &str) -> String {
    let message = error.strip_prefix("error: ").unwrap_or(error);
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reports an error: with `--json` as a document on stdout, otherwise as text on stderr.
fn failed(is_json: bool, error: &str) -> ExitCode {
    match is_json {
        true => print_json(&serde_json::json!({ "error": log_line::without_numbers(error) })),
        false => eprintln!("datinfo: {}", log_line::without_numbers(error)),
    }
    ExitCode::from(2)
}

/// Prints a result: with `--json` as a document, otherwise as text.
fn print_result(options: &Options, document: impl FnOnce() -> serde_json::Value, text: impl FnOnce() -> String) {
    if options.json { print_json(&document()) } else { print_output(&text()) }
}

/// Prints text. A closed stdout is not an error.
fn print_output(text: &str) {
    print_text(&log_line::without_numbers(text));
}

/// Prints and flushes text. Returns false if stdout is closed.
fn print_text(text: &str) -> bool {
    use std::io::Write;
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

fn print_json(value: &serde_json::Value) {
    print_output(&format!("{value:#}\n"));
}
