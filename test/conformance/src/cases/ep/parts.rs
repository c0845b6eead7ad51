//! Helpers: parameters of `dat_ep_create` as a value, and EP attributes as numbers.
#![forbid(unsafe_code)]

use crate::kit::*;

/// The arguments of `dat_ep_create` except the attributes.
pub(crate) struct Parts {
    pub(crate) connect: Evd,
    pub(crate) request: Evd,
    pub(crate) recv: Evd,
    pub(crate) pz: Pz,
    pub(crate) ia: Ia,
}

impl Parts {
    #[track_caller]
    pub(crate) fn new(ctx: &Ctx) -> Self {
        let ia = ctx.ia();
        let (pz, recv) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG));
        let (request, connect) = (ia.evd(8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_CONNECTION_FLAG));
        Parts { connect, request, recv, pz, ia }
    }

    /// Calls `dat_ep_create` with all parameters.
    pub(crate) fn create(&self, attr: *const DAT_EP_ATTR, ep: *mut DAT_EP_HANDLE) -> DAT_RETURN {
        let Parts { connect, request, recv, pz, ia } = self;
        dat_ep_create(ia.h(), pz.h(), recv.h(), request.h(), connect.h(), attr, ep)
    }

    #[track_caller]
    pub(crate) fn ep(&self, attr: &DAT_EP_ATTR) -> Ep {
        Ep::own(filled(|out| self.create(attr, out)))
    }
}

/// The attributes as numbers, for comparison. Transport-specific and provider-specific attributes are left out.
pub(crate) fn numbers(attr: &DAT_EP_ATTR) -> Vec<u64> {
    let sizes = [attr.max_message_size, attr.max_rdma_size];
    let words = [attr.service_type, attr.qos, attr.recv_completion_flags, attr.request_completion_flags];
    let counts = [
        attr.max_recv_dtos,
        attr.max_request_dtos,
        attr.max_recv_iov,
        attr.max_request_iov,
        attr.max_rdma_read_in,
        attr.max_rdma_read_out,
        attr.srq_soft_hw,
        attr.max_rdma_read_iov,
        attr.max_rdma_write_iov,
    ];
    sizes.into_iter().chain(words.map(u64::from)).chain(counts.map(|count| count as u64)).collect()
}

/// Creates an EP with EVDs but without a PZ.
pub(crate) fn without_pz(parts: &Parts) -> Ep {
    let Parts { connect, request, recv, ia, .. } = parts;
    let attr = ep_attr();
    let (recv, request, connect) = (recv.h(), request.h(), connect.h());
    Ep::own(filled(|out| dat_ep_create(ia.h(), DAT_HANDLE_NULL, recv, request, connect, &attr, out)))
}
