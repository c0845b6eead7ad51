//! Memory that is unmapped, protected or truncated while it is registered, over sm and usnic: transfers that need the
//! removed access fail with an error, and no process crashes. `test/c/vanish.c` makes the transfers.

use std::time::Duration;

use dapl_test::run::{self, Run, SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, stage};

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(400);

fn all_cases(adapter: &str, registry: &str, rma: &str) {
    let stage = stage(Profile::Dev);
    let sandbox = Sandbox::new(&stage, Some(registry));
    let mut command = sandbox.command(run::program(&stage, "test/c/vanish.c"), &[adapter]);
    command.env("DAPL_SM_RMA", rma);
    Run::start(command).finish(TIMEOUT).expect_success("vanish: OK, 90 cases");
}

#[test]
fn sm_fails_transfers_of_unmapped_memory() {
    all_cases("sm0", SM0, "auto");
}

#[test]
fn sm_with_shared_buffers_fails_transfers_of_unmapped_memory() {
    all_cases("sm0", SM0, "mmap");
}

#[test]
fn usnic_fails_transfers_of_unmapped_memory() {
    all_cases("usnic0", USNIC0, "auto");
}
