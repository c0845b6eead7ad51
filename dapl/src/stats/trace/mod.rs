//! The trace of transfers: what an EP has posted and what came of it, for who asks why something does not complete.
//!
//! Off unless `DAPL_DBG_IO_TRC` or the `ia_params` of the IA's line say how many posts to remember ([`Settings`]); then every
//! EP of that IA has a `Ring` of so many, made with it. `ep` notes posts here, `evd` completions, by the number that a
//! token carries. It is told to the log, in one piece and never more than a screenful or two:
//! - when a request has been under way for too long (`watch`), once per stall;
//! - when a connection breaks, and when an EP is reset or freed with requests under way;
//! - when somebody touches the file named by `DAPL_DBG_IO_TRC_FILE`.
//!
//! A post neither allocates nor locks here. Nothing of what is transferred is ever looked at.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};

use crate::provider::{Completion, Op, Outstanding, Remote, Segment, Work};
use crate::runtime::wait;

mod ring;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod watch;

use ring::Ring;
pub use settings::Settings;

/// The trace of one EP.
pub struct Trace {
    /// Its handle.
    ep: usize,
    ring: Ring,
    traced_ep: OnceLock<Weak<dyn TracedEp>>,
    me: Weak<Trace>,
    /// A look at what is overdue will come.
    is_watched: AtomicBool,
    /// What is overdue has been told.
    is_reported: AtomicBool,
}

/// The EP, as its trace sees it. Implemented by `ep`.
pub trait TracedEp: Send + Sync {
    /// How it stands. Called without locks.
    fn summary(&self) -> EpSummary;
}

/// How an EP stands.
#[derive(Clone, Debug, Default)]
pub struct EpSummary {
    /// Its state, by name.
    pub state: String,
    /// What the provider still works on.
    pub outstanding: Outstanding,
}

/// A post, as far as it is traced.
#[derive(Clone, Copy, Debug)]
struct Posted<'a> {
    work: Work,
    cookie: u64,
    segments: &'a [Segment],
    /// Where it begins at the peer.
    remote: Option<Remote>,
    /// Its success will not be seen.
    suppress: bool,
}

/// Text for the log, made under a lock and told without.
#[derive(Debug, Default)]
#[must_use = "somebody should read it"]
pub struct Report(Option<String>);

impl Report {
    /// Tells the log.
    pub fn log(self) {
        if let Some(text) = self.0 {
            log::warn!("{text}");
        }
    }
}

/// Who traces, by handle: so a completion finds its EP's trace without the EP.
static TRACED: RwLock<Option<HashMap<usize, Arc<Trace>>>> = RwLock::new(None);

impl Settings {
    /// A trace for the EP with this handle, if one is wanted; its completions find it until [`Trace::end`].
    pub fn trace(&self, ep: usize) -> Option<Arc<Trace>> {
        let length = self.length()?;
        let trace = Arc::new_cyclic(|me: &Weak<Trace>| Trace {
            ep,
            ring: Ring::new(length),
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
    /// The EP is complete.
    pub fn begin(&self, traced_ep: Weak<dyn TracedEp>) {
        // Set once: every EP has a trace of its own.
        let _ = self.traced_ep.set(traced_ep);
    }

    /// Notes a post that is about to be made, and gives its number, which is not 0.
    #[cold]
    pub fn posted(&self, work: Work, cookie: u64, segments: &[Segment]) -> u32 {
        self.ring.post(&Posted { work, cookie, segments, remote: None, suppress: false }, wait::now())
    }

    /// The same of a request.
    #[cold]
    pub fn requested(&self, op: Op, cookie: u64, segments: &[Segment], suppress: bool) -> u32 {
        let post = Posted { work: op.work(), cookie, segments, remote: op.remote(), suppress };
        self.ring.post(&post, wait::now())
    }

    /// The same of a bind.
    pub fn bound(&self, cookie: u64, suppress: bool) -> u32 {
        self.ring.post(&Posted { work: Work::Bind, cookie, segments: &[], remote: None, suppress }, wait::now())
    }

    /// The provider has taken the post, or refused it.
    pub fn settle(&self, post: u32, work: Work, taken: bool) {
        if !taken {
            self.ring.refuse(post, wait::now());
        } else if work != Work::Recv {
            self.watch();
        }
    }

    /// What there is to say; `why` goes on after "ep 0x..".
    pub fn report(&self, why: &str, summary: &EpSummary) -> Report {
        Report(Some(text::dump(self.ep, why, summary, &self.ring.read(), wait::now())))
    }

    /// Cookies of what is remembered, and whether each has ended.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Vec<(u64, bool)> {
        self.ring.read().iter().map(|entry| (entry.cookie, entry.end.is_some())).collect()
    }

    /// The EP is gone: no completion comes any more.
    pub fn end(&self) {
        let ended = TRACED.write().as_mut().and_then(|traced| traced.remove(&self.ep));
        drop(ended);
    }

    fn summary(&self) -> Option<EpSummary> {
        Some(self.traced_ep.get()?.upgrade()?.summary())
    }
}

/// Notes the end of something that is traced. Called under the EVD's lock; takes none but that of the list.
#[cold]
pub fn completed(done: &Completion) {
    if let Some(trace) = TRACED.read().as_ref().and_then(|traced| traced.get(&done.token.ep)) {
        trace.ring.complete(done, wait::now());
    }
}

/// Tells of every EP that is traced.
fn report_all(why: &str) {
    let all: Vec<_> = TRACED.read().iter().flat_map(HashMap::values).cloned().collect();
    for trace in all {
        if let Some(summary) = trace.summary() {
            trace.report(why, &summary).log();
        }
    }
}

/// The file that is watched, and who does it: one per process.
static FILE: Mutex<Option<Arc<watch::File>>> = Mutex::new(None);
