//! The conformance suite over a provider: this project's in a temporary environment, another one in the environment as it is.
#![forbid(unsafe_code)]

use std::process::Command;

use dapl_test::run::{Room, SM0, USNIC0};
use dapl_test::stage::{Profile, built, stage_with};

use crate::Result;

/// Its arguments are the driver's; `--provider` is looked at here as well.
pub(crate) fn run(arguments: &[&str]) -> Result {
    let named = arguments.iter().position(|word| *word == "--provider").and_then(|at| arguments.get(at + 1));
    let driver = built("dapl-conformance", Profile::Dev);
    let room;
    let mut command = match named {
        None | Some(&("sm" | "sm0" | "usnic0")) => {
            let registry = [SM0, USNIC0].concat();
            room = Room::new(&stage_with(Profile::Dev, &["daplsm", "daplusnic"]), Some(&registry));
            let mut command = room.command(&driver, arguments);
            // This project's providers have every feature.
            command.arg("--complete");
            command
        }
        Some(_) => {
            let mut command = Command::new(&driver);
            command.args(arguments);
            command
        }
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("conformance: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
