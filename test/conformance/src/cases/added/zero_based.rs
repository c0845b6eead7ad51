//! Zero-based memory: LMRs whose addresses start at 0, and RMRs bound to such LMRs.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use dat_abi::v2;

use super::scenes::*;
use super::{argument, error};
use crate::api::added::{self, Extended, Registered};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 8.1": v2_lmr_create_checks_the_address_type,
        "spec/events 8.1": v2_peers_address_zero_based_memory_by_offsets => pair(client_use_offsets, server_offer_zero_based),
        "spec/events 8.1": v2_access_beyond_zero_based_memory_is_denied => pair(client_leave, server_keep_inside),
        "spec/events 8.1": v2_local_segments_of_zero_based_memory_are_addressed_by_offsets => pair(client_send_from_zero, server_receive_at_zero),
        "spec/events 9.2": v2_zero_based_rmr_is_addressed_by_offsets => pair(client_use_offsets, server_bind_zero_based).needs(Need::Rmr),
    ]
}

/// A buffer with a zero-based registration.
struct ZeroBased {
    /// Declared before the buffer, so that it is freed first.
    lmr: Lmr,
    buffer: Buffer,
    of: Registered,
}

fn register(ia: &Ia, pz: &Pz, buffer: &Buffer, va_type: v2::DAT_VA_TYPE) -> (DAT_RETURN, DAT_LMR_HANDLE, Registered) {
    let (mut lmr, mut of) = (null_mut(), Registered::default());
    let length = buffer.length() as u64;
    let code = added::lmr_create(ia.h(), pz.h(), buffer.pointer(), length, va_type, (&mut lmr, &mut of));
    (code, lmr, of)
}

impl ZeroBased {
    #[track_caller]
    fn new(conn: &Conn, length: usize) -> Self {
        let buffer = Buffer::new(length);
        let (code, lmr, of) = register(&conn.ia, &conn.pz, &buffer, v2::DAT_VA_TYPE_ZB);
        ok(code);
        ZeroBased { lmr: Lmr::own(lmr), buffer, of }
    }

    fn target(&self, at: u64, length: u64) -> DAT_RMR_TRIPLET {
        DAT_RMR_TRIPLET { rmr_context: self.of.rmr_context, pad: 0, target_address: at, segment_length: length }
    }

    fn segment(&self, at: u64, length: u64) -> DAT_LMR_TRIPLET {
        DAT_LMR_TRIPLET { lmr_context: self.of.lmr_context, pad: 0, virtual_address: at, segment_length: length }
    }
}

fn needs_zero_based(ctx: &Ctx) {
    if added::attributes(ctx.ia().h()).0.zb_supported == DAT_FALSE {
        ctx.unsupported("addresses that start at 0");
    }
}

fn v2_lmr_create_checks_the_address_type(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, buffer) = (ia.pz(), Buffer::new(4096));
    let (code, lmr, of) = register(&ia, &pz, &buffer, v2::DAT_VA_TYPE_VA);
    ok(code);
    assert_eq!((added::lmr_param(lmr).va_type, of.address), (v2::DAT_VA_TYPE_VA, buffer.address(0)));
    drop(Lmr::own(lmr));
    for unknown in [2, 3, 0xFFFF_FFFF] {
        expect(register(&ia, &pz, &buffer, unknown).0, argument(7));
    }
    let (code, lmr, of) = register(&ia, &pz, &buffer, v2::DAT_VA_TYPE_ZB);
    if added::attributes(ia.h()).0.zb_supported == DAT_FALSE {
        expect(code, NOT_SUPPORTED);
        return;
    }
    ok(code);
    let param = added::lmr_param(lmr);
    assert_eq!((param.va_type, param.registered_address, of.address), (v2::DAT_VA_TYPE_ZB, 0, 0));
    assert_eq!(region_address(param.region_desc), buffer.pointer(), "the query returns another region");
    drop(Lmr::own(lmr));
}

const LENGTH: u64 = 40_000;

/// Writes, reads back, and adds at offsets in the peer's memory.
fn client_use_offsets(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let (memory, target) = (conn.memory(LENGTH as usize), ctx.receive_target());
    assert_eq!(target.target_address, 0);
    let length = LENGTH as usize - 8;
    memory.write_pattern(0, length, 4);
    let behind = DAT_RMR_TRIPLET { target_address: 8, segment_length: length as u64, ..target };
    conn.post_write(1, memory.segment(0, length), behind);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, length as u64);
    memory.fill(0);
    conn.post_read(2, memory.segment(0, length), behind);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, length as u64);
    memory.expect_pattern(0, length, 4);
    if has_feature(&conn.ia, Feature::FetchAdd) {
        let add = Extended::FetchAdd { add: 5 };
        let (segment, word) = (local_segment(&memory, 0, WORD), remote(target, 0, WORD as u32));
        ok(added::post_extended(conn.ep.h(), add, &segment, 3, &word, 0));
        expect_request(&conn.request, add, 3, v2::DAT_DTO_SUCCESS, WORD as u32);
    }
    ctx.meet();
}

fn check_used(conn: &Conn, buffer: &Buffer) {
    let word = if has_feature(&conn.ia, Feature::FetchAdd) { 5 } else { 0 };
    assert_eq!(u64::from_ne_bytes(buffer.take(0, 8).try_into().expect("`take` returns the 8 bytes requested")), word);
    buffer.expect_pattern(8, LENGTH as usize - 8, 4);
}

fn server_offer_zero_based(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let zero = ZeroBased::new(&conn, LENGTH as usize);
    ctx.send_target(zero.target(0, LENGTH));
    ctx.meet();
    check_used(&conn, &zero.buffer);
}

/// Writes a range that ends one byte after the peer's memory.
fn client_leave(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let (memory, target) = (conn.memory(64), ctx.receive_target());
    memory.fill(9);
    conn.post_write(1, memory.segment(0, 64), DAT_RMR_TRIPLET { target_address: 1, ..target });
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_keep_inside(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let zero = ZeroBased::new(&conn, 64);
    ctx.send_target(zero.target(0, 64));
    expect_over(&conn);
    zero.buffer.expect_all(0, 64, 0);
    ctx.meet();
}

fn client_send_from_zero(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let zero = ZeroBased::new(&conn, 20_000);
    zero.buffer.write_pattern(100, 15_000, 6);
    ctx.meet();
    conn.post_send(1, zero.segment(100, 15_000));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 15_000);
    // The buffer's virtual address is outside the zero-based range.
    conn.post_send(2, DAT_LMR_TRIPLET { virtual_address: zero.buffer.address(0), ..zero.segment(0, 10) });
    expect_dto(conn.request.h(), 2, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_receive_at_zero(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let zero = ZeroBased::new(&conn, 20_000);
    conn.post_recv(1, zero.segment(5000, 15_000));
    ctx.meet();
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 15_000);
    zero.buffer.expect_pattern(5000, 15_000, 6);
    zero.buffer.expect_all(0, 5000, 0);
    let mut segment = zero.segment(0, 20_000);
    for sync in [dat_lmr_sync_rdma_read, dat_lmr_sync_rdma_write] {
        ok(sync(conn.ia.h(), &segment, 1));
        segment.segment_length += 1;
        bad_arg(sync(conn.ia.h(), &segment, 1), 2);
        segment.segment_length -= 1;
    }
    expect_over(&conn);
    ctx.meet();
}

/// Binds a part of zero-based memory; addresses in the RMR start at 0 again.
fn server_bind_zero_based(ctx: &Ctx) {
    needs_zero_based(ctx);
    let conn = ctx.connect();
    let zero = ZeroBased::new(&conn, LENGTH as usize + 4096);
    let rmr = conn.pz.rmr();
    let (mut context, lmr_context) = (0, zero.of.lmr_context);
    let length = LENGTH as u32;
    let part = v2::DAT_LMR_TRIPLET { virtual_address: 4096, segment_length: length, lmr_context };
    let bind = |part: &_, context: &mut u32| {
        added::rmr_bind(rmr.h(), zero.lmr.h(), part, v2::DAT_VA_TYPE_ZB, conn.ep.h(), context)
    };
    let behind = v2::DAT_LMR_TRIPLET { virtual_address: 4097, ..part };
    expect(bind(&behind, &mut context), argument(3));
    expect(
        added::rmr_bind(rmr.h(), zero.lmr.h(), &part, 7, conn.ep.h(), &mut context),
        error(DAT_INVALID_PARAMETER, v2::DAT_INVALID_ARG5),
    );
    ok(bind(&part, &mut context));
    expect_rmr(conn.request.h(), rmr.h(), 40, DAT_RMR_BIND_SUCCESS);
    let param = added::rmr_param(rmr.h());
    assert_eq!((param.va_type, param.rmr_context), (v2::DAT_VA_TYPE_ZB, context));
    assert_eq!((param.lmr_triplet.virtual_address, param.lmr_triplet.segment_length), (4096, length));
    // The local window of a read is also addressed by offset.
    let here = DAT_RMR_TRIPLET { rmr_context: context, pad: 0, target_address: 0, segment_length: LENGTH };
    let outside = remote(here, 1, length);
    let code = added::ep_post_rdma_read_to_rmr(conn.ep.h(), &outside, 1, &outside, 0);
    expect(code, error(DAT_PROTECTION_VIOLATION, v2::DAT_PROTECTION_WRITE));
    ctx.send_target(here);
    ctx.meet();
    zero.buffer.expect_all(0, 4096, 0);
    let word = zero.buffer.take(4096, 8);
    let used = if has_feature(&conn.ia, Feature::FetchAdd) { 5_u64 } else { 0 };
    assert_eq!(word, used.to_ne_bytes());
    zero.buffer.expect_pattern(4096 + 8, LENGTH as usize - 8, 4);
    drop((rmr, zero));
}
