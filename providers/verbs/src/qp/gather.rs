//! Converts segments to the scatter/gather entries of verbs, without allocation.
//!
//! Segments of length 0 are omitted, because some devices interpret a length of 0 as 2^31 bytes.
#![forbid(unsafe_code)]

use dapl::error::{Error, Resource, Result};
use dapl::provider::Segment;
use ibverbs_sys::ibv_sge;

/// Maximum number of segments of a request or receive. The limit reported to consumers is not higher.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// Replaces a length that does not fit into 32 bits. No message is longer than this, so a receive of this length holds
/// every message. A request of the original length exceeds the maximum, and is posted with [`INVALID_LIST`] instead.
const EXCESSIVE_LENGTH: u32 = 1 << 31;

/// A key that no device assigns.
const INVALID_KEY: u32 = 0;

/// Work requests with at most this many segments use a small array on the stack, which is cheaper to initialise.
const SMALL_COUNT: usize = 4;

/// Calls `post` with the converted segments and their total length in bytes.
///
/// Errors: `Exhausted(Memory)` for more than [`MAX_SEGMENTS`] segments that are not empty, and the errors of `post`.
#[inline(always)]
pub(crate) fn with_sges<T>(segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    if let [one] = segments
        && one.length > 0
    {
        post(&[sge(one)], one.length)
    } else {
        with_sge_array(segments, post)
    }
}

#[inline(never)]
fn with_sge_array<T>(segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    if segments.len() <= SMALL_COUNT {
        fill(&mut [ibv_sge::default(); SMALL_COUNT], segments, post)
    } else {
        fill(&mut [ibv_sge::default(); MAX_SEGMENTS], segments, post)
    }
}

/// Converts one segment, which is not empty.
#[inline(always)]
pub(crate) fn sge(segment: &Segment) -> ibv_sge {
    let length = u32::try_from(segment.length).unwrap_or(EXCESSIVE_LENGTH);
    ibv_sge { addr: segment.address, length, lkey: segment.key }
}

fn fill<T>(space: &mut [ibv_sge], segments: &[Segment], post: impl FnOnce(&[ibv_sge], u64) -> Result<T>) -> Result<T> {
    let (mut count, mut total) = (0, 0_u64);
    for segment in segments.iter().filter(|segment| segment.length > 0) {
        let entry = space.get_mut(count).ok_or(Error::Exhausted(Resource::Memory))?;
        *entry = sge(segment);
        count += 1;
        total = total.saturating_add(segment.length);
    }
    post(&space[..count], total)
}

/// A list with an invalid key: the device fails the request when it executes it.
pub(crate) const INVALID_LIST: [ibv_sge; 1] = [ibv_sge { addr: 0, length: 1, lkey: INVALID_KEY }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_segments_are_omitted_and_excess_segments_are_an_error() {
        let segment = |length| Segment { key: 7, pad: 9, address: 4096, length };
        let seen = |list: &[ibv_sge], total| {
            let list: Vec<_> = list.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
            Ok((list, total))
        };
        let some = with_sges(&[segment(0), segment(10), segment(0), segment(1 << 40)], seen);
        assert_eq!(some, Ok((vec![(4096, 10, 7), (4096, 1 << 31, 7)], 10 + (1 << 40))));
        let count = |list: &[ibv_sge], _| Ok(list.len());
        for length in [0, SMALL_COUNT, SMALL_COUNT + 1, MAX_SEGMENTS] {
            assert_eq!(with_sges(&vec![segment(1); length], count), Ok(length));
        }
        assert!(with_sges(&[segment(1); MAX_SEGMENTS + 1], count).is_err());
    }
}
