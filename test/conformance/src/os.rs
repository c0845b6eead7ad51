//! System functions that std lacks or declares unsafe: fork, mappings, signals to processes, immediate process exit,
//! environment variables.
//!
//! Used by the cases, the fork server and the processes that it starts. Contains no DAT calls.

use std::ffi::{OsStr, c_void};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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

/// Kills a child of this process that was not waited for, and its process group.
pub(crate) fn kill_group(leader: u32) {
    // SAFETY: sends signals. A child that has not yet created its group gets the second one; errors are ignored.
    unsafe {
        libc::kill(-(leader as i32), libc::SIGKILL);
        libc::kill(leader as i32, libc::SIGKILL);
    }
}

/// Forks this process, which must have only one thread. Returns the id of the child, or `None` in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    // SAFETY: without other threads, no lock is held by a thread that the child lacks, so the child may call anything.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        child => u32::try_from(child).map(Some).map_err(|_| io::Error::last_os_error()),
    }
}

/// Returns id and wait status of a child that has ended and was not returned before.
pub(crate) fn ended_child() -> Option<(u32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a local variable. The fork server waits for its children only by this function.
    let child = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (child > 0).then_some((child as u32, status))
}

/// Makes this process the leader of a new process group.
pub(crate) fn lead_group() {
    // SAFETY: sets an attribute of this process.
    unsafe { libc::setpgid(0, 0) };
}

/// Replaces standard input by `input`, and standard output and error by `output`.
pub(crate) fn replace_standard_streams(input: &OwnedFd, output: &OwnedFd) {
    for (from, to) in [(input, libc::STDIN_FILENO), (output, libc::STDOUT_FILENO), (output, libc::STDERR_FILENO)] {
        // SAFETY: nothing owns the standard descriptors, so they may be replaced at any time.
        unsafe { libc::dup2(from.as_raw_fd(), to) };
    }
}

/// Shifts the addresses of later allocations and mappings by a distance that differs between processes. Otherwise
/// forked processes have the same addresses, and a library that uses an address of the other process goes unnoticed.
pub(crate) fn shift_addresses() {
    let number = std::process::id().wrapping_mul(0x9e37_79b9) as usize;
    // Below the size (128 KiB) from which malloc creates a mapping.
    std::mem::forget(std::hint::black_box(Vec::<u8>::with_capacity(number >> 16 & 0xfff0)));
    std::mem::forget(Map::private(((number >> 16) + 1) * 4096, false));
}

/// SIGCHLD as a descriptor. The signal stays blocked until the drop.
pub(crate) struct ChildSignals {
    descriptor: File,
    blocked: libc::sigset_t,
}

impl ChildSignals {
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: a signal set consists of integers, for which zero is a value.
        let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `blocked` is a local variable. A parent may have ignored SIGCHLD; the kernel would then report no end of
        // a child.
        let descriptor = unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &blocked, std::ptr::null_mut());
            libc::signalfd(-1, &blocked, libc::SFD_CLOEXEC)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nothing else owns it.
        Ok(ChildSignals { descriptor: unsafe { File::from_raw_fd(descriptor) }, blocked })
    }

    /// Waits until a child has ended or `input` is readable, and returns whether `input` is.
    pub(crate) fn wait(&self, input: BorrowedFd) -> io::Result<bool> {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = [entry(input.as_raw_fd()), entry(self.descriptor.as_raw_fd())];
        // SAFETY: the pointer and the length are those of a local array.
        while unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, -1) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if entries[1].revents != 0 {
            let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
            (&self.descriptor).read_exact(&mut signal)?;
        }
        Ok(entries[0].revents != 0)
    }
}

impl Drop for ChildSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled in `block`.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &self.blocked, std::ptr::null_mut()) };
    }
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
