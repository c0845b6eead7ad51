//! Traces of transfers: the last posts of an EP and their completions. They show why a transfer does not complete.
//!
//! Tracing is off unless `DAPL_DBG_IO_TRC` or the `ia_params` of the IA's dat.conf line give a number of posts
//! ([`TraceSettings`]). Then every EP of that IA has a `TraceRing` of at least that size. The module `ep` records
//! posts, and `evd` completions; the post number in the token links a completion to its post. The trace is logged as
//! one message of bounded size:
//! - when a request has been in flight for too long (`watch`), once per stall;
//! - when a connection breaks, and when an EP is reset or freed with requests in flight;
//! - when the file named by `DAPL_DBG_IO_TRC_FILE` is modified.
//!
//! Recording a post neither allocates nor locks, unless the post schedules the check for overdue requests. Transferred
//! data are never read.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};

use crate::provider::{Completion, Op, Outstanding, Remote, Segment, Work};
use crate::runtime::{logger, wait};

mod ring;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod watch;

use ring::TraceRing;
pub use settings::TraceSettings;

/// The trace of one EP.
pub struct Trace {
    /// Handle of the EP.
    ep: usize,
    ring: TraceRing,
    traced_ep: OnceLock<Weak<dyn TracedEp>>,
    me: Weak<Trace>,
    /// Whether a check for overdue requests is scheduled.
    is_watched: AtomicBool,
    /// Whether the current stall has been reported.
    is_reported: AtomicBool,
}

/// The EP of a trace. The trait does not name the provider's type, because one thread logs the traces of all EPs.
pub trait TracedEp: Send + Sync {
    /// Returns the state of the EP. Acquires the EP's post state for reading; the caller may hold the EP's control
    /// lock.
    fn summary(&self) -> EpSummary;
}

/// State of an EP for the first line of its trace.
#[derive(Clone, Debug, Default)]
pub struct EpSummary {
    /// Name of the EP's IA.
    pub ia: String,
    /// Name of the EP's state in DAT.
    pub state: String,
    /// Work that has been posted and has not completed.
    pub outstanding: Outstanding,
}

/// The part of a post that a trace records.
#[derive(Clone, Copy, Debug)]
struct TracedPost<'a> {
    work: Work,
    cookie: u64,
    segments: &'a [Segment],
    /// Remote address and key of an RDMA or atomic operation.
    remote: Option<Remote>,
    /// Whether a success produces no completion.
    suppress: bool,
}

/// A trace for the log. Its text may be composed under a lock; it is logged after the lock is released.
#[derive(Debug, Default)]
#[must_use = "the report has to be logged"]
pub struct TraceReport {
    text: Option<String>,
    ia: String,
}

impl TraceReport {
    pub fn log(self) {
        if let Some(text) = self.text {
            logger::with_ia(&self.ia, || log::warn!("{text}"));
        }
    }
}

/// All traces by EP handle, so that a completion finds its trace without a reference to the EP.
static TRACED: RwLock<Option<HashMap<usize, Arc<Trace>>>> = RwLock::new(None);

impl TraceSettings {
    /// Creates a trace for the EP with this handle, if tracing is on. Completions are recorded in it until
    /// [`Trace::end`].
    pub fn trace(&self, ep: usize) -> Option<Arc<Trace>> {
        let length = self.length()?;
        let trace = Arc::new_cyclic(|me: &Weak<Trace>| Trace {
            ep,
            ring: TraceRing::new(length),
            traced_ep: OnceLock::new(),
            me: me.clone(),
            is_watched: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
        });
        TRACED.write().get_or_insert_default().insert(ep, trace.clone());
        watch::file(self);
        Some(trace)
    }
}

impl Trace {
    /// Sets the EP of the trace, when it has been created.
    pub fn begin(&self, traced_ep: Weak<dyn TracedEp>) {
        // The call cannot fail: each EP has its own trace, and calls `begin` once.
        let _ = self.traced_ep.set(traced_ep);
    }

    /// Records a receive before the provider is called. Returns the number of the post, which is not 0.
    #[cold]
    pub fn posted(&self, work: Work, cookie: u64, segments: &[Segment]) -> u32 {
        self.ring.post(&TracedPost { work, cookie, segments, remote: None, suppress: false }, wait::now())
    }

    /// Records a request before the provider is called. Returns the number of the post, which is not 0.
    #[cold]
    pub fn requested(&self, op: Op, cookie: u64, segments: &[Segment], suppress: bool) -> u32 {
        let post = TracedPost { work: op.work(), cookie, segments, remote: op.remote(), suppress };
        self.ring.post(&post, wait::now())
    }

    /// Records a bind before the provider is called. Returns the number of the post, which is not 0.
    pub fn bound(&self, cookie: u64, suppress: bool) -> u32 {
        self.ring.post(&TracedPost { work: Work::Bind, cookie, segments: &[], remote: None, suppress }, wait::now())
    }

    /// Records whether the provider accepted the post.
    pub fn record_result(&self, post: u32, work: Work, taken: bool) {
        if !taken {
            self.ring.refuse(post, wait::now());
        } else if work != Work::Recv {
            self.watch();
        }
    }

    /// Composes the text of the trace. `why` follows "ep 0x..." in the text.
    pub fn report(&self, why: &str, summary: &EpSummary) -> TraceReport {
        let text = text::dump(self.ep, why, summary, &self.ring.read(), wait::now());
        TraceReport { text: Some(text), ia: summary.ia.clone() }
    }

    /// Returns the cookie of each recorded post, and whether the post has completed.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Vec<(u64, bool)> {
        self.ring.read().iter().map(|entry| (entry.cookie, entry.end.is_some())).collect()
    }

    /// Ends the trace when the EP is freed.
    pub fn end(&self) {
        let ended = TRACED.write().as_mut().and_then(|traced| traced.remove(&self.ep));
        drop(ended);
    }

    fn summary(&self) -> Option<EpSummary> {
        Some(self.traced_ep.get()?.upgrade()?.summary())
    }
}

/// Records a completion, if its post is traced. Called under the EVD's lock; acquires only the lock of the list of
/// traces.
#[cold]
pub fn completed(done: &Completion) {
    if let Some(trace) = TRACED.read().as_ref().and_then(|traced| traced.get(&done.token.ep)) {
        trace.ring.complete(done, wait::now());
    }
}

/// Logs the traces of all EPs.
fn report_all(why: &str) {
    let all: Vec<_> = TRACED.read().iter().flat_map(HashMap::values).cloned().collect();
    for trace in all {
        if let Some(summary) = trace.summary() {
            trace.report(why, &summary).log();
        }
    }
}

/// The watched file. Each provider library of a process watches at most one.
static FILE: Mutex<Option<Arc<watch::WatchedFile>>> = Mutex::new(None);
