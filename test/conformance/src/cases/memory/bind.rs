//! Binds of RMRs (spec/events 9.2): the accesses that a bound RMR permits and denies, the order of binds and transfers,
//! and contexts that become invalid. A bind that is flushed, or posted after a disconnect, leaves the RMR unbound.
//! Refused binds are in `bind_posts`.
#![forbid(unsafe_code)]

use std::collections::HashSet;

use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::make::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 9.2": bind_completes_in_order_with_transfers => pair(client_binds_among_sends, server_receives_three),
        "spec/events 9.2": bind_is_valid_when_a_later_send_is_received => pair(client_sends_contexts_at_once, server_uses_contexts_at_once),
        "spec/events 9.2": bind_returns_a_new_context_each_time,
        "spec/events 9.2": rebind_invalidates_the_previous_context => pair(client_is_denied_the_first, server_binds_twice),
        "spec/events 9.2": bind_of_zero_length_invalidates_the_context => pair(client_is_denied_the_first, server_binds_and_unbinds),
        "spec/events 9.2": rebind_redirects_writes_to_the_new_memory => pair(client_writes_both_times, server_binds_to_two),
        "spec/events 9.2": bind_is_valid_on_all_connections_of_its_pz => pair(client_writes_over_both, server_binds_over_one),
        "spec/events 9.2": bind_is_invalid_on_connections_of_another_pz => pair(client_is_denied_over_the_other, server_binds_in_one_pz),
        "spec/events 9.2": bind_outlives_the_connection_it_was_posted_on => pair(client_writes_over_the_second, server_binds_over_the_first),
        "spec/events 9.2": bind_of_a_part_of_an_lmr_of_an_lmr_permits_writes => pair(client_writes_once, server_binds_an_lmr_of_an_lmr),
        "spec/events 9.2": bind_posted_after_a_disconnect_leaves_the_rmr_unbound,
        "spec/events 9.2": bind_flushed_by_a_disconnect_leaves_the_rmr_unbound => pair(client_loses_its_bind, server_holds_no_receive),
        "spec/events 9.2": rebind_posted_after_a_disconnect_leaves_the_rmr_unbound,
        "spec/events 9.2": bind_of_zero_length_posted_after_a_disconnect_leaves_the_rmr_unbound,
        "spec/events 4.6": bind_occupies_a_request_slot => pair(client_fills_up_with_binds, server_empties_and_waits),
        "spec/events 4.3": bind_between_reads_and_a_write_completes_in_order => pair(client_binds_with_reads_open, server_exports_a_page),
        "spec/events 9.2": bind_by_several_threads_completes_with_its_own_handle_and_cookie,
    ];
    let rights = [
        ("read", DAT_MEM_PRIV_REMOTE_READ_FLAG),
        ("write", DAT_MEM_PRIV_REMOTE_WRITE_FLAG),
        ("both", REMOTE),
        ("no", DAT_MEM_PRIV_NONE_FLAG),
    ];
    for (word, privileges) in rights {
        for op in Op::RDMA {
            let needed = if op == Op::Read { DAT_MEM_PRIV_REMOTE_READ_FLAG } else { DAT_MEM_PRIV_REMOTE_WRITE_FLAG };
            let may = privileges & needed != 0;
            let verb = if may { "allows" } else { "denies" };
            let name = format!("bind_with_{word}_privileges_{verb}_{}", op.word());
            let case = pair(move |ctx| tries(ctx, op, may), move |ctx| exports_part(ctx, privileges, may, 0));
            all.push(case.named(name).proves("spec/events 9.2"));
        }
    }
    for op in Op::RDMA {
        for (words, shift) in [("before", -1), ("beyond", 1)] {
            let case = pair(move |ctx| tries(ctx, op, false), move |ctx| exports_part(ctx, REMOTE, false, shift));
            all.push(
                case.named(format!("bind_denies_{}_a_byte_{words}_its_range", op.word())).proves("spec/events 9.2"),
            );
        }
    }
    all.into_iter().map(|case| case.needs(Need::Rmr)).collect()
}

/// Transfers 200 bytes to or from the target that the server role sends. `may`: whether the transfer is permitted.
fn tries(ctx: &Ctx, op: Op, may: bool) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    memory.fill(7);
    op.post(&conn, 1, &[memory.segment(0, 200)], &ctx.receive_target());
    if may {
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 200);
    } else {
        expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
        expect_broken(&conn);
    }
    ctx.meet();
}

/// Binds bytes 100 to 300 of a page, and sends the peer a target shifted by `shift`.
fn exports_part(ctx: &Ctx, privileges: DAT_MEM_PRIV_FLAGS, may: bool, shift: i64) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    let rmr = conn.pz.rmr();
    let target = bind(&conn, &rmr, memory.segment(100, 200), privileges);
    let target_address = target.target_address.wrapping_add_signed(shift);
    ctx.send_target(DAT_RMR_TRIPLET { target_address, ..target });
    if !may {
        expect_lost(&conn);
        memory.expect_all(0, 4096, 0);
    }
    ctx.meet();
    memory.expect_all(0, 100, 0);
    memory.expect_all(300, 3796, 0);
}

fn client_binds_among_sends(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let (one, other) = (conn.pz.rmr(), conn.pz.rmr());
    post_empty_send(&conn, 1);
    post_bind(&conn, &one, 2, memory.segment(0, 100), REMOTE);
    post_empty_send(&conn, 3);
    post_bind(&conn, &other, 4, memory.segment(0, 50), REMOTE);
    post_unbind(&conn, &one, 5);
    post_empty_send(&conn, 6);
    post_unbind(&conn, &other, u64::MAX);
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 0);
    expect_rmr(conn.request.h(), one.h(), 2, DAT_RMR_BIND_SUCCESS);
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 0);
    expect_rmr(conn.request.h(), other.h(), 4, DAT_RMR_BIND_SUCCESS);
    expect_rmr(conn.request.h(), one.h(), 5, DAT_RMR_BIND_SUCCESS);
    expect_dto(conn.request.h(), 6, DAT_DTO_SUCCESS, 0);
    expect_rmr(conn.request.h(), other.h(), u64::MAX, DAT_RMR_BIND_SUCCESS);
    ctx.meet();
}

fn server_receives_three(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    (0..3).for_each(|id| post_empty_recv(&conn, id));
    (0..3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

/// Sends each new context immediately. The peer uses it before this role has dequeued the completion of the bind.
fn client_sends_contexts_at_once(ctx: &Ctx) {
    let conn = ctx.connect();
    let (memory, word) = (conn.memory(100), conn.memory(4));
    let rmr = conn.pz.rmr();
    ctx.send_number(memory.address(0));
    for round in 1..=50 {
        let context = post_bind(&conn, &rmr, 1, memory.segment(0, 100), REMOTE);
        word.put(0, &context.to_le_bytes());
        conn.post_send(2, word.segment(0, 4));
        // Polls memory only, so progress does not depend on DAT calls of this role.
        memory.spin_for(99, round);
        expect_rmr(conn.request.h(), rmr.h(), 1, DAT_RMR_BIND_SUCCESS);
        expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 4);
        ctx.meet();
    }
    unbind(&conn, &rmr);
    ctx.meet();
}

fn server_uses_contexts_at_once(ctx: &Ctx) {
    let conn = ctx.connect();
    let (memory, word) = (conn.memory(100), conn.memory(4));
    let target_address = ctx.receive_number();
    conn.post_recv(0, word.segment(0, 4));
    for round in 1..=50 {
        expect_dto(conn.recv.h(), round - 1, DAT_DTO_SUCCESS, 4);
        let rmr_context = u32::from_le_bytes(word.take(0, 4).try_into().expect("`take` returns the 4 bytes requested"));
        conn.post_recv(round, word.segment(0, 4));
        memory.fill(round as u8);
        let target = DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address, segment_length: 100 };
        conn.post_write(round, memory.segment(0, 100), target);
        expect_dto(conn.request.h(), round, DAT_DTO_SUCCESS, 100);
        ctx.meet();
    }
    ctx.meet();
}

fn bind_returns_a_new_context_each_time(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(100);
    let rmr = client.pz.rmr();
    let mut seen = HashSet::from([0, memory.rmr_context, memory.lmr_context]);
    for n in 0..300 {
        let target = bind(&client, &rmr, memory.segment(0, 100), REMOTE);
        assert!(
            seen.insert(target.rmr_context),
            "the context {:#x} was returned again by bind {n}",
            target.rmr_context
        );
    }
    unbind(&client, &rmr);
}

/// Writes with the first context: successfully while it is valid; refused after the server role has bound again or
/// unbound.
fn client_is_denied_the_first(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let first = ctx.receive_target();
    conn.post_write(1, memory.segment(0, 100), first);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    memory.fill(7);
    ctx.meet();
    ctx.meet();
    conn.post_write(2, memory.segment(0, 100), first);
    expect_dto(conn.request.h(), 2, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_binds_twice(ctx: &Ctx) {
    exports_first_then(ctx, |conn, rmr, memory| _ = bind(conn, rmr, memory.segment(0, 100), REMOTE));
}

fn server_binds_and_unbinds(ctx: &Ctx) {
    exports_first_then(ctx, |conn, rmr, _| unbind(conn, rmr));
}

fn exports_first_then(ctx: &Ctx, then: impl FnOnce(&Conn, &Rmr, &Memory)) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let rmr = conn.pz.rmr();
    ctx.send_target(bind(&conn, &rmr, memory.segment(0, 100), REMOTE));
    ctx.meet();
    then(&conn, &rmr, &memory);
    ctx.meet();
    expect_lost(&conn);
    memory.expect_all(0, 100, 0);
    ctx.meet();
}

fn client_writes_both_times(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    for round in 1..=2 {
        memory.fill(round);
        conn.post_write(1, memory.segment(0, 100), ctx.receive_target());
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
        ctx.meet();
    }
}

fn server_binds_to_two(ctx: &Ctx) {
    let conn = ctx.connect();
    let (first, second) = (conn.memory(100), conn.memory(100));
    let rmr = conn.pz.rmr();
    for (memory, value) in [(&first, 1), (&second, 2)] {
        ctx.send_target(bind(&conn, &rmr, memory.segment(0, 100), REMOTE));
        ctx.meet();
        memory.expect_all(0, 100, value);
    }
    first.expect_all(0, 100, 1);
}

/// Two connections between the same roles; each role uses one PZ for both.
fn two_of_one_pz(ctx: &Ctx) -> (Conn, Conn) {
    let first = ctx.connect();
    let second = sibling(&first, &Setup::default());
    join(ctx, &second, 1);
    // The second EP uses the PZ of the first connection, so it is dropped first.
    (second, first)
}

fn client_writes_over_both(ctx: &Ctx) {
    let (second, first) = two_of_one_pz(ctx);
    let memory = first.memory(100);
    let target = ctx.receive_target();
    for conn in [&first, &second] {
        conn.post_write(1, memory.segment(0, 100), target);
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    }
    ctx.meet();
    drop(memory);
    drop(second);
}

fn server_binds_over_one(ctx: &Ctx) {
    let (second, first) = two_of_one_pz(ctx);
    let memory = first.memory(100);
    let rmr = first.pz.rmr();
    ctx.send_target(bind(&first, &rmr, memory.segment(0, 100), REMOTE));
    ctx.meet();
    drop(rmr);
    drop(memory);
    drop(second);
}

fn client_is_denied_over_the_other(ctx: &Ctx) {
    let first = ctx.connect();
    let second = Conn::on(&first.ia);
    join(ctx, &second, 1);
    let target = ctx.receive_target();
    let memory = second.memory(100);
    second.post_write(1, memory.segment(0, 100), target);
    expect_dto(second.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&second);
    // The first connection's binding still works.
    let memory = first.memory(100);
    first.post_write(2, memory.segment(0, 100), target);
    expect_dto(first.request.h(), 2, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn server_binds_in_one_pz(ctx: &Ctx) {
    let first = ctx.connect();
    let second = Conn::on(&first.ia);
    join(ctx, &second, 1);
    let memory = first.memory(100);
    let rmr = first.pz.rmr();
    ctx.send_target(bind(&first, &rmr, memory.segment(0, 100), REMOTE));
    expect_lost(&second);
    ctx.meet();
}

fn client_writes_over_the_second(ctx: &Ctx) {
    let (second, first) = two_of_one_pz(ctx);
    let memory = first.memory(100);
    first.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    second.post_write(1, memory.segment(0, 100), ctx.receive_target());
    expect_dto(second.request.h(), 1, DAT_DTO_SUCCESS, 100);
    ctx.meet();
    drop(memory);
    drop(second);
}

fn server_binds_over_the_first(ctx: &Ctx) {
    let (second, first) = two_of_one_pz(ctx);
    let memory = first.memory(100);
    let rmr = first.pz.rmr();
    let target = bind(&first, &rmr, memory.segment(0, 100), REMOTE);
    first.disconnect();
    ctx.send_target(target);
    ctx.meet();
    assert_eq!(rmr_param(&rmr).rmr_context, target.rmr_context);
    drop(rmr);
    drop(memory);
    drop(second);
}

fn client_writes_once(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    conn.post_write(1, memory.segment(0, 100), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn server_binds_an_lmr_of_an_lmr(ctx: &Ctx) {
    let conn = ctx.connect();
    let source = conn.memory(1000);
    let made = LmrArgs::lmr(source.h()).with(LOCAL).make(&conn.ia, &conn.pz);
    let rmr = conn.pz.rmr();
    ctx.send_target(bind(&conn, &rmr, made.segment(500, 100), REMOTE));
    refused(dat_lmr_free(made.lmr.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
    ctx.meet();
    source.expect_all(500, 100, 7);
    source.expect_all(0, 500, 0);
    source.expect_all(600, 400, 0);
    rmr.free();
}

fn bind_posted_after_a_disconnect_leaves_the_rmr_unbound(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let mut memory = client.memory(100);
    let rmr = client.pz.rmr();
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    post_bind(&client, &rmr, 1, memory.segment(0, 100), REMOTE);
    expect_rmr(client.request.h(), rmr.h(), 1, DAT_RMR_BIND_FAILURE);
    expect_unbound(&rmr);
    memory.deregister();
}

fn client_loses_its_bind(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(100);
    let rmr = conn.pz.rmr();
    conn.post_send(1, memory.segment(0, 100));
    post_bind(&conn, &rmr, 2, memory.segment(0, 100), REMOTE);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_flushed(&conn.request, [1]);
    expect_rmr(conn.request.h(), rmr.h(), 2, DAT_RMR_BIND_FAILURE);
    expect_unbound(&rmr);
    memory.deregister();
    ctx.meet();
}

fn server_holds_no_receive(ctx: &Ctx) {
    let conn = ctx.connect();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

fn rebind_posted_after_a_disconnect_leaves_the_rmr_unbound(ctx: &Ctx) {
    flushed_after_a_bind(ctx, |conn, rmr, memory| _ = post_bind(conn, rmr, 1, memory.segment(0, 50), REMOTE));
}

fn bind_of_zero_length_posted_after_a_disconnect_leaves_the_rmr_unbound(ctx: &Ctx) {
    flushed_after_a_bind(ctx, |conn, rmr, _| post_unbind(conn, rmr, 1));
}

fn flushed_after_a_bind(ctx: &Ctx, then: impl FnOnce(&Conn, &Rmr, &Memory)) {
    let (client, server) = ctx.loopback();
    let mut memory = client.memory(100);
    let rmr = client.pz.rmr();
    bind(&client, &rmr, memory.segment(0, 100), REMOTE);
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    then(&client, &rmr, &memory);
    expect_rmr(client.request.h(), rmr.h(), 1, DAT_RMR_BIND_FAILURE);
    expect_unbound(&rmr);
    memory.deregister();
}

fn client_fills_up_with_binds(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let rmr = conn.pz.rmr();
    post_empty_send(&conn, 0);
    let segment = memory.segment(0, 100);
    let mut binds = 0;
    let code = loop {
        let mut context = 0;
        match dat_rmr_bind(rmr.h(), &segment, REMOTE, conn.ep.h(), cookie(binds + 1), 0, &mut context) {
            DAT_SUCCESS => binds += 1,
            code => break code,
        }
    };
    refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    assert!(binds >= 15, "only {binds} binds fit behind a send, wanted at least 15");
    ctx.meet();
    expect_dto(conn.request.h(), 0, DAT_DTO_SUCCESS, 0);
    (1..=binds).for_each(|id| _ = expect_rmr(conn.request.h(), rmr.h(), id, DAT_RMR_BIND_SUCCESS));
    unbind(&conn, &rmr);
    ctx.meet();
}

fn server_empties_and_waits(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    post_empty_recv(&conn, 0);
    expect_dto(conn.recv.h(), 0, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

/// Reads before a bind, the bind and a write after it complete in order.
fn client_binds_with_reads_open(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4 * EXPORTED);
    let rmr = conn.pz.rmr();
    let remote = ctx.receive_target();
    (0..4).for_each(|id| conn.post_read(id, memory.segment(id as usize * EXPORTED, EXPORTED), remote));
    post_bind(&conn, &rmr, 4, memory.segment(0, 100), REMOTE);
    conn.post_write(5, memory.segment(0, 100), remote);
    (0..4).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, EXPORTED as u64));
    expect_rmr(conn.request.h(), rmr.h(), 4, DAT_RMR_BIND_SUCCESS);
    expect_dto(conn.request.h(), 5, DAT_DTO_SUCCESS, 100);
    unbind(&conn, &rmr);
    ctx.meet();
}

const EXPORTED: usize = 100_000;

fn server_exports_a_page(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(EXPORTED);
    ctx.send_target(memory.target(0, EXPORTED));
    ctx.meet();
}

/// Each thread has its own RMR. Every bind completes with its own handle and cookie.
fn bind_by_several_threads_completes_with_its_own_handle_and_cookie(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(1000);
    let rmrs: Vec<Rmr> = (0..4).map(|_| client.pz.rmr()).collect();
    std::thread::scope(|scope| {
        for (n, rmr) in rmrs.iter().enumerate() {
            let (client, memory) = (&client, &memory);
            scope.spawn(move || {
                for round in 0..3 {
                    post_bind(client, rmr, n as u64 * 10 + round, memory.segment(n * 100, 100), REMOTE);
                }
            });
        }
    });
    let mut next = [0; 4];
    for _ in 0..12 {
        let data = expect_event(client.request.h(), SOON).rmr();
        let id = context_bits(data.user_cookie) as usize;
        let (thread, round) = (id / 10, id % 10);
        assert!(data.status == DAT_RMR_BIND_SUCCESS && data.rmr_handle == rmrs[thread].h() && round == next[thread]);
        next[thread] += 1;
    }
    rmrs.iter().for_each(|rmr| unbind(&client, rmr));
}
