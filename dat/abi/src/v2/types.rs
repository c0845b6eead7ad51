//! Scalars, handles, enumerations, flags and masks of DAT 2.0. Those that are the same in DAT 1.2 are re-exported from
//! there.

use core::ffi::c_int;

pub use crate::types::*;

/// Number of an extension operation.
pub type DAT_EXTENDED_OP = c_int;

/// Length of one segment in bytes.
pub type DAT_SEG_LENGTH = DAT_UINT32;

/// Handle of a common service point.
pub type DAT_CSP_HANDLE = DAT_HANDLE;

/// How a provider spreads the load of a connection over several paths (`DAT_HA_LB_*`).
pub type DAT_HA_LB = DAT_UINT32;

/// A file descriptor.
pub type DAT_FD = c_int;

// Values that 2.0 added to `enum dat_handle_type`.
pub const DAT_HANDLE_TYPE_CSP: DAT_HANDLE_TYPE = 0xb;
pub const DAT_HANDLE_TYPE_EXTENSION_BASE: DAT_HANDLE_TYPE = 0xc;

// Values of `enum dat_lmr_param_mask` that 2.0 added or changed.
pub const DAT_LMR_FIELD_VA_TYPE: DAT_LMR_PARAM_MASK = 0x40;
pub const DAT_LMR_FIELD_LMR_CONTEXT: DAT_LMR_PARAM_MASK = 0x80;
pub const DAT_LMR_FIELD_RMR_CONTEXT: DAT_LMR_PARAM_MASK = 0x100;
pub const DAT_LMR_FIELD_REGISTERED_SIZE: DAT_LMR_PARAM_MASK = 0x200;
pub const DAT_LMR_FIELD_REGISTERED_ADDRESS: DAT_LMR_PARAM_MASK = 0x400;
pub const DAT_LMR_FIELD_ALL: DAT_LMR_PARAM_MASK = 0x7ff;

// Values that 2.0 added to `enum dat_completion_flags`.
pub const DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG: DAT_COMPLETION_FLAGS = 0x20;

/// C enumeration `enum dat_dtos`: the operation of a completion.
pub type DAT_DTOS = u32;
pub const DAT_DTO_SEND: DAT_DTOS = 0x0;
pub const DAT_DTO_RDMA_WRITE: DAT_DTOS = 0x1;
pub const DAT_DTO_RDMA_READ: DAT_DTOS = 0x2;
pub const DAT_DTO_RECEIVE: DAT_DTOS = 0x3;
pub const DAT_DTO_RECEIVE_WITH_INVALIDATE: DAT_DTOS = 0x4;
pub const DAT_DTO_BIND_MW: DAT_DTOS = 0x5;
pub const DAT_DTO_LMR_FMR: DAT_DTOS = 0x6;
pub const DAT_DTO_LMR_INVALIDATE: DAT_DTOS = 0x7;
pub const DAT_DTO_EXTENSION_BASE: DAT_DTOS = 0x8;

// Values that 2.0 added to `enum dat_connect_flags`.
pub const DAT_CONNECT_MULTIPATH_REQUIRED_FLAG: DAT_CONNECT_FLAGS = 0x2;

// Values that 2.0 added to `enum dat_evd_flags`.
pub const DAT_EVD_EXTENSION_BASE: DAT_EVD_FLAGS = 0x200;

// Values that 2.0 added to `enum dat_mem_priv_flags`.
pub const DAT_MEM_PRIV_EXTENSION_BASE: DAT_MEM_PRIV_FLAGS = 0x40;

/// C enumeration `enum dat_va_type`: whether addresses in registered memory are virtual addresses or offsets from its
/// start.
pub type DAT_VA_TYPE = u32;
pub const DAT_VA_TYPE_VA: DAT_VA_TYPE = 0x0;
pub const DAT_VA_TYPE_ZB: DAT_VA_TYPE = 0x1;

/// C enumeration `enum dat_rmr_scope`: the endpoints whose peers can use a bound RMR.
pub type DAT_RMR_SCOPE = u32;
pub const DAT_RMR_SCOPE_EP: DAT_RMR_SCOPE = 0x0;
pub const DAT_RMR_SCOPE_PZ: DAT_RMR_SCOPE = 0x1;
pub const DAT_RMR_SCOPE_ANY: DAT_RMR_SCOPE = 0x2;

// Values of `enum dat_rmr_param_mask` that 2.0 added or changed.
pub const DAT_RMR_FIELD_RMR_SCOPE: DAT_RMR_PARAM_MASK = 0x20;
pub const DAT_RMR_FIELD_VA_TYPE: DAT_RMR_PARAM_MASK = 0x40;
pub const DAT_RMR_FIELD_ALL: DAT_RMR_PARAM_MASK = 0x7f;

/// C enumeration `enum dat_extension`: the extension that an IA supports.
pub type DAT_EXTENSION = u32;
pub const DAT_EXTENSION_NONE: DAT_EXTENSION = 0x0;
pub const DAT_EXTENSION_IB: DAT_EXTENSION = 0x1;
pub const DAT_EXTENSION_IW: DAT_EXTENSION = 0x2;

// Values that 2.0 added to `enum dat_service_type`.
pub const DAT_SERVICE_TYPE_EXTENSION_BASE: DAT_SERVICE_TYPE = 0x1;

// Values that 2.0 added to `enum dat_ep_state`.
pub const DAT_EP_STATE_CONNECTED_SINGLE_PATH: DAT_EP_STATE = 0xd;
pub const DAT_EP_STATE_CONNECTED_MULTI_PATH: DAT_EP_STATE = 0xe;

// `enum dat_srq_state`: 2.0 swaps the first two values, and adds the third.
pub const DAT_SRQ_STATE_ERROR: DAT_SRQ_STATE = 0x0;
pub const DAT_SRQ_STATE_OPERATIONAL: DAT_SRQ_STATE = 0x1;
pub const DAT_SRQ_STATE_SHUTDOWN: DAT_SRQ_STATE = 0x2;

/// C enumeration `enum dat_csp_param_mask`.
pub type DAT_CSP_PARAM_MASK = u32;
pub const DAT_CSP_FIELD_IA_HANDLE: DAT_CSP_PARAM_MASK = 0x1;
pub const DAT_CSP_FIELD_COMM: DAT_CSP_PARAM_MASK = 0x2;
pub const DAT_CSP_FIELD_IA_ADDRESS: DAT_CSP_PARAM_MASK = 0x4;
pub const DAT_CSP_FIELD_EVD_HANDLE: DAT_CSP_PARAM_MASK = 0x8;
pub const DAT_CSP_FIELD_ALL: DAT_CSP_PARAM_MASK = 0xf;

/// C enumeration `enum dat_proxy_type`: the kind of action of a CNO, which determines the valid member of
/// `DAT_CNO_PROXY`.
pub type DAT_PROXY_TYPE = u32;
pub const DAT_PROXY_TYPE_NONE: DAT_PROXY_TYPE = 0x0;
pub const DAT_PROXY_TYPE_AGENT: DAT_PROXY_TYPE = 0x1;
pub const DAT_PROXY_TYPE_FD: DAT_PROXY_TYPE = 0x2;

// Values of `enum dat_cno_param_mask` that 2.0 added or changed. Callers combine the values, although `DAT_CNO_FIELD_PROXY`
// equals the sum of the other fields, and `DAT_CNO_FIELD_ALL` contains none of them.
pub const DAT_CNO_FIELD_PROXY_TYPE: DAT_CNO_PARAM_MASK = 0x2;
pub const DAT_CNO_FIELD_PROXY: DAT_CNO_PARAM_MASK = 0x3;
pub const DAT_CNO_FIELD_ALL: DAT_CNO_PARAM_MASK = 0x4;

/// C enumeration `enum dat_ha_relationship`.
pub type DAT_HA_RELATIONSHIP = u32;
pub const DAT_HA_FALSE: DAT_HA_RELATIONSHIP = 0x0;
pub const DAT_HA_TRUE: DAT_HA_RELATIONSHIP = 0x1;
pub const DAT_HA_UNKNOWN: DAT_HA_RELATIONSHIP = 0x2;
pub const DAT_HA_CONFLICTING: DAT_HA_RELATIONSHIP = 0x3;
pub const DAT_HA_EXTENSION_BASE: DAT_HA_RELATIONSHIP = 0x4;

pub const DAT_VERSION_MAJOR: DAT_UINT32 = 0x2;
pub const DAT_VERSION_MINOR: DAT_UINT32 = 0x0;
pub const DAT_EXTENSIONS: c_int = 0x1;
pub const DAT_IB_EXTENSION: DAT_COUNT = 0x1;
pub const DAT_IW_EXTENSION: DAT_COUNT = 0x2;
pub const DAT_HA_LB_NONE: DAT_HA_LB = 0x0;
pub const DAT_HA_LB_INTERCOMM: DAT_HA_LB = 0x1;
pub const DAT_HA_LB_INTRACOMM: DAT_HA_LB = 0x2;
/// The name of 2.0 for [`DAT_CONNECT_MULTIPATH_FLAG`].
pub const DAT_CONNECT_MULTIPATH_REQUESTED_FLAG: DAT_CONNECT_FLAGS = DAT_CONNECT_MULTIPATH_FLAG;
pub const DAT_IA_FIELD_IA_ZB_SUPPORTED: DAT_IA_ATTR_MASK = 0x80000000;
pub const DAT_IA_FIELD_IA_EXTENSIONS_SUPPORTED: DAT_IA_ATTR_MASK = 0x100000000;
pub const DAT_IA_ALL: DAT_IA_ATTR_MASK = DAT_IA_FIELD_ALL;
pub const DAT_EP_FIELD_COMM: DAT_EP_PARAM_MASK = 0x4;
pub const DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR: DAT_EP_PARAM_MASK = 0x8;
pub const DAT_EP_FIELD_LOCAL_PORT_QUAL: DAT_EP_PARAM_MASK = 0x10;
pub const DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR: DAT_EP_PARAM_MASK = 0x20;
pub const DAT_EP_FIELD_REMOTE_PORT_QUAL: DAT_EP_PARAM_MASK = 0x40;
pub const DAT_EP_FIELD_PZ_HANDLE: DAT_EP_PARAM_MASK = 0x80;
pub const DAT_EP_FIELD_RECV_EVD_HANDLE: DAT_EP_PARAM_MASK = 0x100;
pub const DAT_EP_FIELD_REQUEST_EVD_HANDLE: DAT_EP_PARAM_MASK = 0x200;
pub const DAT_EP_FIELD_CONNECT_EVD_HANDLE: DAT_EP_PARAM_MASK = 0x400;
pub const DAT_EP_FIELD_SRQ_HANDLE: DAT_EP_PARAM_MASK = 0x800;
pub const DAT_EP_FIELD_ALL: DAT_EP_PARAM_MASK = 0x7fffffff;
pub const DAT_OPEN_EXTENSION_BASE: DAT_EXTENDED_OP = 0x1000;
pub const DAT_CLOSE_EXTENSION_BASE: DAT_EXTENDED_OP = 0x2000;
pub const DAT_IA_FIELD_IA_EXTENSION: DAT_IA_ATTR_MASK = 0x100000000;
pub const DAT_IA_FIELD_IA_EXTENSION_VERSION: DAT_IA_ATTR_MASK = 0x200000000;
pub const DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR: DAT_IA_ATTR_MASK = 0x400000000;
pub const DAT_IA_FIELD_IA_TRANSPORT_ATTR: DAT_IA_ATTR_MASK = 0x800000000;
pub const DAT_IA_FIELD_IA_NUM_VENDOR_ATTR: DAT_IA_ATTR_MASK = 0x1000000000;
pub const DAT_IA_FIELD_IA_VENDOR_ATTR: DAT_IA_ATTR_MASK = 0x2000000000;
pub const DAT_IA_FIELD_ALL: DAT_IA_ATTR_MASK = 0x3fffffffff;
pub const DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE: DAT_PROVIDER_ATTR_MASK = 0x1000000;
pub const DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED: DAT_PROVIDER_ATTR_MASK = 0x2000000;
pub const DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE: DAT_PROVIDER_ATTR_MASK = 0x4000000;
pub const DAT_PROVIDER_FIELD_HA_SUPPORTED: DAT_PROVIDER_ATTR_MASK = 0x8000000;
pub const DAT_PROVIDER_FIELD_HA_LB: DAT_PROVIDER_ATTR_MASK = 0x10000000;
pub const DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR: DAT_PROVIDER_ATTR_MASK = 0x20000000;
pub const DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR: DAT_PROVIDER_ATTR_MASK = 0x40000000;
pub const DAT_PROVIDER_FIELD_ALL: DAT_PROVIDER_ATTR_MASK = 0x7fffffff;
