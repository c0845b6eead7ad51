//! The installation: programs compile with the flags of pkg-config and run, and uninstall removes all files. dat.conf
//! lines of other DAT implementations load the verbs provider, which reports why an adapter cannot be opened, and which
//! package is missing.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use dapl_test::program::is_program;
use dapl_test::run::{self, Run, Sandbox};
use dapl_test::stage::{OLD_NAMES, OLD_NAMES_2, Profile, VERBS, built, stage, workspace};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn sample_lines_of_the_verbs_provider_are_valid() {
    let sample = fs::read_to_string(workspace().join("dat.conf")).unwrap();
    let lines: Vec<&str> = sample.lines().filter_map(|line| line.strip_prefix("#verbs")).collect();
    assert!(lines.len() >= 3, "fewer than three sample lines: {sample}");
    let text: String = lines.iter().map(|line| format!("verbs{line}\n")).collect();
    let conf = dat::conf::parse(&Arc::from("dat.conf"), text.as_bytes());
    assert!(conf.diagnostics.is_empty(), "{:?}", conf.diagnostics);
    assert_eq!(conf.records.len(), lines.len());
    assert!(conf.records.iter().all(|record| record.library == VERBS.as_bytes()), "{:?}", conf.records);
}

/// Registry lines that installers and distributions wrote, one for each library name.
#[test]
fn dat_conf_lines_of_dapl_1_2_open_the_verbs_provider() {
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
    let (sandbox, program) = (Sandbox::new(&stage, Some(&lines)), run::program(&stage, "test/c/first.c"));
    for (name, params) in old {
        let finished = sandbox.start(&program, &[name]).finish(Duration::from_secs(120));
        let object = params.split(' ').next().unwrap();
        // The message comes from the provider: the library was found and loaded, and its open function was called for
        // this adapter.
        let refusal = format!("{name}: cannot open \"{object}\": ");
        let is_open = finished.status.success() && finished.stdout.starts_with(&format!("{name}: messages of up to "));
        assert!(is_open || finished.stderr.contains(&refusal), "{finished:#?}");
    }
}

/// Sixty DAT 2.0 lines, as distributions write them: an adapter of sm still opens, and a line of each library name
/// loads the verbs provider.
#[test]
fn dat_conf_lines_of_dapl_2_0_open_the_verbs_provider() {
    let number = |number: usize| {
        let library = OLD_NAMES_2[number % OLD_NAMES_2.len()];
        let (name, params) = (format!("ofa-v2-mlx4_{number}-1"), format!("mlx4_{number} 1"));
        let line = format!("{name} u2.0 nonthreadsafe default {library} dapl.2.0 \"{params}\" \"\"\n");
        (name, line)
    };
    let (names, mut lines): (Vec<String>, Vec<String>) = (0..60).map(number).unzip();
    lines.push("sm0 u2.0 nonthreadsafe default libdaplsm.so.1 dapl.2.0 \"\" \"\"\n".to_owned());
    let stage = stage(Profile::Dev);
    let (sandbox, program) = (Sandbox::new(&stage, Some(&lines.concat())), run::program_2(&stage, "test/c/first.c"));
    let limit = Duration::from_secs(120);
    let opened = sandbox.start(&program, &["sm0"]).finish(limit);
    opened.expect_success("sm0: messages of up to ");
    assert_eq!(opened.stderr, "");
    for (number, name) in names.iter().enumerate().take(OLD_NAMES_2.len()) {
        let finished = sandbox.start(&program, &[name]).finish(limit);
        assert!(finished.stderr.contains(&format!("{name}: cannot open \"mlx4_{number}\": ")), "{finished:#?}");
    }
}

/// A file that is not a library hides the system's libibverbs or librdmacm, as if the library were not installed.
#[test]
fn a_missing_library_of_rdma_core_is_named_with_its_package() {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, "test/c/first.c");
    let line = |params| format!("v u1.2 nonthreadsafe default {VERBS} dapl.1.2 \"{params}\" \"\"\n");
    let cases = [
        ("libibverbs.so.1", "ib0 cm=socket", "install the package libibverbs1 "),
        ("librdmacm.so.1", "ib0", "install the package librdmacm1 "),
    ];
    for (library, params, remedy) in cases {
        let hiding = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("without-{library}"));
        fs::create_dir_all(&hiding).unwrap();
        fs::write(hiding.join(library), "no library").unwrap();
        let sandbox = Sandbox::new(&stage, Some(&line(params)));
        let mut command = sandbox.command(&program, &["v"]);
        command.env("LD_LIBRARY_PATH", format!("{}:{}", hiding.display(), stage.lib.display()));
        let finished = Run::start(command).finish(Duration::from_secs(120));
        let said = finished.stderr.lines().find(|line| line.contains("v: cannot open \"ib0\": ")).unwrap_or_default();
        assert!(!finished.status.success() && said.contains(library) && said.contains(remedy), "{finished:#?}");
    }
}

/// Runs `cargo xtask` with these arguments.
fn xtask(arguments: &[&str]) -> Output {
    let output = Command::new(built("xtask", Profile::Dev)).args(arguments).output().expect("xtask starts");
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// Compiles and runs a program with the installed headers and library of one version.
fn compiles_and_runs(prefix: &Path, library: &str, version: &str) {
    let ask = |question: &[&str]| {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(question).arg(library).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        text(&pkg_config.output().expect("pkg-config starts").stdout)
    };
    assert_eq!(ask(&["--modversion"]).trim(), version);
    let flags = ask(&["--cflags", "--libs"]);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("by-pkg-config-{library}"));
    let mut cc = Command::new("cc");
    if library == "dat2" {
        cc.arg("-I").arg(workspace().join("test/c/dat20"));
    }
    cc.arg("-o").arg(&program).arg(workspace().join("test/c/first.c")).args(flags.split_whitespace());
    let output = cc.output().expect("cc starts");
    assert!(output.status.success(), "{flags}: {}", text(&output.stderr));

    let mut first = Command::new(&program);
    first.env("LD_LIBRARY_PATH", prefix.join("lib")).env("DAT_OVERRIDE", prefix.join("etc/dat.conf"));
    let finished = run::Run::start(first).finish(Duration::from_secs(120));
    finished.expect_success("sm0: messages of up to ");
}

#[test]
fn installed_files_compile_by_pkg_config_run_and_are_removed_completely() {
    if !is_program("pkg-config") {
        println!("skipped: pkg-config is missing; install the Debian package pkg-config");
        return;
    }
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = fs::remove_dir_all(&prefix);
    let where_to = ["--debug", "--prefix", prefix.to_str().unwrap()];
    let output = xtask(&[&["install"], &where_to[..]].concat());
    let remedy = format!("echo {} >/etc/ld.so.conf.d/dapl-rs.conf && ldconfig", prefix.join("lib").display());
    let pkg_config = format!("PKG_CONFIG_PATH={}\n", prefix.join("lib/pkgconfig").display());
    assert!(text(&output.stdout).contains(&remedy) && text(&output.stdout).contains(&pkg_config), "{output:?}");
    for library in ["libdat.so.1.2.0", "libdaplsm.so.1"] {
        let bytes = fs::read(prefix.join("lib").join(library)).unwrap();
        assert!(!bytes.windows(8).any(|name| name == b".symtab\0"), "{library} is not stripped");
    }
    assert!(prefix.join("share/man/man3/dat_ep_connect.3").exists() && prefix.join("bin/dtest1").exists());

    let conf = dat::conf::parse(&Arc::from("dat.conf"), &fs::read(prefix.join("etc/dat.conf")).unwrap());
    assert!(!conf.records.is_empty() && conf.records.iter().all(|record| !record.key.thread_safe), "{conf:?}");

    for name in OLD_NAMES_2 {
        assert_eq!(fs::read_link(prefix.join("lib").join(name)).unwrap(), Path::new(VERBS), "{name}");
    }
    for (library, version) in [("dat", "1.2.0"), ("dat2", "2.0.0")] {
        compiles_and_runs(&prefix, library, version);
    }

    // A second install keeps the dat.conf that the administrator changed.
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
