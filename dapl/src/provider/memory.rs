//! Memory as a provider knows it: what is registered, what may be done with it, and windows onto it.
//!
//! Types and traits only.

use std::any::Any;
use std::sync::Arc;

use super::Token;
use crate::error::Result;

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Region {
    /// First byte.
    pub address: u64,
    /// Bytes; `address + length` does not wrap.
    pub length: u64,
}

/// What may be done with registered memory. Local reading always may.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Access {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
}

/// Protection domains, registered and shared memory, and windows of an adapter.
pub trait MemoryProvider: Send + Sync + 'static {
    /// Protection domain.
    type Pd: Send + Sync;
    /// Registered memory; dropping it deregisters, and after that no transfer touches the memory.
    type Mr: MemoryRegion;
    /// Memory window.
    type Mw: MemoryWindow;
    /// A registration of shared memory under a cookie; dropping it leaves, and the last one out cleans up.
    type Membership: Send + Sync;

    /// A new protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Registers `region`. Errors: `InvalidParameter(3)` for memory that is not there.
    fn register(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr>;

    /// As `register`, of memory that is mapped as shared and registered as such: a transport may pass on to its peers what is
    /// behind it, and their transfers then touch that, as hardware does, whatever is mapped there later.
    fn register_shared(&self, pd: &Self::Pd, region: Region, access: Access) -> Result<Self::Mr> {
        self.register(pd, region, access)
    }

    /// Joins those who registered shared memory under `cookie`, in any process of this provider; the first makes the entry.
    /// A process that dies leaves.
    ///
    /// Errors: `InvalidParameter(4)` when the others say another length.
    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Self::Membership>;

    /// A window that is not bound.
    fn alloc_mw(&self, pd: &Self::Pd) -> Result<Self::Mw>;
}

/// Registered memory.
pub trait MemoryRegion: Send + Sync {
    /// Names it in local segments; never 0.
    fn local_key(&self) -> u32;
    /// Names it to peers; 0 without any remote access.
    fn remote_key(&self) -> u32;
}

/// What processes that share memory call it: 40 bytes, compared as they are.
pub type SharedCookie = [u8; 40];

/// A window onto a part of a registered region, under a remote key of its own. Unbound at first; dropping it unbinds at once,
/// and after that no transfer of a peer's touches the memory by its key.
pub trait MemoryWindow: Send + Sync {
    /// A bind was accepted, and has not been undone, nor failed, nor been flushed.
    fn is_bound(&self) -> bool;
}

/// Kept by whoever depends on it, and let go once.
pub type KeptObject = Arc<dyn Any + Send + Sync>;

/// What a window is bound to. The remote rights need not be rights of the region.
pub struct Bind<'a, Mr> {
    /// The registration.
    pub mr: &'a Mr,
    /// The part of it.
    pub region: Region,
    /// What the peer may do there.
    pub access: Access,
    /// Keeps the registration: dropped when the window is bound elsewhere, unbound, or when the bind fails or is flushed.
    pub kept: KeptObject,
}

/// A request to bind or unbind a window. Nothing that is posted later starts before it is complete.
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    /// Comes back with the completion.
    pub token: Token,
    /// No completion if it succeeds.
    pub suppress: bool,
    /// Starts only after all earlier reads of this QP are complete.
    pub fence: bool,
}
