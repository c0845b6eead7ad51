//! The verbs provider beside perftest and the 2.0 reference, each doing the same operation in the same loop, in one guest.
//!
//! The guest is emulated, so the figures say how much code runs, not how fast hardware is. With time as its clock they would
//! not even say that: the emulator shares its processors with whatever else this machine does, and the same run differs by
//! a third. So the guest's clock counts instructions (`Clock::Instructions`): one processor, on which a nanosecond is an
//! instruction, of programs and kernel alike. A figure then comes out the same to a fraction of a percent, on a busy machine
//! too, and 3 % can be told. soft-RoCE delivers a request within the call that posts it, so one processor loses nothing by
//! it; two programs that poll for each other hand it over when they find nothing (`test/c/turns.c`, the same for each).
//! `--clock` runs the same list with time as the clock and two processors, to look at; it says little.
//!
//! The loops are perftest's: `test/c/verbs_bench.c` repeats them over DAT, and is compiled for ours and for the reference.
//! What `dapltest` says of itself stands beside it, where it has such a test. Nothing here judges: the status says only
//! whether everything could be measured.
#![forbid(unsafe_code)]

mod contest;
mod report;
mod sides;

use dapl_test::rdma_core;
use dapl_test::stage::Profile;

use self::contest::{Measured, OPERATIONS};
use self::sides::Sides;
use super::ROUNDS;
use super::report::save;
use crate::guest::{Clock, Guest, Link, prepare};
use crate::reference::Reference;
use crate::{Result, setup, tree};

/// Runs it; `--clock`: by time.
pub(crate) fn verbs(arguments: &[&str]) -> Result {
    let (mut clock, mut wanted) = (Clock::Instructions, Vec::new());
    for argument in arguments {
        match *argument {
            "--clock" => clock = Clock::Time,
            id if OPERATIONS.iter().any(|operation| operation.id == id) => wanted.push(id),
            other => return Err(format!("bench verbs: {other} is not understood; see cargo xtask --help")),
        }
    }
    setup::require(&[setup::PERFTEST, setup::DEVINFO, setup::TASKSET])?;
    prepare()?;
    let reference = Reference::find()?;
    let tree = tree::build(Profile::Release)?;
    if !rdma_core::has_rdma_core() {
        return Err("bench verbs: the provider over rdma-core was not built".to_owned());
    }
    let sides = Sides::new(&tree.stage, &reference, clock)?;
    let mut guest = Guest::boot_with(Link::Alone, clock)?;
    sides.prepare(&mut guest)?;
    let mut measured = Vec::new();
    for operation in OPERATIONS.iter().filter(|one| wanted.is_empty() || wanted.contains(&one.id)) {
        measured.push(Measured::take(operation, &sides, &mut guest, ROUNDS)?);
    }
    let kernel = sides::said(&mut guest, "uname -r")?;
    guest.off()?;
    let facts = report::Facts { kernel, reference: reference.version, clock };
    report::print(&measured, &facts);
    let name = if clock == Clock::Time { "verbs-clock.json" } else { "verbs.json" };
    save(&tree.stage, name, &report::text(&measured, &facts))
}
