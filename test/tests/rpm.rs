//! The RPM packages: rpmbuild builds them, and they contain the files, dependencies and symbol versions of a list in
//! this test.
//!
//! The packages contain the build of the other suites.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::program::{is_program, skip};
use dapl_test::stage::{Profile, built};

fn text_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{wrong}", output.status);
    said.into_owned()
}

fn query(packages: &[PathBuf], name: &str, what: &str) -> String {
    let start = format!("{name}-0");
    let is_it = |path: &&PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.starts_with(&start) && !file.contains(".src.")
    };
    let package = packages.iter().find(is_it).unwrap_or_else(|| panic!("no package {name} among {packages:?}"));
    text_of(Command::new("rpm").args(["-qp", what]).arg(package))
}

#[test]
fn rpm_packages_have_the_files_of_an_install() {
    if !is_program("rpmbuild") {
        skip("rpmbuild is missing; install the Debian package rpm");
        return;
    }
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rpm");
    let _ = fs::remove_dir_all(&output);
    text_of(Command::new(built("xtask", Profile::Dev)).args(["rpm", "--debug", "--output"]).arg(&output));
    let packages: Vec<PathBuf> = fs::read_dir(output).unwrap().flatten().map(|entry| entry.path()).collect();

    let has = |name: &str, what: &str, wanted: &str| {
        let text = query(&packages, name, what);
        assert!(text.lines().any(|line| line.ends_with(wanted)), "{name} {what}: no {wanted} in\n{text}");
    };
    has("dapl-rs-libs", "--list", "/libdat.so.1");
    has("dapl-rs-libs", "--provides", "libdat.so.1(DAT_1.2)(64bit)");
    has("dapl-rs-devel", "--list", "/include/dat/udat.h");
    let symbol = "libdat2.so.2(DAT_2.0)(64bit)";
    has("libdat2-dapl-rs", "--list", "/dapl-rs/libdat2.so.2");
    has("libdat2-dapl-rs", "--list", "/dapl-rs/libdaplofa.so.2");
    has("libdat2-dapl-rs", "--provides", symbol);
    has("libdat2-dapl-rs-devel", "--list", "/include/dapl-rs/dat2/udat.h");
    has("dapl-rs-sm", "--list", "/libdaplsm.so.1");
    has("dapl-rs-sm", "--requires", "libdat.so.1(DAT_1.2)(64bit)");
    has("dapl-rs-sm", "--configfiles", "/etc/dat.conf.d/sm.conf");
    has("dapl-rs-usnic", "--list", "/libdaplusnic.so.1");
    has("dapl-rs-verbs", "--list", "/libdaplcma.so.1");
    has("dapl-rs-verbs", "--requires", "librdmacm >= 32.0");
    has("dapl-rs-utils", "--list", "/bin/dtest1");
    has("dapl-rs-libs", "--changelog", " - 0.1.0-1");
    let sources = packages.iter().filter(|path| path.to_string_lossy().ends_with(".src.rpm"));
    assert_eq!(sources.count(), 1, "{packages:?}");
}
