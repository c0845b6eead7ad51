//! Cross-memory attach: copies by the kernel between the memory of this process and of another process (spec/transports
//! B2), and the test whether such copies work with a peer.
//!
//! The callers have checked the registrations; the kernel checks whether this process may access the other process. If
//! the kernel denies the access, the caller uses another method. Bytes are copied in ascending order, and the last byte
//! last, because programs poll the last byte.

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

/// The local memory of a copy: two ranges, which the kernel copies one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBytes(pub(crate) [Region; 2]);

impl LocalBytes {
    /// Returns `length` bytes at `address`. The second range is the last byte, because programs poll it.
    #[inline]
    pub(crate) fn new(address: u64, length: u64) -> Self {
        let body = Region { address, length: length.saturating_sub(1) };
        LocalBytes([body, Region { address: address + body.length, length: length - body.length }])
    }

    /// Returns the length of both ranges in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.0[0].length + self.0[1].length
    }

    /// Returns the ranges without their first `count` bytes.
    #[inline]
    fn after(&self, count: u64) -> Self {
        let skip = |region: Region, count: u64| {
            let count = count.min(region.length);
            Region { address: region.address + count, length: region.length - count }
        };
        let [body, last] = self.0;
        LocalBytes([skip(body, count), skip(last, count.saturating_sub(body.length))])
    }
}

/// Copies between local memory (at most [`CHUNK`] bytes) and the address `remote` of process `pid`.
///
/// # Safety
///
/// This process may read the bytes of `local`, and may also write them if `direction` is `Read`. They may be unmapped;
/// the copy then fails.
pub(crate) unsafe fn copy(direction: Direction, pid: i32, local: LocalBytes, remote: u64) -> Result<(), CopyError> {
    let length = local.length();
    let mut done = 0;
    while done < length {
        // The remote side has one iovec, because the kernel walks the peer's page tables for each one. This walk takes
        // a third of the time of a short copy.
        let iovec = |at: Region| libc::iovec { iov_base: at.address as *mut c_void, iov_len: at.length as usize };
        let local_iovecs = local.after(done).0.map(iovec);
        let remote_iovec = [iovec(Region { address: remote + done, length: length - done })];
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
        if moved == 0 {
            return Err(CopyError::Denied); // The kernel copies at least one byte, or reports an error.
        }
        if moved < 0 {
            return Err(match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ESRCH) => CopyError::PeerExited,
                Some(libc::EFAULT) => faulting_side(direction, local),
                _ => CopyError::Denied,
            });
        }
        done += moved as u64;
    }
    Ok(())
}

/// Returns the error of a copy that failed with EFAULT: the kernel does not report whether the local or the remote
/// memory is not mapped, so this function checks the local memory.
#[cold]
pub(crate) fn faulting_side(direction: Direction, local: LocalBytes) -> CopyError {
    if local.0.into_iter().all(|range| is_accessible(range, direction == Direction::Read)) {
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
    let at = LocalBytes::new((&raw mut seen) as u64, 8);
    // SAFETY: the local memory of each copy is the eight bytes of `seen`.
    let worked = unsafe {
        copy(Direction::Read, pid, at, address).is_ok()
            && seen == value
            && copy(Direction::Write, pid, at, second).is_ok()
            && {
                seen = 0;
                copy(Direction::Read, pid, at, second).is_ok()
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
        let copy = |direction, local, remote| unsafe { copy(direction, pid, LocalBytes::new(local, 1000), remote) };
        assert_eq!(copy(Direction::Write, from, to), Ok(()));
        assert_eq!(sink, source);
        assert_eq!(copy(Direction::Write, from, 8), Err(CopyError::RemoteMemory));
        assert_eq!(copy(Direction::Read, 8, from), Err(CopyError::LocalMemory));
    }
}
