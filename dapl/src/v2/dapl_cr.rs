//! DAT 2.0 entry that rejects a connection request with private data.
//!
//! Called through the provider table only.

use dat_abi::v2::*;

use super::convert;
use crate::cr::Cr;
use crate::error::{Error, Handle};
use crate::ffi::{self, require};
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
        let size = usize::try_from(size).ok().filter(|size| *size <= limit).ok_or(Error::InvalidParameter(2))?;
        if size > 0 {
            require(data, 3)?;
        }
        // SAFETY: the caller guarantees that `data` points at `size` bytes; `copy` does not read for a size of 0.
        let bytes = unsafe { ffi::copy(data, size) };
        cr.reject(&bytes)
    })
}
