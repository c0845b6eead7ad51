//! Memory windows of 2.0: sends that invalidate a context, reads into a bound RMR, and RMRs of one EP.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use dat_abi::v2::{self, DAT_DTO_RECEIVE_WITH_INVALIDATE};

use super::error;
use super::scenes::*;
use crate::api::added;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 9.2": v2_send_invalidates_the_context_of_an_rmr => pair(client_invalidate, server_be_invalidated).needs(Need::Rmr),
        "spec/events 9.2": v2_unknown_context_cannot_be_invalidated => pair(client_invalidate_nothing, server_keep_all).needs(Need::Rmr),
        "spec/events 9.2": v2_rmr_of_another_pz_is_not_invalidated => pair(client_invalidate_elsewhere, server_keep_elsewhere).needs(Need::Rmr),
        "spec/events 4.1": v2_read_into_a_bound_rmr_succeeds => pair(client_read_into_bound, server_offer_bytes).needs(Need::Rmr),
        "spec/events 9.2": v2_rmr_of_an_ep_is_accessible_to_its_peer => pair(client_use_rmr_of_ep, server_offer_rmr_of_ep).needs(Need::Rmr),
        "spec/events 9.2": v2_rmr_of_an_ep_is_inaccessible_to_other_peers => pair(client_misuse_rmr_of_ep, server_offer_rmr_of_ep).needs(Need::Rmr),
        "spec/events 9.1": v2_rmr_query_returns_the_scope => local(scope).needs(Need::Rmr),
    ]
}

const REMOTE: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG;

/// Binds, waits for the completion, and returns the remote triplet for the peer.
#[track_caller]
fn bind(conn: &Conn, rmr: &Rmr, memory: &Memory, privileges: DAT_MEM_PRIV_FLAGS) -> DAT_RMR_TRIPLET {
    let (mut context, segment) = (0, memory.segment(0, memory.length()));
    let (rmr, ep) = (rmr.h(), conn.ep.h());
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    ok(dat_rmr_bind(rmr, &segment, privileges, ep, cookie(40), flags, &mut context));
    expect_rmr(conn.request.h(), rmr, 40, DAT_RMR_BIND_SUCCESS);
    DAT_RMR_TRIPLET { rmr_context: context, ..memory.target(0, memory.length()) }
}

fn write(conn: &Conn, memory: &Memory, target: DAT_RMR_TRIPLET, status: DAT_DTO_COMPLETION_STATUS) {
    let length = target.segment_length as usize;
    conn.post_write(5, memory.segment(0, length), target);
    expect_dto(conn.request.h(), 5, status, length as u64);
}

/// Writes through a window, then invalidates it by a send.
fn client_invalidate(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let target = ctx.receive_target();
    memory.fill(1);
    write(&conn, &memory, target, DAT_DTO_SUCCESS);
    let mut segments = [local_segment(&memory, 0, 30), local_segment(&memory, 30, 70)];
    let code = added::ep_post_send_with_invalidate(conn.ep.h(), &mut segments, 0, DAT_TRUE, target.rmr_context);
    ok(code);
    let sent = done(&conn.request);
    assert_eq!((sent.cookie, sent.status, sent.bytes), (77, v2::DAT_DTO_SUCCESS, 100));
    assert_eq!((sent.number, sent.operation), (v2::DAT_DTO_COMPLETION_EVENT, v2::DAT_DTO_SEND));
    ctx.meet();
    memory.fill(2);
    write(&conn, &memory, target, DAT_DTO_ERR_REMOTE_ACCESS);
    expect_broken(&conn);
    ctx.meet();
}

fn server_be_invalidated(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let (memory, message) = (conn.memory(100), conn.memory(100));
    let rmr = conn.pz.rmr();
    let target = bind(&conn, &rmr, &memory, REMOTE);
    conn.post_recv(3, message.segment(0, 100));
    ctx.send_target(target);
    let came = done(&conn.recv);
    assert_eq!((came.cookie, came.status, came.bytes), (3, v2::DAT_DTO_SUCCESS, 100));
    assert_eq!(came.number, v2::DAT_DTO_COMPLETION_EVENT);
    assert_eq!((came.operation, came.context), (DAT_DTO_RECEIVE_WITH_INVALIDATE, target.rmr_context));
    message.expect_all(0, 100, 1);
    assert_eq!(added::rmr_param(rmr.h()).rmr_context, 0, "the RMR is still bound");
    ctx.meet();
    expect_over(&conn);
    memory.expect_all(0, 100, 1);
    drop(rmr);
    ctx.meet();
}

fn client_invalidate_nothing(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let target = ctx.receive_target();
    ok(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_TRUE, target.rmr_context ^ 1));
    assert_eq!(done(&conn.request).status, v2::DAT_DTO_ERR_REMOTE_ACCESS);
    expect_broken(&conn);
    ctx.meet();
}

fn server_keep_all(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let rmr = conn.pz.rmr();
    let target = bind(&conn, &rmr, &memory, REMOTE);
    post_empty_recv(&conn, 3);
    ctx.send_target(target);
    let came = done(&conn.recv);
    assert!(came.cookie == 3 && came.status != v2::DAT_DTO_SUCCESS, "{came:?} is not the failed receive 3");
    expect_over(&conn);
    assert_eq!(added::rmr_param(rmr.h()).rmr_context, target.rmr_context, "the RMR lost its binding");
    ctx.meet();
}

fn client_invalidate_elsewhere(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let target = ctx.receive_target();
    ok(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_TRUE, target.rmr_context));
    assert_eq!(done(&conn.request).status, v2::DAT_DTO_ERR_REMOTE_ACCESS);
    expect_broken(&conn);
    ctx.meet();
}

/// Sends the peer a context that is bound in another connection's PZ. The peer tries to invalidate the context.
fn server_keep_elsewhere(ctx: &Ctx) {
    needs(ctx, Feature::Invalidate);
    let conn = ctx.connect();
    let (own, _other) = ctx.loopback_with(&conn.ia, &Setup { qual: 1, ..Setup::default() });
    let memory = own.memory(100);
    let rmr = own.pz.rmr();
    let target = bind(&own, &rmr, &memory, REMOTE);
    post_empty_recv(&conn, 3);
    ctx.send_target(target);
    let came = done(&conn.recv);
    assert!(came.cookie == 3 && came.status != v2::DAT_DTO_SUCCESS, "{came:?} is not the failed receive 3");
    expect_over(&conn);
    assert_eq!(added::rmr_param(rmr.h()).rmr_context, target.rmr_context, "the RMR lost its binding");
    ctx.meet();
}

fn client_read_into_bound(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(300);
    let (rmr, readable) = (conn.pz.rmr(), conn.pz.rmr());
    let target = bind(&conn, &rmr, &memory, REMOTE);
    let only_read = bind(&conn, &readable, &memory, DAT_MEM_PRIV_REMOTE_READ_FLAG);
    let source = ctx.receive_target();
    let from = remote(source, 0, 200);
    let ep = conn.ep.h();
    ok(added::ep_post_rdma_read_to_rmr(ep, &remote(target, 50, 200), 6, &from, 0));
    let came = done(&conn.request);
    assert_eq!((came.cookie, came.status, came.bytes), (6, v2::DAT_DTO_SUCCESS, 200));
    assert_eq!(came.operation, v2::DAT_DTO_RDMA_READ);
    memory.expect_pattern(50, 200, 3);
    memory.expect_all(0, 50, 0);
    memory.expect_all(250, 50, 0);
    let outside = error(DAT_PROTECTION_VIOLATION, v2::DAT_PROTECTION_WRITE);
    expect(added::ep_post_rdma_read_to_rmr(ep, &remote(target, 101, 200), 6, &from, 0), outside);
    let no_right = error(DAT_PRIVILEGES_VIOLATION, v2::DAT_PRIVILEGES_WRITE);
    expect(added::ep_post_rdma_read_to_rmr(ep, &remote(only_read, 0, 200), 6, &from, 0), no_right);
    drop(rmr);
    expect(added::ep_post_rdma_read_to_rmr(ep, &remote(target, 0, 200), 6, &from, 0), outside);
    ctx.meet();
}

fn server_offer_bytes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    memory.write_pattern(0, 200, 3);
    ctx.send_target(memory.target(0, 200));
    ctx.meet();
}

/// Whether the adapter's attributes name RMRs that belong to one EP.
fn has_rmrs_of_eps(ia: &Ia) -> bool {
    let scope = added::attributes(ia.h()).1.rmr_scope_supported;
    [v2::DAT_RMR_SCOPE_EP, v2::DAT_RMR_SCOPE_ANY].contains(&scope)
}

fn scope(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    assert_eq!(added::rmr_param(pz.rmr().h()).rmr_scope, v2::DAT_RMR_SCOPE_PZ);
    let mut rmr = null_mut();
    let code = added::rmr_create_for_ep(pz.h(), &mut rmr);
    if has_rmrs_of_eps(&ia) {
        ok(code);
        let rmr = Rmr::own(rmr);
        assert_eq!(added::rmr_param(rmr.h()).rmr_scope, v2::DAT_RMR_SCOPE_EP);
        let mut kind = 0;
        ok(dat_get_handle_type(rmr.h(), &mut kind));
        assert_eq!(kind, DAT_HANDLE_TYPE_RMR);
    } else {
        expect(code, NOT_SUPPORTED);
    }
}

/// Binds an RMR on the first of two connections with the same PZ.
fn server_offer_rmr_of_ep(ctx: &Ctx) {
    let conn = ctx.connect();
    if !has_rmrs_of_eps(&conn.ia) {
        ctx.unsupported("RMRs of one EP");
    }
    let (recv, request, events) =
        (conn.ia.evd(8, DAT_EVD_DTO_FLAG), conn.ia.evd(8, DAT_EVD_DTO_FLAG), conn.ia.evd(8, DAT_EVD_CONNECTION_FLAG));
    let ep = conn.ia.ep(&conn.pz, &recv, &request, &events);
    let second = Conn { ep, recv, request, events, pz: conn.ia.pz(), ia: conn.ia.clone() };
    second.listen(ctx.qual(1), || ctx.send_address(&conn.ia));
    second.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    let memory = conn.memory(64);
    let mut rmr = null_mut();
    ok(added::rmr_create_for_ep(conn.pz.h(), &mut rmr));
    let rmr = Rmr::own(rmr);
    ctx.send_target(bind(&conn, &rmr, &memory, REMOTE));
    let wanted = ctx.receive_number() as u8;
    memory.expect_all(0, 64, wanted);
    if wanted == 0 {
        expect_over(&second);
    }
    drop((rmr, memory));
    ctx.meet();
}

/// Creates two connections to the peer.
fn two_connections(ctx: &Ctx) -> (Conn, Conn) {
    let conn = ctx.connect();
    if !has_rmrs_of_eps(&conn.ia) {
        ctx.unsupported("RMRs of one EP");
    }
    let second = Conn::on(&conn.ia);
    let peer = ctx.receive_address();
    second.connect(&peer, ctx.qual(1));
    second.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    (conn, second)
}

fn client_use_rmr_of_ep(ctx: &Ctx) {
    let (conn, _second) = two_connections(ctx);
    let memory = conn.memory(64);
    let target = ctx.receive_target();
    memory.fill(6);
    write(&conn, &memory, target, DAT_DTO_SUCCESS);
    memory.fill(0);
    conn.post_read(7, memory.segment(0, 64), target);
    expect_dto(conn.request.h(), 7, DAT_DTO_SUCCESS, 64);
    memory.expect_all(0, 64, 6);
    if has_feature(&conn.ia, Feature::FetchAdd) {
        let add = added::Extended::FetchAdd { add: 0 };
        ok(added::post_extended(
            conn.ep.h(),
            add,
            &local_segment(&memory, 0, WORD),
            8,
            &remote(target, 8, WORD as u32),
            0,
        ));
        expect_request(&conn.request, add, 8, v2::DAT_DTO_SUCCESS, WORD as u32);
        assert_eq!(number(&memory, 0), 0x0606_0606_0606_0606);
    }
    ctx.send_number(6);
    ctx.meet();
}

fn client_misuse_rmr_of_ep(ctx: &Ctx) {
    let (_conn, second) = two_connections(ctx);
    let memory = second.memory(64);
    let target = ctx.receive_target();
    memory.fill(6);
    write(&second, &memory, target, DAT_DTO_ERR_REMOTE_ACCESS);
    expect_broken(&second);
    ctx.send_number(0);
    ctx.meet();
}
