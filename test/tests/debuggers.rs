//! The gdb commands for endpoints and return codes (`dat/debug/dapl-gdb.py`), run in a stopped program.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use dapl_test::run::{self, Run, SM0, Sandbox};
use dapl_test::stage::{Profile, stage, workspace};

const TIMEOUT: Duration = Duration::from_secs(400);

#[test]
fn gdb_shows_the_state_and_counters_of_an_endpoint() {
    if !run::has_tool("gdb") {
        return println!("skipped: gdb is missing; install the Debian package gdb");
    }
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/traced.c").display().to_string();
    let sandbox = Sandbox::new(&stage, Some(SM0));
    let source = format!("source {}", workspace().join("dat/debug/dapl-gdb.py").display());
    let commands = [
        "set breakpoint pending on",
        &source,
        "break send_one",
        "run",
        "dapl ep active.ep",
        "dapl code 0x800a0063",
        "dapl ep 64",
        // Repeats the command in a frame of the library. If the library has debug information, gdb parses expressions
        // as Rust there, and the command must select C.
        "break dat_ep_post_send",
        "continue",
        "dapl ep active.ep",
    ];
    let mut arguments = vec!["--batch", "-nx", "-iex", "set debuginfod enabled off"];
    commands.iter().for_each(|command| arguments.extend(["-ex", command]));
    arguments.extend(["--args", &program]);
    let finished = Run::start(sandbox.command(PathBuf::from("gdb"), &arguments)).finish(TIMEOUT);
    for text in [
        ": DAT_EP_STATE_CONNECTED\n",
        "  max_recv_dtos        ",
        "  posts.send                   0\n",
        "  connects                     1\n",
        "DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND\n",
    ] {
        assert!(finished.stdout.contains(text), "{text}: {finished:#?}");
    }
    assert_eq!(finished.stdout.matches(": DAT_EP_STATE_CONNECTED\n").count(), 2, "{finished:#?}");
    assert!(finished.stderr.contains("dat_ep_query returned 0x8005"), "{finished:#?}");
    assert!(finished.stderr.contains("DAT_INVALID_HANDLE DAT_INVALID_HANDLE_EP"), "{finished:#?}");
}
