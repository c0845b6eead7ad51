//! The end point directory `<base>/<pid>/<id>/` with `sock`, `fifo`, `lock` and `conns/`, and the names of listeners
//! (`<base>/quals/`) and of shared memory (SM-1 to SM-3, spec/transports B3).
//!
//! A live process holds an exclusive lock on a file in its directory; the kernel releases the lock when the process
//! exits. When an IA is opened or closed, or detects the exit of a peer's process, it cleans up: it renames and removes
//! the directories that it can lock, of all process ids that do not exist and of up to 16 ids that exist. It also
//! removes a directory without a lock file whose creation or removal was interrupted.
//!
//! Directories have mode 0700, files 0600. The files of an end point are created exclusively, and symbolic links are
//! not followed.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dapl::error::{Error, Resource, Result};
use dapl_software::base_dir::{self, BaseDir, BaseDirKind, entries, is_open_at, lock, random_sample, remove_unlocked};
use dapl_software::shared_names::SharedNames;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Maximum length of a Unix socket's path, without the NUL.
const SUN_PATH: usize = 107;

// Number of attempts to create the name of a listener while another process has locked the name but does not listen,
// and the pause between them.
const CLAIM_ATTEMPTS: u32 = 100;
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of live processes, and usually of names, that one cleanup probes; they are selected at random. A
/// probe takes ten system calls, and each process cleans up when it opens an IA. If each of n processes probed all
/// others, n * n probes would be made.
const MAX_PROBES: usize = 16;

/// Id of this process's next end point: the last component of the directory's path.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

const KIND: BaseDirKind = BaseDirKind { provider: "sm", variable: "DAPL_DIR", default: "/dev/shm/dapl" };

/// The base directory of the end points of one user.
#[derive(Clone)]
pub(crate) struct EndpointBase {
    dir: BaseDir,
    /// The names of shared memory (`dapl_software::shared_names`).
    pub(crate) names: SharedNames,
}

/// Returns the directory of an address `sm://<absolute path>/<pid>/<id>`. Without the scheme, the address is the
/// directory itself.
pub(crate) fn endpoint_path(address: &str) -> Option<PathBuf> {
    let path = Path::new(address.strip_prefix("sm://").unwrap_or(address));
    let sane = path.is_absolute() && path.components().all(|c| !matches!(c, std::path::Component::ParentDir));
    (sane && path.as_os_str().len() + "/sock".len() <= SUN_PATH).then(|| path.to_path_buf())
}

impl EndpointBase {
    /// Opens the base directory: `chosen`, or a directory of this user under `/dev/shm`. A missing directory is
    /// created.
    pub(crate) fn open(chosen: Option<&str>) -> Result<Self> {
        Self::from_base_dir(BaseDir::new(&KIND, chosen)).create_if_missing()
    }

    fn from_base_dir(dir: BaseDir) -> Self {
        EndpointBase { names: SharedNames::new(dir.clone()), dir }
    }

    /// Returns the base directory in use, and creates it if it is missing.
    fn create_if_missing(&self) -> Result<Self> {
        let path = self.dir.path();
        if endpoint_path(&format!("{}/4194304/65535", path.display())).is_none() {
            log::error!(
                "sm base directory \"{}\" is not an absolute path without \"..\" of at most {} bytes; set DAPL_DIR to \
                 such a path",
                path.display(),
                SUN_PATH - "/4194304/65535/sock".len()
            );
            return Err(Error::InvalidAddress(dapl::error::AddressProblem::Malformed));
        }
        let dir = self.dir.create()?;
        Ok(if dir.path() == path { self.clone() } else { Self::from_base_dir(dir) })
    }

    /// Registers a directory, or a file in the base directory, for removal when the process exits.
    pub(crate) fn remove_at_exit(&self, path: &Path) {
        self.dir.remove_at_exit(path);
    }

    fn qualifiers_path(&self) -> PathBuf {
        self.dir.path().join("quals")
    }

    /// Returns the directory of the end point that listens on `qual`. Its process may have exited. Errors:
    /// `Exhausted(Device)` if no file descriptor is free.
    pub(crate) fn find_listener(&self, qual: u64) -> Result<Option<PathBuf>> {
        if let Some(path) = self.find_listener_in(self.dir.path(), qual)? {
            return Ok(Some(path));
        }
        let others = self.dir.alternatives();
        others.iter().find_map(|other| self.find_listener_in(other, qual).transpose()).transpose()
    }

    fn find_listener_in(&self, base: &Path, qual: u64) -> Result<Option<PathBuf>> {
        let mut text = String::new();
        let quals = base.join("quals");
        let file = match open_directory(&quals).and_then(|folder| open_name(&folder, qual, OFlags::RDONLY)) {
            Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                return Err(self.dir.report_failure("look up a listener in", &quals, &error.into()));
            }
            file => file.ok(),
        };
        let read = file.and_then(|file| file.take(256).read_to_string(&mut text).ok());
        Ok(read.and_then(|_| endpoint_path(&text)))
    }

    /// Whether a live process listens on `qual`: the name refers to the directory of a process that exists.
    fn has_listener(&self, qual: u64) -> bool {
        let path = self.find_listener_in(self.dir.path(), qual).ok().flatten();
        let pid = path.and_then(|path| path.parent()?.file_name()?.to_str()?.parse().ok());
        pid.is_some_and(is_alive)
    }

    /// Whether a live process with another base directory listens on `qual`, and therefore has locked its name.
    fn is_locked_elsewhere(&self, qual: u64) -> bool {
        let is_locked = |base: PathBuf| {
            let name = open_directory(&base.join("quals")).and_then(|folder| open_name(&folder, qual, OFlags::RDONLY));
            name.is_ok_and(|name| rustix::fs::flock(&name, FlockOperation::NonBlockingLockShared).is_err())
        };
        self.dir.alternatives().into_iter().any(is_locked)
    }

    /// Removes files of exited processes: end points, names of listeners, and names of shared memory. `died`: id of a
    /// process that has exited, even if a new process has this id.
    ///
    /// Removes the files of every process id that does not exist. Of the existing process ids, [`MAX_PROBES`] are
    /// probed, because an id may have been reused. [`MAX_PROBES`] names are probed, or all names if a process's
    /// directory was removed.
    pub(crate) fn clean(&self, died: Option<i32>) {
        let processes = entries(self.dir.path()).into_iter();
        let numbered = processes.filter_map(|path| Some((path.file_name()?.to_str()?.parse::<i32>().ok()?, path)));
        let (living, dead): (Vec<_>, _) = numbered.partition(|(pid, _)| died != Some(*pid) && is_alive(*pid));
        let mut has_removed = false;
        for (pid, process) in dead.into_iter().chain(random_sample(living, MAX_PROBES)) {
            has_removed |= clean_process(&process, pid);
        }
        let most = if has_removed { usize::MAX } else { MAX_PROBES };
        random_sample(entries(&self.qualifiers_path()), most).iter().for_each(|name| remove_unlocked(name));
        self.names.clean(most);
    }

    /// Removes the files of the end point `path`, if its process has exited. Called when a request to it could not be
    /// delivered. Has no effect on paths outside this base directory.
    pub(crate) fn clean_up(&self, path: &Path) {
        if path.parent().and_then(Path::parent) == Some(self.dir.path()) {
            clean_endpoint(path);
        }
    }

    /// Removes the directories for names of listeners and of shared memory, if they are empty.
    fn remove_empty_dirs(&self) {
        let _ = fs::remove_dir(self.qualifiers_path());
        self.names.remove_if_empty();
    }
}

/// Removes the end points of exited processes in a directory `<base>/<pid>`, then the directory if it is empty. Returns
/// whether the directory was removed.
fn clean_process(process: &Path, pid: i32) -> bool {
    for endpoint in entries(process) {
        let name = endpoint.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.starts_with(".new-") && !name.starts_with(".dead-") {
            clean_endpoint(&endpoint);
        } else if name.starts_with(".dead-") || is_abandoned(&endpoint, pid) {
            let _ = fs::remove_dir_all(&endpoint);
        }
    }
    fs::remove_dir(process).is_ok()
}

/// Removes the directory of an end point, unless a live process holds its lock. A directory without a lock file is
/// removed too. Has no effect if the path or its parent is not a directory, or if the lock file exists but cannot be
/// opened or was replaced.
fn clean_endpoint(path: &Path) {
    if !is_directory(path) || !path.parent().is_some_and(is_directory) {
        return;
    }
    let lock_file = path.join("lock");
    match OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&lock_file) {
        Ok(file) if lock(&file) && is_open_at(&file, &lock_file) => move_away(path),
        Err(e) if e.kind() == ErrorKind::NotFound => remove_without_lock(path),
        _ => {}
    }
}

/// Whether the process that created this directory (`.new-<id>`) exited before it gave the directory its final name. A
/// live process locks the directory within `CREATION_TIME`; until then, no other process may change it.
fn is_abandoned(new: &Path, pid: i32) -> bool {
    const CREATION_TIME: Duration = Duration::from_secs(10);
    let Ok(found) = fs::symlink_metadata(new) else { return false };
    let is_old = || found.modified().ok().and_then(|begun| begun.elapsed().ok()).is_some_and(|age| age > CREATION_TIME);
    // The process id may have been reused.
    if is_alive(pid) && !is_old() {
        return false;
    }
    match OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(new.join("lock")) {
        Ok(file) => lock(&file),
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

/// Removes a directory without a lock file: the process exited during the removal, which removes the lock file last.
/// Files are removed through the open directory, because a live end point may have created the path again.
fn remove_without_lock(path: &Path) {
    let Ok(folder) = open_directory(path) else { return };
    let inside = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    if fs::symlink_metadata(inside.join("lock")).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        ["sock", "fifo"].iter().for_each(|name| drop(fs::remove_file(inside.join(name))));
        let _ = fs::remove_dir_all(inside.join("conns"));
        let _ = fs::remove_dir(path);
    }
}

fn move_away(path: &Path) {
    fail_point!(CleanerLocked);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let aside = parent.join(format!(".dead-{}-{}", name.to_string_lossy(), std::process::id()));
    if fs::rename(path, &aside).is_ok() {
        fail_point!(CleanerMovedAside);
        let _ = fs::remove_dir_all(&aside);
        fail_point!(CleanerRemoved);
        let _ = fs::remove_dir(parent);
    }
}

/// Removes the directory of an end point. Known names are removed first, because listing a directory needs a file
/// descriptor and none may be free. The lock file is removed last, so that a cleaner can complete an interrupted
/// removal.
fn remove(path: &Path) {
    let file = |name| {
        let _ = fs::remove_file(path.join(name));
        fail_point!(Leaving);
    };
    ["sock", "fifo"].into_iter().for_each(file);
    if fs::remove_dir(path.join("conns")).is_err() {
        let _ = fs::remove_dir_all(path.join("conns"));
    }
    file("lock");
    let _ = fs::remove_dir(path);
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the name of a listener. The open does not block, even if the name is a FIFO.
fn open_name(folder: &OwnedFd, qual: u64, flags: OFlags) -> rustix::io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder, qual.to_string(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn is_alive(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether creation failed because another process has removed or locked the directory, or because the path exists. The
/// caller then tries the next id.
fn is_cleaner_conflict(error: &std::io::Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind(), NotFound | AlreadyExists | DirectoryNotEmpty | WouldBlock)
}

/// The directory of an open IA. Dropping it removes the directory.
pub(crate) struct EndpointDir {
    pub(crate) base: EndpointBase,
    path: PathBuf,
    /// Lock file, which is locked while the end point exists.
    _lock: File,
    pid: u32,
}

impl EndpointDir {
    pub(crate) fn create(base: EndpointBase) -> Result<Self> {
        Self::create_as(base, std::process::id())
    }

    /// Creates the directory of an end point. `named`: process id in its path.
    fn create_as(mut base: EndpointBase, named: u32) -> Result<Self> {
        base.clean(None);
        let pid = std::process::id();
        // Another process may remove an empty base or process directory between two of these steps. All steps are then
        // repeated with another id.
        for _ in 0..100 {
            let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
            match Self::create_directory(&base, named, id) {
                Ok((path, lock)) => return Ok(EndpointDir { base, path, _lock: lock, pid }),
                Err(e) if is_cleaner_conflict(&e) => base = base.create_if_missing()?,
                Err(e) => return Err(base.dir.report_failure("create an end point in", base.dir.path(), &e)),
            }
        }
        log::error!(
            "cannot create an end point in {}: another process removed its directory at each attempt; set DAPL_DIR to \
             another base directory",
            base.dir.path().display()
        );
        Err(Error::Exhausted(Resource::Device))
    }

    fn create_directory(base: &EndpointBase, pid: u32, id: u32) -> std::io::Result<(PathBuf, File)> {
        let process = base.dir.path().join(pid.to_string());
        match DirBuilder::new().mode(0o700).create(&process) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let (new, path) = (process.join(format!(".new-{id}")), process.join(id.to_string()));
        DirBuilder::new().mode(0o700).create(&new)?;
        fail_point!(FolderBegun);
        let made = (|| {
            let options = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).clone();
            let file = options.open(new.join("lock"))?;
            fail_point!(FolderHasLockFile);
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            DirBuilder::new().mode(0o700).create(new.join("conns"))?;
            rustix::fs::mkfifoat(CWD, new.join("fifo"), Mode::RUSR | Mode::WUSR)?;
            fail_point!(FolderBuilt);
            clean_endpoint(&path); // The path may exist if a dead process with the same process id did not remove it.
            fs::rename(&new, &path)?;
            fail_point!(FolderNamed);
            // A cleaner in another pid namespace, which cannot see this process, may have removed files before this
            // process acquired the lock.
            let is_whole =
                path.join("fifo").exists() && path.join("conns").exists() && is_open_at(&file, &path.join("lock"));
            if is_whole { Ok(file) } else { Err(ErrorKind::NotFound.into()) }
        })();
        if made.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        made.map(|file| (path, file))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a symbolic link to the peer's directory for this connection, for diagnosis by administrators. Errors are
    /// ignored.
    pub(crate) fn add_conn(&self, id: u32, peer: &Path) {
        let _ = std::os::unix::fs::symlink(peer, self.conn_path(id));
    }

    pub(crate) fn remove_conn(&self, id: u32) {
        if std::process::id() == self.pid {
            let _ = fs::remove_file(self.conn_path(id));
        }
    }

    fn conn_path(&self, id: u32) -> PathBuf {
        self.path.join("conns").join(id.to_string())
    }

    /// Creates the name of a listener on `qual`. Errors: `ConnQualTaken` if a live process, this one included, has a
    /// listener on `qual`, or if another process keeps the name locked. Also those of [`BaseDir::report_failure`].
    pub(crate) fn create_name(&self, qual: u64) -> Result<ListenerName> {
        let path = self.base.qualifiers_path().join(qual.to_string());
        for _ in 0..CLAIM_ATTEMPTS {
            let _ = DirBuilder::new().mode(0o700).create(self.base.qualifiers_path());
            let folder = open_directory(&self.base.qualifiers_path());
            let file = match folder.and_then(|folder| open_name(&folder, qual, OFlags::RDWR | OFlags::CREATE)) {
                Ok(file) => file,
                Err(Errno::NOENT) => continue, // Another process has just removed the empty `qualifiers_path`.
                Err(e) => return Err(self.base.dir.report_failure("create the name of a listener,", &path, &e.into())),
            };
            fail_point!(QualOpened);
            if !lock(&file) {
                if self.base.has_listener(qual) {
                    return Err(Error::ConnQualTaken);
                }
                std::thread::sleep(CLAIM_PAUSE);
                continue;
            }
            if !is_open_at(&file, &path) {
                continue;
            }
            let name = ListenerName { path: path.clone(), file, pid: self.pid };
            let mut text = &name.file;
            fail_point!(QualLocked);
            let written = name.file.set_len(0).and_then(|()| text.write_all(self.path.as_os_str().as_encoded_bytes()));
            fail_point!(QualWritten);
            self.base.remove_at_exit(&path);
            if self.base.is_locked_elsewhere(qual) {
                return Err(Error::ConnQualTaken);
            }
            return written
                .map(|()| name)
                .map_err(|e| self.base.dir.report_failure("write the name of a listener,", &path, &e));
        }
        Err(Error::ConnQualTaken)
    }
}

impl Drop for EndpointDir {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            return; // A forked child must not remove files of its parent.
        }
        remove(&self.path);
        if let Some(process) = self.path.parent() {
            let _ = fs::remove_dir(process);
        }
        base_dir::cancel_exit_removal(&self.path);
        self.base.clean(None);
        self.base.remove_empty_dirs();
    }
}

/// The name of a listener. Dropping it frees the qualifier.
pub(crate) struct ListenerName {
    path: PathBuf,
    file: File,
    pid: u32,
}

impl Drop for ListenerName {
    fn drop(&mut self) {
        base_dir::cancel_exit_removal(&self.path);
        if std::process::id() == self.pid && is_open_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
