//! How programs exchange private data and accept connections (spec/consumers 9 to 11).
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::connecting::{connect_to, connect_with};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 9": consumers_9_private_data_can_be_edited_in_place => pair(client_sends_private, server_edits_private),
        "spec/consumers 9": consumers_9_only_the_active_side_gets_private_data_of_the_accept => pair(client_active_size, server_passive_size),
        "spec/consumers 10": consumers_10_accept_succeeds_after_a_refusal_and_a_reset => pair(client_is_accepted_late, server_fails_first),
        "spec/consumers 10": consumers_10_accept_into_another_ep_succeeds_after_a_refusal => pair(client_is_accepted_late, server_fails_then_takes_another),
        "spec/consumers 10": consumers_10_state_can_be_queried_during_accepts_and_a_reset => pair(client_is_accepted_late, server_fails_under_questions),
        "spec/consumers 11": consumers_11_late_accept_establishes_the_connection => pair(client_waits_for_the_accept, server_accepts_last),
        "spec/consumers 11": consumers_11_connects_with_long_timeouts_succeed => pair(client_connects_with_limits, server_accepts_each),
        "spec/consumers 10": consumers_10_crossed_connects_end_in_one_connection => pair(each_crosses, each_crosses),
    ];
    for size in [4, 32, 36, 48] {
        let case = pair(move |ctx| gives(ctx, size), move |ctx| takes(ctx, size));
        all.push(case.named(format!("consumers_9_private_data_of_{size}_bytes_arrives")).proves("spec/consumers 9"));
    }
    all
}

fn data(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}

fn gives(ctx: &Ctx, size: usize) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    let (address, mut sent) = (ctx.receive_address(), data(size, 1));
    connect_with(&conn.ep, &address, ctx.qual(0), DAT_TIMEOUT_INFINITE, &mut sent);
    sent.fill(0);
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_data(&event.private_data(), &data(size, 9));
    ctx.meet();
}

fn takes(ctx: &Ctx, size: usize) {
    let ia = ctx.ia();
    let (conn, requests) = (Conn::unconnected(&ia, &Setup::default()), ia.evd(8, DAT_EVD_CR_FLAG));
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let cr = expect_cr(requests.h()).cr_handle;
    let param: DAT_CR_PARAM = filled(|out| dat_cr_query(cr, DAT_CR_FIELD_ALL, out));
    expect_data(&bytes_at(param.private_data, param.private_data_size as usize), &data(size, 1));
    assert_eq!(param.private_data.addr() % 8, 0, "the private data is not aligned to 8 bytes");
    let mut answer = data(size, 9);
    ok(dat_cr_accept(cr, conn.ep.h(), size as DAT_COUNT, answer.as_mut_ptr().cast()));
    answer.fill(0);
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(event.connection().private_data_size, 0);
    ctx.meet();
    drop(psp);
}

fn client_sends_private(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    let address = ctx.receive_address();
    connect_with(&conn.ep, &address, ctx.qual(0), DAT_TIMEOUT_INFINITE, &mut data(32, 1));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_data(&event.private_data(), &[&[0xee; 8][..], &data(32, 1)[8..]].concat());
    ctx.meet();
}

fn server_edits_private(ctx: &Ctx) {
    let ia = ctx.ia();
    let (conn, requests) = (Conn::unconnected(&ia, &Setup::default()), ia.evd(8, DAT_EVD_CR_FLAG));
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let cr = expect_cr(requests.h()).cr_handle;
    let param: DAT_CR_PARAM = filled(|out| dat_cr_query(cr, DAT_CR_FIELD_ALL, out));
    write_at(param.private_data, &[0xee; 8]);
    ok(dat_cr_accept(cr, conn.ep.h(), 32, param.private_data));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    drop(psp);
}

fn client_active_size(ctx: &Ctx) {
    let ia = ctx.ia();
    for size in [0, 36] {
        let conn = Conn::unconnected(&ia, &Setup::default());
        let address = ctx.receive_address();
        connect_with(&conn.ep, &address, ctx.qual(0), DAT_TIMEOUT_INFINITE, &mut data(48, 1));
        let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
        expect_data(&event.private_data(), &data(size, 2));
        ctx.meet();
    }
}

fn server_passive_size(ctx: &Ctx) {
    let ia = ctx.ia();
    for size in [0, 36] {
        let (conn, requests) = (Conn::unconnected(&ia, &Setup::default()), ia.evd(8, DAT_EVD_CR_FLAG));
        let psp = ia.psp(ctx.qual(0), &requests);
        ctx.send_address(&ia);
        let mut answer = data(size, 2);
        let pointer = if size == 0 { null_mut() } else { answer.as_mut_ptr().cast() };
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), size as DAT_COUNT, pointer));
        let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
        assert_eq!(event.connection().private_data_size, 0, "the accepting side got private data");
        ctx.meet();
        drop(psp);
    }
}

/// Connects twice: with an EP that occupies the acceptor's EP, and with an EP that must wait.
fn client_is_accepted_late(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    let (first, second) = (Conn::unconnected(&ia, &Setup::default()), Conn::unconnected(&ia, &Setup::default()));
    connect_to(&first.ep, &address, ctx.qual(0));
    first.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    connect_to(&second.ep, &address, ctx.qual(0));
    ctx.meet();
    expect_nothing(second.events.h());
    ctx.meet();
    second.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ok(dat_ep_post_send(second.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(second.request.h(), 1, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

/// Accepts the first request. Accepting the second request into the same EP fails; returns that request.
fn fail_to_accept(ctx: &Ctx, ia: &Ia, requests: &Evd, conn: &Conn) -> DAT_CR_HANDLE {
    ctx.send_address(ia);
    ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    let cr = expect_cr(requests.h()).cr_handle;
    for _ in 0..3 {
        let code = dat_cr_accept(cr, conn.ep.h(), 0, null_mut());
        refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
    }
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
    ctx.meet();
    cr
}

/// Checks that one message arrives over the connection.
fn expect_message(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 0);
}

fn server_fails_first(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let (conn, psp) = (Conn::unconnected(&ia, &Setup::default()), ia.psp(ctx.qual(0), &requests));
    let cr = fail_to_accept(ctx, &ia, &requests, &conn);
    conn.disconnect();
    let code = dat_cr_accept(cr, conn.ep.h(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_DISCONNECTED);
    ok(dat_ep_reset(conn.ep.h()));
    ok(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()));
    expect_message(&conn);
    ctx.meet();
    drop(psp);
}

fn server_fails_then_takes_another(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let (conn, psp) = (Conn::unconnected(&ia, &Setup::default()), ia.psp(ctx.qual(0), &requests));
    let cr = fail_to_accept(ctx, &ia, &requests, &conn);
    let other = Conn::unconnected(&ia, &Setup::default());
    ok(dat_cr_accept(cr, other.ep.h(), 0, null_mut()));
    expect_message(&other);
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
    drop(psp);
}

fn server_fails_under_questions(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let (conn, psp) = (Conn::unconnected(&ia, &Setup::default()), ia.psp(ctx.qual(0), &requests));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until(|| {
                conn.ep.param();
                conn.ep.state();
                is_done.load(std::sync::atomic::Ordering::Acquire)
            });
        });
        let cr = fail_to_accept(ctx, &ia, &requests, &conn);
        conn.disconnect();
        ok(dat_ep_reset(conn.ep.h()));
        ok(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()));
        expect_message(&conn);
        is_done.store(true, std::sync::atomic::Ordering::Release);
    });
    ctx.meet();
    drop(psp);
}

fn client_waits_for_the_accept(ctx: &Ctx) {
    let ia = ctx.ia();
    let (waits, address) = (Conn::unconnected(&ia, &Setup::default()), ctx.receive_address());
    connect_to(&waits.ep, &address, ctx.qual(0));
    ctx.meet();
    for _ in 0..10 {
        let conn = Conn::unconnected(&ia, &Setup::default());
        connect_to(&conn.ep, &address, ctx.qual(1));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        waits.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
        conn.disconnect();
    }
    expect_nothing(waits.events.h());
    ctx.meet();
    waits.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_accepts_last(ctx: &Ctx) {
    let ia = ctx.ia();
    let (late, requests) = (ia.evd(8, DAT_EVD_CR_FLAG), ia.evd(8, DAT_EVD_CR_FLAG));
    let psps = [ia.psp(ctx.qual(0), &late), ia.psp(ctx.qual(1), &requests)];
    ctx.send_address(&ia);
    let cr = expect_cr(late.h()).cr_handle;
    ctx.meet();
    for _ in 0..10 {
        let conn = Conn::unconnected(&ia, &Setup::default());
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    ctx.meet();
    let conn = Conn::unconnected(&ia, &Setup::default());
    ok(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    drop(psps);
}

const LIMITS: [DAT_TIMEOUT; 4] = [10_000_000, 100_000_000, DAT_TIMEOUT_INFINITE - 1, DAT_TIMEOUT_INFINITE];

fn client_connects_with_limits(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    for limit in LIMITS {
        let conn = Conn::unconnected(&ia, &Setup::default());
        connect_with(&conn.ep, &address, ctx.qual(0), limit, &mut []);
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        ctx.meet();
    }
}

fn server_accepts_each(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    for _ in LIMITS {
        let conn = Conn::unconnected(&ia, &Setup::default());
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        ctx.meet();
    }
    drop(psp);
}

/// Both roles connect to each other at the same time. The client rejects the server's request. The server then
/// resets its EP and accepts the client's request.
fn each_crosses(ctx: &Ctx) {
    let ia = ctx.ia();
    let both = ia.evd(16, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG);
    let mut conn = Conn::unconnected(&ia, &Setup::default());
    conn.ep = ia.ep(&conn.pz, &conn.recv, &conn.request, &both);
    let (own, other) = if ctx.is_client() { (0, 1) } else { (1, 0) };
    let psp = ia.psp(ctx.qual(own), &both);
    ctx.send_address(&ia);
    let address = ctx.receive_address();
    connect_to(&conn.ep, &address, ctx.qual(other));
    let cr = expect_cr(both.h()).cr_handle;
    ctx.meet();
    if ctx.is_client() {
        // The partner accepts this role's own request.
        ok(dat_cr_reject(cr));
    } else {
        expect_conn(both.h(), conn.ep.h(), DAT_CONNECTION_EVENT_PEER_REJECTED);
        refused(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_DISCONNECTED);
        ok(dat_ep_reset(conn.ep.h()));
        ok(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()));
    }
    expect_conn(both.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    conn.ep.free();
    drop(psp);
}
