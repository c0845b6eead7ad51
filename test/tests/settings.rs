//! Settings of sm in `ia_params` and in environment variables: valid settings print nothing. Unknown and invalid
//! settings, and variables without effect, are reported and ignored.

use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, Finished, Run, Sandbox};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs `test/c/first.c` over an adapter with these `ia_params` and with the variables that `set` adds.
fn first(params: &str, set: impl FnOnce(&mut Command)) -> Finished {
    let stage = stage(Profile::Dev);
    let line = format!("sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"{params}\" \"\"\n");
    let sandbox = Sandbox::new(&stage, Some(&line));
    let mut command = sandbox.command(run::program(&stage, "test/c/first.c"), &[]);
    set(&mut command);
    Run::start(command).finish(TIMEOUT)
}

#[test]
fn valid_settings_print_nothing() {
    let finished = first("rma=cma,mmap give_up_ms=10000 spin_us=0", |command| {
        command.env("DAPL_GIVE_UP_MS", "20000").env("DAPL_KEEPALIVE_MS", "100").env("DAPL_SM_CMA", "open");
    });
    finished.expect_success("messages of up to 2147483648 bytes");
    assert_eq!(finished.stderr, "");
}

#[test]
fn variable_of_the_c_implementation_without_effect_is_reported_once() {
    let finished = first("", |command| _ = command.env("DAPL_SCM_NETDEV", "eth0").env("DAPL_UCM_RETRY", "1"));
    finished.expect_success("messages of up to 2147483648 bytes");
    let line = "libdat: DAPL_SCM_NETDEV is set and has no effect here; use a network device or an address as the first word \
                of ia_params\n";
    assert_eq!(dapl_test::run::without_origin(&finished.stderr), line);
}

#[test]
fn invalid_settings_are_reported_with_name_value_and_range() {
    let finished = first("rma=fast give_up_ms=5 colour=red", |command| {
        command.env("DAPL_KEEPALIVE_MS", "5").env("DAPL_SM_RMAS", "cma").env("DAPL_SPIN_US", "1k");
    });
    finished.expect_success("messages of up to 2147483648 bytes");
    for words in [
        "ia_params, rma: \"fast\" is not \"auto\" or an order of \"knem\", \"cma\", \"mmap\"",
        "ia_params: unknown setting \"colour\" has no effect; known settings: dir, rma, cma, spin_us",
        "DAPL_KEEPALIVE_MS: \"5\" is not a number from 100 to 3600000",
        "using 5000 ms, the default",
        "ia_params, give_up_ms: \"5\" is not a number from 1000 to 3600000",
        "using 60000 ms, the default",
        "unknown variable DAPL_SM_RMAS; nearest is DAPL_SM_RMA; known variables of sm: DAPL_DIR",
        "DAPL_SPIN_US: \"1k\" is not a number from 0 to 1000000",
    ] {
        assert!(finished.stderr.contains(words), "{words}: {finished:#?}");
    }
}
