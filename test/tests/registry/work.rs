//! The instructions for a large registry: their number grows linearly with the lines, the opens and the registrations.
//!
//! Part of `tests/registry.rs`. Valgrind counts; without valgrind the tests are skipped.

use std::process::Command;

use dapl_test::program::is_program;

use crate::case::{Case, probe};

/// Number of instructions that the probe executes.
fn instructions(case: &Case, words: &str) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(probe("registry_probe"));
    valgrind.args(words.split_whitespace()).env_remove("LD_LIBRARY_PATH").envs(case.environment.iter().cloned());
    let output = valgrind.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:.80}: {}\n{said}", output.status);
    let count = said.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("valgrind printed no count: {said}"))
}

/// Number of CPU instructions to list a dat.conf of `count` lines and to run the probe commands for each line, minus
/// those for an empty dat.conf.
fn work(name: &str, count: usize, line: fn(usize) -> String, words: fn(usize) -> String) -> u64 {
    let lines: String = (0..count).map(line).collect();
    let empty = instructions(&Case::new(&format!("{name}-0"), ""), "list 600");
    let words: String = (0..count).map(words).collect();
    instructions(&Case::new(&format!("{name}-{count}"), &lines), &format!("{words} list 600")) - empty
}

/// Checks that four times the input takes about four times the work (with a logarithmic factor), not sixteen times.
#[track_caller]
fn is_linear(name: &str, line: fn(usize) -> String, words: fn(usize) -> String) {
    if !is_program("valgrind") {
        println!("skipped: valgrind is missing; install the Debian package valgrind");
        return;
    }
    let (small, large) = (work(name, 300, line, words), work(name, 1200, line, words));
    assert!(large < small * 6, "{name}: 300 take {small} instructions, 1200 take {large}");
}

#[test]
fn libdat_work_grows_linearly_with_the_lines_of_a_file() {
    let other = |at| format!("n{at} u2.0 nonthreadsafe default libgone{at}.so.2 dapl.2.0 \"\" \"\"\n");
    is_linear("work-list", other, |_| String::new());
    let same = |_| "n u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"\n".to_owned();
    is_linear("work-same", same, |_| String::new());
}

#[test]
fn libdat_work_grows_linearly_with_the_opens_of_known_names() {
    let line = |at| format!("n{at} u2.0 nonthreadsafe default libgone.so.2 dapl.2.0 \"\" \"\"\n");
    is_linear("work-known", line, |at| format!("open n{at} 1 2 0 "));
}

#[test]
fn libdat_work_grows_linearly_with_the_opens_of_unknown_names() {
    let line = |at| format!("n{at} u1.2 nonthreadsafe default libgone{at}.so.1 dapl.1.2 \"\" \"\"\n");
    is_linear("work-unknown", line, |at| format!("open x{at} 1 2 0 "));
}

#[test]
fn libdat_work_grows_linearly_with_registrations() {
    let line = |at| format!("n{at} u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"\n");
    is_linear("work-self", line, |at| format!("self s{at} 1 2 0 "));
    is_linear("work-remove", line, |at| format!("self s{at} 1 2 0 open y{at} 1 2 0 unself s{at} 1 2 0 "));
}
