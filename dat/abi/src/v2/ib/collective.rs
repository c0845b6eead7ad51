//! Types and numbers of the collective operations of the InfiniBand extension. No provider of this project implements
//! these operations.

use core::ffi::{c_int, c_void};

use crate::types::*;

/// Opaque description of a process of a group.
pub type DAT_IB_COLLECTIVE_MEMBER = *mut c_void;

/// Number of a group.
pub type DAT_IB_COLLECTIVE_ID = u32;

/// Rank of a process in a group.
pub type DAT_IB_COLLECTIVE_RANK = u32;

/// Handle of a group of processes.
pub type DAT_IB_COLLECTIVE_HANDLE = DAT_HANDLE;

/// C enumeration `enum dat_ib_collective_data_type`.
pub type DAT_IB_COLLECTIVE_DATA_TYPE = u32;
pub const DAT_IB_COLLECTIVE_TYPE_INT8: DAT_IB_COLLECTIVE_DATA_TYPE = 0x0;
pub const DAT_IB_COLLECTIVE_TYPE_UINT8: DAT_IB_COLLECTIVE_DATA_TYPE = 0x1;
pub const DAT_IB_COLLECTIVE_TYPE_INT16: DAT_IB_COLLECTIVE_DATA_TYPE = 0x2;
pub const DAT_IB_COLLECTIVE_TYPE_UINT16: DAT_IB_COLLECTIVE_DATA_TYPE = 0x3;
pub const DAT_IB_COLLECTIVE_TYPE_INT32: DAT_IB_COLLECTIVE_DATA_TYPE = 0x4;
pub const DAT_IB_COLLECTIVE_TYPE_UINT32: DAT_IB_COLLECTIVE_DATA_TYPE = 0x5;
pub const DAT_IB_COLLECTIVE_TYPE_INT64: DAT_IB_COLLECTIVE_DATA_TYPE = 0x6;
pub const DAT_IB_COLLECTIVE_TYPE_UINT64: DAT_IB_COLLECTIVE_DATA_TYPE = 0x7;
pub const DAT_IB_COLLECTIVE_TYPE_FLOAT: DAT_IB_COLLECTIVE_DATA_TYPE = 0x8;
pub const DAT_IB_COLLECTIVE_TYPE_DOUBLE: DAT_IB_COLLECTIVE_DATA_TYPE = 0x9;
pub const DAT_IB_COLLECTIVE_TYPE_LONG_DOUBLE: DAT_IB_COLLECTIVE_DATA_TYPE = 0xa;
pub const DAT_IB_COLLECTIVE_TYPE_SHORT_INT: DAT_IB_COLLECTIVE_DATA_TYPE = 0xb;
pub const DAT_IB_COLLECTIVE_TYPE_2INT: DAT_IB_COLLECTIVE_DATA_TYPE = 0xc;
pub const DAT_IB_COLLECTIVE_TYPE_FLOAT_INT: DAT_IB_COLLECTIVE_DATA_TYPE = 0xd;
pub const DAT_IB_COLLECTIVE_TYPE_LONG_INT: DAT_IB_COLLECTIVE_DATA_TYPE = 0xe;
pub const DAT_IB_COLLECTIVE_TYPE_DOUBLE_INT: DAT_IB_COLLECTIVE_DATA_TYPE = 0xf;

/// C enumeration `enum dat_ib_collective_reduce_data_op`.
pub type DAT_IB_COLLECTIVE_REDUCE_DATA_OP = u32;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_MAX: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x0;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_MIN: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x1;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_SUM: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x2;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_PROD: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x3;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_LAND: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x4;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_BAND: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x5;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_LOR: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x6;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_BOR: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x7;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_LXOR: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x8;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_BXOR: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0x9;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_MAXLOC: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0xa;
pub const DAT_IB_COLLECTIVE_REDUCE_OP_MINLOC: DAT_IB_COLLECTIVE_REDUCE_DATA_OP = 0xb;

/// `struct dat_ib_collective_group`, 56 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_IB_COLLECTIVE_GROUP {
    pub local_size: c_int,
    pub local_rank: c_int,
    pub local_ranks: *mut c_int,
    pub external_size: c_int,
    pub external_rank: c_int,
    pub external_ranks: *mut c_int,
    pub intranode_table: *mut c_int,
    pub internode_table: *mut c_int,
    pub is_comm_world: c_int,
}
