//! The suite `rxe`: the provider over rdma-core, on soft-RoCE, in guests. One line per check, as cargo's suites print.
//!
//! The checks in one guest are in `alone`, among them the unit tests that need a device, the conformance suite, dtest
//! over each connection manager, the reference (compat-dapl, the C implementation of DAT 2.0) as the peer, many
//! connections. The checks between two guests are in `wired`, among them dtest again, a network that drops and delays
//! packets, a link that goes down, a peer that is killed. A check whose guest breaks fails, and the next check gets a
//! new guest. No speed is asserted; time limits end programs that hang.
//!
//! Prints "skipped" on a machine that cannot run guests; `--required` makes that a failure.
#![forbid(unsafe_code)]

mod alone;
mod conformance;
mod interop;
mod keeper;
mod programs;
mod setting;
mod wired;

use super::prepare;
use crate::report::Report;
use crate::{Result, setup};
use setting::Setting;

/// Connection managers: rdma_cm, the socket manager, and none. Checks that need connection requests or several
/// connections leave out `none`.
const MANAGERS: [&str; 3] = ["rdma", "socket", "none"];

/// Runs all checks, or those whose names contain one of the filters.
pub(crate) fn run(is_required: bool, words: &[String]) -> Result {
    match can_run() {
        Ok(()) => {}
        Err(reason) if is_required => return Err(format!("the suite rxe cannot run here: {reason}")),
        Err(reason) => {
            println!("\nskipped: {reason}\nskipped: NOTHING of the suite rxe was tested\n");
            return Ok(());
        }
    }
    let setting = Setting::build()?;
    let mut report = Report::new("rxe", words.to_vec());
    alone::run(&setting, &mut report);
    wired::run(&setting, &mut report);
    report.end()
}

/// Whether this machine can run a guest. Installs missing packages and downloads the guest's kernel if possible.
fn can_run() -> Result {
    setup::require(&[setup::DEVINFO, setup::PERFTEST, setup::PING])?;
    prepare()
}
