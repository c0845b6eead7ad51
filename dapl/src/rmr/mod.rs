//! Remote memory regions (RMRs, memory windows): an RMR gives peers a remote context for a part of an LMR. It can be
//! bound, bound to another part, and unbound.
//!
//! The entries in `dapl_rmr` create, query and free RMRs. A bind is a request of an EP, so `ep` posts the bind; this
//! module checks and stores it. The provider decides when a bind takes effect and when the LMR is released.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::ia::{Child, Ia};
use crate::lmr::Privileges;
use crate::provider::{Provider, Segment};
use crate::pz::Pz;
use crate::runtime::handle::{Kind, Object, ObjectId, UseGuard};

pub mod dapl_rmr;
pub mod dapls_rmr;

pub struct Rmr<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// Id of the protection zone.
    pub(crate) pz: ObjectId,
    /// Scope in which the remote context is valid.
    pub(crate) scope: RmrScope,
    /// Locked while a bind is posted, so that a query returns the bind that was posted last.
    inner: Mutex<RmrState<P>>,
}

/// Which connections may access the memory of a bound RMR.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RmrScope {
    /// The connections of all EPs in the RMR's protection zone.
    Pz,
    /// The connection of the EP to which the bind was posted.
    Ep,
}

struct RmrState<P: Provider> {
    /// The provider's window; removed when the RMR is closed.
    window: Option<BoundWindow<P>>,
    /// The bind that was posted last; `None` before the first bind and after an unbind.
    bound: Option<RmrBinding>,
}

/// The provider's window, and its use of the PZ. It is dropped when the RMR is closed, even if calls still use the RMR.
struct BoundWindow<P: Provider> {
    mw: P::Mw,
    _pz: UseGuard<Pz<P>>,
}

/// A bind that the consumer has requested or posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmrBinding {
    /// The bound part of the LMR.
    pub segment: Segment,
    /// Rights as requested. Local rights have no effect and are only returned by queries.
    pub rights: Privileges,
    /// The remote context (key) that peers use; 0 before the bind is posted.
    pub context: u32,
}

impl<P: Provider> Object for Rmr<P> {
    const KIND: Kind = Kind::Rmr;
}

impl<P: Provider> Child for Rmr<P> {
    fn close(&self) {
        let _ = dapls_rmr::free(self);
    }
}
