//! Remote memory regions (memory windows): a remote context for a part of an LMR, which can be bound, moved and unbound.
//!
//! The entries in `dapl_rmr` create, query and free them. A bind is a request of an EP, so `ep` posts it; this module checks
//! the bind and stores it. The provider decides when a bind takes effect and when the LMR is released.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::ia::{Child, Ia};
use crate::lmr::Rights;
use crate::provider::{Provider, Segment};
use crate::pz::Pz;
use crate::runtime::handle::{Kind, Object, ObjectId, Use};

pub mod dapl_rmr;
pub mod dapls_rmr;

/// A remote memory region.
pub struct Rmr<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    pz: ObjectId,
    /// Locked while a bind is posted, so that a query returns the bind posted last.
    inner: Mutex<RmrState<P>>,
}

struct RmrState<P: Provider> {
    /// Taken by the end of the RMR.
    window: Option<BoundWindow<P>>,
    /// The bind posted last; `None` for an unbind.
    bound: Option<Bound>,
}

/// The provider's window; ends with the RMR even while calls still use the object.
struct BoundWindow<P: Provider> {
    mw: P::Mw,
    _pz: Use<Pz<P>>,
}

/// A requested or posted binding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// A part of an LMR.
    pub segment: Segment,
    /// Local rights have no effect here, and are returned by queries.
    pub rights: Rights,
    /// The remote context (key) for peers.
    pub context: u32,
}

impl<P: Provider> Rmr<P> {
    /// Weak reference for other objects; `id().handle` is the handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The IA it was made in.
    pub fn ia(&self) -> &Arc<Ia<P>> {
        &self.ia
    }

    /// Its protection zone.
    pub fn pz(&self) -> ObjectId {
        self.pz
    }
}

impl<P: Provider> Object for Rmr<P> {
    const KIND: Kind = Kind::Rmr;
}

impl<P: Provider> Child for Rmr<P> {
    fn close(&self) {
        dapls_rmr::close(self);
    }

    fn counts_as_open(&self) -> bool {
        true
    }
}
