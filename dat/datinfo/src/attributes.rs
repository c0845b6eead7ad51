//! The attribute records of an adapter and its provider as names, values and units, in the order of the ABI.
//!
//! `probe` uses this module in the child process. It does no I/O.
#![forbid(unsafe_code)]

use dat_abi::{DAT_IA_ATTR, DAT_MEM_TYPE_LMR, DAT_MEM_TYPE_SHARED_VIRTUAL, DAT_MEM_TYPE_VIRTUAL, DAT_PROVIDER_ATTR};
use serde_json::{Value, json};

use crate::explain::table::{name_of, names_of};
use crate::libdat::text;

/// Name, value, unit (empty for plain numbers and texts).
type Row = (&'static str, Value, &'static str);

/// Builds rows from fields of a record, each with its unit.
macro_rules! rows {
    ($record:ident: $($field:ident $unit:literal),* $(,)?) => {
        vec![$((stringify!($field), json!($record.$field), $unit)),*]
    };
}

/// Returns the attributes of an adapter, except its address and its lists of named attributes.
pub(crate) fn of_ia(ia: &DAT_IA_ATTR) -> Vec<Row> {
    let mut rows: Vec<Row> =
        vec![("adapter_name", json!(text(&ia.adapter_name)), ""), ("vendor_name", json!(text(&ia.vendor_name)), "")];
    rows.extend(rows!(ia:
        hardware_version_major "", hardware_version_minor "", firmware_version_major "", firmware_version_minor "",
        max_eps "endpoints", max_dto_per_ep "requests", max_rdma_read_per_ep_in "reads",
        max_rdma_read_per_ep_out "reads", max_evds "event dispatchers", max_evd_qlen "events",
        max_iov_segments_per_dto "segments", max_lmrs "regions", max_lmr_block_size "bytes",
        max_lmr_virtual_address "address", max_pzs "protection zones", max_message_size "bytes",
        max_rdma_size "bytes", max_rmrs "windows", max_rmr_target_address "address", max_srqs "shared receive queues",
        max_ep_per_srq "endpoints", max_recv_per_srq "receives", max_iov_segments_per_rdma_read "segments",
        max_iov_segments_per_rdma_write "segments", max_rdma_read_in "reads", max_rdma_read_out "reads"));
    rows.push(("max_rdma_read_per_ep_in_guaranteed", json!(ia.max_rdma_read_per_ep_in_guaranteed != 0), ""));
    rows.push(("max_rdma_read_per_ep_out_guaranteed", json!(ia.max_rdma_read_per_ep_out_guaranteed != 0), ""));
    rows
}

/// Returns the attributes of a provider, except its list of named attributes.
pub(crate) fn of_provider(provider: &DAT_PROVIDER_ATTR) -> Vec<Row> {
    let truth = |value: u32| json!(value != 0);
    let named = |group: &str, value: u32| json!(name_of(group, value.into()));
    let mask = |group: &str, value: u32| json!(names_of(group, value.into()));
    let bits = |value: u32| json!(format!("{value:#x}"));
    let merging: Vec<Vec<bool>> =
        provider.evd_stream_merging_supported.iter().map(|row| row.iter().map(|one| *one != 0).collect()).collect();
    // Bit 0 of the mask is DAT_MEM_TYPE_LMR, bit 1 DAT_MEM_TYPE_SHARED_VIRTUAL. Virtual memory is always supported.
    let kinds = provider.lmr_mem_types_supported;
    let memory = [
        (true, DAT_MEM_TYPE_VIRTUAL),
        (kinds & 1 != 0, DAT_MEM_TYPE_LMR),
        (kinds & 2 != 0, DAT_MEM_TYPE_SHARED_VIRTUAL),
    ];
    let memory =
        memory.iter().filter(|(is_there, _)| *is_there).map(|(_, kind)| name_of("DAT_MEM_TYPE", (*kind).into()));
    let memory = memory.collect::<Vec<_>>().join(" | ");
    let mut rows: Vec<Row> = vec![("provider_name", json!(text(&provider.provider_name)), "")];
    rows.extend(rows!(provider:
        provider_version_major "", provider_version_minor "", dapl_version_major "", dapl_version_minor ""));
    rows.extend([
        ("lmr_mem_types_supported", json!(memory), ""),
        ("iov_ownership_on_return", named("DAT_IOV_OWNERSHIP", provider.iov_ownership_on_return), ""),
        ("dat_qos_supported", mask("DAT_QOS", provider.dat_qos_supported), ""),
        ("completion_flags_supported", mask("DAT_COMPLETION_FLAGS", provider.completion_flags_supported), ""),
        ("is_thread_safe", truth(provider.is_thread_safe), ""),
        ("max_private_data_size", json!(provider.max_private_data_size), "bytes"),
        ("supports_multipath", truth(provider.supports_multipath), ""),
        ("ep_creator", named("DAT_EP_CREATOR_FOR_PSP", provider.ep_creator), ""),
        ("pz_support", named("DAT_PZ_SUPPORT", provider.pz_support), ""),
        ("optimal_buffer_alignment", json!(provider.optimal_buffer_alignment), "bytes"),
        ("evd_stream_merging_supported", json!(merging), ""),
        ("srq_supported", truth(provider.srq_supported), ""),
        ("srq_watermarks_supported", bits(provider.srq_watermarks_supported as u32), "mask"),
        ("srq_ep_pz_difference_supported", truth(provider.srq_ep_pz_difference_supported), ""),
        ("srq_info_supported", bits(provider.srq_info_supported as u32), "mask"),
        ("ep_recv_info_supported", bits(provider.ep_recv_info_supported as u32), "mask"),
        ("lmr_sync_req", truth(provider.lmr_sync_req), ""),
        ("dto_async_return_guaranteed", truth(provider.dto_async_return_guaranteed), ""),
        ("rdma_write_for_rdma_read_req", truth(provider.rdma_write_for_rdma_read_req), ""),
    ]);
    rows
}

/// Converts rows to a JSON list. A JSON object would not keep their order.
pub(crate) fn document(rows: Vec<Row>) -> Value {
    rows.into_iter().map(|(name, value, unit)| json!({"name": name, "value": value, "unit": unit})).collect()
}
