//! SUPPRESS: a success queues no event, but its queue slot becomes free; a failure or a flush queues an event. Receives
//! cannot be suppressed.
#![forbid(unsafe_code)]

use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::serves;

const SUPPRESS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.1": flag_suppressed_bind_completes_without_an_event => local(suppressed_bind).needs(Need::Rmr),
        "spec/events 4.1": flag_suppressed_bind_that_is_flushed_is_reported => local(suppressed_bind_flushed).needs(Need::Rmr),
        "spec/events 12.6": flag_suppressed_success_triggers_no_cno => pair(client_suppresses_on_a_cno, serves),
        "spec/events 12.6": flag_suppressed_success_wakes_no_waiter => pair(client_suppresses_beside_a_waiter, serves),
        "spec/events 4.2": flag_suppressed_request_is_complete_when_a_later_request_completes => pair(client_suppresses_then_signals, server_polls_on_request),
        "spec/consumers 18": flag_fifty_thousand_suppressed_writes_queue_no_event => pair(client_writes_fifty_thousand, serves).limit(60),
        "spec/consumers 18": flag_fifty_thousand_suppressed_sends_queue_no_event => pair(client_sends_fifty_thousand, server_receives_fifty_thousand).limit(60),
        "spec/consumers 18": flag_thousands_of_suppressed_requests_complete_without_events => pair(client_suppresses_only, serves).limit(40),
        "spec/events 4.1": flag_suppress_combined_with_other_flags_queues_no_event => pair(client_suppresses_with_any_ep_attribute, serves),
        "spec/events 4.1": flag_suppress_is_refused_as_a_receive_attribute,
        "spec/events 4.1": flag_receives_refuse_request_flags_or_complete_with_an_event => pair(client_sends_four, server_receives_with_all_flags),
        "spec/events 4.1": flag_suppressed_send_still_completes_its_receive => pair(client_sends_suppressed, server_receives_one),
    ];
    for op in Op::REQUESTS {
        let silent = pair(move |ctx| is_silent(ctx, op), serves);
        all.push(
            silent.named(format!("flag_suppressed_{}_completes_without_an_event", op.word())).proves("spec/events 4.1"),
        );
        let failing = pair(move |ctx| fails_with_an_event(ctx, op), loses);
        all.push(
            failing.named(format!("flag_suppressed_{}_that_fails_is_reported", op.word())).proves("spec/events 4.1"),
        );
        let flushed = local(move |ctx| is_flushed_with_an_event(ctx, op));
        all.push(
            flushed
                .named(format!("flag_suppressed_{}_that_is_flushed_is_reported", op.word()))
                .proves("spec/events 4.1"),
        );
    }
    all
}

fn is_silent(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for id in 0..3 {
        ok(op.call(&conn, id, &[memory.segment(0, 100)], &remote, SUPPRESS));
    }
    // Requests complete in order: when this send has completed, all earlier requests have.
    post_empty_send(&conn, 9);
    expect_dto(conn.request.h(), 9, DAT_DTO_SUCCESS, 0);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn fails_with_an_event(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let nowhere = DAT_LMR_TRIPLET { lmr_context: !memory.lmr_context, ..memory.segment(0, 100) };
    ok(op.call(&conn, 1, &[nowhere], &ctx.receive_target(), SUPPRESS));
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn loses(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    expect_lost(&conn);
    ctx.meet();
}

fn is_flushed_with_an_event(ctx: &Ctx, op: Op) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(100);
    let target = server.memory(100);
    // This send waits for a receive, and the suppressed request is queued behind it.
    post_empty_send(&client, 1);
    ok(op.call(&client, 2, &[memory.segment(0, 100)], &target.target(0, 100), SUPPRESS));
    ok(dat_ep_disconnect(client.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ok(op.call(&client, 3, &[memory.segment(0, 100)], &target.target(0, 100), SUPPRESS));
    expect_flushed(&client.request, 1..=3);
    expect_nothing(client.request.h());
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
}

fn suppressed_bind(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(100);
    let rmr = client.pz.rmr();
    post_empty_recv(&server, 0);
    let segment = memory.segment(0, 100);
    let privileges = DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let context: DAT_RMR_CONTEXT =
        filled(|out| dat_rmr_bind(rmr.h(), &segment, privileges, client.ep.h(), cookie(1), SUPPRESS, out));
    post_empty_send(&client, 2);
    expect_dto(client.request.h(), 2, DAT_DTO_SUCCESS, 0);
    expect_nothing(client.request.h());
    let theirs = server.memory(100);
    server.post_read(3, theirs.segment(0, 100), DAT_RMR_TRIPLET { rmr_context: context, ..memory.target(0, 100) });
    expect_dto(server.request.h(), 3, DAT_DTO_SUCCESS, 100);
}

fn suppressed_bind_flushed(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.memory(100);
    let rmr = client.pz.rmr();
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    let segment = memory.segment(0, 100);
    let privileges = DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let _: DAT_RMR_CONTEXT =
        filled(|out| dat_rmr_bind(rmr.h(), &segment, privileges, client.ep.h(), cookie(1), SUPPRESS, out));
    expect_rmr(client.request.h(), rmr.h(), 1, DAT_RMR_BIND_FAILURE);
}

fn client_suppresses_on_a_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let mut conn = Conn::on(&ia);
    let request = ia.evd_on(&cno, 64, DAT_EVD_DTO_FLAG);
    conn.ep = ia.ep(&conn.pz, &conn.recv, &request, &conn.events);
    conn.request = request;
    join(ctx, &conn, 0);
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for op in Op::REQUESTS {
        ok(op.call(&conn, 1, &[memory.segment(0, 100)], &remote, SUPPRESS));
    }
    until(|| is_request_idle(&conn));
    assert_eq!(agent.count(), 0, "a suppressed completion triggered the agent");
    expect_nothing(conn.request.h());
    post_empty_send(&conn, 2);
    assert!(agent.wait_for(1) == [conn.request.h()]);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn client_suppresses_beside_a_waiter(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    let waiter = evd_waiter(conn.request.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.request.h());
    for op in Op::REQUESTS {
        ok(op.call(&conn, 1, &[memory.segment(0, 100)], &remote, SUPPRESS));
    }
    until(|| is_request_idle(&conn));
    assert!(!waiter.is_back(), "a suppressed completion woke the waiter");
    post_empty_send(&conn, 2);
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.number, waited.more), (DAT_DTO_COMPLETION_EVENT, 0));
    ctx.meet();
}

fn client_suppresses_then_signals(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(LARGE);
    memory.fill(7);
    let remote = ctx.receive_target();
    ok(Op::Write.call(&conn, 1, &[memory.segment(0, LARGE)], &remote, SUPPRESS));
    conn.post_write(2, memory.segment(0, 1), remote);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 1);
    // The suppressed write is complete, because the later write is: its buffer may be changed, and the peer's memory
    // has all its bytes.
    memory.fill(9);
    ctx.send("done");
    ctx.meet();
}

const LARGE: usize = 1 << 20;

fn server_polls_on_request(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(LARGE);
    ctx.send_target(memory.target(0, LARGE));
    assert_eq!(ctx.receive(), b"done");
    memory.expect_all(0, LARGE, 7);
    ctx.meet();
}

/// Repeats the post while the queue is full. A completed request frees its slot although it queues no event.
#[track_caller]
fn post_when_slot_is_free(
    conn: &Conn,
    op: Op,
    id: u64,
    segment: DAT_LMR_TRIPLET,
    remote: &DAT_RMR_TRIPLET,
    flags: u32,
) {
    until(|| {
        let code = op.call(conn, id, &[segment], remote, flags);
        one_of(code, &[DAT_SUCCESS, error(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY)]);
        code == DAT_SUCCESS
    });
}

const MANY: u64 = 50_000;

fn client_writes_fifty_thousand(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    conn.post_write(1, memory.segment(0, 8), remote);
    (0..MANY).for_each(|_| post_when_slot_is_free(&conn, Op::Write, 2, memory.segment(0, 8), &remote, SUPPRESS));
    post_when_slot_is_free(&conn, Op::Write, 3, memory.segment(0, 8), &remote, 0);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 8);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn client_sends_fifty_thousand(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let post = |id, flags| post_when_slot_is_free(&conn, Op::Send, id, memory.segment(0, 8), &NOWHERE, flags);
    post(1, 0);
    (0..MANY).for_each(|_| post(2, SUPPRESS));
    post(3, 0);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 8);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_receives_fifty_thousand(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8);
    (0..16).for_each(|id| conn.post_recv(id, memory.segment(0, 8)));
    for id in 0..MANY + 2 {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 8);
        if id + 16 < MANY + 2 {
            conn.post_recv(id + 16, memory.segment(0, 8));
        }
    }
    ctx.meet();
}

fn client_suppresses_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for op in Op::RDMA {
        (0..5000).for_each(|_| post_when_slot_is_free(&conn, op, 1, memory.segment(0, 100), &remote, SUPPRESS));
    }
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn client_suppresses_with_any_ep_attribute(ctx: &Ctx) {
    // DEFAULT is the usual attribute. Programs that set another attribute use UNSIGNALLED.
    let setup = setup(|attr| attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG);
    let conn = ctx.connect_with(&setup);
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for flags in [0, DAT_COMPLETION_UNSIGNALLED_FLAG, DAT_COMPLETION_SOLICITED_WAIT_FLAG] {
        let flags = SUPPRESS | DAT_COMPLETION_BARRIER_FENCE_FLAG | flags;
        for op in Op::REQUESTS {
            ok(op.call(&conn, 1, &[memory.segment(0, 100)], &remote, flags));
        }
    }
    post_empty_send(&conn, 2);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 0);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn flag_suppress_is_refused_as_a_receive_attribute(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::on(&ia);
    let attr = DAT_EP_ATTR { recv_completion_flags: SUPPRESS, ..ep_attr() };
    let (pz, recv, request, events) = (conn.pz.h(), conn.recv.h(), conn.request.h(), conn.events.h());
    let code = untouched(|out| dat_ep_create(ia.h(), pz, recv, request, events, &attr, out));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
}

fn client_sends_four(ctx: &Ctx) {
    let conn = ctx.connect();
    let count = ctx.receive_number();
    (0..count).for_each(|id| post_empty_send(&conn, id));
    (0..count).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

/// A receive refuses or ignores the flags of requests (SUPPRESS, SOLICITED_WAIT, BARRIER_FENCE) and an undefined flag.
fn server_receives_with_all_flags(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut posted = 0;
    for flags in [SUPPRESS, DAT_COMPLETION_SOLICITED_WAIT_FLAG, DAT_COMPLETION_BARRIER_FENCE_FLAG, 0x10] {
        let code = Op::Recv.call(&conn, posted, &[], &NOWHERE, flags);
        one_of(code, &[DAT_SUCCESS, error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG5)]);
        posted += u64::from(code == DAT_SUCCESS);
    }
    ctx.send_number(posted);
    (0..posted).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn client_sends_suppressed(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ok(Op::Send.call(&conn, 1, &[memory.segment(0, 100)], &NOWHERE, SUPPRESS));
    // The last send must be acknowledged before the peer, which has received it, ends: otherwise the send would be
    // flushed.
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_receives_one(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    conn.post_recv(2, memory.segment(0, 100));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}
