//! Changes of a queue pair's state to RESET, INIT and ERR, which need no parameters of the peer. Also [`PathToRts`],
//! the changes from INIT to RTS, which the connection manager provides.
#![forbid(unsafe_code)]

use dapl::error::{Error, Result};
use ibverbs_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use crate::ibv::Qp;

/// A state transition: the attributes to modify, and their mask.
pub(crate) struct StateChange {
    pub(crate) attributes: ibv_qp_attr,
    pub(crate) mask: ibv_qp_attr_mask::Type,
}

/// Changes from RESET to INIT, where receives can be posted. All remote access is allowed, because the rights of the
/// key that a peer uses are checked in addition.
pub(crate) fn to_init(qp: &Qp, port: u8) -> Result<()> {
    let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    if qp.pd.context.has_atomics() {
        access |= ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
    }
    let mut attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        qp_access_flags: access,
        pkey_index: 0,
        port_num: port,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | ibv_qp_attr_mask::IBV_QP_PORT
        | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
    qp.modify(&mut attributes, mask).map_err(|error| {
        log::error!(
            "{0}: cannot change queue pair {1:#x} (port {port}) to INIT: {error}; it cannot be connected; check the device \
             (ibv_devinfo -d {0})",
            qp.pd.context.name(),
            qp.number
        );
        Error::Internal
    })
}

/// Changes to ERR. When it returns, no outstanding work can succeed any more.
pub(crate) fn to_error(qp: &Qp) {
    move_to(qp, ibv_qp_state::IBV_QPS_ERR, "ERR");
}

/// Changes to RESET. When it returns, the device accesses no memory of the queue pair's work.
pub(crate) fn to_reset(qp: &Qp) {
    move_to(qp, ibv_qp_state::IBV_QPS_RESET, "RESET");
}

fn move_to(qp: &Qp, state: ibv_qp_state::Type, name: &str) {
    let mut attributes = ibv_qp_attr { qp_state: state, ..Default::default() };
    if let Err(error) = qp.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE) {
        // The caller gets no error: the change fails only if the device was removed, which also ends its queue pairs.
        log::warn!(
            "{}: cannot change queue pair {:#x} to {name}: {error}; the device was probably removed (ibv_devices lists devices)",
            qp.pd.context.name(),
            qp.number
        );
    }
}

/// The state transitions from INIT to RTS.
pub(crate) struct PathToRts {
    /// Repeats the change to INIT, with the partition and port of the connection manager. `None`: both stay as
    /// [`to_init`] has set them.
    pub(crate) init: Option<StateChange>,
    pub(crate) to_receive: StateChange,
    pub(crate) to_send: StateChange,
}
