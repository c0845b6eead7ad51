//! Directories beside a default path that another user has: `<default>-<16 random hexadecimal digits>`.
//!
//! The random digits keep others from creating the name in advance; owner and mode make it this user's, so a process that did
//! not create it can trust it. Two processes that create one at the same time may end in different ones: who looks for a
//! listener looks in all of them ([`all`]).
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{TRIES, is_fit, random};

/// Random digits at the end of a name.
const DIGITS: usize = 16;

/// All that are fit, in the order of their names.
pub(super) fn all(default: &Path) -> Vec<PathBuf> {
    let Some((parent, name)) = default.parent().zip(default.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(|found| is_beside(name, found)));
    let mut fit: Vec<_> = named.map(|entry| entry.path()).filter(|path| is_fit(path)).collect();
    fit.sort_unstable();
    fit
}

/// The one that a new process uses, if there is any.
pub(super) fn in_use(default: &Path) -> Option<PathBuf> {
    // The default path, when it is this user's, comes first: no process that found it so looks here.
    if is_fit(default) { Some(default.to_path_buf()) } else { all(default).into_iter().next() }
}

/// Makes one. If another process did so at the same time, the first by name is used.
pub(super) fn make(default: &Path) -> io::Result<PathBuf> {
    for _ in 0..TRIES {
        let mut name = default.as_os_str().to_owned();
        name.push(format!("-{:0DIGITS$x}", random()));
        let made = PathBuf::from(name);
        match DirBuilder::new().mode(0o700).create(&made) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        match in_use(default) {
            Some(first) if first != made => {
                let _ = fs::remove_dir(&made);
                return Ok(first);
            }
            Some(_) => return Ok(made),
            None => {} // it was empty, and another process that leaves has removed it
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn is_beside(default: &str, name: &str) -> bool {
    let digits = name.strip_prefix(default).and_then(|rest| rest.strip_prefix('-'));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}
