//! Checks of keys: range, protection domain and access rights. Also the guard that keeps a registration alive during a
//! copy.
//!
//! A provider's table has an address, a length and one 64-bit word per key. The lower 32 bits of the word are the
//! access rights. The upper 32 bits are the protection domain or, for a window that only the peer of one queue pair may
//! use, the number of this queue pair.
#![forbid(unsafe_code)]

use dapl::provider::{Access, Region, Status};
use dapl::runtime::sync::{AtomicU32, Ordering};

const LOCAL_WRITE: u64 = 1;
const REMOTE_READ: u64 = 2;
const REMOTE_WRITE: u64 = 4;
/// Right of local segments to use the key. Keys of windows lack this right.
pub const LOCAL: u64 = 8;
/// Right of peers to map the memory of the key into their own process.
pub const EXPORTED: u64 = 16;
const REMOTE_ATOMIC: u64 = 32;
const REMOTE: u64 = REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;

/// Shift of the remote rights of zero-based memory, whose addresses start at 0 for peers.
///
/// The remote rights of zero-based memory, and of windows of one queue pair, are in other bits than those of other
/// memory. So [`KeyEntry::allows`], the usual check of a copy, refuses peers that use such keys. The process that owns
/// the memory then checks these bits by [`KeyEntry::resolve`].
const ZERO_BASED: u32 = 8;
/// Shift of the remote rights of a window that only the peer of one queue pair may use. The upper 32 bits of its word
/// are the number of that queue pair ([`super::window::QpDomain`]) instead of a protection domain.
const OF_QP: u32 = 16;

/// A right that a copy needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessRight {
    /// Reads from local segments. Each registration grants this right. Windows do not.
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    /// Atomic operations of peers. Granted explicitly, or by the rights to read and to write together.
    RemoteAtomic,
}

impl AccessRight {
    /// Returns the right that a local segment needs, to write into it if `write` is true.
    pub fn local(write: bool) -> Self {
        if write { AccessRight::LocalWrite } else { AccessRight::LocalRead }
    }

    /// Returns the right that an RDMA read or write by a peer needs.
    pub fn remote(write: bool) -> Self {
        if write { AccessRight::RemoteWrite } else { AccessRight::RemoteRead }
    }

    fn bits(self) -> u64 {
        match self {
            AccessRight::LocalRead => LOCAL,
            AccessRight::LocalWrite => LOCAL | LOCAL_WRITE,
            AccessRight::RemoteRead => REMOTE_READ,
            AccessRight::RemoteWrite => REMOTE_WRITE,
            AccessRight::RemoteAtomic => REMOTE_ATOMIC,
        }
    }

    /// Returns the status of a work request that fails because this right is missing.
    pub fn refusal(self) -> Status {
        match self {
            AccessRight::LocalRead | AccessRight::LocalWrite => Status::LocalProtection,
            AccessRight::RemoteRead | AccessRight::RemoteWrite | AccessRight::RemoteAtomic => Status::RemoteAccess,
        }
    }
}

/// Which peers may access a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Domain {
    /// The peers of all queue pairs of this protection domain.
    Pd(u32),
    /// Only the peer of the queue pair with this number ([`super::window::QpDomain`]).
    Qp(u32),
}

/// Returns the word of a registration's table entry. `more`: [`LOCAL`] and [`EXPORTED`] as far as they apply, or 0.
pub fn word(access: Access, pd: u32, more: u64) -> u64 {
    let bit = |granted, right| if granted { right } else { 0 };
    let shift = if access.zero_based { ZERO_BASED } else { 0 };
    u64::from(pd) << 32 | bit(access.local_write, LOCAL_WRITE) | remote_rights(access) << shift | more
}

/// Returns the word of a window's table entry. A window grants no local rights.
pub fn window_word(access: Access, domain: Domain) -> u64 {
    let access = Access { local_write: false, ..access };
    match domain {
        Domain::Pd(pd) => word(access, pd, 0),
        Domain::Qp(number) => {
            let shift = OF_QP + if access.zero_based { ZERO_BASED } else { 0 };
            u64::from(number) << 32 | remote_rights(access) << shift
        }
    }
}

fn remote_rights(access: Access) -> u64 {
    let bit = |granted, right| if granted { right } else { 0 };
    bit(access.remote_read, REMOTE_READ)
        | bit(access.remote_write, REMOTE_WRITE)
        | bit(access.allows_atomics(), REMOTE_ATOMIC)
}

/// The identifiers of a queue pair for checks of its peer's accesses: its protection domain and its number
/// ([`super::window::QpDomain`]).
#[derive(Clone, Copy, Debug)]
pub struct PeerIds {
    pub pd: u32,
    pub qp: u32,
}

/// The table entry of a valid key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyEntry {
    /// The registered range, or the range of the window.
    pub region: Region,
    /// Access rights, and the protection domain or the number of a queue pair (see the head of this module).
    pub word: u64,
}

impl KeyEntry {
    pub fn pd(&self) -> u32 {
        (self.word >> 32) as u32
    }

    /// Whether peers may map the memory behind the key.
    pub fn is_exported(&self) -> bool {
        self.word & EXPORTED != 0
    }

    /// Whether the key has this right.
    #[inline]
    pub fn grants(&self, right: AccessRight) -> bool {
        self.word & right.bits() == right.bits()
    }

    /// Whether the key gives peers access to zero-based memory, or belongs to a window of one queue pair. Only the
    /// process that owns the memory can check and translate an access with such a key ([`KeyEntry::resolve`]).
    #[cold]
    pub fn is_indirect(&self) -> bool {
        self.word & (REMOTE << ZERO_BASED | REMOTE << OF_QP | REMOTE << (OF_QP + ZERO_BASED)) != 0
    }

    /// Whether only the peer of one queue pair may use the key.
    pub(crate) fn serves_one_qp(&self) -> bool {
        self.word & (REMOTE << OF_QP | REMOTE << (OF_QP + ZERO_BASED)) != 0
    }

    /// Returns the entry with the addresses that peers use. For zero-based memory, these begin at 0, and the rights
    /// move to the usual bits.
    pub(crate) fn with_peer_addresses(self) -> Self {
        match self.word >> ZERO_BASED & REMOTE {
            0 => self,
            rights => KeyEntry {
                region: Region { address: 0, ..self.region },
                word: self.word & !(REMOTE << ZERO_BASED) | rights,
            },
        }
    }

    /// Translates a range in the peer's addresses to the address in this process, for an entry that
    /// [`is_indirect`](KeyEntry::is_indirect). Returns `None` if the peer may not use all of the range with this right.
    /// `qp` is the number of the queue pair ([`super::window::QpDomain`]), or 0.
    #[cold]
    pub fn resolve(&self, pd: u32, qp: u32, range: Region, right: AccessRight) -> Option<u64> {
        for (shift, domain) in [(ZERO_BASED, pd), (OF_QP, qp), (OF_QP + ZERO_BASED, qp)] {
            let bits = (right.bits() & REMOTE) << shift;
            if bits == 0 || self.word & bits != bits {
                continue;
            }
            let is_zero_based = shift != OF_QP;
            let address = if is_zero_based { self.region.address.checked_add(range.address)? } else { range.address };
            let offset = address.wrapping_sub(self.region.address);
            let is_inside = self.region.length.checked_sub(range.length).is_some_and(|max| offset <= max);
            return (is_inside && domain == self.pd() && (shift == ZERO_BASED || qp != 0)).then_some(address);
        }
        None
    }

    /// Returns the address in this process if the key grants the peer of the queue pair with these `ids` this right for
    /// all of `range`.
    #[inline]
    pub fn address_for_peer(&self, ids: PeerIds, range: Region, right: AccessRight) -> Option<u64> {
        if self.allows(ids.pd, range, right) {
            return Some(range.address);
        }
        self.resolve(ids.pd, ids.qp, range, right)
    }

    /// Whether the key grants this right for all of `range` in the protection domain `pd`. Returns false for remote
    /// rights on zero-based memory and on windows of one queue pair.
    #[inline]
    pub fn allows(&self, pd: u32, range: Region, right: AccessRight) -> bool {
        // An address below the base gives an offset that wraps, and is larger than any length.
        let offset = range.address.wrapping_sub(self.region.address);
        let is_inside = self.region.length.checked_sub(range.length).is_some_and(|max| offset <= max);
        // One comparison checks domain and rights.
        let (domain, bits) = (u64::from(pd) << 32, right.bits());
        is_inside && self.word & (u64::from(u32::MAX) << 32 | bits) == domain | bits
    }
}

/// A reference on a registration. Deregistration waits until the guard is dropped.
pub struct RegistrationGuard<'a>(&'a AtomicU32);

impl<'a> RegistrationGuard<'a> {
    /// Takes a reference. The caller must then call `fence_behind_rmw` and check the key. Deregistration first revokes
    /// the key and then checks for references. So either the caller finds the key revoked, or deregistration finds the
    /// reference and waits.
    #[inline]
    pub fn new(users: &'a AtomicU32) -> Self {
        users.fetch_add(1, Ordering::SeqCst);
        RegistrationGuard(users)
    }

    /// Drops the guard and keeps the reference, which [`RegistrationGuard::resume`] takes over.
    pub fn suspend(self) {
        std::mem::forget(self);
    }

    /// Returns the guard of a reference that [`RegistrationGuard::suspend`] kept.
    pub fn resume(users: &'a AtomicU32) -> Self {
        RegistrationGuard(users)
    }
}

impl Drop for RegistrationGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1000;
    const READ: Access =
        Access { local_write: true, remote_read: true, remote_write: false, remote_atomic: false, zero_based: false };
    const ZERO: Access = Access { zero_based: true, ..READ };

    fn entry(word: u64) -> KeyEntry {
        KeyEntry { region: Region { address: BASE, length: 100 }, word }
    }

    fn at(address: u64, length: u64) -> Region {
        Region { address, length }
    }

    #[test]
    fn key_of_plain_memory_is_direct_and_resolve_returns_none() {
        let plain = entry(word(READ, 7, LOCAL));
        assert!(plain.allows(7, at(BASE, 100), AccessRight::RemoteRead) && !plain.is_indirect());
        assert_eq!(plain.resolve(7, 7, at(BASE, 100), AccessRight::RemoteRead), None);
        assert_eq!(plain.resolve(7, 7, at(0, 100), AccessRight::RemoteRead), None);
    }

    #[test]
    fn peers_address_zero_based_memory_by_offset() {
        let zero = entry(word(ZERO, 7, LOCAL));
        assert!(zero.is_indirect());
        let of = |pd, range, right| zero.resolve(pd, 0, range, right);
        assert_eq!(of(7, at(0, 100), AccessRight::RemoteRead), Some(BASE));
        assert_eq!(of(7, at(99, 1), AccessRight::RemoteRead), Some(BASE + 99));
        assert_eq!(of(7, at(100, 0), AccessRight::RemoteRead), Some(BASE + 100));
        for outside in [at(1, 100), at(101, 0), at(BASE, 1), at(u64::MAX, 1), at(0, u64::MAX)] {
            assert_eq!(of(7, outside, AccessRight::RemoteRead), None, "{outside:?}");
        }
        assert_eq!(of(7, at(0, 1), AccessRight::RemoteWrite), None);
        assert_eq!(of(8, at(0, 1), AccessRight::RemoteRead), None);
        // Local segments use addresses of this process.
        assert!(zero.allows(7, at(BASE, 100), AccessRight::LocalWrite));
        assert!(!zero.allows(7, at(BASE, 100), AccessRight::RemoteRead), "a peer must use an offset");
    }

    #[test]
    fn window_bound_on_a_queue_pair_serves_only_its_peer() {
        for access in [READ, ZERO] {
            let window = entry(window_word(access, Domain::Qp(7)));
            let first = if access.zero_based { 0 } else { BASE };
            let of = |pd, qp| window.resolve(pd, qp, at(first, 100), AccessRight::RemoteRead);
            assert!(window.is_indirect());
            assert_eq!((of(9, 7), of(7, 8), of(7, 0)), (Some(BASE), None, None));
            assert!(!window.allows(7, at(BASE, 100), AccessRight::RemoteRead));
            assert!(!window.allows(7, at(BASE, 1), AccessRight::LocalRead));
        }
        let unassigned = entry(window_word(READ, Domain::Qp(0)));
        assert_eq!(unassigned.resolve(0, 0, at(BASE, 1), AccessRight::RemoteRead), None);
    }

    #[test]
    fn resolve_refuses_local_rights_on_indirect_keys() {
        for word in [word(ZERO, 7, LOCAL), window_word(ZERO, Domain::Qp(7))] {
            assert_eq!(entry(word).resolve(7, 7, at(0, 1), AccessRight::LocalRead), None);
            assert_eq!(entry(word).resolve(7, 7, at(0, 1), AccessRight::LocalWrite), None);
        }
    }
}
