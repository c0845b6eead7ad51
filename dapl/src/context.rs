//! `dat_set_consumer_context`, `dat_get_consumer_context`, `dat_get_handle_type`, for any kind of handle.
//!
//! The context is stored in the handle table entry, so the object itself is not looked up.

use std::sync::atomic::Ordering;

use dat_abi::*;

use crate::error::{Error, Handle};
use crate::ffi::{guard, require};
use crate::runtime::handle::{self, Kind};

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
        require(out, 2)?;
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(DAT_CONTEXT { as_64: place.load(Ordering::Acquire) }) };
        Ok(())
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// `handle` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl_get_handle_type(handle: DAT_HANDLE, out: *mut DAT_HANDLE_TYPE) -> DAT_RETURN {
    guard(|| {
        let kind = handle::kind_of(handle).ok_or(Error::InvalidHandle(Handle::Any))?;
        require(out, 2)?;
        let number = match kind {
            Kind::Cr => DAT_HANDLE_TYPE_CR,
            Kind::Ep => DAT_HANDLE_TYPE_EP,
            Kind::Evd => DAT_HANDLE_TYPE_EVD,
            Kind::Ia => DAT_HANDLE_TYPE_IA,
            Kind::Lmr => DAT_HANDLE_TYPE_LMR,
            Kind::Psp => DAT_HANDLE_TYPE_PSP,
            Kind::Pz => DAT_HANDLE_TYPE_PZ,
            Kind::Rmr => DAT_HANDLE_TYPE_RMR,
            Kind::Rsp => DAT_HANDLE_TYPE_RSP,
            Kind::Cno => DAT_HANDLE_TYPE_CNO,
            Kind::Srq => DAT_HANDLE_TYPE_SRQ,
            Kind::Csp => dat_abi::v2::DAT_HANDLE_TYPE_CSP,
        };
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(number) };
        Ok(())
    })
}
