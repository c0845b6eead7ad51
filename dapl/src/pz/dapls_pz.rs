//! PZ operations for other modules: create and free.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dat_abi::DAT_PZ_HANDLE;

use super::Pz;
use crate::error::{Handle, Result, State};
use crate::ia::{CloseRank, Ia};
use crate::provider::Provider;
use crate::runtime::handle::{self, UseCount, UseCounted};

/// Creates a PZ with a live handle in its IA.
pub fn create<P: Provider>(ia: &Arc<Ia<P>>) -> Result<DAT_PZ_HANDLE> {
    let pz = handle::create(ia.table(), |id| {
        Ok(Pz { id, ia: ia.clone(), pd: ia.provider.alloc_pd()?, uses: UseCount::default() })
    })?;
    Ok(ia.publish(pz, CloseRank::Pz))
}

/// Frees the PZ on behalf of the consumer.
///
/// Errors: `InvalidState(PzInUse)` while an EP, LMR, RMR or SRQ belongs to the PZ; `InvalidHandle` if another thread
/// has freed the PZ.
pub fn free<P: Provider>(pz: &Pz<P>) -> Result<()> {
    pz.uses().close(State::PzInUse)?;
    close(pz)
}

/// Closes the PZ. Errors: `InvalidHandle` if it is already closed.
pub(super) fn close<P: Provider>(pz: &Pz<P>) -> Result<()> {
    handle::free(pz.id, Handle::Pz)?;
    pz.ia.remove_child(pz);
    Ok(())
}
