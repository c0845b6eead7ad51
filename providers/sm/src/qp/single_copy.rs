//! Copies one piece between registered memory of this process and of a peer by a single copy: by the kernel, or through
//! a mapping.
//!
//! Both registrations are checked before the copy and marked in use during it. After the copy, the peer's registration
//! is checked again, because it may have ended. If the kernel refuses a method, the method is disabled for all
//! connections to that peer.

use std::sync::atomic::Ordering;

use dapl::provider::{Segment, Status};
use dapl::runtime::sync::AtomicU64;
use dapl_software::memory::atomic::Atomic;
use dapl_software::memory::rights::AccessRight;
use dapl_software::memory::scatter_gather::LocalMemory;
use dapl_software::memory::user_copy;

use crate::memory::cma::{self, CopyError, Direction};
use crate::memory::kernel_copy;
use crate::memory::mapped::Mapped;
use crate::memory::regions::{Regions, Target};
use crate::qp::link::Peer;

/// The method of a copy.
#[derive(Clone, Copy)]
pub(crate) enum CopyMethod<'a> {
    /// This process copies through its mapping of the peer's memory.
    Mapping(&'a Mapped),
    Kernel,
}

/// Copies between the local piece, in the protection domain `pd`, and the target of the same length. `busy`: the
/// caller's word that announces the copy to the peer.
pub(crate) fn copy(
    regions: &Regions,
    peer: &Peer,
    busy: &AtomicU64,
    direction: Direction,
    (mine, pd): (Segment, u32),
    target: &Target,
    method: CopyMethod<'_>,
) -> Result<(), CopyError> {
    let right = AccessRight::local(direction == Direction::Read);
    let _hold = regions.hold(mine.key, pd, mine.address, mine.length, right).map_err(|_| CopyError::LocalMemory)?;
    // SAFETY: the reference taken above keeps the registration during the copy.
    unsafe { copy_held(regions, peer, busy, direction, &mine, target, method) }
}

/// Copies like [`copy`], without a reference on the local registration.
///
/// # Safety The call must be part of a post that is announced (`SendWr::announced`). A deregistration waits for such
/// posts.
#[inline(always)]
pub(crate) unsafe fn copy_announced(
    regions: &Regions,
    peer: &Peer,
    busy: &AtomicU64,
    direction: Direction,
    (mine, pd): (Segment, u32),
    target: &Target,
    method: CopyMethod<'_>,
) -> Result<(), CopyError> {
    if !regions.allows_piece(pd, &mine, direction == Direction::Read) {
        return Err(CopyError::LocalMemory);
    }
    // SAFETY: by this function's contract, the memory stays registered during the copy.
    unsafe { copy_held(regions, peer, busy, direction, &mine, target, method) }
}

/// # Safety The local piece is registered for this access until the copy has ended.
#[inline(always)]
unsafe fn copy_held(
    regions: &Regions,
    peer: &Peer,
    busy: &AtomicU64,
    direction: Direction,
    mine: &Segment,
    target: &Target,
    method: CopyMethod<'_>,
) -> Result<(), CopyError> {
    if mine.length != target.length || mine.length > cma::CHUNK as u64 {
        return Err(CopyError::LocalMemory);
    }
    let announced = peer.regions.announce(busy, target).map_err(|_| CopyError::RemoteMemory)?;
    fail_point!(KeyAnnounced);
    #[cfg(test)]
    if matches!(method, CopyMethod::Kernel) && peer.is_denied() {
        return Err(denied(peer));
    }
    // SAFETY: this function's own contract.
    let copied = unsafe {
        match method {
            CopyMethod::Mapping(mapped) => copy_here(regions, direction, mapped, mine, target.address),
            CopyMethod::Kernel if !peer.is_alive(&regions.ticker) => Err(CopyError::PeerExited),
            CopyMethod::Kernel => kernel_copy::copy(regions, peer, direction, mine, target),
        }
    };
    fail_point!(PieceCopied);
    drop(announced);
    match copied {
        Ok(()) if !peer.regions.is_live(target.key) => Err(CopyError::RemoteMemory),
        Err(CopyError::Denied) => Err(denied(peer)),
        other => other,
    }
}

/// Executes an atomic operation on memory of the peer that is mapped in this process. Returns the previous value.
/// `busy`: as in [`copy`].
pub(crate) fn apply(
    peer: &Peer,
    busy: &AtomicU64,
    mapped: &Mapped,
    target: &Target,
    operation: Atomic,
) -> Result<u64, Status> {
    let announced = peer.regions.announce(busy, target)?;
    fail_point!(KeyAnnounced);
    // The peer's description of the region may be invalid, so it is checked.
    let place =
        mapped.place(target.address, target.length, true).filter(|place| Atomic::is_aligned(place.addr() as u64));
    let place = place.ok_or(Status::RemoteAccess)?;
    // SAFETY: the `ATOMIC_SIZE` bytes are aligned, and in a writable mapping that never shrinks.
    let found = unsafe { operation.apply(place) };
    fail_point!(PieceCopied);
    drop(announced);
    if peer.regions.is_live(target.key) { Ok(found) } else { Err(Status::RemoteAccess) }
}

#[cold]
fn denied(peer: &Peer) -> CopyError {
    log::info!(
        "cross-memory attach to process {} was refused; using shared buffers (check kernel.yama.ptrace_scope)",
        peer.pid
    );
    peer.cma.store(false, Ordering::Relaxed);
    CopyError::Denied
}

/// Copies through a mapping. Errors: `Fault` if the mapping does not contain the range, `Here` if local memory is
/// unmapped.
///
/// # Safety The piece is registered memory that is marked in use. For `Read` it is writable.
#[inline(always)]
unsafe fn copy_here(
    regions: &Regions,
    direction: Direction,
    mapped: &Mapped,
    piece: &Segment,
    address: u64,
) -> Result<(), CopyError> {
    let there = mapped.place(address, piece.length, direction == Direction::Write).ok_or(CopyError::RemoteMemory)?;
    let (here, length) = (piece.address, piece.length as usize);
    let registration = || regions.registration(piece.key);
    // SAFETY: the peer's bytes are in a mapping that never shrinks, and that is writable for `Write`. The local bytes
    // are valid by this function's contract.
    let is_copied = unsafe {
        match direction {
            // Programs poll the last byte of a write, so it is written last.
            Direction::Write => user_copy::read_in_order(here, there, length, registration),
            Direction::Read => user_copy::write(there, here, length, registration),
        }
    };
    if is_copied { Ok(()) } else { Err(CopyError::LocalMemory) }
}
