//! C entries `dat_ia_open`, `dat_ia_query`, `dat_ia_close`.
//!
//! Called through the provider table: by libdat, which replaces its IA numbers by handles of this library, or directly
//! by the program. The entries of 2.0 call `open`, the query and the close too.

use std::ffi::CStr;

use dat_abi::*;

use super::dapls_ia::{self, AsyncEvdConstructor};
use super::{AsyncErrorSink, AsyncEvd, Ia, query};
use crate::dapl_descriptor;
use crate::error::{Error, Handle, Result};
use crate::evd::{Evd, dapls_evd};
use crate::ffi::{self, guard, put_cleared, require};
use crate::libdat;
use crate::names::{self, Version};
use crate::provider::Provider;
use crate::runtime::handle::{UseGuard, from_handle};
use crate::runtime::logger;

/// `dat_ia_open`, which libdat calls for `dat_ia_openv`.
///
/// # Safety
/// `name` is null or a NUL-terminated string; `async_evd` and `out` are null or point at a writable handle;
/// `*async_evd` may have any value.
pub unsafe extern "C" fn dapl_ia_open<P: Provider>(
    name: DAT_NAME_PTR,
    length: DAT_COUNT,
    async_evd: *mut DAT_EVD_HANDLE,
    out: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `open`.
    unsafe { open::<P>(Version::V1, name, length, async_evd, out) }
}

/// Like [`dapl_ia_open`], for a name that is registered for the API version `version`.
///
/// # Safety
/// As `dapl_ia_open`.
pub(crate) unsafe fn open<P: Provider>(
    version: Version,
    name: DAT_NAME_PTR,
    length: DAT_COUNT,
    async_evd: *mut DAT_EVD_HANDLE,
    out: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    guard(|| {
        require(name, 1)?;
        if out.is_null() {
            return Err(Error::InvalidHandle(Handle::Ia));
        }
        // SAFETY: `name` is not null, so the caller guarantees that it is a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let registration = names::find(version, name).ok_or(Error::InvalidParameter(1))?;
        require(async_evd, 3)?;
        // SAFETY: `async_evd` is not null, and the caller guarantees that it is readable.
        let choice = choice::<P>(unsafe { async_evd.read_unaligned() }, length)?;
        let opened = logger::with_ia(&registration.name, || {
            let (opened, said) =
                logger::collect_errors(|| dapls_ia::open(registration, crate::cm::sink::<P>(), choice));
            if !said.is_empty() && (opened.is_ok() || !libdat::report_refusal(version, &said)) {
                log::error!("{said}");
            }
            opened
        });
        let (ia, evd) = opened?;
        // SAFETY: `async_evd` is not null, and the caller guarantees that it is writable.
        unsafe { async_evd.write_unaligned(evd) };
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        unsafe { out.write_unaligned(ia) };
        Ok(())
    })
}

/// Decodes the async EVD argument of `dat_ia_openv` (spec/registry 4.3).
fn choice<P: Provider>(evd: DAT_EVD_HANDLE, length: DAT_COUNT) -> Result<AsyncEvdConstructor<P>> {
    if evd == DAT_EVD_ASYNC_EXISTS {
        return Ok(Box::new(|_| Ok(AsyncEvd::OutOfScope)));
    }
    if evd.is_null() {
        return if length > 0 { Ok(dapls_evd::with_ia(length)) } else { Err(Error::InvalidParameter(2)) };
    }
    let evd = from_handle::<Evd<P>>(evd, Handle::EvdAsync)?;
    if !evd.serves(DAT_EVD_ASYNC_FLAG) {
        return Err(Error::InvalidHandle(Handle::EvdAsync));
    }
    let evd: UseGuard<dyn AsyncErrorSink> = UseGuard::of(evd.to_arc());
    Ok(Box::new(move |_| Ok(AsyncEvd::Borrowed(evd))))
}

/// `dat_ia_query`.
///
/// # Safety
/// `ia` may have any value; the out parameters are null or writable.
pub unsafe extern "C" fn dapl_ia_query<P: Provider>(
    ia: DAT_IA_HANDLE,
    async_evd: *mut DAT_EVD_HANDLE,
    ia_mask: DAT_IA_ATTR_MASK,
    ia_attributes: *mut DAT_IA_ATTR,
    provider_mask: DAT_PROVIDER_ATTR_MASK,
    provider_attributes: *mut DAT_PROVIDER_ATTR,
) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?;
        let (wants_ia, wants_provider) = (ia_mask & DAT_IA_FIELD_ALL != 0, provider_mask & DAT_PROVIDER_FIELD_ALL != 0);
        if wants_ia {
            require(ia_attributes, 4)?;
        }
        if ia_mask & !DAT_IA_FIELD_ALL != 0 {
            return Err(Error::InvalidParameter(3));
        }
        if wants_provider {
            require(provider_attributes, 6)?;
        }
        // SAFETY: the caller guarantees that `async_evd` is null or writable.
        unsafe { ffi::put(async_evd, ia.async_evd.lock().handle()) };
        if wants_ia {
            // SAFETY: `ia_attributes` is not null, and the caller guarantees that it is writable.
            unsafe { put_cleared(ia_attributes, query::ia_attributes(&ia)) };
        }
        if wants_provider {
            ia.descriptor_attributes.get_or_init(dapl_descriptor::named_attributes::<P>);
            // SAFETY: `provider_attributes` is not null, and the caller guarantees that it is writable.
            unsafe { put_cleared(provider_attributes, query::provider_attributes(&ia)) };
        }
        Ok(())
    })
}

/// `dat_ia_close`.
///
/// # Safety
/// `ia` may have any value.
pub unsafe extern "C" fn dapl_ia_close<P: Provider>(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN {
    guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?;
        let graceful = match flags {
            DAT_CLOSE_ABRUPT_FLAG => false,
            DAT_CLOSE_GRACEFUL_FLAG => true,
            _ => return Err(Error::InvalidParameter(2)),
        };
        let closed = logger::with_ia(ia.name(), || dapls_ia::close(&ia, graceful));
        // The logger reports suppressed repetitions of a message only when another message follows. After a close there
        // may be none, so the logger is flushed here.
        log::logger().flush();
        closed
    })
}
