//! DAT 2.0 entries for interface adapters: open, query, and whether an adapter can take over for another.
//!
//! Called through the provider table only.

use std::ffi::CStr;

use dat_abi as v1;
use dat_abi::v2::*;

use super::convert;
use crate::error::Handle;
use crate::ffi::{guard, put_cleared, require};
use crate::ia::{Ia, dapl_ia as ia_1_2};
use crate::names::Version;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_ia_openv`: like `dapl_ia_open`, for the name's registration for 2.0.
///
/// # Safety
/// `name` is null or a NUL-terminated string; `async_evd` and `out` are null or point at a writable handle.
pub unsafe extern "C" fn dapl2_ia_open<P: Provider>(
    name: DAT_NAME_PTR,
    length: DAT_COUNT,
    async_evd: *mut DAT_EVD_HANDLE,
    out: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `ia_1_2::open`.
    convert::code(unsafe { ia_1_2::open::<P>(Version::V2, name, length, async_evd, out) })
}

/// `dat_ia_query`.
///
/// # Safety
/// `ia` may have any value; `async_evd`, `ia_attr` and `provider_attr` are null or writable.
pub unsafe extern "C" fn dapl2_ia_query<P: Provider>(
    ia: DAT_IA_HANDLE,
    async_evd: *mut DAT_EVD_HANDLE,
    ia_mask: DAT_IA_ATTR_MASK,
    ia_attr: *mut DAT_IA_ATTR,
    provider_mask: DAT_PROVIDER_ATTR_MASK,
    provider_attr: *mut DAT_PROVIDER_ATTR,
) -> DAT_RETURN {
    let (wants_ia, wants_provider) = (ia_mask & DAT_IA_FIELD_ALL != 0, provider_mask & DAT_PROVIDER_FIELD_ALL != 0);
    let ia_mask_1_2 = convert::ia_mask(ia_mask);
    let provider_mask_1_2 = if wants_provider { v1::DAT_PROVIDER_FIELD_ALL } else { 0 };
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let (mut of_ia, mut of_provider): (v1::DAT_IA_ATTR, v1::DAT_PROVIDER_ATTR) = unsafe { std::mem::zeroed() };
    let into_ia = if ia_attr.is_null() { std::ptr::null_mut() } else { &raw mut of_ia };
    let into_provider = if provider_attr.is_null() { std::ptr::null_mut() } else { &raw mut of_provider };
    // SAFETY: the caller also satisfies the contract of the entry of 1.2; the records are null or local variables.
    let code =
        unsafe { ia_1_2::dapl_ia_query::<P>(ia, async_evd, ia_mask_1_2, into_ia, provider_mask_1_2, into_provider) };
    if code != DAT_SUCCESS {
        return convert::code(code);
    }
    convert::code(guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?;
        if wants_ia {
            // SAFETY: `ia_attr` is not null, because the entry has succeeded, and the caller guarantees that it is
            // writable.
            unsafe { put_cleared(ia_attr, convert::ia_attr(&of_ia, ia.limits(), P::HAS_ZERO_BASED)) };
        }
        if wants_provider {
            // SAFETY: `provider_attr` is not null, because the entry has succeeded, and the caller guarantees that it
            // is writable.
            unsafe { put_cleared(provider_attr, convert::provider_attr(&of_provider, P::HAS_QP_WINDOWS)) };
        }
        Ok(())
    }))
}

/// `ia_ha_related`, which implements `dat_registry_providers_related`. Always writes `DAT_FALSE`, because no adapter
/// can take over connections of another adapter.
///
/// # Safety
/// `ia` may have any value; `provider` is null or a NUL-terminated string; `answer` is null or writable.
pub unsafe extern "C" fn dapl2_ia_ha_related<P: Provider>(
    ia: DAT_IA_HANDLE,
    provider: DAT_NAME_PTR,
    answer: *mut DAT_BOOLEAN,
) -> DAT_RETURN {
    convert::code(guard(|| {
        let ia = from_handle::<Ia<P>>(ia, Handle::Ia)?;
        require(provider, 2)?;
        require(answer, 3)?;
        // SAFETY: `provider` is not null, so the caller guarantees that it is a C string.
        let other = unsafe { CStr::from_ptr(provider) };
        log::debug!("ia {}: dat_ia_ha_related: {other:?} is not related to this adapter", ia.name());
        // SAFETY: `answer` is not null, and the caller guarantees that it is writable.
        unsafe { answer.write_unaligned(DAT_FALSE) };
        Ok(())
    }))
}
