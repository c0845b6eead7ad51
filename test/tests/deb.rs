//! The Debian packages: two builds give the same bytes, lintian reports nothing, binaries are hardened, and they can be
//! installed beside those of libdapl2, where dtest1 then runs.
//!
//! Packs what the other suites have built; `cargo xtask deb --twice` compares two builds. Installs only into a directory of its
//! own.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use dapl_test::program::is_program;
use dapl_test::run::Run;
use dapl_test::stage::{Profile, built};

/// Packages that must be installable beside these.
const NEIGHBOURS: [&str; 2] = ["libdapl2", "dapl2-utils"];
/// dtest takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn text_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{wrong}", output.status);
    said.into_owned()
}

/// Whether packages can be made here; if not, says why.
fn can_pack() -> bool {
    let missing: Vec<&str> =
        ["dpkg-deb", "dpkg-shlibdeps", "strip"].into_iter().filter(|program| !is_program(program)).collect();
    if !missing.is_empty() {
        println!("skipped: {} missing; install what Debian calls dpkg-dev binutils", missing.join(", "));
    }
    missing.is_empty()
}

fn pack(name: &str) -> Vec<PathBuf> {
    let output = place(name);
    let _ = fs::remove_dir_all(&output);
    text_of(Command::new(built("xtask", Profile::Dev)).args(["deb", "--debug", "--output"]).arg(&output));
    let mut packages: Vec<PathBuf> = fs::read_dir(output).unwrap().flatten().map(|entry| entry.path()).collect();
    packages.sort();
    packages
}

/// All packages, made once.
fn packages() -> &'static [PathBuf] {
    static PACKED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PACKED.get_or_init(|| pack("packages"))
}

/// All of them unpacked into one directory.
fn unpacked(name: &str) -> PathBuf {
    let root = place(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    packages().iter().for_each(|package| drop(text_of(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))));
    root
}

fn below(root: &Path) -> Vec<PathBuf> {
    let list = text_of(Command::new("find").arg(root).args(["-type", "f"]));
    list.lines().map(PathBuf::from).collect()
}

#[test]
fn packed_twice_they_are_the_same_bytes() {
    if !can_pack() {
        return;
    }
    let bytes = |packages: &[PathBuf]| -> BTreeMap<PathBuf, Vec<u8>> {
        packages.iter().map(|path| (path.file_name().unwrap().into(), fs::read(path).unwrap())).collect()
    };
    let (one, other) = (bytes(packages()), bytes(&pack("packages-again")));
    assert!(one.len() >= 5, "{:?}", one.keys());
    let different: Vec<_> =
        one.iter().filter(|(name, bytes)| other.get(*name) != Some(bytes)).map(|pair| pair.0).collect();
    assert!(different.is_empty() && one.len() == other.len(), "{different:?}");
}

#[test]
fn lintian_has_nothing_to_say() {
    if !can_pack() {
        return;
    }
    if !is_program("lintian") {
        println!("skipped: lintian is missing; install what Debian calls lintian");
        return;
    }
    // No bug of Debian's asks for these packages.
    let mut lintian = Command::new("lintian");
    lintian.args(["--tag-display-limit", "0", "--fail-on", "error,warning"]);
    let output = lintian.args(["--suppress-tags", "initial-upload-closes-no-bugs"]).args(packages()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn binaries_are_hardened() {
    if !can_pack() {
        return;
    }
    let root = unpacked("hardened");
    let is_binary = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let binaries: Vec<PathBuf> = below(&root).into_iter().filter(is_binary).collect();
    assert!(binaries.len() >= 4, "{binaries:?}");
    for binary in binaries {
        let facts = text_of(Command::new("readelf").args(["-hldW"]).arg(&binary));
        let line = |name: &str| facts.lines().find(|line| line.contains(name)).unwrap_or_default();
        let name = binary.display();
        assert!(facts.contains("GNU_RELRO"), "{name}: not read-only after relocation");
        assert!(line("(FLAGS_1)").contains("NOW") || line("(FLAGS)").contains("BIND_NOW"), "{name}: binds lazily");
        assert!(line("GNU_STACK").contains(" RW "), "{name}: its stack can be executed");
        assert!(line("Type:").contains("DYN"), "{name}: its place is fixed");
        assert!(!facts.contains("RPATH") && !facts.contains("RUNPATH"), "{name}: has a path to libraries of its own");
    }
}

/// The neighbours' packages, from the system's archive; none if it cannot be asked.
fn neighbours() -> Vec<PathBuf> {
    let cache = place("neighbours");
    fs::create_dir_all(&cache).unwrap();
    let cached = || -> Vec<PathBuf> { fs::read_dir(&cache).unwrap().flatten().map(|entry| entry.path()).collect() };
    if cached().len() != NEIGHBOURS.len() {
        let mut apt = Command::new("apt-get");
        // apt's download user may not write here, about which apt prints a remark.
        let _ = apt.args(["-qq", "download"]).args(NEIGHBOURS).current_dir(&cache).output();
    }
    cached()
}

#[test]
fn they_live_beside_libdapl2_and_dtest1_runs() {
    if !can_pack() {
        return;
    }
    let neighbours = neighbours();
    if neighbours.len() != NEIGHBOURS.len() {
        println!("not tried: {} cannot be fetched; only ours are installed", NEIGHBOURS.join(" and "));
    }
    let root = place("system");
    let _ = fs::remove_dir_all(&root);
    let dpkg = root.join("var/lib/dpkg");
    ["updates", "info"].iter().for_each(|name| fs::create_dir_all(dpkg.join(name)).unwrap());
    ["status", "available"].iter().for_each(|name| fs::write(dpkg.join(name), "").unwrap());
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        println!("skipped: only root can install packages");
        return;
    }
    // Their library dependencies are the real system's, which this dpkg database does not contain.
    let mut install = Command::new("dpkg");
    install.arg(format!("--root={}", root.display())).args(["--force-depends", "--force-confnew", "-i"]);
    text_of(install.args(&neighbours).args(packages()));

    for entry in fs::read_dir(root.join("etc/dat.conf.d")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        assert!(text.contains(" u1.2  nonthreadsafe ") && !text.contains(" threadsafe "), "{text}");
    }

    let libraries = below(&root).into_iter().find(|path| path.ends_with("libdaplsm.so.1")).expect("sm is installed");
    let command = |arguments: &[&str]| {
        let mut dtest = Command::new(root.join("usr/bin/dtest1"));
        dtest.env("LD_LIBRARY_PATH", libraries.parent().unwrap()).env("DAPL_DIR", place("system-sm"));
        dtest.env("DAT_OVERRIDE", root.join("etc/dat.conf.d/sm.conf")).args(arguments);
        dtest
    };
    fs::create_dir_all(place("system-sm")).unwrap();
    fs::set_permissions(place("system-sm"), fs::Permissions::from_mode(0o700)).unwrap();
    let server = Run::start(command(&["-s", "-P", "sm0"]));
    server.wait_for("listening", LIMIT);
    let client = Run::start(command(&["-P", "sm0", "-h", "localhost"]));
    client.finish(LIMIT).expect_success("dtest: OK (checked ");
    server.finish(LIMIT).expect_success("dtest: OK (checked ");
}
