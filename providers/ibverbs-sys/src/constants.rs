//! Constants of `<infiniband/verbs.h>` for the provider over rdma-core.

use std::os::raw::{c_int, c_uint};

/// Declares the constants of an enumeration.
macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(pub const $name: $type = $value;)*
    };
}

/// Declares an enumeration or a set of flags as a module, with a `Type` for its values.
macro_rules! enumeration {
    ($(#[$doc:meta])* $module:ident: $($name:ident = $value:expr),* $(,)?) => {
        $(#[$doc])*
        pub mod $module {
            pub type Type = ::std::os::raw::c_uint;
            $(pub const $name: Type = $value;)*
        }
    };
}

numbers! { c_int: IBV_TRANSPORT_IWARP = 1 }
numbers! { u32: IBV_GID_TYPE_ROCE_V1 = 1, IBV_GID_TYPE_ROCE_V2 = 2 }
numbers! { u32: IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 }
numbers! { u32: IBV_DEVICE_MEM_WINDOW = 1 << 17 }
numbers! { u32: IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 2 }

/// MTU code: 1 is 256 bytes, and each higher code is twice as much.
pub type ibv_mtu = c_uint;
numbers! { ibv_mtu: IBV_MTU_256 = 1, IBV_MTU_512 = 2, IBV_MTU_1024 = 3, IBV_MTU_2048 = 4, IBV_MTU_4096 = 5 }

pub type ibv_mw_type = c_uint;
numbers! { ibv_mw_type: IBV_MW_TYPE_1 = 1 }

pub type ibv_event_type = c_uint;
numbers! {
    ibv_event_type:
    IBV_EVENT_CQ_ERR = 0,
    IBV_EVENT_QP_FATAL = 1,
    IBV_EVENT_QP_REQ_ERR = 2,
    IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_COMM_EST = 4,
    IBV_EVENT_SQ_DRAINED = 5,
    IBV_EVENT_PATH_MIG = 6,
    IBV_EVENT_PATH_MIG_ERR = 7,
    IBV_EVENT_DEVICE_FATAL = 8,
    IBV_EVENT_PORT_ACTIVE = 9,
    IBV_EVENT_PORT_ERR = 10,
    IBV_EVENT_LID_CHANGE = 11,
    IBV_EVENT_PKEY_CHANGE = 12,
    IBV_EVENT_SM_CHANGE = 13,
    IBV_EVENT_SRQ_ERR = 14,
    IBV_EVENT_SRQ_LIMIT_REACHED = 15,
    IBV_EVENT_QP_LAST_WQE_REACHED = 16,
    IBV_EVENT_CLIENT_REREGISTER = 17,
    IBV_EVENT_GID_CHANGE = 18,
    IBV_EVENT_WQ_FATAL = 19,
}

enumeration! {
    ibv_port_state: IBV_PORT_ACTIVE = 4
}
enumeration! {
    ibv_qp_type: IBV_QPT_RC = 2
}
enumeration! {
    ibv_qp_state: IBV_QPS_RESET = 0, IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_ERR = 6
}
enumeration! {
    ibv_wr_opcode:
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
}
enumeration! {
    /// Operation of a completed work request. Only the values that the provider uses are declared.
    ibv_wc_opcode: IBV_WC_RECV_RDMA_WITH_IMM = 129
}
enumeration! {
    /// Support of atomic operations by a device: none, atomic with respect to its own operations, or also with respect
    /// to CPU instructions.
    ibv_atomic_cap: IBV_ATOMIC_NONE = 0, IBV_ATOMIC_HCA = 1, IBV_ATOMIC_GLOB = 2
}
enumeration! {
    ibv_wc_status:
    IBV_WC_SUCCESS = 0,
    IBV_WC_LOC_LEN_ERR = 1,
    IBV_WC_LOC_QP_OP_ERR = 2,
    IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5,
    IBV_WC_MW_BIND_ERR = 6,
    IBV_WC_BAD_RESP_ERR = 7,
    IBV_WC_LOC_ACCESS_ERR = 8,
    IBV_WC_REM_INV_REQ_ERR = 9,
    IBV_WC_REM_ACCESS_ERR = 10,
    IBV_WC_REM_OP_ERR = 11,
    IBV_WC_RNR_RETRY_EXC_ERR = 13,
    IBV_WC_RESP_TIMEOUT_ERR = 20,
    IBV_WC_TM_RNDV_INCOMPLETE = 23,
}

enumeration! {
    /// Rights on registered memory.
    ibv_access_flags:
    IBV_ACCESS_LOCAL_WRITE = 1,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
}
enumeration! {
    /// Attributes that a call of `ibv_modify_qp` sets.
    ibv_qp_attr_mask:
    IBV_QP_STATE = 1,
    IBV_QP_ACCESS_FLAGS = 1 << 3,
    IBV_QP_PKEY_INDEX = 1 << 4,
    IBV_QP_PORT = 1 << 5,
    IBV_QP_AV = 1 << 7,
    IBV_QP_PATH_MTU = 1 << 8,
    IBV_QP_TIMEOUT = 1 << 9,
    IBV_QP_RETRY_CNT = 1 << 10,
    IBV_QP_RNR_RETRY = 1 << 11,
    IBV_QP_RQ_PSN = 1 << 12,
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    IBV_QP_MIN_RNR_TIMER = 1 << 15,
    IBV_QP_SQ_PSN = 1 << 16,
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    IBV_QP_DEST_QPN = 1 << 20,
}
enumeration! {
    ibv_wc_flags: IBV_WC_WITH_IMM = 1 << 1
}
enumeration! {
    ibv_send_flags:
    IBV_SEND_FENCE = 1,
    IBV_SEND_SIGNALED = 1 << 1,
    IBV_SEND_SOLICITED = 1 << 2,
    IBV_SEND_INLINE = 1 << 3,
}
