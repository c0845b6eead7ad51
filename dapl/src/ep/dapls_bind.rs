//! RMR binds: requests in an EP's request queue, with their own checks of protection zones.
//!
//! Called by `dat_rmr_bind` only, and not on the hot path: a bind acquires the EP's lock, and allocates a reference
//! that keeps the LMR alive.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::Ep;
use crate::error::{Error, Result};
use crate::provider::{BindWr, Provider, QueuePair, Token, Work};
use crate::rmr::{Rmr, RmrBinding, dapls_rmr};

/// Posts a bind, or an unbind if `wanted` is `None`. Returns the new remote context, or 0 for an unbind (spec/events
/// 9.2).
///
/// Errors: `InvalidHandle(Ep)` if the EP was freed; `InvalidParameter(6)` for UNSIGNALLED on an EP that does not allow
/// it; those of `dapls_rmr::check`; `InvalidState` if the EP's state does not permit requests; `Exhausted` when the
/// request queue is full.
pub(crate) fn bind<P: Provider>(
    ep: &Ep<P>,
    rmr: &Rmr<P>,
    wanted: Option<RmrBinding>,
    cookie: u64,
    flags: DAT_COMPLETION_FLAGS,
) -> Result<u32> {
    let has = |flag: DAT_COMPLETION_FLAGS| flags & flag != 0;
    let (suppress, unsignalled) = (has(DAT_COMPLETION_SUPPRESS_FLAG), has(DAT_COMPLETION_UNSIGNALLED_FLAG));
    let pz = ep.open()?.objects.pz.as_ref().map(|pz| pz.id);
    let post_state = ep.post_state();
    if unsignalled && !post_state.limits.request_unsignalled {
        return Err(Error::InvalidParameter(6));
    }
    let checked = dapls_rmr::check(rmr, pz, wanted)?;
    ep.state().takes_requests()?;
    let qp = post_state.qp()?;
    let number = ep.trace.as_ref().map_or(0, |trace| trace.bound(cookie, suppress));
    let token = Token { cookie, ep: ep.id.handle, work: Work::Bind, object: rmr.id.handle, unsignalled, post: number };
    let wr = BindWr { token, suppress, fence: has(DAT_COMPLETION_BARRIER_FENCE_FLAG) };
    let posted = dapls_rmr::post(rmr, checked, |mw, bind| qp.post_bind(mw, bind, &wr));
    if number != 0 {
        ep.record_traced_result(number, Work::Bind, posted.is_ok());
    }
    if posted.is_ok() {
        post_state.posts.count(Work::Bind, &[], None);
    }
    posted
}
