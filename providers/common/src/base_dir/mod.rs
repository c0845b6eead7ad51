//! The base directory of a provider, shared by the processes of one user. It must be a directory of that user, to which
//! no other user has access.
//!
//! A directory at the default path is created when missing and removed when empty. A directory that the administrator
//! has chosen is also created, but never removed. No call blocks for longer than some milliseconds.
//!
//! If a file, a link or a directory of another user is at the default path, the processes use a directory with random
//! digits in its name (`alternative`). Another user cannot create that directory in advance, and this user's processes
//! find it by name and owner.

mod alternative;
mod exit_cleanup;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;

use dapl::error::{AddressProblem, Error, Resource, Result};

pub use exit_cleanup::{cancel_exit_removal, cancel_exit_removal_of_lock};

/// Maximum number of attempts to create a directory that other processes remove again and again.
const MAX_TRIES: u32 = 100;
/// Maximum of the random pause between two attempts, in microseconds.
const MAX_PAUSE_US: u64 = 100;

/// The names that distinguish the base directories of different providers.
#[derive(Debug)]
pub struct BaseDirKind {
    /// The provider's name in messages.
    pub provider: &'static str,
    /// The environment variable that chooses another directory.
    pub variable: &'static str,
    /// The default path, without `-<uid>`.
    pub default: &'static str,
}

/// The path of a base directory. The directory may not exist yet.
#[derive(Clone, Debug)]
pub struct BaseDir {
    kind: &'static BaseDirKind,
    path: PathBuf,
    /// The default path, or `None` if the administrator has chosen a path. With a default path, `path` is this path or
    /// an alternative beside it, and is removed when it is empty.
    default: Option<PathBuf>,
}

/// Owner, mode and type of the object at a path.
#[derive(Clone, Copy)]
struct PathMetadata {
    uid: u32,
    mode: u32,
    is_dir: bool,
}

impl PathMetadata {
    fn at(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(PathMetadata { uid: found.uid(), mode: found.mode() & 0o7777, is_dir: found.is_dir() })
    }

    fn is_private(&self) -> bool {
        self.mode & 0o077 == 0
    }

    fn is_own_directory(&self) -> bool {
        self.is_dir && self.uid == uid()
    }
}

/// Reason why a path cannot be the base directory.
enum PathProblem {
    /// The object is a directory of another user, or is not a directory.
    Foreign(PathMetadata),
    /// The object is a directory of this user, but its mode gives access to other users.
    Mode(PathMetadata),
    /// The directory cannot be created, or the object cannot be examined.
    Failed(io::Error),
}

impl BaseDir {
    /// Returns the directory that the administrator has chosen, or the default directory. Accesses no file.
    pub fn new(kind: &'static BaseDirKind, chosen: Option<&str>) -> Self {
        match chosen.filter(|path| !path.is_empty()) {
            Some(path) => BaseDir { kind, path: PathBuf::from(path), default: None },
            None => Self::as_default(kind, PathBuf::from(format!("{}-{}", kind.default, uid()))),
        }
    }

    /// Returns a directory whose path is treated as the default path. For tests.
    #[doc(hidden)]
    pub fn as_default(kind: &'static BaseDirKind, path: PathBuf) -> Self {
        BaseDir { kind, default: Some(path.clone()), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it is missing, and checks it. Returns the directory to use.
    ///
    /// Without a chosen path, this is the first of the following that is private to this user: the directory of `self`,
    /// the directory at the default path, an alternative. If there is none, creates a directory at the default path, or
    /// an alternative if a file, a link or a directory of another user is there.
    ///
    /// Errors: `InvalidAddress(Malformed)` for a relative path. `PermissionDenied` if a chosen path is not private to
    /// this user, or if other users have access to this user's directory at the default path. Also those of
    /// [`report_failure`](Self::report_failure).
    pub fn create(&self) -> Result<BaseDir> {
        let BaseDirKind { provider, variable, .. } = self.kind;
        if !self.path.is_absolute() {
            let path = self.path.display();
            log::error!("{provider} base directory \"{path}\" is not an absolute path; correct {variable}");
            return Err(Error::InvalidAddress(AddressProblem::Malformed));
        }
        let Some(default) = &self.default else {
            return create_private(&self.path, true)
                .map(|()| self.clone())
                .map_err(|problem| self.problem(&self.path, problem));
        };
        // A process keeps its directory as long as the directory exists. Without one, it prefers an existing directory
        // to a new one, because other processes may use it.
        let found = if is_private_dir(&self.path) { Some(self.path.clone()) } else { alternative::in_use(default) };
        if let Some(path) = found {
            return Ok(BaseDir { path, ..self.clone() });
        }
        match create_private(default, false) {
            Ok(()) => Ok(BaseDir { path: default.clone(), ..self.clone() }),
            Err(PathProblem::Foreign(found)) => self.create_alternative(default, found),
            Err(problem) => Err(self.problem(default, problem)),
        }
    }

    /// Creates an alternative. `found` describes the object at the default path.
    fn create_alternative(&self, default: &Path, found: PathMetadata) -> Result<BaseDir> {
        let path = alternative::create(default)
            .map_err(|error| self.report_failure("create a directory beside", default, &error))?;
        log::warn!(
            "{}: the default base directory {} is {} of uid {}, not a directory of uid {}; using {} instead; remove {} \
             as uid {} or as the superuser",
            self.kind.provider,
            default.display(),
            if found.is_dir { "a directory" } else { "a file or link" },
            found.uid,
            uid(),
            path.display(),
            default.display(),
            found.uid
        );
        Ok(BaseDir { path, ..self.clone() })
    }

    /// Returns the other directories that processes of this user with the same default path may use: the default path,
    /// and the alternatives beside it.
    pub fn alternatives(&self) -> Vec<PathBuf> {
        let Some(default) = &self.default else { return Vec::new() };
        let mut others = alternative::all(default);
        others.extend(is_private_dir(default).then(|| default.clone()));
        others.retain(|other| *other != self.path);
        others
    }

    fn problem(&self, path: &Path, problem: PathProblem) -> Error {
        let BaseDirKind { provider, variable, .. } = self.kind;
        let found = match problem {
            PathProblem::Failed(error) => return self.report_failure("create the base directory", path, &error),
            PathProblem::Foreign(found) | PathProblem::Mode(found) => found,
        };
        log::error!(
            "{provider} base directory {} is of uid {} with mode {:04o}; it must be a directory of uid {} with mode \
             0700: correct it (chown, chmod 700), remove it, or set {variable} to another one",
            path.display(),
            found.uid,
            found.mode,
            uid()
        );
        Error::PermissionDenied
    }

    /// Removes the directory if it is empty, unless the administrator has chosen it.
    pub fn remove_if_empty(&self) {
        if self.default.is_some() {
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// Registers a folder or file in the directory for removal at process exit. Directories that become empty are also
    /// removed.
    pub fn remove_at_exit(&self, path: &Path) {
        exit_cleanup::register(self, path, None);
    }

    /// Same as `remove_at_exit`, but the path stays if another process has a lock on `file` at that time.
    pub fn remove_at_exit_if_last(&self, path: &Path, file: &Arc<File>) {
        exit_cleanup::register(self, path, Some(Arc::downgrade(file)));
    }

    /// Removes the empty directories above `path`, up to the base directory. That is removed too if it is empty, unless
    /// the administrator has chosen it.
    pub(crate) fn remove_empty_dirs(&self, path: &Path) {
        let inside = path.ancestors().skip(1).take_while(|above| above.starts_with(&self.path) && *above != self.path);
        if inside.map(fs::remove_dir).all(|removed| removed.is_ok()) {
            self.remove_if_empty();
        }
    }

    /// Logs a failed operation in the directory with a remedy, and returns the error code. `operation` is a verb
    /// phrase, to which the message appends `path`.
    #[cold]
    pub fn report_failure(&self, operation: &str, path: &Path, error: &io::Error) -> Error {
        let BaseDirKind { provider, variable, .. } = self.kind;
        let has_no_descriptor = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if has_no_descriptor {
            log::error!(
                "{provider}: cannot {operation} {}: {error}; allow more open files (ulimit -n)",
                path.display()
            );
            return Error::Exhausted(Resource::Device);
        }
        let remedy = match error.kind() {
            ErrorKind::StorageFull => "free space there, or set it to a directory on another file system",
            ErrorKind::NotFound => "set it to a directory that exists on a memory file system",
            _ => "set it to a directory of your own",
        };
        log::error!(
            "{provider}: cannot {operation} {}: {error}; {variable} chooses the base directory: {remedy}",
            path.display()
        );
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::PermissionDenied,
            ErrorKind::StorageFull | ErrorKind::OutOfMemory | ErrorKind::QuotaExceeded => {
                Error::Exhausted(Resource::Memory)
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory => Error::Exhausted(Resource::Device),
            _ => Error::Internal,
        }
    }
}

/// Creates a directory if it is missing, and checks its owner and mode. Tries again if another process removes the
/// empty directory between these two steps.
fn create_private(path: &Path, recursive: bool) -> std::result::Result<(), PathProblem> {
    let mut tries = 0..MAX_TRIES;
    loop {
        match DirBuilder::new().recursive(recursive).mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(PathProblem::Failed(error)),
            _ => {}
        }
        match PathMetadata::at(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && tries.next().is_some() => {
                // The pause is random, because with a fixed pause the other process could remove the directory at each
                // attempt.
                std::thread::sleep(Duration::from_micros(random() % MAX_PAUSE_US));
            }
            Err(error) => return Err(PathProblem::Failed(error)),
            Ok(found) if !found.is_own_directory() => return Err(PathProblem::Foreign(found)),
            Ok(found) if !found.is_private() => return Err(PathProblem::Mode(found)),
            Ok(_) => return Ok(()),
        }
    }
}

/// Whether `path` is a directory of this user, to which no other user has access.
fn is_private_dir(path: &Path) -> bool {
    PathMetadata::at(path).is_ok_and(|found| found.is_own_directory() && found.is_private())
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Tries to acquire the exclusive lock (flock) on a file. Returns false if another process has a lock on the file, or
/// this process has one through another open of the file.
pub fn lock(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes a file if no process has a lock on it.
pub fn remove_unlocked(path: &Path) {
    let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).clone();
    if let Ok(file) = options.open(path)
        && lock(&file)
        && is_open_at(&file, path)
    {
        let _ = fs::remove_file(path);
    }
}

/// Returns the paths in a directory. Returns none if `path` is a symbolic link.
pub fn entries(path: &Path) -> Vec<PathBuf> {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let entries = if is_directory { fs::read_dir(path).ok() } else { None };
    entries.map(|dir| dir.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// Returns at most `max` elements, chosen at random. If each process examines only such a sample, all processes
/// together examine all elements over time.
pub fn random_sample<T>(mut all: Vec<T>, max: usize) -> Vec<T> {
    for index in 0..max.min(all.len()) {
        let other = index + random() as usize % (all.len() - index);
        all.swap(index, other);
    }
    all.truncate(max);
    all
}

/// Returns a number from getrandom(2), or 0 if the call fails.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Whether `path` still refers to this open file. Another process may have removed the file between its open and its
/// lock.
pub fn is_open_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: BaseDirKind =
        BaseDirKind { provider: "test", variable: "DAPL_TEST_DIR", default: "/tmp/dapl-base-test" };

    fn scratch(name: &str) -> PathBuf {
        PathBuf::from(format!("/tmp/dapl-base-{}-{name}", std::process::id()))
    }

    #[test]
    fn configured_directory_is_kept_and_the_empty_default_is_removed() {
        let path = scratch("stays");
        let named = BaseDir::new(&KIND, path.to_str());
        let default = BaseDir::as_default(&KIND, path.clone());
        named.create().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        named.remove_if_empty();
        assert!(path.exists());
        default.remove_if_empty();
        assert!(!path.exists());
        let path = BaseDir::new(&KIND, Some("")).path;
        assert_eq!(path.to_str().unwrap(), format!("/tmp/dapl-base-test-{}", uid()));
    }

    #[test]
    fn empty_directories_are_removed_up_to_the_base() {
        let path = scratch("prune");
        let (named, default) = (BaseDir::new(&KIND, path.to_str()), BaseDir::as_default(&KIND, path.clone()));
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/file"), "").unwrap();
        default.remove_empty_dirs(&path.join("a/b/gone"));
        assert!(!path.join("a/b").exists() && path.join("a").exists(), "only empty directories are removed");
        fs::remove_file(path.join("a/file")).unwrap();
        named.remove_empty_dirs(&path.join("a/gone"));
        assert!(!path.join("a").exists() && path.exists());
        default.remove_empty_dirs(&path.join("gone"));
        assert!(!path.exists());
    }

    #[test]
    fn concurrent_create_and_remove_of_a_base_directory_succeed() {
        let path = scratch("race");
        let base = BaseDir::as_default(&KIND, path.clone());
        let create_and_remove = || (0..2000).try_for_each(|_| base.create().map(|base| base.remove_if_empty()));
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(create_and_remove));
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(())));
        });
        assert!(!path.exists());
    }

    #[test]
    fn configured_directory_that_is_not_private_is_refused() {
        let path = scratch("rights");
        DirBuilder::new().mode(0o755).create(&path).unwrap();
        let base = BaseDir::new(&KIND, path.to_str());
        assert_eq!(base.create().err(), Some(Error::PermissionDenied));
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        assert_eq!(base.create().err(), Some(Error::PermissionDenied), "a link is not a directory");
        fs::remove_file(&path).unwrap();
        let relative = BaseDir::new(&KIND, Some("relative")).create();
        assert_eq!(relative.err(), Some(Error::InvalidAddress(AddressProblem::Malformed)));
    }

    #[test]
    fn report_failure_maps_error_numbers_to_dat_errors() {
        let base = BaseDir::new(&KIND, Some("/tmp"));
        let code = |number| base.report_failure("test", Path::new("/tmp"), &io::Error::from_raw_os_error(number));
        for number in [libc::EACCES, libc::EPERM, libc::EROFS] {
            assert_eq!(code(number), Error::PermissionDenied, "{number}");
        }
        for number in [libc::ENOSPC, libc::EDQUOT, libc::ENOMEM] {
            assert_eq!(code(number), Error::Exhausted(Resource::Memory), "{number}");
        }
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOENT, libc::ENOTDIR] {
            assert_eq!(code(number), Error::Exhausted(Resource::Device), "{number}");
        }
        assert_eq!(code(libc::EIO), Error::Internal);
    }

    #[test]
    fn random_sample_has_each_element_at_most_once() {
        for max in [0, 1, 5, 10, usize::MAX] {
            let mut chosen = random_sample((0..10).collect::<Vec<_>>(), max);
            assert_eq!(chosen.len(), max.min(10));
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), max.min(10));
        }
    }
}
