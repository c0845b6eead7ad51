//! Checks traces on the timer thread: for overdue requests, and for a modification of the file that requests a log of
//! all traces.
//!
//! An EP without requests in flight is not checked. While any EP is traced, the file's modification time is read once a
//! second; the file is never opened, created or removed.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::{FILE, TRACED, Trace, TraceSettings, report_all};
use crate::runtime::timer::{self, OnExpiry};
use crate::runtime::wait;

/// Age at which an incomplete request is overdue. It is longer than usnic's default `give_up_ms`, after which a request
/// to a lost peer fails.
const OVERDUE: Duration = Duration::from_secs(10);
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between checks of an EP for overdue requests.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Trace {
    /// Schedules a check for overdue requests, unless one is scheduled already.
    pub(super) fn watch(&self) {
        if !self.is_watched.load(Ordering::SeqCst) {
            self.schedule_check(OVERDUE);
        }
    }

    fn schedule_check(&self, time: Duration) {
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            let target: Weak<dyn OnExpiry> = self.me.clone();
            if timer::arm(time, target, 0).is_err() {
                // `arm` has logged the failure. The next post tries again to schedule a check.
                self.is_watched.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Reports an overdue request, once per stall. Returns the time until the next check; `None` if no request is in
    /// flight, or if the EP no longer exists.
    ///
    /// The number of requests in flight comes from the provider: the ring does not show whether a suppressed request,
    /// or one whose completion the program has not fetched, is still in flight.
    pub(super) fn report_overdue(&self, now: u64) -> Option<Duration> {
        let summary = self.summary()?;
        let begun = self.ring.oldest_request(summary.outstanding.requests);
        let Some(begun) = begun else {
            self.is_reported.store(false, Ordering::Relaxed);
            return None;
        };
        let age = Duration::from_nanos(now.saturating_sub(begun));
        if age < OVERDUE {
            self.is_reported.store(false, Ordering::Relaxed);
            return Some((OVERDUE - age).max(MIN_CHECK_INTERVAL));
        }
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            let why = format!("has had a request in flight for {} s", age.as_secs());
            self.report(&why, &summary).log();
        }
        Some(OVERDUE)
    }
}

impl OnExpiry for Trace {
    fn expired(&self, _: u32) {
        // Cleared before the check, so that a post made during the check schedules another one.
        self.is_watched.store(false, Ordering::SeqCst);
        if let Some(again) = self.report_overdue(wait::now()) {
            self.schedule_check(again);
        }
    }
}

#[derive(Debug)]
pub(super) struct WatchedFile {
    path: PathBuf,
    /// Id of the watching process. A forked child does not watch the file.
    process: u32,
    seen: Mutex<Option<SystemTime>>,
}

/// Starts to watch the file of `settings`, unless this process watches a file already.
pub(super) fn file(settings: &TraceSettings) {
    let (Some(path), process) = (settings.file(), std::process::id()) else { return };
    let mut watched = FILE.lock();
    if watched.as_ref().is_some_and(|file| file.process == process) {
        return;
    }
    let file = Arc::new(WatchedFile { path: path.clone(), process, seen: Mutex::new(touched(path)) });
    if schedule_file_check(&file) {
        *watched = Some(file);
    }
}

fn schedule_file_check(file: &Arc<WatchedFile>) -> bool {
    let target: Arc<dyn OnExpiry> = file.clone();
    timer::arm(FILE_CHECK_INTERVAL, Arc::downgrade(&target), 0).is_ok()
}

fn touched(path: &PathBuf) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

impl OnExpiry for WatchedFile {
    fn expired(&self, _: u32) {
        let now = touched(&self.path);
        let before = std::mem::replace(&mut *self.seen.lock(), now);
        if now.is_some() && now != before {
            report_all("on request");
        }
        let mut watched = FILE.lock();
        let is_wanted = TRACED.read().as_ref().is_some_and(|traced| !traced.is_empty());
        let stays = watched.as_ref().is_some_and(|file| is_wanted && schedule_file_check(file));
        if !stays {
            *watched = None;
        }
    }
}
