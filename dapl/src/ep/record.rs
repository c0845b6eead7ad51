//! The C record of an EP, `DAT_EP_PARAM`.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::{Ep, EpObjects, EpPeer};
use crate::error::Result;
use crate::provider::Provider;

/// Fields that `dat_ep_modify` refuses to change. The SRQ is one of them.
pub(super) const READ_ONLY: DAT_EP_PARAM_MASK = DAT_EP_FIELD_IA_HANDLE
    | DAT_EP_FIELD_EP_STATE
    | DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR
    | DAT_EP_FIELD_LOCAL_PORT_QUAL
    | DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR
    | DAT_EP_FIELD_REMOTE_PORT_QUAL
    | DAT_EP_FIELD_SRQ_HANDLE;

impl<P: Provider> Ep<P> {
    /// Returns the record for `dat_ep_query`. The fields are read under one lock, so they are consistent.
    pub(crate) fn param(&self) -> Result<DAT_EP_PARAM> {
        let core = self.open()?;
        let EpObjects { pz, recv, request, connect, srq } = &core.objects;
        let handle = |id: Option<usize>| id.unwrap_or(0) as DAT_HANDLE;
        Ok(DAT_EP_PARAM {
            ia_handle: self.ia.consumer_handle(),
            ep_state: core.state.number(),
            local_ia_address_ptr: self.ia.address_ptr(),
            local_port_qual: u64::from(self.ia.provider.address().port()),
            remote_ia_address_ptr: self.remote_address.as_ptr().cast(),
            remote_port_qual: core.remote.as_ref().map_or(0, |EpPeer { qual, .. }| *qual),
            pz_handle: handle(pz.as_ref().map(|pz| pz.id.handle)),
            recv_evd_handle: handle(recv.as_ref().map(|evd| evd.id.handle)),
            request_evd_handle: handle(request.as_ref().map(|evd| evd.id.handle)),
            connect_evd_handle: handle(connect.as_ref().map(|evd| evd.id.handle)),
            srq_handle: handle(srq.as_ref().map(|srq| srq.id.handle)),
            ep_attr: core.attributes.to_record(self.show_counts(&core)),
        })
    }
}
