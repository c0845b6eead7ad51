//! RMR operations for other modules: create, query, check and post a bind, find the target of an RDMA read, and free.
//!
//! An accepted bind counts as a use of the LMR until the provider drops `Bind::kept`: when the window is bound again,
//! unbound or freed, or when the bind has failed or was flushed.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dat_abi::DAT_RMR_HANDLE;
use parking_lot::Mutex;

use super::{BoundWindow, Rmr, RmrBinding, RmrScope, RmrState};
use crate::error::{AccessKind, Error, Handle, Result};
use crate::ia::{CloseRank, Ia};
use crate::lmr::{Lmr, dapls_lmr};
use crate::provider::{Access, Bind, MemoryRegion, MemoryWindow, Provider, Region, Segment};
use crate::pz::Pz;
use crate::runtime::handle::{self, ObjectId, UseGuard};

/// Creates an unbound RMR with a live handle in the IA of its PZ.
///
/// Errors: `ModelNotSupported` if the provider has no memory windows, or none with this scope.
pub fn create<P: Provider>(pz: Arc<Pz<P>>, scope: RmrScope) -> Result<DAT_RMR_HANDLE> {
    let ia = pz.ia.clone();
    if ia.limits().max_rmrs == 0 {
        return Err(Error::ModelNotSupported);
    }
    let rmr = handle::create(ia.table(), |id| {
        let mw = match scope {
            RmrScope::Pz => ia.provider.alloc_mw(&pz.pd)?,
            RmrScope::Ep => ia.provider.alloc_mw_for_qp(&pz.pd)?,
        };
        let pz_id = pz.id;
        let window = Some(BoundWindow { mw, _pz: UseGuard::of_open(pz, Handle::Pz)? });
        Ok(Rmr { id, ia: ia.clone(), pz: pz_id, scope, inner: Mutex::new(RmrState { window, bound: None }) })
    })?;
    Ok(ia.publish(rmr, CloseRank::Rmr))
}

/// The bind that was posted last; `None` if it has failed, was flushed or was invalidated by the peer, if no bind was
/// posted since the creation or the last unbind, or if the RMR was freed.
pub fn bound<P: Provider>(rmr: &Rmr<P>) -> Option<RmrBinding> {
    let inner = rmr.inner.lock();
    inner.bound.filter(|_| inner.window.as_ref().is_some_and(|window| window.mw.is_bound()))
}

/// A bind that was checked and can be posted, with the LMR that it uses; `None` for an unbind.
pub(crate) type CheckedBind<P> = Option<(RmrBinding, UseGuard<Lmr<P>>)>;

/// Checks a bind, or an unbind if `wanted` is `None`, for an EP with the protection zone `ep_pz` (spec/events 9.2). The
/// caller refuses an EP without a PZ.
///
/// Errors: `InvalidParameter(2)` for memory that is not registered in the RMR's IA; `Protection` if EP, RMR and LMR
/// have different PZs; `Privileges` for a right to remote writes if the LMR lacks the right to local writes.
pub(crate) fn check<P: Provider>(
    rmr: &Rmr<P>,
    ep_pz: Option<ObjectId>,
    wanted: Option<RmrBinding>,
) -> Result<CheckedBind<P>> {
    let writes = wanted.is_some_and(|wanted| wanted.rights.access.remote_write);
    let access = if writes { AccessKind::Write } else { AccessKind::Read };
    let check_pz = |pz: ObjectId| if pz == rmr.pz { Ok(()) } else { Err(Error::Protection(access)) };
    let Some(wanted) = wanted else {
        ep_pz.map_or(Ok(()), check_pz)?;
        return Ok(None);
    };
    let lmr = dapls_lmr::find(&rmr.ia, &wanted.segment).ok_or(Error::InvalidParameter(2))?.to_arc();
    check_pz(lmr.pz().id)?;
    ep_pz.map_or(Ok(()), check_pz)?;
    if writes && !lmr.rights.access.local_write {
        return Err(Error::Privileges(AccessKind::Write));
    }
    let lmr = UseGuard::of_open(lmr, Handle::Lmr).map_err(|_| Error::InvalidParameter(2))?;
    // Another thread may have freed the LMR after `find`, before the use was counted.
    if !handle::is_live(lmr.id) {
        return Err(Error::InvalidParameter(2));
    }
    Ok(Some((wanted, lmr)))
}

/// Posts the bind. Returns the new remote context, or 0 for an unbind.
pub(crate) fn post<P: Provider>(
    rmr: &Rmr<P>,
    checked: CheckedBind<P>,
    post: impl FnOnce(&P::Mw, Option<Bind<'_, P::Mr>>) -> Result<u32>,
) -> Result<u32> {
    let mut inner = rmr.inner.lock();
    let Some(window) = &inner.window else { return Err(Error::InvalidHandle(Handle::Rmr)) };
    let Some((wanted, lmr)) = checked else {
        post(&window.mw, None)?;
        rmr.replace_context(inner.bound.take(), 0);
        return Ok(0);
    };
    let object = lmr.arc().clone();
    let bind = Bind {
        mr: &object.mr,
        region: Region { address: wanted.segment.address, length: wanted.segment.length },
        access: Access { local_write: false, ..wanted.rights.access },
        kept: Arc::new(lmr),
    };
    let context = post(&window.mw, Some(bind))?;
    let former = inner.bound.replace(RmrBinding { context, ..wanted });
    rmr.replace_context(former, context);
    Ok(context)
}

impl<P: Provider> Rmr<P> {
    fn replace_context(&self, former: Option<RmrBinding>, context: u32) {
        if let Some(former) = former {
            self.ia.remove_remote_context(former.context, self.id);
        }
        self.ia.add_remote_context(context, self.id);
    }
}

/// Returns the local segment in which `dat_ep_post_rdma_read_to_rmr` places the data that it reads. `context` is the
/// remote context of a bound RMR or of an LMR of this IA, and `region` must lie inside that RMR or LMR.
///
/// Errors: `Protection` if the context is unknown or the region lies outside of it; `Privileges` if the RMR does not
/// permit remote writes, or the LMR local writes.
pub(crate) fn read_target<P: Provider>(ia: &Ia<P>, context: u32, region: Region) -> Result<Segment> {
    let outside = Error::Protection(AccessKind::Write);
    let Region { address, length } = region;
    let is_inside = |of: Region, offset: Option<u64>| {
        offset.is_some_and(|offset| offset <= of.length && length <= of.length - offset)
    };
    let id = ia.remote_context(context).ok_or(outside)?;
    let (key, of, access, is_writable) = if let Some(rmr) = handle::from_id::<Rmr<P>>(id) {
        let RmrBinding { segment, rights, .. } = bound(&rmr).filter(|bound| bound.context == context).ok_or(outside)?;
        let of = Region { address: segment.address, length: segment.length };
        (segment.key, of, rights.access, rights.access.remote_write)
    } else {
        let lmr = handle::from_id::<Lmr<P>>(id).ok_or(outside)?;
        let access = lmr.rights.access;
        (lmr.mr.local_key(), lmr.region, access, access.local_write)
    };
    let offset = if access.zero_based { Some(address) } else { address.checked_sub(of.address) };
    match (is_inside(of, offset), is_writable) {
        (false, _) => Err(outside),
        (true, false) => Err(Error::Privileges(AccessKind::Write)),
        (true, true) => Ok(Segment { key, pad: 0, address: of.address + offset.unwrap_or(0), length }),
    }
}

/// Frees the RMR, even if it is bound. Its remote context is invalid when this returns.
///
/// Errors: `InvalidHandle` if it is already freed.
pub fn free<P: Provider>(rmr: &Rmr<P>) -> Result<()> {
    handle::free(rmr.id, Handle::Rmr)?;
    let mut inner = rmr.inner.lock();
    let window = inner.window.take();
    rmr.replace_context(inner.bound, 0);
    drop(inner);
    drop(window);
    rmr.ia.remove_child(rmr);
    Ok(())
}
