//! Delivers the events of an EP. Connection events are queued in the connect EVD under the EP's lock, in the order of
//! state changes. So a thread that sees a new state under this lock also finds its event; `dat_ep_get_status` reads the
//! state without the lock, and may see it just before the event is queued. Waiters are woken and agents are called
//! without locks.
//!
//! A thread that has queued events under the lock calls `deliver` after unlocking. Events of an EP that was freed in
//! between are still delivered.
#![forbid(unsafe_code)]

use super::state::EpStep;
use super::{ControlState, Ep};
use crate::evd::dapls_evd::PendingNotification;
use crate::evd::{Event, dapls_evd};
use crate::ia::{AsyncError, AsyncKind, dapls_ia};
use crate::provider::{Connection, ConnectionEvent, Provider};

/// The notifications of queued events that are not delivered yet, and whether EP_BROKEN must be reported.
pub(super) struct PendingEvents<P: Provider> {
    pending: Vec<PendingNotification<P>>,
    ep_broken: EpBrokenReport,
}

/// Whether EP_BROKEN must be reported for an EP with an SRQ. The event is reported once, after the connection has ended
/// and all SRQ receives of the EP have completed. The consumer then knows which receives remain in the SRQ (spec/events
/// 10).
#[derive(Clone, Copy, Eq, PartialEq)]
enum EpBrokenReport {
    None,
    /// The connection is established, or its work has not completed yet.
    Pending,
    Due,
}

impl<P: Provider> PendingEvents<P> {
    pub(super) fn new() -> Self {
        PendingEvents { pending: Vec::new(), ep_broken: EpBrokenReport::None }
    }

    /// Called when the connection of an EP with an SRQ is established.
    pub(super) fn connection_began(&mut self) {
        self.ep_broken = EpBrokenReport::Pending;
    }

    /// Called when the connection has ended and all work of the QP has completed.
    pub(super) fn connection_ended(&mut self) {
        if self.ep_broken == EpBrokenReport::Pending {
            self.ep_broken = EpBrokenReport::Due;
        }
    }

    /// Called when the EP is freed. EP_BROKEN is then not reported, since the handle would be invalid.
    pub(super) fn ep_ended(&mut self) {
        self.ep_broken = EpBrokenReport::None;
    }

    pub(super) fn push(&mut self, pending: PendingNotification<P>) {
        self.pending.push(pending);
    }
}

impl<P: Provider> Ep<P> {
    /// Queues an event in the connect EVD, if the EP has one. `data` is the private data for the consumer, or `None` if
    /// the event carries none (spec/endpoints 8.3, 13.12).
    ///
    /// Before an event that ends the connection, all completions in the CQs are queued, so that their EVDs trigger the
    /// CNO first (spec/events 3.6, rule 9).
    pub(super) fn queue_event(&self, core: &mut ControlState<P>, notice: Option<ConnectionEvent>, data: Option<&[u8]>) {
        let (Some(kind), Some(evd)) = (notice, &core.objects.connect) else { return };
        let (data_size, data) = match data {
            None => (0, 0),
            Some(bytes) => {
                self.event_data.write(bytes);
                (
                    bytes.len().min(crate::runtime::consumer_memory::PrivateData::SIZE) as u32,
                    self.event_data.as_ptr() as usize,
                )
            }
        };
        if kind != ConnectionEvent::Established {
            let evds = [&core.objects.recv, &core.objects.request].into_iter().flatten();
            core.outbox.pending.extend(evds.filter_map(|evd| dapls_evd::queue_all_completions(evd.arc())));
        }
        let pending = dapls_evd::enqueue(evd.arc(), Event::Connection { kind, ep: self.id.handle, data_size, data });
        let is_lost = pending.is_lost();
        core.outbox.pending.push(pending);
        if is_lost && kind == ConnectionEvent::Established {
            self.end_unreported_connection(core);
        }
    }

    /// Delivers the pending notifications, and then reports EP_BROKEN if it is due.
    pub(super) fn deliver(&self) {
        let mut core = self.core.lock();
        let pending = std::mem::take(&mut core.outbox.pending);
        let is_due = core.outbox.ep_broken == EpBrokenReport::Due;
        if is_due {
            core.outbox.ep_broken = EpBrokenReport::None;
        }
        drop(core);
        pending.into_iter().for_each(PendingNotification::deliver);
        if is_due {
            let error = AsyncError { kind: AsyncKind::EpBroken, handle: self.id.handle, reason: 0 };
            dapls_ia::report(&self.ia, error);
        }
    }

    /// Queues all completions in the CQs of the EP's EVDs, and marks the EP's failed work as reported. Called when the
    /// EP is reset, so that old failures do not break the next connection, and when it is freed.
    pub(super) fn mark_failures_reported(&self, core: &mut ControlState<P>) {
        for evd in [&core.objects.recv, &core.objects.request].into_iter().flatten() {
            core.outbox.pending.push(dapls_evd::queue_and_mark_reported(evd.arc(), self.id.handle));
        }
    }

    /// Ends a connection whose ESTABLISHED event could not be queued. The consumer would not learn of the connection,
    /// so no other event is queued either (spec/endpoints 8.5).
    fn end_unreported_connection(&self, core: &mut ControlState<P>) {
        log::warn!(
            "ep {:#x}: cannot queue the ESTABLISHED event, so the connection is ended; create the connect EVD with a larger length",
            self.id.handle
        );
        if self.step(core, EpStep::EstablishedLost).is_err() {
            return;
        }
        if let Ok(qp) = self.post_state().qp() {
            qp.abort();
        }
        core.outbox.connection_ended();
    }
}
