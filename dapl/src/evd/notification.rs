//! The reference by which the CQ and the CNO of an EVD call the EVD, and the notification that an event in the EVD
//! causes: it wakes threads that wait on the EVD or the CNO, makes the descriptor of the CNO readable, calls the agent
//! of the CNO, and reports that the CQ cannot be armed.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use super::Evd;
use crate::cno::{CnoNotification, EvdSource, PollPass};
use crate::ia::dapls_ia;
use crate::ia::{AsyncError, AsyncKind, Ia};
use crate::provider::{CompletionQueue, CqSink, Provider};
use crate::runtime::empty_check::EmptyCheck;
use crate::runtime::handle::{self, ObjectId};
use crate::runtime::wait;

/// Represents an EVD for the provider's CQ and the CNO. It refers to the EVD by its id, not by a counted reference.
/// After the EVD was freed, the generation in the id is stale, so a late notification is dropped.
pub(super) struct EvdRef<P> {
    id: ObjectId,
    /// The CQ's empty check; set after the CQ was created.
    pub(super) empty_check: OnceLock<&'static EmptyCheck>,
    _provider: PhantomData<fn() -> P>,
}

impl<P> EvdRef<P> {
    pub(super) fn new(id: ObjectId) -> Self {
        EvdRef { id, empty_check: OnceLock::new(), _provider: PhantomData }
    }
}

impl<P: Provider> CqSink for EvdRef<P> {
    fn notify(&self) {
        if let Some(evd) = handle::from_id::<Evd<P>>(self.id) {
            evd.notified();
        }
    }
}

impl<P: Provider> EvdSource for EvdRef<P> {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn pending(&self, cno: ObjectId) -> bool {
        handle::from_id_for_post::<Evd<P>>(self.id).is_some_and(|evd| {
            let inner = evd.inner.lock();
            let attached = inner.cno.as_ref().is_some_and(|own| own.id == cno);
            let has_events = !inner.plain.is_empty() || !inner.queue.is_empty();
            attached && has_events && inner.queue.enabled && !inner.queue.has_waiter()
        })
    }

    fn poll(&self, pass: &mut PollPass) {
        if pass.polls_device && self.empty_check.get().is_some_and(|check| check.has_no_completion()) {
            pass.polls_device = !P::Cq::SHARES_PROGRESS;
        } else if let Some(evd) = handle::from_id_for_post::<Evd<P>>(self.id) {
            evd.poll_for_cno(pass);
            evd.release();
        }
    }

    fn arm(&self) {
        if let Some(evd) = handle::from_id::<Evd<P>>(self.id) {
            let mut inner = evd.lock();
            let signal = evd.rearm(&mut inner);
            evd.unlock(inner, signal);
        }
    }
}

/// The wake-ups and calls that an event causes. They are delivered without locks.
#[must_use = "without deliver() the waiter is not woken"]
pub(super) struct EvdNotification<P: Provider> {
    pub(super) waiter: Option<ObjectId>,
    pub(super) cno: Option<CnoNotification<P>>,
    /// The IA and the EVD's handle, if the CQ cannot be armed and so notifies neither the CNO nor the descriptor.
    pub(super) arm_failed: Option<(Arc<Ia<P>>, usize)>,
}

impl<P: Provider> EvdNotification<P> {
    /// Wakes the waiter of the EVD or of the CNO, makes the descriptor of the CNO readable, calls the agent, and
    /// reports that the CQ cannot be armed. Called without locks.
    #[inline]
    pub(super) fn deliver(self) {
        if let Some(id) = self.waiter {
            // All sleeping threads are woken, because a thread whose wait was cancelled may still sleep on the same
            // word.
            wait::wake(id, i32::MAX);
        }
        if let Some(fire) = self.cno {
            fire.deliver();
        }
        if let Some((ia, handle)) = self.arm_failed {
            dapls_ia::report(&ia, AsyncError { kind: AsyncKind::ProviderInternal, handle, reason: 0 });
        }
    }
}
