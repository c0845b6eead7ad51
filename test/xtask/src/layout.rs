//! The files and links of an installation, with their paths and contents: the list that `install` and the packages use.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use dapl_test::stage::{OLD_NAMES, OLD_NAMES_2, PROVIDERS};

use crate::tree::{Tree, registry, sorted};
use crate::{Result, man};

/// The libdats for `pkg-config`: name, full version, version of the API.
const VERSIONS: [(&str, &str, &str); 2] = [("dat", "1.2.0", "1.2"), ("dat2", "2.0.0", "2.0")];

/// dtest and dapltest: the installed name, and an alternative name that is linked only if no such file exists.
pub(crate) const PROGRAMS: [(&str, Option<&str>); 2] = [("dtest1", Some("dtest")), ("dapltest1", None)];

/// Files of `dat/debug` for gdb, valgrind and ThreadSanitizer.
const DEBUG_FILES: [&str; 3] = ["dapl-gdb.py", "dapl-valgrind.supp", "dapl-tsan.supp"];

/// Directories of an installation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct InstallDirs {
    /// Prefix of all files except configuration files.
    pub(crate) prefix: PathBuf,
    /// Directory of libraries.
    pub(crate) libdir: PathBuf,
    /// Directory of dat.conf.
    pub(crate) sysconfdir: PathBuf,
}

/// A file or link to install.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Item {
    /// Path in the installed system.
    pub(crate) path: PathBuf,
    pub(crate) what: ItemContent,
}

/// Content of an item.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ItemContent {
    /// A copy of this file, executable if true.
    File(PathBuf, bool),
    /// A file with this text.
    Text(String),
    /// A symbolic link to this name.
    Link(String),
    /// A symbolic link whose name other packages also use. It is not created if another file of that name exists at its
    /// path or in the loader's cache.
    Yielding(String),
    /// A configuration file with this initial text. An existing file is kept.
    Conf(String),
}

/// All files and links of an installation.
pub(crate) fn items(tree: &Tree, places: &InstallDirs) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut put = |path: PathBuf, what: ItemContent| items.push(Item { path, what });
    let named = |error: io::Error| format!("{}: {error}", tree.stage.root.display());
    for file in sorted(&tree.stage.lib).map_err(named)?.iter().filter(|file| is_shipped(file)) {
        for (name, what) in library(file) {
            put(places.libdir.join(name), what);
        }
    }
    for (library, version, api) in VERSIONS {
        for file in sorted(&tree.stage.include.join(library)).map_err(named)? {
            let name = file.file_name().expect("a path from read_dir has a file name").to_owned();
            put(places.prefix.join("include").join(library).join(name), ItemContent::File(file, false));
        }
        let text = pkg_config(places, library, version, api);
        put(places.libdir.join(format!("pkgconfig/{library}.pc")), ItemContent::Text(text));
    }
    for (program, other) in PROGRAMS {
        put(
            places.prefix.join("bin").join(program),
            ItemContent::File(tree.stage.root.join("bin").join(program), true),
        );
        if let Some(other) = other {
            put(places.prefix.join("bin").join(other), ItemContent::Yielding(program.to_owned()));
        }
    }
    put(places.prefix.join("bin/datinfo"), ItemContent::File(tree.datinfo.clone(), true));
    for page in man::pages()? {
        put(places.prefix.join("share/man").join(page.path), ItemContent::Text(page.text));
    }
    let debug = dapl_test::stage::workspace().join("dat/debug");
    for file in DEBUG_FILES {
        put(places.prefix.join("share/dapl-rs").join(file), ItemContent::File(debug.join(file), false));
    }
    let sample = registry(&places.libdir).map_err(named)?;
    put(places.prefix.join("share/dapl-rs/dat.conf"), ItemContent::Text(sample.clone()));
    put(places.sysconfdir.join("dat.conf"), ItemContent::Conf(sample));
    Ok(items)
}

/// Whether a staged library is installed. The suites stage additional libraries.
fn is_shipped(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_provider = PROVIDERS.iter().any(|package| name == format!("lib{package}.so.1"));
    !name.starts_with("libdapl") || is_provider || OLD_NAMES.contains(&name) || OLD_NAMES_2.contains(&name)
}

/// Whether this is the libdat of DAT 2.0 or a link to it, or a provider's name in old DAT 2.0 registries.
pub(crate) fn is_of_version_2(name: &str) -> bool {
    name.starts_with("libdat2.so") || OLD_NAMES_2.contains(&name)
}

/// Returns the items for a staged library or link: its own name, and for a provider also the name without `.1`.
fn library(file: &Path) -> Vec<(String, ItemContent)> {
    let name = file.file_name().expect("a path from read_dir has a file name").to_string_lossy().into_owned();
    let Ok(target) = std::fs::read_link(file) else {
        // Linkers and old dat.conf files use libdaplsm.so for libdaplsm.so.1.
        let short = name.strip_suffix(".1").filter(|short| short.starts_with("libdapl")).map(str::to_owned);
        let short = short.map(|short| (short, ItemContent::Link(name.clone())));
        return [(name, ItemContent::File(file.to_path_buf(), false))].into_iter().chain(short).collect();
    };
    let target = target.to_string_lossy().into_owned();
    let what = if OLD_NAMES.iter().chain(&OLD_NAMES_2).any(|old| *old == name) {
        ItemContent::Yielding(target)
    } else {
        ItemContent::Link(target)
    };
    vec![(name, what)]
}

/// Text of the pkg-config file.
fn pkg_config(places: &InstallDirs, library: &str, version: &str, api: &str) -> String {
    let InstallDirs { prefix, libdir, .. } = places;
    let lib = match libdir.strip_prefix(prefix) {
        Ok(below) => format!("${{prefix}}/{}", below.display()),
        Err(_) => libdir.display().to_string(),
    };
    format!(
        "prefix={}\nlibdir={lib}\nincludedir=${{prefix}}/include\n\nName: {library}\nDescription: Direct Access Transport \
         API (uDAPL) {api}\nVersion: {version}\nLibs: -L${{libdir}} -l{library}\nCflags: -I${{includedir}}\n",
        prefix.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_suites_are_not_installed() {
        let shipped = |name: &str| is_shipped(&Path::new("/lib").join(name));
        assert!(shipped("libdat.so.1") && shipped("libdaplsm.so.1") && shipped("libdaplcma.so.1"));
        assert!(!shipped("libdaplfaulty.so.1") && !shipped("libdaplloopback.so.1"));
    }

    #[test]
    fn libraries_get_development_links_and_old_names_replace_no_existing_file() {
        let place = std::env::temp_dir().join(format!("dapl-layout-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("libdaplsm.so.1"), "").unwrap();
        std::os::unix::fs::symlink("libdaplverbs.so.1", place.join(OLD_NAMES[0])).unwrap();
        let plain = library(&place.join("libdaplsm.so.1"));
        let old = library(&place.join(OLD_NAMES[0]));
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(plain[1], ("libdaplsm.so".to_owned(), ItemContent::Link("libdaplsm.so.1".to_owned())));
        assert_eq!(old, [(OLD_NAMES[0].to_owned(), ItemContent::Yielding("libdaplverbs.so.1".to_owned()))]);
    }

    #[test]
    fn pkg_config_has_a_separate_libdir() {
        let mut places = InstallDirs { prefix: "/p".into(), libdir: "/p/lib/x".into(), sysconfdir: "/etc".into() };
        let text = pkg_config(&places, "dat2", "2.0.0", "2.0");
        assert!(text.contains("libdir=${prefix}/lib/x\n") && text.contains("\nName: dat2\n"), "{text}");
        assert!(text.contains("Libs: -L${libdir} -ldat2\n"), "{text}");
        places.libdir = "/other".into();
        assert!(pkg_config(&places, "dat", "1.2.0", "1.2").contains("libdir=/other\n"));
    }
}
