//! Sleeps on behalf of a C caller. A signal may interrupt the sleep, and `pthread_cancel` may end the thread during it.
//!
//! The entries of `dat_evd_wait` and `dat_cno_wait` call [`run`], which first tries to find an event without sleeping.
//! If there is none, it alternates between steps and sleeps. A step holds locks and references, with cancellation
//! deferred. A sleep on a futex word runs in stack frames that own nothing, because glibc's forced unwinding passes
//! through them. A thread that is cancelled leaves a `WaitMark` in its thread-local storage, whose destructor removes
//! the waiter. The futex words are in the arena of handles, so they outlive the objects.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;

use dat_abi::{DAT_RETURN, DAT_TIMEOUT, DAT_TIMEOUT_INFINITE};

use crate::error::Error;
use crate::runtime::cancel;
use crate::runtime::handle::{self, ObjectId};
use crate::runtime::sync::{AtomicU32, Ordering};

#[cfg(not(loom))]
mod futex;
#[cfg(loom)]
#[path = "wait/futex/fake.rs"]
mod futex;

/// Result of a step.
pub enum WaitStep {
    /// The wait returns this code.
    Done(DAT_RETURN),
    /// The thread sleeps while the word equals `expected`, at most until the deadline.
    Sleep {
        /// Futex word of the object.
        word: &'static AtomicU32,
        /// Value of the word when the step found no event.
        expected: u32,
        /// Time at which the sleep ends at the latest.
        deadline: Deadline,
    },
}

/// Why a step runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WakeCause {
    /// The wait begins.
    Start,
    /// The word changed, or the wake-up was spurious.
    Woken,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// A time on the monotonic clock, in nanoseconds; `None` means never.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// No deadline. Also used before a deadline is computed, because the clock is read only if the thread has to wait.
    pub const NEVER: Deadline = Deadline(None);

    /// Returns the time `timeout` microseconds from now.
    pub fn after(timeout: DAT_TIMEOUT) -> Self {
        match timeout {
            DAT_TIMEOUT_INFINITE => Deadline(None),
            micros => Deadline(Some(now() + u64::from(micros) * 1000)),
        }
    }

    pub fn has_passed(self, now: u64) -> bool {
        self.0.is_some_and(|at| at <= now)
    }
}

/// Current time of the monotonic clock, in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec. The clock exists on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a unique number for a wait.
fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the futex word of `id` and its value. The caller holds the lock under which [`increment_word`] is called.
pub fn futex_word(id: ObjectId) -> Option<(&'static AtomicU32, u32)> {
    let word = handle::futex(id)?;
    Some((word, word.load(Ordering::Relaxed)))
}

/// Increments the futex word, so that no thread goes to sleep on its old value. Called under the object's lock.
pub fn increment_word(id: ObjectId) {
    if let Some(word) = handle::futex(id) {
        // Relaxed suffices: the object's lock orders the change with the read in `futex_word`, and the kernel's lock
        // orders it with the check of a thread that goes to sleep.
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes up to `count` sleeping threads. Called without locks, after [`increment_word`].
pub fn wake(id: ObjectId, count: i32) {
    if let Some(word) = handle::futex(id) {
        futex::wake(word, count);
    }
}

/// Runs a wait to its end. Calls `quick` first, which returns the wait's code if it finds an event or fails. `quick`
/// must not reach a cancellation point, so setting the cancellation type to deferred suffices for it. `state` is kept
/// between the steps. It must own no resources, because it is not dropped if the thread is cancelled.
///
/// # Safety
/// `state` has the type that `quick` and `step` expect, and stays valid during the call.
#[inline(always)]
pub unsafe fn run<S: Copy>(
    state: &mut S,
    quick: unsafe fn(&mut S) -> Option<DAT_RETURN>,
    step: unsafe fn(&mut S, WakeCause) -> WaitStep,
) -> DAT_RETURN {
    let mut caller_type = 0;
    // SAFETY: the call affects the calling thread only, and the out parameter is writable.
    unsafe { pthread_setcanceltype(CANCEL_DEFERRED, &raw mut caller_type) };
    // SAFETY: the caller guarantees that `state` fits `quick`.
    if let Some(code) = unsafe { quick(state) } {
        if caller_type != CANCEL_DEFERRED {
            // SAFETY: the call affects the calling thread only.
            unsafe { pthread_setcanceltype(caller_type, std::ptr::null_mut()) };
        }
        return code;
    }
    // SAFETY: the caller guarantees that `state` fits `step`.
    unsafe { run_steps(state, step, caller_type) }
}

/// The part of [`run`] that may sleep. `caller_type` is the caller's cancellation type; the current type is deferred.
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn run_steps<S: Copy>(
    state: &mut S,
    step: unsafe fn(&mut S, WakeCause) -> WaitStep,
    caller_type: c_int,
) -> DAT_RETURN {
    let mut caller_state = 0;
    if caller_type != CANCEL_DEFERRED {
        // SAFETY: no frame between here and the consumer's frame owns resources yet.
        unsafe { finish_asynchronous_cancellation() };
    }
    // The type is deferred before the state is changed, because the handler of a cancellation signal may check the type
    // alone.
    //
    // SAFETY: the call affects the calling thread only, and the out parameter is writable.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut caller_state) };
    let mut cause = WakeCause::Start;
    let code = loop {
        // SAFETY: the caller guarantees that `state` fits `step`. A step never unwinds, because it catches panics.
        match unsafe { step(state, cause) } {
            WaitStep::Done(code) => break code,
            WaitStep::Sleep { word, expected, deadline } => {
                // From here until the calls after the sleep, this thread may be cancelled at any instruction. No frame
                // between here and the consumer's frame owns resources. A request that arrived while cancellation was
                // disabled is only pending, so `pthread_testcancel` acts on it.
                //
                // SAFETY: the calls affect the calling thread only. A cancellation here unwinds only frames that own no
                // resources.
                unsafe {
                    pthread_setcancelstate(caller_state, std::ptr::null_mut());
                    pthread_testcancel();
                    pthread_setcanceltype(CANCEL_ASYNCHRONOUS, std::ptr::null_mut());
                }
                cause = futex::sleep(word, expected, deadline.0);
                // SAFETY: the calls affect the calling thread only. A cancellation here unwinds only frames that own no
                // resources.
                unsafe {
                    pthread_setcanceltype(CANCEL_DEFERRED, std::ptr::null_mut());
                    finish_asynchronous_cancellation();
                    pthread_setcancelstate(CANCEL_DISABLE, std::ptr::null_mut());
                }
            }
        }
    };
    // SAFETY: the calls affect the calling thread only. If the second call acts on a pending request, it unwinds only
    // frames that own no resources.
    unsafe {
        pthread_setcancelstate(caller_state, std::ptr::null_mut());
        pthread_setcanceltype(caller_type, std::ptr::null_mut());
    }
    code
}

/// Waits for the signal of a `pthread_cancel` that has found this thread with asynchronous type; the request is then
/// pending. Called with deferred type, after the type was asynchronous.
///
/// `pthread_cancel` of glibc before 2.41 decides to send the signal, and sends it later. `pthread_setcanceltype` does not
/// wait for it. The handler ignores the cancellation state and checks the type, which is asynchronous in every
/// cancellation point of glibc. So a late signal would unwind the frames of a later call that defers cancellation, from
/// its `write` or `close`. A cancellation point waits for the signal when it restores the deferred type. `poll` without
/// descriptors is a cancellation point without any other effect.
///
/// # Safety
/// No frame between the caller and the consumer's frame owns resources.
unsafe fn finish_asynchronous_cancellation() {
    // SAFETY: without descriptors the pointer is not read. A cancellation here unwinds only frames that own no resources.
    unsafe { poll(std::ptr::null_mut(), 0, 0) };
}

const CANCEL_DISABLE: c_int = 1;
const CANCEL_DEFERRED: c_int = 0;
const CANCEL_ASYNCHRONOUS: c_int = 1;

// Declared as functions that may unwind, because cancellation unwinds through them.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// A wait of a thread on an object. It is kept between the sleeps of the thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadWait {
    /// The object waited on.
    pub id: ObjectId,
    /// Identifies the wait among those of the object.
    pub token: u64,
    pub deadline: Deadline,
    /// Whether the thread has stored a [`WaitMark`], so that a cancellation removes its waiter.
    is_marked: bool,
}

impl ThreadWait {
    /// Creates a wait without a deadline.
    pub fn new(id: ObjectId) -> Self {
        ThreadWait { id, token: token(), deadline: Deadline::NEVER, is_marked: false }
    }

    /// Returns the step that sleeps while the futex word of the object equals `expected`. If the thread is cancelled in
    /// a sleep, `clear` removes its waiter from the object.
    pub fn sleep(&mut self, expected: u32, clear: fn(ObjectId, u64)) -> WaitStep {
        let Some(word) = handle::futex(self.id) else { return WaitStep::Done(Error::Internal.code()) };
        if !std::mem::replace(&mut self.is_marked, true) {
            let mark = WaitMark { id: self.id, token: self.token, clear };
            // A thread without thread-local storage is exiting and cannot be cancelled any more.
            let _ = MARKS.try_with(|marks| marks.0.borrow_mut().push(mark));
        }
        WaitStep::Sleep { word, expected, deadline: self.deadline }
    }

    /// Called when the wait returns.
    pub fn end(&self) {
        if self.is_marked {
            let _ = MARKS.try_with(|marks| marks.0.borrow_mut().retain(|mark| mark.token != self.token));
        }
    }
}

/// A sleeping wait, and how to remove it if its thread is cancelled.
struct WaitMark {
    id: ObjectId,
    token: u64,
    clear: fn(ObjectId, u64),
}

struct ThreadWaitMarks(RefCell<Vec<WaitMark>>);

impl Drop for ThreadWaitMarks {
    fn drop(&mut self) {
        // glibc also runs this destructor in a thread that has returned and has a pending cancellation request.
        let _deferral = cancel::defer();
        for mark in self.0.take() {
            (mark.clear)(mark.id, mark.token);
        }
    }
}

thread_local! {
    static MARKS: ThreadWaitMarks = const { ThreadWaitMarks(RefCell::new(Vec::new())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futex_wait_returns_at_once_for_a_changed_word_or_past_deadline() {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(7)));
        assert_eq!(futex::sleep(word, 6, None), WakeCause::Woken);
        assert_eq!(futex::sleep(word, 7, Some(now())), WakeCause::TimedOut);
    }

    #[test]
    fn infinite_deadline_never_expires() {
        assert!(!Deadline::after(DAT_TIMEOUT_INFINITE).has_passed(u64::MAX));
        assert!(Deadline::after(0).has_passed(now()));
        assert!(!Deadline::after(DAT_TIMEOUT_INFINITE - 1).has_passed(now()));
    }
}
