//! Rights of a registration: the range, the protection domain and the access rights of a key; and the guard of a copy
//! that uses it.
//!
//! A provider's table has an address, a length and one word per key. The word has the rights in its lower half and the
//! protection domain in its upper half.
#![forbid(unsafe_code)]

use dapl::provider::{Access, Region, Status};
use dapl::runtime::sync::{AtomicU32, Ordering};

const LOCAL_WRITE: u64 = 1;
const REMOTE_READ: u64 = 2;
const REMOTE_WRITE: u64 = 4;
/// Local segments may use the key. Windows lack this right.
pub const LOCAL: u64 = 8;
/// Peers may map the memory of the key.
pub const EXPORTED: u64 = 16;
const REMOTE_ATOMIC: u64 = 32;

/// A right that a copy needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessRight {
    /// Reads by local segments. Each registration grants it; windows do not.
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    /// Also granted by the rights to read and to write together.
    RemoteAtomic,
}

impl AccessRight {
    /// The right that a local segment needs.
    pub fn local(write: bool) -> Self {
        if write { AccessRight::LocalWrite } else { AccessRight::LocalRead }
    }

    /// The right that an access by a peer needs.
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

    /// Status of a work request that fails because this right is missing.
    pub fn refusal(self) -> Status {
        match self {
            AccessRight::LocalRead | AccessRight::LocalWrite => Status::LocalProtection,
            AccessRight::RemoteRead | AccessRight::RemoteWrite | AccessRight::RemoteAtomic => Status::RemoteAccess,
        }
    }
}

/// The word of a table entry; `more`: [`LOCAL`], [`EXPORTED`].
pub fn word(access: Access, pd: u32, more: u64) -> u64 {
    let bit = |granted, right| if granted { right } else { 0 };
    let remote = bit(access.remote_read, REMOTE_READ) | bit(access.remote_write, REMOTE_WRITE);
    let remote = remote | bit(access.allows_atomics(), REMOTE_ATOMIC);
    u64::from(pd) << 32 | bit(access.local_write, LOCAL_WRITE) | remote | more
}

/// The table entry of a live key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyEntry {
    /// The registered range, or the range of the window.
    pub region: Region,
    /// Rights and protection domain.
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

    /// Whether all of `range` may be used with this right in the domain.
    #[inline]
    pub fn allows(&self, pd: u32, range: Region, right: AccessRight) -> bool {
        // Below the base the offset wraps and is larger than any length.
        let offset = range.address.wrapping_sub(self.region.address);
        let is_inside = self.region.length.checked_sub(range.length).is_some_and(|most| offset <= most);
        // Domain and rights in one comparison.
        let (domain, bits) = (u64::from(pd) << 32, right.bits());
        is_inside && self.word & (u64::from(u32::MAX) << 32 | bits) == domain | bits
    }
}

/// A reference on a registration; deregistration waits until it is dropped.
#[derive(Debug)]
pub struct RegistrationGuard<'a>(&'a AtomicU32);

impl<'a> RegistrationGuard<'a> {
    /// Takes a reference. The caller checks the key afterwards, behind `fence_behind_rmw`.
    #[inline]
    pub fn new(users: &'a AtomicU32) -> Self {
        users.fetch_add(1, Ordering::SeqCst);
        RegistrationGuard(users)
    }

    /// Keeps the reference beyond this guard, until [`RegistrationGuard::resume`].
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
