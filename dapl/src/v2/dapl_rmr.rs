//! DAT 2.0 entries for remote memory regions: query, bind, and regions for the peer of one EP.
//!
//! Called through the provider table only.

use dat_abi::v2::*;

use super::convert;
use super::dapl_lmr::check_address_type;
use super::segments::segment as segment_of;
use crate::error::{Error, Handle, Result};
use crate::ffi::{put, put_required, query, require};
use crate::lmr::dapl_lmr::privileges;
use crate::lmr::{Lmr, zero_based};
use crate::provider::{MemoryRegion, Provider};
use crate::pz::Pz;
use crate::rmr::{Rmr, RmrBinding, RmrScope, dapl_rmr as rmr_1_2, dapls_rmr};
use crate::runtime::handle::{self, from_handle};

/// For `code_with_arguments`: the numbers of the parameters in 1.2 and in 2.0. In 2.0 an LMR precedes the triplet, and
/// a virtual address type follows the privileges.
const PLACES: &[(u32, u32)] = &[(2, 3), (3, 4), (4, 6), (5, 7), (6, 8), (7, 9)];

/// `dat_rmr_query`. For an unbound RMR, the triplet, the privileges and the remote context are zero.
///
/// # Safety
/// `rmr` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_rmr_query<P: Provider>(
    rmr: DAT_RMR_HANDLE,
    mask: DAT_RMR_PARAM_MASK,
    out: *mut DAT_RMR_PARAM,
) -> DAT_RETURN {
    let param = |rmr: &Rmr<P>| {
        let RmrBinding { mut segment, rights, context } = dapls_rmr::bound(rmr).unwrap_or_default();
        if let Some(lmr) = rmr.ia.context(segment.key).and_then(handle::from_id::<Lmr<P>>) {
            // Converts the address back to the one in the triplet that the consumer has passed to the bind.
            segment.address -= lmr.region.address - lmr.first_address();
        }
        Ok(DAT_RMR_PARAM {
            ia_handle: rmr.ia.consumer_handle(),
            pz_handle: rmr.pz.handle as DAT_PZ_HANDLE,
            lmr_triplet: DAT_LMR_TRIPLET {
                virtual_address: segment.address,
                segment_length: convert::size(segment.length),
                lmr_context: segment.key,
            },
            mem_priv: privileges(rights),
            rmr_context: context,
            rmr_scope: if rmr.scope == RmrScope::Ep { DAT_RMR_SCOPE_EP } else { DAT_RMR_SCOPE_PZ },
            va_type: convert::va_type(rights.access),
        })
    };
    // SAFETY: the caller also satisfies the contract of `query`.
    convert::guard(|| unsafe { query(rmr, Handle::Rmr, mask & !DAT_RMR_FIELD_ALL, out, put, param) })
}

/// `dat_rmr_create_for_ep`: creates an RMR that only the peer of one EP can use, the EP to which the bind is posted.
///
/// # Safety
/// `pz` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_rmr_create_for_ep<P: Provider>(
    pz: DAT_PZ_HANDLE,
    out: *mut DAT_RMR_HANDLE,
) -> DAT_RETURN {
    convert::guard(|| {
        let pz = from_handle::<Pz<P>>(pz, Handle::Pz)?.to_arc();
        // SAFETY: the caller guarantees that `out` is null or writable.
        unsafe { put_required(out, 2, || dapls_rmr::create(pz, RmrScope::Ep)) }
    })
}

/// `dat_rmr_bind`. `lmr` must be the LMR whose context is in the triplet. An unbind (length 0) ignores `lmr`, the other
/// fields of the triplet, the privileges, the virtual address type and `context`.
///
/// # Safety
/// Handles may have any value; `segment` is null or points at a triplet; `context` is null or writable.
#[allow(clippy::too_many_arguments, reason = "the specification defines the arguments")]
pub unsafe extern "C" fn dapl2_rmr_bind<P: Provider>(
    rmr: DAT_RMR_HANDLE,
    lmr: DAT_LMR_HANDLE,
    segment: *const DAT_LMR_TRIPLET,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    va_type: DAT_VA_TYPE,
    ep: DAT_EP_HANDLE,
    cookie: DAT_RMR_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    let segment = || {
        let rmr = from_handle::<Rmr<P>>(rmr, Handle::Rmr)?;
        require(segment, 3)?;
        // SAFETY: `segment` is not null, so the caller guarantees that it points at a triplet.
        let triplet = unsafe { segment.read_unaligned() };
        check::<P>(lmr, triplet, va_type)?;
        let mut segment = segment_of(triplet);
        zero_based::translate(&rmr.ia, &mut segment);
        Ok(segment)
    };
    convert::guard_then(segment, |segment| {
        let (segment, flags) = ((&raw const segment).cast(), convert::flags(flags));
        let is_zero_based = va_type == DAT_VA_TYPE_ZB;
        // SAFETY: the caller also satisfies the contract of `bind`. The segment is a local variable with the layout of
        // a triplet.
        let code = unsafe { rmr_1_2::bind::<P>(rmr, segment, mem_priv, is_zero_based, ep, cookie, flags, context) };
        convert::code_with_arguments(code, PLACES)
    })
}

fn check<P: Provider>(lmr: DAT_LMR_HANDLE, segment: DAT_LMR_TRIPLET, va_type: DAT_VA_TYPE) -> Result<()> {
    if segment.segment_length == 0 {
        return Ok(());
    }
    let lmr = from_handle::<Lmr<P>>(lmr, Handle::Lmr)?;
    if lmr.mr.local_key() != segment.lmr_context {
        return Err(Error::InvalidParameter(3));
    }
    check_address_type::<P>(va_type, 5)
}
