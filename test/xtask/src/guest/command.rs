//! The command `guest`: any program of this machine, run in a guest, with the staged libraries and their dat.conf.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use dapl_test::stage::Profile;

use super::{Guest, GuestNetwork, prepare};
use crate::{Result, cli, tree};

/// Runs the command. The guest's shared folder is for suites and is ignored here.
pub(crate) fn run(arguments: &cli::Guest) -> Result {
    let (program, rest) = arguments.program.split_first().ok_or("guest: name a program, followed by its arguments")?;
    prepare()?;
    let tree = tree::build(Profile::Dev)?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", &tree.stage.lib).env("DAT_OVERRIDE", &tree.conf);
    let mut guest = Guest::boot(GuestNetwork::Alone)?;
    let status = guest.run(&command, Duration::from_secs(arguments.limit), |line| println!("{line}"))?;
    guest.off()?;
    if status == 0 { Ok(()) } else { Err(format!("{program} ended with status {status} in the guest")) }
}
