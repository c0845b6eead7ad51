//! Converts numbers and records between DAT 1.2 and DAT 2.0. Nothing is validated here.
#![forbid(unsafe_code)]

use dat_abi as v1;
use dat_abi::v2;
use dat_abi::v2::DAT_RETURN;

use crate::error::{Error, Handle, Result};
use crate::ffi;
use crate::provider::{Access, Extensions, Limits};

/// Converts a return code of 1.2 to 2.0. DAT 2.0 has inserted two subtypes, so the subtypes after them have other
/// numbers.
#[inline(always)]
pub fn code(code: v1::DAT_RETURN) -> DAT_RETURN {
    if code & v1::DAT_SUBTYPE_MASK == 0 { code } else { with_subtype(code) }
}

#[cold]
fn with_subtype(code: v1::DAT_RETURN) -> DAT_RETURN {
    let subtype = code & v1::DAT_SUBTYPE_MASK;
    let inserted = u32::from(subtype >= v1::DAT_INVALID_HANDLE1) + u32::from(subtype >= v1::DAT_PRIVILEGES_READ);
    code + inserted
}

/// Converts an error to a return code of 2.0. Some errors have a code in 2.0 only.
pub fn error(error: Error) -> DAT_RETURN {
    let class = v2::DAT_CLASS_ERROR;
    match error {
        Error::PortInUse => class | v2::DAT_PORT_IN_USE,
        Error::CommNotSupported => class | v2::DAT_COMM_NOT_SUPPORTED,
        Error::InvalidHandle(Handle::Csp) => class | v2::DAT_INVALID_HANDLE | v2::DAT_INVALID_HANDLE_CSP,
        other => code(other.code()),
    }
}

/// Like [`crate::ffi::guard`], but returns the code of 2.0 for an error, also for errors that have a code in 2.0 only.
pub fn guard(body: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    let mut failed = None;
    let guarded = ffi::guard(|| body().inspect_err(|error| failed = Some(*error)));
    failed.map_or_else(|| code(guarded), error)
}

/// Checks the arguments of an entry. If they are valid, calls the entry of 1.2 with the value that `check` returns. The
/// entry has a guard of its own.
pub fn guard_then<T>(check: impl FnOnce() -> Result<T>, call: impl FnOnce(T) -> DAT_RETURN) -> DAT_RETURN {
    let mut checked = None;
    let refusal = guard(|| check().map(|value| checked = Some(value)));
    checked.map_or(refusal, call)
}

/// Like [`code`], for an entry whose parameters have other numbers in 2.0. Each pair in `places` is the number of a
/// parameter in 1.2 and in 2.0.
pub fn code_with_arguments(of_1_2: v1::DAT_RETURN, places: &[(u32, u32)]) -> DAT_RETURN {
    let translated = code(of_1_2);
    if translated & v2::DAT_TYPE_MASK != v2::DAT_INVALID_PARAMETER {
        return translated;
    }
    let place = translated & v2::DAT_SUBTYPE_MASK;
    let at = |n: u32| v2::DAT_INVALID_ARG1 + n - 1;
    let subtype = places.iter().find(|(from, _)| at(*from) == place).map_or(place, |(_, to)| at(*to));
    translated & !v2::DAT_SUBTYPE_MASK | subtype
}

/// Converts a mask of `dat_ep_modify` to 1.2. Drops the bit of the communicator, which 1.2 lacks, and unknown bits.
pub fn ep_mask(mask: v2::DAT_EP_PARAM_MASK) -> v1::DAT_EP_PARAM_MASK {
    const BEFORE: v2::DAT_EP_PARAM_MASK = v2::DAT_EP_FIELD_COMM - 1;
    const MOVED: v2::DAT_EP_PARAM_MASK = (v2::DAT_EP_FIELD_SRQ_HANDLE << 1) - 1 - BEFORE - v2::DAT_EP_FIELD_COMM;
    mask & BEFORE | (mask & MOVED) >> 1 | mask & v2::DAT_EP_FIELD_EP_ATTR_ALL
}

/// Converts a mask of `dat_ia_query` to 1.2. If known fields are selected, the result selects all fields of 1.2. If
/// unknown fields are selected, the result contains bits that the entry of 1.2 refuses.
pub fn ia_mask(mask: v2::DAT_IA_ATTR_MASK) -> v1::DAT_IA_ATTR_MASK {
    let known = if mask & v2::DAT_IA_FIELD_ALL == 0 { 0 } else { v1::DAT_IA_FIELD_ALL };
    let unknown = if mask & !v2::DAT_IA_FIELD_ALL == 0 { 0 } else { !v1::DAT_IA_FIELD_ALL };
    known | unknown
}

/// Converts a size or length to the 32 bits of 2.0. A larger value becomes the maximum.
pub fn size(bytes: u64) -> v2::DAT_SEG_LENGTH {
    v2::DAT_SEG_LENGTH::try_from(bytes).unwrap_or(v2::DAT_SEG_LENGTH::MAX)
}

/// Creates a record of one version from `$from`, a record of the other: sets the fields in braces, and copies the
/// fields whose names follow.
macro_rules! converted {
    ($from:ident => $version:ident::$record:ident { $($changed:ident: $value:expr,)* } and $($same:ident)*) => {
        $version::$record { $($changed: $value,)* $($same: $from.$same,)* }
    };
}

/// Converts EP attributes to 1.2.
pub fn ep_attr(attr: &v2::DAT_EP_ATTR) -> v1::DAT_EP_ATTR {
    converted!(attr => v1::DAT_EP_ATTR {
        max_message_size: attr.max_message_size.into(),
        max_rdma_size: attr.max_rdma_size.into(),
        recv_completion_flags: flags(attr.recv_completion_flags),
        request_completion_flags: flags(attr.request_completion_flags),
    } and
        service_type qos max_recv_dtos max_request_dtos max_recv_iov max_request_iov max_rdma_read_in max_rdma_read_out
        srq_soft_hw max_rdma_read_iov max_rdma_write_iov ep_transport_specific_count ep_transport_specific
        ep_provider_specific_count ep_provider_specific
    )
}

/// Converts EP attributes to 2.0.
fn ep_attr_2(attr: &v1::DAT_EP_ATTR) -> v2::DAT_EP_ATTR {
    converted!(attr => v2::DAT_EP_ATTR {
        max_message_size: size(attr.max_message_size),
        max_rdma_size: size(attr.max_rdma_size),
    } and
        service_type qos recv_completion_flags request_completion_flags max_recv_dtos max_request_dtos max_recv_iov
        max_request_iov max_rdma_read_in max_rdma_read_out srq_soft_hw max_rdma_read_iov max_rdma_write_iov
        ep_transport_specific_count ep_transport_specific ep_provider_specific_count ep_provider_specific
    )
}

/// Converts a record of `dat_ep_modify` to 1.2. The communicator is omitted.
pub fn ep_param(param: &v2::DAT_EP_PARAM) -> v1::DAT_EP_PARAM {
    converted!(param => v1::DAT_EP_PARAM {
        ep_attr: ep_attr(&param.ep_attr),
    } and
        ia_handle ep_state local_ia_address_ptr local_port_qual remote_ia_address_ptr remote_port_qual pz_handle
        recv_evd_handle request_evd_handle connect_evd_handle srq_handle
    )
}

/// Converts the result of `dat_ep_query` to 2.0, with the EP's communicator.
pub fn ep_param_2(param: &v1::DAT_EP_PARAM, comm: v2::DAT_COMM) -> v2::DAT_EP_PARAM {
    converted!(param => v2::DAT_EP_PARAM {
        comm: comm,
        ep_attr: ep_attr_2(&param.ep_attr),
    } and
        ia_handle ep_state local_ia_address_ptr local_port_qual remote_ia_address_ptr remote_port_qual pz_handle
        recv_evd_handle request_evd_handle connect_evd_handle srq_handle
    )
}

/// Converts the result of `dat_lmr_query` to 2.0. `access` are the access rights of the LMR.
pub fn lmr_param(param: &v1::DAT_LMR_PARAM, access: Access) -> v2::DAT_LMR_PARAM {
    converted!(param => v2::DAT_LMR_PARAM {
        mem_priv: param.mem_priv | if access.remote_atomic { v2::DAT_IB_MEM_PRIV_REMOTE_ATOMIC } else { 0 },
        va_type: va_type(access),
        registered_address: if access.zero_based { 0 } else { param.registered_address },
    } and
        ia_handle mem_type region_desc length pz_handle lmr_context rmr_context registered_size
    )
}

/// The virtual address type of memory with these access rights.
pub fn va_type(access: Access) -> v2::DAT_VA_TYPE {
    if access.zero_based { v2::DAT_VA_TYPE_ZB } else { v2::DAT_VA_TYPE_VA }
}

/// Converts IA attributes to 2.0. The attributes that 1.2 lacks follow from `limits` and `has_zero_based`.
pub fn ia_attr(attr: &v1::DAT_IA_ATTR, limits: &Limits, has_zero_based: bool) -> v2::DAT_IA_ATTR {
    let extensions = extensions(limits);
    converted!(attr => v2::DAT_IA_ATTR {
        max_lmr_block_size: size(attr.max_lmr_block_size),
        max_message_size: size(attr.max_message_size),
        max_rdma_size: size(attr.max_rdma_size),
        zb_supported: if has_zero_based { v2::DAT_TRUE } else { v2::DAT_FALSE },
        extension_supported: extensions,
        extension_version: if extensions == v2::DAT_EXTENSION_IB { v2::DAT_IB_EXTENSION_VERSION } else { 0 },
    } and
        adapter_name vendor_name hardware_version_major hardware_version_minor firmware_version_major
        firmware_version_minor ia_address_ptr max_eps max_dto_per_ep max_rdma_read_per_ep_in max_rdma_read_per_ep_out
        max_evds max_evd_qlen max_iov_segments_per_dto max_lmrs max_lmr_virtual_address max_pzs max_rmrs
        max_rmr_target_address max_srqs max_ep_per_srq max_recv_per_srq max_iov_segments_per_rdma_read
        max_iov_segments_per_rdma_write max_rdma_read_in max_rdma_read_out max_rdma_read_per_ep_in_guaranteed
        max_rdma_read_per_ep_out_guaranteed num_transport_attr transport_attr num_vendor_attr vendor_attr
    )
}

/// Returns the extension that the IA reports: InfiniBand if the provider supports any operation of the InfiniBand
/// extension.
fn extensions(limits: &Limits) -> v2::DAT_EXTENSION {
    let Extensions { immediate, atomics, .. } = limits.extensions;
    if immediate || atomics { v2::DAT_EXTENSION_IB } else { v2::DAT_EXTENSION_NONE }
}

/// Converts provider attributes to 2.0. The fields that 1.2 lacks are the same for all providers, except the RMR scope.
pub fn provider_attr(attr: &v1::DAT_PROVIDER_ATTR, has_ep_scope: bool) -> v2::DAT_PROVIDER_ATTR {
    converted!(attr => v2::DAT_PROVIDER_ATTR {
        rdma_read_lmr_rmr_context_exposure: v2::DAT_FALSE,
        rmr_scope_supported: if has_ep_scope { v2::DAT_RMR_SCOPE_ANY } else { v2::DAT_RMR_SCOPE_PZ },
        is_signal_safe: v2::DAT_FALSE,
        ha_supported: v2::DAT_FALSE,
        ha_loadbalancing: v2::DAT_HA_LB_NONE,
    } and
        provider_name provider_version_major provider_version_minor dapl_version_major dapl_version_minor
        lmr_mem_types_supported iov_ownership_on_return dat_qos_supported completion_flags_supported is_thread_safe
        max_private_data_size supports_multipath ep_creator pz_support optimal_buffer_alignment
        evd_stream_merging_supported srq_supported srq_watermarks_supported srq_ep_pz_difference_supported
        srq_info_supported ep_recv_info_supported lmr_sync_req dto_async_return_guaranteed rdma_write_for_rdma_read_req
        num_provider_specific_attr provider_specific_attr
    )
}

/// Converts completion flags to 1.2. Drops the one flag that only 2.0 has: it orders a post after operations that
/// invalidate an LMR, and this library has no such operations.
#[inline(always)]
pub fn flags(flags: v2::DAT_COMPLETION_FLAGS) -> v1::DAT_COMPLETION_FLAGS {
    flags & !v2::DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG
}

/// Converts the state of an SRQ to 2.0, which swaps the numbers of the two states.
pub fn srq_state(state: v1::DAT_SRQ_STATE) -> v2::DAT_SRQ_STATE {
    match state {
        v1::DAT_SRQ_STATE_OPERATIONAL => v2::DAT_SRQ_STATE_OPERATIONAL,
        _ => v2::DAT_SRQ_STATE_ERROR,
    }
}

#[cfg(test)]
mod tests;
