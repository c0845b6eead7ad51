//! Remote memory regions: windows onto a part of an LMR, under a remote context of their own, that can be moved and closed.
//!
//! Made, shown and freed by the entries in `dapl_rmr`. A bind is a request of an EP, so `ep` posts it; this room judges what
//! is to be bound and remembers what was. When a bind takes effect, and when the LMR is let go, the provider decides.

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
    /// Held while a bind is posted, so that what is shown is what was posted last.
    inner: Mutex<RmrState<P>>,
}

struct RmrState<P: Provider> {
    /// Taken by the end of the RMR.
    window: Option<Window<P>>,
    /// What was posted last, if it was no unbind.
    bound: Option<Bound>,
}

/// What ends with an RMR, however many calls still hold it; the provider's half first.
struct Window<P: Provider> {
    mw: P::Mw,
    _pz: Use<Pz<P>>,
}

/// What a consumer wants to bind, or has bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// A part of an LMR.
    pub segment: Segment,
    /// Local ones mean nothing here, and are shown again.
    pub rights: Rights,
    /// What peers name it by.
    pub context: u32,
}

impl<P: Provider> Rmr<P> {
    /// Its name for those who must not kept it alive; `id().handle` is its handle.
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
