//! Alternative base directories, used if a file, a link or a directory of another user is at the default path:
//! `<default>-<16 random hexadecimal digits>`.
//!
//! Another user cannot create such a directory in advance, because the digits are random. A process that finds one
//! trusts it if its owner is this user and its mode gives no access to other users. Two processes that each create a
//! directory at the same time may use different ones, so a process that looks up a listener searches all of them
//! ([`all`]).
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{MAX_TRIES, is_private_dir, random};

/// Number of random digits at the end of a name.
const DIGITS: usize = 16;

/// Lists the alternatives to the default path that are private directories of this user, sorted by name.
pub(super) fn all(default: &Path) -> Vec<PathBuf> {
    let Some((parent, name)) = default.parent().zip(default.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|found| is_alternative_name(name, found)));
    let mut private: Vec<_> = named.map(|entry| entry.path()).filter(|path| is_private_dir(path)).collect();
    private.sort_unstable();
    private
}

/// Returns the existing directory that a process uses if it has used none before: the default path if it is private to
/// this user, else the first alternative.
pub(super) fn in_use(default: &Path) -> Option<PathBuf> {
    if is_private_dir(default) { Some(default.to_path_buf()) } else { all(default).into_iter().next() }
}

/// Creates an alternative and returns its path. If [`in_use`] then prefers the directory of another process, removes
/// the new directory and returns the path of the preferred one.
pub(super) fn create(default: &Path) -> io::Result<PathBuf> {
    for _ in 0..MAX_TRIES {
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
            None => {} // another process has removed the empty directory
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn is_alternative_name(default: &str, name: &str) -> bool {
    let digits = name.strip_prefix(default).and_then(|rest| rest.strip_prefix('-'));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::super::{BaseDir, BaseDirKind};
    use super::*;

    const KIND: BaseDirKind =
        BaseDirKind { provider: "test", variable: "DAPL_TEST_DIR", default: "/tmp/dapl-beside-test" };

    /// The default path of a test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Scratch(PathBuf::from(format!("/tmp/dapl-beside-{}-{name}", std::process::id())))
        }

        fn base(&self) -> BaseDir {
            BaseDir::as_default(&KIND, self.0.clone())
        }

        /// Creates a directory of another user, or a link, at the default path. Returns false without the privilege to
        /// change the owner of a directory.
        fn occupy(&self, is_directory: bool) -> bool {
            if !is_directory {
                symlink("/tmp", &self.0).unwrap();
                return true;
            }
            fs::create_dir(&self.0).unwrap();
            fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700)).unwrap();
            let is_foreign = chown(&self.0, Some(65_534), None).is_ok();
            if !is_foreign {
                fs::remove_dir(&self.0).unwrap();
                eprintln!("skipped: no permission to give a directory to another user");
            }
            is_foreign
        }

        fn free(&self) {
            fs::remove_file(&self.0).or_else(|_| fs::remove_dir(&self.0)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir(&self.0));
            all(&self.0).iter().for_each(|path| drop(fs::remove_dir(path)));
        }
    }

    #[test]
    fn alternative_is_used_if_the_default_path_is_a_link_or_of_another_user() {
        for is_directory in [false, true] {
            let scratch = Scratch::new(if is_directory { "directory" } else { "link" });
            if !scratch.occupy(is_directory) {
                continue;
            }
            let first = scratch.base().create().unwrap();
            assert!(is_private_dir(first.path()) && first.path() != scratch.0);
            assert!(is_alternative_name(scratch.0.to_str().unwrap(), first.path().to_str().unwrap()));
            let second = scratch.base().create().unwrap();
            assert_eq!(second.path(), first.path(), "a later process uses the same directory");
            scratch.free();
            let third = scratch.base().create().unwrap();
            assert_eq!(third.path(), first.path(), "also after the default path was removed");
            assert_eq!(first.create().unwrap().path(), first.path());
            third.remove_if_empty();
            assert!(!first.path().exists());
            assert_eq!(first.create().unwrap().path(), scratch.0, "a new process starts with the default path");
        }
    }

    #[test]
    fn alternative_stays_in_use_when_a_default_directory_is_created() {
        let scratch = Scratch::new("stays");
        assert!(scratch.occupy(false));
        let beside = scratch.base().create().unwrap();
        scratch.free();
        fs::create_dir(&scratch.0).unwrap();
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).unwrap();
        let default = scratch.base().create().unwrap();
        assert_eq!(default.path(), scratch.0);
        assert_eq!(default.alternatives(), [beside.path().to_path_buf()], "processes in both find each other");
        assert_eq!(beside.alternatives(), std::slice::from_ref(&scratch.0));
        assert_eq!(beside.create().unwrap().path(), beside.path());
    }

    #[test]
    fn only_private_directories_of_this_user_are_used() {
        let scratch = Scratch::new("private");
        assert!(scratch.occupy(false));
        let named = |digits: &str| PathBuf::from(format!("{}-{digits}", scratch.0.display()));
        let [link, open, file, short] = ["0000000000000000", "0000000000000001", "0000000000000002", "00"].map(named);
        symlink("/tmp", &link).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(&file, "").unwrap();
        DirBuilder::new().mode(0o700).create(&short).unwrap();
        assert_eq!(all(&scratch.0), Vec::<PathBuf>::new());
        let base = scratch.base().create().unwrap();
        assert!(![&link, &open, &file, &short].contains(&&base.path().to_path_buf()));
        for path in [link, open, file, short] {
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
        }
    }
}
