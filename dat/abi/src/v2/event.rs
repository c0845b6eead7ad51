//! Events of DAT 2.0: 120 bytes, of which the last 64 belong to extensions. Types and numbers that are the same in DAT
//! 1.2 are re-exported from there.

use super::types::*;

pub use crate::event::*;

// Values that 2.0 added to `enum dat_dto_completion_status`.
pub const DAT_DTO_ERR_LOCAL_MM_ERROR: DAT_DTO_COMPLETION_STATUS = 0xc;

// Values that 2.0 added to `enum dat_event_number`.
pub const DAT_HA_DOWN_TO_1: DAT_EVENT_NUMBER = 0x8101;
pub const DAT_HA_UP_TO_MULTI_PATH: DAT_EVENT_NUMBER = 0x8102;
pub const DAT_EXTENSION_EVENT: DAT_EVENT_NUMBER = 0x20000;
pub const DAT_IB_EXTENSION_RANGE_BASE: DAT_EVENT_NUMBER = 0x40000;
pub const DAT_IW_EXTENSION_RANGE_BASE: DAT_EVENT_NUMBER = 0x80000;

/// `struct dat_dto_completion_event_data`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_DTO_COMPLETION_EVENT_DATA {
    pub ep_handle: DAT_EP_HANDLE,
    pub user_cookie: DAT_DTO_COOKIE,
    pub status: DAT_DTO_COMPLETION_STATUS,
    pub transfered_length: DAT_SEG_LENGTH,
    pub operation: DAT_DTOS,
    pub rmr_context: DAT_RMR_CONTEXT,
}

/// `union dat_sp_handle`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_SP_HANDLE {
    pub rsp_handle: DAT_RSP_HANDLE,
    pub psp_handle: DAT_PSP_HANDLE,
    pub csp_handle: DAT_CSP_HANDLE,
}

/// `struct dat_cr_arrival_event_data`, 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CR_ARRIVAL_EVENT_DATA {
    pub sp_handle: DAT_SP_HANDLE,
    pub local_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub conn_qual: DAT_CONN_QUAL,
    pub cr_handle: DAT_CR_HANDLE,
    pub truncate_flag: DAT_BOOLEAN,
}

/// `union dat_event_data`, 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_EVENT_DATA {
    pub dto_completion_event_data: DAT_DTO_COMPLETION_EVENT_DATA,
    pub rmr_completion_event_data: DAT_RMR_BIND_COMPLETION_EVENT_DATA,
    pub cr_arrival_event_data: DAT_CR_ARRIVAL_EVENT_DATA,
    pub connect_event_data: DAT_CONNECTION_EVENT_DATA,
    pub asynch_error_event_data: DAT_ASYNCH_ERROR_EVENT_DATA,
    pub software_event_data: DAT_SOFTWARE_EVENT_DATA,
}

/// `struct dat_event`, 120 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_EVENT {
    pub event_number: DAT_EVENT_NUMBER,
    pub evd_handle: DAT_EVD_HANDLE,
    pub event_data: DAT_EVENT_DATA,
    pub event_extension_data: [DAT_UINT64; 8],
}
