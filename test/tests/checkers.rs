//! Programs under valgrind and ThreadSanitizer, over sm and usnic: with the installed suppressions, neither tool
//! reports anything about the libraries. After the close of the adapter, valgrind reports nothing without them either.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, Stage, stage, workspace};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);
const ADAPTERS: [(&str, &str); 2] = [("sm0", SM0), ("usnic0", USNIC0)];

/// Runs a program under valgrind, which also reports definite and possible leaks.
fn under_valgrind(suppressions: Option<&str>, registry: &str, source: &str, arguments: &[&str]) -> Finished {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(registry));
    let mut command = sandbox.command("valgrind", &["--leak-check=full", "--error-exitcode=99"]);
    if let Some(file) = suppressions {
        command.arg(format!("--suppressions={}", workspace().join("dat/debug").join(file).display()));
    }
    command.arg(run::program(&stage, source)).args(arguments);
    Run::start(command).finish(TIMEOUT)
}

#[test]
fn valgrind_finds_nothing_after_close_without_suppressions() {
    if !run::has_tool("valgrind") {
        return println!("skipped: valgrind is missing; install the Debian package valgrind");
    }
    for (name, registry) in ADAPTERS {
        under_valgrind(None, registry, "test/c/checkers.c", &[name, "closed"]).expect_success("checkers: OK, closed");
        under_valgrind(None, registry, "test/c/selfconnect.c", &[name, "2"])
            .expect_success("selfconnect: OK, 2 rounds");
    }
}

#[test]
fn valgrind_finds_nothing_in_an_open_adapter_with_suppressions() {
    if !run::has_tool("valgrind") {
        return println!("skipped: valgrind is missing; install the Debian package valgrind");
    }
    for (name, registry) in ADAPTERS {
        let supp = Some("dapl-valgrind.supp");
        under_valgrind(supp, registry, "test/c/checkers.c", &[name, "open"]).expect_success("checkers: OK, open");
    }
}

/// Compiles a program of the suites with ThreadSanitizer.
fn sanitized(stage: &Stage, source: &str) -> PathBuf {
    let source = workspace().join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().unwrap()).with_extension("tsan");
    stage.compile(&program, &[&source], &["-fsanitize=thread"]);
    program
}

/// Whether the compiler supports ThreadSanitizer and an instrumented program starts under this kernel.
fn has_thread_sanitizer() -> bool {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (directory.join("tsan.c"), directory.join("tsan"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let is_built = Command::new(compiler).arg("-fsanitize=thread").arg("-o").arg(&program).arg(&source).status();
    is_built.is_ok_and(|status| status.success()) && Command::new(program).status().is_ok_and(|status| status.success())
}

#[test]
fn thread_sanitizer_reports_races_of_the_program_only() {
    if !has_thread_sanitizer() {
        return println!("skipped: cc does not support ThreadSanitizer");
    }
    let stage = stage(Profile::Dev);
    let suppressions = workspace().join("dat/debug/dapl-tsan.supp");
    let run = |registry: &str, program: &Path, arguments: &[&str]| {
        let sandbox = Sandbox::new(&stage, Some(registry));
        let mut command = sandbox.command(program, arguments);
        command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
        Run::start(command).finish(TIMEOUT)
    };
    let [checkers, epoll, selfconnect] =
        ["test/c/checkers.c", "test/c/epoll.c", "test/c/selfconnect.c"].map(|source| sanitized(&stage, source));
    for (name, registry) in ADAPTERS {
        run(registry, &epoll, &[name, "127.0.0.1"]).expect_success("epoll: OK");
        run(registry, &selfconnect, &[name, "5"]).expect_success("selfconnect: OK, 5 rounds");
        run(registry, &checkers, &[name, "handed"]).expect_success("checkers: OK, handed");
        run(registry, &checkers, &[name, "open"]).expect_success("checkers: OK, open");
        let raced = run(registry, &checkers, &[name, "race"]);
        assert!(!raced.status.success() && raced.stderr.contains("data race"), "{raced:#?}");
    }
}
