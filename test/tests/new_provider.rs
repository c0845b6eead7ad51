//! `cargo xtask new-provider` writes a provider that builds unchanged. In one process, this provider passes the
//! conformance suite except the cases of its list of exceptions. The command refuses an existing directory and invalid
//! names.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use dapl_test::run::{Run, Sandbox};
use dapl_test::stage::{Profile, built, stage_with, target_directory, workspace};

const TIMEOUT: Duration = Duration::from_secs(600);

fn new_provider(name: &str, path: &Path) -> Output {
    let xtask = built("xtask", Profile::Dev);
    Command::new(xtask).current_dir(workspace()).args(["new-provider", name, "--path"]).arg(path).output().unwrap()
}

fn expect_success(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{what}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

#[test]
fn generated_provider_passes_the_conformance_suite() {
    let directory = target_directory().join("tmp/new-provider");
    let _ = fs::remove_dir_all(&directory);
    expect_success("new-provider", &new_provider("wire", &directory));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_directory().join("new-provider");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--manifest-path"]).arg(directory.join("Cargo.toml"));
    // The provider is built once and never debugged, so debug information and incremental compilation are off.
    build.env("CARGO_TARGET_DIR", &target).env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    expect_success("build", &build.output().unwrap());

    let library = target.join("debug/libdaplwire.so");
    let registry = format!("wire0 u1.2 nonthreadsafe default {} dapl.1.2 \"\" \"\"\n", library.display());
    let sandbox = Sandbox::new(&stage_with(Profile::Dev, &[]), Some(&registry));
    let driver = built("dapl-conformance", Profile::Dev);
    let exceptions = directory.join("wire.except");
    let exceptions = exceptions.to_str().expect("a UTF-8 path");
    let words = ["run", "--provider", "wire0", "--mode", "one", "--open", "--except", exceptions];
    let finished = Run::start(sandbox.command(driver, &words)).finish(TIMEOUT);
    print!("{}", finished.stdout);
    assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.stdout, finished.stderr);
}

#[test]
fn new_provider_refuses_an_existing_directory_and_bad_names() {
    let refused = |output: Output, cause: &str| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(cause), "{text}");
    };
    refused(new_provider("wire", workspace()), "exists already");
    refused(new_provider("No", &target_directory().join("tmp/none")), "lower-case letters");
}
