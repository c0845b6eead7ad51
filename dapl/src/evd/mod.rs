//! Event dispatchers (EVDs): a queue of events, at most one waiting thread, and optionally a CNO.
//!
//! Completions come from the provider's CQ. Other modules post events through `dapls_evd`, and the consumer posts
//! software events. An EVD does not reference EPs. No lock is held while an agent runs or a thread is woken.

use std::sync::{Arc, OnceLock};

use dat_abi::DAT_EVD_FLAGS;

use crate::ia::{AsyncError, AsyncErrorSink, Child, Ia};
use crate::provider::Provider;
use crate::runtime::empty_check::QueueCheck;
use crate::runtime::handle::{Kind, Object, ObjectId, UseCount, UseCounted};
use crate::runtime::spin::SpinBudget;
use crate::runtime::sync::Mutex;
use crate::stats::counters::IaSums;

pub mod dapl_evd;
mod dapl_evd_wait;
mod dapli_evd;
mod dapli_quick;
mod dapli_wait;
pub mod dapls_descriptor;
pub mod dapls_evd;
mod event;
pub(crate) mod event_record;
mod notification;
mod queue;
#[cfg(test)]
mod tests;

pub use dapl_evd_wait::dapl_evd_wait;
pub(crate) use dapl_evd_wait::wait_as;
pub(crate) use dapli_evd::TakenEvent;
pub use event::Event;
pub use queue::NotifyMode;

use dapli_evd::EvdState;
use notification::EvdRef;

pub struct Evd<P: Provider> {
    pub(crate) id: ObjectId,
    pub(crate) ia: Arc<Ia<P>>,
    /// The event streams that the EVD serves, as EVD flags.
    streams: DAT_EVD_FLAGS,
    /// The provider's CQ, if the EVD serves the DTO, RMR-bind or extension stream.
    cq: Option<Arc<P::Cq>>,
    /// Identifies this EVD to the CQ and the CNO.
    evd_ref: Arc<EvdRef<P>>,
    /// Notified of failed work and of dequeued SRQ receives; set by the first EP that uses this EVD.
    transfers: OnceLock<&'static dyn TransferSink<P>>,
    uses: UseCount,
    spin: SpinBudget,
    /// Detects without the lock that the EVD has no event; `None` if the transport does not support it.
    empty_check: Option<QueueCheck>,
    inner: Mutex<EvdState<P>>,
}

/// Reports failed work and dequeued SRQ receives to the `ep` module. The trait avoids a dependency cycle, because EPs
/// use EVDs, and EVDs report to EPs.
pub(crate) trait TransferSink<P: Provider>: Send + Sync {
    /// Notifies the EP with handle `ep` of failed work before the consumer gets the completion. Called without locks.
    /// When this returns, the EP has called [`dapls_evd::take_failure`] under its own lock. Returns false if there is
    /// no such EP.
    fn failed(&self, evd: &Evd<P>, ep: usize) -> bool;
    /// Reports that the consumer has dequeued, or can no longer dequeue, the completion of a receive of the SRQ with
    /// this handle. Called with or without the lock of an EVD.
    fn reaped(&self, srq: usize);
}

impl<P: Provider> Evd<P> {
    /// Whether the EVD serves the stream with this flag.
    pub fn serves(&self, stream: DAT_EVD_FLAGS) -> bool {
        self.streams & stream != 0
    }

    /// The provider's CQ, if the EVD serves the DTO, RMR-bind or extension stream.
    pub fn cq(&self) -> Option<Arc<P::Cq>> {
        self.cq.clone()
    }

    #[cfg(test)]
    pub(crate) fn has_waiter(&self) -> bool {
        self.lock().queue.has_waiter()
    }

    /// Whether completions of a poll are in the buffer.
    #[cfg(test)]
    pub(crate) fn has_buffered(&self) -> bool {
        !self.inner.lock().plain.is_empty()
    }

    /// Sets the sink for failed work and dequeued SRQ receives; later calls have no effect.
    pub(crate) fn report_transfers_to(&self, sink: &'static dyn TransferSink<P>) {
        self.transfers.get_or_init(|| sink);
    }

    /// Adds the receives or requests of an EP. `mode`: which of their completions notify, as the EP has requested in
    /// its completion flags (spec/events 1.3).
    pub fn add_stream(&self, mode: NotifyMode) {
        self.lock().queue.add_stream(mode);
    }

    /// Removes the receives or requests of an EP, which were added with this mode.
    pub fn remove_stream(&self, mode: NotifyMode) {
        self.lock().queue.remove_stream(mode);
    }
}

impl<P: Provider> Object for Evd<P> {
    const KIND: Kind = Kind::Evd;
}

/// EPs, service points and IAs that post events to the EVD use it: it cannot be freed while one of them uses it.
impl<P: Provider> UseCounted for Evd<P> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

impl<P: Provider> AsyncErrorSink for Evd<P> {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn report(&self, error: AsyncError) {
        // `post` has logged the overflow.
        let _ = dapls_evd::post(self, Event::Async(error));
    }
}

impl<P: Provider> Child for Evd<P> {
    fn close(&self) {
        let _ = dapls_evd::close(self);
    }

    fn counts_as_open(&self) -> bool {
        !self.ia.owns_async_evd(self.id)
    }

    fn add_counts(&self, sums: &mut IaSums) {
        let counts = self.lock().queue.counts;
        sums.evds.add(&counts);
        sums.each.push((self.id.handle, counts));
    }
}
