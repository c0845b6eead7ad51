//! C entry `dat_cno_wait`. The thread may be cancelled (`pthread_cancel`) at any moment of its sleep.
//!
//! Cancellation unwinds or drops the frames of the entry and of [`wait::run`], so they own no resources. [`quick`] and
//! [`step`] do the work; they do not unwind and are never cancelled.

use dat_abi::*;

use super::Cno;
use super::dapli_cno::{self, CnoWaitResult, clear};
use crate::error::{Error, Handle, Result};
use crate::ffi;
use crate::provider::Provider;
use crate::runtime::handle::{from_handle, from_handle_for_post};
use crate::runtime::wait::{self, ThreadWait, WaitStep, WakeCause};

#[derive(Clone, Copy)]
struct CnoWaitCall {
    cno: DAT_CNO_HANDLE,
    timeout: DAT_TIMEOUT,
    evd: *mut DAT_EVD_HANDLE,
    /// Whether [`quick`] has polled the EVDs.
    has_polled: bool,
    /// The wait; `None` until the thread has begun to wait.
    wait: Option<ThreadWait>,
}

/// `dat_cno_wait`.
///
/// # Safety
/// `cno` may have any value; `evd` is null or writable.
pub unsafe extern "C-unwind" fn dapl_cno_wait<P: Provider>(
    cno: DAT_CNO_HANDLE,
    timeout: DAT_TIMEOUT,
    evd: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    let mut call = CnoWaitCall { cno, timeout, evd, has_polled: false, wait: None };
    // SAFETY: `quick` and `step` require the same of the pointers in `call` as this function requires of its caller.
    unsafe { wait::run(&mut call, quick::<P>, step::<P>) }
}

/// Completes the wait if an EVD has triggered, if the first poll of the EVDs finds an event, or if the handle is
/// invalid. Returns `None` if the wait must continue with [`step`].
///
/// # Safety
/// The arguments in `call` satisfy the contract of [`dapl_cno_wait`].
#[inline(always)]
unsafe fn quick<P: Provider>(call: &mut CnoWaitCall) -> Option<DAT_RETURN> {
    let mut triggered = None;
    let code = ffi::guard_cancellable(|| {
        if !call.evd.is_null() {
            let cno = from_handle_for_post::<Cno<P>>(call.cno).ok_or(Error::InvalidHandle(Handle::Cno))?;
            (triggered, call.has_polled) = cno.wait_quickly();
            cno.release();
        }
        Ok(())
    });
    if let Some(evd) = triggered {
        // SAFETY: `wait_quickly` has returned an EVD. It is called only if `call.evd` is not null, and the caller
        // guarantees that `call.evd` is writable.
        unsafe { ffi::put(call.evd, evd as DAT_EVD_HANDLE) };
    }
    (triggered.is_some() || code != DAT_SUCCESS).then_some(code)
}

/// Runs one step of the wait. Panics are caught here, as in every entry.
///
/// # Safety
/// The arguments in `call` satisfy the contract of [`dapl_cno_wait`].
#[inline(never)]
unsafe fn step<P: Provider>(call: &mut CnoWaitCall, cause: WakeCause) -> WaitStep {
    let mut next = None;
    let code = ffi::guard_cancellable(|| {
        next = Some(run_step::<P>(call, cause)?);
        Ok(())
    });
    let Some(wait) = &mut call.wait else { return WaitStep::Done(code) }; // the wait could not begin
    let (code, evd) = match next {
        Some(CnoWaitResult::Sleep(expected)) => return wait.sleep(expected, clear::<P>),
        Some(CnoWaitResult::Evd(evd)) => (DAT_SUCCESS, Some(evd)),
        // A timeout also sets the handle to null (spec/events 3.5).
        Some(CnoWaitResult::Fail(Error::QueueEmpty)) => (DAT_QUEUE_EMPTY, Some(0)),
        Some(CnoWaitResult::Fail(error)) => (error.code(), None),
        None => (code, None),
    };
    wait.end();
    if let Some(evd) = evd {
        // SAFETY: the caller guarantees that `call.evd` is null or writable.
        unsafe { ffi::put(call.evd, evd as DAT_EVD_HANDLE) };
    }
    WaitStep::Done(code)
}

fn run_step<P: Provider>(call: &mut CnoWaitCall, cause: WakeCause) -> Result<CnoWaitResult> {
    if let Some(wait) = &call.wait {
        return Ok(dapli_cno::resume::<P>(wait, cause));
    }
    let cno = from_handle::<Cno<P>>(call.cno, Handle::Cno)?;
    ffi::require(call.evd, 3)?;
    let (wait, next) = dapli_cno::begin(&cno, call.timeout, call.has_polled);
    call.wait = Some(wait);
    Ok(next)
}
