//! Sources of the registry's lines: the file that `DAT_OVERRIDE` names, otherwise the first dat.conf that exists and
//! drop-in files, and without any file the adapters of this machine.
//!
//! `registry` reads the sources once per process, at the first open, list, or query of a tool. An invalid line becomes
//! a diagnostic, and an unreadable file an entry of `unreadable`; neither is a failure.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{self, Api};
use crate::conf::{self, Conf, LineNumber};
use crate::discovery;

/// Configuration directory, chosen when libdat is built.
const SYSCONFDIR: &str = match option_env!("DAPL_SYSCONFDIR") {
    Some(directory) => directory,
    None => "/etc",
};

/// Usual locations of dat.conf: of OFED, of distributions for DAT 1.2, of distributions for DAT 2.0.
const USUAL: [&str; 3] = ["/etc/dat.conf", "/etc/rdma/compat-dapl/dat.conf", "/etc/rdma/dat.conf"];

/// The records of all files that were read, and where they come from.
#[derive(Debug, Default)]
pub(crate) struct CollectedConf {
    /// Parsed content of the files.
    pub(crate) conf: Conf,
    /// Messages about files that could not be read, one per file.
    pub(crate) unreadable: Vec<String>,
    /// The files that the records come from, as text for messages.
    pub(crate) origin: String,
    /// Usual files that were searched for and do not exist.
    pub(crate) missing: Vec<PathBuf>,
    /// The dat.conf in use, to which a user should add lines. The file need not exist.
    pub(crate) target: PathBuf,
    /// All usual files except `target`. None of them was read, because only the first dat.conf that exists is used.
    /// Empty if `DAT_OVERRIDE` names the file.
    pub(crate) unread: Vec<PathBuf>,
}

/// Reads the files. If the environment names a file (`chosen`), only that file is read.
pub(crate) fn gather(chosen: Option<PathBuf>) -> CollectedConf {
    match chosen {
        Some(file) => gather_chosen(&file),
        None => {
            let first = Path::new(SYSCONFDIR).join("dat.conf");
            gather_usual(&[&first, Path::new(USUAL[0]), Path::new(USUAL[1]), Path::new(USUAL[2])])
        }
    }
}

fn gather_chosen(file: &Path) -> CollectedConf {
    let origin = format!("{} (DAT_OVERRIDE)", file.display());
    let mut gathered = CollectedConf { origin, target: file.to_path_buf(), ..CollectedConf::default() };
    if let Err(error) = gathered.append(file) {
        gathered.unreadable.push(format!(
            "cannot read {} (DAT_OVERRIDE): {error}; no adapter name is known from dat.conf; correct DAT_OVERRIDE or \
             this file",
            file.display()
        ));
    }
    gathered
}

fn gather_usual(files: &[&Path]) -> CollectedConf {
    let mut gathered = CollectedConf::default();
    let found = files.iter().find(|file| match gathered.append(file) {
        Ok(()) => true,
        Err(error) if is_absent(&error) => {
            gathered.missing.push(file.to_path_buf());
            false
        }
        // This file exists but is unreadable. No other file is read instead, because it would define names that the
        // owner of this file did not choose.
        Err(error) => {
            gathered.unreadable.push(format!("cannot read {}: {error}", file.display()));
            true
        }
    });
    let target = found.unwrap_or(&files[0]);
    let mut origins: Vec<String> = found.iter().map(|file| file.display().to_string()).collect();
    for drop_in in drop_ins(target) {
        origins.push(drop_in.display().to_string());
        if let Err(error) = gathered.append(&drop_in) {
            gathered.unreadable.push(format!("cannot read {}: {error}", drop_in.display()));
        }
    }
    if origins.is_empty() {
        gathered.conf.append(&Arc::from("built-in registry"), discovered().as_bytes());
        origins.push("the built-in registry, since no dat.conf exists".to_owned());
    }
    gathered.origin = origins.join(", ");
    gathered.target = target.to_path_buf();
    gathered.missing.dedup();
    gathered.unread = files.iter().filter(|file| **file != *target).map(|file| file.to_path_buf()).collect();
    gathered
}

impl CollectedConf {
    /// The place of the first record of each name in the usual files that were not read and in their drop-in files.
    /// Only records for this library's major version count.
    pub(crate) fn names_in_unread_files(&self) -> BTreeMap<Vec<u8>, LineNumber> {
        let mut others = CollectedConf::default();
        let mut seen = BTreeSet::from([self.target.clone()]);
        for file in &self.unread {
            let own = [file.clone()].into_iter();
            let beside = if file.parent() == self.target.parent() { Vec::new() } else { drop_ins(file) };
            for path in own.chain(beside) {
                if seen.insert(path.clone()) {
                    // A file that cannot be read adds no names.
                    let _ = others.append(&path);
                }
            }
        }
        let mut places = BTreeMap::new();
        for record in others.conf.records.into_iter().filter(|record| record.key.major == api::current().major) {
            places.entry(record.key.name).or_insert(record.place);
        }
        places
    }

    fn append(&mut self, path: &Path) -> io::Result<()> {
        let text = read(path)?;
        self.conf.append(&Arc::from(path.display().to_string().as_str()), &text);
        Ok(())
    }
}

/// Reads a regular file. A character device, such as `/dev/null` or a terminal, reads as empty. Other files are an
/// error. Never waits, not even if the path is a pipe.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let kind = file.metadata()?.file_type();
    let mut text = Vec::new();
    if kind.is_file() {
        file.read_to_end(&mut text)?;
    } else if !kind.is_char_device() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(text)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Drop-in files, `dat.conf.d/*.conf` in the directory of `file`, sorted by name. Packages add lines by such files
/// instead of editing dat.conf.
fn drop_ins(file: &Path) -> Vec<PathBuf> {
    let Ok(directory) = fs::read_dir(file.with_file_name("dat.conf.d")) else { return Vec::new() };
    let visible = |path: &PathBuf| {
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        !hidden && path.extension().is_some_and(|extension| extension == "conf")
    };
    let mut files: Vec<_> = directory.flatten().map(|entry| entry.path()).filter(visible).collect();
    files.sort();
    files
}

/// Lines for the adapters of this machine, for this library's version.
pub(crate) fn discovered() -> String {
    discovery::lines(api::current())
}

/// The built-in lines for every machine, for a version of the API. Tests compare these lines with the sample file.
pub fn built_in(api: &Api) -> Conf {
    conf::parse(&Arc::from("built-in registry"), discovery::always(api).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory with these files, given as file name and name of the only record.
    fn directory(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("dat-sources-{}-{name}", std::process::id()));
        for (file, record) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{record} u1.2 nonthreadsafe default l d.1.2 \"\" \"\"\n")).unwrap();
        }
        root
    }

    fn names(gathered: &CollectedConf) -> Vec<String> {
        let names = gathered.conf.records.iter().map(|record| record.key.name.clone());
        names.map(|name| String::from_utf8(name).unwrap()).collect()
    }

    fn read_usual_files(root: &Path, files: &[&str]) -> CollectedConf {
        let files: Vec<_> = files.iter().map(|file| root.join(file)).collect();
        let gathered = gather_usual(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>());
        let _ = fs::remove_dir_all(root);
        gathered
    }

    #[test]
    fn only_the_first_existing_dat_conf_file_is_read() {
        let root = directory("first", &[("b/dat.conf", "two"), ("c/dat.conf", "three")]);
        let gathered = read_usual_files(&root, &["a/dat.conf", "b/dat.conf", "c/dat.conf"]);
        assert_eq!((names(&gathered), &gathered.unreadable[..]), (vec!["two".to_owned()], &[][..]));
    }

    #[test]
    fn drop_ins_are_read_after_their_file_in_name_order() {
        let files = [
            ("a/dat.conf", "main"),
            ("a/dat.conf.d/20.conf", "late"),
            ("a/dat.conf.d/10.conf", "early"),
            ("a/dat.conf.d/.hidden.conf", "hidden"),
            ("a/dat.conf.d/old.conf.bak", "backup"),
            ("b/dat.conf.d/1.conf", "elsewhere"),
        ];
        let gathered = read_usual_files(&directory("drop-ins", &files), &["a/dat.conf", "b/dat.conf"]);
        assert_eq!(names(&gathered), ["main", "early", "late"]);
        assert_eq!(gathered.conf.records[1].place.line, 1);
    }

    #[test]
    fn drop_ins_are_read_without_a_main_file() {
        let gathered =
            read_usual_files(&directory("alone", &[("a/dat.conf.d/x.conf", "x")]), &["a/dat.conf", "b/dat.conf"]);
        assert_eq!(names(&gathered), ["x"]);
    }

    #[test]
    fn names_in_dat_conf_files_that_were_not_read_are_found() {
        let files = [
            ("a/dat.conf", "one"),
            ("a/dat.conf.d/x.conf", "drop-in"),
            ("b/dat.conf", "two"),
            ("b/dat.conf.d/y.conf", "three"),
            ("c/dat.conf", "two"),
        ];
        let root = directory("elsewhere", &files);
        let paths = ["a/dat.conf", "b/dat.conf", "b/dat.conf", "c/dat.conf"].map(|file| root.join(file));
        let gathered = gather_usual(&paths.each_ref().map(PathBuf::as_path));
        let elsewhere = gathered.names_in_unread_files();
        let _ = fs::remove_dir_all(&root);
        assert_eq!(names(&gathered), ["one", "drop-in"]);
        let place = |name: &str| elsewhere.get(name.as_bytes()).map(ToString::to_string);
        assert_eq!(place("two"), Some(format!("{}:1", paths[1].display())));
        assert_eq!(place("three"), Some(format!("{}/b/dat.conf.d/y.conf:1", root.display())));
        assert_eq!((place("one"), place("drop-in")), (None, None));
        assert_eq!(gathered.target, paths[0]);
    }

    #[test]
    fn without_any_file_the_built_in_registry_is_used() {
        let gathered = read_usual_files(&directory("none", &[]), &["a/dat.conf"]);
        assert_eq!(names(&gathered)[..2], ["sm0", "usnic0"]);
        assert!(gathered.conf.diagnostics.is_empty(), "{:?}", gathered.conf.diagnostics);
    }

    #[test]
    fn unreadable_file_is_not_replaced_by_the_next_one() {
        let files = [("a/dat.conf/not-a-file", "x"), ("b/dat.conf", "two")];
        let gathered = read_usual_files(&directory("unreadable", &files), &["a/dat.conf", "b/dat.conf"]);
        assert_eq!((names(&gathered).len(), gathered.unreadable.len()), (0, 1), "{:?}", gathered.unreadable);
        assert!(gathered.unreadable[0].ends_with("not a regular file"), "{:?}", gathered.unreadable);
    }
}
