//! Cross-memory attach: copies by the kernel between the memory of this process and of another process (spec/transports
//! B2).
//!
//! The callers have checked the registrations; the kernel checks whether this process may access the other process. If
//! the kernel denies the access, the caller uses another method. Bytes are copied in ascending order, and the last
//! byte last, because programs poll the last byte.

use std::ffi::c_void;

use dapl::provider::{Region, Status};

use crate::memory::map::is_accessible;

/// Maximum number of bytes of one call. A longer copy would delay the other connections that the thread serves.
pub(crate) const CHUNK: usize = 512 << 10;

/// The reason why a copy was not completed. Part of the bytes may have been copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CopyError {
    /// The kernel does not permit, or does not support, this copy method. The caller should use another method.
    Denied,
    /// The peer process has exited.
    PeerExited,
    /// The remote memory does not match its registration, or the access right is missing.
    RemoteMemory,
    /// The local memory does not match its registration, or the access right is missing.
    LocalMemory,
}

impl CopyError {
    /// Returns the status with which an RDMA operation fails; `None` if another method can be tried.
    pub(crate) fn status(self) -> Option<Status> {
        match self {
            CopyError::LocalMemory => Some(Status::LocalProtection),
            CopyError::RemoteMemory => Some(Status::RemoteAccess),
            CopyError::PeerExited => Some(Status::Transport),
            CopyError::Denied => None,
        }
    }
}

/// Direction of a copy between local memory and the memory of another process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// From local to remote memory.
    Write,
    /// From remote to local memory.
    Read,
}

/// Copies `len` bytes (at most [`CHUNK`]) between the local address `local` and the address `remote` of process `pid`.
///
/// # Safety
///
/// This process may read the `len` bytes at `local`, and may also write them if `direction` is `Read`. They may be
/// unmapped; the copy then fails.
pub(crate) unsafe fn copy(
    direction: Direction,
    pid: i32,
    local: u64,
    remote: u64,
    len: usize,
) -> Result<(), CopyError> {
    let mut done = 0;
    while done < len {
        let left = len - done;
        // The last byte has an iovec of its own on the local side, because the kernel copies the local iovecs in order.
        // The remote side has one iovec, because the kernel walks the peer's page tables for each one. This walk takes
        // a third of the time of a short copy.
        let iovec = |at: u64, iov_len| libc::iovec { iov_base: at as *mut c_void, iov_len };
        let local_iovecs = [iovec(local + done as u64, left - 1), iovec(local + (len - 1) as u64, 1)];
        let remote_iovec = [iovec(remote + done as u64, left)];
        fail_point!(KernelAsked);
        // SAFETY: both vectors outlive the call. The kernel checks the memory to which they refer, and the caller
        // guarantees that the local memory may be accessed (# Safety).
        let moved = unsafe {
            match direction {
                Direction::Write => libc::process_vm_writev(pid, local_iovecs.as_ptr(), 2, remote_iovec.as_ptr(), 1, 0),
                Direction::Read => libc::process_vm_readv(pid, local_iovecs.as_ptr(), 2, remote_iovec.as_ptr(), 1, 0),
            }
        };
        fail_point!(KernelAnswered);
        if moved <= 0 {
            return Err(match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ESRCH) => CopyError::PeerExited,
                Some(libc::EFAULT) => faulting_side(direction, local, len),
                _ => CopyError::Denied,
            });
        }
        done += moved as usize;
    }
    Ok(())
}

/// Returns the error of a copy that failed with EFAULT: the kernel does not report whether the local or the remote
/// memory is not mapped, so this function checks the local memory.
#[cold]
pub(crate) fn faulting_side(direction: Direction, local: u64, len: usize) -> CopyError {
    let local_range = Region { address: local, length: len as u64 };
    if is_accessible(local_range, direction == Direction::Read) {
        CopyError::RemoteMemory
    } else {
        CopyError::LocalMemory
    }
}

/// Permits all processes of this user to copy from and to this process, where Yama permits only its ancestors
/// (`ptrace_scope` 1). All processes of the user can then read all memory of this process. So it is called only if the
/// setting `cma` is `open`.
pub(crate) fn open_to_the_user() {
    // SAFETY: the call accesses no memory. It only sets which processes may trace this process, or fails without Yama.
    if unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) } != 0 {
        log::debug!("PR_SET_PTRACER failed ({}): Yama is not active", std::io::Error::last_os_error());
    }
}

/// Memory with which a peer tests cross-memory attach: the peer reads the value of the first word, and writes this
/// value to the second word.
#[derive(Debug)]
pub(crate) struct Probe(Box<[std::sync::atomic::AtomicU64; 2]>);

impl Probe {
    pub(crate) fn new(value: u64) -> Self {
        Probe(Box::new([value.into(), 0.into()]))
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    pub(crate) fn value(&self) -> u64 {
        self.0[0].load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Returns whether cross-memory attach works in both directions, tested with the peer's [`Probe`] at `address`.
pub(crate) fn probe(pid: i32, address: u64, value: u64) -> bool {
    let Some(second) = address.checked_add(8) else { return false };
    let mut seen = 0u64;
    let at = (&raw mut seen) as u64;
    // SAFETY: the local memory of each copy is the eight bytes of `seen`.
    let worked = unsafe {
        copy(Direction::Read, pid, at, address, 8).is_ok()
            && seen == value
            && copy(Direction::Write, pid, at, second, 8).is_ok()
            && {
                seen = 0;
                copy(Direction::Read, pid, at, second, 8).is_ok()
            }
    };
    worked && seen == value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_copies_to_itself_and_errors_name_the_unmapped_memory() {
        let pid = std::process::id() as i32;
        let own_probe = Probe::new(99);
        assert!(probe(pid, own_probe.address(), 99));
        assert!(!probe(pid, own_probe.address(), 98));
        let (source, mut sink) = ([7u8; 1000], [0u8; 1000]);
        let (from, to) = (source.as_ptr() as u64, sink.as_mut_ptr() as u64);
        // SAFETY: both local arrays have 1000 bytes. Address 8 is not mapped, which the kernel reports as an error.
        let copy = |direction, local, remote| unsafe { copy(direction, pid, local, remote, 1000) };
        assert_eq!(copy(Direction::Write, from, to), Ok(()));
        assert_eq!(sink, source);
        assert_eq!(copy(Direction::Write, from, 8), Err(CopyError::RemoteMemory));
        assert_eq!(copy(Direction::Read, 8, from), Err(CopyError::LocalMemory));
    }
}
