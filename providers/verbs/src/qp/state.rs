//! Changes of a queue pair to RESET, INIT and ERR, which need no peer. The connection manager makes the changes to RTR
//! and RTS.
#![forbid(unsafe_code)]

use dapl::error::{Error, Result};
use ibverbs_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use crate::ibv::Qp;

/// A state transition: attributes, and their mask (`IBV_QP_*`).
pub(crate) struct Change {
    pub(crate) attributes: ibv_qp_attr,
    pub(crate) mask: i32,
}

/// Changes from RESET to INIT, where receives can be posted. Keys determine the rights of the peer, so all access is
/// allowed here.
pub(crate) fn to_init(qp: &Qp, port: u8) -> Result<()> {
    let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    if qp.has_atomics() {
        access |= ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
    }
    let mut attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        qp_access_flags: access.0,
        pkey_index: 0,
        port_num: port,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | ibv_qp_attr_mask::IBV_QP_PORT
        | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
    qp.modify(&mut attributes, mask.0 as i32).map_err(|error| {
        log::error!("queue pair {} cannot be initialised: {error}", qp.number());
        Error::Internal
    })
}

/// Changes to ERR: when this returns, no further work succeeds.
pub(crate) fn to_error(qp: &Qp) {
    move_to(qp, ibv_qp_state::IBV_QPS_ERR);
}

/// Changes to RESET: when this returns, the device accesses no memory.
pub(crate) fn to_reset(qp: &Qp) {
    move_to(qp, ibv_qp_state::IBV_QPS_RESET);
}

fn move_to(qp: &Qp, state: ibv_qp_state::Type) {
    let mut attributes = ibv_qp_attr { qp_state: state, ..Default::default() };
    if let Err(error) = qp.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32) {
        // The device was removed, and with it its queue pairs.
        log::warn!("queue pair {} cannot go to state {state}: {error}", qp.number());
    }
}

/// Parameters that take a queue pair from INIT to RTS.
pub(crate) struct Path {
    /// Repeats INIT, if the manager knows better partition or port values than at creation.
    pub(crate) init: Option<Change>,
    pub(crate) to_receive: Change,
    pub(crate) to_send: Change,
}
