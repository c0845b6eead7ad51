//! `dat_set_consumer_context`, `dat_get_consumer_context`, `dat_get_handle_type`, for any kind of handle.
//!
//! The context is stored in the handle table entry, so the object itself is not looked up.

use std::sync::atomic::Ordering;

use dat_abi::*;

use crate::error::{Error, Handle};
use crate::ffi::{guard, put_required};
use crate::runtime::handle;

/// `dat_set_consumer_context`.
///
/// # Safety
/// `handle` may have any value.
pub unsafe extern "C" fn dapl_set_consumer_context(handle: DAT_HANDLE, context: DAT_CONTEXT) -> DAT_RETURN {
    guard(|| {
        let place = handle::context(handle).ok_or(Error::InvalidHandle(Handle::Any))?;
        // SAFETY: every member of the union is 64 bits wide, and any bits are valid.
        place.store(unsafe { context.as_64 }, Ordering::Release);
        Ok(())
    })
}

/// `dat_get_consumer_context`.
///
/// # Safety
/// `handle` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_get_consumer_context(handle: DAT_HANDLE, out: *mut DAT_CONTEXT) -> DAT_RETURN {
    guard(|| {
        let place = handle::context(handle).ok_or(Error::InvalidHandle(Handle::Any))?;
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, || Ok(DAT_CONTEXT { as_64: place.load(Ordering::Acquire) })) }
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// `handle` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_get_handle_type(handle: DAT_HANDLE, out: *mut DAT_HANDLE_TYPE) -> DAT_RETURN {
    guard(|| {
        let number = handle::handle_type(handle).ok_or(Error::InvalidHandle(Handle::Any))?;
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, || Ok(number)) }
    })
}
