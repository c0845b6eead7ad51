//! Converts the segments of posts from triplets of 2.0 to those of 1.2, which providers use. In segments of zero-based
//! LMRs, also converts the offset to an address.

use dat_abi as v1;
use dat_abi::v2::*;

use super::convert;
use crate::ep::Ep;
use crate::error::Handle;
use crate::lmr::zero_based;
use crate::provider::{Provider, Segment};
use crate::runtime::handle::from_handle;
use crate::srq::Srq;

/// Maximum number of segments that are converted without an allocation.
const MAX_ON_STACK: usize = 8;
/// Maximum number of segments that are converted. No provider supports as many in a post.
const MAX_SEGMENTS: usize = 4096;

/// Converts a triplet to a segment.
#[inline(always)]
pub(super) fn segment(triplet: DAT_LMR_TRIPLET) -> Segment {
    let DAT_LMR_TRIPLET { virtual_address, segment_length, lmr_context } = triplet;
    Segment { key: lmr_context, pad: 0, address: virtual_address, length: segment_length.into() }
}

/// Calls an entry of 1.2 with a list of segments, and converts its code. An empty list is passed as it is. A count or
/// list that no entry accepts is passed unconverted, so that the entry refuses it. `handle` is the EP or SRQ, as the
/// consumer passes it.
///
/// # Safety
/// `list` is null or points at `count` triplets that do not change during the call.
#[inline(always)]
pub(super) unsafe fn with_segments<P: Provider>(
    handle: DAT_HANDLE,
    list: *const DAT_LMR_TRIPLET,
    count: DAT_COUNT,
    call: impl FnOnce(*mut v1::DAT_LMR_TRIPLET, DAT_COUNT) -> DAT_RETURN,
) -> DAT_RETURN {
    let number = usize::try_from(count).unwrap_or(0);
    if number == 0 || list.is_null() || !list.is_aligned() {
        return convert::code(call(list.cast_mut().cast(), count));
    }
    if number > MAX_SEGMENTS {
        return convert::code(call(std::ptr::null_mut(), count));
    }
    if number > MAX_ON_STACK {
        // SAFETY: the caller also satisfies the contract of `with_many`.
        return unsafe { with_many::<P>(handle, list, number, |list| call(list, count)) };
    }
    let mut few = [Segment::default(); MAX_ON_STACK];
    for (n, place) in few[..number].iter_mut().enumerate() {
        // SAFETY: the caller guarantees that `list` points at `count` triplets; `n` is below `count`, and the list is
        // aligned.
        *place = segment(unsafe { list.add(n).read() });
    }
    if zero_based::any_exist() {
        translate::<P>(handle, &mut few[..number]);
    }
    convert::code(call(few.as_mut_ptr().cast(), count))
}

/// # Safety
/// `list` points at `number` triplets.
#[cold]
unsafe fn with_many<P: Provider>(
    handle: DAT_HANDLE,
    list: *const DAT_LMR_TRIPLET,
    number: usize,
    call: impl FnOnce(*mut v1::DAT_LMR_TRIPLET) -> DAT_RETURN,
) -> DAT_RETURN {
    // SAFETY: the caller guarantees that `list` points at `number` triplets.
    let mut many: Vec<_> = (0..number).map(|n| segment(unsafe { list.add(n).read() })).collect();
    translate::<P>(handle, &mut many);
    convert::code(call(many.as_mut_ptr().cast()))
}

/// Converts the offsets in segments of zero-based LMRs to addresses of this process. Does nothing if the handle is
/// neither an EP nor an SRQ; the entry then refuses the handle.
#[cold]
fn translate<P: Provider>(handle: DAT_HANDLE, segments: &mut [Segment]) {
    let ia = from_handle::<Ep<P>>(handle, Handle::Ep)
        .map(|ep| ep.ia.clone())
        .or_else(|_| from_handle::<Srq<P>>(handle, Handle::Srq).map(|srq| srq.ia.clone()));
    if let Ok(ia) = ia {
        segments.iter_mut().for_each(|segment| zero_based::translate(&ia, segment));
    }
}
