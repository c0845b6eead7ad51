//! Registered memory, named by two contexts: one for local segments, one for peers.
//!
//! Made and freed by the entries in `dapl_lmr`; the registration itself is the provider's. A freed LMR lets transfers that
//! still name it fail; nothing here waits for them beyond what the provider's deregistration does.

use std::sync::Arc;

use crate::ia::{Child, Ia};
use crate::provider::{Access, Provider, Region, SharedCookie};
use crate::pz::Pz;
use crate::runtime::handle::{Kind, Object, ObjectId, Usable, Use, UseCount};

pub mod dapl_lmr;
pub mod dapls_lmr;
#[cfg(test)]
mod tests;

/// A registration of memory.
pub struct Lmr<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    pz: Use<Pz<P>>,
    mr: P::Mr,
    region: Region,
    rights: Rights,
    origin: Origin,
    /// Membership in the shared memory's name, for the life of the registration.
    _membership: Option<P::Membership>,
    uses: UseCount,
}

/// The region description that it was created from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// Its address.
    Memory,
    /// Another LMR, of this handle at that time.
    Lmr(usize),
    /// Its address, and what the processes that share it call it.
    Shared(Box<SharedCookie>),
}

/// Privileges, as requested and as granted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rights {
    /// Rights that the provider grants.
    pub access: Access,
    /// Always granted.
    pub local_read: bool,
}

impl<P: Provider> Lmr<P> {
    /// Weak reference for other objects; `id().handle` is the handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The IA it was made in.
    pub fn ia(&self) -> &Arc<Ia<P>> {
        &self.ia
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Arc<Pz<P>> {
        self.pz.arc()
    }

    /// The provider's half.
    pub fn mr(&self) -> &P::Mr {
        &self.mr
    }

    /// The memory, exactly as asked for.
    pub fn region(&self) -> Region {
        self.region
    }

    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The region description; a cookie stays at its address for the life of the LMR.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl<P: Provider> Object for Lmr<P> {
    const KIND: Kind = Kind::Lmr;
}

/// Bound RMRs use it.
impl<P: Provider> Usable for Lmr<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Lmr<P> {
    fn close(&self) {
        dapls_lmr::close(self);
    }

    fn counts_as_open(&self) -> bool {
        true
    }
}
