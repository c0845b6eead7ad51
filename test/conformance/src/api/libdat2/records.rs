//! Translations from DAT 1.2 to 2.0 of functions that query, create, modify or bind objects.
#![allow(clippy::too_many_arguments, reason = "the signatures are the specification's")]

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use dat_abi::*;

use super::{at, into, moved, other_version, real, triplet};

pub(super) unsafe extern "C" fn cno_query(
    cno: DAT_CNO_HANDLE,
    mask: DAT_CNO_PARAM_MASK,
    out: *mut DAT_CNO_PARAM,
) -> DAT_RETURN {
    // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut param = zeroed::<v2::DAT_CNO_PARAM>();
        let mask = if mask & !DAT_CNO_FIELD_ALL == 0 { mask } else { !0 };
        let code = (real().cno_query)(cno, mask, into(out, &mut param));
        if code == DAT_SUCCESS {
            let agent = if param.proxy_type == v2::DAT_PROXY_TYPE_AGENT { param.proxy.agent } else { zeroed() };
            out.write_unaligned(DAT_CNO_PARAM { ia_handle: param.ia_handle, agent });
        }
        code
    }
}

pub(super) unsafe extern "C" fn ia_query(
    ia: DAT_IA_HANDLE,
    async_evd: *mut DAT_EVD_HANDLE,
    ia_mask: DAT_IA_ATTR_MASK,
    ia_attr: *mut DAT_IA_ATTR,
    provider_mask: DAT_PROVIDER_ATTR_MASK,
    provider_attr: *mut DAT_PROVIDER_ATTR,
) -> DAT_RETURN {
    // The bits of the fields differ between the versions, so a mask with a known field requests all known fields, and
    // an IA mask with an unknown field requests all unknown ones.
    let known = if ia_mask & DAT_IA_FIELD_ALL == 0 { 0 } else { v2::DAT_IA_FIELD_ALL };
    let unknown = if ia_mask & !DAT_IA_FIELD_ALL == 0 { 0 } else { !v2::DAT_IA_FIELD_ALL };
    let provider_known = if provider_mask & DAT_PROVIDER_FIELD_ALL == 0 { 0 } else { v2::DAT_PROVIDER_FIELD_ALL };
    // SAFETY: all fields of the records are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let (mut of_ia, mut of_provider): (v2::DAT_IA_ATTR, v2::DAT_PROVIDER_ATTR) = zeroed();
        let (to_ia, to_provider) = (into(ia_attr, &mut of_ia), into(provider_attr, &mut of_provider));
        let code = (real().ia_query)(ia, async_evd, known | unknown, to_ia, provider_known, to_provider);
        if code == DAT_SUCCESS && known != 0 {
            ia_attr.cast::<u8>().write_bytes(0, size_of::<DAT_IA_ATTR>());
            let of = of_ia;
            macro_rules! put {
                ($($field:ident),* $(,)?) => { $((&raw mut (*ia_attr).$field).write_unaligned(of.$field.into());)* };
            }
            put! {
                adapter_name,
                vendor_name,
                hardware_version_major,
                hardware_version_minor,
                firmware_version_major,
                firmware_version_minor,
                ia_address_ptr,
                max_eps,
                max_dto_per_ep,
                max_rdma_read_per_ep_in,
                max_rdma_read_per_ep_out,
                max_evds,
                max_evd_qlen,
                max_iov_segments_per_dto,
                max_lmrs,
                max_lmr_block_size,
                max_lmr_virtual_address,
                max_pzs,
                max_message_size,
                max_rdma_size,
                max_rmrs,
                max_rmr_target_address,
                max_srqs,
                max_ep_per_srq,
                max_recv_per_srq,
                max_iov_segments_per_rdma_read,
                max_iov_segments_per_rdma_write,
                max_rdma_read_in,
                max_rdma_read_out,
                max_rdma_read_per_ep_in_guaranteed,
                max_rdma_read_per_ep_out_guaranteed,
                num_transport_attr,
                transport_attr,
                num_vendor_attr,
                vendor_attr
            }
        }
        if code == DAT_SUCCESS && provider_known != 0 {
            provider_attr.cast::<u8>().write_bytes(0, size_of::<DAT_PROVIDER_ATTR>());
            let mut of = of_provider;
            (of.dapl_version_major, of.dapl_version_minor) =
                other_version((of.dapl_version_major, of.dapl_version_minor));
            macro_rules! put {
                ($($field:ident),* $(,)?) => { $((&raw mut (*provider_attr).$field).write_unaligned(of.$field);)* };
            }
            put! {
                provider_name,
                provider_version_major,
                provider_version_minor,
                dapl_version_major,
                dapl_version_minor,
                lmr_mem_types_supported,
                iov_ownership_on_return,
                dat_qos_supported,
                completion_flags_supported,
                is_thread_safe,
                max_private_data_size,
                supports_multipath,
                ep_creator,
                pz_support,
                optimal_buffer_alignment,
                evd_stream_merging_supported,
                srq_supported,
                srq_watermarks_supported,
                srq_ep_pz_difference_supported,
                srq_info_supported,
                ep_recv_info_supported,
                lmr_sync_req,
                dto_async_return_guaranteed,
                rdma_write_for_rdma_read_req,
                num_provider_specific_attr,
                provider_specific_attr
            }
        }
        code
    }
}

/// Converts EP attributes to 2.0.
pub(super) fn ep_attr_2(of: &DAT_EP_ATTR) -> v2::DAT_EP_ATTR {
    let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    v2::DAT_EP_ATTR {
        service_type: of.service_type,
        max_message_size: size(of.max_message_size),
        max_rdma_size: size(of.max_rdma_size),
        qos: of.qos,
        recv_completion_flags: of.recv_completion_flags,
        request_completion_flags: of.request_completion_flags,
        max_recv_dtos: of.max_recv_dtos,
        max_request_dtos: of.max_request_dtos,
        max_recv_iov: of.max_recv_iov,
        max_request_iov: of.max_request_iov,
        max_rdma_read_in: of.max_rdma_read_in,
        max_rdma_read_out: of.max_rdma_read_out,
        srq_soft_hw: of.srq_soft_hw,
        max_rdma_read_iov: of.max_rdma_read_iov,
        max_rdma_write_iov: of.max_rdma_write_iov,
        ep_transport_specific_count: of.ep_transport_specific_count,
        ep_transport_specific: of.ep_transport_specific,
        ep_provider_specific_count: of.ep_provider_specific_count,
        ep_provider_specific: of.ep_provider_specific,
    }
}

/// Converts EP attributes to 1.2.
pub(super) fn ep_attr(of: &v2::DAT_EP_ATTR) -> DAT_EP_ATTR {
    DAT_EP_ATTR {
        service_type: of.service_type,
        max_message_size: of.max_message_size.into(),
        max_rdma_size: of.max_rdma_size.into(),
        qos: of.qos,
        recv_completion_flags: of.recv_completion_flags,
        request_completion_flags: of.request_completion_flags,
        max_recv_dtos: of.max_recv_dtos,
        max_request_dtos: of.max_request_dtos,
        max_recv_iov: of.max_recv_iov,
        max_request_iov: of.max_request_iov,
        max_rdma_read_in: of.max_rdma_read_in,
        max_rdma_read_out: of.max_rdma_read_out,
        srq_soft_hw: of.srq_soft_hw,
        max_rdma_read_iov: of.max_rdma_read_iov,
        max_rdma_write_iov: of.max_rdma_write_iov,
        ep_transport_specific_count: of.ep_transport_specific_count,
        ep_transport_specific: of.ep_transport_specific,
        ep_provider_specific_count: of.ep_provider_specific_count,
        ep_provider_specific: of.ep_provider_specific,
    }
}

pub(super) unsafe extern "C" fn ep_create(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
    attr: *const DAT_EP_ATTR,
    ep: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; a misaligned record is passed on, to be refused.
    unsafe {
        if attr.is_null() || !attr.is_aligned() {
            return (real().ep_create)(ia, pz, recv, request, connect, attr.cast(), ep);
        }
        (real().ep_create)(ia, pz, recv, request, connect, &ep_attr_2(&*attr), ep)
    }
}

pub(super) unsafe extern "C" fn ep_create_with_srq(
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
    srq: DAT_SRQ_HANDLE,
    attr: *const DAT_EP_ATTR,
    ep: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; a misaligned record is passed on, to be refused.
    unsafe {
        if attr.is_null() || !attr.is_aligned() {
            return (real().ep_create_with_srq)(ia, pz, recv, request, connect, srq, attr.cast(), ep);
        }
        (real().ep_create_with_srq)(ia, pz, recv, request, connect, srq, &ep_attr_2(&*attr), ep)
    }
}

/// Converts the mask to 2.0, which has an additional field after the second.
pub(super) fn ep_mask(mask: DAT_EP_PARAM_MASK) -> v2::DAT_EP_PARAM_MASK {
    mask & 3 | (mask & 0x7FC) << 1 | mask & !0xFFF
}

pub(super) unsafe extern "C" fn ep_query(
    ep: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    out: *mut DAT_EP_PARAM,
) -> DAT_RETURN {
    // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut of = zeroed::<v2::DAT_EP_PARAM>();
        let mask = ep_mask(mask);
        let code = (real().ep_query)(ep, mask, into(out, &mut of));
        if code == DAT_SUCCESS && mask & v2::DAT_EP_FIELD_ALL != 0 {
            out.write_unaligned(DAT_EP_PARAM {
                ia_handle: of.ia_handle,
                ep_state: of.ep_state,
                local_ia_address_ptr: of.local_ia_address_ptr,
                local_port_qual: of.local_port_qual,
                remote_ia_address_ptr: of.remote_ia_address_ptr,
                remote_port_qual: of.remote_port_qual,
                pz_handle: of.pz_handle,
                recv_evd_handle: of.recv_evd_handle,
                request_evd_handle: of.request_evd_handle,
                connect_evd_handle: of.connect_evd_handle,
                srq_handle: of.srq_handle,
                ep_attr: ep_attr(&of.ep_attr),
            });
        }
        code
    }
}

pub(super) unsafe extern "C" fn ep_modify(
    ep: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    param: *const DAT_EP_PARAM,
) -> DAT_RETURN {
    // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let Some(of) = param.as_ref() else { return (real().ep_modify)(ep, ep_mask(mask), std::ptr::null()) };
        let param = v2::DAT_EP_PARAM {
            comm: zeroed(),
            ia_handle: of.ia_handle,
            ep_state: of.ep_state,
            local_ia_address_ptr: of.local_ia_address_ptr,
            local_port_qual: of.local_port_qual,
            remote_ia_address_ptr: of.remote_ia_address_ptr,
            remote_port_qual: of.remote_port_qual,
            pz_handle: of.pz_handle,
            recv_evd_handle: of.recv_evd_handle,
            request_evd_handle: of.request_evd_handle,
            connect_evd_handle: of.connect_evd_handle,
            srq_handle: of.srq_handle,
            ep_attr: ep_attr_2(&of.ep_attr),
        };
        (real().ep_modify)(ep, ep_mask(mask), &param)
    }
}

pub(super) unsafe extern "C" fn srq_query(
    srq: DAT_SRQ_HANDLE,
    mask: DAT_SRQ_PARAM_MASK,
    out: *mut DAT_SRQ_PARAM,
) -> DAT_RETURN {
    // SAFETY: the case is responsible for its arguments; written on success.
    unsafe {
        let code = (real().srq_query)(srq, mask, out);
        if code == DAT_SUCCESS {
            let is_operational = (*out).srq_state == v2::DAT_SRQ_STATE_OPERATIONAL;
            (*out).srq_state = if is_operational { DAT_SRQ_STATE_OPERATIONAL } else { DAT_SRQ_STATE_ERROR };
        }
        code
    }
}

pub(super) unsafe extern "C" fn lmr_create(
    ia: DAT_IA_HANDLE,
    kind: DAT_MEM_TYPE,
    region: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    lmr: *mut DAT_LMR_HANDLE,
    local: *mut DAT_LMR_CONTEXT,
    remote: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    let va = v2::DAT_VA_TYPE_VA;
    let mut own = 0;
    let context = if local.is_null() { &raw mut own } else { local };
    // SAFETY: the case is responsible for its arguments.
    let code = unsafe {
        let create = real().lmr_create;
        create(
            ia,
            kind,
            region,
            length,
            pz,
            privileges,
            va,
            lmr,
            context,
            remote,
            registered_length,
            registered_address,
        )
    };
    if code == DAT_SUCCESS {
        // SAFETY: the library wrote both outputs on success.
        let known = unsafe { (context.read(), lmr.read() as usize) };
        LMRS.lock().unwrap_or_else(PoisonError::into_inner).push(known);
    }
    moved(code, &[(8, 7), (9, 8), (10, 9)])
}

pub(super) unsafe extern "C" fn lmr_query(
    lmr: DAT_LMR_HANDLE,
    mask: DAT_LMR_PARAM_MASK,
    out: *mut DAT_LMR_PARAM,
) -> DAT_RETURN {
    // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut of = zeroed::<v2::DAT_LMR_PARAM>();
        let mask = if mask & !DAT_LMR_FIELD_ALL == 0 { mask & 0x3F } else { !0 };
        let code = (real().lmr_query)(lmr, mask, into(out, &mut of));
        if code == DAT_SUCCESS {
            out.write_unaligned(DAT_LMR_PARAM {
                ia_handle: of.ia_handle,
                mem_type: of.mem_type,
                region_desc: of.region_desc,
                length: of.length,
                pz_handle: of.pz_handle,
                mem_priv: of.mem_priv,
                lmr_context: of.lmr_context,
                rmr_context: of.rmr_context,
                registered_size: of.registered_size,
                registered_address: of.registered_address,
            });
        }
        code
    }
}

pub(super) unsafe extern "C" fn rmr_query(
    rmr: DAT_RMR_HANDLE,
    mask: DAT_RMR_PARAM_MASK,
    out: *mut DAT_RMR_PARAM,
) -> DAT_RETURN {
    // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The case is
    // responsible for its arguments.
    unsafe {
        let mut of = zeroed::<v2::DAT_RMR_PARAM>();
        let mask = if mask & !DAT_RMR_FIELD_ALL == 0 { mask } else { !0 };
        let code = (real().rmr_query)(rmr, mask, into(out, &mut of));
        if code == DAT_SUCCESS {
            out.write_unaligned(DAT_RMR_PARAM {
                ia_handle: of.ia_handle,
                pz_handle: of.pz_handle,
                lmr_triplet: DAT_LMR_TRIPLET {
                    lmr_context: of.lmr_triplet.lmr_context,
                    pad: 0,
                    virtual_address: of.lmr_triplet.virtual_address,
                    segment_length: of.lmr_triplet.segment_length.into(),
                },
                mem_priv: of.mem_priv,
                rmr_context: of.rmr_context,
            });
        }
        code
    }
}

/// Context and handle of each LMR that a case created. A bind of 2.0 needs the handle for the context.
static LMRS: Mutex<Vec<(DAT_LMR_CONTEXT, usize)>> = Mutex::new(Vec::new());

/// Returns the most recent live LMR with this context, or null.
pub(super) fn lmr_of(context: DAT_LMR_CONTEXT) -> DAT_LMR_HANDLE {
    let known = LMRS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_live = |lmr: DAT_LMR_HANDLE| {
        // SAFETY: all fields of the record are integers or nullable pointers, so all-zero bytes are valid. The library
        // must survive any handle.
        unsafe { (real().lmr_query)(lmr, 0, &mut zeroed()) == DAT_SUCCESS }
    };
    let of_context = known.iter().rev().filter(|(known, _)| *known == context).map(|(_, lmr)| *lmr as DAT_LMR_HANDLE);
    of_context.into_iter().find(|lmr| is_live(*lmr)).unwrap_or(null_mut())
}

pub(super) unsafe extern "C" fn rmr_bind(
    rmr: DAT_RMR_HANDLE,
    segment: *const DAT_LMR_TRIPLET,
    privileges: DAT_MEM_PRIV_FLAGS,
    ep: DAT_EP_HANDLE,
    cookie: DAT_RMR_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    let va = v2::DAT_VA_TYPE_VA;
    // SAFETY: the case is responsible for its arguments; the triplets are local.
    let code = unsafe {
        let translated = if segment.is_null() { None } else { Some(triplet(segment.read_unaligned())) };
        let lmr = translated.map_or(null_mut(), |of| lmr_of(of.lmr_context));
        (real().rmr_bind)(rmr, lmr, at(&translated), privileges, va, ep, cookie, flags, context)
    };
    // For unregistered memory the wrapper passed a null LMR handle, which 1.2 reports differently.
    if code == DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_LMR {
        return DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | v2::DAT_INVALID_ARG2;
    }
    moved(code, &[(3, 2), (4, 3), (6, 4), (7, 5), (8, 6), (9, 7)])
}
