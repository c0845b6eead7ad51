//! Suites that need a separate build or much time: `loom` explores interleavings of models, `threads` runs sm's test
//! program `threads` under ThreadSanitizer, and `nightly` runs usnic's simulations and fuzz inputs with many seeds.
//!
//! `loom` and `threads` each have a build directory in the target directory. `threads` is skipped if the toolchain has
//! no ThreadSanitizer.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use dapl_test::stage::{target_directory, workspace};

use crate::Result;
use crate::suites::Runner;

/// Maximum number of preemptions in a run of a model. Two suffice for every bug injected into the models.
const PREEMPTIONS: &str = "3";

/// Runs the models in the sources of dapl, common and sm.
pub(crate) fn loom(rest: &[&str], run: Runner) -> Result {
    let mut cargo = cargo("loom", "--cfg loom");
    cargo
        .args([
            "test",
            "--release",
            "-p",
            "dapl",
            "-p",
            "dapl-software",
            "-p",
            "daplsm",
            "--lib",
            "--no-fail-fast",
            "interleavings",
        ])
        .args(rest);
    // Settings that make the models fast to build and to run, with all assertions enabled.
    for (setting, value) in [("OPT_LEVEL", "1"), ("CODEGEN_UNITS", "16"), ("DEBUG_ASSERTIONS", "true")] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("LOOM_MAX_PREEMPTIONS", PREEMPTIONS);
    run("loom", cargo)
}

/// Runs the suite `threads` of the sm provider under ThreadSanitizer, after checking that ThreadSanitizer reports a
/// deliberate race.
///
/// Stable compilers include the ThreadSanitizer runtime but reject `-Zsanitizer`, so RUSTC_BOOTSTRAP is set.
pub(crate) fn threads(rest: &[&str], run: Runner) -> Result {
    let sanitizer = match Sanitizer::find() {
        Ok(sanitizer) => sanitizer,
        Err(why) => {
            println!("threads under ThreadSanitizer: skipped: {why}");
            return Ok(());
        }
    };
    let race = sanitizer.cargo(&["--ignored", "a_deliberate_race_is_reported"]).output();
    let race = race.map_err(|error| format!("cargo: {error}"))?;
    let output = String::from_utf8_lossy(&race.stdout) + String::from_utf8_lossy(&race.stderr);
    if race.status.success() || !output.contains("WARNING: ThreadSanitizer: data race") {
        return Err(format!("ThreadSanitizer does not report the deliberate race:\n{output}"));
    }
    println!("ThreadSanitizer reports the deliberate race; starting the suite");
    run("threads under ThreadSanitizer", sanitizer.cargo(rest))
}

/// Runs usnic's simulator and fuzz inputs with a large number of seeds.
pub(crate) fn nightly(rest: &[&str], run: Runner) -> Result {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).env("DAPL_SIM_RUNS", "100000").env("DAPL_FUZZ_ROUNDS", "100000");
    cargo.args(["test", "-p", "daplusnic", "--lib", "--", "tests::sim::", "fuzz::"]);
    cargo.args(rest);
    run("nightly", cargo)
}

struct Sanitizer {
    host: String,
}

impl Sanitizer {
    fn find() -> Result<Self> {
        let version = rustc(&["-vV"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned();
        let libraries = PathBuf::from(rustc(&["--print", "target-libdir"])?.trim());
        let runtime = libraries.parent().and_then(|path| std::fs::read_dir(path.join("lib")).ok());
        let mut names = runtime.into_iter().flatten().flatten().map(|file| file.file_name());
        if !names.any(|name| name.to_string_lossy().ends_with("_rt.tsan.a")) {
            return Err(format!("this toolchain has no ThreadSanitizer for {host}"));
        }
        Ok(Sanitizer { host })
    }

    fn cargo(&self, rest: &[&str]) -> Command {
        // `-Cunsafe-allow-abi-mismatch` permits the standard library, which is not instrumented. The linker option is
        // for the suite's module `sanitizer`.
        let flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg tsan \
                     -Clink-arg=-Wl,--wrap=__tsan_atomic64_fetch_sub";
        let mut cargo = cargo("tsan", flags);
        cargo.env("RUSTC_BOOTSTRAP", "1").args(["test", "-p", "daplsm", "--test", "threads", "--target", &self.host]);
        let known = workspace().join("test/xtask/tsan.supp");
        // Tests run one at a time, so that a report belongs to the running test.
        cargo
            .env("TSAN_OPTIONS", format!("suppressions={}", known.display()))
            .args(["--", "--test-threads=1"])
            .args(rest);
        cargo
    }
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A cargo command with compiler flags, and a directory for its output.
fn cargo(directory: &str, flags: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).env("CARGO_TARGET_DIR", target_directory().join(directory));
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", flags);
    cargo
}
