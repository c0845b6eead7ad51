//! The directory where processes of one user meet: mode 0700, of that user, and a directory, or it is refused.
//!
//! A provider has one, and what lies in it is the provider's. One of our own choice is made when missing and removed when
//! empty; one that the administrator named is made too, and stays. Nothing here waits.

mod leavings;

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::error::{Address, Error, Resource, Result};

pub use leavings::{forget, forget_lock};

/// How often a directory is made while others remove it.
const TRIES: u32 = 100;

/// What a provider calls its directory.
#[derive(Debug)]
pub struct Kind {
    /// The provider's name in messages.
    pub provider: &'static str,
    /// The variable of the environment that names another one.
    pub variable: &'static str,
    /// Our own choice, without `-<uid>`.
    pub default: &'static str,
}

/// A base directory.
#[derive(Clone, Debug)]
pub struct BaseDir {
    kind: &'static Kind,
    path: PathBuf,
    /// Made by this library and empty again at the end: removed.
    is_default: bool,
}

impl BaseDir {
    /// The one that the administrator chose, else our own. Nothing is made or looked at yet.
    pub fn new(kind: &'static Kind, chosen: Option<&str>) -> Self {
        let (path, is_default) = match chosen.filter(|path| !path.is_empty()) {
            Some(path) => (PathBuf::from(path), false),
            None => (PathBuf::from(format!("{}-{}", kind.default, uid())), true),
        };
        BaseDir { kind, path, is_default }
    }

    /// Treats this path as our own choice.
    #[doc(hidden)]
    pub fn as_default(kind: &'static Kind, path: PathBuf) -> Self {
        BaseDir { kind, path, is_default: true }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it when missing, and looks at it.
    ///
    /// Errors: `InvalidAddress(Malformed)` for a relative path, `PermissionDenied` when it may be somebody else's.
    pub fn make(&self) -> Result<()> {
        let Kind { provider, variable, .. } = self.kind;
        let path = self.path.display();
        if !self.path.is_absolute() {
            log::error!("{provider} base directory \"{path}\" is not an absolute path; correct {variable}");
            return Err(Error::InvalidAddress(Address::Malformed));
        }
        let found = self.made().map_err(|error| self.refused("create the base directory", &self.path, &error))?;
        if !found.is_dir() || found.uid() != uid() || found.mode() & 0o077 != 0 {
            log::error!(
                "{provider} base directory {path} is of uid {} with mode {:04o}; it must be a directory of uid {} with mode \
                 0700: correct it (chown, chmod 700), remove it, or set {variable} to another one",
                found.uid(),
                found.mode() & 0o7777,
                uid()
            );
            return Err(Error::PermissionDenied);
        }
        Ok(())
    }

    /// The directory as it is, made when missing. Whoever leaves an empty one of our own removes it, maybe just when another
    /// has found it there: then it is missing again.
    fn made(&self) -> io::Result<Metadata> {
        let mut tries = 0..TRIES;
        loop {
            let made = DirBuilder::new().recursive(!self.is_default).mode(0o700).create(&self.path);
            made.or_else(|e| if e.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })?;
            match fs::symlink_metadata(&self.path) {
                Err(e) if e.kind() == ErrorKind::NotFound && tries.next().is_some() => continue,
                found => return found,
            }
        }
    }

    /// Removes it, if it is empty and our own choice.
    pub fn leave(&self) {
        if self.is_default {
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// Removes a folder or file in it when the process exits, if it still exists then, and what it leaves empty.
    pub fn at_exit(&self, path: &Path) {
        leavings::register(self, path, None);
    }

    /// As `at_exit`, for a file that this process holds a lock on together with others: if it is the last one.
    pub fn at_exit_if_last(&self, path: &Path, file: &Arc<File>) {
        leavings::register(self, path, Some(Arc::downgrade(file)));
    }

    /// Removes the directories above `path` that are empty now.
    pub(crate) fn prune(&self, path: &Path) {
        let inside = path.ancestors().skip(1).take_while(|above| above.starts_with(&self.path) && *above != self.path);
        if inside.map(fs::remove_dir).all(|removed| removed.is_ok()) {
            self.leave();
        }
    }

    /// Says in the log what could not be done in it, and what to do.
    #[cold]
    pub fn refused(&self, what: &str, path: &Path, error: &io::Error) -> Error {
        let Kind { provider, variable, .. } = self.kind;
        let remedy = match error.kind() {
            ErrorKind::StorageFull => "free space there, or set it to a directory on another file system",
            ErrorKind::NotFound => "set it to a directory that exists on a memory file system",
            _ => "set it to a directory of your own",
        };
        log::error!(
            "{provider}: cannot {what} {}: {error}; {variable} chooses the base directory: {remedy}",
            path.display()
        );
        match error.kind() {
            ErrorKind::PermissionDenied => Error::PermissionDenied,
            ErrorKind::StorageFull | ErrorKind::OutOfMemory => Error::Exhausted(Resource::Memory),
            _ => Error::Internal,
        }
    }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Takes the exclusive lock of a file, unless somebody holds one.
pub fn lock(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes a file whose lock nobody holds.
pub fn remove_unlocked(path: &Path) {
    let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).clone();
    if let Ok(file) = options.open(path)
        && lock(&file)
        && is_at(&file, path)
    {
        let _ = fs::remove_file(path);
    }
}

/// Is this file still the one at `path`? Its owner may have removed it between our open and our lock.
pub fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { provider: "test", variable: "DAPL_TEST_DIR", default: "/tmp/dapl-base-test" };

    fn scratch(name: &str) -> PathBuf {
        PathBuf::from(format!("/tmp/dapl-base-{}-{name}", std::process::id()))
    }

    #[test]
    fn the_administrators_choice_stays_and_ours_goes() {
        let path = scratch("stays");
        let named = BaseDir::new(&KIND, path.to_str());
        let ours = BaseDir::as_default(&KIND, path.clone());
        named.make().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        named.leave();
        assert!(path.exists());
        ours.leave();
        assert!(!path.exists());
        let default = BaseDir::new(&KIND, Some("")).path;
        assert_eq!(default.to_str().unwrap(), format!("/tmp/dapl-base-test-{}", uid()));
    }

    #[test]
    fn empty_directories_go_up_to_the_base() {
        let path = scratch("prune");
        let (named, ours) = (BaseDir::new(&KIND, path.to_str()), BaseDir::as_default(&KIND, path.clone()));
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/file"), "").unwrap();
        ours.prune(&path.join("a/b/gone"));
        assert!(!path.join("a/b").exists() && path.join("a").exists(), "as far as they are empty");
        fs::remove_file(path.join("a/file")).unwrap();
        named.prune(&path.join("a/gone"));
        assert!(!path.join("a").exists() && path.exists());
        ours.prune(&path.join("gone"));
        assert!(!path.exists());
    }

    #[test]
    fn openers_and_leavers_do_not_trip_over_each_other() {
        let path = scratch("race");
        let base = BaseDir::as_default(&KIND, path.clone());
        let come_and_go = || (0..2000).try_for_each(|_| base.make().map(|()| base.leave()));
        std::thread::scope(|scope| {
            let threads = [scope.spawn(come_and_go), scope.spawn(come_and_go), scope.spawn(come_and_go)];
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(())));
        });
        assert!(!path.exists());
    }

    #[test]
    fn what_may_be_somebody_elses_is_refused() {
        let path = scratch("rights");
        DirBuilder::new().mode(0o755).create(&path).unwrap();
        let base = BaseDir::new(&KIND, path.to_str());
        assert_eq!(base.make(), Err(Error::PermissionDenied));
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        assert_eq!(base.make(), Err(Error::PermissionDenied), "a link is no directory");
        fs::remove_file(&path).unwrap();
        assert_eq!(BaseDir::new(&KIND, Some("relative")).make(), Err(Error::InvalidAddress(Address::Malformed)));
    }
}
