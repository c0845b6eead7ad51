//! Types and numbers of the InfiniBand extension of DAT 2.0 (header `dat_ib_extensions.h`).
//!
//! Every operation of the extension is a call of `dat_extension_op`, whose operation number ([`DAT_IB_OP`]) determines
//! the arguments that follow. Of these operations, the providers of this project implement only the atomic ones and the
//! RDMA write with immediate data. `libdat2.so.2` itself opens and closes an IA for a query of its attributes
//! ([`DAT_IB_OPEN_QUERY_OP`], [`DAT_IB_CLOSE_QUERY_OP`]).

use core::ffi::{CStr, c_void};

use super::attr::*;
use super::types::*;

pub mod collective;
pub mod counters;

pub use collective::*;
pub use counters::*;

/// C enumeration `enum dat_ib_event_number`.
pub type DAT_IB_EVENT_NUMBER = u32;
pub const DAT_IB_DTO_EVENT: DAT_IB_EVENT_NUMBER = 0x40000;
pub const DAT_IB_UD_CONNECTION_REQUEST_EVENT: DAT_IB_EVENT_NUMBER = 0x40001;
pub const DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED: DAT_IB_EVENT_NUMBER = 0x40002;
pub const DAT_IB_UD_CONNECTION_REJECT_EVENT: DAT_IB_EVENT_NUMBER = 0x40003;
pub const DAT_IB_UD_CONNECTION_ERROR_EVENT: DAT_IB_EVENT_NUMBER = 0x40004;
pub const DAT_IB_COLLECTIVE_EVENT: DAT_IB_EVENT_NUMBER = 0x40005;

/// C enumeration `enum dat_ib_op`.
pub type DAT_IB_OP = u32;
pub const DAT_IB_FETCH_AND_ADD_OP: DAT_IB_OP = 0x0;
pub const DAT_IB_CMP_AND_SWAP_OP: DAT_IB_OP = 0x1;
pub const DAT_IB_RDMA_WRITE_IMMED_OP: DAT_IB_OP = 0x2;
pub const DAT_IB_UD_SEND_OP: DAT_IB_OP = 0x3;
pub const DAT_IB_QUERY_COUNTERS_OP: DAT_IB_OP = 0x4;
pub const DAT_IB_PRINT_COUNTERS_OP: DAT_IB_OP = 0x5;
pub const DAT_IB_COLLECTIVE_CREATE_MEMBER_OP: DAT_IB_OP = 0x6;
pub const DAT_IB_COLLECTIVE_FREE_MEMBER_OP: DAT_IB_OP = 0x7;
pub const DAT_IB_COLLECTIVE_CREATE_GROUP_OP: DAT_IB_OP = 0x8;
pub const DAT_IB_COLLECTIVE_FREE_GROUP_OP: DAT_IB_OP = 0x9;
pub const DAT_IB_COLLECTIVE_SET_CLOCK_OP: DAT_IB_OP = 0xa;
pub const DAT_IB_COLLECTIVE_READ_CLOCK_OP: DAT_IB_OP = 0xb;
pub const DAT_IB_COLLECTIVE_SCATTER_OP: DAT_IB_OP = 0xc;
pub const DAT_IB_COLLECTIVE_SCATTERV_OP: DAT_IB_OP = 0xd;
pub const DAT_IB_COLLECTIVE_GATHER_OP: DAT_IB_OP = 0xe;
pub const DAT_IB_COLLECTIVE_GATHERV_OP: DAT_IB_OP = 0xf;
pub const DAT_IB_COLLECTIVE_ALLGATHER_OP: DAT_IB_OP = 0x10;
pub const DAT_IB_COLLECTIVE_ALLGATHERV_OP: DAT_IB_OP = 0x11;
pub const DAT_IB_COLLECTIVE_ALLTOALL_OP: DAT_IB_OP = 0x12;
pub const DAT_IB_COLLECTIVE_ALLTOALLV_OP: DAT_IB_OP = 0x13;
pub const DAT_IB_COLLECTIVE_REDUCE_OP: DAT_IB_OP = 0x14;
pub const DAT_IB_COLLECTIVE_ALLREDUCE_OP: DAT_IB_OP = 0x15;
pub const DAT_IB_COLLECTIVE_REDUCE_SCATTER_OP: DAT_IB_OP = 0x16;
pub const DAT_IB_COLLECTIVE_SCAN_OP: DAT_IB_OP = 0x17;
pub const DAT_IB_COLLECTIVE_BROADCAST_OP: DAT_IB_OP = 0x18;
pub const DAT_IB_COLLECTIVE_BARRIER_OP: DAT_IB_OP = 0x19;
pub const DAT_IB_START_COUNTERS_OP: DAT_IB_OP = 0x1a;
pub const DAT_IB_STOP_COUNTERS_OP: DAT_IB_OP = 0x1b;
pub const DAT_IB_UD_CM_FREE_OP: DAT_IB_OP = 0x1c;
pub const DAT_IB_UD_AH_FREE_OP: DAT_IB_OP = 0x1d;
pub const DAT_IB_OPEN_QUERY_OP: DAT_IB_OP = 0x1000;
pub const DAT_IB_CLOSE_QUERY_OP: DAT_IB_OP = 0x2000;

/// C enumeration `enum dat_ib_ext_type`.
pub type DAT_IB_EXT_TYPE = u32;
pub const DAT_IB_FETCH_AND_ADD: DAT_IB_EXT_TYPE = 0x0;
pub const DAT_IB_CMP_AND_SWAP: DAT_IB_EXT_TYPE = 0x1;
pub const DAT_IB_RDMA_WRITE_IMMED: DAT_IB_EXT_TYPE = 0x2;
pub const DAT_IB_RDMA_WRITE_IMMED_DATA: DAT_IB_EXT_TYPE = 0x3;
pub const DAT_IB_RECV_IMMED_DATA: DAT_IB_EXT_TYPE = 0x4;
pub const DAT_IB_UD_CONNECT_REQUEST: DAT_IB_EXT_TYPE = 0x5;
pub const DAT_IB_UD_REMOTE_AH: DAT_IB_EXT_TYPE = 0x6;
pub const DAT_IB_UD_PASSIVE_REMOTE_AH: DAT_IB_EXT_TYPE = 0x7;
pub const DAT_IB_UD_SEND: DAT_IB_EXT_TYPE = 0x8;
pub const DAT_IB_UD_RECV: DAT_IB_EXT_TYPE = 0x9;
pub const DAT_IB_UD_CONNECT_REJECT: DAT_IB_EXT_TYPE = 0xa;
pub const DAT_IB_UD_CONNECT_ERROR: DAT_IB_EXT_TYPE = 0xb;
pub const DAT_IB_COLLECTIVE_CREATE_STATUS: DAT_IB_EXT_TYPE = 0xc;
pub const DAT_IB_COLLECTIVE_CREATE_DATA: DAT_IB_EXT_TYPE = 0xd;
pub const DAT_IB_COLLECTIVE_CLOCK_SET_STATUS: DAT_IB_EXT_TYPE = 0xe;
pub const DAT_IB_COLLECTIVE_SCATTER_STATUS: DAT_IB_EXT_TYPE = 0xf;
pub const DAT_IB_COLLECTIVE_SCATTERV_STATUS: DAT_IB_EXT_TYPE = 0x10;
pub const DAT_IB_COLLECTIVE_GATHER_STATUS: DAT_IB_EXT_TYPE = 0x11;
pub const DAT_IB_COLLECTIVE_GATHERV_STATUS: DAT_IB_EXT_TYPE = 0x12;
pub const DAT_IB_COLLECTIVE_ALLGATHER_STATUS: DAT_IB_EXT_TYPE = 0x13;
pub const DAT_IB_COLLECTIVE_ALLGATHERV_STATUS: DAT_IB_EXT_TYPE = 0x14;
pub const DAT_IB_COLLECTIVE_ALLTOALL_STATUS: DAT_IB_EXT_TYPE = 0x15;
pub const DAT_IB_COLLECTIVE_ALLTOALLV_STATUS: DAT_IB_EXT_TYPE = 0x16;
pub const DAT_IB_COLLECTIVE_REDUCE_STATUS: DAT_IB_EXT_TYPE = 0x17;
pub const DAT_IB_COLLECTIVE_ALLREDUCE_STATUS: DAT_IB_EXT_TYPE = 0x18;
pub const DAT_IB_COLLECTIVE_REDUCE_SCATTER_STATUS: DAT_IB_EXT_TYPE = 0x19;
pub const DAT_IB_COLLECTIVE_SCAN_STATUS: DAT_IB_EXT_TYPE = 0x1a;
pub const DAT_IB_COLLECTIVE_BROADCAST_STATUS: DAT_IB_EXT_TYPE = 0x1b;
pub const DAT_IB_COLLECTIVE_BARRIER_STATUS: DAT_IB_EXT_TYPE = 0x1c;

/// C enumeration `enum dat_ib_status`.
pub type DAT_IB_STATUS = u32;
pub const DAT_OP_SUCCESS: DAT_IB_STATUS = 0x0;
pub const DAT_IB_OP_ERR: DAT_IB_STATUS = 0x1;
pub const DAT_IB_COLL_COMP_ERR: DAT_IB_STATUS = 0x2;

/// C enumeration `enum dat_ib_return`.
pub type DAT_IB_RETURN = u32;
pub const DAT_IB_ERR: DAT_IB_RETURN = 0x10000000;
pub const DAT_IB_COLLECTIVE_ERR: DAT_IB_RETURN = 0x10000001;

/// C enumeration `enum dat_ib_dtos`.
pub type DAT_IB_DTOS = u32;
pub const DAT_IB_DTO_RDMA_WRITE_IMMED: DAT_IB_DTOS = 0x8;
pub const DAT_IB_DTO_RECV_IMMED: DAT_IB_DTOS = 0x9;
pub const DAT_IB_DTO_FETCH_ADD: DAT_IB_DTOS = 0xa;
pub const DAT_IB_DTO_CMP_SWAP: DAT_IB_DTOS = 0xb;
pub const DAT_IB_DTO_RECV_MSG_IMMED: DAT_IB_DTOS = 0xc;
pub const DAT_IB_DTO_SEND_UD: DAT_IB_DTOS = 0xd;
pub const DAT_IB_DTO_RECV_UD: DAT_IB_DTOS = 0xe;
pub const DAT_IB_DTO_RECV_UD_IMMED: DAT_IB_DTOS = 0xf;
pub const DAT_IB_DTO_COLLECTIVES: DAT_IB_DTOS = 0x10;

/// C enumeration `enum dat_ib_handle_type`.
pub type DAT_IB_HANDLE_TYPE = u32;
pub const DAT_IB_HANDLE_TYPE_EXT: DAT_IB_HANDLE_TYPE = 0xc;
pub const DAT_IB_HANDLE_TYPE_COLLECTIVE: DAT_IB_HANDLE_TYPE = 0xd;

/// C enumeration `enum dat_ib_evd_extension_flags`.
pub type DAT_IB_EVD_EXTENSION_FLAGS = u32;
pub const DAT_IB_EVD_EXTENSION_FLAG: DAT_IB_EVD_EXTENSION_FLAGS = 0x200;

/// C enumeration `enum dat_ib_mem_priv_flags`.
pub type DAT_IB_MEM_PRIV_FLAGS = u32;
pub const DAT_IB_MEM_PRIV_REMOTE_ATOMIC: DAT_IB_MEM_PRIV_FLAGS = 0x40;

/// C enumeration `enum dat_ib_service_type`.
pub type DAT_IB_SERVICE_TYPE = u32;
pub const DAT_IB_SERVICE_TYPE_UD: DAT_IB_SERVICE_TYPE = 0x1;

/// Version of the extension, for comparison with `extension_version` of `DAT_IA_ATTR`.
pub const DAT_IB_EXTENSION_VERSION: DAT_COUNT = 0xd1;
pub const DAT_QUERY_COUNTERS_OP: DAT_IB_OP = DAT_IB_QUERY_COUNTERS_OP;
pub const DAT_PRINT_COUNTERS_OP: DAT_IB_OP = DAT_IB_PRINT_COUNTERS_OP;

// Names in `provider_specific_attr` by which a provider declares its extension operations.
pub const DAT_IB_ATTR_COUNTERS: &CStr = c"DAT_COUNTERS";
pub const DAT_IB_ATTR_FETCH_AND_ADD: &CStr = c"DAT_IB_FETCH_AND_ADD";
pub const DAT_IB_ATTR_CMP_AND_SWAP: &CStr = c"DAT_IB_CMP_AND_SWAP";
pub const DAT_IB_ATTR_IMMED_DATA: &CStr = c"DAT_IB_IMMED_DATA";
pub const DAT_IB_ATTR_UD: &CStr = c"DAT_IB_UD";
pub const DAT_IB_COLL_SET_CLOCK: &CStr = c"DAT_COLL_SET_CLOCK";
pub const DAT_IB_COLL_READ_CLOCK: &CStr = c"DAT_COLL_READ_CLOCK";
pub const DAT_IB_COLL_BROADCAST: &CStr = c"DAT_COLL_BROADCAST";
pub const DAT_IB_COLL_BARRIER: &CStr = c"DAT_COLL_BARRIER";
pub const DAT_IB_COLL_SCATTER: &CStr = c"DAT_COLL_SCATTER";
pub const DAT_IB_COLL_SCATTERV: &CStr = c"DAT_COLL_SCATTERV";
pub const DAT_IB_COLL_GATHER: &CStr = c"DAT_COLL_GATHER";
pub const DAT_IB_COLL_GATHERV: &CStr = c"DAT_COLL_GATHERV";
pub const DAT_IB_COLL_ALLGATHER: &CStr = c"DAT_COLL_ALLGATHER";
pub const DAT_IB_COLL_ALLGATHERV: &CStr = c"DAT_COLL_ALLGATHERV";
pub const DAT_IB_COLL_ALLTOALL: &CStr = c"DAT_COLL_ALLTOALL";
pub const DAT_IB_COLL_ALLTOALLV: &CStr = c"DAT_COLL_ALLTOALLV";
pub const DAT_IB_COLL_REDUCE: &CStr = c"DAT_COLL_REDUCE";
pub const DAT_IB_COLL_ALLREDUCE: &CStr = c"DAT_COLL_ALLREDUCE";
pub const DAT_IB_COLL_REDUCE_SCATTER: &CStr = c"DAT_COLL_REDUCE_SCATTER";
pub const DAT_IB_COLL_SCAN: &CStr = c"DAT_COLL_SCAN";
pub const DAT_ATTR_COUNTERS: &CStr = DAT_IB_ATTR_COUNTERS;

/// `struct dat_ib_addr_handle`, 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_IB_ADDR_HANDLE {
    pub ah: *mut c_void,
    pub qpn: DAT_UINT32,
    pub ia_addr: DAT_SOCK_ADDR6,
}

/// `struct dat_ib_immed_data`, 4 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_IB_IMMED_DATA {
    pub data: DAT_UINT32,
}

/// `struct dat_ib_collective_event_data`, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_IB_COLLECTIVE_EVENT_DATA {
    pub handle: DAT_HANDLE,
    pub context: DAT_CONTEXT,
}

/// Type of `DAT_IB_EXTENSION_EVENT_DATA::val`, 4 bytes. The union has no name in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_IB_EXTENSION_EVENT_VALUE {
    pub immed: DAT_IB_IMMED_DATA,
}

/// The second union in [`DAT_IB_EXTENSION_EVENT_DATA`], 40 bytes. Neither the union nor its field has a name in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_IB_EXTENSION_EVENT_PEER {
    pub remote_ah: DAT_IB_ADDR_HANDLE,
    pub coll: DAT_IB_COLLECTIVE_EVENT_DATA,
}

/// `struct dat_ib_extension_event_data`, 64 bytes: the content of `DAT_EVENT::event_extension_data` in an InfiniBand
/// event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_IB_EXTENSION_EVENT_DATA {
    pub r#type: DAT_IB_EXT_TYPE,
    pub status: DAT_IB_STATUS,
    pub val: DAT_IB_EXTENSION_EVENT_VALUE,
    pub peer: DAT_IB_EXTENSION_EVENT_PEER,
    pub context: DAT_CONTEXT,
}
