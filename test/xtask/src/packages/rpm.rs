//! RPM packages: a source package and binary packages, built by rpmbuild from the spec file in `dat/packaging`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Identity, SOURCE};
use crate::quiet::step;
use crate::release::Release;
use crate::{Result, cli, setup};

const SPEC: &str = "dat/packaging/dapl-rs.spec";

/// Builds the RPM packages.
pub(crate) fn run(arguments: &cli::Packages) -> Result {
    setup::require(&[setup::CC, setup::RPMBUILD])?;
    let output = super::output(arguments.output.as_ref(), "rpm");
    if output.exists() {
        fs::remove_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    }
    let identity = Identity::current()?;
    let work = output.join("work");
    let sources = work.join("SOURCES");
    fs::create_dir_all(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    super::pack_sources(&identity, &sources.join(format!("{SOURCE}-{}.tar.xz", identity.release.version)))?;
    let spec = work.join("dapl-rs.spec");
    let text = identity.fill(&super::read(SPEC)?) + &changelog(&identity)?;
    super::write(&spec, &text, 0o644)?;
    let mut tool = Command::new("rpmbuild");
    // If cargo comes from rustup, the RPM database contains no cargo package, so the dependency check is off.
    tool.args(["-ba", "--nodeps"]).arg("--define").arg(format!("_topdir {}", work.display())).arg(&spec);
    tool.env("SOURCE_DATE_EPOCH", identity.epoch.to_string());
    super::use_finished_build(&mut tool, super::profile(arguments))?;
    step("build RPM packages", || super::run_logged(&mut tool, &output.join("build.log")))?;
    for file in packages(&work) {
        let to = output.join(file.file_name().expect("a package path has a file name"));
        fs::rename(&file, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        println!("{}", to.display());
    }
    fs::remove_dir_all(&work).map_err(|error| error.to_string())
}

/// The end of the spec file: the changes of the release. A percent sign would begin a macro.
fn changelog(identity: &Identity) -> Result<String> {
    let Release { version, changes, .. } = &identity.release;
    let date = super::date(&identity.release, "+%a %b %d %Y")?;
    let items = super::items(changes, "-").replace('%', "%%");
    Ok(format!("\n%changelog\n* {date} {} - {version}-{}\n{items}", identity.maintainer, super::REVISION))
}

/// The packages in rpmbuild's output directories, sorted.
fn packages(work: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![work.join("RPMS"), work.join("SRPMS")];
    while let Some(directory) = next.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => next.push(path),
                path if path.extension().is_some_and(|extension| extension == "rpm") => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}
