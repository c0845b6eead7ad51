//! Posted work when a connection ends (spec/events 4.7): flushed in order, drained, kept, or freed with its EP.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.7": flush_by_an_abrupt_disconnect_is_in_order => pair(client_leaves_abruptly, server_is_left),
        "spec/events 4.7": flush_by_a_disconnect_is_followed_by_no_successful_completion => pair(client_leaves_in_the_middle, server_is_left_in_the_middle),
        "spec/events 4.7": graceful_disconnect_flushes_receives_after_it_drains_requests => pair(client_leaves_gracefully, server_is_left_gracefully),
        "spec/events 4.7": graceful_disconnect_waits_for_posted_requests_and_refuses_new_ones => pair(client_drains_slowly, server_receives_slowly),
        "spec/events 4.7": flush_of_receives_by_a_rejected_connect_is_in_order => pair(client_is_rejected, server_rejects),
        "spec/events 4.7": flush_of_receives_by_an_abandoned_connect_is_in_order,
        "spec/events 4.7": flush_is_not_caused_by_a_reset_of_an_unconnected_ep => pair(client_resets_then_receives, server_sends_after_reset),
        "spec/events 4.7": flush_and_reset_permit_another_connect => pair(client_connects_again, server_listens_again),
        "spec/events 4.7": free_of_an_ep_with_posted_work_releases_its_evds => pair(client_frees_its_ep, server_is_left_by_a_freed_ep),
        "spec/events 4.7": completions_outlive_their_ep,
        "spec/events 12.11": free_of_all_objects_succeeds_with_posted_receives,
        "spec/events 12.19": flush_of_work_posted_after_a_disconnect_comes_last => pair(client_marks, server_is_marked),
        "spec/events 4.7": flush_of_work_posted_after_a_disconnect_frees_its_queue_slots,
    ];
    all.extend(Op::ALL.map(|op| {
        let case = local(move |ctx| flushes_a_marker(ctx, op));
        case.named(format!("flush_of_a_{}_posted_while_disconnected_is_reported", op.word())).proves("spec/events 4.7")
    }));
    all
}

fn client_leaves_abruptly(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100_000);
    (1..=3).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    // A short and a long message wait for receives of the peer. The write is queued behind these messages.
    conn.post_send(11, memory.segment(0, 100));
    conn.post_send(12, memory.segment(0, 100_000));
    conn.post_write(13, memory.segment(0, 100), ctx.receive_target());
    ctx.meet();
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    // The peer may have received the data of the write. Its completion is still flushed, because the requests before it
    // were flushed.
    expect_flushed(&conn.request, 11..=13);
    (1..=2).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 100));
    expect_flushed(&conn.recv, [3]);
    ctx.meet();
}

fn server_is_left(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    (21..=22).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    // The client role has posted receives for messages 21 and 22.
    (21..=22).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100));
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.recv.h());
    ctx.meet();
}

fn client_leaves_in_the_middle(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(30_000);
    ctx.meet();
    (0..16).for_each(|id| conn.post_send(id, memory.segment(0, [1, 30_000][id as usize % 2])));
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    no_success_after_a_failure(&conn.request, 16);
    ctx.meet();
}

#[track_caller]
fn no_success_after_a_failure(evd: &Evd, count: u64) {
    let mut failed = false;
    for id in 0..count {
        let data = expect_event(evd.h(), SOON).dto();
        assert_eq!(context_bits(data.user_cookie), id);
        failed |= data.status != DAT_DTO_SUCCESS;
        let status = status_name(data.status);
        assert!(!failed || data.status != DAT_DTO_SUCCESS, "request {id} completed with {status} after a failure");
    }
    expect_nothing(evd.h());
}

fn server_is_left_in_the_middle(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(30_000);
    (0..16).for_each(|id| conn.post_recv(id, memory.segment(0, 30_000)));
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    no_success_after_a_failure(&conn.recv, 16);
    ctx.meet();
}

fn client_leaves_gracefully(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100_000);
    conn.post_recv(99, memory.segment(0, 100));
    ctx.meet();
    (0..10).for_each(|id| conn.post_send(id, memory.segment(0, 100_000)));
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    (0..10).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100_000));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_flushed(&conn.recv, [99]);
    ctx.meet();
}

fn server_is_left_gracefully(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100_000);
    (0..11).for_each(|id| conn.post_recv(id, memory.segment(0, 100_000)));
    ctx.meet();
    (0..10).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 100_000));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_flushed(&conn.recv, [10]);
    ctx.meet();
}

fn client_drains_slowly(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = memory.target(0, 100);
    conn.post_send(1, memory.segment(0, 100));
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    for op in Op::REQUESTS {
        let code = op.call(&conn, 2, &[memory.segment(0, 100)], &remote, DAT_COMPLETION_DEFAULT_FLAG);
        refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_DISCPENDING);
    }
    expect_nothing(conn.request.h());
    expect_nothing(conn.events.h());
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_receives_slowly(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.meet();
    conn.post_recv(1, memory.segment(0, 100));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

fn client_is_rejected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    expect_flushed(&conn.recv, 1..=3);
    ctx.meet();
}

fn server_rejects(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    ok(dat_cr_reject(expect_cr(requests.h()).cr_handle));
    ctx.meet();
}

fn flush_of_receives_by_an_abandoned_connect_is_in_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    let conn = Conn::on(&ia);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    conn.connect(&ia.address(), ctx.qual(0));
    let cr = expect_cr(requests.h()).cr_handle;
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    expect_flushed(&conn.recv, 1..=3);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    ok(dat_cr_reject(cr));
    drop(psp);
}

fn client_resets_then_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(100);
    conn.post_recv(1, memory.segment(0, 100));
    ok(dat_ep_reset(conn.ep.h()));
    expect_nothing(conn.recv.h());
    join(ctx, &conn, 0);
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    memory.expect_all(0, 100, 7);
    ctx.meet();
}

fn server_sends_after_reset(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    join(ctx, &conn, 0);
    let memory = conn.memory(100);
    memory.fill(7);
    conn.post_send(1, memory.segment(0, 100));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn client_connects_again(ctx: &Ctx) {
    connects_three_times(ctx);
}

fn server_listens_again(ctx: &Ctx) {
    connects_three_times(ctx);
}

/// In each round the connection ends while receives are posted. After the disconnect, one more receive and one more
/// send are posted as markers: when a marker completes, all earlier work of its queue has completed.
fn connects_three_times(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(200);
    for round in 0..3 {
        (1..=3).for_each(|id| conn.post_recv(id, memory.segment(100, 100)));
        join(ctx, &conn, 0);
        conn.post_send(11, memory.segment(0, 100));
        expect_dto(conn.request.h(), 11, DAT_DTO_SUCCESS, 100);
        expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
        ctx.meet();
        ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        post_empty_recv(&conn, 4);
        post_empty_send(&conn, 12);
        expect_flushed(&conn.recv, 2..=4);
        expect_flushed(&conn.request, [12]);
        ctx.step(format!("round {round} is over"));
        ok(dat_ep_reset(conn.ep.h()));
        conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
        ctx.meet();
    }
}

fn client_frees_its_ep(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=3).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    (11..=13).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    ctx.meet();
    drop(memory);
    let Conn { ep, recv, request, events, pz, ia } = conn;
    ep.free();
    // Each EVD is freed with its queued events.
    recv.free();
    request.free();
    events.free();
    pz.free();
    ia.close();
    ctx.meet();
}

fn server_is_left_by_a_freed_ep(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    expect_lost(&conn);
    ctx.meet();
}

fn completions_outlive_their_ep(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    for id in 0..3 {
        post_empty_recv(&server, id);
        post_empty_send(&client, id + 10);
        // The send is complete, so its completion and that of its receive are queued before the server's EP is freed.
        until(|| is_request_idle(&client));
    }
    expect_dto(server.recv.h(), 0, DAT_DTO_SUCCESS, 0);
    expect_dto(client.request.h(), 10, DAT_DTO_SUCCESS, 0);
    let Conn { ep, recv, request: _request, events: _events, pz: _pz, ia: _ia } = server;
    let dead = ep.free();
    for id in 1..3 {
        let data = expect_dto(recv.h(), id, DAT_DTO_SUCCESS, 0);
        assert!(data.ep_handle == dead, "the event does not name the freed EP");
    }
    (11..13).for_each(|id| _ = expect_dto(client.request.h(), id, DAT_DTO_SUCCESS, 0));
}

fn free_of_all_objects_succeeds_with_posted_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let mut memory = conn.memory(100);
    (1..=16).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    memory.deregister();
    let Conn { ep, recv, request, events, pz, ia } = conn;
    ep.free();
    pz.free();
    recv.free();
    request.free();
    events.free();
    ia.close();
}

fn client_marks(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=5).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    (11..=15).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    ctx.meet();
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    // Dequeues the disconnect event: after it, markers may be posted.
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    post_empty_recv(&conn, 6);
    post_empty_send(&conn, 16);
    expect_flushed(&conn.recv, 1..=6);
    expect_flushed(&conn.request, 11..=16);
    expect_nothing(conn.recv.h());
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_is_marked(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

/// Returns an endpoint after the end of its connection.
fn ended(ctx: &Ctx) -> Conn {
    let (client, server) = ctx.loopback();
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    client
}

fn flushes_a_marker(ctx: &Ctx, op: Op) {
    let conn = ended(ctx);
    let memory = conn.memory(100);
    memory.fill(7);
    for id in 0..3 {
        op.post(&conn, id, &[memory.segment(0, 100)], &memory.target(0, 100));
    }
    (0..3).for_each(|id| _ = expect_dto(op.evd(&conn), id, DAT_DTO_ERR_FLUSHED, 0));
    // The segments of a flushed request are not checked.
    let nowhere = DAT_LMR_TRIPLET { lmr_context: !memory.lmr_context, ..memory.segment(0, 100) };
    op.post(&conn, 3, &[nowhere], &NOWHERE);
    expect_dto(op.evd(&conn), 3, DAT_DTO_ERR_FLUSHED, 0);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
    memory.expect_all(0, 100, 7);
}

fn flush_of_work_posted_after_a_disconnect_frees_its_queue_slots(ctx: &Ctx) {
    let conn = ended(ctx);
    for round in 0..5 {
        (0..16).for_each(|id| post_empty_send(&conn, round * 16 + id));
        (0..16).for_each(|id| post_empty_recv(&conn, round * 16 + id));
        expect_flushed(&conn.request, round * 16..round * 16 + 16);
        expect_flushed(&conn.recv, round * 16..round * 16 + 16);
    }
}
