//! LMRs whose addresses start at 0 (`DAT_VA_TYPE_ZB`). Only consumers of DAT 2.0 can create them.
//!
//! Providers translate the addresses that peers use. This module translates the addresses of local segments of 2.0
//! calls, because providers and the other modules only handle addresses of this process.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Lmr;
use crate::ia::Ia;
use crate::provider::{Access, Provider, Segment};
use crate::runtime::handle;

/// Number of zero-based LMRs of this library. While it is 0, segments of posts need no lookup.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether this library has zero-based LMRs.
#[inline(always)]
pub fn any_exist() -> bool {
    // Relaxed suffices: a consumer that uses the context of an LMR has synchronised with the creation of the LMR.
    COUNT.load(Ordering::Relaxed) > 0
}

pub(super) fn count(access: &Access) {
    COUNT.fetch_add(access.zero_based.into(), Ordering::Relaxed);
}

pub(super) fn decrement(access: &Access) {
    COUNT.fetch_sub(access.zero_based.into(), Ordering::Relaxed);
}

/// If the context of a segment belongs to a zero-based LMR, converts the segment's offset to an address of this
/// process. An offset beyond the end of the LMR becomes an address outside of it, which later checks refuse.
pub fn translate<P: Provider>(ia: &Ia<P>, segment: &mut Segment) {
    let lmr = ia.context(segment.key).and_then(handle::from_id::<Lmr<P>>);
    if let Some(lmr) = lmr.filter(|lmr| segment.length > 0 && lmr.rights.access.zero_based) {
        segment.address = segment.address.wrapping_add(lmr.region.address);
    }
}
