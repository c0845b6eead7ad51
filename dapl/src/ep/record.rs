//! Converts the C records of an EP, `DAT_EP_ATTR` and `DAT_EP_PARAM`, from and to internal types. Values are not
//! checked here.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use dat_abi::*;

use super::attributes::{Attributes, QueueAttributes};
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

/// Converts the attributes in a record that the consumer passes.
pub(super) fn attributes(attr: &DAT_EP_ATTR) -> Attributes {
    Attributes {
        reliable: attr.service_type == DAT_SERVICE_TYPE_RC,
        max_message: attr.max_message_size,
        max_rdma: attr.max_rdma_size,
        qos: attr.qos,
        recv_flags: attr.recv_completion_flags,
        request_flags: attr.request_completion_flags,
        recv: QueueAttributes { max_dtos: attr.max_recv_dtos, max_iov: attr.max_recv_iov },
        request: QueueAttributes { max_dtos: attr.max_request_dtos, max_iov: attr.max_request_iov },
        max_reads_in: attr.max_rdma_read_in,
        max_reads_out: attr.max_rdma_read_out,
        srq_soft_hw: attr.srq_soft_hw,
        max_read_iov: attr.max_rdma_read_iov,
        max_write_iov: attr.max_rdma_write_iov,
    }
}

/// Converts attributes to the record that `dat_ep_query` returns. The counters are its named attributes. Named
/// attributes in a record from the consumer are ignored.
fn attr(attributes: &Attributes, (named, list): (i32, *mut DAT_NAMED_ATTR)) -> DAT_EP_ATTR {
    DAT_EP_ATTR {
        service_type: DAT_SERVICE_TYPE_RC,
        max_message_size: attributes.max_message,
        max_rdma_size: attributes.max_rdma,
        qos: attributes.qos,
        recv_completion_flags: attributes.recv_flags,
        request_completion_flags: attributes.request_flags,
        max_recv_dtos: attributes.recv.max_dtos,
        max_request_dtos: attributes.request.max_dtos,
        max_recv_iov: attributes.recv.max_iov,
        max_request_iov: attributes.request.max_iov,
        max_rdma_read_in: attributes.max_reads_in,
        max_rdma_read_out: attributes.max_reads_out,
        srq_soft_hw: attributes.srq_soft_hw,
        max_rdma_read_iov: attributes.max_read_iov,
        max_rdma_write_iov: attributes.max_write_iov,
        ep_transport_specific_count: 0,
        ep_transport_specific: null_mut(),
        ep_provider_specific_count: named,
        ep_provider_specific: list,
    }
}

/// Copies the fields that the mask selects from `asked` to `into`.
pub(super) fn merge(into: &mut Attributes, asked: &Attributes, mask: DAT_EP_PARAM_MASK) {
    let named = |field: DAT_EP_PARAM_MASK| mask & field != 0;
    macro_rules! take {
        ($($flag:ident => $($field:ident).+;)*) => {
            $(if named($flag) { into.$($field).+ = asked.$($field).+; })*
        };
    }
    take! {
        DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE => reliable;
        DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE => max_message;
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE => max_rdma;
        DAT_EP_FIELD_EP_ATTR_QOS => qos;
        DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS => recv_flags;
        DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS => request_flags;
        DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS => recv.max_dtos;
        DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS => request.max_dtos;
        DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV => recv.max_iov;
        DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV => request.max_iov;
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN => max_reads_in;
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT => max_reads_out;
        DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW => srq_soft_hw;
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV => max_read_iov;
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV => max_write_iov;
    }
}

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
            ep_attr: attr(&core.attributes, self.show_counts(&core)),
        })
    }
}
