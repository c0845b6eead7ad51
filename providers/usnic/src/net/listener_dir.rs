//! The directory in which processes of one user find each other's listeners: `<base>/listeners/`, with a Unix socket
//! for each listener.
//!
//! Each use opens the directory, and checks that this user owns it and that other users have no access. Sockets are
//! bound and reached through the checked descriptor (without `/proc`, by their path). So no other user can bind a name
//! in the directory, or send to one. In the abstract socket namespace, any user could bind any name.
//!
//! If the default path of the base directory is taken, the processes use an alternative. A process searches all of them
//! for listeners, because the path may have been free when another process started.
//!
//! Several network namespaces may share the directory, so a name begins with the inode of the namespace:
//! `<namespace>-<address and port>-<qualifier>`.
//!
//! The name of an exited process refuses connections (ECONNREFUSED), and is replaced. A process creates and replaces
//! names under a lock on the directory, which it holds for a few non-blocking system calls.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use dapl_software::base_dir::{self, BaseDir};
use rustix::fs::{AtFlags, Mode};
use rustix::net::SocketAddrUnix;

use super::handover::{self, ForwardedRequest, HandoverSocket};

/// Name of the directory of listeners in the base directory.
const LISTENERS: &str = "listeners";
/// Maximum wait for the lock on the directory. Only a stopped process holds it for long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts to acquire the lock: slightly longer than a process usually holds it.
const RETRY: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct ListenerDir {
    base: BaseDir,
    /// Inode of the network namespace, or 0 without `/proc`.
    namespace: u64,
    /// Ensures that the names of exited processes are removed only once for each open IA.
    cleaned: Once,
}

/// An open directory whose owner and mode were checked.
struct VerifiedDir {
    file: File,
    path: PathBuf,
}

impl ListenerDir {
    /// Uses the network namespace of the calling thread. Does not access the base directory.
    pub(crate) fn new(base: BaseDir) -> Self {
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |found| found.ino());
        ListenerDir { base, namespace, cleaned: Once::new() }
    }

    /// The directories of this user that may contain listeners.
    fn dirs(&self) -> impl Iterator<Item = VerifiedDir> {
        let others = std::iter::once_with(|| self.base.alternatives()).flatten();
        let bases = std::iter::once(self.base.path().to_owned()).chain(others);
        bases.filter_map(|base| VerifiedDir::open(base.join(LISTENERS)).ok())
    }

    fn name(&self, at: SocketAddr, qual: u64) -> String {
        format!("{:x}-{at}-{qual:x}", self.namespace)
    }

    /// Opens a socket for the listener on `qual` at this address.
    ///
    /// Errors: `AddrInUse` if a process of this user already listens on `qual` at this address. Other errors mean that
    /// the directory is not usable, or that the socket cannot be created.
    pub(crate) fn open(&self, at: SocketAddr, qual: u64) -> io::Result<HandoverSocket> {
        let name = self.name(at, qual);
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match self.try_open(&name) {
                // Another process holds the lock, or removes the empty directory.
                Err(error) if is_transient(&error) && Instant::now() < until => std::thread::sleep(RETRY),
                result => return result,
            }
        }
    }

    fn try_open(&self, name: &str) -> io::Result<HandoverSocket> {
        let base = self.base.create();
        let base = base.map_err(|error| io::Error::other(format!("cannot create the base directory: {error}")))?;
        let dir = VerifiedDir::lock(base.path().join(LISTENERS))?;
        self.cleaned.call_once(|| dir.clean());
        if !dir.is_free(name)? || self.has_name(name) {
            return Err(ErrorKind::AddrInUse.into());
        }
        dir.remove(name)?;
        let socket = HandoverSocket::bind(&dir.address(name)?, &base, dir.path.join(name))?;
        // Sets the owner's permissions, because the umask may have removed them.
        rustix::fs::chmodat(&dir.file, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        Ok(socket)
    }

    /// Forwards a request to the process of this user that listens on `qual` at this address. Returns false if there is
    /// no such process, or if its name in the directory cannot be used.
    pub(crate) fn forward(&self, at: SocketAddr, qual: u64, forwarded: &ForwardedRequest) -> bool {
        let name = self.name(at, qual);
        self.dirs().any(|dir| match dir.address(&name).and_then(|to| handover::send(&to, forwarded)) {
            Ok(()) => true,
            // A full queue belongs to an existing listener. The client retransmits its request.
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        })
    }

    /// Whether a process of this user listens on any qualifier at this address, so that the UDP port belongs to this
    /// user.
    pub(crate) fn owns_port(&self, at: SocketAddr) -> bool {
        let start = format!("{:x}-{at}-", self.namespace);
        self.dirs().any(|dir| dir.names().any(|name| name.starts_with(&start) && dir.is_bound(&name)))
    }

    /// Whether a process of this user listens on `qual` at this address.
    pub(crate) fn has_listener(&self, at: SocketAddr, qual: u64) -> bool {
        self.has_name(&self.name(at, qual))
    }

    fn has_name(&self, name: &str) -> bool {
        self.dirs().any(|dir| dir.is_bound(name))
    }
}

/// Whether the error may be caused by another process that holds the lock, or creates or removes the directory.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound)
}

impl VerifiedDir {
    /// Opens and checks a directory. Error: `PermissionDenied` if another user owns it or may access it.
    fn open(path: PathBuf) -> io::Result<VerifiedDir> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let found = file.metadata()?;
        let uid = rustix::process::geteuid().as_raw();
        if found.uid() != uid || found.mode() & 0o077 != 0 {
            let (owner, mode) = (found.uid(), found.mode() & 0o7777);
            let why = format!("{} is of uid {owner} with mode {mode:04o}, not of uid {uid} with 0700", path.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(VerifiedDir { file, path })
    }

    /// Creates the directory if it is missing, and acquires its lock. The errors `WouldBlock` and `NotFound` are
    /// transient.
    fn lock(path: PathBuf) -> io::Result<VerifiedDir> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let dir = VerifiedDir::open(path)?;
        if !base_dir::lock(&dir.file) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if !base_dir::is_open_at(&dir.file, &dir.path) {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(dir)
    }

    /// Returns the socket address of a name in the directory. The path goes through the checked descriptor, so it stays
    /// correct if the directory's path is replaced. Without `/proc`, uses the directory's path.
    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        let by_descriptor = PathBuf::from(format!("/proc/thread-self/fd/{}", self.file.as_raw_fd()));
        let dir: &Path = if by_descriptor.exists() { &by_descriptor } else { &self.path };
        Ok(SocketAddrUnix::new(dir.join(name))?)
    }

    /// Whether no running process has bound this name.
    fn is_free(&self, name: &str) -> io::Result<bool> {
        match handover::probe(&self.address(name)?) {
            Ok(()) => Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether a running process has certainly bound this name.
    fn is_bound(&self, name: &str) -> bool {
        self.is_free(name).is_ok_and(|is_free| !is_free)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.file, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns all names, including those of exited processes.
    fn names(&self) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }

    /// Removes the names of exited processes. The caller holds the lock on the directory.
    fn clean(&self) {
        for name in self.names().filter(|name| self.is_free(name).is_ok_and(|is_free| is_free)) {
            let _ = self.remove(&name);
        }
    }
}

#[cfg(test)]
#[path = "listener_dir_tests.rs"]
mod tests;
