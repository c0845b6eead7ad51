//! The installed tree, staged in the target directory for the other commands. `layout` lists the destinations of its
//! files.
//!
//! A stage contains a dat.conf and the programs, so that the result of `build` works without an install. dtest and
//! dapltest are named dtest1 and dapltest1, because Debian's dapl2-utils has the names without the 1.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dapl_test::stage::{self, Profile, Stage, workspace};

use crate::quiet::step;
use crate::{Result, setup};

/// A stage with its programs and registry.
pub(crate) struct Tree {
    /// Libraries and headers.
    pub(crate) stage: Stage,
    /// The programs. dtest and dapltest find libdat in the stage; datinfo does if the dynamic loader finds none.
    pub(crate) dtest: PathBuf,
    pub(crate) dapltest: PathBuf,
    pub(crate) datinfo: PathBuf,
    /// Registry with this tree's providers.
    pub(crate) conf: PathBuf,
}

/// Builds libraries and programs, and stages them in the target directory.
pub(crate) fn build(profile: Profile) -> Result<Tree> {
    let Part { stage, dtest, conf } = part("libdat and the providers", || stage::stage(profile))?;
    let bin = stage.root.join("bin");
    let place = |package: &str, name: &str| {
        let (from, to) = (stage::built(package, profile), bin.join(name));
        stage::replace(&to, |fresh| fs::copy(&from, fresh).map(drop))
            .map_err(|error| format!("{}: {error}", to.display()))
            .map(|()| to)
    };
    let (dapltest, datinfo) =
        step("build dapltest and datinfo", || Ok((place("dapltest", "dapltest1")?, place("datinfo", "datinfo")?)))?;
    Ok(Tree { stage, dtest, dapltest, datinfo, conf })
}

/// A stage with the program dtest and a registry, which is all that the demonstration needs.
pub(crate) struct Part {
    /// Libraries and headers.
    pub(crate) stage: Stage,
    /// The program dtest. Its library search path is the stage.
    pub(crate) dtest: PathBuf,
    /// Registry with this tree's providers.
    pub(crate) conf: PathBuf,
}

/// Stages libraries, builds dtest beside them, and writes the registry.
pub(crate) fn part(name: &str, stage: impl FnOnce() -> Stage) -> Result<Part> {
    setup::require(&[setup::CC])?;
    let stage = step(&format!("build {name}"), || Ok(stage()))?;
    let (dtest, conf) = (stage.root.join("bin/dtest1"), stage.root.join("etc/dat.conf"));
    let made: io::Result<()> = (|| {
        fs::create_dir_all(stage.root.join("bin"))?;
        fs::create_dir_all(stage.root.join("etc"))?;
        stage::replace(&dtest, |fresh| {
            stage.compile(fresh, &[&workspace().join("dtest/dtest.c")], &["-O2", "-Wl,-rpath,$ORIGIN/../lib"]);
            Ok(())
        })?;
        fs::write(&conf, registry(&stage.lib)?)
    })();
    made.map_err(|error| format!("{}: {error}", stage.root.display()))?;
    Ok(Part { stage, dtest, conf })
}

impl Tree {
    /// Prints where the tree is and how to use it.
    pub(crate) fn announce(&self) {
        println!("staged in {}; to use it from there:", self.stage.root.display());
        println!("  cc -I{} prog.c -L{} -ldat", self.stage.include.display(), self.stage.lib.display());
        println!("  export LD_LIBRARY_PATH={} DAT_OVERRIDE={}", self.stage.lib.display(), self.conf.display());
    }
}

/// The sample dat.conf, with absolute paths for the providers in all lines that are not comments.
pub(crate) fn registry(lib: &Path) -> io::Result<String> {
    let sample = fs::read_to_string(workspace().join("dat.conf"))?;
    let lib = lib.display().to_string();
    let lines = sample.lines().map(|line| {
        let words = line.split(' ').map(|word| match word.starts_with("libdapl") && !line.starts_with('#') {
            true => quoted(&format!("{lib}/{word}")),
            false => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ") + "\n"
    });
    Ok(lines.collect())
}

/// Quotes a field of dat.conf.
fn quoted(text: &str) -> String {
    match text.contains(|c: char| c.is_whitespace() || "\"\\#".contains(c)) {
        true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        false => text.to_owned(),
    }
}

/// Lists the libraries, headers or links in a directory, without temporary files.
pub(crate) fn sorted(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let files: io::Result<Vec<_>> = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = files?;
    files.retain(|file| file.extension().is_none_or(|extension| extension != "fresh"));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_of_the_build_tree_has_library_paths_of_the_tree() {
        let text = registry(Path::new("/a b")).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert_eq!(lines.len(), 4, "not two adapters in two versions: {text}");
        for (line, library) in lines.iter().zip(["libdaplsm", "libdaplsm", "libdaplusnic", "libdaplusnic"]) {
            assert!(line.contains(&format!(" \"/a b/{library}.so.1\" ")), "{text}");
        }
    }
}
