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
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// The provider's protection domain.
    pub(crate) pd: P::Pd,
    uses: UseCount,
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
