//! Consumer notification objects (CNOs). A CNO groups EVDs. When one of the EVDs has events, the CNO wakes a thread
//! that waits on it. It also calls its agent if the agent is armed, and makes its descriptor readable if it has one.
//!
//! EVDs trigger a CNO under their own lock. A CNO does not poll, arm or check an EVD while it holds its own lock, and
//! calls an agent only without locks. This module accesses an EVD only as an [`EvdSource`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::ffi::Agent;
use crate::ia::{Child, Ia};
use crate::provider::Provider;
use crate::runtime::descriptor::Descriptor;
use crate::runtime::handle::{Kind, Object, ObjectId, UseCount, UseCounted};
use crate::runtime::spin::SpinBudget;

pub mod dapl_cno;
mod dapl_cno_wait;
mod dapli_cno;
pub mod dapls_cno;
#[cfg(test)]
mod tests;
mod triggers;

pub use dapl_cno_wait::dapl_cno_wait;
pub use dapls_cno::CnoNotification;

use dapli_cno::CnoState;

/// An EVD that triggers a CNO. The trait avoids a dependency cycle: an EVD triggers its CNO, and the CNO polls its
/// EVDs. Tests of the trigger order implement it without an EVD.
pub trait EvdSource: Send + Sync {
    /// Identifies the EVD.
    fn id(&self) -> ObjectId;
    /// Whether this EVD is attached to the CNO, is enabled, has events, and has no waiter of its own.
    fn pending(&self, cno: ObjectId) -> bool;
    /// Fetches completions on the calling thread. New events trigger the CNO, unless the pass takes them (see
    /// [`PollPass::takes`]).
    fn poll(&self, pass: &mut PollPass);
    /// Arms the CQ, if the CNO depends on its notification.
    fn arm(&self);
}

/// One pass of a thread over the EVDs of a CNO, to poll each.
#[derive(Debug)]
pub struct PollPass {
    pub cno: ObjectId,
    /// Whether the next EVD polls the device. An EVD clears it if its poll serves all CQs of the IA.
    pub polls_device: bool,
    /// Whether the thread waits on the CNO. If so, the first EVD that has new events and no descriptor does not trigger
    /// the CNO, because the thread returns that EVD.
    pub takes: bool,
    /// Set by the first EVD with new events: the value of [`Cno::changes`], read under the lock of that EVD. If the
    /// value is the same as at the start of the pass, no other EVD has triggered the CNO, and the thread returns this
    /// EVD. A trigger after the read does not matter. An EVD whose event must be reported after the completions of this
    /// EVD triggers the CNO only after its thread has acquired the lock of this EVD.
    pub taken_at: Option<u32>,
}

pub struct Cno<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// Number of attached EVDs.
    uses: UseCount,
    inner: Mutex<CnoState>,
    /// Whether a waiting thread polls the EVDs, so that no CQ needs to be armed. Changed under the lock of `inner`.
    polled: AtomicBool,
    /// Number of triggers, changes of the list of EVDs, and releases of waiters. A polling thread takes the lock of
    /// `inner` only if this has changed. Incremented under that lock.
    changes: AtomicU32,
    spin: SpinBudget,
    /// Notified when an agent returns.
    agent_done: Condvar,
}

impl<P: Provider> Cno<P> {
    /// Number of changes so far, modulo 2^32: see the field `changes`.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Number of the file descriptor, if the CNO has one.
    pub fn descriptor(&self) -> Option<i32> {
        self.inner.lock().descriptor.as_ref().map(Descriptor::number)
    }

    /// The armed agent. It is called when an event arrives, when the last attached EVD is freed, or when the CNO is
    /// closed.
    pub fn agent(&self) -> Option<Agent> {
        self.inner.lock().agent
    }
}

impl<P: Provider> Object for Cno<P> {
    const KIND: Kind = Kind::Cno;
}

/// The attached EVDs use the CNO: it cannot be freed while there are any.
impl<P: Provider> UseCounted for Cno<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Cno<P> {
    fn close(&self) {
        dapls_cno::close(self);
    }
}
