//! Posts of extension operations: immediate data, invalidation and atomics. The entries of the DAT 2.0 table call this
//! module after they have parsed their arguments.
#![forbid(unsafe_code)]

use std::ffi::c_void;

use dat_abi::DAT_COMPLETION_FLAGS;

use super::dapl_post::{check_flags, request};
use super::{Ep, PostState, post_lock};
use crate::error::{Error, Result, State};
use crate::provider::{ATOMIC_SIZE, Op, Provider, Segment};

/// Numbers of the C parameters, for `InvalidParameter`.
#[derive(Clone, Copy, Debug)]
pub struct ParameterNumbers {
    /// Number of the parameter that gives the number of segments, or the local memory of an atomic operation.
    pub local: u8,
    /// Number of the parameter with the remote memory; not used by sends.
    pub remote: u8,
    pub flags: u8,
}

/// Posts a request with any operation of [`Op`]. `segments` are the local memory: for an atomic operation, one segment
/// of eight bytes. SOLICITED_WAIT in `flags` has no effect, because `op` states whether the message is solicited.
///
/// Errors: `InvalidHandle(Ep)`; `ModelNotSupported` if provider or peer lack the operation; `InvalidParameter` for too
/// many segments, the wrong length or alignment of an atomic operation, or a flag that the EP does not allow;
/// `InvalidState` if the EP's state does not permit requests, or for an atomic operation on an EP without outgoing
/// reads; `Exhausted` when the request queue is full.
pub fn post_extension<P: Provider>(
    ep_handle: *mut c_void,
    op: Op,
    segments: &[Segment],
    cookie: u64,
    flags: DAT_COMPLETION_FLAGS,
    positions: ParameterNumbers,
) -> Result<()> {
    post_lock::post(ep_handle, |ep: &Ep<P>, post_state: &PostState<P>, thread| {
        let limits = &post_state.limits;
        if !limits.extensions.support(op) {
            return Err(Error::ModelNotSupported);
        }
        check_memory(op, segments, limits.iov(op), positions)?;
        check_flags(flags, limits.refused_request_flags, positions.flags)?;
        ep.state().takes_requests()?;
        if op.work().is_atomic() && !limits.reads {
            return Err(Error::InvalidState(State::Plain)); // the operation would never complete, like a read (spec/endpoints 10.3)
        }
        request(ep, post_state, thread, op, segments, cookie, flags)
    })
}

/// Checks the number of local segments against `iov`, and the operand of an atomic operation.
fn check_memory(op: Op, segments: &[Segment], iov: usize, positions: ParameterNumbers) -> Result<()> {
    if segments.len() > iov {
        return Err(Error::InvalidParameter(positions.local));
    }
    if !op.work().is_atomic() {
        return Ok(());
    }
    if segments.len() != 1 || segments[0].length != ATOMIC_SIZE {
        return Err(Error::InvalidParameter(positions.local));
    }
    match op.remote() {
        Some(remote) if remote.address.is_multiple_of(ATOMIC_SIZE) => Ok(()),
        _ => Err(Error::InvalidParameter(positions.remote)),
    }
}
