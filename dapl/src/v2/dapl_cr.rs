//! DAT 2.0 entry that rejects a connection request with private data.
//!
//! Called through the provider table only.

use dat_abi::v2::*;

use super::convert;
use crate::cr::Cr;
use crate::error::Handle;
use crate::ffi;
use crate::provider::Provider;
use crate::runtime::handle::from_handle;

/// `dat_cr_reject`. The PEER_REJECTED event of the requester contains the private data.
///
/// # Safety
/// `cr` may have any value; `data` is null or points at `size` bytes.
pub unsafe extern "C" fn dapl2_cr_reject<P: Provider>(
    cr: DAT_CR_HANDLE,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    convert::guard(|| {
        let cr = from_handle::<Cr<P>>(cr, Handle::Cr)?;
        let limit = cr.ia.limits().private_data_reject;
        // SAFETY: the caller guarantees that `data` is null or points at `size` bytes.
        let bytes = unsafe { ffi::private_data(data, size, limit, 2) }?;
        cr.reject(&bytes)
    })
}
