//! The tree of an install: staged in the target directory for the other commands, or copied below a prefix.
//!
//! A stage has its own dat.conf and dtest, so that `build` leaves something to try by hand.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{self, OLD_NAMES, Profile, Stage, VERBS, workspace};

use crate::{Result, setup};

/// libdat reads this variable when it is built: where dat.conf is looked for first.
const SYSCONFDIR: &str = "DAPL_SYSCONFDIR";

/// A stage, with what an install has besides.
pub(crate) struct Tree {
    /// Libraries and headers.
    pub(crate) stage: Stage,
    /// The program; it finds its libraries by itself.
    pub(crate) dtest: PathBuf,
    /// A registry that names this tree's providers.
    pub(crate) conf: PathBuf,
}

/// Builds all of it that can be built here, in the target directory.
pub(crate) fn build(profile: Profile) -> Result<Tree> {
    setup::require(&[setup::CC])?;
    let is_complete = setup::has_rdma_core();
    let tree = build_with(profile, &stage::providers())?;
    if !is_complete {
        // What is there is from a time when it could be built.
        for name in OLD_NAMES.into_iter().chain([VERBS]) {
            let _ = fs::remove_file(tree.stage.lib.join(name));
        }
    }
    Ok(tree)
}

/// The same with no other providers than these.
pub(crate) fn build_with(profile: Profile, providers: &[&str]) -> Result<Tree> {
    setup::require(&[setup::CC])?;
    eprintln!("xtask: building libdat and the providers");
    let stage = stage::stage_with(profile, providers);
    let (dtest, conf) = (stage.root.join("bin/dtest"), stage.root.join("etc/dat.conf"));
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
    Ok(Tree { stage, dtest, conf })
}

impl Tree {
    /// Says where it is and how to use it from there.
    pub(crate) fn announce(&self) {
        println!("staged in {}; to use it from there:", self.stage.root.display());
        println!("  cc -I{} prog.c -L{} -ldat", self.stage.include.display(), self.stage.lib.display());
        println!("  export LD_LIBRARY_PATH={} DAT_OVERRIDE={}", self.stage.lib.display(), self.conf.display());
    }
}

/// The sample dat.conf, its providers named with their directory.
fn registry(lib: &Path) -> io::Result<String> {
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

/// A field of dat.conf.
fn quoted(text: &str) -> String {
    match text.contains(|c: char| c.is_whitespace() || "\"\\#".contains(c)) {
        true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        false => text.to_owned(),
    }
}

/// Where an install goes.
#[derive(Debug, Eq, PartialEq)]
struct Places {
    prefix: PathBuf,
    sysconfdir: PathBuf,
    destdir: Option<PathBuf>,
}

impl Places {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let (mut prefix, mut sysconfdir, mut destdir) = (PathBuf::from("/usr/local"), None, None);
        for pair in arguments.chunks(2) {
            match *pair {
                ["--prefix", value] => prefix = value.into(),
                ["--sysconfdir", value] => sysconfdir = Some(PathBuf::from(value)),
                ["--destdir", value] => destdir = Some(PathBuf::from(value)),
                _ => return Err(format!("install: {} is not understood; see cargo xtask --help", pair.join(" "))),
            }
        }
        let sysconfdir = sysconfdir.unwrap_or_else(|| prefix.join("etc"));
        if !prefix.is_absolute() || !sysconfdir.is_absolute() {
            return Err("install: the prefix and the configuration directory are absolute paths".to_owned());
        }
        Ok(Places { prefix, sysconfdir, destdir })
    }

    /// Where a file is put that will be used at `path`.
    fn at(&self, path: &Path) -> PathBuf {
        match &self.destdir {
            Some(destdir) => destdir.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_path_buf(),
        }
    }
}

/// Installs for release.
pub(crate) fn install(arguments: &[&str]) -> Result {
    let places = Places::parse(arguments)?;
    if std::env::var_os(SYSCONFDIR).is_none_or(|set| set != places.sysconfdir.as_os_str()) {
        return again(arguments, &places.sysconfdir);
    }
    let tree = build(Profile::Release)?;
    copy(&tree, &places).map_err(|error| format!("install: {error}"))
}

/// The same command, in an environment in which libdat is built for this configuration directory.
fn again(arguments: &[&str], sysconfdir: &Path) -> Result {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(program).arg("install").args(arguments).env(SYSCONFDIR, sysconfdir).status();
    match status.map_err(|error| error.to_string())?.success() {
        true => Ok(()),
        false => Err("nothing more was installed".to_owned()),
    }
}

fn copy(tree: &Tree, places: &Places) -> io::Result<()> {
    let directory = |path: &Path| -> io::Result<PathBuf> {
        let at = places.at(path);
        fs::create_dir_all(&at).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", at.display())))?;
        Ok(at)
    };
    let lib = directory(&places.prefix.join("lib"))?;
    for file in sorted(&tree.stage.lib)? {
        put_library(&file, &lib)?;
    }
    let include = directory(&places.prefix.join("include/dat"))?;
    for file in sorted(&tree.stage.include.join("dat"))? {
        let to = include.join(file.file_name().expect("a directory's entry has a name"));
        put(&to, |fresh| fs::copy(&file, fresh).map(drop))?;
    }
    let bin = directory(&places.prefix.join("bin"))?;
    put(&bin.join("dtest"), |fresh| fs::copy(&tree.dtest, fresh).map(drop))?;
    let conf = directory(&places.sysconfdir)?.join("dat.conf");
    if conf.exists() {
        // It is the administrator's.
        println!("kept {}", conf.display());
        return Ok(());
    }
    put(&conf, |fresh| fs::write(fresh, registry(&places.prefix.join("lib"))?))
}

/// A library or a link to one, and what else it is called.
fn put_library(file: &Path, lib: &Path) -> io::Result<()> {
    let name = file.file_name().expect("a directory's entry has a name");
    let to = lib.join(name);
    let name = name.to_string_lossy();
    let Ok(target) = fs::read_link(file) else {
        put(&to, |fresh| fs::copy(file, fresh).map(drop))?;
        // The name that link editors and old files use: libdaplsm.so for libdaplsm.so.1.
        return match name.strip_suffix(".1").filter(|short| short.starts_with("libdapl")) {
            Some(short) => put(&lib.join(short), |fresh| symlink(&*name, fresh)),
            None => Ok(()),
        };
    };
    let is_foreign = match fs::read_link(&to) {
        Ok(there) => there != target,
        Err(_) => to.exists(),
    };
    if is_foreign && OLD_NAMES.contains(&&*name) {
        println!("kept {}, which is not ours: lines that name it do not open {}", to.display(), target.display());
        return Ok(());
    }
    put(&to, |fresh| symlink(&target, fresh))
}

fn put(to: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    println!("{}", to.display());
    stage::replace(to, make).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", to.display())))
}

/// The libraries, headers or links of a directory; not what is still being made there.
fn sorted(directory: &Path) -> io::Result<Vec<PathBuf>> {
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
    fn a_package_is_laid_below_its_root() {
        let places = Places::parse(&["--prefix", "/usr", "--destdir", "/tmp/pkg", "--sysconfdir", "/etc"]).unwrap();
        assert_eq!(places.at(Path::new("/usr/lib")), Path::new("/tmp/pkg/usr/lib"));
        assert_eq!(Places::parse(&["--prefix", "/opt/x"]).unwrap().sysconfdir, Path::new("/opt/x/etc"));
        assert!(Places::parse(&["--prefix"]).is_err() && Places::parse(&["--prefix", "here"]).is_err());
    }

    #[test]
    fn names_that_are_taken_stay_whose_they_are() {
        let place = std::env::temp_dir().join(format!("dapl-old-names-{}", std::process::id()));
        let (from, lib) = (place.join("from"), place.join("lib"));
        [&from, &lib].iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
        fs::write(from.join(VERBS), "ours").unwrap();
        OLD_NAMES.iter().for_each(|name| symlink(VERBS, from.join(name)).unwrap());
        // Another's library, another's link, ours of an earlier install, and nothing.
        fs::write(lib.join(OLD_NAMES[0]), "theirs").unwrap();
        symlink("libdaplcma.so.1.0.2", lib.join(OLD_NAMES[1])).unwrap();
        symlink(VERBS, lib.join(OLD_NAMES[2])).unwrap();
        sorted(&from).unwrap().iter().for_each(|file| put_library(file, &lib).unwrap());

        let leads = |name: &str| fs::read_link(lib.join(name)).ok().map(|path| path.to_string_lossy().into_owned());
        assert_eq!(leads(OLD_NAMES[0]), None);
        assert_eq!(fs::read_to_string(lib.join(OLD_NAMES[0])).unwrap(), "theirs");
        assert_eq!(leads(OLD_NAMES[1]).as_deref(), Some("libdaplcma.so.1.0.2"));
        assert_eq!([leads(OLD_NAMES[2]), leads(OLD_NAMES[3])], [Some(VERBS.to_owned()), Some(VERBS.to_owned())]);
        assert_eq!(leads("libdaplverbs.so").as_deref(), Some(VERBS));
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_registry_names_the_tree() {
        let text = registry(Path::new("/a b")).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains(" \"/a b/libdaplsm.so.1\" "), "{text}");
        assert!(lines[1].contains(" \"/a b/libdaplusnic.so.1\" "), "{text}");
    }
}
