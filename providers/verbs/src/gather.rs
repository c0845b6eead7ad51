//! Segments as the device has them.
//!
//! Those of no length are left out, since devices take a length of 0 for something else. Pure, and without allocation.
#![forbid(unsafe_code)]

use dapl::error::{Error, Resource, Result};
use dapl::provider::Segment;
use ibverbs_sys::ibv_sge;

/// Segments of one request or receive: limits promise no more.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// Longer than any message: what the device makes of it is a length error.
const TOO_LONG: u32 = 1 << 31;

/// A key that no device gives out.
const NO_KEY: u32 = 0;

/// The segments of one request or receive.
pub(crate) struct Gather {
    list: [ibv_sge; MAX_SEGMENTS],
    count: usize,
    total: u64,
}

impl Gather {
    /// Errors: more segments than limits promise.
    pub(crate) fn new(segments: &[Segment]) -> Result<Self> {
        let mut gather = Gather { list: [ibv_sge::default(); MAX_SEGMENTS], count: 0, total: 0 };
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let place = gather.list.get_mut(gather.count).ok_or(Error::Exhausted(Resource::Memory))?;
            let length = u32::try_from(segment.length).unwrap_or(TOO_LONG);
            *place = ibv_sge { addr: segment.address, length, lkey: segment.key };
            gather.count += 1;
            gather.total = gather.total.saturating_add(segment.length);
        }
        Ok(gather)
    }

    /// Something that the device refuses when its turn comes.
    pub(crate) fn doomed() -> Self {
        let mut gather = Gather { list: [ibv_sge::default(); MAX_SEGMENTS], count: 1, total: 0 };
        gather.list[0] = ibv_sge { addr: 0, length: 1, lkey: NO_KEY };
        gather
    }

    /// For the device.
    pub(crate) fn list(&self) -> &[ibv_sge] {
        &self.list[..self.count]
    }

    /// Bytes in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_no_length_are_left_out() {
        let segment = |length| Segment { key: 7, pad: 9, address: 4096, length };
        let gather = Gather::new(&[segment(0), segment(10), segment(0), segment(1 << 40)]).unwrap();
        let list: Vec<_> = gather.list().iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
        assert_eq!((list, gather.total()), (vec![(4096, 10, 7), (4096, 1 << 31, 7)], 10 + (1 << 40)));
        assert!(Gather::new(&[segment(1); MAX_SEGMENTS]).is_ok());
        assert!(Gather::new(&[segment(1); MAX_SEGMENTS + 1]).is_err());
    }
}
