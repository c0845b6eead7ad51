//! `deb`: Debian packages, by dpkg's own tools, from the same items as `install`.
//!
//! Built apart from everything else, with no path of this machine in it and every time stamp that of the release, so that
//! two builds give the same bytes (`--twice` sees to it). `--debug` packs what the tests have built already.
#![forbid(unsafe_code)]

mod control;
mod packages;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use dapl_test::stage::{self, Profile, target_directory, workspace};

use crate::install::SYSCONFDIR;
use crate::layout::{self, Item, Places, What};
use crate::quiet::{run_quietly, text_of};
use crate::tree::{self, Tree};
use crate::{Result, cli, release, setup};
use control::Control;
use packages::{PACKAGES, Package};

/// Set for the build by the command itself: all is as it is to be.
const PREPARED: &str = "XTASK_DEB_PREPARED";
/// For programs: as Debian builds its own.
const HARDENED: [&str; 8] = [
    "-O2",
    "-fPIE",
    "-pie",
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now",
    "-Wformat",
];

/// Arguments of the command.
struct PackageOptions {
    profile: Profile,
    output: PathBuf,
    is_twice: bool,
}

/// The command.
pub(crate) fn run(arguments: &cli::Deb) -> Result {
    let output = arguments.output.clone().unwrap_or_else(|| target_directory().join("deb"));
    let options = PackageOptions { profile: cli::profile(arguments.debug), output, is_twice: arguments.twice };
    setup::require(&[setup::DPKG_DEB, setup::SHLIBDEPS, setup::STRIP])?;
    if options.profile == Profile::Dev || std::env::var_os(PREPARED).is_some() {
        return pack_all(&options);
    }
    let build = target_directory().join("deb-build");
    prepared(&build.join("1"), &options.output)?;
    if options.is_twice {
        let second = build.join("second");
        prepared(&build.join("2"), &second)?;
        same(&options.output, &second)?;
        println!("two builds gave the same bytes");
    }
    Ok(())
}

/// Runs the command again with a build directory of its own and remapped paths.
fn prepared(build: &Path, output: &Path) -> Result {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let home = std::env::var("CARGO_HOME").unwrap_or_else(|_| {
        let home = std::env::var("HOME").unwrap_or_default();
        format!("{home}/.cargo")
    });
    // Of two prefixes that fit, the later one counts.
    let remap = |from: &str, to: &str| format!("--remap-path-prefix={from}=/usr/src/{to}");
    let flags = [
        remap(&home, "cargo"),
        remap(&workspace().display().to_string(), "dapl-rs"),
        remap(&build.display().to_string(), "dapl-rs/target"),
    ];
    let mut command = Command::new(program);
    command.args(["deb", "--output"]).arg(output).env(PREPARED, "1").env(SYSCONFDIR, "/etc");
    command.env("CARGO_TARGET_DIR", build).env("RUSTFLAGS", flags.join(" "));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("no packages were made".to_owned()),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Whether two directories have the same packages.
fn same(one: &Path, other: &Path) -> Result {
    let packages = |directory: &Path| -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
        let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
        files.map(|path| Ok((path.file_name().expect("it has one").into(), fs::read(&path)?))).collect()
    };
    let (one, other) = (packages(one), packages(other));
    let (Ok(one), Ok(other)) = (one, other) else { return Err("packages are missing".to_owned()) };
    let different: Vec<_> =
        one.iter().filter(|(name, bytes)| other.get(*name) != Some(bytes)).map(|pair| pair.0).collect();
    match one.len() == other.len() && different.is_empty() {
        true => Ok(()),
        false => Err(format!("two builds differ in {different:?}")),
    }
}

/// Builds, and makes all packages for which there is something.
fn pack_all(options: &PackageOptions) -> Result {
    let tree = tree::build(options.profile)?;
    let arch = text_of(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let triplet = text_of(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?.trim().to_owned();
    let libdir = format!("/usr/lib/{triplet}");
    let places = Places { prefix: "/usr".into(), libdir: libdir.clone().into(), sysconfdir: "/etc".into() };
    let mut items = layout::items(&tree, &places)?;
    harden(&tree, options.profile, &mut items)?;
    let control = Control::of(&arch)?;
    let _ = fs::remove_dir_all(options.output.join("work"));
    let mut made = Vec::new();
    for package in &PACKAGES {
        let own: Vec<&Item> = items.iter().filter(|item| package.has(&item.path.to_string_lossy(), &libdir)).collect();
        let is_whole = own.iter().any(|item| matches!(item.what, What::File(..)));
        if !is_whole {
            println!("left out {}: it could not be built here", package.name);
            continue;
        }
        made.push(pack(package, &own, &control, options).map_err(|error| format!("{}: {error}", package.name))?);
    }
    fs::remove_dir_all(options.output.join("work")).map_err(|error| error.to_string())?;
    made.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

/// Programs anew, without the way to a staged library, and with what Debian builds its own with.
fn harden(tree: &Tree, profile: Profile, items: &mut [Item]) -> Result {
    let bin = tree.stage.root.join("bin");
    let (dtest, dapltest) = (bin.join("dtest.deb"), bin.join("dapltest.deb"));
    let map = format!("-ffile-prefix-map={}=.", workspace().display());
    let source = workspace().join("dtest/dtest.c");
    tree.stage.compile(&dtest, &[&source], &[&HARDENED[..], &[&map]].concat());
    let built = stage::built_for_package("dapltest", profile);
    stage::replace(&dapltest, |fresh| fs::copy(&built, fresh).map(drop)).map_err(|error| error.to_string())?;
    let anew = [(&tree.dtest, dtest), (&tree.dapltest, dapltest)];
    for item in items {
        if let What::File(from, _) = &mut item.what
            && let Some((_, program)) = anew.iter().find(|(staged, _)| *from == **staged)
        {
            *from = program.clone();
        }
    }
    Ok(())
}

/// Lays a package out and packs it; its file.
fn pack(package: &Package, items: &[&Item], control: &Control, options: &PackageOptions) -> Result<PathBuf> {
    let root = options.output.join("work").join(package.name);
    let io = |error: io::Error| error.to_string();
    for item in items {
        lay(item, &root, control).map_err(io)?;
    }
    if let Some((name, start)) = package.drop_in {
        let text = drop_in(start).map_err(io)?;
        write(&root.join(format!("etc/dat.conf.d/{name}.conf")), &text).map_err(io)?;
    }
    for (path, text) in control.documents(package)? {
        write(&root.join(&path), &text).map_err(io)?;
        if !path.ends_with("copyright") && !path.contains("lintian") {
            run_quietly(Command::new("gzip").arg("-9n").arg(root.join(&path)))?;
        }
    }
    control.describe(package, &root)?;
    let file = options.output.join(control.file_name(package));
    stamp(&root, control.epoch).map_err(io)?;
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.env("SOURCE_DATE_EPOCH", control.epoch.to_string());
    run_quietly(dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&file))?;
    Ok(file)
}

/// Puts an item below the root of its package: stripped if it is a binary, packed if it is a manual page.
fn lay(item: &Item, root: &Path, control: &Control) -> io::Result<()> {
    let to = root.join(item.path.strip_prefix("/").unwrap_or(&item.path));
    match &item.what {
        What::File(from, is_program) => {
            fs::create_dir_all(to.parent().expect("items are files"))?;
            fs::copy(from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(if *is_program { 0o755 } else { 0o644 }))?;
            if *is_program || to.to_string_lossy().contains(".so.") {
                let mut strip = Command::new("strip");
                strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]).arg(&to);
                run_quietly(&mut strip).map_err(io::Error::other)?;
            }
            Ok(())
        }
        What::Text(text) if item.path.starts_with("/usr/share/man") => {
            // dapl2-utils has a page of this name.
            let (to, text) = match to.to_string_lossy().strip_suffix("man5/dat.conf.5") {
                Some(man) => (
                    PathBuf::from(format!("{man}man5/dat.conf.{}", control.dat_conf_section())),
                    text.replacen(".TH DAT.CONF 5 ", &format!(".TH DAT.CONF {} ", control.dat_conf_section()), 1),
                ),
                None => (to, text.clone()),
            };
            write(&to, &text)?;
            run_quietly(Command::new("gzip").arg("-9n").arg(to)).map(drop).map_err(io::Error::other)
        }
        What::Text(text) | What::Conf(text) => write(&to, text),
        What::Link(target) | What::Yielding(target) => {
            fs::create_dir_all(to.parent().expect("items are files"))?;
            symlink(target, to)
        }
    }
}

fn write(to: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(to.parent().expect("a file lies in a directory"))?;
    fs::write(to, text)?;
    fs::set_permissions(to, Permissions::from_mode(0o644))
}

/// A provider's lines of the sample dat.conf, with what is said about them.
fn drop_in(start: &str) -> io::Result<String> {
    let sample = fs::read_to_string(workspace().join("dat.conf"))?;
    let paragraph = sample.split("\n\n").find(|part| part.lines().any(|line| line.starts_with(start)));
    let paragraph = paragraph.ok_or_else(|| io::Error::other(format!("dat.conf has no line {start}")))?;
    Ok(format!("{}\n\n# dat.conf(5) explains the fields.\n", paragraph.trim_end()))
}

/// Gives everything the time of the release, and directories the usual rights.
fn stamp(path: &Path, epoch: u64) -> io::Result<()> {
    if path.is_symlink() {
        return Ok(());
    }
    if path.is_dir() {
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(path)? {
            stamp(&entry?.path(), epoch)?;
        }
    }
    File::open(path)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(epoch))
}
