//! Registry files and lines: debug output about them, names in files that are ignored because another dat.conf comes
//! first, and the thread safety of a line.
//!
//! Part of `tests/registry.rs`.

use std::path::PathBuf;
use std::process::Command;

use dapl_test::stage::workspace;

use crate::FINE_LINE;
use crate::case::{Case, probe, stage};

const THREAD_SAFETY: &str = "DAT_PROVIDER_NOT_FOUND DAT_THREAD_SAFETY_NOT_FOUND";

#[test]
fn debug_log_names_each_file_and_line_searched() {
    let conf = format!(
        "# comment\n{FINE_LINE}gone u2.0 threadsafe default libgone.so.2 dapl.2.0 \"a b\" \"\"\n\
         off u1.2 nonthreadsafe nondefault l dapl.1.2 \"\" \"\"\nbad u1.2\n"
    );
    let case = Case::new("shown", &conf).provider("libfine.so.1", &[]).with("DAT_DBG_TYPE", "0x4");
    let answer = case.run("open fine 1 2 0");
    let lines: Vec<_> = answer.err.lines().collect();
    assert_eq!(
        lines,
        [
            "libdat: {}/dat.conf:4:24: default: nondefault; such a line is not used (accepted)",
            "libdat: records read: 2, from {}/dat.conf (DAT_OVERRIDE)",
            "libdat: {}/dat.conf:2: \"fine\" 1.2 nonthreadsafe by {}/libfine.so.1 with \"eth0 0\"",
            "libdat: {}/dat.conf:3: \"gone\" 2.0 threadsafe by libgone.so.2 with \"a b\"",
            "libdat: {}/dat.conf:4: \"off\" is not used: the line is marked nondefault; \
             write default instead",
            "libdat: {}/dat.conf:5: \"bad\" is not used: the line was dropped: thread_safety: missing (end of line); \
             allowed is threadsafe or nonthreadsafe",
            "libdat: {}/dat.conf:2: loads {}/libfine.so.1",
        ]
    );
}

/// Runs the probe in a namespace where `/etc` has only these files. Returns `None` if the namespace is not permitted.
fn with_files_in_etc(files: &[(&str, &str)], words: &str, debug: &str) -> Option<String> {
    let mut script = "set -e; mount -t tmpfs none /etc; mkdir -p /etc/rdma /etc/dat.conf.d".to_owned();
    for (name, line) in files {
        script += &format!("; printf '%s\\n' '{line}' > /etc/{name}");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &format!("{script}; exec \"$0\" \"$@\"")]);
    // cargo sets a library search path, which contains the stub of libdat that providers are linked with.
    command.env_remove("LD_LIBRARY_PATH").env_remove("DAT_OVERRIDE").env("DAT_DBG_TYPE", debug);
    command.arg(probe("registry_probe")).args(words.split(' '));
    let output = command.output().ok()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    if !out.starts_with("open: ") {
        println!("skipped: this machine permits no separate mount namespace: {err}");
        return None;
    }
    Some(dapl_test::run::without_origin(&err))
}

fn line(name: &str) -> String {
    format!("{name} u1.2 nonthreadsafe default libgone.so.1 dapl.1.2 \"\" \"\"")
}

#[test]
fn name_in_an_ignored_file_is_refused_with_file_and_line() {
    let (one, two) = (line("one"), line("two"));
    let files = [("dat.conf", one.as_str()), ("rdma/dat.conf", two.as_str())];
    let Some(err) = with_files_in_etc(&files, "open two 1 2 0 open three 1 2 0", "1") else { return };
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(
        lines[0],
        "libdat: cannot open \"two\": no interface adapter of this name in /etc/dat.conf; /etc/rdma/dat.conf:1 has it, \
         but was not read: only the first dat.conf that exists counts; copy that line to /etc/dat.conf, or set \
         DAT_OVERRIDE=/etc/rdma/dat.conf"
    );
    let rest = "no other name can be opened either: add a line for it";
    assert_eq!(
        lines[1],
        format!("libdat: cannot open \"three\": no interface adapter of this name in /etc/dat.conf; {rest}")
    );
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn debug_log_names_missing_and_ignored_files() {
    let (one, two, three) = (line("one"), line("two"), line("three"));
    let files = [
        ("rdma/dat.conf", two.as_str()),
        ("rdma/compat-dapl.conf", one.as_str()),
        ("dat.conf.d/own.conf", three.as_str()),
    ];
    let Some(err) = with_files_in_etc(&files, "open two 1 2 0", "4") else { return };
    let shown: Vec<_> = err.lines().take(4).collect();
    assert_eq!(
        shown,
        [
            "libdat: /etc/dat.conf: does not exist",
            "libdat: /etc/rdma/compat-dapl/dat.conf: does not exist",
            "libdat: records read: 1, from /etc/rdma/dat.conf",
            "libdat: /etc/rdma/dat.conf:1: \"two\" 1.2 nonthreadsafe by libgone.so.1 with \"\"",
        ],
        "{err}"
    );
    let files = [("dat.conf", one.as_str()), ("rdma/dat.conf", two.as_str())];
    let Some(err) = with_files_in_etc(&files, "open one 1 2 0", "4") else { return };
    let hidden = "libdat: /etc/rdma/dat.conf: not read: only the first dat.conf that exists counts";
    assert!(err.lines().any(|line| line == hidden), "{err}");
}

/// Compiles `test/c/thread_safety_probe.c` with these arguments.
fn first(case: &Case, name: &str, arguments: &[&str]) -> PathBuf {
    let program = case.directory.join(name);
    let path = format!("-Wl,-rpath,{}", stage().lib.display());
    let source = workspace().join("test/c/thread_safety_probe.c");
    stage().compile(&program, &[&source], &[&["-Werror", &path], arguments].concat());
    program
}

#[test]
fn program_compiled_with_dat_threadsafe_requests_thread_safety() {
    let case = Case::new("compiled", FINE_LINE).provider("libfine.so.1", &[]);
    let usual = case.run_program(&first(&case, "usual", &[]), "fine");
    assert!(usual.out.ends_with("open: DAT_SUCCESS \n"), "{}", usual.out);
    let safe = case.run_program(&first(&case, "safe", &["-DDAT_THREADSAFE=DAT_TRUE"]), "fine");
    assert!(safe.out.ends_with(&format!("open: {THREAD_SAFETY}\n")), "{}", safe.out);
}

#[test]
fn library_known_as_thread_safe_matches_both_thread_safety_requests() {
    let conf = "safe u1.2 threadsafe default {}/libown.so.1 dapl.1.2 \"\" \"\"\n\
                plain u1.2 nonthreadsafe default {}/libown.so.1 dapl.1.2 \"\" \"\"\n";
    let words = "open safe 1 2 0 open safe 1 2 1 open plain 1 2 0 open plain 1 2 1";
    let case = Case::new("known", conf).provider_linked("libown.so.1", &["HOOKED"], &["-ldat"]);
    assert_eq!(case.run(words).quiet().out.matches("open: 0x00000000").count(), 4);
    // For a foreign library only its registry line counts. A library that was initialised for a refused open is
    // finalised again.
    let foreign = Case::new("foreign", conf).provider("libown.so.1", &[]);
    let answer = foreign.run(words);
    assert_eq!(answer.out.matches("open: 0x00000000").count(), 3);
    assert!(answer.out.contains(THREAD_SAFETY), "{}", answer.out);
    let answer = foreign.run("open plain 1 2 1 open plain 1 2 0 close 0 0 remove plain 1 2 0");
    assert_eq!((answer.out.matches("init").count(), answer.out.matches("fini").count()), (2, 2), "{}", answer.out);
}

#[test]
fn a_thread_safe_program_gets_the_thread_safe_line_first() {
    let conf = "both u1.2 nonthreadsafe default {}/libplain.so.1 dapl.1.2 \"\" \"\"\n\
                both u1.2 threadsafe default {}/libsafe.so.1 dapl.1.2 \"\" \"\"\n";
    let case = Case::new("both", conf).provider("libplain.so.1", &[]).provider("libsafe.so.1", &[]);
    let init = |words: &str| case.run(words).out.lines().next().unwrap().to_owned();
    assert_eq!(init("open both 1 2 1"), "provider: init both 1.2 threadsafe ()");
    assert_eq!(init("open both 1 2 0"), "provider: init both 1.2 nonthreadsafe ()");
}
