//! Registered memory, named by two contexts: one for local segments, one for peers.
//!
//! Made and freed by the entries in `dapl_lmr`; the registration itself is the provider's. A freed LMR lets transfers that
//! still name it fail; nothing here waits for them beyond what the provider's deregistration does.

use std::sync::Arc;

use crate::handle::{Kind, Object, ObjectId, Usable, Use, UseCount};
use crate::ia::{Child, Ia};
use crate::provider::{Access, Provider, Region};
use crate::pz::Pz;

pub mod dapl_lmr;
pub mod dapls_lmr;

/// A registration of memory.
pub struct Lmr<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    pz: Use<Pz<P>>,
    mr: P::Mr,
    region: Region,
    access: Access,
    /// Asked for; granted to all.
    local_read: bool,
    uses: UseCount,
}

impl<P: Provider> Lmr<P> {
    /// Its name for those who must not keep it alive; `id().handle` is its handle.
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

    /// What may be done with it.
    pub fn access(&self) -> Access {
        self.access
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
