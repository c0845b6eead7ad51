//! Events of DAT 1.2, as `dat_evd_wait` and `dat_evd_dequeue` write them. An event has 48 bytes, and its number selects
//! the member of the union.
//!
//! `ep_handle` is the first field of both DTO and connection data, because programs read it through either member.

use crate::types::*;

/// C enumeration `enum dat_dto_completion_status`.
pub type DAT_DTO_COMPLETION_STATUS = u32;
pub const DAT_DTO_SUCCESS: DAT_DTO_COMPLETION_STATUS = 0x0;
pub const DAT_DTO_ERR_FLUSHED: DAT_DTO_COMPLETION_STATUS = 0x1;
pub const DAT_DTO_ERR_LOCAL_LENGTH: DAT_DTO_COMPLETION_STATUS = 0x2;
pub const DAT_DTO_ERR_LOCAL_EP: DAT_DTO_COMPLETION_STATUS = 0x3;
pub const DAT_DTO_ERR_LOCAL_PROTECTION: DAT_DTO_COMPLETION_STATUS = 0x4;
pub const DAT_DTO_ERR_BAD_RESPONSE: DAT_DTO_COMPLETION_STATUS = 0x5;
pub const DAT_DTO_ERR_REMOTE_ACCESS: DAT_DTO_COMPLETION_STATUS = 0x6;
pub const DAT_DTO_ERR_REMOTE_RESPONDER: DAT_DTO_COMPLETION_STATUS = 0x7;
pub const DAT_DTO_ERR_TRANSPORT: DAT_DTO_COMPLETION_STATUS = 0x8;
pub const DAT_DTO_ERR_RECEIVER_NOT_READY: DAT_DTO_COMPLETION_STATUS = 0x9;
pub const DAT_DTO_ERR_PARTIAL_PACKET: DAT_DTO_COMPLETION_STATUS = 0xa;
pub const DAT_RMR_OPERATION_FAILED: DAT_DTO_COMPLETION_STATUS = 0xb;

/// C enumeration `enum ia_async_error_reason`.
pub type DAT_IA_ASYNC_ERROR_REASON = u32;
pub const DAT_IA_CATASTROPHIC_ERROR: DAT_IA_ASYNC_ERROR_REASON = 0x0;
pub const DAT_IA_OTHER_ERROR: DAT_IA_ASYNC_ERROR_REASON = 0x1;

/// C enumeration `enum ep_async_error_reason`.
pub type DAT_EP_ASYNC_ERROR_REASON = u32;
pub const DAT_EP_TRANSFER_TO_ERROR: DAT_EP_ASYNC_ERROR_REASON = 0x0;
pub const DAT_EP_OTHER_ERROR: DAT_EP_ASYNC_ERROR_REASON = 0x1;
pub const DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT: DAT_EP_ASYNC_ERROR_REASON = 0x2;

/// C enumeration `enum evd_async_error_reason`.
pub type DAT_EVD_ASYNC_ERROR_REASON = u32;
pub const DAT_EVD_OVERFLOW_ERROR: DAT_EVD_ASYNC_ERROR_REASON = 0x0;
pub const DAT_EVD_OTHER_ERROR: DAT_EVD_ASYNC_ERROR_REASON = 0x1;

/// C enumeration `enum srq_async_error_reason`.
pub type DAT_SRQ_ASYNC_ERROR_REASON = u32;
pub const DAT_SRQ_TRANSFER_TO_ERROR: DAT_SRQ_ASYNC_ERROR_REASON = 0x0;
pub const DAT_SRQ_OTHER_ERROR: DAT_SRQ_ASYNC_ERROR_REASON = 0x1;
pub const DAT_SRQ_LOW_WATERMARK_EVENT: DAT_SRQ_ASYNC_ERROR_REASON = 0x2;

/// C enumeration `enum lmr_async_error_reason`.
pub type DAT_LMR_ASYNC_ERROR_REASON = u32;
pub const DAT_LMR_OTHER_ERROR: DAT_LMR_ASYNC_ERROR_REASON = 0x0;

/// C enumeration `enum rmr_async_error_reason`.
pub type DAT_RMR_ASYNC_ERROR_REASON = u32;
pub const DAT_RMR_OTHER_ERROR: DAT_RMR_ASYNC_ERROR_REASON = 0x0;

/// C enumeration `enum pz_async_error_reason`.
pub type DAT_PZ_ASYNC_ERROR_REASON = u32;
pub const DAT_PZ_OTHER_ERROR: DAT_PZ_ASYNC_ERROR_REASON = 0x0;

/// C enumeration `enum dat_event_number`.
pub type DAT_EVENT_NUMBER = u32;
pub const DAT_DTO_COMPLETION_EVENT: DAT_EVENT_NUMBER = 0x1;
pub const DAT_RMR_BIND_COMPLETION_EVENT: DAT_EVENT_NUMBER = 0x1001;
pub const DAT_CONNECTION_REQUEST_EVENT: DAT_EVENT_NUMBER = 0x2001;
pub const DAT_CONNECTION_EVENT_ESTABLISHED: DAT_EVENT_NUMBER = 0x4001;
pub const DAT_CONNECTION_EVENT_PEER_REJECTED: DAT_EVENT_NUMBER = 0x4002;
pub const DAT_CONNECTION_EVENT_NON_PEER_REJECTED: DAT_EVENT_NUMBER = 0x4003;
pub const DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: DAT_EVENT_NUMBER = 0x4004;
pub const DAT_CONNECTION_EVENT_DISCONNECTED: DAT_EVENT_NUMBER = 0x4005;
pub const DAT_CONNECTION_EVENT_BROKEN: DAT_EVENT_NUMBER = 0x4006;
pub const DAT_CONNECTION_EVENT_TIMED_OUT: DAT_EVENT_NUMBER = 0x4007;
pub const DAT_CONNECTION_EVENT_UNREACHABLE: DAT_EVENT_NUMBER = 0x4008;
pub const DAT_ASYNC_ERROR_EVD_OVERFLOW: DAT_EVENT_NUMBER = 0x8001;
pub const DAT_ASYNC_ERROR_IA_CATASTROPHIC: DAT_EVENT_NUMBER = 0x8002;
pub const DAT_ASYNC_ERROR_EP_BROKEN: DAT_EVENT_NUMBER = 0x8003;
pub const DAT_ASYNC_ERROR_TIMED_OUT: DAT_EVENT_NUMBER = 0x8004;
pub const DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR: DAT_EVENT_NUMBER = 0x8005;
pub const DAT_SOFTWARE_EVENT: DAT_EVENT_NUMBER = 0x10001;

pub const DAT_DTO_LENGTH_ERROR: DAT_DTO_COMPLETION_STATUS = DAT_DTO_ERR_LOCAL_LENGTH;
pub const DAT_DTO_FAILURE: DAT_DTO_COMPLETION_STATUS = DAT_DTO_ERR_FLUSHED;
pub const DAT_RMR_BIND_SUCCESS: DAT_DTO_COMPLETION_STATUS = DAT_DTO_SUCCESS;
pub const DAT_RMR_BIND_FAILURE: DAT_DTO_COMPLETION_STATUS = DAT_DTO_ERR_FLUSHED;
/// `struct dat_dto_completion_event_data`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_DTO_COMPLETION_EVENT_DATA {
    pub ep_handle: DAT_EP_HANDLE,
    pub user_cookie: DAT_DTO_COOKIE,
    pub status: DAT_DTO_COMPLETION_STATUS,
    pub transfered_length: DAT_VLEN,
}

/// `struct dat_rmr_bind_completion_event_data`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RMR_BIND_COMPLETION_EVENT_DATA {
    pub rmr_handle: DAT_RMR_HANDLE,
    pub user_cookie: DAT_RMR_COOKIE,
    pub status: DAT_DTO_COMPLETION_STATUS,
}

/// `union dat_sp_handle`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_SP_HANDLE {
    pub rsp_handle: DAT_RSP_HANDLE,
    pub psp_handle: DAT_PSP_HANDLE,
}

/// `struct dat_cr_arrival_event_data`, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CR_ARRIVAL_EVENT_DATA {
    pub sp_handle: DAT_SP_HANDLE,
    pub local_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub conn_qual: DAT_CONN_QUAL,
    pub cr_handle: DAT_CR_HANDLE,
}

/// `struct dat_connection_event_data`, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_CONNECTION_EVENT_DATA {
    pub ep_handle: DAT_EP_HANDLE,
    pub private_data_size: DAT_COUNT,
    pub private_data: DAT_PVOID,
}

/// `struct dat_asynch_error_event_data`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_ASYNCH_ERROR_EVENT_DATA {
    pub dat_handle: DAT_HANDLE,
    pub reason: DAT_COUNT,
}

/// `struct dat_software_event_data`, 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_SOFTWARE_EVENT_DATA {
    pub pointer: DAT_PVOID,
}

/// `union dat_event_data`, 32 bytes.
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

/// `struct dat_event`, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_EVENT {
    pub event_number: DAT_EVENT_NUMBER,
    pub evd_handle: DAT_EVD_HANDLE,
    pub event_data: DAT_EVENT_DATA,
}
