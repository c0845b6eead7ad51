//! Finds the file that the dynamic loader would load for a library name, without loading it. Used for the remedies of
//! refused opens and for `datinfo`.
//!
//! Searches for a file name in `LD_LIBRARY_PATH`, the loader's cache, its default directories, and libdat's own
//! directory, in this order. A name with a slash is a path and is not searched. A library that is found may still fail
//! to load.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::host;

/// Cache file of the dynamic loader.
const CACHE: &str = "/etc/ld.so.cache";
/// Default directories of the dynamic loader.
const DIRECTORIES: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Finds the file of a `lib_path`, which is a path or a file name. `None` if there is no such file.
pub(crate) fn library(name: &[u8]) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(name));
    if name.contains(&b'/') {
        return path.exists().then(|| path.to_path_buf());
    }
    let below = |directory: &Path| Some(directory.join(path)).filter(|path| path.exists());
    let chosen = host::environment("LD_LIBRARY_PATH").map(|text| text.into_vec()).unwrap_or_default();
    let chosen = chosen.split(|byte| matches!(byte, b':' | b';')).filter(|directory| !directory.is_empty());
    let mut chosen = chosen.map(|directory| Path::new(OsStr::from_bytes(directory)));
    let own = host::library().map(|own| PathBuf::from(OsStr::from_bytes(own.to_bytes())));
    chosen
        .find_map(below)
        .or_else(|| cached(name).filter(|path| path.exists()).map(Path::to_path_buf))
        .or_else(|| DIRECTORIES.iter().find_map(|directory| below(Path::new(directory))))
        .or_else(|| below(own?.parent()?))
}

/// Looks a file name up in the loader's cache. The cache is read once.
fn cached(name: &[u8]) -> Option<&'static Path> {
    static PATHS: OnceLock<BTreeMap<Vec<u8>, PathBuf>> = OnceLock::new();
    PATHS.get_or_init(|| paths(&fs::read(CACHE).unwrap_or_default())).get(name).map(PathBuf::as_path)
}

/// Returns the paths in the cache, by file name; the first path counts if several have the same name. The strings in
/// the cache are NUL-terminated.
fn paths(cache: &[u8]) -> BTreeMap<Vec<u8>, PathBuf> {
    let mut paths = BTreeMap::new();
    for text in cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/")) {
        let path = Path::new(OsStr::from_bytes(text));
        if let Some(name) = path.file_name() {
            paths.entry(name.as_bytes().to_vec()).or_insert_with(|| path.to_path_buf());
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_path_of_a_file_name_in_the_loader_cache_is_used() {
        let found = paths(b"header\x02\0\x01\0libx.so.1\0/usr/lib/libx.so.1\0/opt/libx.so.1\0/opt/libx.so.10");
        let found: Vec<_> = found.values().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(found, ["/usr/lib/libx.so.1", "/opt/libx.so.10"]);
        assert!(paths(b"").is_empty() && paths(b"/\0/..\0").is_empty());
    }

    #[test]
    fn library_is_found_by_name_or_path_if_its_file_exists() {
        assert!(library(b"libc.so.6").is_some_and(|path| path.is_absolute()));
        assert_eq!((library(b"libnone.so.1"), library(b"/nonexistent/libc.so.6")), (None, None));
        assert_eq!(library(b"/proc/self/exe"), Some(PathBuf::from("/proc/self/exe")));
    }
}
