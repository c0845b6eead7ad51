//! Provider interface for memory: registration, access rights, memory windows.

use std::any::Any;
use std::sync::Arc;

use super::Token;
use crate::error::{Error, Result};

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Region {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes; `address + length` does not wrap.
    pub length: u64,
}

/// Access rights of registered memory. Local reads are always allowed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    /// Atomic operations of peers. Memory that peers may both read and write permits them too, unless the device
    /// decides otherwise.
    pub remote_atomic: bool,
    /// Peers address the memory from 0, not by its address in this process.
    pub zero_based: bool,
}

impl Access {
    /// Whether peers may use atomic operations: they have the right to atomic operations, or the rights to read and to
    /// write.
    pub fn allows_atomics(self) -> bool {
        self.remote_atomic || self.remote_read && self.remote_write
    }

    /// Whether this process must be able to write the memory, for local segments or for peers.
    pub fn writes(self) -> bool {
        self.local_write || self.remote_write || self.remote_atomic
    }

    /// Whether peers have any access.
    pub fn is_remote(self) -> bool {
        self.remote_read || self.remote_write || self.remote_atomic
    }
}

/// Protection domains, registered and shared memory, and windows of an adapter.
pub trait MemoryProvider: Send + Sync + 'static {
    /// `alloc_mw_for_qp` is implemented.
    const HAS_QP_WINDOWS: bool = false;
    /// Registrations and binds may have [`Access::zero_based`].
    const HAS_ZERO_BASED: bool = false;

    /// Protection domain.
    type Pd: Send + Sync;
    /// Registered memory. Dropping it deregisters the memory; no transfer accesses the memory afterwards.
    type Mr: MemoryRegion;
    /// Memory window.
    type Mw: MemoryWindow;
    /// Membership of a process in shared memory with a cookie. Dropping the last membership removes the entry.
    type Membership: Send + Sync;

    /// Creates a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Registers `region`. Errors: `InvalidParameter(3)` for memory that is not mapped.
    fn register(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr>;

    /// Like `register`, for memory that is mapped and registered as shared. A provider may export the underlying file
    /// or segment to its peers. Their transfers then access that object, as hardware does, even if the address is
    /// mapped to other memory later.
    fn register_shared(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr> {
        self.register(pd, region, access)
    }

    /// Joins the group of processes that registered shared memory under `cookie` with this provider. The first process
    /// creates the group's entry. The entry is not removed if a process exits without dropping its membership.
    ///
    /// Errors: `InvalidParameter(4)` if other processes registered another length; `ModelNotSupported` by default.
    fn join(&self, _cookie: &SharedCookie, _length: u64) -> Result<Self::Membership> {
        Err(Error::ModelNotSupported)
    }

    /// Creates an unbound window. Errors: `ModelNotSupported` by default.
    fn alloc_mw(&self, _pd: &Self::Pd) -> Result<Self::Mw> {
        Err(Error::ModelNotSupported)
    }

    /// Creates an unbound window. A bind restricts it to the peer of the QP to which the bind was posted.
    ///
    /// Errors: `ModelNotSupported`.
    fn alloc_mw_for_qp(&self, _pd: &Self::Pd) -> Result<Self::Mw> {
        Err(Error::ModelNotSupported)
    }
}

/// Registered memory.
pub trait MemoryRegion: Send + Sync {
    /// Key for local segments; never 0.
    fn local_key(&self) -> u32;
    /// Key for peers; 0 without remote rights.
    fn remote_key(&self) -> u32;
}

/// Name of shared memory: 40 bytes, compared bytewise.
pub type SharedCookie = [u8; 40];

/// A window onto a part of a registered region, with its own remote key. Initially unbound. Dropping it unbinds at
/// once; after that no transfer of a peer accesses the memory by its key.
pub trait MemoryWindow: Send + Sync {
    /// Whether the last accepted bind is in force: the window was not unbound, and the bind has not failed and was not
    /// flushed.
    fn is_bound(&self) -> bool;
}

/// A reference that the provider drops when it no longer needs the object.
pub type KeptObject = Arc<dyn Any + Send + Sync>;

/// Parameters of a bind. The remote rights may exceed those of the region.
pub struct Bind<'a, Mr> {
    /// The registration that is bound.
    pub mr: &'a Mr,
    /// The bound part of the registration.
    pub region: Region,
    /// Rights granted to the peer.
    pub access: Access,
    /// Keeps the registration alive. Dropped when the window is bound again or unbound, or when the bind fails or is
    /// flushed.
    pub kept: KeptObject,
}

/// A request to bind or unbind a window. Work posted later starts after the bind is complete.
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    /// Returned with the completion.
    pub token: Token,
    /// No completion on success.
    pub suppress: bool,
    /// Starts only after all earlier reads of this QP are complete.
    pub fence: bool,
}
