//! Copies one range between registered memory of this process and of a peer: by the kernel, or through a mapping. Also
//! executes atomic operations on memory of the peer that is mapped.
//!
//! The copying process checks both registrations before the copy, and a deregistration of either waits for the copy.
//! After the copy, the process checks the peer's registration again, because the peer may have revoked it. If the
//! kernel does not permit a method, the method is disabled for all connections to that peer.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use dapl::provider::{Region, Segment, Status};
use dapl::runtime::sync::AtomicU64;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::memory::user_copy;

use crate::memory::cma::{self, CopyError, Direction, LocalBytes};
use crate::memory::kernel_copy;
use crate::memory::mapped::PeerMapping;
use crate::memory::regions::{AccessTarget, Regions};
use crate::qp::link::{ConnectionMemory, PeerEndpoint, PeerSide};

#[derive(Clone, Copy)]
pub(crate) enum CopyMethod<'a> {
    /// This process copies through its mapping of the peer's memory.
    Mapping(&'a PeerMapping),
    Kernel,
    /// The kernel reads the peer's memory. The last bytes go to this buffer instead of the local segment.
    KernelWithTail(&'a Cell<Tail>),
}

impl CopyMethod<'_> {
    /// Returns the number of bytes that do not go to the local segment.
    #[inline(always)]
    fn tail_length(&self) -> u64 {
        if matches!(self, CopyMethod::KernelWithTail(_)) { size_of::<Tail>() as u64 } else { 0 }
    }
}

/// Buffer for the last bytes of a message. They are copied to the receive after all other bytes, because programs poll
/// them.
pub(crate) type Tail = [u8; 64];

/// A direction of a connection that copies, with what a copy needs.
#[derive(Clone, Copy)]
pub(crate) struct SingleCopy<'a> {
    regions: &'a Regions,
    /// The peer's segments and parameters.
    pub(crate) side: &'a PeerSide,
    /// The word on the local control page that announces a copy to the peer.
    announcement: &'a AtomicU64,
}

impl<'a> SingleCopy<'a> {
    /// Returns the send direction; `None` before the peer's segments are attached.
    #[inline(always)]
    pub(crate) fn by_sender(regions: &'a Regions, link: &'a ConnectionMemory) -> Option<Self> {
        Some(SingleCopy { regions, side: link.peer_side()?, announcement: link.announcement() })
    }

    /// Returns the receive direction; `None` before the peer's segments are attached.
    pub(crate) fn by_receiver(regions: &'a Regions, link: &'a ConnectionMemory) -> Option<Self> {
        Some(SingleCopy { regions, side: link.peer_side()?, announcement: link.fetch_announcement() })
    }

    /// Copies between the local segment, in the protection domain `pd`, and the target, which has the same length, or
    /// is longer by the tail.
    pub(crate) fn copy(
        &self,
        direction: Direction,
        (local, pd): (Segment, u32),
        target: &AccessTarget,
        method: CopyMethod<'_>,
    ) -> Result<(), CopyError> {
        let guard = self.regions.acquire_segment(pd, &local, direction == Direction::Read);
        let _guard = guard.map_err(|_| CopyError::LocalMemory)?;
        // SAFETY: `_guard` is a reference to the registration, so the local memory stays registered during the copy.
        unsafe { self.copy_acquired(direction, &local, target, method) }
    }

    /// Copies as [`Self::copy`] does, but takes no reference to the local registration.
    ///
    /// # Safety
    ///
    /// The call must be part of a post that is announced (`SendWr::announced`). A deregistration waits for such posts.
    #[inline(always)]
    pub(crate) unsafe fn copy_announced(
        &self,
        direction: Direction,
        (local, pd): (Segment, u32),
        target: &AccessTarget,
        method: CopyMethod<'_>,
    ) -> Result<(), CopyError> {
        if !self.regions.allows_segment(pd, &local, direction == Direction::Read) {
            return Err(CopyError::LocalMemory);
        }
        // SAFETY: the caller's post is announced, so a deregistration waits for this copy (# Safety).
        unsafe { self.copy_acquired(direction, &local, target, method) }
    }

    /// Copies between the address `at` of this process and the target by the kernel.
    ///
    /// # Safety
    ///
    /// At `at` are as many bytes as the target has. This call may read them, and may also write them if `direction` is
    /// `Read`. If they are memory of the consumer, they stay registered for this access until the call returns.
    pub(crate) unsafe fn copy_buffer(
        &self,
        direction: Direction,
        at: u64,
        target: &AccessTarget,
    ) -> Result<(), CopyError> {
        let local = Segment { key: 0, pad: 0, address: at, length: target.length };
        // SAFETY: the caller guarantees the access to the bytes (# Safety).
        unsafe { self.copy_acquired(direction, &local, target, CopyMethod::Kernel) }
    }

    /// Copies as [`Self::copy`] does, without a check of the local segment.
    ///
    /// # Safety
    ///
    /// The local segment must be registered for this access until the copy has ended.
    #[inline(always)]
    unsafe fn copy_acquired(
        &self,
        direction: Direction,
        local: &Segment,
        target: &AccessTarget,
        method: CopyMethod<'_>,
    ) -> Result<(), CopyError> {
        let (regions, peer) = (self.regions, &*self.side.peer);
        if local.length + method.tail_length() != target.length || local.length > cma::CHUNK as u64 {
            return Err(CopyError::LocalMemory);
        }
        let announced = peer.regions.announce(self.announcement, target).map_err(|_| CopyError::RemoteMemory)?;
        fail_point!(KeyAnnounced);
        #[cfg(test)]
        if !matches!(method, CopyMethod::Mapping(_)) && peer.is_denied() {
            return Err(denied(peer));
        }
        let Segment { address, length, .. } = *local;
        let bytes = match method {
            CopyMethod::KernelWithTail(tail) => {
                let tail = Region { address: tail.as_ptr().addr() as u64, length: method.tail_length() };
                LocalBytes([Region { address, length }, tail])
            }
            CopyMethod::Mapping(_) | CopyMethod::Kernel => LocalBytes::new(address, length),
        };
        // SAFETY: the caller guarantees that the local segment is registered during the copy (# Safety). The buffer for the
        // tail is written only if the direction is `Read`.
        let copied = unsafe {
            match method {
                CopyMethod::Mapping(mapped) => copy_through_mapping(regions, direction, mapped, local, target.address),
                _ if !peer.is_alive(&regions.store.ticker) => Err(CopyError::PeerExited),
                CopyMethod::Kernel | CopyMethod::KernelWithTail(_) => {
                    kernel_copy::copy(regions, peer, direction, bytes, target)
                }
            }
        };
        fail_point!(SegmentCopied);
        drop(announced);
        match copied {
            Ok(()) if !peer.regions.is_live(target.key) => Err(CopyError::RemoteMemory),
            Err(CopyError::Denied) => Err(denied(peer)),
            other => other,
        }
    }

    /// Executes an atomic operation on memory of the peer that is mapped in this process. Returns the previous value.
    pub(crate) fn apply(&self, mapped: &PeerMapping, target: &AccessTarget, operation: Atomic) -> Result<u64, Status> {
        let peer = &self.side.peer;
        let announced = peer.regions.announce(self.announcement, target)?;
        fail_point!(KeyAnnounced);
        // The peer may have sent an invalid description of the region, so the address is checked against the mapping.
        let word = mapped
            .local_address(target.address, target.length, true)
            .filter(|word| Atomic::is_aligned(word.addr() as u64));
        let word = word.ok_or(Status::RemoteAccess)?;
        // SAFETY: the `ATOMIC_SIZE` bytes are aligned, and in a writable mapping that never shrinks.
        let found = unsafe { operation.apply(word) };
        fail_point!(SegmentCopied);
        drop(announced);
        if peer.regions.is_live(target.key) { Ok(found) } else { Err(Status::RemoteAccess) }
    }
}

#[cold]
fn denied(peer: &PeerEndpoint) -> CopyError {
    if let Some(line) = disable_cma(&peer.cma, peer.pid) {
        log::info!("{line}");
    }
    CopyError::Denied
}

/// Disables cross-memory attach after a denied copy, and returns the line to log. `None`: it was disabled already, so
/// the KNEM device has denied the copy, which `kernel_copy` has logged.
fn disable_cma(cma: &AtomicBool, pid: i32) -> Option<String> {
    cma.swap(false, Ordering::Relaxed).then(|| {
        format!(
            "the kernel denies cross-memory attach to process {pid}, so data is copied twice through shared buffers; \
             datinfo doctor shows the cause (if Yama's ptrace_scope is 1, set cma=open in that process)"
        )
    })
}

/// Copies through a mapping of the peer's memory. Errors: `RemoteMemory` if the mapping does not contain the range,
/// `LocalMemory` if local memory is not mapped.
///
/// # Safety
///
/// The local segment must be registered until the call returns, for local write access if `direction` is `Read`.
#[inline(always)]
unsafe fn copy_through_mapping(
    regions: &Regions,
    direction: Direction,
    mapped: &PeerMapping,
    segment: &Segment,
    address: u64,
) -> Result<(), CopyError> {
    let there =
        mapped.local_address(address, segment.length, direction == Direction::Write).ok_or(CopyError::RemoteMemory)?;
    let (here, length) = (segment.address, segment.length as usize);
    let registration = || regions.registration(segment.key);
    // SAFETY: the peer's bytes are in a mapping that never shrinks, and that is writable for `Write`. The caller
    // guarantees that the local bytes stay registered (# Safety).
    let is_copied = unsafe {
        match direction {
            // Programs poll the last byte of a write, so it is written last.
            Direction::Write => user_copy::read_in_order(here, there, length, registration),
            Direction::Read => user_copy::write(there, here, length, registration),
        }
    };
    if is_copied { Ok(()) } else { Err(CopyError::LocalMemory) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_denied_copy_is_attributed_to_cross_memory_attach() {
        let cma = AtomicBool::new(true);
        assert!(disable_cma(&cma, 4711).is_some_and(|line| line.contains("cross-memory attach to process 4711")));
        assert_eq!(disable_cma(&cma, 4711), None, "only the KNEM device was used");
    }
}
