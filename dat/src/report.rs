//! Messages of libdat: refused opens, errors in dat.conf files, and the debug lines that `DAT_DBG_*` enables.
//!
//! `report/lines` writes the lines. Some programs try every name in a list. A repeated refusal is therefore not reported
//! again, and at most [`MOST_REFUSALS`] are reported per process, unless [`Topic::General`] is enabled. Nothing is
//! written to stdout.
#![forbid(unsafe_code)]

mod lines;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::refused::RefusedOpen;

/// Maximum number of refusals that are reported without [`Topic::General`]. A last line states that further ones are
/// not shown.
const MOST_REFUSALS: usize = 4;
/// Maximum number of errors in dat.conf files that are reported without [`Topic::General`].
const MOST_FILE_ERRORS: usize = 16;
/// Maximum number of refusals that are stored to recognize repetitions. When the store is full, every refusal counts as
/// new.
const MOST_REMEMBERED: usize = 1024;

/// Bits of `DAT_DBG_TYPE`.
#[derive(Clone, Copy)]
pub(crate) enum Topic {
    /// Refusals and file errors; enabled by default.
    Errors = 0x1,
    /// Refusals and file errors, without a limit on their number.
    General = 0x2,
    /// dat.conf files and their lines, and libraries that are loaded.
    StaticRegistry = 0x4,
    /// Registrations of providers.
    DynamicRegistry = 0x8,
    /// Calls of a provider's init, fini, `ia_open` and `ia_close`.
    ProviderCalls = 0x10,
    /// Calls of `dat_ia_openv` and `dat_ia_close` by consumers.
    ConsumerCalls = 0x20,
}

/// Reports made so far, to limit their number.
pub(crate) struct Reporter {
    /// Name and message of each refusal, to recognize repetitions; at most [`MOST_REMEMBERED`].
    reported: BTreeSet<(Vec<u8>, String)>,
    refusals: usize,
    file_errors: usize,
}

static REPORTER: Mutex<Reporter> = Mutex::new(Reporter { reported: BTreeSet::new(), refusals: 0, file_errors: 0 });

/// Set when `lines::read_settings` has read the environment.
static READY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Reason of this thread's last refused `dat_ia_openv`, for the hook.
    static LAST: RefCell<Option<RefusedOpen>> = const { RefCell::new(None) };
    /// The provider's explanation of the open in progress in this thread.
    static EXPLANATION: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Stores a refusal for the hook. Reports it, unless it was reported before, the limit is reached, or reports of errors
/// are disabled.
pub(crate) fn refusal(refused: RefusedOpen) {
    let line = refused.to_string();
    let mut reporter = prepared();
    let reason = line.clone();
    let is_new = reporter.reported.len() >= MOST_REMEMBERED || reporter.reported.insert((refused.name.clone(), reason));
    store(refused);
    if is_new && has_errors() {
        reporter.refusals += 1;
        log_limited(&line, reporter.refusals, MOST_REFUSALS, "refusals");
    }
}

/// Stores a refusal for the hook, without reporting it.
pub(crate) fn store(refused: RefusedOpen) {
    LAST.set(Some(refused));
}

/// The last refusal of this thread.
pub(crate) fn last_refusal() -> Option<RefusedOpen> {
    LAST.with_borrow(Clone::clone)
}

/// Discards the explanation of an earlier open. Called when an open begins in this thread.
pub(crate) fn clear_explanation() {
    EXPLANATION.with_borrow_mut(String::clear);
}

/// Records a provider's explanation of the open in progress in this thread.
pub(crate) fn set_explanation(words: &str) {
    EXPLANATION.with_borrow_mut(|explanation| words.clone_into(explanation));
}

/// Takes the provider's explanation of the open in progress in this thread; empty if there is none.
pub(crate) fn take_explanation() -> String {
    EXPLANATION.take()
}

/// Reports an error in a dat.conf, up to a limit on the number of errors.
pub(crate) fn file_error(text: &dyn Display) {
    let mut reporter = prepared();
    if has_errors() {
        reporter.file_errors += 1;
        log_limited(&text.to_string(), reporter.file_errors, MOST_FILE_ERRORS, "errors in dat.conf");
    }
}

/// Whether refusals and file errors are reported.
fn has_errors() -> bool {
    lines::has(Topic::Errors) || lines::has(Topic::General)
}

/// Writes a debug line if the topic is enabled. Calls `text` only then.
pub(crate) fn debug(topic: Topic, text: impl FnOnce() -> String) {
    if !READY.load(Ordering::Acquire) {
        drop(prepared());
    }
    if lines::has(topic) {
        lines::log("debug", &text());
    }
}

/// Locks the reporter; also locked while the process forks.
pub(crate) fn lock() -> MutexGuard<'static, Reporter> {
    REPORTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the reporter. The first call reads the environment.
fn prepared() -> MutexGuard<'static, Reporter> {
    let reporter = lock();
    if !READY.load(Ordering::Acquire) {
        lines::read_settings();
        READY.store(true, Ordering::Release);
    }
    reporter
}

/// Writes the `count`th line about `what`. Without [`Topic::General`], lines beyond the limit `most` are omitted.
fn log_limited(line: &str, count: usize, most: usize, what: &str) {
    if lines::has(Topic::General) || count <= most {
        lines::log("error", line);
    } else if count == most + 1 {
        let rest = "are not shown; run with DAT_DBG_TYPE=0x3 to see them all";
        lines::log("error", &format!("further {what} {rest}"));
    }
}
