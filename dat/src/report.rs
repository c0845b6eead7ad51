//! What libdat tells people: one line on stderr per refusal, complaints about files, and the debug lines of `DAT_DBG_*`.
//!
//! Everyone but `thunk`'s hot path reports here, and all of it goes through the `log` crate, to the logger of `report/lines`
//! unless the program has set one. Never writes to stdout, never fails. Some programs try every name they are given, so
//! refusals are told once each and at most four times in a process.
#![forbid(unsafe_code)]

mod lines;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::refused::Refused;

/// Refusals told before one line points to the rest.
const MOST_REFUSALS: usize = 4;
/// Complaints about files told in full; a file with more is broken as a whole.
const MOST_COMPLAINTS: usize = 16;
/// Refusals remembered for "told once"; a program that asks for this many names gets repetitions.
const MOST_REMEMBERED: usize = 1024;

/// Bits of `DAT_DBG_TYPE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Topic {
    /// Refusals, complaints. On unless the variable says otherwise.
    Errors = 0x1,
    /// Everything that limits would hide.
    General = 0x2,
    /// Files and loading.
    StaticRegistry = 0x4,
    /// Registrations.
    DynamicRegistry = 0x8,
    /// Calls into providers.
    ProviderCalls = 0x10,
    /// Calls of consumers.
    ConsumerCalls = 0x20,
}

impl Topic {
    const ALL: [Topic; 6] = [
        Topic::Errors,
        Topic::General,
        Topic::StaticRegistry,
        Topic::DynamicRegistry,
        Topic::ProviderCalls,
        Topic::ConsumerCalls,
    ];

    /// Its name among the targets of the `log` crate.
    fn target(self) -> &'static str {
        match self {
            Topic::Errors => "libdat",
            Topic::General => "libdat::general",
            Topic::StaticRegistry => "libdat::files",
            Topic::DynamicRegistry => "libdat::registrations",
            Topic::ProviderCalls => "libdat::providers",
            Topic::ConsumerCalls => "libdat::calls",
        }
    }
}

/// What has been told.
pub(crate) struct Reporter {
    told: BTreeSet<(Vec<u8>, String)>,
    refusals: usize,
    complaints: usize,
}

static REPORTER: Mutex<Reporter> = Mutex::new(Reporter { told: BTreeSet::new(), refusals: 0, complaints: 0 });

/// The environment has been read.
static READY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Why this thread's last `dat_ia_openv` was refused, for the hook.
    static LAST: RefCell<Option<Refused>> = const { RefCell::new(None) };
    /// What a provider said of the open that this thread is in.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A name was refused: tells why, unless it was told before or enough was told.
pub(crate) fn refusal(refused: Refused) {
    let line = refused.to_string();
    let mut reporter = prepared();
    let reason = line.clone();
    let is_new = reporter.told.len() >= MOST_REMEMBERED || reporter.told.insert((refused.name.clone(), reason));
    note(refused);
    if is_new && lines::has_errors() {
        reporter.refusals += 1;
        tell_limited(&line, reporter.refusals, MOST_REFUSALS, "refusals");
    }
}

/// Remembers a refusal for those who ask, without a word: the call itself was wrong.
pub(crate) fn note(refused: Refused) {
    LAST.set(Some(refused));
}

/// The last refusal of this thread.
pub(crate) fn last_refusal() -> Option<Refused> {
    LAST.with_borrow(Clone::clone)
}

/// An open begins: what a provider says from now on is about it.
pub(crate) fn listen() {
    SAID.with_borrow_mut(String::clear);
}

/// A provider's own words about the open that this thread is in.
pub(crate) fn provider_says(words: &str) {
    SAID.with_borrow_mut(|said| words.clone_into(said));
}

/// What it said; empty if nothing.
pub(crate) fn said() -> String {
    SAID.take()
}

/// A file is not as it should be.
pub(crate) fn complaint(text: &dyn Display) {
    let mut reporter = prepared();
    if lines::has_errors() {
        reporter.complaints += 1;
        tell_limited(&text.to_string(), reporter.complaints, MOST_COMPLAINTS, "complaints");
    }
}

/// A line for those who asked for this topic; the text is made only then.
pub(crate) fn debug(topic: Topic, text: impl FnOnce() -> String) {
    if !READY.load(Ordering::Acquire) {
        drop(prepared());
    }
    if log::log_enabled!(target: topic.target(), log::Level::Debug) {
        log::debug!(target: topic.target(), "{}", text());
    }
}

/// Keeps others out, for `fork`.
pub(crate) fn hold() -> MutexGuard<'static, Reporter> {
    REPORTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, with the environment read: at the first line that might be written.
fn prepared() -> MutexGuard<'static, Reporter> {
    let reporter = hold();
    if !READY.load(Ordering::Acquire) {
        lines::install();
        READY.store(true, Ordering::Release);
    }
    reporter
}

/// The `count`th of its kind: those beyond `most` only if somebody asked for all.
fn tell_limited(line: &str, count: usize, most: usize, what: &str) {
    if lines::has_all() || count <= most {
        log::error!(target: Topic::Errors.target(), "{line}");
    } else if count == most + 1 {
        let rest = "are not shown; run with DAT_DBG_TYPE=0x3 to see them all";
        log::error!(target: Topic::Errors.target(), "further {what} {rest}");
    }
}
