//! Selects the kernel method for copies between local memory and a peer's memory.
//!
//! KNEM copies if it is selected for this peer (`cm::peers`) and the peer has declared the memory to the KNEM device.
//! Otherwise cross-memory attach copies. If the kernel denies a method, the method is not used with this peer again.
//! The callers have checked the registrations.

use std::sync::atomic::Ordering;

use crate::memory::cma::{self, CopyError, Direction, LocalBytes};
use crate::memory::regions::{AccessTarget, Regions};
use crate::qp::link::PeerEndpoint;

/// Whether a kernel method can access the peer's memory with this key.
#[inline]
pub(crate) fn reaches(peer: &PeerEndpoint, key: u32) -> bool {
    peer.cma.load(Ordering::Relaxed) || peer.knem.load(Ordering::Relaxed) && peer.regions.exported(key).is_some()
}

/// Copies between local memory and the target, which has the same length.
///
/// # Safety
///
/// This process may read the bytes of `local`, and may also write them if `direction` is `Read`. They may be unmapped;
/// the copy then fails.
#[inline]
pub(crate) unsafe fn copy(
    regions: &Regions,
    peer: &PeerEndpoint,
    direction: Direction,
    local: LocalBytes,
    target: &AccessTarget,
) -> Result<(), CopyError> {
    if peer.knem.load(Ordering::Relaxed)
        && let Some(knem) = &regions.store.knem
        && let Some((exported, offset)) = peer.regions.exported(target.key).zip(peer.regions.offset(target))
    {
        // SAFETY: the caller guarantees that the bytes of `local` may be accessed (# Safety).
        match unsafe { knem.copy(direction, local, exported, offset) } {
            Err(CopyError::Denied) if peer.regions.allows(target) => {
                log::info!(
                    "/dev/knem denies a copy with process {}; RDMA uses other copy methods (man 7 dapl_sm)",
                    peer.pid
                );
                peer.knem.store(false, Ordering::Relaxed);
            }
            // The peer has revoked the registration during the copy, so the region does not exist any more.
            Err(CopyError::Denied) => return Err(CopyError::RemoteMemory),
            done => return done,
        }
    }
    if !peer.cma.load(Ordering::Relaxed) {
        return Err(CopyError::Denied);
    }
    // SAFETY: the caller guarantees that the bytes of `local` may be accessed (# Safety).
    unsafe { cma::copy(direction, peer.pid, local, target.address) }
}
