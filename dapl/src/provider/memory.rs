//! Provider interface for memory: protection domains, registration, access rights, groups of processes that share
//! memory, and memory windows.

use std::any::Any;
use std::sync::Arc;

use super::Token;
use crate::error::{Error, Result};

/// An address range of this process.
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
    /// Peers may use atomic operations. The rights to read and to write together also allow atomic operations (see
    /// [`Access::allows_atomics`]).
    pub remote_atomic: bool,
    /// Peers address the memory by the offset from the start of the registration or of the bound part, not by its
    /// address in this process.
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

/// Protection domains, registered memory, shared memory, and memory windows of an adapter.
pub trait MemoryProvider: Send + Sync + 'static {
    /// Whether `alloc_mw_for_qp` is implemented.
    const HAS_QP_WINDOWS: bool = false;
    /// Whether registrations and binds may set [`Access::zero_based`].
    const HAS_ZERO_BASED: bool = false;

    /// Protection domain.
    type Pd: Send + Sync;
    /// Registered memory. Dropping it deregisters the memory; no transfer accesses the memory afterwards.
    type Mr: MemoryRegion;
    /// Memory window.
    type Mw: MemoryWindow;
    /// Membership of this process in the group that shares memory under one cookie. Dropping the last membership
    /// removes the entry of the group.
    type Membership: Send + Sync;

    /// Creates a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Registers `region`. Errors: `InvalidParameter(3)` if the region is not mapped.
    fn register(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr>;

    /// Like `register`, for a region that consumers register as shared memory. A provider may export the file or
    /// segment behind the mapping to its peers. Their transfers then access that file or segment, as hardware does,
    /// even if other memory is mapped at the address later.
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
    /// Errors: `ModelNotSupported` by default.
    fn alloc_mw_for_qp(&self, _pd: &Self::Pd) -> Result<Self::Mw> {
        Err(Error::ModelNotSupported)
    }
}

/// A registered region.
pub trait MemoryRegion: Send + Sync {
    /// Key in local segments; never 0.
    fn local_key(&self) -> u32;
    /// Key that peers use; 0 if they have no access rights.
    fn remote_key(&self) -> u32;
}

/// The consumer's name of shared memory: 40 bytes, compared bytewise.
pub type SharedCookie = [u8; 40];

/// A window onto a part of a registered region, with its own remote key. It is unbound at first. Dropping it unbinds it
/// at once; afterwards no transfer of a peer accesses the memory by the window's key.
pub trait MemoryWindow: Send + Sync {
    /// Whether the last accepted bind is in force. False if the bind failed or was flushed, or if the window was
    /// unbound since.
    fn is_bound(&self) -> bool;
}

/// A reference to an object of the object layer. The provider drops it when it no longer needs the object.
pub type KeptObject = Arc<dyn Any + Send + Sync>;

/// Parameters of a bind. The remote rights may exceed those of the region.
pub struct Bind<'a, Mr> {
    /// The registration that is bound.
    pub mr: &'a Mr,
    /// The bound part of the registration.
    pub region: Region,
    /// Rights granted to the peer.
    pub access: Access,
    /// Keeps the registration alive. Dropped when the window is bound again, unbound or dropped, or when the bind fails
    /// or is flushed.
    pub kept: KeptObject,
}

/// A request to bind or unbind a window. Work posted later starts after the bind is complete.
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    /// Returned with the completion.
    pub token: Token,
    /// Suppresses the completion of a successful bind.
    pub suppress: bool,
    /// Delays the bind until all earlier reads and atomic operations of this QP are complete.
    pub fence: bool,
}
