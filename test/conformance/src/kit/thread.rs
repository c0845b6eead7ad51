//! Threads inside a blocking call: start the call, check that the thread is blocked, interrupt it by a signal.
//!
//! A thread that never returns ends with its process, which the watchdog kills.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use dat_abi::*;

use crate::api::*;

use super::cancel::Interruptible;
use super::codes::{error, zeroed};
use super::object::Handle;
use super::raw;

/// A thread inside a call, and the result of the call.
pub(crate) struct Blocked<T> {
    thread: JoinHandle<T>,
    signals: Interruptible,
    /// Directory of the thread in /proc.
    place: PathBuf,
}

/// Makes a call in a separate thread. Returns when the thread is about to make the call.
pub(crate) fn blocked<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Blocked<T> {
    let (sender, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let place = std::fs::read_link("/proc/thread-self").expect("/proc is mounted");
        let _ = sender.send((Interruptible::this(), Path::new("/proc").join(place)));
        call()
    });
    let (signals, place) = receive.recv().expect("the thread sends its state before it blocks");
    Blocked { thread, signals, place }
}

impl<T> Blocked<T> {
    /// Whether the call has returned.
    pub(crate) fn is_back(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until /proc reports that the thread sleeps, which means inside the call, or until the call has returned.
    pub(crate) fn asleep(self) -> Self {
        until(|| self.is_back() || self.sleeps());
        self
    }

    /// Sends signals to the thread until the call returns. The signal handler does not restart system calls.
    pub(crate) fn interrupt(&self) {
        until(|| {
            if !self.is_back() && self.sleeps() {
                self.signals.interrupt();
            }
            self.is_back()
        });
    }

    /// Whether /proc reports the thread as sleeping.
    fn sleeps(&self) -> bool {
        let text = std::fs::read_to_string(self.place.join("stat")).unwrap_or_default();
        // In /proc/PID/stat the state follows the name, which may contain any characters.
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    /// Result of the call, once it has returned.
    #[track_caller]
    pub(crate) fn join(self) -> T {
        self.thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }
}

/// Result of a wait on an EVD, with the fields of the event that can be sent between threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Waited {
    pub(crate) code: DAT_RETURN,
    pub(crate) number: DAT_EVENT_NUMBER,
    /// Pointer in a software event.
    pub(crate) pointer: usize,
    pub(crate) more: DAT_COUNT,
}

/// A thread inside `dat_evd_wait`; [`Blocked::inside`] and [`Blocked::asleep`] wait until it has begun to wait.
pub(crate) fn evd_waiter(evd: DAT_EVD_HANDLE, timeout: DAT_TIMEOUT, threshold: DAT_COUNT) -> Blocked<Waited> {
    let evd = Handle::of(evd);
    blocked(move || {
        let (mut event, mut more): (DAT_EVENT, _) = (zeroed(), -1);
        let code = dat_evd_wait(evd.h(), timeout, threshold, &mut event, &mut more);
        Waited { code, number: event.event_number, pointer: raw::software(&event).addr(), more }
    })
}

impl Blocked<Waited> {
    /// Waits until the EVD has a registered waiter, or until the call has returned. Fails if an event is queued.
    #[track_caller]
    pub(crate) fn inside(self, evd: DAT_EVD_HANDLE) -> Self {
        let waiter = error(DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_WAITER);
        until(|| {
            let mut event = zeroed();
            let code = dat_evd_dequeue(evd, &mut event);
            assert!(code != DAT_SUCCESS, "the EVD is not empty");
            code == waiter || self.is_back()
        });
        self
    }
}

/// A thread inside `dat_cno_wait`, which returns the code and the EVD.
pub(crate) fn cno_waiter(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT) -> Blocked<(DAT_RETURN, Handle)> {
    let cno = Handle::of(cno);
    blocked(move || {
        // No call returns this value, so that a null written by the library is visible.
        let mut evd = Handle::of(std::ptr::without_provenance_mut(0x5a5a)).h();
        let code = dat_cno_wait(cno.h(), timeout, &mut evd);
        (code, Handle::of(evd))
    })
}

/// Yields until the condition is true; the watchdog ends an endless wait.
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}
