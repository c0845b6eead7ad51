//! The counters of an EP: their sums, and the lists of them for queries and for `datinfo top`. Also the reports of the
//! EP's trace.
//!
//! Posts and completions are counted where they happen, and added up when the counters are read.
#![forbid(unsafe_code)]

use dat_abi::DAT_NAMED_ATTR;
use dat_counters::text::Text;

use super::state::EpState;
use super::{ControlState, Ep, EpObjects, PostState};
use crate::evd::{Evd, dapls_evd};
use crate::provider::{Connection, NamedCount, Provider, QueuePair, Work};
use crate::runtime::handle::{ObjectId, UseGuard};
use crate::stats::counters::{EpCounts, Listing};
use crate::stats::trace::{EpSummary, TraceReport, TracedEp};

/// Maximum number of listed counters of the queue pair.
const MAX_PROVIDER_COUNTERS: usize = 48;

/// Returns the counts that a state transition adds to the EP's counters.
pub(super) fn of_step(before: EpState, after: EpState) -> EpCounts {
    let is_connected = |state| matches!(state, EpState::Connected | EpState::DisconnectPending);
    EpCounts {
        connects: u64::from(!is_connected(before) && is_connected(after)),
        disconnects: u64::from(is_connected(before) && !is_connected(after)),
        ..EpCounts::default()
    }
}

impl<P: Provider> Ep<P> {
    /// Returns the EP's counters: its own, those of its posts, and those of its completions in its EVDs. Counters of
    /// the provider are not included.
    pub(super) fn counts(&self, core: &ControlState<P>) -> EpCounts {
        let mut counts = core.counts;
        self.post_state().posts.add_to(&mut counts);
        for evd in core.objects.completing() {
            dapls_evd::completed_by_ep(evd, self.id.handle).add_to(&mut counts);
        }
        counts
    }

    /// Writes the counters to a list for the consumer. The list keeps its address for the life of the EP; each call
    /// updates it.
    pub(super) fn show_counts(&self, core: &ControlState<P>) -> (i32, *mut DAT_NAMED_ATTR) {
        let listing = self.listing.get_or_init(|| Listing::new([], EpCounts::LEN + MAX_PROVIDER_COUNTERS));
        let providers = self.provider_counts().into_iter().map(|count| (count.name, count.value));
        listing.write_counters(self.counts(core).list().into_iter().chain(providers))
    }

    /// The provider's counters of the queue pair; empty without a queue pair.
    fn provider_counts(&self) -> Vec<NamedCount> {
        self.post_state().qp().map(|qp| qp.counts()).unwrap_or_default()
    }

    /// Writes the EP's state and counters to the text for the counters socket.
    pub(super) fn describe_counts(&self, core: &ControlState<P>, text: &mut Text) {
        text.ep(self.id.handle, &format!("{:?}", core.state));
        for (name, value) in self.counts(core).list() {
            let unit = if name.starts_with("bytes") { "bytes" } else { "" };
            text.count(name, unit, false, value);
        }
        self.provider_counts().iter().for_each(|count| text.count(count.name, count.unit, count.is_level, count.value));
    }

    /// Adds the completion counts in EVDs that are not in `next` to the EP's own counters, and stops counting there.
    pub(super) fn save_completion_counts(&self, core: &mut ControlState<P>, next: &EpObjects<P>) {
        let kept: Vec<ObjectId> = next.completing().map(|evd| evd.id).collect();
        let left: Vec<_> = core.objects.completing().filter(|evd| !kept.contains(&evd.id)).cloned().collect();
        for evd in left {
            let (completed, pending) = dapls_evd::stop_counting(evd.arc(), self.id.handle);
            completed.add_to(&mut core.counts);
            core.outbox.push(pending);
        }
    }

    /// Records in the trace whether the provider accepted a traced post.
    #[cold]
    pub(super) fn record_traced_result(&self, post: u32, work: Work, taken: bool) {
        if let Some(trace) = &self.trace {
            trace.record_result(post, work, taken);
        }
    }

    /// Returns a report of the trace if requests are unfinished. Called before they are flushed.
    pub(super) fn report_unfinished(&self, why: &str, post_state: &PostState<P>) -> TraceReport {
        let Some(trace) = &self.trace else { return TraceReport::default() };
        let summary = self.summary_at(post_state);
        if summary.outstanding.requests > 0 { trace.report(why, &summary) } else { TraceReport::default() }
    }

    /// Returns a report of the trace for a connection that failed. The report is empty if the EP has no trace, or is
    /// neither connecting nor connected any more.
    pub(super) fn report_broken(&self, core: &ControlState<P>) -> TraceReport {
        match &self.trace {
            Some(trace) if core.state.is_live() => trace.report("is broken", &self.summary()),
            _ => TraceReport::default(),
        }
    }

    fn summary_at(&self, post_state: &PostState<P>) -> EpSummary {
        let outstanding = post_state.qp().map(|qp| qp.outstanding()).unwrap_or_default();
        EpSummary { ia: self.ia.name().to_owned(), state: self.state().dat_name().to_owned(), outstanding }
    }
}

impl<P: Provider> TracedEp for Ep<P> {
    fn summary(&self) -> EpSummary {
        self.summary_at(&self.post_state())
    }
}

impl<P: Provider> EpObjects<P> {
    /// The EVDs that receive completions of this EP, without duplicates.
    fn completing(&self) -> impl Iterator<Item = &UseGuard<Evd<P>>> {
        let request = self.request.as_ref();
        let recv = self.recv.as_ref().filter(|recv| request.is_none_or(|request| request.id != recv.id));
        recv.into_iter().chain(request)
    }
}
