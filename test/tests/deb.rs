//! The Debian packages: packaging one build twice gives the same bytes, lintian reports no error and no warning,
//! binaries are hardened, and debug symbols are in separate packages. The packages can be installed beside libdapl2,
//! and their autopkgtests then pass.
//!
//! The packages contain the build of the other suites; `cargo xtask deb --twice` also compiles twice. Installs only
//! into a temporary directory.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dapl_test::program::{is_program, skip};
use dapl_test::stage::{OLD_NAMES_2, Profile, built, workspace};

/// Packages of another origin that must be installable beside this project's.
const NEIGHBOURS: [&str; 2] = ["libdapl2", "dapl2-utils"];
/// Number of packages without the debug symbol packages.
const PACKAGES: usize = 8;
/// Number of packages with binaries; each has a debug symbol package.
const WITH_BINARIES: usize = 6;

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn text_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{wrong}", output.status);
    said.into_owned()
}

/// Whether packages can be built here. If not, prints the reason.
fn can_pack() -> bool {
    let missing: Vec<&str> = ["dpkg-buildpackage", "dh"].into_iter().filter(|program| !is_program(program)).collect();
    if !missing.is_empty() {
        skip(&format!("{} missing; install the Debian packages dpkg-dev debhelper", missing.join(", ")));
    }
    missing.is_empty()
}

fn pack(name: &str) -> Vec<PathBuf> {
    let output = place(name);
    let _ = fs::remove_dir_all(&output);
    text_of(Command::new(built("xtask", Profile::Dev)).args(["deb", "--debug", "--output"]).arg(&output));
    let mut files: Vec<PathBuf> = fs::read_dir(output).unwrap().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("package file names are UTF-8")
}

/// The files whose names end with `end`.
fn ending<'a>(files: &'a [PathBuf], end: &'a str) -> impl Iterator<Item = &'a PathBuf> {
    files.iter().filter(move |path| name_of(path).ends_with(end))
}

/// All files of a package build, which is made once.
fn files() -> &'static [PathBuf] {
    static PACKED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PACKED.get_or_init(|| pack("packages"))
}

/// The packages without the debug symbol packages.
fn packages() -> Vec<&'static PathBuf> {
    ending(files(), ".deb").filter(|path| !name_of(path).contains("-dbgsym_")).collect()
}

/// Unpacks all packages into one directory.
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
fn debian_packages_are_reproducible() {
    if !can_pack() {
        return;
    }
    // The .changes and .buildinfo files contain the build directory, so they may differ.
    let bytes = |files: &[PathBuf]| -> BTreeMap<String, Vec<u8>> {
        let packages = [".deb", ".dsc", ".tar.xz"].into_iter().flat_map(|end| ending(files, end));
        packages.map(|path| (name_of(path).to_owned(), fs::read(path).unwrap())).collect()
    };
    let (one, other) = (bytes(files()), bytes(&pack("packages-again")));
    assert_eq!(one.len(), PACKAGES + WITH_BINARIES + 3, "{:?}", one.keys());
    let different: Vec<_> =
        one.iter().filter(|(name, bytes)| other.get(*name) != Some(bytes)).map(|pair| pair.0).collect();
    assert!(different.is_empty() && one.len() == other.len(), "{different:?}");
}

#[test]
fn lintian_reports_no_error_and_no_warning() {
    if !can_pack() {
        return;
    }
    if !is_program("lintian") {
        skip("lintian is missing; install the Debian package lintian");
        return;
    }
    // These packages close no Debian bug, so that tag is suppressed.
    let mut lintian = Command::new("lintian");
    lintian.args(["--tag-display-limit", "0", "--fail-on", "error,warning"]);
    let output = lintian
        .args(["--suppress-tags", "initial-upload-closes-no-bugs"])
        .args(ending(files(), ".changes"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn packaged_binaries_are_hardened() {
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
        assert!(line("GNU_STACK").contains(" RW "), "{name}: the stack is executable");
        assert!(line("Type:").contains("DYN"), "{name}: not position-independent");
        assert!(!facts.contains("RPATH") && !facts.contains("RUNPATH"), "{name}: has a RPATH or RUNPATH");
    }
}

/// The `NEIGHBOURS` packages, downloaded from the system's archive; empty if the download fails.
fn neighbours() -> Vec<PathBuf> {
    let cache = place("neighbours");
    fs::create_dir_all(&cache).unwrap();
    let cached = || -> Vec<PathBuf> { fs::read_dir(&cache).unwrap().flatten().map(|entry| entry.path()).collect() };
    if cached().len() != NEIGHBOURS.len() {
        let mut apt = Command::new("apt-get");
        // apt prints a remark because its download user may not write here.
        let _ = apt.args(["-qq", "download"]).args(NEIGHBOURS).current_dir(&cache).output();
    }
    cached()
}

#[test]
fn packages_install_beside_libdapl2_and_dtest1_runs() {
    if !can_pack() {
        return;
    }
    let neighbours = neighbours();
    if neighbours.len() != NEIGHBOURS.len() {
        skip(&format!("installing beside {}, which cannot be fetched", NEIGHBOURS.join(" and ")));
    }
    let root = place("system");
    let _ = fs::remove_dir_all(&root);
    let dpkg = root.join("var/lib/dpkg");
    ["updates", "info"].iter().for_each(|name| fs::create_dir_all(dpkg.join(name)).unwrap());
    ["status", "available"].iter().for_each(|name| fs::write(dpkg.join(name), "").unwrap());
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        skip("only root can install packages");
        return;
    }
    // The dependencies are on libraries of the real system, which this dpkg database does not contain.
    let mut install = Command::new("dpkg");
    install.arg(format!("--root={}", root.display())).args(["--force-depends", "--force-confnew", "-i"]);
    text_of(install.args(&neighbours).args(packages()));

    for entry in fs::read_dir(root.join("etc/dat.conf.d")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        assert!(text.contains(" u1.2  nonthreadsafe ") && !text.contains(" threadsafe "), "{text}");
    }

    let libraries = below(&root).into_iter().find(|path| path.ends_with("libdaplsm.so.1")).expect("sm is installed");
    let libraries = libraries.parent().unwrap();
    found_by_the_loader(&root, libraries, !neighbours.is_empty());
    let path = std::env::var("PATH").unwrap_or_default();
    let searched = format!("{}:{}", libraries.display(), libraries.join("dapl-rs").display());
    for test in ["dtest-over-sm", "program-builds", "program-of-2.0-builds"] {
        let work = place(test);
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).unwrap();
        let mut script = Command::new(workspace().join("dat/packaging/debian/tests").join(test));
        script.env("AUTOPKGTEST_TMP", &work).env("LD_LIBRARY_PATH", &searched);
        script.env("PATH", format!("{}:{path}", root.join("usr/bin").display()));
        script.env("DAT_OVERRIDE", root.join("etc/dat.conf.d/sm.conf"));
        // Make pkg-config treat the packages as installed in the system.
        script.env("PKG_CONFIG_SYSROOT_DIR", &root).env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
        if is_program("pkg-config") || test == "dtest-over-sm" {
            text_of(&mut script);
        }
    }
}

/// Checks that the loader finds both libdats of these packages, and finds the neighbours' libdat2 first if it is
/// installed.
fn found_by_the_loader(root: &Path, libraries: &Path, has_neighbours: bool) {
    let own = Path::new("/").join(libraries.strip_prefix(root).unwrap());
    fs::write(root.join("etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n").unwrap();
    // The file is named after the multiarch triplet, like that of Debian's libc.
    let triplet = own.file_name().unwrap().to_string_lossy();
    fs::write(root.join(format!("etc/ld.so.conf.d/{triplet}.conf")), format!("{}\n", own.display())).unwrap();
    let ldconfig = |option: &[&str]| text_of(Command::new("/sbin/ldconfig").arg("-r").arg(root).args(option));
    ldconfig(&[]);
    let list = ldconfig(&["-p"]);
    let found = |name: &str| -> Vec<&str> {
        let known = |line: &&str| line.split_whitespace().next() == Some(name);
        list.lines().filter(known).filter_map(|line| Some(line.split_once(" => ")?.1)).collect()
    };
    let private = own.join("dapl-rs");
    assert_eq!(found("libdat.so.1"), [own.join("libdat.so.1").to_str().unwrap()]);
    let both = [own.join("libdat2.so.2"), private.join("libdat2.so.2")];
    let expected = if has_neighbours { &both[..] } else { &both[1..] };
    assert_eq!(found("libdat2.so.2"), expected.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), "{list}");
    // The links of 2.0 are checked in their directory, not in the loader's cache, in which the neighbours have the same
    // names.
    for name in OLD_NAMES_2 {
        assert!(libraries.join("dapl-rs").join(name).exists(), "{name}");
    }
}

#[test]
fn debug_symbols_and_sources_have_packages() {
    if !can_pack() {
        return;
    }
    let symbols: Vec<&str> =
        ending(files(), ".deb").map(|path| name_of(path)).filter(|name| name.contains("-dbgsym_")).collect();
    assert_eq!(symbols.len(), WITH_BINARIES, "{symbols:?}");
    assert_eq!(packages().len(), PACKAGES);
    let sources = place("sources");
    let _ = fs::remove_dir_all(&sources);
    let description = ending(files(), ".dsc").next().expect("the directory has a .dsc file");
    text_of(Command::new("dpkg-source").args(["--no-check", "-x"]).arg(description).arg(&sources));
    for file in ["Cargo.lock", "dtest/dtest.c", "debian/watch", "debian/tests/control", "debian/libdat1.symbols"] {
        assert!(sources.join(file).is_file(), "{file}");
    }
    let watch = fs::read_to_string(sources.join("debian/watch")).unwrap();
    assert!(!watch.contains("@HOMEPAGE@"), "{watch}");
}
