//! The records of DAT 2.0, except events, that programs pass or receive. Records that are the same in DAT 1.2 are
//! re-exported from there.

use core::ffi::{c_char, c_int};

use super::types::*;
use crate::attr::{ep_attr, ia_attr, provider_attr, record};

pub use crate::attr::*;

/// `struct dat_comm`, 12 bytes: type of a connection, as the three arguments of socket(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_COMM {
    pub domain: c_int,
    pub r#type: c_int,
    pub protocol: c_int,
}

/// `struct dat_lmr_triplet`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_LMR_TRIPLET {
    pub virtual_address: DAT_VADDR,
    pub segment_length: DAT_SEG_LENGTH,
    pub lmr_context: DAT_LMR_CONTEXT,
}

/// `struct dat_rmr_triplet`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RMR_TRIPLET {
    pub virtual_address: DAT_VADDR,
    pub segment_length: DAT_SEG_LENGTH,
    pub rmr_context: DAT_RMR_CONTEXT,
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
    pub rmr_scope: DAT_RMR_SCOPE,
    pub va_type: DAT_VA_TYPE,
}

ep_attr! {
    /// `struct dat_ep_attr`, 88 bytes.
    lengths of DAT_SEG_LENGTH
}

record! {
/// `struct dat_ep_param`, 184 bytes.
pub struct DAT_EP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub ep_state: DAT_EP_STATE,
    pub comm: DAT_COMM,
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
}

/// `struct dat_csp_param`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CSP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub comm: *mut DAT_COMM,
    pub address_ptr: DAT_IA_ADDRESS_PTR,
    pub evd_handle: DAT_EVD_HANDLE,
}

record! {
/// `struct dat_lmr_param`, 80 bytes.
pub struct DAT_LMR_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub mem_type: DAT_MEM_TYPE,
    pub region_desc: DAT_REGION_DESCRIPTION,
    pub length: DAT_VLEN,
    pub pz_handle: DAT_PZ_HANDLE,
    pub mem_priv: DAT_MEM_PRIV_FLAGS,
    pub va_type: DAT_VA_TYPE,
    pub lmr_context: DAT_LMR_CONTEXT,
    pub rmr_context: DAT_RMR_CONTEXT,
    pub registered_size: DAT_VLEN,
    pub registered_address: DAT_VADDR,
}
}

/// `DAT_CNO_PARAM::proxy`, 16 bytes; the union has no name in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_CNO_PROXY {
    pub agent: DAT_OS_WAIT_PROXY_AGENT,
    pub fd: DAT_FD,
    pub none: DAT_PVOID,
}

record! {
/// `struct dat_cno_param`, 32 bytes.
pub struct DAT_CNO_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub proxy_type: DAT_PROXY_TYPE,
    pub proxy: DAT_CNO_PROXY,
}
}

ia_attr! {
    /// `struct dat_ia_attr`, 688 bytes.
    lengths of DAT_SEG_LENGTH,
    zb_supported: DAT_BOOLEAN,
    extension_supported: DAT_EXTENSION,
    extension_version: DAT_COUNT,
}

provider_attr! {
    /// `struct dat_provider_attr`, 520 bytes.
    rdma_read_lmr_rmr_context_exposure: DAT_BOOLEAN,
    rmr_scope_supported: DAT_RMR_SCOPE,
    is_signal_safe: DAT_BOOLEAN,
    ha_supported: DAT_BOOLEAN,
    ha_loadbalancing: DAT_HA_LB,
}
