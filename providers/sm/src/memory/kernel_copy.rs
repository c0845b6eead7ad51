//! Selects the kernel method for copies between local memory and a peer's memory.
//!
//! KNEM is used if the peer has declared its memory to the KNEM device, otherwise cross-memory attach. If the kernel
//! refuses a method, it is not tried with this peer again. `regions` has checked the right to copy.

use std::sync::atomic::Ordering;

use dapl::provider::Segment;

use crate::memory::cma::{self, CopyError, Direction};
use crate::memory::regions::{Regions, Target};
use crate::qp::link::Peer;

/// Whether a kernel method can access the peer's memory with this key.
#[inline]
pub(crate) fn reaches(peer: &Peer, key: u32) -> bool {
    peer.cma.load(Ordering::Relaxed) || peer.knem.load(Ordering::Relaxed) && peer.regions.exported(key).is_some()
}

/// Copies a whole piece.
///
/// # Safety This call may read the mapped part of the piece, and for `Read` write it.
#[inline]
pub(crate) unsafe fn copy(
    regions: &Regions,
    peer: &Peer,
    direction: Direction,
    piece: &Segment,
    target: &Target,
) -> Result<(), CopyError> {
    if peer.knem.load(Ordering::Relaxed)
        && let Some(knem) = regions.knem()
        && let Some((exported, offset)) = peer.regions.exported(target.key).zip(peer.regions.offset(target))
    {
        // SAFETY: this function's own contract.
        match unsafe { knem.copy(direction, piece.address, exported, offset, piece.length as usize) } {
            Err(CopyError::Denied) if peer.regions.allows(target) => {
                log::info!("a copy through KNEM to process {} was refused, using other copy methods", peer.pid);
                peer.knem.store(false, Ordering::Relaxed);
            }
            // The owner of the memory has ended the registration meanwhile.
            Err(CopyError::Denied) => return Err(CopyError::RemoteMemory),
            done => return done,
        }
    }
    if !peer.cma.load(Ordering::Relaxed) {
        return Err(CopyError::Denied);
    }
    // SAFETY: this function's own contract.
    unsafe { cma::copy(direction, peer.pid, piece.address, target.address, piece.length as usize) }
}
