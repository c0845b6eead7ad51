//! System functions that std lacks or declares unsafe: fork, mappings, signals to processes, immediate process exit,
//! environment variables.
//!
//! Used by the cases and by the driver. Contains no DAT calls.

use std::ffi::{OsStr, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

/// Makes the kernel kill this process when the thread that started it ends.
pub(crate) fn die_with_parent() {
    // SAFETY: sets an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Ends the process without its exit handlers.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: does not return; the process ends without cleanup on purpose.
    unsafe { libc::_exit(status) }
}

pub(crate) fn kill_group(leader: u32) {
    // SAFETY: sends a signal; a group that no longer exists gives an error, which is ignored.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}

/// Ends this process like a crash: no exit handler runs, nothing is closed.
pub(crate) fn die() -> ! {
    // SAFETY: sends SIGKILL to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        std::thread::park();
    }
}

/// Sets an environment variable that the library reads at its first call.
pub(crate) fn set_env(name: &str, value: impl AsRef<OsStr>) {
    // SAFETY: a case calls this before any other call, when only its role's thread uses the environment.
    unsafe { std::env::set_var(name, value) };
}

/// Removes an environment variable that the library reads at its first call.
pub(crate) fn remove_env(name: &str) {
    // SAFETY: a case calls this before any other call, when only its role's thread uses the environment.
    unsafe { std::env::remove_var(name) };
}

/// Runs a closure in a forked child, which exits with the closure's result. Returns that result, or the negated
/// signal number.
pub(crate) fn in_fork(body: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs only the body and then exits without exit handlers. The case decides what the body
    // calls after the fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(u8::MAX);
        leave(answer.into());
    }
    let mut status = 0;
    // SAFETY: `status` is a local variable, and the child was forked here.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(waited == child, "waitpid: {}", std::io::Error::last_os_error());
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// Mapped memory.
pub(crate) struct Map {
    address: usize,
    length: usize,
}

impl Map {
    /// Creates private zeroed memory.
    pub(crate) fn private(length: usize, is_writable: bool) -> Self {
        Map::new(length, is_writable, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Creates zeroed memory that children share.
    pub(crate) fn shared(length: usize) -> Self {
        Map::new(length, true, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps the file at `path`, shared with other processes that map it. Creates a missing file, and sets its length.
    pub(crate) fn of_file(path: &Path, length: usize) -> Self {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.set_len(length as u64).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Map::new(length, true, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn new(length: usize, is_writable: bool, flags: libc::c_int, file: libc::c_int) -> Self {
        let protection = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        assert!(map != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Map { address: map.expose_provenance(), length }
    }

    /// Start address. After the drop, the address is unmapped.
    pub(crate) fn pointer(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Copies bytes out.
    pub(crate) fn take(&self, at: usize, length: usize) -> Vec<u8> {
        self.bytes()[at..at + length].iter().map(|place| place.load(Ordering::Acquire)).collect()
    }

    /// Copies bytes into writable memory.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.bytes()[at..at + bytes.len()].iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::Release));
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped and readable for this length until `self` is dropped; all other accesses are atomic or by
        // other processes.
        unsafe { std::slice::from_raw_parts(self.pointer().cast::<AtomicU8>(), self.length) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by this type with this length; all references into the mapping end with `self`.
        unsafe { libc::munmap(self.pointer(), self.length) };
    }
}
