//! LMRs whose addresses start at 0 (`DAT_VA_TYPE_ZB`), which only consumers of DAT 2.0 have.
//!
//! Providers translate the addresses of peers. Local segments are translated here, before they reach an entry: providers and
//! objects know addresses of this process only.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Lmr;
use crate::ia::Ia;
use crate::provider::{Access, Provider, Segment};
use crate::runtime::handle;

/// Number of zero-based LMRs in this process. While it is 0, posts need no lookup.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has zero-based LMRs.
#[inline(always)]
pub fn any_exist() -> bool {
    // Relaxed suffices: a consumer that has the context of an LMR has synchronised with the creation of the LMR.
    COUNT.load(Ordering::Relaxed) > 0
}

pub(super) fn count(access: &Access) {
    COUNT.fetch_add(access.zero_based.into(), Ordering::Relaxed);
}

pub(super) fn decrement(access: &Access) {
    COUNT.fetch_sub(access.zero_based.into(), Ordering::Relaxed);
}

/// If the context of a segment belongs to a zero-based LMR, converts its offset to an address of this process. An
/// offset beyond the length of the LMR gives an address outside of the LMR, which later checks refuse.
pub fn translate<P: Provider>(ia: &Ia<P>, segment: &mut Segment) {
    let lmr = ia.context(segment.key).and_then(handle::from_id::<Lmr<P>>);
    if let Some(lmr) = lmr.filter(|lmr| segment.length > 0 && lmr.rights.access.zero_based) {
        segment.address = segment.address.wrapping_add(lmr.region.address);
    }
}
