//! DAT 2.0 entries for shared receive queues whose records differ from 1.2: query and post.
//!
//! Called through the provider table only. A post is on the hot path.

use dat_abi::v2::*;

use super::convert;
use super::segments::with_segments;
use crate::provider::Provider;
use crate::srq::dapl_srq as srq_1_2;

/// `dat_srq_query`.
///
/// # Safety
/// `srq` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_srq_query<P: Provider>(
    srq: DAT_SRQ_HANDLE,
    mask: DAT_SRQ_PARAM_MASK,
    out: *mut DAT_SRQ_PARAM,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `srq_1_2::dapl_srq_query`.
    let code = unsafe { srq_1_2::dapl_srq_query::<P>(srq, mask, out) };
    if code == DAT_SUCCESS {
        // SAFETY: the entry of 1.2 has written the record.
        unsafe {
            let state = &raw mut (*out).srq_state;
            state.write_unaligned(convert::srq_state(state.read_unaligned()));
        }
    }
    convert::code(code)
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// `srq` may have any value; `list` is null or points at `count` triplets.
pub unsafe extern "C" fn dapl2_srq_post_recv<P: Provider>(
    srq: DAT_SRQ_HANDLE,
    count: DAT_COUNT,
    list: *mut DAT_LMR_TRIPLET,
    cookie: DAT_DTO_COOKIE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `with_segments`.
    unsafe {
        with_segments::<P>(srq, list, count, |list, count| srq_1_2::dapl_srq_post_recv::<P>(srq, count, list, cookie))
    }
}
