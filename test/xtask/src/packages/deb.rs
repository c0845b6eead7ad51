//! Debian packages: a source package, binary packages and debug symbol packages, built by dpkg-buildpackage and
//! debhelper.
//!
//! The packages contain no path of this machine, and every time stamp is that of the release, so two builds give the
//! same bytes (checked by `--twice`).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{target_directory, workspace};

use super::{Identity, REVISION, SOURCE, copyright};
use crate::quiet::{run_quietly, step};
use crate::release::Release;
use crate::{Result, cli, setup};

const PACKAGING: &str = "dat/packaging/debian";

/// Builds the Debian packages. With `--twice`, builds them again and compares both results.
pub(crate) fn run(arguments: &cli::Packages) -> Result {
    setup::require(&[setup::CC, setup::DPKG_DEV, setup::DEBHELPER])?;
    let output = super::output(arguments.output.as_ref(), "deb");
    build(arguments, &output)?;
    if arguments.twice {
        let second = target_directory().join("deb-second");
        build(arguments, &second)?;
        same(&output, &second)?;
        println!("two builds are identical");
    }
    for file in sorted(&output).map_err(|error| format!("{}: {error}", output.display()))? {
        println!("{}", file.display());
    }
    Ok(())
}

/// Builds the source package and the binary packages in `output`, which is emptied first.
fn build(arguments: &cli::Packages, output: &Path) -> Result {
    let identity = Identity::current()?;
    let version = &identity.release.version;
    if output.exists() {
        fs::remove_dir_all(output).map_err(|error| format!("{}: {error}", output.display()))?;
    }
    let work = output.join("work");
    let failed = |error: io::Error| format!("{}: {error}", work.display());
    fs::create_dir_all(&work).map_err(failed)?;
    let archive = work.join(format!("{SOURCE}_{version}.orig.tar.xz"));
    super::pack_sources(&identity, &archive)?;
    run_quietly(Command::new("tar").arg("-C").arg(&work).arg("-xJf").arg(&archive))?;
    let tree = work.join(format!("{SOURCE}-{version}"));
    lay_over(&identity, &tree.join("debian"))?;
    let mut tool = Command::new("dpkg-buildpackage");
    // If cargo comes from rustup, Debian's database contains no cargo package, so the dependency check is off.
    tool.current_dir(&tree).args(["--unsigned-source", "--unsigned-changes", "--no-check-builddeps"]);
    super::use_finished_build(&mut tool, super::profile(arguments))?;
    step("build Debian packages", || super::run_logged(&mut tool, &output.join("build.log")))?;
    for file in sorted(&work).map_err(failed)?.into_iter().filter(|file| file.is_file()) {
        let to = output.join(file.file_name().expect("a path from read_dir has a file name"));
        fs::rename(&file, to).map_err(failed)?;
    }
    fs::remove_dir_all(&work).map_err(failed)
}

/// Writes the packaging files, the changelog and the copyright file into a copy of the sources.
fn lay_over(identity: &Identity, debian: &Path) -> Result {
    copy(identity, &workspace().join(PACKAGING), debian)?;
    super::write(&debian.join("changelog"), &changelog(identity)?, 0o644)?;
    super::write(&debian.join("copyright"), &copyright::text()?, 0o644)
}

fn copy(identity: &Identity, from: &Path, to: &Path) -> Result {
    let failed = |error: io::Error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(identity, &path, &to)?;
            continue;
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let mode = path.metadata().map_err(failed)?.permissions().mode() & 0o777;
        super::write(&to, &identity.fill(&text), mode)?;
    }
    Ok(())
}

fn changelog(identity: &Identity) -> Result<String> {
    let Release { version, changes, .. } = &identity.release;
    let mut text = format!("{SOURCE} ({version}-{REVISION}) unstable; urgency=medium\n\n");
    text += &super::items(changes, "  *");
    let date = super::date(&identity.release, "+%a, %d %b %Y %H:%M:%S +0000")?;
    Ok(text + &format!("\n -- {}  {date}\n", identity.maintainer))
}

fn sorted(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// Checks that two directories contain byte-identical packages.
fn same(one: &Path, other: &Path) -> Result {
    let packages = |directory: &Path| -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
        let is_package =
            |path: &PathBuf| path.extension().is_some_and(|kind| kind == "deb" || kind == "xz" || kind == "dsc");
        let files = sorted(directory)?.into_iter().filter(is_package);
        files
            .map(|path| Ok((path.file_name().expect("a path from read_dir has a file name").into(), fs::read(&path)?)))
            .collect()
    };
    let (Ok(one), Ok(other)) = (packages(one), packages(other)) else {
        return Err("a directory with the packages of a build cannot be read".to_owned());
    };
    let different: Vec<_> =
        one.iter().filter(|(name, bytes)| other.get(*name) != Some(bytes)).map(|pair| pair.0).collect();
    match one.len() == other.len() && different.is_empty() {
        true => Ok(()),
        false => Err(format!("two builds differ in {different:?}")),
    }
}
