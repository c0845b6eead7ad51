//! Converts segments to the device's format.
//!
//! Segments of length 0 are left out, since devices interpret a length of 0 differently. Pure functions, without
//! allocation.
#![forbid(unsafe_code)]

use dapl::error::{Error, Resource, Result};
use dapl::provider::Segment;
use ibverbs_sys::ibv_sge;

/// Maximum number of segments of a request or receive; the reported limits are not higher.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// A length beyond any message, which makes the device report a length error.
const TOO_LONG: u32 = 1 << 31;

/// A key that no device assigns.
const NO_KEY: u32 = 0;

/// Number of segments of most requests, to be initialised on the stack.
const FEW: usize = 4;

/// Calls `post` with the segments in the device's format, and the total length.
///
/// Errors: more segments than the limit; those of `post`.
#[inline(always)]
pub(crate) fn gathered<T>(segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    if let [one] = segments
        && one.length > 0
    {
        post(&[sge(one)], one.length)
    } else {
        none_or_many(segments, post)
    }
}

#[inline(never)]
fn none_or_many<T>(segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    if segments.len() <= FEW {
        fill(&mut [ibv_sge::default(); FEW], segments, post)
    } else {
        fill(&mut [ibv_sge::default(); MAX_SEGMENTS], segments, post)
    }
}

/// One segment, which is not empty, in the device's format.
#[inline(always)]
pub(crate) fn sge(segment: &Segment) -> ibv_sge {
    let length = u32::try_from(segment.length).unwrap_or(TOO_LONG);
    ibv_sge { addr: segment.address, length, lkey: segment.key }
}

fn fill<T>(space: &mut [ibv_sge], segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    let (mut count, mut total) = (0, 0_u64);
    for segment in segments.iter().filter(|segment| segment.length > 0) {
        let place = space.get_mut(count).ok_or(Error::Exhausted(Resource::Memory))?;
        *place = sge(segment);
        count += 1;
        total = total.saturating_add(segment.length);
    }
    post(&space[..count], total)
}

/// A segment that the device refuses when it executes the request.
pub(crate) const INVALID_LIST: [ibv_sge; 1] = [ibv_sge { addr: 0, length: 1, lkey: NO_KEY }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_no_length_are_left_out() {
        let segment = |length| Segment { key: 7, pad: 9, address: 4096, length };
        let seen = |list: &[ibv_sge], total| {
            let list: Vec<_> = list.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
            Ok((list, total))
        };
        let some = gathered(&[segment(0), segment(10), segment(0), segment(1 << 40)], seen);
        assert_eq!(some, Ok((vec![(4096, 10, 7), (4096, 1 << 31, 7)], 10 + (1 << 40))));
        let count = |list: &[ibv_sge], _| Ok(list.len());
        for length in [0, FEW, FEW + 1, MAX_SEGMENTS] {
            assert_eq!(gathered(&vec![segment(1); length], count), Ok(length));
        }
        assert!(gathered(&[segment(1); MAX_SEGMENTS + 1], count).is_err());
    }
}
