//! What other rooms may ask of an LMR: make one, end it.
//!
//! The registration ends with the object, that is when the last call that uses it has left.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::Lmr;
use crate::error::{Error, Handle, Result, State};
use crate::handle::{self, Created, Usable, Use, UseCount};
use crate::ia::{Child, Ia, Rank};
use crate::provider::{Access, Provider, Region};
use crate::pz::Pz;

/// A new registration; its handle is not live yet.
///
/// Errors: `Length` for no bytes, `InvalidParameter` for memory that cannot be (8.1); what the provider says.
pub fn create<P: Provider>(
    ia: &Arc<Ia<P>>,
    pz: Arc<Pz<P>>,
    region: Region,
    access: Access,
    local_read: bool,
) -> Result<Created<Lmr<P>>> {
    check(region, ia.limits().max_lmr_size)?;
    handle::create(ia.table(), |id| {
        let mr = ia.provider().register(pz.pd(), region, access)?;
        Ok(Lmr { id, ia: ia.clone(), pz: Use::of(pz), mr, region, access, local_read, uses: UseCount::default() })
    })
}

/// Makes it live in its IA.
pub fn publish<P: Provider>(lmr: Created<Lmr<P>>) -> *mut std::ffi::c_void {
    let object = lmr.object().clone();
    let child: Arc<dyn Child> = object.clone();
    let handle = lmr.publish();
    object.ia.adopt(Arc::downgrade(&child), Rank::Lmr);
    handle
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

/// Frees it for a consumer, whatever is posted with it.
///
/// Errors: `LmrInUse` while an RMR is bound to it.
pub fn free<P: Provider>(lmr: &Lmr<P>) -> Result<()> {
    lmr.uses().require_unused(State::LmrInUse)?;
    if close(lmr) { Ok(()) } else { Err(Error::InvalidHandle(Handle::Lmr)) }
}

/// Ends it; false when it had ended before.
pub(super) fn close<P: Provider>(lmr: &Lmr<P>) -> bool {
    let first = handle::destroy(lmr.id);
    if first {
        lmr.ia.forget(lmr);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_is_refused() {
        let at = |address, length| check(Region { address, length }, 1 << 40);
        assert_eq!(at(4096, 0), Err(Error::Length));
        assert_eq!(at(0, 1), Err(Error::InvalidParameter(3)));
        assert_eq!(at(u64::MAX - 3, 4), Err(Error::InvalidParameter(4)), "wraps");
        assert_eq!(at(4096, (1 << 40) + 1), Err(Error::InvalidParameter(4)));
        assert_eq!(at(4096, 1 << 40), Ok(()));
    }
}
