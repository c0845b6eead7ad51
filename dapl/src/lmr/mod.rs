//! Local memory regions (LMRs): registered memory with a local context, used in segments, and a remote context, used by
//! peers.
//!
//! The entries in `dapl_lmr` create, query, synchronise and free LMRs; the provider registers the memory. After a free,
//! new transfers with the contexts fail. The free waits for transfers in progress only if the provider's deregistration
//! does.

use std::sync::Arc;

use crate::ia::{Child, Ia, LmrContexts};
use crate::provider::{Access, MemoryRegion, Provider, Region, SharedCookie};
use crate::pz::Pz;
use crate::runtime::handle::{Kind, Object, ObjectId, UseCount, UseCounted, UseGuard};

pub mod dapl_lmr;
pub mod dapls_lmr;
#[cfg(test)]
mod tests;
pub mod zero_based;

pub struct Lmr<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    pz: UseGuard<Pz<P>>,
    /// The provider's registration.
    pub(crate) mr: P::Mr,
    /// The registered address range, as the consumer requested it.
    pub(crate) region: Region,
    pub(crate) rights: Privileges,
    /// The region description from which the LMR was created. A cookie in it stays at its address as long as the LMR
    /// exists.
    pub(crate) origin: Origin,
    /// Membership in the group of processes that share the memory, for the life of the registration.
    _membership: Option<P::Membership>,
    uses: UseCount,
}

/// The region description from which an LMR was created.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// An address range of this process.
    Memory,
    /// Another LMR. The value is the handle that it had at the registration.
    Lmr(usize),
    /// An address range, and the cookie that identifies the shared memory.
    Shared(Box<SharedCookie>),
}

/// Privileges of an LMR or RMR.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Privileges {
    /// Rights enforced by the provider.
    pub access: Access,
    /// Whether the consumer requested local reads. Local reads are allowed even if this is false.
    pub local_read: bool,
}

impl<P: Provider> Lmr<P> {
    pub fn pz(&self) -> &Arc<Pz<P>> {
        self.pz.arc()
    }

    /// The address by which segments of the consumer and of peers refer to the first byte: 0 for a zero-based LMR,
    /// otherwise its address in this process.
    pub fn first_address(&self) -> u64 {
        if self.rights.access.zero_based { 0 } else { self.region.address }
    }
}

impl<P: Provider> Object for Lmr<P> {
    const KIND: Kind = Kind::Lmr;
}

/// Bound RMRs use the LMR: it cannot be freed while there are any.
impl<P: Provider> UseCounted for Lmr<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Lmr<P> {
    fn close(&self) {
        let _ = dapls_lmr::close(self);
    }

    fn contexts(&self) -> Option<LmrContexts> {
        Some(LmrContexts { of: self.id, local: self.mr.local_key(), remote: self.mr.remote_key() })
    }
}
