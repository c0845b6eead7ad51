//! The command line; `cargo xtask help COMMAND` prints it.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use dapl_test::stage::Profile;

/// The project's commands.
///
/// demo, test, guest, bench, build and install bring the system packages they need, or say which. Builds go into cargo's target
/// directory.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run dtest, server and client, over the sm provider; succeeds only if all data checked
    Demo,
    /// Run all suites that need no guest, no root and no package build, or one suite
    Test(Test),
    /// Run a program of this machine in a guest that has soft-RoCE, with the staged libraries
    Guest(Guest),
    /// Measure sm, usnic and verbs, then make one page of all results: bench/report.html in the target directory
    #[command(args_conflicts_with_subcommands = true)]
    Bench(Bench),
    /// Install what the suites need
    Setup,
    /// Lay out libraries, headers, programs and a dat.conf as installed, and say where
    Build {
        /// Use the build of the tests: quicker to build, without link-time optimization
        #[arg(long)]
        debug: bool,
    },
    /// Write the manual pages
    Man {
        /// Below this directory; without it, man/ in the target directory
        directory: Option<PathBuf>,
    },
    /// Write the table of docs/settings.md from the settings of the libraries
    Settings,
    /// Install below a prefix; what is there of others stays
    Install(Install),
    /// Make Debian packages: source, binary, debug symbols
    Deb(Packages),
    /// Make RPM packages
    Rpm(Packages),
    /// Write the start of a new provider: a copy of test/loopback, which connects endpoints of one process
    NewProvider {
        /// Its name: 1 to 10 lower-case letters and digits; the library is libdaplNAME.so.1
        name: String,
        /// Directory outside of the workspace; without it, providers/NAME, and the workspace gets a member
        #[arg(long)]
        path: Option<PathBuf>,
    },
    /// Take away what install has put below a prefix
    Uninstall(Install),
}

#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Everything: also what --rest runs
    #[arg(long, conflicts_with = "rest")]
    pub(crate) all: bool,
    /// Only what the command without arguments leaves out: deb, rpm, report, loom, threads, net, rxe
    #[arg(long)]
    pub(crate) rest: bool,
    /// Fail where something would be skipped for lack of network namespaces, guests or packages (--all, --rest, net, rxe)
    #[arg(long)]
    pub(crate) required: bool,
    /// List the suites
    #[arg(long)]
    pub(crate) list: bool,
    /// One suite; `coverage` runs suites instrumented and counts the lines of the object layer that ran
    #[arg(conflicts_with_all = ["all", "rest", "list"])]
    pub(crate) suite: Option<String>,
    /// For cargo test; for `net` and `rxe` parts of the names of checks; for `conformance` its own arguments (`list` names its
    /// cases, `--provider NAME` takes any adapter); for `coverage` a suite and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Guest {
    /// Ends the program after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) limit: u64,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) one: Option<BenchOf>,
    /// A little of each
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchOf {
    /// Make the page of the results that are there, without measuring
    Report {
        /// The directory of the results; without it, bench/ in the target directory
        #[arg(long)]
        from: Option<PathBuf>,
        /// The page; without it, report.html in that directory
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measure the sm provider beside its peers; writes bench/sm.json and, with a curve, bench/sm.svg
    Sm(Selection),
    /// Measure the usnic provider beside sockperf, iperf3 and libfabric; what is about loss (U7, loss) needs root
    Usnic(Selection),
    /// Measure what thousands of idle endpoints cost the thread that polls their EVD; writes bench/evd.json
    Evd,
    /// Count the instructions of each call over sm and usnic; writes bench/instructions.json
    Instructions {
        /// Also into docs/benchmarks.md
        #[arg(long)]
        write: bool,
        /// sm, usnic; without any, both
        providers: Vec<String>,
    },
    /// Measure the verbs provider beside perftest and the 2.0 reference in a guest; writes bench/verbs.json
    Verbs {
        /// By time; without it, by instructions
        #[arg(long)]
        clock: bool,
        #[command(flatten)]
        selection: Selection,
    },
}

/// Selection of measurements.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Selection {
    /// A little of it
    #[arg(long)]
    pub(crate) quick: bool,
    /// Targets (S1 .. S9, U1 .. U7, V1 .. V14) and sections (latency, percentiles, bandwidth, connects, memory, ...); without any,
    /// everything
    pub(crate) names: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Install {
    /// Everything but configuration goes below it
    #[arg(long, value_name = "P", default_value = "/usr/local")]
    pub(crate) prefix: PathBuf,
    /// For packages: puts the tree below this directory
    #[arg(long, value_name = "D")]
    pub(crate) destdir: Option<PathBuf>,
    /// Directory of dat.conf; default: etc below the prefix
    #[arg(long, value_name = "C")]
    pub(crate) sysconfdir: Option<PathBuf>,
    /// Directory of libraries; default: lib below the prefix
    #[arg(long, value_name = "L")]
    pub(crate) libdir: Option<PathBuf>,
    /// For packages: binaries are not stripped, programs have no search path, C programs get CFLAGS and LDFLAGS, and each provider
    /// has its lines in dat.conf.d
    #[arg(long)]
    pub(crate) package: bool,
    /// Install the build of the tests, whose libdat reads /etc
    #[arg(long)]
    pub(crate) debug: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Packages {
    /// Directory of packages, which is emptied before; default: deb/ or rpm/ in the target directory
    #[arg(long, value_name = "D")]
    pub(crate) output: Option<PathBuf>,
    /// Build again elsewhere, and compare all bytes (Debian packages)
    #[arg(long)]
    pub(crate) twice: bool,
    /// Of what the tests have built
    #[arg(long)]
    pub(crate) debug: bool,
}

/// The profile of a command with `--debug`.
pub(crate) fn profile(debug: bool) -> Profile {
    if debug { Profile::Dev } else { Profile::Dist }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn test(words: &str) -> Option<Test> {
        let cli = Cli::try_parse_from(["xtask", "test"].into_iter().chain(words.split_whitespace()));
        match cli.ok()?.command {
            Command::Test(test) => Some(test),
            _ => None,
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_a_suite_are_passed_on() {
        let conformance = test("conformance --provider usnic0 --verbose case").unwrap();
        assert_eq!(conformance.suite.as_deref(), Some("conformance"));
        assert_eq!(conformance.args, ["--provider", "usnic0", "--verbose", "case"]);
        let rxe = test("rxe --required dtest::socket").unwrap();
        assert!(rxe.required && rxe.args == ["dtest::socket"], "{rxe:?}");
        assert_eq!(test("abi -- --nocapture").unwrap().args, ["--nocapture"]);
    }

    #[test]
    fn everything_and_a_suite_exclude_each_other() {
        assert!(test("--all --required").is_some_and(|test| test.all && test.required));
        assert!(test("--all --rest").is_none() && test("--all abi").is_none() && test("--colour").is_none());
    }

    #[test]
    fn a_bench_takes_names_or_everything() {
        let bench = |words: &[&str]| Cli::try_parse_from([&["xtask", "bench"], words].concat());
        assert!(bench(&["--quick"]).is_ok() && bench(&["sm", "--quick", "S1", "latency"]).is_ok());
        assert!(bench(&["nothing"]).is_err() && bench(&["verbs", "--clock"]).is_ok());
    }
}
