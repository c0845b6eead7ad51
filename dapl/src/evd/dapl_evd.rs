//! C entries for EVDs: all `dat_evd_*` calls except `dat_evd_wait`.
//!
//! C calls these entries through the provider table of 1.2; the entries of 2.0 call some of them too. Each entry except
//! the dequeue opens its handles, parses its arguments and makes one call. The dequeue is on the hot path: it tries the
//! frequent cases first, and each case has a function of its own.

use dat_abi::*;

use super::Evd;
use super::dapli_evd::EvdState;
use super::dapls_evd;
use super::event_record::{write_plain, write_taken};
use crate::cno::Cno;
use crate::error::{Error, Handle};
use crate::ffi::{guard, guard_cancellable, put, put_required, query, require};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::runtime::handle::{EvdHandle, EvdUse, from_handle, from_handle_for_post, from_optional};
use crate::runtime::sync::MutexGuard;

/// `dat_evd_create`.
///
/// # Safety
/// Handles may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_evd_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    length: DAT_COUNT,
    cno: DAT_CNO_HANDLE,
    flags: DAT_EVD_FLAGS,
    out: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `create`.
    unsafe { create::<P>(ia, length, cno, flags, STREAMS, out) }
}

/// Flags of all event streams of 1.2.
pub(crate) const STREAMS: DAT_EVD_FLAGS = DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DEFAULT_FLAG;

/// `dat_evd_create` for any version of DAT. An EVD may serve any combination of the streams in `known` (spec/events
/// 1.2), but at least one.
///
/// # Safety
/// Handles may have any value; `out` is null or writable.
pub(crate) unsafe fn create<P: Provider>(
    ia: DAT_IA_HANDLE,
    length: DAT_COUNT,
    cno: DAT_CNO_HANDLE,
    flags: DAT_EVD_FLAGS,
    known: DAT_EVD_FLAGS,
    out: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?.to_arc();
        if length <= 0 {
            return Err(Error::InvalidParameter(2));
        }
        let cno = from_optional::<Cno<P>>(cno, Handle::Cno)?.map(|cno| cno.to_arc());
        if flags == 0 || flags & !known != 0 {
            return Err(Error::InvalidParameter(4));
        }
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 5, || dapls_evd::create(&ia, length, cno, flags)) }
    })
}

/// `dat_evd_query`.
///
/// # Safety
/// `evd` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_evd_query<P: Provider>(
    evd: DAT_EVD_HANDLE,
    mask: DAT_EVD_PARAM_MASK,
    out: *mut DAT_EVD_PARAM,
) -> DAT_RETURN {
    let param = |evd: &Evd<P>| Ok(dapls_evd::param(evd));
    // SAFETY: the caller also satisfies the contract of `query`.
    guard(|| unsafe { query(evd, Handle::Plain, mask & !DAT_EVD_FIELD_ALL, out, put, param) })
}

/// `dat_evd_modify_cno`.
///
/// # Safety
/// `evd` and `cno` may have any value.
pub unsafe extern "C" fn dapl_evd_modify_cno<P: Provider>(evd: DAT_EVD_HANDLE, cno: DAT_CNO_HANDLE) -> DAT_RETURN {
    guard(|| {
        let evd = from_handle::<Evd<P>>(evd, Handle::Plain)?;
        let cno = from_optional::<Cno<P>>(cno, Handle::Cno)?.map(|cno| cno.to_arc());
        dapls_evd::modify_cno(&evd, cno);
        Ok(())
    })
}

/// `dat_evd_enable`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_enable<P: Provider>(evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    guard(|| from_handle::<Evd<P>>(evd, Handle::Plain).map(|evd| dapls_evd::set_enabled(&evd, true)))
}

/// `dat_evd_disable`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_disable<P: Provider>(evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    guard(|| from_handle::<Evd<P>>(evd, Handle::Plain).map(|evd| dapls_evd::set_enabled(&evd, false)))
}

/// `dat_evd_set_unwaitable`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_set_unwaitable<P: Provider>(evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    guard(|| from_handle::<Evd<P>>(evd, Handle::Plain).map(|evd| dapls_evd::set_waitable(&evd, false)))
}

/// `dat_evd_clear_unwaitable`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_clear_unwaitable<P: Provider>(evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    guard(|| from_handle::<Evd<P>>(evd, Handle::Plain).map(|evd| dapls_evd::set_waitable(&evd, true)))
}

/// `dat_evd_resize`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_resize<P: Provider>(evd: DAT_EVD_HANDLE, length: DAT_COUNT) -> DAT_RETURN {
    guard(|| dapls_evd::resize(&*from_handle::<Evd<P>>(evd, Handle::Plain)?, length))
}

/// `dat_evd_post_se`.
///
/// # Safety
/// `evd` may have any value; `event` is null or points at a record.
pub unsafe extern "C" fn dapl_evd_post_se<P: Provider>(evd: DAT_EVD_HANDLE, event: *const DAT_EVENT) -> DAT_RETURN {
    guard(|| {
        let evd = from_handle::<Evd<P>>(evd, Handle::Plain)?;
        if !evd.serves(DAT_EVD_SOFTWARE_FLAG) {
            return Err(Error::InvalidParameter(1));
        }
        require(event, 2)?;
        // SAFETY: `event` is not null, and the caller guarantees that it is readable.
        let number = unsafe { (&raw const (*event).event_number).read_unaligned() };
        if number != DAT_SOFTWARE_EVENT {
            return Err(Error::InvalidParameter(2));
        }
        // SAFETY: `event` is not null, and the caller guarantees that it is readable. The event number selects the
        // union member, and any bits are a valid pointer value.
        let pointer = unsafe { (&raw const (*event).event_data.software_event_data.pointer).read_unaligned() };
        dapls_evd::post_software(&evd, pointer as usize)
    })
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// `evd` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_evd_dequeue<P: Provider>(evd: DAT_EVD_HANDLE, out: *mut DAT_EVENT) -> DAT_RETURN {
    // The functions called here have an ABI that does not unwind, so the compiler can turn the calls into jumps.
    if out.is_null() {
        // SAFETY: the caller also satisfies the contract of `dequeue`.
        return unsafe { dequeue::<P>(evd, out) };
    }
    let Some(entry) = EvdHandle::of(evd) else {
        // SAFETY: the caller also satisfies the contract of `dequeue`.
        return unsafe { dequeue::<P>(evd, out) };
    };
    if entry.has_no_event() {
        return DAT_QUEUE_EMPTY;
    }
    // SAFETY: `out` is not null, and the caller guarantees that it is writable.
    unsafe { dequeue_quickly::<P>(entry, out) }
}

/// `dat_evd_dequeue` for an EVD that may have an event. Returns an event from the buffer. In all other cases it jumps
/// to another function, so that it saves few registers.
///
/// # Safety
/// `out` is writable and not null.
#[inline(never)]
unsafe extern "C" fn dequeue_quickly<P: Provider>(entry: EvdHandle, out: *mut DAT_EVENT) -> DAT_RETURN {
    let Some(evd_use) = entry.protect() else {
        // SAFETY: the caller also satisfies the contract of `dequeue`.
        return unsafe { dequeue::<P>(entry.handle(), out) };
    };
    let object = evd_use.object::<Evd<P>>();
    // SAFETY: the object is valid until `evd_use` ends, and is not accessed after that.
    let Some(evd) = object.map(|object| unsafe { object.as_ref() }) else {
        // SAFETY: the caller also satisfies the contract of `dequeue_counted`.
        return unsafe { dequeue_counted::<P>(entry, out, evd_use) };
    };
    let Some(mut inner) = evd.try_lock_quickly() else {
        // SAFETY: the caller guarantees that `out` is writable, and `evd_use` protects `evd`, which has this type.
        return unsafe { dequeue_contended::<P>(entry, out, evd_use) };
    };
    let Some((done, is_last)) = inner.next_plain() else {
        // SAFETY: the caller guarantees that `out` is writable, `evd_use` protects `evd`, and `inner` is the guard of
        // its lock.
        return unsafe { dequeue_by_poll::<P>(entry, out, evd_use, inner) };
    };
    // SAFETY: the caller guarantees that `out` is writable.
    unsafe { write_plain(out, entry.handle(), done) };
    if is_last {
        evd.allow_empty_check(&inner);
    }
    drop(inner);
    evd_use.end();
    DAT_SUCCESS
}

/// `dat_evd_dequeue` by the path with all checks ([`dequeue`]), because another thread excludes uncounted references or
/// has freed the EVD.
///
/// # Safety
/// Same as [`dequeue_quickly`].
#[cold]
#[inline(never)]
unsafe extern "C" fn dequeue_counted<P: Provider>(
    entry: EvdHandle,
    out: *mut DAT_EVENT,
    evd_use: EvdUse,
) -> DAT_RETURN {
    evd_use.end();
    // SAFETY: the caller also satisfies the contract of `dequeue`.
    unsafe { dequeue::<P>(entry.handle(), out) }
}

/// `dat_evd_dequeue` when another thread holds the EVD's lock: waits for the lock.
///
/// # Safety
/// Same as [`dequeue_quickly`]; `evd_use` protects an EVD of this provider type.
#[cold]
#[inline(never)]
unsafe extern "C" fn dequeue_contended<P: Provider>(
    entry: EvdHandle,
    out: *mut DAT_EVENT,
    evd_use: EvdUse,
) -> DAT_RETURN {
    guard_cancellable(|| {
        // SAFETY: the caller guarantees that `evd_use` protects an EVD of this type.
        let object = unsafe { evd_use.into_ref::<Evd<P>>() };
        // SAFETY: the caller guarantees that `out` is writable.
        object.dequeue_quickly(|given| unsafe { write_taken(out, entry.handle(), given) })
    })
}

/// `dat_evd_dequeue` when the buffer is empty: dequeues from the queue, or polls the CQ if the queue is empty too.
///
/// # Safety
/// Same as [`dequeue_quickly`]; `evd_use` protects an EVD of this provider type, and `inner` is the guard of its lock.
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "not called from C; a function of this ABI does not unwind")]
unsafe extern "C" fn dequeue_by_poll<P: Provider>(
    entry: EvdHandle,
    out: *mut DAT_EVENT,
    evd_use: EvdUse,
    inner: MutexGuard<'_, EvdState<P>>,
) -> DAT_RETURN {
    guard_cancellable(|| {
        // SAFETY: the caller guarantees that `evd_use` protects an EVD of this type.
        let object = unsafe { evd_use.into_ref::<Evd<P>>() };
        // SAFETY: the caller guarantees that `out` is writable.
        object.poll_quickly(inner, |given| unsafe { write_taken(out, entry.handle(), given) })
    })
}

/// `dat_evd_dequeue` for all cases, with all checks.
///
/// # Safety
/// `evd` may have any value; `out` is null or writable.
#[inline(never)]
unsafe extern "C" fn dequeue<P: Provider>(evd: DAT_EVD_HANDLE, out: *mut DAT_EVENT) -> DAT_RETURN {
    guard_cancellable(|| {
        let Some(object) = from_handle_for_post::<Evd<P>>(evd) else { return Err(Error::InvalidHandle(Handle::Plain)) };
        require(out, 2)?;
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        let result = object.dequeue(|given| unsafe { write_taken(out, evd, given) });
        object.release();
        result
    })
}

/// `dat_evd_free`.
///
/// # Safety
/// `evd` may have any value.
pub unsafe extern "C" fn dapl_evd_free<P: Provider>(evd: DAT_EVD_HANDLE) -> DAT_RETURN {
    guard(|| dapls_evd::free(&*from_handle::<Evd<P>>(evd, Handle::Plain)?))
}
