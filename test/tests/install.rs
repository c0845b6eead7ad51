//! What is installed beside the sm provider, and what is not: the provider over rdma-core is left out where it cannot be
//! built, is found by the names that old files have for it, and says why it opens no adapter.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use dapl_test::rdma_core::{self, has_rdma_core};
use dapl_test::run::{self, Room};
use dapl_test::stage::{OLD_NAMES, Profile, VERBS, built, providers, stage, workspace};

/// What the provider's bindings are made with.
const BINDINGS: [&str; 3] = ["ibverbs-sys", "bindgen", "cmake"];

/// The packages that cargo would build, given these flags.
fn packages(flags: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["tree", "--offline", "--locked", "--workspace", "--prefix", "none"]);
    let output = cargo.args(["--edges", "normal,build,dev"]).args(flags).output().expect("cargo starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn without_its_feature_nothing_needs_rdma_core() {
    let plain = packages(&[]);
    assert!(plain.contains("daplverbs") && plain.contains("rdma-cm-sys") && plain.contains("daplsm"));
    let bindings: Vec<_> = BINDINGS.iter().filter(|name| plain.contains(**name)).collect();
    assert!(bindings.is_empty(), "a plain build needs {bindings:?}");
    if has_rdma_core() {
        let everything = packages(&rdma_core::FEATURES);
        assert!(BINDINGS.iter().all(|name| everything.contains(*name)), "{everything:?}");
    }
}

/// A machine with compilers, and nothing else; not even a way to install.
fn bare_machine() -> PathBuf {
    let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bare-machine");
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).unwrap();
    // Only looked for, not run.
    ["cc", "c++", "valgrind"].iter().for_each(|name| symlink("/bin/true", programs.join(name)).unwrap());
    programs
}

fn set_up(path: &Path, arguments: &[&str]) -> Output {
    let mut xtask = Command::new(built("xtask", Profile::Dev));
    xtask.arg("setup").args(arguments).env("PATH", path).env_remove("CC").output().expect("xtask starts")
}

#[test]
fn where_it_cannot_be_built_it_is_left_out_with_a_line() {
    let path = bare_machine();
    let output = set_up(&path, &[]);
    let said = text(&output.stderr);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("xtask: libdaplverbs.so.1 is left out: cmake, make, "), "{said}");
    assert!(said.contains("install what Debian calls cmake make "), "{said}");

    let output = set_up(&path, &["--required"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).starts_with("xtask: cmake, make, "), "{output:?}");
}

#[test]
fn the_sample_shows_lines_for_it_that_can_be_used() {
    let sample = fs::read_to_string(workspace().join("dat.conf")).unwrap();
    let lines: Vec<&str> = sample.lines().filter_map(|line| line.strip_prefix("#verbs")).collect();
    assert!(lines.len() >= 3, "by device, by network device, by address: {sample}");
    let text: String = lines.iter().map(|line| format!("verbs{line}\n")).collect();
    let conf = dat::conf::parse(&Arc::from("dat.conf"), text.as_bytes());
    assert!(conf.complaints.is_empty(), "{:?}", conf.complaints);
    assert_eq!(conf.records.len(), lines.len());
    assert!(conf.records.iter().all(|record| record.library == VERBS.as_bytes()), "{:?}", conf.records);
}

/// The lines that installers and distributions wrote for such adapters, one for each name of the library.
#[test]
fn old_lines_open_it() {
    if !providers().contains(&rdma_core::PACKAGE) {
        println!("skipped: {VERBS} cannot be built here");
        return;
    }
    let old = [
        ("OpenIB-cma", "ib0 0"),
        ("OpenIB-cma-1", "ib1 0"),
        ("OpenIB-mlx4_0-1", "mlx4_0 1"),
        ("OpenIB-scm", "mthca0 2"),
    ];
    let line =
        |((name, params), library)| format!("{name} u1.2 nonthreadsafe default {library} dapl.1.2 \"{params}\" \"\"\n");
    let lines: String = old.into_iter().zip(OLD_NAMES).map(line).collect();
    let stage = stage(Profile::Dev);
    let (room, program) = (Room::new(&stage, Some(&lines)), run::program(&stage, "test/c/first.c"));
    for (name, params) in old {
        let finished = room.start(&program, &[name]).finish(Duration::from_secs(120));
        let object = params.split(' ').next().unwrap();
        // The provider's own words: it was found, loaded, and asked for this adapter.
        let refusal = format!("{name}: cannot open \"{object}\": ");
        let is_open = finished.status.success() && finished.stdout.starts_with(&format!("{name}: messages of up to "));
        assert!(is_open || finished.stderr.contains(&refusal), "{finished:#?}");
    }
}

/// `cargo xtask`'s program, on a prefix.
fn xtask(arguments: &[&str]) -> Output {
    let output = Command::new(built("xtask", Profile::Dev)).args(arguments).output().expect("xtask starts");
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[test]
fn what_is_installed_compiles_by_pkg_config_runs_and_goes_without_a_trace() {
    if !rdma_core::is_program("pkg-config") {
        println!("skipped: pkg-config is missing; install what Debian calls pkg-config");
        return;
    }
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = fs::remove_dir_all(&prefix);
    let where_to = ["--debug", "--prefix", prefix.to_str().unwrap()];
    xtask(&[&["install"], &where_to[..]].concat());
    assert!(prefix.join("share/man/man3/dat_ep_connect.3").exists() && prefix.join("bin/dtest1").exists());

    let conf = dat::conf::parse(&Arc::from("dat.conf"), &fs::read(prefix.join("etc/dat.conf")).unwrap());
    assert!(!conf.records.is_empty() && conf.records.iter().all(|record| !record.key.thread_safe), "{conf:?}");

    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--cflags", "--libs", "dat"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = text(&pkg_config.output().expect("pkg-config starts").stdout);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("by-pkg-config");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(workspace().join("test/c/first.c")).args(flags.split_whitespace());
    let output = cc.output().expect("cc starts");
    assert!(output.status.success(), "{flags}: {}", text(&output.stderr));

    let mut first = Command::new(&program);
    first.env("LD_LIBRARY_PATH", prefix.join("lib")).env("DAT_OVERRIDE", prefix.join("etc/dat.conf"));
    let finished = run::Run::start(first).finish(Duration::from_secs(120));
    finished.expect_success("sm0: messages of up to ");

    // A second install changes nothing that is the administrator's.
    fs::write(prefix.join("etc/dat.conf"), "# mine\n").unwrap();
    xtask(&[&["install"], &where_to[..]].concat());
    assert_eq!(fs::read_to_string(prefix.join("etc/dat.conf")).unwrap(), "# mine\n");
    fs::remove_file(prefix.join("etc/dat.conf")).unwrap();
    xtask(&["uninstall", "--prefix", prefix.to_str().unwrap()]);
    assert!(
        !prefix.exists(),
        "{:?}",
        fs::read_dir(&prefix).map(|left| left.flatten().map(|e| e.path()).collect::<Vec<_>>())
    );
}
