//! The records of DAT 1.2, except events, that programs or providers pass or receive, such as the attributes and
//! parameters of objects.
//!
//! The order and offsets of the fields are ABI. The object layer (`dapl`) converts these records at its C boundary.

use core::ffi::c_char;

use crate::types::*;

/// A record whose padding bytes are known, so that a library can set them to zero: programs compare records bytewise.
pub trait PaddedRecord {
    /// Offset and size of each field. All other bytes are padding.
    const FIELDS: &'static [(usize, usize)];
}

/// Defines a [`PaddedRecord`].
macro_rules! record {
    ($(#[$about:meta])* pub struct $name:ident { $(pub $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $type,)* }

        impl $crate::attr::PaddedRecord for $name {
            const FIELDS: &'static [(usize, usize)] = &[$((core::mem::offset_of!($name, $field), size_of::<$type>())),*];
        }
    };
}
pub(crate) use record;

/// Agent of a CNO: a function that is called once after it was armed: when the CNO is triggered, or with a null handle
/// when the last EVD of the CNO is freed or the IA is closed. `dat_cno_modify_agent` arms it again.
pub type DAT_AGENT_FUNC = unsafe extern "C" fn(instance_data: DAT_PVOID, event_dispatcher: DAT_EVD_HANDLE);

/// `struct dat_named_attr`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_NAMED_ATTR {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// `union dat_context`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_CONTEXT {
    pub as_ptr: DAT_PVOID,
    pub as_64: DAT_UINT64,
    pub as_index: DAT_UVERYLONG,
}

/// `struct dat_lmr_triplet`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_LMR_TRIPLET {
    pub lmr_context: DAT_LMR_CONTEXT,
    pub pad: DAT_UINT32,
    pub virtual_address: DAT_VADDR,
    pub segment_length: DAT_VLEN,
}

/// `struct dat_rmr_triplet`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RMR_TRIPLET {
    pub rmr_context: DAT_RMR_CONTEXT,
    pub pad: DAT_UINT32,
    pub target_address: DAT_VADDR,
    pub segment_length: DAT_VLEN,
}

/// `struct dat_rmr_param`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RMR_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub pz_handle: DAT_PZ_HANDLE,
    pub lmr_triplet: DAT_LMR_TRIPLET,
    pub mem_priv: DAT_MEM_PRIV_FLAGS,
    pub rmr_context: DAT_RMR_CONTEXT,
}

/// Defines `DAT_IA_ATTR` of a version, with the type of lengths and the fields that the version adds.
macro_rules! ia_attr {
    ($(#[$about:meta])* lengths of $length:ty, $($added:ident: $type:ty,)*) => {
        record! {
        $(#[$about])*
        pub struct DAT_IA_ATTR {
            pub adapter_name: [c_char; 256],
            pub vendor_name: [c_char; 256],
            pub hardware_version_major: DAT_UINT32,
            pub hardware_version_minor: DAT_UINT32,
            pub firmware_version_major: DAT_UINT32,
            pub firmware_version_minor: DAT_UINT32,
            pub ia_address_ptr: DAT_IA_ADDRESS_PTR,
            pub max_eps: DAT_COUNT,
            pub max_dto_per_ep: DAT_COUNT,
            pub max_rdma_read_per_ep_in: DAT_COUNT,
            pub max_rdma_read_per_ep_out: DAT_COUNT,
            pub max_evds: DAT_COUNT,
            pub max_evd_qlen: DAT_COUNT,
            pub max_iov_segments_per_dto: DAT_COUNT,
            pub max_lmrs: DAT_COUNT,
            pub max_lmr_block_size: $length,
            pub max_lmr_virtual_address: DAT_VADDR,
            pub max_pzs: DAT_COUNT,
            pub max_message_size: $length,
            pub max_rdma_size: $length,
            pub max_rmrs: DAT_COUNT,
            pub max_rmr_target_address: DAT_VADDR,
            pub max_srqs: DAT_COUNT,
            pub max_ep_per_srq: DAT_COUNT,
            pub max_recv_per_srq: DAT_COUNT,
            pub max_iov_segments_per_rdma_read: DAT_COUNT,
            pub max_iov_segments_per_rdma_write: DAT_COUNT,
            pub max_rdma_read_in: DAT_COUNT,
            pub max_rdma_read_out: DAT_COUNT,
            pub max_rdma_read_per_ep_in_guaranteed: DAT_BOOLEAN,
            pub max_rdma_read_per_ep_out_guaranteed: DAT_BOOLEAN,
            $(pub $added: $type,)*
            pub num_transport_attr: DAT_COUNT,
            pub transport_attr: *mut DAT_NAMED_ATTR,
            pub num_vendor_attr: DAT_COUNT,
            pub vendor_attr: *mut DAT_NAMED_ATTR,
        }
        }
    };
}
pub(crate) use ia_attr;

ia_attr! {
    /// `struct dat_ia_attr`, 688 bytes.
    lengths of DAT_VLEN,
}

/// Defines `DAT_EP_ATTR` of a version, with the type of lengths.
macro_rules! ep_attr {
    ($(#[$about:meta])* lengths of $length:ty) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct DAT_EP_ATTR {
            pub service_type: DAT_SERVICE_TYPE,
            pub max_message_size: $length,
            pub max_rdma_size: $length,
            pub qos: DAT_QOS,
            pub recv_completion_flags: DAT_COMPLETION_FLAGS,
            pub request_completion_flags: DAT_COMPLETION_FLAGS,
            pub max_recv_dtos: DAT_COUNT,
            pub max_request_dtos: DAT_COUNT,
            pub max_recv_iov: DAT_COUNT,
            pub max_request_iov: DAT_COUNT,
            pub max_rdma_read_in: DAT_COUNT,
            pub max_rdma_read_out: DAT_COUNT,
            pub srq_soft_hw: DAT_COUNT,
            pub max_rdma_read_iov: DAT_COUNT,
            pub max_rdma_write_iov: DAT_COUNT,
            pub ep_transport_specific_count: DAT_COUNT,
            pub ep_transport_specific: *mut DAT_NAMED_ATTR,
            pub ep_provider_specific_count: DAT_COUNT,
            pub ep_provider_specific: *mut DAT_NAMED_ATTR,
        }
    };
}
pub(crate) use ep_attr;

ep_attr! {
    /// `struct dat_ep_attr`, 104 bytes.
    lengths of DAT_VLEN
}

/// `struct dat_ep_param`, 192 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_EP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub ep_state: DAT_EP_STATE,
    pub local_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub local_port_qual: DAT_PORT_QUAL,
    pub remote_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub remote_port_qual: DAT_PORT_QUAL,
    pub pz_handle: DAT_PZ_HANDLE,
    pub recv_evd_handle: DAT_EVD_HANDLE,
    pub request_evd_handle: DAT_EVD_HANDLE,
    pub connect_evd_handle: DAT_EVD_HANDLE,
    pub srq_handle: DAT_SRQ_HANDLE,
    pub ep_attr: DAT_EP_ATTR,
}

/// `struct dat_srq_attr`, 12 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_SRQ_ATTR {
    pub max_recv_dtos: DAT_COUNT,
    pub max_recv_iov: DAT_COUNT,
    pub low_watermark: DAT_COUNT,
}

/// `struct dat_srq_param`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_SRQ_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub srq_state: DAT_SRQ_STATE,
    pub pz_handle: DAT_PZ_HANDLE,
    pub max_recv_dtos: DAT_COUNT,
    pub max_recv_iov: DAT_COUNT,
    pub low_watermark: DAT_COUNT,
    pub available_dto_count: DAT_COUNT,
    pub outstanding_dto_count: DAT_COUNT,
}

/// `struct dat_pz_param`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_PZ_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
}

/// `struct dat_psp_param`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_PSP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub conn_qual: DAT_CONN_QUAL,
    pub evd_handle: DAT_EVD_HANDLE,
    pub psp_flags: DAT_PSP_FLAGS,
}

/// `struct dat_rsp_param`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RSP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub conn_qual: DAT_CONN_QUAL,
    pub evd_handle: DAT_EVD_HANDLE,
    pub ep_handle: DAT_EP_HANDLE,
}

/// `struct dat_cr_param`, 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CR_PARAM {
    pub remote_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub remote_port_qual: DAT_PORT_QUAL,
    pub private_data_size: DAT_COUNT,
    pub private_data: DAT_PVOID,
    pub local_ep_handle: DAT_EP_HANDLE,
}

/// `struct dat_provider_info`, 268 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_PROVIDER_INFO {
    pub ia_name: [c_char; 256],
    pub dapl_version_major: DAT_UINT32,
    pub dapl_version_minor: DAT_UINT32,
    pub is_thread_safe: DAT_BOOLEAN,
}

/// `struct dat_evd_param`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_EVD_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub evd_qlen: DAT_COUNT,
    pub evd_state: DAT_EVD_STATE,
    pub cno_handle: DAT_CNO_HANDLE,
    pub evd_flags: DAT_EVD_FLAGS,
}

/// `struct dat_os_wait_proxy_agent`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_OS_WAIT_PROXY_AGENT {
    pub instance_data: DAT_PVOID,
    pub proxy_agent_func: Option<DAT_AGENT_FUNC>,
}

/// `struct dat_shared_memory`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_SHARED_MEMORY {
    pub virtual_address: DAT_PVOID,
    pub shared_memory_id: DAT_LMR_COOKIE,
}

/// `union dat_region_description`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_REGION_DESCRIPTION {
    pub for_va: DAT_PVOID,
    pub for_lmr_handle: DAT_LMR_HANDLE,
    pub for_shared_memory: DAT_SHARED_MEMORY,
}

/// `struct dat_lmr_param`, 80 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_LMR_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub mem_type: DAT_MEM_TYPE,
    pub region_desc: DAT_REGION_DESCRIPTION,
    pub length: DAT_VLEN,
    pub pz_handle: DAT_PZ_HANDLE,
    pub mem_priv: DAT_MEM_PRIV_FLAGS,
    pub lmr_context: DAT_LMR_CONTEXT,
    pub rmr_context: DAT_RMR_CONTEXT,
    pub registered_size: DAT_VLEN,
    pub registered_address: DAT_VADDR,
}

/// `struct dat_cno_param`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CNO_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub agent: DAT_OS_WAIT_PROXY_AGENT,
}

/// Defines `DAT_PROVIDER_ATTR` of a version, with the fields that the version adds.
macro_rules! provider_attr {
    ($(#[$about:meta])* $($added:ident: $type:ty,)*) => {
        record! {
        $(#[$about])*
        pub struct DAT_PROVIDER_ATTR {
            pub provider_name: [c_char; 256],
            pub provider_version_major: DAT_UINT32,
            pub provider_version_minor: DAT_UINT32,
            pub dapl_version_major: DAT_UINT32,
            pub dapl_version_minor: DAT_UINT32,
            pub lmr_mem_types_supported: DAT_MEM_TYPE,
            pub iov_ownership_on_return: DAT_IOV_OWNERSHIP,
            pub dat_qos_supported: DAT_QOS,
            pub completion_flags_supported: DAT_COMPLETION_FLAGS,
            pub is_thread_safe: DAT_BOOLEAN,
            pub max_private_data_size: DAT_COUNT,
            pub supports_multipath: DAT_BOOLEAN,
            pub ep_creator: DAT_EP_CREATOR_FOR_PSP,
            pub pz_support: DAT_PZ_SUPPORT,
            pub optimal_buffer_alignment: DAT_UINT32,
            pub evd_stream_merging_supported: [[DAT_BOOLEAN; 6]; 6],
            pub srq_supported: DAT_BOOLEAN,
            pub srq_watermarks_supported: DAT_COUNT,
            pub srq_ep_pz_difference_supported: DAT_BOOLEAN,
            pub srq_info_supported: DAT_COUNT,
            pub ep_recv_info_supported: DAT_COUNT,
            pub lmr_sync_req: DAT_BOOLEAN,
            pub dto_async_return_guaranteed: DAT_BOOLEAN,
            pub rdma_write_for_rdma_read_req: DAT_BOOLEAN,
            $(pub $added: $type,)*
            pub num_provider_specific_attr: DAT_COUNT,
            pub provider_specific_attr: *mut DAT_NAMED_ATTR,
        }
        }
    };
}
pub(crate) use provider_attr;

provider_attr! {
    /// `struct dat_provider_attr`, 504 bytes.
}
