//! Parses the command line; `cargo xtask help COMMAND` prints its help.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use dapl_test::stage::Profile;

/// The project's commands.
///
/// Most commands need Debian packages. They install missing packages if run as root with apt-get; otherwise they print
/// the names. Builds go to cargo's target directory.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run dtest, server and client, over the sm provider; succeeds only if all received data was correct
    Demo,
    /// Run one suite, or all suites except those that --rest runs
    Test(Test),
    /// Run a program of this machine in a virtual machine (guest) that has soft-RoCE, with the staged libraries
    Guest(Guest),
    /// Measure sm, usnic and verbs, then write one HTML page with all results: bench/report.html in the target
    /// directory
    #[command(args_conflicts_with_subcommands = true)]
    Bench(Bench),
    /// Install the Debian packages that the suites need
    Setup,
    /// Stage libraries, headers, programs and a dat.conf like an install, and print the directory
    Build {
        /// Use the build of the tests: quicker to build, without link-time optimization
        #[arg(long)]
        debug: bool,
    },
    /// Write the manual pages
    Man {
        /// Directory to write to; default: man/ in the target directory
        directory: Option<PathBuf>,
    },
    /// Write the table of docs/settings.md from the settings of the libraries
    Settings,
    /// Install below a prefix; files that another package has installed are kept
    Install(Install),
    /// Make Debian packages: source, binary, debug symbols
    Deb(Packages),
    /// Make RPM packages
    Rpm(Packages),
    /// Write a new provider: a copy of test/loopback, which connects endpoints of one process
    NewProvider {
        /// Name of the provider: a lower-case letter and up to 9 lower-case letters and digits; the library is
        /// libdaplNAME.so.1
        name: String,
        /// Directory outside of the workspace; default: providers/NAME, as a new member of the workspace
        #[arg(long)]
        path: Option<PathBuf>,
    },
    /// Remove the files that install has put below a prefix
    Uninstall(Install),
}

#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Run the suites of plain `cargo xtask test`, and those of --rest
    #[arg(long, conflicts_with = "rest")]
    pub(crate) all: bool,
    /// Run only what plain `cargo xtask test` leaves out: the suites walkthrough, deb, foreign, rpm,
    /// conformance_crossed, new_provider, report, instructions, loom, threads, net, rxe; and longer runs of udapl and
    /// usnic's simulator
    #[arg(long)]
    pub(crate) rest: bool,
    /// Fail instead of skipping checks where network namespaces, guests or packages are missing (--all, --rest, net,
    /// rxe)
    #[arg(long)]
    pub(crate) required: bool,
    /// List the suites
    #[arg(long)]
    pub(crate) list: bool,
    /// One suite, or several if only names of suites follow; `coverage` runs suites with instrumented code and reports
    /// the share of lines of `dapl/src` that ran
    #[arg(conflicts_with_all = ["all", "rest", "list"])]
    pub(crate) suite: Option<String>,
    /// Arguments for cargo test. For `net` and `rxe`: parts of names of checks. For `conformance`: arguments of its
    /// driver (`list` names its cases, `--provider NAME` selects any adapter); without arguments it tests sm and usnic
    /// through both versions of libdat. For `coverage`: a suite and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Guest {
    /// Time limit of the program in seconds
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
    /// Use fewer rounds and operations, to check that everything can be measured
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchOf {
    /// Write the HTML report from existing results, without measuring
    Report {
        /// Directory of the results; default: bench/ in the target directory
        #[arg(long)]
        from: Option<PathBuf>,
        /// File to write; default: report.html in that directory
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measure the sm provider beside its peers; writes bench/sm.json and, with a curve, bench/sm.svg
    Sm(Selection),
    /// Measure the usnic provider beside sockperf, iperf3 and libfabric; measurements with packet loss (U7, loss) need
    /// root
    Usnic(Selection),
    /// Measure the cost of thousands of idle endpoints for the thread that polls their EVD; writes bench/evd.json
    Evd,
    /// Count the instructions of each call over each provider; writes bench/instructions.json
    Instructions {
        /// Also write the tables of docs/benchmarks.md; the tables of other providers stay
        #[arg(long)]
        write: bool,
        /// sm, usnic, verbs; default: all
        providers: Vec<String>,
    },
    /// Measure the verbs provider beside perftest and compat-dapl, the C implementation of DAT 2.0, in a guest; writes
    /// bench/verbs.json
    Verbs {
        /// Use real time as the guest's clock; default: executed instructions
        #[arg(long)]
        clock: bool,
        #[command(flatten)]
        selection: Selection,
    },
}

/// Which measurements to make, and with how many rounds.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Use fewer rounds and operations, to check that everything can be measured
    #[arg(long)]
    pub(crate) quick: bool,
    /// Targets (S1 .. S9, U1 .. U7, V1 .. V14) and sections (latency, percentiles, bandwidth, connects, memory, ...);
    /// default: everything
    pub(crate) names: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Install {
    /// Prefix of all files except configuration files
    #[arg(long, value_name = "P", default_value = "/usr/local")]
    pub(crate) prefix: PathBuf,
    /// For packages: staging directory that replaces the root directory
    #[arg(long, value_name = "D")]
    pub(crate) destdir: Option<PathBuf>,
    /// Directory of dat.conf; default: etc below the prefix
    #[arg(long, value_name = "C")]
    pub(crate) sysconfdir: Option<PathBuf>,
    /// Directory of libraries; default: lib below the prefix
    #[arg(long, value_name = "L")]
    pub(crate) libdir: Option<PathBuf>,
    /// For packages: do not strip binaries, set no library search path in programs, compile C programs with CFLAGS
    /// and LDFLAGS, and write each provider's lines to dat.conf.d
    #[arg(long)]
    pub(crate) package: bool,
    /// Install the build of the tests, whose libdat searches dat.conf in /etc, not below the prefix
    #[arg(long)]
    pub(crate) debug: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Packages {
    /// Directory for the packages, which is emptied first; default: deb/ or rpm/ in the target directory
    #[arg(long, value_name = "D")]
    pub(crate) output: Option<PathBuf>,
    /// Build a second time in another directory, and compare all bytes (Debian packages)
    #[arg(long)]
    pub(crate) twice: bool,
    /// Use the build of the tests
    #[arg(long)]
    pub(crate) debug: bool,
}

/// Cargo profile of a command: `dev` with `--debug`, otherwise `dist`.
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
    fn xtask_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn xtask_test_passes_on_the_arguments_of_a_suite() {
        let conformance = test("conformance --provider usnic0 --verbose case").unwrap();
        assert_eq!(conformance.suite.as_deref(), Some("conformance"));
        assert_eq!(conformance.args, ["--provider", "usnic0", "--verbose", "case"]);
        let rxe = test("rxe --required dtest::socket").unwrap();
        assert!(rxe.required && rxe.args == ["dtest::socket"], "{rxe:?}");
        assert_eq!(test("abi -- --nocapture").unwrap().args, ["--nocapture"]);
    }

    #[test]
    fn all_rest_and_suite_arguments_exclude_each_other() {
        assert!(test("--all --required").is_some_and(|test| test.all && test.required));
        assert!(test("--all --rest").is_none() && test("--all abi").is_none() && test("--colour").is_none());
    }

    #[test]
    fn bench_accepts_providers_options_and_names_only() {
        let bench = |words: &[&str]| Cli::try_parse_from([&["xtask", "bench"], words].concat());
        assert!(bench(&["--quick"]).is_ok() && bench(&["sm", "--quick", "S1", "latency"]).is_ok());
        assert!(bench(&["nothing"]).is_err() && bench(&["verbs", "--clock"]).is_ok());
    }
}
