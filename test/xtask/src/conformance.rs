//! Runs the conformance suite over a provider: sm, usnic or a package of the workspace in a temporary environment, any
//! other adapter in the caller's environment.
#![forbid(unsafe_code)]

use std::process::Command;

use dapl_test::run::{SM0, Sandbox, USNIC0, changed_by_2_0, of_2_0};
use dapl_test::stage::{Profile, built, stage_with};

use crate::Result;

/// Runs the suite. The arguments are those of the driver; `--provider` and `--api` are also read here, to choose the
/// environment. `--package daplNAME` is not passed to the driver: it builds and stages this provider of the workspace,
/// and tests it as `NAME0`.
pub(crate) fn run(arguments: &[&str]) -> Result {
    let value = |option: &str| arguments.iter().position(|word| *word == option).map(|at| (at, arguments.get(at + 1)));
    if let Some((at, package)) = value("--package") {
        let package = package.ok_or("--package needs the name of a package, such as daplloopback")?;
        return of_package(package, &[&arguments[..at], &arguments[at + 2..]].concat());
    }
    let is_2_0 = arguments.windows(2).any(|two| two == ["--api", "2.0"]);
    let driver = built("dapl-conformance", Profile::Dev);
    match value("--provider").and_then(|(_, name)| name) {
        None | Some(&("sm" | "sm0" | "usnic0")) => {
            let registry = [SM0, USNIC0].concat();
            let registry = if is_2_0 { of_2_0(&registry) } else { registry };
            let sandbox = Sandbox::new(&stage_with(Profile::Dev, &["daplsm", "daplusnic"]), Some(&registry));
            let mut command = sandbox.command(&driver, arguments);
            // sm and usnic support every optional feature, so an unsupported case is a failure.
            command.arg("--complete");
            if is_2_0 {
                command.arg("--except").arg(changed_by_2_0());
            }
            finish(&mut command)
        }
        Some(_) => finish(Command::new(&driver).args(arguments)),
    }
}

fn of_package(package: &str, arguments: &[&str]) -> Result {
    let name =
        package.strip_prefix("dapl").ok_or_else(|| format!("--package {package}: the name has to begin with dapl"))?;
    let registry = format!("{name}0 u1.2 nonthreadsafe default lib{package}.so.1 dapl.1.2 \"\" \"\"\n");
    let sandbox = Sandbox::new(&stage_with(Profile::Dev, &[package]), Some(&registry));
    let driver = built("dapl-conformance", Profile::Dev);
    finish(sandbox.command(driver, arguments).args(["--provider", &format!("{name}0")]))
}

fn finish(command: &mut Command) -> Result {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the conformance driver ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
