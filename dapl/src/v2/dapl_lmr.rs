//! DAT 2.0 entries for registered memory: create, query and synchronise. The first two have a virtual address type,
//! which 1.2 lacks.
//!
//! Called through the provider table only.

use dat_abi::v2::*;

use super::convert;
use crate::error::{Error, Handle, Result};
use crate::ffi::{put_cleared, query};
use crate::ia::Ia;
use crate::lmr::{Lmr, Privileges, dapl_lmr as lmr_1_2, zero_based};
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// For `code_with_arguments`: the numbers, in 1.2 and in 2.0, of the parameters after the virtual address type.
/// Parameters after the tenth have no error code of their own.
const PLACES: &[(u32, u32)] = &[(7, 8), (8, 9), (9, 10)];

/// `dat_lmr_create`. Zero-based addresses are refused with `DAT_MODEL_NOT_SUPPORTED` if the provider does not support
/// them (attribute `zb_supported`).
///
/// # Safety
/// `ia` and `pz` may have any value; the member of `region` for the memory type is initialised; the cookie of shared
/// memory is null or points at 40 bytes; `out`, `lmr_context`, `rmr_context`, `registered_length` and
/// `registered_address` are null or writable.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub unsafe extern "C" fn dapl2_lmr_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    va_type: DAT_VA_TYPE,
    out: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    let check = || {
        from_handle::<Ia<P>>(ia, Handle::Ia)?;
        check_address_type::<P>(va_type, 7)
    };
    convert::guard_then(check, |()| {
        // SAFETY: the caller also satisfies the contract of the entry of 1.2.
        let code = unsafe {
            lmr_1_2::create::<P>(
                ia,
                kind,
                region,
                length,
                pz,
                rights(privileges, va_type),
                out,
                lmr_context,
                rmr_context,
                registered_length,
                registered_address,
            )
        };
        convert::code_with_arguments(code, PLACES)
    })
}

/// Decodes privileges and the virtual address type. Returns `None` for unknown privileges.
fn rights(privileges: DAT_MEM_PRIV_FLAGS, va_type: DAT_VA_TYPE) -> Option<Privileges> {
    let mut rights = lmr_1_2::rights(privileges & !DAT_IB_MEM_PRIV_REMOTE_ATOMIC)?;
    rights.access.remote_atomic = privileges & DAT_IB_MEM_PRIV_REMOTE_ATOMIC != 0;
    rights.access.zero_based = va_type == DAT_VA_TYPE_ZB;
    Some(rights)
}

/// Checks a virtual address type, which is parameter `n`.
///
/// Errors: `ModelNotSupported` for zero-based addresses if the provider does not support them; `InvalidParameter(n)`
/// for an unknown type.
pub(super) fn check_address_type<P: Provider>(va_type: DAT_VA_TYPE, n: u8) -> Result<()> {
    match va_type {
        DAT_VA_TYPE_VA => Ok(()),
        DAT_VA_TYPE_ZB if P::HAS_ZERO_BASED => Ok(()),
        DAT_VA_TYPE_ZB => Err(Error::ModelNotSupported),
        _ => Err(Error::InvalidParameter(n)),
    }
}

/// `dat_lmr_query`.
///
/// # Safety
/// `lmr` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_lmr_query<P: Provider>(
    lmr: DAT_LMR_HANDLE,
    mask: DAT_LMR_PARAM_MASK,
    out: *mut DAT_LMR_PARAM,
) -> DAT_RETURN {
    let param = |lmr: &Lmr<P>| Ok(convert::lmr_param(&lmr_1_2::param(lmr), lmr.rights.access));
    // SAFETY: the caller also satisfies the contract of `query`.
    convert::guard(|| unsafe { query(lmr, Handle::Lmr, mask & !DAT_LMR_FIELD_ALL, out, put_cleared, param) })
}

/// `dat_lmr_sync_rdma_read` and `dat_lmr_sync_rdma_write`. Converts the segments and calls the entry of 1.2 for each of
/// them, so that no memory is allocated.
///
/// # Safety
/// `ia` may have any value; `segments` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl2_lmr_sync_rdma<P: Provider>(
    ia: DAT_IA_HANDLE,
    segments: *const DAT_LMR_TRIPLET,
    count: DAT_VLEN,
) -> DAT_RETURN {
    // SAFETY: the list is null or contains `count` segments, which have the layout of a triplet of 1.2.
    let sync = |list, count| unsafe { lmr_1_2::dapl_lmr_sync_rdma::<P>(ia, list, count) };
    if count == 0 || segments.is_null() {
        return convert::code(sync(std::ptr::null(), count));
    }
    for n in 0..count as usize {
        // SAFETY: the caller guarantees that `segments` points at `count` triplets, and `n` is below `count`.
        let mut segment = super::segments::segment(unsafe { segments.wrapping_add(n).read_unaligned() });
        if let Ok(ia) = from_handle::<Ia<P>>(ia, Handle::Ia) {
            zero_based::translate(&ia, &mut segment);
        }
        let code = sync((&raw const segment).cast(), 1);
        if code != DAT_SUCCESS {
            return convert::code(code);
        }
    }
    DAT_SUCCESS
}
