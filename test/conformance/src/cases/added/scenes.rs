//! Helpers for the cases of DAT 2.0: triplets of 2.0, expected completions and return codes, and checks of an adapter's
//! features.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use dat_abi::v2::{self, DAT_IB_DTO_EVENT};

use super::error;
use crate::api::added::{self, Done, Extended};
use crate::kit::*;

/// Size in bytes of the operand of an atomic operation.
pub(super) const WORD: usize = 8;

/// All privileges, including the one that devices require for atomic operations on the memory.
pub(super) const ATOMIC: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_ALL_FLAG | v2::DAT_IB_MEM_PRIV_REMOTE_ATOMIC;

/// A range of local memory as a triplet.
pub(super) fn local_segment(memory: &Memory, at: usize, length: usize) -> v2::DAT_LMR_TRIPLET {
    let (virtual_address, lmr_context) = (memory.address(at), memory.lmr_context);
    v2::DAT_LMR_TRIPLET { virtual_address, segment_length: length as u32, lmr_context }
}

/// A range of exported memory as a remote triplet, starting at an offset.
pub(super) fn remote(of: DAT_RMR_TRIPLET, at: u64, length: u32) -> v2::DAT_RMR_TRIPLET {
    let virtual_address = of.target_address.wrapping_add(at);
    v2::DAT_RMR_TRIPLET { virtual_address, segment_length: length, rmr_context: of.rmr_context }
}

/// Waits for the next completion and fails if none arrives.
#[track_caller]
pub(super) fn done(evd: &Evd) -> Done {
    match added::wait_done(evd.h(), scaled_timeout(SOON)) {
        Some(done) => done,
        None => panic!("no completion after {SOON:?}"),
    }
}

/// The expected completion of an extended request.
pub(super) fn of_request(operation: Extended, cookie: u64, status: u32, bytes: u32) -> Done {
    let (operation, kind) = match operation {
        Extended::FetchAdd { .. } => (v2::DAT_IB_DTO_FETCH_ADD, v2::DAT_IB_FETCH_AND_ADD),
        Extended::CompareSwap { .. } => (v2::DAT_IB_DTO_CMP_SWAP, v2::DAT_IB_CMP_AND_SWAP),
        Extended::WriteImmediate { .. } => (v2::DAT_IB_DTO_RDMA_WRITE_IMMED, v2::DAT_IB_RDMA_WRITE_IMMED),
    };
    let how = if status == v2::DAT_DTO_SUCCESS { v2::DAT_OP_SUCCESS } else { v2::DAT_IB_OP_ERR };
    Done { number: DAT_IB_DTO_EVENT, cookie, status, bytes, operation, context: 0, extension: (kind, how, 0) }
}

/// Checks that the next completion belongs to this request.
#[track_caller]
pub(super) fn expect_request(evd: &Evd, operation: Extended, cookie: u64, status: u32, bytes: u32) {
    let (came, wanted) = (done(evd), of_request(operation, cookie, status, bytes));
    if status == v2::DAT_DTO_SUCCESS {
        assert_eq!(came, wanted);
    } else {
        // The length of a failed request is undefined.
        assert_eq!(Done { bytes, ..came }, wanted);
    }
}

/// An optional extended operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Feature {
    FetchAdd,
    CompareSwap,
    Immediate,
    Invalidate,
}

/// Whether the adapter's attributes name the operation.
pub(super) fn has_feature(ia: &Ia, feature: Feature) -> bool {
    let attr = ia.provider_attr();
    let wanted = match feature {
        Feature::FetchAdd => v2::DAT_IB_ATTR_FETCH_AND_ADD.to_str(),
        Feature::CompareSwap => v2::DAT_IB_ATTR_CMP_AND_SWAP.to_str(),
        Feature::Immediate => v2::DAT_IB_ATTR_IMMED_DATA.to_str(),
        Feature::Invalidate => Ok("send_with_invalidate"),
    };
    let named = named_attributes(attr.provider_specific_attr, attr.num_provider_specific_attr);
    named.iter().any(|(name, value)| Ok(name.as_str()) == wanted && value == "TRUE")
}

/// Ends the case as unsupported on an adapter without the operation. Another case checks that the call is then
/// refused.
pub(super) fn needs(ctx: &Ctx, feature: Feature) {
    if !has_feature(&ctx.ia(), feature) {
        ctx.unsupported(&format!("{feature:?}"));
    }
}

pub(super) const NOT_SUPPORTED: DAT_RETURN = DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED;

/// `DAT_INVALID_STATE` with an EP subtype as numbered in 2.0. In 2.0 the EP subtypes start two numbers later than in
/// 1.2.
pub(super) fn in_state(of_1_2: DAT_RETURN_SUBTYPE) -> DAT_RETURN {
    error(DAT_INVALID_STATE, of_1_2 + v2::DAT_INVALID_STATE_EP_UNCONNECTED - DAT_INVALID_STATE_EP_UNCONNECTED)
}

/// Checks that the connection broke and the EP is disconnected.
#[track_caller]
pub(super) fn expect_broken(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

/// Checks that the next connection event ends the connection: BROKEN or DISCONNECTED.
#[track_caller]
pub(super) fn expect_over(conn: &Conn) {
    let event = expect_event(conn.events.h(), SOON);
    let ends = [DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED];
    assert!(
        ends.contains(&event.number()),
        "the event is {}, wanted BROKEN or DISCONNECTED",
        number_name(event.number())
    );
}

/// Reads eight bytes at an offset as a number.
pub(super) fn number(memory: &Memory, at: usize) -> u64 {
    u64::from_ne_bytes(memory.take(at, WORD).try_into().expect("`take` returns the 8 bytes requested"))
}

/// Registers a memory again, in another PZ. The remote triplet is valid while the LMR lives.
#[track_caller]
pub(super) fn register_again(
    ia: &Ia,
    pz: &Pz,
    memory: &Memory,
    privileges: DAT_MEM_PRIV_FLAGS,
) -> (Lmr, DAT_RMR_TRIPLET) {
    let region = DAT_REGION_DESCRIPTION { for_va: memory.pointer() };
    let (mut lmr, mut key, length) = (DAT_HANDLE_NULL, 0, memory.length() as DAT_VLEN);
    let (none, no_length, no_address) = (null_mut(), null_mut(), null_mut());
    let (kind, pz) = (DAT_MEM_TYPE_VIRTUAL, pz.h());
    ok(dat_lmr_create(ia.h(), kind, region, length, pz, privileges, &mut lmr, none, &mut key, no_length, no_address));
    let target = DAT_RMR_TRIPLET { rmr_context: key, ..memory.target(0, memory.length()) };
    (Lmr::own(lmr), target)
}
