//! LMR operations for other modules: create, find by context, and free.
//!
//! The registration ends when the LMR was freed and the last call that uses it has returned.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{Lmr, Origin, Privileges, zero_based};
use crate::error::{Error, Handle, Result, State};
use crate::ia::{CloseRank, Ia};
use crate::provider::{Provider, Region, Segment};
use crate::pz::Pz;
use crate::runtime::handle::{self, Ref, UnpublishedObject, UseCount, UseCounted, UseGuard};
use crate::runtime::mappings;

/// Registers memory and creates its LMR, whose handle is not live yet.
///
/// Errors: `Length` for zero bytes; `InvalidParameter` for an invalid range or memory that is not mapped;
/// `InvalidState` for a shared registration of private memory (spec/events 8.1); `ModelNotSupported` for zero-based
/// addresses if the provider does not support them; those of the provider.
pub fn create<P: Provider>(
    ia: Arc<Ia<P>>,
    pz: Arc<Pz<P>>,
    region: Region,
    origin: Origin,
    rights: Privileges,
) -> Result<UnpublishedObject<Lmr<P>>> {
    if rights.access.zero_based && !P::HAS_ZERO_BASED {
        return Err(Error::ModelNotSupported);
    }
    check(region, ia.limits().max_lmr_size)?;
    handle::create(ia.table(), |id| {
        let mr = match &origin {
            // Zero-based memory is not registered as shared, because peers that map it would not translate zero-based
            // addresses.
            Origin::Shared(_) if !rights.access.zero_based => {
                ia.provider.register_shared(&pz.pd, region, rights.access)?
            }
            _ => ia.provider.register(&pz.pd, region, rights.access)?,
        };
        let membership = match &origin {
            Origin::Shared(_) if is_private(region) => return Err(Error::InvalidState(State::Plain)),
            Origin::Shared(cookie) => Some(ia.provider.join(cookie, region.length)?),
            Origin::Memory | Origin::Lmr(_) => None,
        };
        Ok(Lmr {
            id,
            ia,
            pz: UseGuard::of_open(pz, Handle::Pz)?,
            mr,
            region,
            rights,
            origin,
            _membership: membership,
            uses: UseCount::default(),
        })
    })
}

/// Whether part of the region is a private mapping of this process; `false` if `/proc/self/maps` cannot be read, or if
/// part of the region is not mapped.
fn is_private(region: Region) -> bool {
    mappings::lookup(region, mappings::PageRights { shared: true, ..mappings::PageRights::default() })
        == mappings::MappingLookup::Forbidden
}

/// Makes the handle of a new LMR live, and adds its contexts to the IA.
pub fn publish<P: Provider>(lmr: UnpublishedObject<Lmr<P>>) -> *mut std::ffi::c_void {
    let object = lmr.object().clone();
    zero_based::count(&object.rights.access);
    object.ia.publish(lmr, CloseRank::Lmr)
}

/// The live LMR with the context of a segment, if the segment lies inside the LMR.
pub fn find<P: Provider>(ia: &Ia<P>, segment: &Segment) -> Option<Ref<Lmr<P>>> {
    let lmr = handle::from_id::<Lmr<P>>(ia.context(segment.key)?)?;
    let Region { address, length } = lmr.region;
    let offset = segment.address.checked_sub(address)?;
    (offset <= length && segment.length <= length - offset).then_some(lmr)
}

fn check(region: Region, longest: u64) -> Result<()> {
    if region.length == 0 {
        return Err(Error::Length);
    }
    if region.address == 0 {
        return Err(Error::InvalidParameter(3));
    }
    if region.length > longest || region.address.checked_add(region.length).is_none() {
        return Err(Error::InvalidParameter(4));
    }
    Ok(())
}

/// Frees the LMR, even if posted work uses it.
///
/// Errors: `InvalidState(LmrInUse)` while an RMR is bound to the LMR; `InvalidHandle` if another thread has freed the
/// LMR.
pub fn free<P: Provider>(lmr: &Lmr<P>) -> Result<()> {
    lmr.uses().close(State::LmrInUse)?;
    close(lmr)
}

/// Closes the LMR. Errors: `InvalidHandle` if it is already closed.
pub(super) fn close<P: Provider>(lmr: &Lmr<P>) -> Result<()> {
    handle::free(lmr.id, Handle::Lmr)?;
    zero_based::decrement(&lmr.rights.access);
    lmr.ia.remove_child(lmr);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lmr_regions_are_refused() {
        let at = |address, length| check(Region { address, length }, 1 << 40);
        assert_eq!(at(4096, 0), Err(Error::Length));
        assert_eq!(at(0, 1), Err(Error::InvalidParameter(3)));
        assert_eq!(at(u64::MAX - 3, 4), Err(Error::InvalidParameter(4)), "wraps");
        assert_eq!(at(4096, (1 << 40) + 1), Err(Error::InvalidParameter(4)));
        assert_eq!(at(4096, 1 << 40), Ok(()));
    }
}
