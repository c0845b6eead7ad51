//! The suites, by name: each a file of `test/tests`, besides `unit` (what stands at the foot of the sources), those that
//! need a build of their own (`proofs`), `report` (the page of the benches, in this program), `net`, which makes network
//! namespaces, `rxe` (`guest`), which fetches a kernel, and `all`.
//!
//! cargo runs them, so the output ends in its `test result:` lines.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::process::Command;

use dapl_test::stage::workspace;

use crate::guest::rxe;
use crate::{Result, net, proofs, setup};

/// Runs what the arguments ask for: a suite, then what is cargo's.
pub(crate) fn run(arguments: &[&str]) -> Result {
    let (suite, rest) = match arguments.split_first() {
        Some((suite, rest)) if !suite.starts_with('-') || *suite == "--list" => (*suite, rest),
        _ => ("all", arguments),
    };
    let known = binaries()?;
    if suite == "--list" {
        let names: BTreeSet<&str> = known.iter().map(|name| suite_of(name)).collect();
        println!("all unit loom threads nightly report rxe net {}", names.into_iter().collect::<Vec<_>>().join(" "));
        return Ok(());
    }
    setup::require(&[setup::CC, setup::CXX, setup::VALGRIND])?;
    match suite {
        "report" => setup::require(&[setup::CHROMIUM])?,
        "all" if rest == ["--required"] => setup::require(&[setup::CHROMIUM])?,
        "all" | "unit" => setup::wish(&[setup::CHROMIUM]),
        _ => {}
    }
    match suite {
        "rdma" => setup::wish(&[setup::RDMA_HEADERS]),
        "all" if rest == ["--required"] => setup::require(&[setup::RDMA_HEADERS])?,
        _ => {}
    }
    match suite {
        "all" => {
            setup::wish(&[setup::RDMA_HEADERS, setup::MANDOC, setup::PKG_CONFIG, setup::SHLIBDEPS, setup::LINTIAN])
        }
        "man" => setup::wish(&[setup::MANDOC]),
        "install" => setup::wish(&[setup::PKG_CONFIG]),
        "deb" => setup::wish(&[setup::SHLIBDEPS, setup::LINTIAN]),
        _ => {}
    }
    match suite {
        "loom" => proofs::loom(rest),
        "threads" => proofs::threads(rest),
        "nightly" => proofs::nightly(rest),
        // All are run, whatever comes of the first. --required: not even those that need namespaces or guests may be skipped.
        "all" if rest.is_empty() || rest == ["--required"] => {
            let host = tests(suite, &known, &[]).and(proofs::loom(&[])).and(proofs::threads(&[]));
            host.and(net::run(rest)).and(rxe::run(rest))
        }
        // The page is made in this program, so its tests are here as well.
        "report" => cargo_test(suite, &[&["-p", "xtask", "bench::page"], rest].concat()),
        // Its points of death and its liars know the provider from inside.
        "faults" if rest.is_empty() => tests(suite, &known, rest).and(cargo_test("faults within sm", &WITHIN_SM)),
        _ => tests(suite, &known, rest),
    }
}

/// The rooms of the provider's own tests that belong to `faults`.
const WITHIN_SM: [&str; 13] = [
    "-p",
    "daplsm",
    "--lib",
    "--",
    "tests::kills",
    "tests::stops",
    "tests::copies",
    "tests::folders",
    "tests::words",
    "tests::liars",
    "tests::tables",
    "tests::storm",
    "tests::waits",
];

/// Runs suites as cargo builds them for everybody.
fn tests(suite: &str, known: &[String], rest: &[&str]) -> Result {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).arg("test");
    match suite {
        "all" => cargo.args(["--workspace", "--no-fail-fast"]),
        // Without the one package whose library holds another's: it has no tests, and --lib would make some of it.
        "unit" => cargo.args(["--workspace", "--exclude", "daplfaulty", "--lib", "--bins", "--no-fail-fast"]),
        _ => {
            let chosen: Vec<_> = known.iter().filter(|name| suite_of(name) == suite).collect();
            if chosen.is_empty() {
                return Err(format!("no suite is called {suite}; cargo xtask test --list names them"));
            }
            cargo.args(["-p", "dapl-test", "--no-fail-fast"]);
            chosen.into_iter().fold(&mut cargo, |cargo, name| cargo.args(["--test", name]))
        }
    };
    succeeds(suite, cargo.args(rest))
}

fn cargo_test(what: &str, arguments: &[&str]) -> Result {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    succeeds(what, cargo.current_dir(workspace()).arg("test").args(arguments))
}

fn succeeds(what: &str, cargo: &mut Command) -> Result {
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("suite {what} failed")),
        Err(error) => Err(format!("{cargo:?}: {error}")),
    }
}

/// The test programs there are.
fn binaries() -> Result<Vec<String>> {
    let directory = workspace().join("test/tests");
    let files = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let files = files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let mut names: Vec<_> = files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// `abi_rust` belongs to `abi`.
fn suite_of(binary: &str) -> &str {
    binary.split('_').next().unwrap_or(binary)
}
