//! `dat_ep_modify`: makes all requested changes or none, and replaces the QP if the old QP does not fit.
//!
//! All checks are made and all objects are created before the EP changes. Receives posted on a replaced QP are flushed.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::attributes::Attributes;
use super::dapli_qp::{build, configure, remove_streams};
use super::{ControlState, Ep, EpObjects};
use crate::error::{Error, Result};
use crate::evd::{Evd, dapls_evd};
use crate::provider::{Limits, Provider, QueuePair};
use crate::pz::Pz;
use crate::runtime::handle::{UseCounted, UseGuard};

/// A handle argument. `None` leaves the EP's object unchanged; `Some(Ok(None))`, a null handle, removes it. An invalid
/// handle is stored as an error, which is returned at its place in the order of checks.
pub(super) type NewObject<T> = Option<Result<Option<UseGuard<T>>>>;

/// The changes that a call of `dat_ep_modify` requests.
pub(super) struct EpChange<P: Provider> {
    pub(super) mask: DAT_EP_PARAM_MASK,
    pub(super) pz: NewObject<Pz<P>>,
    pub(super) recv: NewObject<Evd<P>>,
    pub(super) request: NewObject<Evd<P>>,
    pub(super) connect: NewObject<Evd<P>>,
    /// The new attributes. Only the fields that `mask` selects are used.
    pub(super) attributes: Attributes,
}

/// Any error inside the record is reported as parameter 3 (spec/endpoints 5.3).
const BAD_PARAM: Error = Error::InvalidParameter(3);

/// `dat_ep_modify`, after its arguments are parsed.
pub(super) fn modify<P: Provider>(ep: &Ep<P>, change: EpChange<P>) -> Result<()> {
    let mut core = ep.open()?;
    if core.objects.srq.is_some() && change.mask & DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW != 0 {
        return Err(Error::InvalidParameter(2)); // changed by `dat_ep_set_watermark` only
    }
    if change.pz.is_some() {
        core.state.lets_modify_pz()?;
    }
    if change.mask & !DAT_EP_FIELD_PZ_HANDLE != 0 {
        core.state.lets_modify()?;
    }
    let mask = change.mask;
    let asked = change.attributes;
    let objects = EpObjects {
        pz: resolve(change.pz, &core.objects.pz)?,
        recv: resolve(change.recv, &core.objects.recv)?,
        request: resolve(change.request, &core.objects.request)?,
        connect: resolve(change.connect, &core.objects.connect)?,
        srq: core.objects.srq.clone(),
    };
    let attributes = merged(&core, &objects, &asked, mask, ep.ia.limits())?;
    let retired = install(ep, &mut core, objects, attributes)?;
    let evds = core.objects.dto_evds();
    drop(core);
    drop(retired);
    evds.iter().flatten().for_each(|evd| dapls_evd::rearm_for_streams(evd));
    ep.deliver();
    Ok(())
}

fn resolve<T: UseCounted>(new: NewObject<T>, old: &Option<UseGuard<T>>) -> Result<Option<UseGuard<T>>> {
    match new {
        None => Ok(old.clone()),
        Some(named) => named.map_err(|_| BAD_PARAM),
    }
}

/// Returns the attributes after the change, checked against the EVDs that the EP will have.
fn merged<P: Provider>(
    core: &ControlState<P>,
    objects: &EpObjects<P>,
    asked: &Attributes,
    mask: DAT_EP_PARAM_MASK,
    limits: &Limits,
) -> Result<Attributes> {
    let mut attributes = core.attributes.with_evds_changed(core.objects.attached(), objects.attached(), limits);
    attributes.merge(asked, mask);
    const NOT_ITS_OWN: DAT_EP_PARAM_MASK = DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS | DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV;
    if objects.srq.is_some() && mask & NOT_ITS_OWN != 0 {
        return Err(BAD_PARAM);
    }
    let too_many = |field: DAT_EP_PARAM_MASK, iov: i32| mask & field != 0 && i64::from(iov) > i64::from(limits.max_iov);
    if too_many(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV, asked.max_rdma_read_iov)
        || too_many(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV, asked.max_rdma_write_iov)
    {
        return Err(BAD_PARAM);
    }
    attributes.check(objects.attached(), limits).map_err(|_| BAD_PARAM)?;
    Ok(attributes)
}

/// The objects that a change has replaced, in the order in which they must be dropped.
struct ReplacedObjects<P: Provider> {
    _qp: Option<P::Qp>,
    _objects: EpObjects<P>,
}

fn install<P: Provider>(
    ep: &Ep<P>,
    core: &mut ControlState<P>,
    objects: EpObjects<P>,
    attributes: Attributes,
) -> Result<ReplacedObjects<P>> {
    let limits = ep.ia.limits();
    let posts = attributes.post_limits(objects.attached(), limits);
    let before = core.attributes.post_limits(core.objects.attached(), limits);
    let fits = core.objects.makes_the_same_qp(&objects)
        && (!posts.shared || before.recv_solicited == posts.recv_solicited)
        && core.attributes.shape(core.objects.attached(), limits) == attributes.shape(objects.attached(), limits);
    let new = if fits { None } else { Some(build(&ep.ia, ep.id, &objects, &attributes, core.marks)?) };
    configure(ep.id, &objects, &posts);
    remove_streams(&core.objects, &before);

    // The write lock excludes posts, so no receive can be posted between the flush and the replacement of the QP.
    let mut post_state = ep.post_state.write();
    post_state.limits = posts.traced(ep.trace.is_some());
    let old = new.map(|new| {
        if let Some(qp) = &post_state.qp {
            qp.flush_recvs();
        }
        std::mem::replace(&mut post_state.qp, new)
    });
    drop(post_state);
    ep.save_completion_counts(core, &objects);
    core.attributes = attributes;
    Ok(ReplacedObjects { _qp: old.flatten(), _objects: std::mem::replace(&mut core.objects, objects) })
}

impl<P: Provider> EpObjects<P> {
    fn makes_the_same_qp(&self, other: &Self) -> bool {
        let pz = |objects: &Self| objects.pz.as_ref().map(|pz| pz.id);
        let recv = |objects: &Self| objects.recv.as_ref().map(|evd| evd.id);
        let request = |objects: &Self| objects.request.as_ref().map(|evd| evd.id);
        (pz(self), recv(self), request(self)) == (pz(other), recv(other), request(other))
    }
}
