//! The commands `deb` and `rpm`: package the sources with `dat/packaging`, using the distribution's tools.
//!
//! The packaging files are added to a copy of the sources, and call `cargo xtask install --package`, so that a
//! package has the files of an install, with the differences in `install/package.rs`. `--debug` packages the test
//! build.
#![forbid(unsafe_code)]

mod copyright;
pub(crate) mod deb;
pub(crate) mod rpm;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{Profile, workspace};

use crate::quiet::{run_quietly, text_of};
use crate::release::{self, Release};
use crate::{Result, cli};

/// Name of the source package, with which its archives also begin.
const SOURCE: &str = "dapl-rs";
/// Revision of the packaging, the part of the package version after the hyphen.
const REVISION: &str = "1";
/// File with the packages' maintainer and the project's home page.
const IDENTITY: &str = "dat/packaging/identity";

/// Data common to all packages of a build.
struct Identity {
    release: Release,
    /// Name and address.
    maintainer: String,
    homepage: String,
    /// Time of the release in seconds since 1970.
    epoch: u64,
}

impl Identity {
    /// Reads the identity file and the newest entry of the changelog. `DEBFULLNAME` and `DEBEMAIL`, if both are set,
    /// take precedence as the maintainer, as in Debian's tools.
    fn current() -> Result<Self> {
        let text = read(IDENTITY)?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            value.map(str::to_owned).ok_or_else(|| format!("{IDENTITY} has no line `{name} = value`"))
        };
        let own = [std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")];
        let maintainer = match own {
            [Ok(name), Ok(address)] => format!("{name} <{address}>"),
            _ => field("maintainer")?,
        };
        let release = release::current()?;
        let epoch =
            date(&release, "+%s")?.parse().map_err(|_| format!("docs/CHANGELOG.md: {} is not a date", release.date))?;
        Ok(Identity { maintainer, homepage: field("homepage")?, epoch, release })
    }

    /// Replaces `@MAINTAINER@`, `@HOMEPAGE@` and `@VERSION@` in a file of the packaging.
    fn fill(&self, text: &str) -> String {
        let fields = [
            ("@MAINTAINER@", self.maintainer.as_str()),
            ("@HOMEPAGE@", &self.homepage),
            ("@VERSION@", &self.release.version),
        ];
        fields.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// Changes as items of at most 79 columns, each after `mark`, for a changelog of a package.
fn items(changes: &[String], mark: &str) -> String {
    let mut text = String::new();
    for change in changes {
        let mut line = mark.to_owned();
        for word in change.replace('`', "").split(' ') {
            if line.len() + word.len() > 78 {
                text += &(line + "\n");
                line = " ".repeat(mark.len());
            }
            line += &format!(" {word}");
        }
        text += &(line + "\n");
    }
    text
}

/// Returns the date of a release in a format of date(1).
fn date(release: &Release, format: &str) -> Result<String> {
    let text = text_of(Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &release.date, format]))?;
    Ok(text.trim().to_owned())
}

/// Reads a file of the project.
fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// Writes a file with the given mode, and creates its parent directories.
fn write(to: &Path, text: &str, mode: u32) -> Result {
    let put = || -> io::Result<()> {
        fs::create_dir_all(to.parent().expect("the path of a packaged file has a parent"))?;
        fs::write(to, text)?;
        fs::set_permissions(to, Permissions::from_mode(mode))
    };
    put().map_err(|error| format!("{}: {error}", to.display()))
}

/// Packs the sources, as `name-version/`, into a reproducible compressed archive.
fn pack_sources(identity: &Identity, archive: &Path) -> Result {
    let list = archive.with_extension("list");
    let files = match workspace().join(".git").exists() {
        true => text_of(Command::new("git").current_dir(workspace()).args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?,
        false => text_of(Command::new("find").current_dir(workspace()).args([
            ".",
            "-type",
            "f",
            "-not",
            "-path",
            "./target*",
            "-not",
            "-path",
            "./debian/*",
            "-printf",
            "%P\n",
        ]))?,
    };
    // git's index may still contain a file that was deleted.
    let files: String =
        files.lines().filter(|file| workspace().join(file).exists()).map(|file| format!("{file}\n")).collect();
    write(&list, &files, 0o644)?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(workspace()).arg("-cJf").arg(archive);
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", identity.epoch));
    tar.arg(format!("--transform=s,^,{SOURCE}-{}/,", identity.release.version));
    run_quietly(tar.arg(format!("--files-from={}", list.display())))?;
    fs::remove_file(list).map_err(|error| error.to_string())
}

/// Returns the directory for a command's results: the chosen one, or `name` in the target directory.
fn output(chosen: Option<&PathBuf>, name: &str) -> PathBuf {
    chosen.cloned().unwrap_or_else(|| dapl_test::stage::target_directory().join(name))
}

/// For the test build (`--debug`), makes the packaging call this program's install instead of building the copied
/// sources.
fn use_finished_build(tool: &mut Command, profile: Profile) -> Result {
    if profile == Profile::Dev {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        tool.env("DAPL_XTASK", program).env("DAPL_XTASK_OPTIONS", "--debug");
        tool.env("CARGO_TARGET_DIR", dapl_test::stage::target_directory());
    }
    Ok(())
}

/// Runs a tool with long output, which is written to `log` and printed only if the tool fails.
fn run_logged(tool: &mut Command, log: &Path) -> Result {
    let (output, is_good) = crate::quiet::capture(tool, log)?;
    match is_good {
        true => Ok(()),
        false => Err(format!("{tool:?} failed:\n{}", String::from_utf8_lossy(&output))),
    }
}

/// Cargo profile that the arguments select.
fn profile(arguments: &cli::Packages) -> Profile {
    cli::profile(arguments.debug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packaging_placeholders_are_replaced() {
        let identity = Identity::current().unwrap();
        let text = identity.fill("@MAINTAINER@ @HOMEPAGE@ @VERSION@");
        assert!(!text.contains('@') || text.matches('@').count() == 1, "more than one @: {text}");
        assert!(text.contains("https://") && text.ends_with(env!("CARGO_PKG_VERSION")), "{text}");
    }
}
