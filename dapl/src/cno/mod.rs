//! Consumer notification objects: group EVDs, and notify waiting threads or an agent when one of them has events.
//!
//! EVDs trigger it under their own lock. It calls no EVD with its lock held, and no agent with any lock held. It knows an EVD
//! only as an [`EvdSource`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{Condvar, Mutex};

use crate::ffi::Agent;
use crate::ia::{Child, Ia};
use crate::provider::Provider;
use crate::runtime::descriptor::Descriptor;
use crate::runtime::handle::{Kind, Object, ObjectId, Usable, UseCount};
use crate::runtime::spin::SpinBudget;

pub mod dapl_cno;
mod dapl_cno_wait;
mod dapli_cno;
pub mod dapls_cno;
#[cfg(test)]
mod tests;
mod triggers;

pub use dapl_cno_wait::dapl_cno_wait;
pub use dapls_cno::Fire;

use dapli_cno::CnoState;

/// An EVD, as a CNO sees it.
pub trait EvdSource: Send + Sync {
    /// Which EVD.
    fn id(&self) -> ObjectId;
    /// Whether it still belongs to this CNO, is enabled, has events, and no thread waits on it directly.
    fn pending(&self, cno: ObjectId) -> bool;
    /// Fetches completions on the calling thread; they trigger the CNO. With `progress` it polls the device as well.
    /// Returns whether the next EVD of the CNO has to poll too: not where one poll serves all CQs of the IA.
    fn poll(&self, progress: bool) -> bool;
    /// Has the completion queue notify, if the CNO wants that.
    fn arm(&self);
}

/// A consumer notification object.
pub struct Cno<P: Provider> {
    id: ObjectId,
    ia: Arc<Ia<P>>,
    /// EVDs attached.
    uses: UseCount,
    inner: Mutex<CnoState>,
    /// Waiters poll the EVDs themselves, and no completion queue needs to be armed. Changed under the lock of `inner`.
    polled: AtomicBool,
    spin: SpinBudget,
    /// Notified when an agent returns.
    agent_done: Condvar,
}

impl<P: Provider> Cno<P> {
    /// Weak reference for other objects; `id().handle` is the handle.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The IA it was made in.
    pub fn ia(&self) -> &Arc<Ia<P>> {
        &self.ia
    }

    /// The number of its descriptor, if it has one.
    pub fn descriptor(&self) -> Option<i32> {
        self.inner.lock().descriptor.as_ref().map(Descriptor::number)
    }

    /// The agent that the next trigger will call.
    pub fn agent(&self) -> Option<Agent> {
        self.inner.lock().agent
    }
}

impl<P: Provider> Object for Cno<P> {
    const KIND: Kind = Kind::Cno;
}

/// EVDs use it.
impl<P: Provider> Usable for Cno<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> Child for Cno<P> {
    fn close(&self) {
        dapls_cno::close(self);
    }

    fn counts_as_open(&self) -> bool {
        true
    }
}
