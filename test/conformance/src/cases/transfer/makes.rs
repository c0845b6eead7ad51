//! Transfers that succeed in unusual setups, for example with EVDs that are short, shared or absent, or with EP
//! attributes that are zero.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/consumers 5": transfer_with_receives_and_requests_on_one_evd_succeeds => pair(client_echoes_on_one_evd, server_echoed),
        "spec/events 12.5": transfer_into_receives_posted_before_connecting_succeeds => pair(client_connects_then_sends, server_posts_then_listens),
        "spec/events 12.7": transfer_evd_of_length_1_queues_all_completions => pair(client_sends_sixteen, server_receives_on_a_short_evd),
        "spec/events 12.8": transfer_with_zero_sizes_in_the_ep_attributes_succeeds => pair(client_moves_with_zeros, server_serves_with_zeros),
        "spec/events 4.4": transfer_may_exceed_the_sizes_in_the_ep_attributes => pair(client_moves_beyond_its_sizes, server_serves_beyond),
        "spec/events 12.9": transfer_over_an_ep_without_attributes_succeeds => pair(client_moves_by_default, server_serves_by_default),
        "spec/events 12.26": transfer_ignores_the_pad_fields_of_triplets => pair(client_moves_with_garbage, server_serves_by_default),
        "spec/events 4.8": transfer_without_a_request_evd_completes_without_an_event => pair(client_requests_without_evd, server_serves_silent),
        "spec/events 4.8": transfer_without_a_receive_evd_completes_without_an_event => pair(client_sends_to_silence, server_receives_without_evd),
    ]
}

fn client_echoes_on_one_evd(ctx: &Ctx) {
    let make = |conn: &Conn| {
        let (evd, attr) = (&conn.request, ep_attr());
        conn.ia.ep_with(&conn.pz, evd, evd, &conn.events, &attr)
    };
    let conn = connect_made(ctx, &Setup::default(), make);
    let memory = conn.memory(200);
    conn.post_recv(2, memory.segment(100, 100));
    conn.post_send(1, memory.segment(0, 100));
    // Dequeues the events of both streams; their relative order is undefined.
    let mut ids: Vec<u64> = (0..2)
        .map(|_| {
            let data = expect_event(conn.request.h(), SOON).dto();
            check_dto(&data, context_bits(data.user_cookie), DAT_DTO_SUCCESS, 100);
            context_bits(data.user_cookie)
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    ctx.meet();
}

fn server_echoed(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    conn.post_recv(1, memory.segment(0, 100));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    conn.post_send(2, memory.segment(0, 100));
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn client_connects_then_sends(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    join(ctx, &conn, 0);
    let memory = conn.memory(10);
    memory.write_pattern(0, 10, 7);
    (0..3).for_each(|id| conn.post_send(id, memory.segment(0, 10)));
    (0..3).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 10));
    ctx.meet();
}

fn server_posts_then_listens(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(30);
    (0..3).for_each(|id| conn.post_recv(id, memory.segment(id as usize * 10, 10)));
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    join(ctx, &conn, 0);
    (0..3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 10));
    (0..3).for_each(|id| memory.expect_pattern(id * 10, 10, 7));
    ctx.meet();
}

fn client_sends_sixteen(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    (0..16).for_each(|id| post_empty_send(&conn, id));
    (0..16).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
    ctx.meet();
}

fn server_receives_on_a_short_evd(ctx: &Ctx) {
    let conn = ctx.connect_with(&Setup { qlen: 1, ..Setup::default() });
    (0..16).for_each(|id| post_empty_recv(&conn, id));
    ctx.meet();
    // All events have arrived before the first is dequeued.
    ctx.meet();
    (0..16).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    expect_nothing(conn.ia.errors());
    ctx.meet();
}

fn zero_sizes() -> Setup {
    setup(|attr| {
        attr.max_message_size = 0;
        attr.max_rdma_size = 0;
        attr.max_rdma_read_iov = 0;
        attr.max_rdma_write_iov = 0;
    })
}

fn client_moves_with_zeros(ctx: &Ctx) {
    moves_three_ways(ctx, &ctx.connect_with(&zero_sizes()), 100_000);
}

fn server_serves_with_zeros(ctx: &Ctx) {
    serves_three_ways(ctx, &ctx.connect_with(&zero_sizes()), 100_000);
}

fn small_sizes() -> Setup {
    setup(|attr| {
        attr.max_message_size = 100;
        attr.max_rdma_size = 100;
    })
}

fn client_moves_beyond_its_sizes(ctx: &Ctx) {
    moves_three_ways(ctx, &ctx.connect_with(&small_sizes()), 200_000);
}

fn server_serves_beyond(ctx: &Ctx) {
    serves_three_ways(ctx, &ctx.connect_with(&small_sizes()), 200_000);
}

/// Connects an endpoint whose EP was created with null attributes.
fn connect_by_default(ctx: &Ctx) -> Conn {
    let make = |conn: &Conn| {
        let (ia, pz) = (conn.ia.h(), conn.pz.h());
        let (recv, request, events) = (conn.recv.h(), conn.request.h(), conn.events.h());
        Ep::own(filled(|out| dat_ep_create(ia, pz, recv, request, events, std::ptr::null(), out)))
    };
    connect_made(ctx, &Setup::default(), make)
}

fn client_moves_by_default(ctx: &Ctx) {
    moves_three_ways(ctx, &connect_by_default(ctx), 3000);
}

fn server_serves_by_default(ctx: &Ctx) {
    serves_three_ways(ctx, &connect_by_default(ctx), 3000);
}

fn client_moves_with_garbage(ctx: &Ctx) {
    let conn = connect_by_default(ctx);
    let memory = conn.memory(3000);
    memory.write_pattern(0, 3000, 7);
    let segment = DAT_LMR_TRIPLET { pad: 0xffff_ffff, ..memory.segment(0, 3000) };
    let remote = DAT_RMR_TRIPLET { pad: 0xffff_ffff, ..ctx.receive_target() };
    for (id, op) in [Op::Send, Op::Write, Op::Read].into_iter().enumerate() {
        op.post(&conn, id as u64, &[segment], &remote);
        expect_dto(conn.request.h(), id as u64, DAT_DTO_SUCCESS, 3000);
    }
    ctx.meet();
}

/// Does a send, a write, and a read of the written data.
#[track_caller]
fn moves_three_ways(ctx: &Ctx, conn: &Conn, length: usize) {
    let memory = conn.memory(2 * length);
    memory.write_pattern(0, length, 7);
    let remote = ctx.receive_target();
    conn.post_send(0, memory.segment(0, length));
    conn.post_write(1, memory.segment(0, length), remote);
    conn.post_read(2, memory.segment(length, length), remote);
    (0..3).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, length as u64));
    memory.expect_pattern(length, length, 7);
    ctx.meet();
}

#[track_caller]
fn serves_three_ways(ctx: &Ctx, conn: &Conn, length: usize) {
    let memory = conn.memory(2 * length);
    conn.post_recv(0, memory.segment(0, length));
    ctx.send_target(memory.target(length, length));
    expect_dto(conn.recv.h(), 0, DAT_DTO_SUCCESS, length as u64);
    ctx.meet();
    memory.expect_pattern(0, length, 7);
    memory.expect_pattern(length, length, 7);
}

/// Connects an endpoint whose EP lacks EVDs.
fn connect_lacking(ctx: &Ctx, has_recv: bool, has_request: bool) -> Conn {
    let make = |conn: &Conn| {
        let (ia, pz, mut attr) = (conn.ia.h(), conn.pz.h(), ep_attr());
        // A queue without an EVD is requested with a depth of 0 (spec/endpoints 5.1).
        attr.max_recv_dtos *= DAT_COUNT::from(has_recv);
        attr.max_request_dtos *= DAT_COUNT::from(has_request);
        let recv = if has_recv { conn.recv.h() } else { DAT_HANDLE_NULL };
        let request = if has_request { conn.request.h() } else { DAT_HANDLE_NULL };
        Ep::own(filled(|out| dat_ep_create(ia, pz, recv, request, conn.events.h(), &attr, out)))
    };
    connect_made(ctx, &Setup::default(), make)
}

fn client_requests_without_evd(ctx: &Ctx) {
    let conn = connect_lacking(ctx, true, false);
    let memory = conn.memory(100);
    memory.fill(7);
    let remote = ctx.receive_target();
    for _ in 0..40 {
        // A queue slot is free when its request has completed: more requests are posted than the queue depth.
        until(|| Op::Write.call(&conn, 1, &[memory.segment(0, 100)], &remote, 0) == DAT_SUCCESS);
    }
    until(|| Op::Send.call(&conn, 1, &[memory.segment(0, 100)], &NOWHERE, 0) == DAT_SUCCESS);
    ctx.meet();
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_serves_silent(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    ctx.send_target(memory.target(0, 100));
    conn.post_recv(1, memory.segment(100, 100));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    memory.expect_all(0, 200, 7);
    ctx.meet();
    ctx.meet();
}

fn client_sends_to_silence(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    (0..3).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    (0..3).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100));
    ctx.meet();
}

fn server_receives_without_evd(ctx: &Ctx) {
    let conn = connect_lacking(ctx, false, true);
    let memory = conn.memory(300);
    (0..3).for_each(|id| conn.post_recv(id, memory.segment(id as usize * 100, 100)));
    memory.spin_for(299, 7);
    memory.expect_all(0, 300, 7);
    expect_nothing(conn.recv.h());
    ctx.meet();
}
