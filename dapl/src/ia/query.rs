//! Fills the attribute records of an IA (spec/registry 11 and 12). All values except the counters are constant while
//! the IA is open.
//!
//! Used by `dapl_ia_query` only. Sets every field.
#![forbid(unsafe_code)]

use std::ffi::c_char;

use dat_abi::*;

use super::Ia;
use crate::ffi::count;
use crate::provider::Provider;

/// Highest address: memory at any address can be registered.
const ANY_ADDRESS: DAT_VADDR = DAT_VADDR::MAX;

pub(super) fn ia_attributes<P: Provider>(ia: &Ia<P>) -> DAT_IA_ATTR {
    let limits = ia.limits();
    DAT_IA_ATTR {
        adapter_name: name(&ia.registration.name),
        vendor_name: name(&limits.vendor),
        hardware_version_major: limits.hardware_version.0,
        hardware_version_minor: limits.hardware_version.1,
        firmware_version_major: limits.firmware_version.0,
        firmware_version_minor: limits.firmware_version.1,
        ia_address_ptr: ia.address_ptr(),
        max_eps: count(limits.max_eps),
        max_dto_per_ep: count(limits.max_dtos),
        max_rdma_read_per_ep_in: count(limits.max_reads_in),
        max_rdma_read_per_ep_out: count(limits.max_reads_out),
        max_evds: count(limits.max_evds),
        max_evd_qlen: count(limits.max_evd_qlen),
        max_iov_segments_per_dto: count(limits.max_iov),
        max_lmrs: count(limits.max_lmrs),
        max_lmr_block_size: limits.max_lmr_size,
        max_lmr_virtual_address: ANY_ADDRESS,
        max_pzs: count(limits.max_pzs),
        max_message_size: limits.max_message,
        max_rdma_size: limits.max_rdma,
        max_rmrs: count(limits.max_rmrs),
        max_rmr_target_address: ANY_ADDRESS,
        max_srqs: count(limits.max_srqs),
        max_ep_per_srq: if limits.max_srqs > 0 { count(limits.max_eps) } else { 0 },
        max_recv_per_srq: if limits.max_srqs > 0 { count(limits.max_dtos) } else { 0 },
        max_iov_segments_per_rdma_read: count(limits.max_iov),
        max_iov_segments_per_rdma_write: count(limits.max_iov),
        max_rdma_read_in: count(limits.max_reads_in.saturating_mul(limits.max_eps)),
        max_rdma_read_out: count(limits.max_reads_out.saturating_mul(limits.max_eps)),
        max_rdma_read_per_ep_in_guaranteed: DAT_TRUE,
        max_rdma_read_per_ep_out_guaranteed: DAT_TRUE,
        num_transport_attr: 0,
        transport_attr: std::ptr::null_mut(),
        num_vendor_attr: 0,
        vendor_attr: std::ptr::null_mut(),
    }
}

pub(super) fn provider_attributes<P: Provider>(ia: &Ia<P>) -> DAT_PROVIDER_ATTR {
    let registered = ia.registration.last();
    let (attribute_count, attributes) = ia.show_counts();
    let has_srqs = ia.limits().max_srqs > 0;
    let with_srqs = |bits: DAT_COUNT| if has_srqs { bits } else { 0 };
    let srq_supported = if has_srqs { DAT_TRUE } else { DAT_FALSE };
    DAT_PROVIDER_ATTR {
        provider_name: name(&ia.registration.name),
        provider_version_major: version(env!("CARGO_PKG_VERSION_MAJOR")),
        provider_version_minor: version(env!("CARGO_PKG_VERSION_MINOR")),
        // The version numbers of the registration. Some libdats use them to find the provider of an IA when it is
        // closed.
        dapl_version_major: registered.major,
        dapl_version_minor: registered.minor,
        // In this field, the memory types are bits. Virtual memory has the value 0 and therefore no bit; it is always
        // supported.
        lmr_mem_types_supported: DAT_MEM_TYPE_VIRTUAL | DAT_MEM_TYPE_LMR | DAT_MEM_TYPE_SHARED_VIRTUAL,
        iov_ownership_on_return: DAT_IOV_CONSUMER,
        dat_qos_supported: DAT_QOS_BEST_EFFORT,
        completion_flags_supported: DAT_COMPLETION_SUPPRESS_FLAG
            | DAT_COMPLETION_SOLICITED_WAIT_FLAG
            | DAT_COMPLETION_UNSIGNALLED_FLAG
            | DAT_COMPLETION_BARRIER_FENCE_FLAG,
        is_thread_safe: if registered.thread_safe { DAT_TRUE } else { DAT_FALSE },
        max_private_data_size: count(ia.private_data_connect()),
        supports_multipath: DAT_FALSE,
        ep_creator: DAT_PSP_CREATES_EP_IFASKED,
        pz_support: DAT_PZ_UNIQUE,
        optimal_buffer_alignment: DAT_OPTIMAL_ALIGNMENT as DAT_UINT32,
        evd_stream_merging_supported: [[DAT_TRUE; 6]; 6],
        srq_supported,
        srq_watermarks_supported: with_srqs(0x111), // low, soft high, hard high
        srq_ep_pz_difference_supported: srq_supported,
        srq_info_supported: with_srqs(0x11),     // available, outstanding
        ep_recv_info_supported: with_srqs(0x11), // count, span
        lmr_sync_req: DAT_FALSE,
        dto_async_return_guaranteed: DAT_FALSE,
        rdma_write_for_rdma_read_req: DAT_FALSE,
        num_provider_specific_attr: attribute_count,
        provider_specific_attr: attributes,
    }
}

fn version(text: &str) -> DAT_UINT32 {
    text.parse().unwrap_or(0)
}

/// Copies `text` to a NUL-terminated array and truncates it if necessary.
fn name(text: &str) -> [c_char; DAT_NAME_MAX_LENGTH] {
    let mut name = [0; DAT_NAME_MAX_LENGTH];
    for (to, from) in name[..DAT_NAME_MAX_LENGTH - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    name
}
