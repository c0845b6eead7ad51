//! Protection zones (PZs): work of an EP, and RDMA of its peer through this EP, may access only memory in the EP's
//! zone. The receives of an SRQ may access only memory in the SRQ's zone.
//!
//! The entries in `dapl_pz` create, query and free PZs. EPs, LMRs, RMRs and SRQs are counted as users of their PZ.

use std::sync::Arc;

use crate::ia::{Child, Ia};
use crate::provider::Provider;
use crate::runtime::handle::{Kind, Object, ObjectId, UseCount, UseCounted};

pub mod dapl_pz;
pub mod dapls_pz;

pub struct Pz<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    pd: P::Pd,
    uses: UseCount,
}

impl<P: Provider> Pz<P> {
    /// Identifies the PZ. The field `handle` is the consumer's handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// IA that the object belongs to.
    pub fn ia(&self) -> &Arc<Ia<P>> {
        &self.ia
    }

    /// The provider's protection domain.
    pub fn pd(&self) -> &P::Pd {
        &self.pd
    }
}

impl<P: Provider> Object for Pz<P> {
    const KIND: Kind = Kind::Pz;
}

impl<P: Provider> UseCounted for Pz<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Pz<P> {
    fn close(&self) {
        let _ = dapls_pz::close(self);
    }
}
