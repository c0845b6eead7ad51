//! `install` and `uninstall`: put the items of `layout` below a prefix, and remove them again.
//!
//! An install writes a list of the files it creates (`share/dapl-rs/installed`), and only these are removed: no other
//! file, no directory that existed before, no changed dat.conf. The install for a package (`--package`) writes no list,
//! because the package manager knows the files.
#![forbid(unsafe_code)]

mod package;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{self, Profile};

use crate::layout::{self, InstallDirs, Item, ItemContent};
use crate::quiet::run_quietly;
use crate::{Result, cli, setup, tree};

/// Variable that libdat reads at build time: the first directory in which it searches dat.conf.
pub(crate) const SYSCONFDIR: &str = "DAPL_SYSCONFDIR";
/// List of installed files, below the prefix.
const LIST: &str = "share/dapl-rs/installed";
/// The sample dat.conf, below the prefix. A dat.conf that differs from it was changed, and is not removed.
const SAMPLE: &str = "share/dapl-rs/dat.conf";

/// Destination of an install.
#[derive(Debug, Eq, PartialEq)]
struct InstallTarget {
    places: InstallDirs,
    destdir: Option<PathBuf>,
    profile: Profile,
    /// For packages: their tools strip the binaries and know the installed files, so no list is written.
    is_package: bool,
}

impl InstallTarget {
    fn new(arguments: &cli::Install) -> Result<Self> {
        let prefix = arguments.prefix.clone();
        let libdir = arguments.libdir.clone().unwrap_or_else(|| prefix.join("lib"));
        let sysconfdir = arguments.sysconfdir.clone().unwrap_or_else(|| prefix.join("etc"));
        if ![&prefix, &libdir, &sysconfdir].iter().all(|path| path.is_absolute()) {
            return Err("--prefix, --libdir and --sysconfdir must be absolute paths".to_owned());
        }
        let places = InstallDirs { prefix, libdir, sysconfdir };
        let (destdir, profile) = (arguments.destdir.clone(), cli::profile(arguments.debug));
        Ok(InstallTarget { places, destdir, profile, is_package: arguments.package })
    }

    /// Path at which to write a file that will be used at `path`.
    fn at(&self, path: &Path) -> PathBuf {
        match &self.destdir {
            Some(destdir) => destdir.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_path_buf(),
        }
    }

    fn list(&self) -> PathBuf {
        self.at(&self.places.prefix.join(LIST))
    }
}

/// Installs the project. With `--debug`, installs the test build, whose libdat searches dat.conf in /etc.
pub(crate) fn install(arguments: &cli::Install) -> Result {
    let goal = InstallTarget::new(arguments)?;
    let is_set = std::env::var_os(SYSCONFDIR).is_some_and(|set| set == goal.places.sysconfdir.as_os_str());
    if goal.profile == Profile::Dist && !is_set {
        return again(&goal.places.sysconfdir);
    }
    if !goal.is_package {
        setup::require(&[setup::STRIP])?;
    }
    let tree = tree::build(goal.profile)?;
    let mut items = layout::items(&tree, &goal.places)?;
    if goal.is_package {
        package::adapt(&tree, goal.profile, &goal.places, &mut items)?;
    }
    put_all(&goal, &items).map_err(|error| format!("install: {error}"))?;
    if goal.is_package {
        return Ok(());
    }
    let libdir = goal.places.libdir.display();
    println!("for programs to find libdat.so.1, as root: echo {libdir} >/etc/ld.so.conf.d/dapl-rs.conf && ldconfig");
    println!("or for one program: LD_LIBRARY_PATH={libdir}");
    println!("for pkg-config to find dat.pc: PKG_CONFIG_PATH={libdir}/pkgconfig");
    Ok(())
}

/// Runs this command again in an environment in which libdat is built for this configuration directory.
fn again(sysconfdir: &Path) -> Result {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(program).args(std::env::args_os().skip(1)).env(SYSCONFDIR, sysconfdir).status();
    match status.map_err(|error| error.to_string())?.success() {
        true => Ok(()),
        false => Err(format!(
            "the install with a libdat built for the configuration directory {} failed",
            sysconfdir.display()
        )),
    }
}

/// Installs all items. Then removes files of an earlier install that are not part of this one, and writes the list. A
/// package only installs the items, because the package manager does the rest.
fn put_all(goal: &InstallTarget, items: &[Item]) -> io::Result<()> {
    let old = lines(&goal.list())?;
    let mut made: Vec<String> = old.iter().filter(|line| line.starts_with("dir ")).cloned().collect();
    for item in items {
        make_directories(goal, item.path.parent().expect("the path of an installed file has a parent"), &mut made)?;
        if let Some(line) = put(goal, item)? {
            made.push(line);
        }
    }
    if goal.is_package {
        return Ok(());
    }
    let kept: BTreeSet<&str> = made.iter().map(String::as_str).collect();
    for line in old.iter().filter(|line| !kept.contains(line.as_str()) && !line.starts_with("conf ")) {
        // The path may now belong to an item of another type, which must stay.
        if !items.iter().any(|item| line.split(' ').nth(1) == item.path.to_str()) {
            remove(goal, line)?;
        }
    }
    // A dat.conf of an earlier install stays listed, although this install has not written it.
    made.extend(old.iter().filter(|line| line.starts_with("conf ")).cloned());
    made.sort();
    made.dedup();
    stage::replace(&goal.list(), |fresh| fs::write(fresh, made.join("\n") + "\n"))
}

/// Installs one item. Returns its line for the list, or `None` if the destination was left unchanged.
fn put(goal: &InstallTarget, item: &Item) -> io::Result<Option<String>> {
    let (to, path) = (goal.at(&item.path), item.path.display());
    let make = |make: &dyn Fn(&Path) -> io::Result<()>| {
        println!("{}", to.display());
        stage::replace(&to, make).map_err(|error| at(&to, error))
    };
    if matches!(item.what, ItemContent::Yielding(_))
        && let Some(other) = loaded_as(goal, &item.path)
    {
        println!("did not create {}: the loader finds {other} under this name", to.display());
        return Ok(None);
    }
    Ok(match &item.what {
        ItemContent::File(from, is_program) => {
            let mode = if *is_program { 0o755 } else { 0o644 };
            make(&|fresh| {
                fs::copy(from, fresh)?;
                if is_binary(from)? && !goal.is_package {
                    strip(fresh)?;
                }
                fs::set_permissions(fresh, Permissions::from_mode(mode))
            })?;
            Some(format!("file {path}"))
        }
        ItemContent::Text(text) => {
            make(&|fresh| fs::write(fresh, text))?;
            Some(format!("file {path}"))
        }
        ItemContent::Yielding(target) if is_foreign(&to, target) => {
            println!("kept {}, which another package installed; this install adds only {target}", to.display());
            None
        }
        ItemContent::Link(target) | ItemContent::Yielding(target) => {
            make(&|fresh| symlink(target, fresh))?;
            Some(format!("link {path} {target}"))
        }
        ItemContent::Conf(_) if to.exists() => {
            println!("kept {}", to.display());
            None
        }
        ItemContent::Conf(text) => {
            make(&|fresh| fs::write(fresh, text))?;
            Some(format!("conf {path}"))
        }
    })
}

/// Removes symbols that are not needed at run time from a program or library.
fn strip(file: &Path) -> io::Result<()> {
    run_quietly(Command::new("strip").arg("--strip-unneeded").arg(file)).map(drop).map_err(io::Error::other)
}

fn is_binary(file: &Path) -> io::Result<bool> {
    let mut magic = [0; 4];
    Ok(fs::File::open(file)?.read(&mut magic)? == 4 && magic == *b"\x7fELF")
}

/// Returns the library of another origin that this machine's dynamic loader finds under this name. `None` if the
/// install goes to a staging directory, because it is then for another system.
fn loaded_as(goal: &InstallTarget, path: &Path) -> Option<String> {
    if goal.destdir.is_some() {
        return None;
    }
    let cache = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let name = path.file_name()?.to_str()?;
    cached(&String::from_utf8_lossy(&cache.stdout), name, &goal.places.libdir).map(str::to_owned)
}

/// Returns the path of a library in the output of `ldconfig -p`, unless the library is in the directory `own`.
fn cached<'a>(list: &'a str, name: &str, own: &Path) -> Option<&'a str> {
    list.lines().find_map(|line| {
        let (known, path) = line.trim().split_once(" => ")?;
        let is_it = known.split(' ').next() == Some(name) && Path::new(path).parent() != Some(own);
        is_it.then_some(path)
    })
}

/// Whether the path exists and is not the link that this install would create.
fn is_foreign(at: &Path, target: &str) -> bool {
    match fs::read_link(at) {
        Ok(there) => there != Path::new(target),
        Err(_) => at.exists(),
    }
}

/// Creates a directory and its parents, and records those that did not exist.
fn make_directories(goal: &InstallTarget, path: &Path, made: &mut Vec<String>) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !goal.at(above).exists()).collect();
    for directory in missing.into_iter().rev() {
        let to = goal.at(directory);
        fs::create_dir_all(&to).map_err(|error| at(&to, error))?;
        made.push(format!("dir {}", directory.display()));
    }
    Ok(())
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Returns the lines of the list; none without a list.
fn lines(list: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(list) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(at(list, error)),
    }
}

/// Removes the files that an install below this prefix has created.
pub(crate) fn uninstall(arguments: &cli::Install) -> Result {
    let goal = InstallTarget::new(arguments)?;
    let list = goal.list();
    let take = || -> io::Result<bool> {
        let mut old = lines(&list)?;
        if old.is_empty() {
            return Ok(false);
        }
        // dat.conf is removed before the sample with which it is compared. Directories are removed from the deepest
        // up.
        old.sort_by_key(|line| (line.starts_with("dir "), !line.starts_with("conf "), usize::MAX - line.len()));
        let (directories, files): (Vec<_>, Vec<_>) = old.into_iter().partition(|line| line.starts_with("dir "));
        files.iter().try_for_each(|line| remove(&goal, line))?;
        fs::remove_file(&list)?;
        directories.iter().try_for_each(|line| remove(&goal, line))?;
        Ok(true)
    };
    match take() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} does not exist: nothing is installed below this prefix", list.display())),
        Err(error) => Err(format!("uninstall: {error}")),
    }
}

/// Removes the file, link or directory in this line of the list. Keeps a link whose target was changed, a changed
/// dat.conf, and a directory that is not empty.
fn remove(goal: &InstallTarget, line: &str) -> io::Result<()> {
    let Some((kind, rest)) = line.split_once(' ') else { return Ok(()) };
    let (path, target) = match kind {
        "link" => rest.rsplit_once(' ').unwrap_or((rest, "")),
        _ => (rest, ""),
    };
    let place = goal.at(Path::new(path));
    let sample = goal.at(&goal.places.prefix.join(SAMPLE));
    let is_ours = match kind {
        "file" => true,
        "link" => !is_foreign(&place, target),
        "conf" => fs::read(&place).ok() == fs::read(sample).ok(),
        // A directory that contains other files stays.
        _ => {
            let _ = fs::remove_dir(&place);
            return Ok(());
        }
    };
    if !is_ours {
        println!("kept {}", place.display());
        return Ok(());
    }
    match fs::remove_file(&place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&place, error)),
        _ => {
            println!("removed {}", place.display());
            Ok(())
        }
    }
}

#[cfg(test)]
#[path = "install/tests.rs"]
mod tests;
