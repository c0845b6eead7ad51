//! Segments of posts: converts triplets of 2.0 to the layout of 1.2, which providers use.

use dat_abi as v1;
use dat_abi::v2::*;

use super::convert;
use crate::provider::Segment;

/// Maximum number of segments that are converted without an allocation.
const MAX_ON_STACK: usize = 8;
/// More segments than any provider supports.
const MAX_SEGMENTS: usize = 4096;

/// Converts a triplet to a segment.
#[inline(always)]
pub(super) fn segment(triplet: DAT_LMR_TRIPLET) -> Segment {
    let DAT_LMR_TRIPLET { virtual_address, segment_length, lmr_context } = triplet;
    Segment { key: lmr_context, pad: 0, address: virtual_address, length: segment_length.into() }
}

/// Calls an entry of 1.2 with a converted list of segments, and converts its return code. A count or list that every
/// entry refuses is passed on unchanged.
///
/// # Safety
/// `list` is null or points at `count` triplets that do not change during the call.
#[inline(always)]
pub(super) unsafe fn with_segments(
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
        // SAFETY: this function's own contract.
        return unsafe { with_many(list, number, |list| call(list, count)) };
    }
    let mut few = [Segment::default(); MAX_ON_STACK];
    for (n, place) in few[..number].iter_mut().enumerate() {
        // SAFETY: one of the `count` triplets of this function's contract, and aligned.
        *place = segment(unsafe { list.add(n).read() });
    }
    convert::code(call(few.as_mut_ptr().cast(), count))
}

/// # Safety
/// `list` points at `number` triplets.
#[cold]
unsafe fn with_many(
    list: *const DAT_LMR_TRIPLET,
    number: usize,
    call: impl FnOnce(*mut v1::DAT_LMR_TRIPLET) -> DAT_RETURN,
) -> DAT_RETURN {
    // SAFETY: this function's own contract.
    let mut many: Vec<_> = (0..number).map(|n| segment(unsafe { list.add(n).read() })).collect();
    convert::code(call(many.as_mut_ptr().cast()))
}
