//! The suites by name. A suite consists of files of `test/tests`, or is one of the following: `unit` (tests beside the
//! sources), `loom` and `threads` (`proofs`: separate builds), `nightly` (`proofs`: long simulations), `report` (the
//! page of the benches), `instructions` (compared with docs/benchmarks.md), `net` (network namespaces), `rxe` (guests),
//! `coverage` (line coverage of other suites).
//!
//! `cargo xtask test` leaves out the suites that need a guest, root, a download, a package build, a separate build or
//! much time. It lists the time of each suite at the end. `--rest` runs the suites that are left out, except `nightly`
//! and `coverage`, and longer runs of `udapl` and usnic's simulator. `--all` runs all of these. Each output ends with
//! `test result:` lines.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use dapl_test::program;
use dapl_test::run::SOAK;
use dapl_test::stage::{target_directory, workspace};

use crate::cli::Test;
use crate::guest::rxe;
use crate::programs::{self, Program};
use crate::quiet::{capture, capture_and_show, cargo, explanation, step};
use crate::{Result, bench, conformance, coverage, net, proofs, setup};

/// Suites and single test programs of `test/tests` that `cargo xtask test` leaves out.
const LEFT_OUT: [&str; 6] = ["walkthrough", "deb", "foreign", "rpm", "conformance_crossed", "new_provider"];
/// Unit tests of xtask that start a browser. `quick` leaves them out; the suite `report` runs them.
const IN_A_BROWSER: &str = "bench::page::tests::drawn";
/// Test program whose tests repeat themselves more often in `--rest`.
const SOAK_PROGRAM: &str = "udapl";
/// Number of seeds of usnic's simulator in `--rest`; `quick` runs the default number.
const SIMULATOR_RUNS: &str = "5000";
/// System tools that the suites need.
const NEEDED: [setup::Tool; 3] = [setup::CC, setup::CXX, setup::VALGRIND];
/// The slowest jobs of `quick`, which are started first.
const SLOWEST: [&str; 7] = [
    "suite conformance",
    "unit tests of daplsm",
    "unit tests of daplusnic",
    "suite datinfo",
    "suite datinfo_path",
    "suite faults_waits",
    "unit tests of dapl",
];
/// Tools without which some checks are skipped.
const RECOMMENDED: [setup::Tool; 3] = [setup::RDMA_HEADERS, setup::MANDOC, setup::PKG_CONFIG];

/// Runs the selected suites, or one suite with arguments for cargo.
pub(crate) fn run(test: &Test) -> Result {
    let known = binaries()?;
    let args: Vec<&str> = test.args.iter().map(String::as_str).collect();
    if let Some(suites) = several(test.suite.as_deref(), &args, &known) {
        return both(&suites.iter().map(|suite| selected(suite, &[], &known, test)).collect::<Vec<_>>());
    }
    match test.suite.as_deref() {
        _ if test.list => {
            println!("{}", names(&known).join(" "));
            Ok(())
        }
        None if test.rest => rest(&known, test.required),
        None if test.all => both(&[quick(), rest(&known, test.required)]),
        None => quick(),
        Some(suite) => selected(suite, &args, &known, test),
    }
}

/// Runs the suite that the command line names, with its arguments.
fn selected(suite: &str, args: &[&str], known: &[String], test: &Test) -> Result {
    match suite {
        "coverage" => coverage::run(args),
        // The arguments are those of the driver. Without arguments, the test program `conformance` runs the driver over
        // sm and usnic, through both versions of libdat.
        "conformance" if !args.is_empty() => conformance::run(args),
        "net" => net::run(test.required, &to_owned(args)),
        "rxe" => rxe::run(test.required, &to_owned(args)),
        _ => one(suite, known, args),
    }
}

fn to_owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Names of all suites: those that are not files of `test/tests` first.
fn names(known: &[String]) -> Vec<&str> {
    let of_files: BTreeSet<&str> = known.iter().map(|name| suite_of(name)).collect();
    ["unit", "loom", "threads", "nightly", "report", "instructions", "rxe", "net"].into_iter().chain(of_files).collect()
}

/// The suites to run, if the first argument and all others name suites. Otherwise the others are arguments of the
/// first.
fn several<'a>(first: Option<&'a str>, args: &[&'a str], known: &[String]) -> Option<Vec<&'a str>> {
    let names = names(known);
    let suites: Vec<&str> = first.into_iter().chain(args.iter().copied()).collect();
    (suites.len() > 1 && suites.iter().all(|suite| names.contains(suite))).then_some(suites)
}

/// Runs all test programs except those of `LEFT_OUT`, and the documentation tests. A failure does not stop the others.
fn quick() -> Result {
    setup::require(&NEEDED)?;
    setup::recommend(&RECOMMENDED);
    step("build the libraries and programs", programs::build_staged)?;
    let programs = step("build the tests", programs::build_tests)?;
    let mut jobs: Vec<Job> = programs.iter().filter_map(Job::of_program).collect();
    jobs.push(Job { name: "documentation tests".to_owned(), command: cargo_command(&["-p", "udapl", "--doc"]) });
    side_by_side(jobs)
}

/// A program that `quick` runs beside others.
struct Job {
    name: String,
    command: Command,
}

impl Job {
    /// The job of a test program; `None` if `quick` leaves it out.
    fn of_program(program: &Program) -> Option<Self> {
        let target = &program.target;
        let name = if program.is_unit { format!("unit tests of {target}") } else { format!("suite {target}") };
        let is_left_out = LEFT_OUT.contains(&suite_of(target)) || LEFT_OUT.contains(&target.as_str());
        let mut command = program.command();
        if target == "xtask" {
            command.args(["--skip", IN_A_BROWSER]);
        }
        (program.is_unit || !is_left_out).then_some(Job { name, command })
    }
}

/// Runs several jobs at a time, since many of them mostly wait for timeouts: two for each processor. Prints a job's
/// output when the job ends, and a list of all times at the end.
fn side_by_side(mut queue: Vec<Job>) -> Result {
    let at_once = 2 * thread::available_parallelism().map_or(2, usize::from);
    // Starts the slowest jobs first, so that the run does not end with a single slow job.
    queue.sort_by_key(|job| SLOWEST.iter().position(|long| job.name == *long).unwrap_or(SLOWEST.len()));
    queue.reverse();
    let (queue, results) = (Mutex::new(queue), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.pop();
    let run_next = || {
        while let Some(Job { name, mut command }) = next() {
            let began = Instant::now();
            let result = step(&name, || {
                let (output, is_good) = capture(&mut command, &log_of(&name))?;
                // Written in one call, so that the lines of two jobs do not mix.
                let _ = std::io::stdout().lock().write_all(&output);
                if is_good { Ok(()) } else { Err(failure(&name, &output)) }
            });
            if let Ok(mut results) = results.lock() {
                results.push((name, began.elapsed(), result));
            }
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| _ = scope.spawn(run_next)));
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(_, time, _)| std::cmp::Reverse(*time));
    results.iter().for_each(|(name, time, result)| eprintln!("xtask: {}", summary(name, *time, result.is_ok())));
    both(&results.into_iter().map(|(_, _, result)| result).collect::<Vec<_>>())
}

fn log_of(name: &str) -> PathBuf {
    target_directory().join("test-logs").join(format!("{name}.log"))
}

/// The error of a failed step. It contains the explanation, because a run prints many lines after the step.
fn failure(name: &str, output: &[u8]) -> String {
    format!("{name} failed ({}):\n{}", log_of(name).display(), explanation(output))
}

/// A line of the final list: name, time and result of a step.
fn summary(name: &str, time: Duration, is_good: bool) -> String {
    format!("{:>8.1} s  {}  {name}", time.as_secs_f64(), if is_good { "ok    " } else { "FAILED" })
}

/// Runs the suites that `quick` leaves out. With `is_required`, checks that lack namespaces, guests or tools fail
/// instead of being skipped.
fn rest(known: &[String], is_required: bool) -> Result {
    setup::require(&NEEDED)?;
    let tools = [
        setup::CHROMIUM,
        setup::DPKG_DEV,
        setup::DEBHELPER,
        setup::RPMBUILD,
        setup::LINTIAN,
        setup::MANDOC,
        setup::PKG_CONFIG,
        setup::RDMA_HEADERS,
    ];
    if is_required {
        setup::require(&tools)?
    } else {
        setup::recommend(&tools)
    }
    let mut results = Vec::new();
    for suite in LEFT_OUT {
        results.push(step(&format!("suite {suite}"), || {
            let arguments = arguments(suite, known, &[])?;
            let mut cargo = cargo_command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            if is_required {
                cargo.env(program::REQUIRED, "1");
            }
            run_among_others(suite, cargo)
        }));
    }
    if is_required {
        // `quick` skips this suite if a header is missing. Here the headers exist: `tools` are required.
        results.push(step("suite rdma", || tests("rdma", known, &[], run_among_others)));
    }
    results.push(step("soak", || {
        let mut cargo = cargo_command(&["--workspace", "--no-fail-fast", "--test", SOAK_PROGRAM]);
        cargo.env(SOAK, "1");
        run_among_others("soak", cargo)
    }));
    results.push(step("usnic simulator", || {
        let programs = programs::build_tests()?;
        let usnic = programs.iter().find(|program| program.is_unit && program.target == "daplusnic");
        let mut command = usnic.ok_or("cargo builds no unit tests of daplusnic")?.command();
        command.arg("tests::sim::").env("DAPL_SIM_RUNS", SIMULATOR_RUNS);
        run_among_others("usnic simulator", command)
    }));
    results.push(step("suite report", || report(&[], run_among_others)));
    results.push(step("suite instructions", bench::check));
    results.push(step("loom", || proofs::loom(&[], run_among_others)));
    results.push(step("threads under ThreadSanitizer", || proofs::threads(&[], run_among_others)));
    results.push(step("net", || net::run(is_required, &[])));
    results.push(step("rxe", || rxe::run(is_required, &[])));
    both(&results)
}

/// Joins all failures into one message.
fn both(results: &[Result]) -> Result {
    let failed: Vec<&str> = results.iter().filter_map(|result| result.as_ref().err().map(String::as_str)).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Runs a suite that cargo builds, after a check for the tools that it needs.
fn one(suite: &str, known: &[String], rest: &[&str]) -> Result {
    setup::require(&NEEDED)?;
    match suite {
        "report" => setup::require(&[setup::CHROMIUM])?,
        "rdma" => setup::recommend(&[setup::RDMA_HEADERS]),
        "man" => setup::recommend(&[setup::MANDOC]),
        "install" => setup::recommend(&[setup::PKG_CONFIG]),
        "deb" => setup::recommend(&[setup::DPKG_DEV, setup::DEBHELPER, setup::LINTIAN]),
        "rpm" => setup::recommend(&[setup::RPMBUILD]),
        _ => {}
    }
    match suite {
        "loom" => proofs::loom(rest, run_alone),
        "threads" => proofs::threads(rest, run_alone),
        "nightly" => proofs::nightly(rest, run_alone),
        "report" => report(rest, run_alone),
        "instructions" => bench::check(),
        // The tests of killed and malicious peers use the provider's internals, so they are unit tests of daplsm.
        "faults" if rest.is_empty() => {
            tests(suite, known, rest, run_alone).and(run_alone("faults within sm", cargo_command(&WITHIN_SM)))
        }
        _ => tests(suite, known, rest, run_alone),
    }
}

/// Runs the tests of the bench page, which are unit tests of xtask.
fn report(rest: &[&str], run: Runner) -> Result {
    run("report", cargo_command(&[&["-p", "xtask", "bench::page"], rest].concat()))
}

/// Modules of daplsm's unit tests that belong to the suite `faults`.
const WITHIN_SM: [&str; 13] = [
    "-p",
    "daplsm",
    "--lib",
    "--",
    "tests::killed_processes",
    "tests::stopped_processes",
    "tests::copies_of_killed_peers",
    "tests::base_directory",
    "tests::fifo",
    "tests::invalid_data",
    "tests::changing_tables",
    "tests::hostile_processes",
    "tests::sleeping_receivers",
];

/// Runs a suite and prints its output.
fn tests(suite: &str, known: &[String], rest: &[&str], run: Runner) -> Result {
    let arguments = arguments(suite, known, rest)?;
    run(suite, cargo_command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Arguments of cargo for a suite. All packages are named, so that cargo builds each dependency once for all suites.
fn arguments(suite: &str, known: &[String], rest: &[&str]) -> Result<Vec<String>> {
    let mut arguments = vec!["--workspace", "--no-fail-fast"];
    if suite == "unit" {
        arguments.extend(["--lib", "--bins"]);
    } else {
        let chosen: Vec<&String> = known.iter().filter(|name| suite_of(name) == suite || *name == suite).collect();
        if chosen.is_empty() {
            return Err(format!("unknown suite {suite}; list the suites: cargo xtask test --list"));
        }
        arguments.extend(chosen.into_iter().flat_map(|name| ["--test", name]));
    }
    Ok([&arguments, rest].concat().into_iter().map(str::to_owned).collect())
}

/// Runs the command of a suite with this name: [`run_alone`] or [`run_among_others`].
pub(crate) type Runner = fn(&str, Command) -> Result;

/// Runs the command of a suite with the terminal as its output. The error does not repeat the output, because nothing
/// is printed after it.
fn run_alone(name: &str, mut command: Command) -> Result {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("suite {name} failed")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Runs the command of a suite before others. If it fails, the error repeats the explanation.
fn run_among_others(name: &str, mut command: Command) -> Result {
    let name = format!("suite {name}");
    let (output, is_good) = capture_and_show(&mut command, &log_of(&name))?;
    if is_good { Ok(()) } else { Err(failure(&name, &output)) }
}

fn cargo_command(arguments: &[&str]) -> Command {
    let mut cargo = cargo();
    cargo.arg("test").args(arguments);
    cargo
}

/// Names of all test programs.
fn binaries() -> Result<Vec<String>> {
    let directory = workspace().join("test/tests");
    let files = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let files = files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let mut names: Vec<_> = files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Suite of a test program, for example `abi` for `abi_rust`.
fn suite_of(binary: &str) -> &str {
    binary.split('_').next().unwrap_or(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_all_suite_names_select_those_suites() {
        let known = ["abi", "abi_rust", "conformance", "registry"].map(str::to_owned);
        assert_eq!(several(Some("abi"), &["conformance"], &known), Some(vec!["abi", "conformance"]));
        assert_eq!(several(Some("abi"), &["exports_of"], &known), None);
        assert_eq!(several(Some("conformance"), &["--api", "2.0"], &known), None);
        assert_eq!((several(Some("abi"), &[], &known), several(None, &[], &known)), (None, None));
    }

    #[test]
    fn the_final_list_has_time_result_and_name() {
        assert_eq!(summary("suite abi", Duration::from_millis(12_340), true), "    12.3 s  ok      suite abi");
        assert_eq!(summary("unit", Duration::from_secs(600), false), "   600.0 s  FAILED  unit");
    }
}
