//! Counters and traces through the real shared objects: the counters that a program reads, the traces that are dumped,
//! and log lines about ended connections and refused RDMA writes.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{self, Finished, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

const TIMEOUT: Duration = Duration::from_secs(400);

/// Runs `traced` with these variables and this registry. With `patient` the program waits for stall reports and
/// touches the file.
fn traced(registry: &str, variables: &[(&str, &str)], patient: bool) -> Finished {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/traced.c");
    let sandbox = Sandbox::new(&stage, Some(registry));
    let file = sandbox.sm().join("..").join("touch");
    let mut command = sandbox.command(program, &[]);
    command.envs(variables.iter().copied()).env("DAPL_DBG_IO_TRC_FILE", &file);
    if patient {
        command.arg(&file);
    }
    let finished = Run::start(command).finish(TIMEOUT);
    finished.expect_success("traced: OK");
    finished
}

/// Number of trace dumps with this reason.
fn dumps(finished: &Finished, reason: &str) -> usize {
    finished.stderr.lines().filter(|line| line.contains("]: ep 0x") && line.contains(reason)).count()
}

#[test]
fn counters_are_exact_and_logged_only_on_request() {
    assert_eq!(traced(SM0, &[], false).stderr, "");
}

#[test]
fn trace_is_dumped_at_a_stall_a_touched_file_and_an_endpoint_free() {
    let variables = [("DAPL_DBG_IO_TRC", "32")];
    let finished = traced(SM0, &variables, true);
    assert_eq!(
        dumps(&finished, "has had a request in flight for 10 s; DAT_EP_STATE_CONNECTED, 1 requests"),
        1,
        "{finished:#?}"
    );
    assert_eq!(dumps(&finished, "has had a request in flight"), 1, "{finished:#?}");
    assert_eq!(dumps(&finished, "on request"), 2, "not one dump per endpoint: {finished:#?}");
    assert_eq!(
        dumps(&finished, "is freed; DAT_EP_STATE_CONNECTED, 1 requests and 0 receives outstanding"),
        1,
        "{finished:#?}"
    );
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let says = |parts: [&str; 2]| lines.iter().any(|line| line.contains(parts[0]) && line.ends_with(parts[1]));
    assert!(says([": send cookie 0x3, 64 bytes in 1: DAT_DTO_SUCCESS after ", ", 64 bytes"]), "{finished:#?}");
    assert!(says([": recv cookie 0x3, 4096 bytes in 1: DAT_DTO_SUCCESS after ", ", 64 bytes"]), "{finished:#?}");
    assert!(says([": send cookie 0x8, 64 bytes in 1", ": suppressed"]), "{finished:#?}");
    assert!(says([": rdma write cookie 0x64, 4096 bytes in 1, to 0x", ", 4096 bytes"]), "{finished:#?}");
    assert!(says([": send cookie 0xdead, 64 bytes in 1", ": outstanding"]), "{finished:#?}");
}

#[test]
fn dbg_type_0x8_and_not_0x20_logs_the_counters_of_ended_connections() {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/selfconnect.c");
    let sandbox = Sandbox::new(&stage, Some(USNIC0));
    let lines = |bits: &str| {
        let mut command = sandbox.command(&program, &["usnic0"]);
        command.env("DAPL_DBG_TYPE", bits);
        let finished = Run::start(command).finish(TIMEOUT);
        finished.expect_success("selfconnect: OK");
        let lines = finished.stderr.lines();
        lines.filter(|line| line.contains("connection of ep 0x") && line.contains(" has ended: sent ")).count()
    };
    assert_eq!(lines("0x20"), 0);
    assert!(lines("0x8") >= 2, "not one line per endpoint");
}

#[test]
fn io_trc_in_ia_params_enables_the_trace_and_is_hidden_from_the_provider() {
    let line = "sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"io_trc=4\" \"\"\n";
    let finished = traced(line, &[("DAPL_DBG_TYPE", "0x1003")], false);
    assert_eq!(dumps(&finished, "is freed"), 1, "{finished:#?}");
    assert_eq!(finished.stderr.lines().filter(|line| line.contains(" cookie ")).count(), 4, "{finished:#?}");
    let closed = finished
        .stderr
        .lines()
        .find(|line| line.contains("ia sm0 is closed: "))
        .expect("DAPL_DBG_TYPE 0x1000 logs the counters when the IA is closed");
    assert!(closed.contains(" ep.posts.send=8 ") && closed.contains(" ep.completions.flushed=1 "), "{closed}");
}

#[test]
fn a_refused_rdma_write_is_logged_with_the_check_that_failed() {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/traced.c");
    for (registry, adapter) in [(SM0, "sm0"), (USNIC0, "usnic0")] {
        let sandbox = Sandbox::new(&stage, Some(registry));
        for (check, cause) in [
            ("bounds", "out of bounds: the key is for 8192 bytes at 0x"),
            ("key", "no registration or window has this key"),
            ("right", "the key does not grant the right"),
        ] {
            let finished = Run::start(sandbox.command(&program, &["refused", adapter, check])).finish(TIMEOUT);
            finished.expect_success("traced: OK");
            let lines: Vec<&str> = finished.stderr.lines().collect();
            let tag = format!(" {adapter}]: ep 0x");
            let own = "rdma write with cookie 0xbad refused at the peer (DAT_DTO_ERR_REMOTE_ACCESS): key 0x";
            assert!(
                lines.iter().any(|line| line.contains(own) && line.contains(&tag)),
                "{adapter} {check}: {finished:#?}"
            );
            let target = "rdma write of the peer refused (DAT_DTO_ERR_REMOTE_ACCESS): key 0x";
            // Over sm the initiator itself checks the peer's registration table, so the initiator's trace also contains
            // that check.
            let parts = if adapter == "sm0" { &[own, target][..] } else { &[target] };
            for part in parts {
                let said = lines.iter().find(|line| line.contains(part) && line.contains(cause));
                let said = said.unwrap_or_else(|| panic!("{adapter} {check}: {finished:#?}"));
                assert!(said.contains(", 64 bytes at 0x") && said.contains(" warn dapl["), "{said}");
            }
        }
    }
}
