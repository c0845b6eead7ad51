//! C entry `dat_evd_wait`. Its stack frame can be abandoned: the thread may be cancelled at any moment of its sleep.
//!
//! The entry and [`wait::run`] own no resources. All work is done in [`step`], which neither unwinds nor is cancelled.

use dat_abi::*;

use super::dapl_evd::write_event;
use super::dapli_wait::{self, Next, Wait};
use super::{Evd, Event, dapli_wait::clear};
use crate::error::{Error, Handle, Result};
use crate::ffi;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;
use crate::runtime::wait::{self, Cause, Mark, WaitStep};

/// Writes an event of this EVD in the layout of one version of DAT. The pointer is writable.
pub(crate) type WriteEvent<E> = unsafe fn(out: *mut E, evd: DAT_EVD_HANDLE, event: &Event);

/// The arguments, and the state kept between sleeps. `E` is the `DAT_EVENT` of the caller's version.
#[derive(Clone, Copy)]
struct EvdWaitCall<E> {
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut E,
    write: WriteEvent<E>,
    more: *mut DAT_COUNT,
    /// Set when the thread has begun to wait.
    wait: Option<Wait>,
    /// The thread has registered its wait for fork and cancellation.
    marked: bool,
}

/// `dat_evd_wait`.
///
/// # Safety
/// `evd` is null or a handle of this library, live or freed, of any kind; `event` and `more` are null or
/// writable.
pub unsafe extern "C-unwind" fn dapl_evd_wait<P: Provider>(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut DAT_EVENT,
    more: *mut DAT_COUNT,
) -> DAT_RETURN {
    // SAFETY: this function's own contract.
    unsafe { wait_as::<P, DAT_EVENT>(evd, timeout, threshold, event, more, write_event) }
}

/// `dat_evd_wait` of any version; `write` writes the event in the layout of that version.
///
/// # Safety
///
/// As [`dapl_evd_wait`].
#[inline(always)]
pub(crate) unsafe fn wait_as<P: Provider, E: Copy>(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut E,
    more: *mut DAT_COUNT,
    write: WriteEvent<E>,
) -> DAT_RETURN {
    let mut call = EvdWaitCall { evd, timeout, threshold, event, write, more, wait: None, marked: false };
    // SAFETY: `step` expects an `EvdWaitCall` whose pointers satisfy this function's contract.
    unsafe { wait::run(&mut call, step::<P, E>) }
}

/// One step of the wait. A panic is caught here, as in every entry.
///
/// # Safety
/// Same as [`dapl_evd_wait`].
#[inline(never)]
unsafe fn step<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>, cause: Cause) -> WaitStep {
    let mut next = None;
    let code = ffi::guard_hot(|| {
        next = Some(run_step::<P, E>(call, cause)?);
        Ok(())
    });
    match next {
        Some(Next::Sleep(expected)) => sleep::<P, E>(call, expected),
        Some(Next::Event(event, more)) => {
            forget(call);
            // SAFETY: both pointers are non-null (checked in `run_step`) and writable by the contract.
            unsafe { (call.write)(call.event, call.evd, &event) };
            // SAFETY: as above.
            unsafe { ffi::put(call.more, count(more)) };
            WaitStep::Done(DAT_SUCCESS)
        }
        Some(Next::Fail(error, more)) => {
            forget(call);
            // SAFETY: as above.
            unsafe { ffi::put(call.more, count(more)) };
            WaitStep::Done(error.code())
        }
        None => {
            forget(call);
            WaitStep::Done(code)
        }
    }
}

fn run_step<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>, cause: Cause) -> Result<Next> {
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

fn sleep<P: Provider, E: Copy>(call: &mut EvdWaitCall<E>, expected: u32) -> WaitStep {
    let Some(wait) = call.wait else { return WaitStep::Done(Error::Internal.code()) };
    let Some((word, _)) = wait::word(wait.id) else { return WaitStep::Done(Error::Internal.code()) };
    if !call.marked {
        call.marked = true;
        Mark { id: wait.id, token: wait.token, clear: clear::<P> }.store();
    }
    WaitStep::Sleep { word, expected, deadline: wait.deadline }
}

fn forget<E: Copy>(call: &EvdWaitCall<E>) {
    if let (true, Some(wait)) = (call.marked, call.wait) {
        Mark::remove(wait.token);
    }
}

fn count(n: usize) -> DAT_COUNT {
    DAT_COUNT::try_from(n).unwrap_or(DAT_COUNT::MAX)
}
