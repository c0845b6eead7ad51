//! C entry `dat_evd_wait`. The thread may be cancelled (`pthread_cancel`) at any moment of its sleep.
//!
//! Cancellation unwinds or drops the frames of the entry and of [`wait::run`], so they own no resources. [`quick`] and
//! [`step`] do the work; they do not unwind and are never cancelled.

use dat_abi::*;

use super::dapli_wait::{self, EvdWaitResult, clear};
use super::event_record::{write_event, write_plain};
use super::{Evd, Event};
use crate::error::{Handle, Result};
use crate::ffi;
use crate::provider::{Completion, Provider};
use crate::runtime::handle::{EvdHandle, from_handle};
use crate::runtime::wait::{self, ThreadWait, WaitStep, WakeCause};

/// Writes an event of this EVD in the layout of one version of DAT. `out` is writable.
pub(crate) type WriteEvent<E> = unsafe fn(out: *mut E, evd: DAT_EVD_HANDLE, event: &Event);

/// Like [`WriteEvent`], for a successful transfer.
pub(crate) type WritePlain<E> = unsafe fn(out: *mut E, evd: DAT_EVD_HANDLE, done: &Completion);

/// The arguments of a wait, and the data kept between its sleeps. `E` is the `DAT_EVENT` of the caller's version.
#[derive(Clone, Copy)]
struct EvdWaitCall<E> {
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut E,
    write_plain: WritePlain<E>,
    write: WriteEvent<E>,
    more: *mut DAT_COUNT,
    /// The wait; `None` until the thread has begun to wait.
    wait: Option<ThreadWait>,
}

/// `dat_evd_wait`.
///
/// # Safety
/// `evd` may have any value; `event` and `more` are null or writable.
pub unsafe extern "C-unwind" fn dapl_evd_wait<P: Provider>(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut DAT_EVENT,
    more: *mut DAT_COUNT,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `wait_as`.
    unsafe { wait_as::<P, DAT_EVENT>(evd, timeout, threshold, event, more, write_plain, write_event) }
}

/// `dat_evd_wait` for any version of DAT. `write` writes an event in the layout of that version; `write_plain` writes
/// the event of a successful transfer.
///
/// # Safety
///
/// `evd` may have any value; `event` and `more` are null or writable.
#[inline(always)]
pub(crate) unsafe fn wait_as<P: Provider, E: Copy>(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut E,
    more: *mut DAT_COUNT,
    write_plain: WritePlain<E>,
    write: WriteEvent<E>,
) -> DAT_RETURN {
    let mut call = EvdWaitCall { evd, timeout, threshold, event, write_plain, write, more, wait: None };
    // SAFETY: `quick` and `step` expect an `EvdWaitCall` whose pointers satisfy this function's contract.
    unsafe { wait::run(&mut call, quick::<P, E>, step::<P, E>) }
}

/// Completes the wait on the fast path (`take_quickly`). Returns `None` if the wait must continue with [`step`].
///
/// # Safety
/// The arguments in `call` satisfy the contract of [`dapl_evd_wait`].
#[inline(always)]
unsafe fn quick<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>) -> Option<DAT_RETURN> {
    let mut is_taken = false;
    let code = ffi::guard_cancellable(|| {
        // SAFETY: the caller also satisfies the contract of `take_quickly`.
        is_taken = unsafe { take_quickly::<P, E>(call) };
        Ok(())
    });
    (is_taken || code != DAT_SUCCESS).then_some(code)
}

/// Runs one step of the wait. Panics are caught here, as in every entry.
///
/// # Safety
/// The arguments in `call` satisfy the contract of [`dapl_evd_wait`].
#[inline(never)]
unsafe fn step<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>, cause: WakeCause) -> WaitStep {
    let mut next = None;
    let code = ffi::guard_cancellable(|| {
        next = Some(run_step::<P, E>(call, cause)?);
        Ok(())
    });
    let Some(wait) = &mut call.wait else { return WaitStep::Done(code) }; // the wait could not begin
    let (code, more) = match next {
        Some(EvdWaitResult::Sleep(expected)) => return wait.sleep(expected, clear::<P>),
        Some(EvdWaitResult::Event(event, more)) => {
            // SAFETY: `run_step` has checked that `event` is not null, and the caller guarantees that it is writable.
            unsafe { (call.write)(call.event, call.evd, &event) };
            (DAT_SUCCESS, Some(more))
        }
        Some(EvdWaitResult::Fail(error, more)) => (error.code(), Some(more)),
        None => (code, None),
    };
    wait.end();
    if let Some(more) = more {
        // SAFETY: `run_step` has checked that `more` is not null, and the caller guarantees that it is writable.
        unsafe { ffi::put(call.more, ffi::count(more)) };
    }
    WaitStep::Done(code)
}

/// Completes a wait for one event on an EVD without CNO and descriptor, if the oldest event, queued or found by a poll,
/// is a successful transfer that is not traced. Returns false if the wait must continue with [`step`].
///
/// # Safety
/// The arguments in `call` satisfy the contract of [`dapl_evd_wait`].
#[inline(always)]
unsafe fn take_quickly<P: Provider, E: Copy>(call: &EvdWaitCall<E>) -> bool {
    let EvdWaitCall { evd, threshold, event, write_plain, more, .. } = *call;
    let Some(entry) = EvdHandle::of(evd) else { return false };
    if threshold != 1 || event.is_null() || more.is_null() || entry.has_no_event() {
        return false;
    }
    let Some(object) = entry.object::<Evd<P>>() else { return false };
    // SAFETY: `event` is not null, and the caller guarantees that it is writable.
    let left = object.wait_quickly(|done| unsafe { write_plain(event, evd, done) });
    // SAFETY: `more` is not null, and the caller guarantees that it is writable.
    left.is_some_and(|left| unsafe {
        ffi::put(more, ffi::count(left));
        true
    })
}

fn run_step<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>, cause: WakeCause) -> Result<EvdWaitResult> {
    if let Some(wait) = &call.wait {
        return Ok(dapli_wait::resume::<P>(wait, cause));
    }
    let evd = from_handle::<Evd<P>>(call.evd, Handle::Plain)?;
    ffi::require(call.event, 4)?;
    ffi::require(call.more, 5)?;
    let (wait, next) = dapli_wait::begin(&evd, call.timeout, call.threshold)?;
    call.wait = Some(wait);
    Ok(next)
}
