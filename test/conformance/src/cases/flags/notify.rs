//! UNSIGNALLED, SOLICITED_WAIT and EVD_THRESHOLD: which completions wake a waiter or trigger a CNO. None of these flags
//! suppresses an event.
#![forbid(unsafe_code)]

use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::serves;

const UNSIGNALLED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_UNSIGNALLED_FLAG;
const SOLICITED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SOLICITED_WAIT_FLAG;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.1": flag_unsignalled_receive_wakes_no_waiter => pair(client_sends_on_words, server_receives_unsignalled),
        "spec/events 4.1": flag_unsignalled_receive_triggers_no_cno => pair(client_sends_on_words, server_receives_unsignalled_on_a_cno),
        "spec/events 4.1": flag_unsignalled_bind_wakes_no_waiter => local(unsignalled_bind).needs(Need::Rmr),
        "spec/events 4.1": flag_unsignalled_request_triggers_no_cno => pair(client_unsignalled_on_a_cno, serves),
        "spec/events 1.3": flag_unsignalled_event_can_be_dequeued => pair(client_asks_for_unsignalled, serves),
        "spec/events 14.9": flag_unsignalled_request_that_fails_wakes_the_waiter => pair(client_fails_unsignalled, server_loses),
        "spec/events 14.9": flag_unsignalled_request_that_is_flushed_wakes_the_waiter => pair(client_is_flushed_unsignalled, server_loses_without_an_event),
        "spec/events 4.1": flag_default_requests_of_an_unsignalled_ep_wake_the_waiter => pair(client_signals_on_an_unsignalled_ep, serves),
        "spec/events 4.1": flag_solicited_receive_wakes_the_waiter => pair(client_sends_solicited, server_receives_solicited),
        "spec/events 4.1": flag_solicited_receive_triggers_the_cno => pair(client_sends_solicited, server_receives_solicited_on_a_cno),
        "spec/events 4.1": flag_solicited_send_of_many_fragments_wakes_the_waiter => pair(client_sends_large_solicited, server_receives_large_solicited),
        "spec/events 4.1": flag_solicited_send_completes_a_default_receive => pair(client_sends_solicited_once, server_receives_as_usual),
        "spec/events 4.1": flag_solicited_and_suppressed_send_wakes_the_waiter => pair(client_sends_solicited_and_suppressed, server_receives_only_solicited),
        "spec/events 14.9": flag_solicited_receiver_is_woken_by_a_flush => pair(client_leaves, server_waits_for_a_flush),
        "spec/events 4.1": flag_solicited_requests_complete_with_an_event => pair(client_moves_solicited, serves),
        "spec/events 4.1": flag_evd_threshold_requests_complete_with_an_event => pair(client_moves_by_threshold, serves),
    ];
    for op in Op::REQUESTS {
        let case = pair(move |ctx| wakes_no_waiter(ctx, op), serves);
        all.push(case.named(format!("flag_unsignalled_{}_wakes_no_waiter", op.word())).proves("spec/events 4.1"));
    }
    all
}

fn unsignalled_requests() -> Setup {
    setup(|attr| attr.request_completion_flags = UNSIGNALLED)
}

/// Checks that a waiter stays blocked during `quiet` and wakes up during `notifying`. The wait returns the oldest event
/// and reports `more` further events.
#[track_caller]
fn stays_asleep(evd: DAT_EVD_HANDLE, quiet: impl FnOnce(), notifying: impl FnOnce(), more: DAT_COUNT) {
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    quiet();
    assert!(!waiter.is_back(), "a completion without notification woke the waiter");
    notifying();
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!(waited.more, more, "the wait returned another number of further events");
}

fn wakes_no_waiter(ctx: &Ctx, op: Op) {
    let conn = ctx.connect_with(&unsignalled_requests());
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    let quiet = || {
        for id in 0..3 {
            ok(op.call(&conn, id, &[memory.segment(0, 100)], &remote, UNSIGNALLED));
        }
        until(|| is_request_idle(&conn));
    };
    stays_asleep(conn.request.h(), quiet, || post_empty_send(&conn, 3), 3);
    (1..3).for_each(|id| {
        check_dto(
            &dequeue(conn.request.h()).expect("the completion without notification is queued").dto(),
            id,
            DAT_DTO_SUCCESS,
            100,
        )
    });
    check_dto(
        &dequeue(conn.request.h()).expect("the completion without notification is queued").dto(),
        3,
        DAT_DTO_SUCCESS,
        0,
    );
    expect_nothing(conn.request.h());
    ctx.meet();
}

/// Sends an empty message for each command of the other role.
fn client_sends_on_words(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..3 {
        assert_eq!(ctx.receive(), b"send");
        post_empty_send(&conn, id);
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
        ctx.send("sent");
    }
    ctx.meet();
}

/// Requests one message from the client, and waits until the client has sent it.
#[track_caller]
fn asks_for_one(ctx: &Ctx) {
    ctx.send("send");
    assert_eq!(ctx.receive(), b"sent");
}

fn unsignalled_recvs() -> Setup {
    setup(|attr| attr.recv_completion_flags = UNSIGNALLED)
}

#[track_caller]
fn post_recv_as(conn: &Conn, id: u64, flags: DAT_COMPLETION_FLAGS) {
    ok(Op::Recv.call(conn, id, &[], &NOWHERE, flags));
}

/// Whether no receive is posted.
#[track_caller]
fn is_recv_idle(conn: &Conn) -> bool {
    let (mut state, mut recv, mut request) = (0, 0, 0);
    ok(dat_ep_get_status(conn.ep.h(), &mut state, &mut recv, &mut request));
    recv != DAT_FALSE
}

fn server_receives_unsignalled(ctx: &Ctx) {
    let conn = ctx.connect_with(&unsignalled_recvs());
    post_recv_as(&conn, 0, UNSIGNALLED);
    post_recv_as(&conn, 1, UNSIGNALLED);
    let quiet = || {
        (0..2).for_each(|_| asks_for_one(ctx));
        until(|| is_recv_idle(&conn));
        post_recv_as(&conn, 2, DAT_COMPLETION_DEFAULT_FLAG);
    };
    stays_asleep(conn.recv.h(), quiet, || asks_for_one(ctx), 2);
    (1..3).for_each(|id| {
        check_dto(
            &dequeue(conn.recv.h()).expect("the completion without notification is queued").dto(),
            id,
            DAT_DTO_SUCCESS,
            0,
        )
    });
    ctx.meet();
}

/// Creates a connected endpoint with these attributes, whose completions go to two EVDs of this CNO.
#[track_caller]
fn connect_on(ctx: &Ctx, ia: &Ia, cno: &Cno, setup: &Setup) -> Conn {
    let mut conn = Conn::unconnected(ia, setup);
    let flags = DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG;
    let (recv, request) = (ia.evd_on(cno, 64, DAT_EVD_DTO_FLAG), ia.evd_on(cno, 64, flags));
    conn.ep = ia.ep_with(&conn.pz, &recv, &request, &conn.events, &setup.attr);
    (conn.recv, conn.request) = (recv, request);
    join(ctx, &conn, 0);
    conn
}

fn server_receives_unsignalled_on_a_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let conn = connect_on(ctx, &ia, &cno, &unsignalled_recvs());
    post_recv_as(&conn, 0, UNSIGNALLED);
    post_recv_as(&conn, 1, UNSIGNALLED);
    (0..2).for_each(|_| asks_for_one(ctx));
    until(|| is_recv_idle(&conn));
    assert_eq!(agent.count(), 0);
    post_recv_as(&conn, 2, DAT_COMPLETION_DEFAULT_FLAG);
    asks_for_one(ctx);
    assert!(agent.wait_for(1) == [conn.recv.h()]);
    (0..3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn unsignalled_bind(ctx: &Ctx) {
    let (client, server) = ctx.loopback_with(&ctx.ia(), &unsignalled_requests());
    let memory = client.memory(100);
    let rmr = client.pz.rmr();
    post_empty_recv(&server, 1);
    let segment = memory.segment(0, 100);
    let quiet = || {
        let privileges = DAT_MEM_PRIV_REMOTE_READ_FLAG;
        let _: DAT_RMR_CONTEXT =
            filled(|out| dat_rmr_bind(rmr.h(), &segment, privileges, client.ep.h(), cookie(1), UNSIGNALLED, out));
        until(|| is_request_idle(&client));
    };
    stays_asleep(client.request.h(), quiet, || post_empty_send(&client, 2), 1);
    check_dto(
        &dequeue(client.request.h()).expect("the completion without notification is queued").dto(),
        2,
        DAT_DTO_SUCCESS,
        0,
    );
}

fn client_unsignalled_on_a_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let conn = connect_on(ctx, &ia, &cno, &unsignalled_requests());
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for (id, op) in (0..).zip(Op::REQUESTS) {
        ok(op.call(&conn, id, &[memory.segment(0, 100)], &remote, UNSIGNALLED));
    }
    until(|| is_request_idle(&conn));
    assert_eq!(agent.count(), 0);
    post_empty_send(&conn, 3);
    assert!(agent.wait_for(1) == [conn.request.h()]);
    (0..3).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100));
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn client_asks_for_unsignalled(ctx: &Ctx) {
    let conn = ctx.connect_with(&unsignalled_requests());
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for id in 0..2 {
        ok(Op::Write.call(&conn, id, &[memory.segment(0, 100)], &remote, UNSIGNALLED));
    }
    until(|| is_request_idle(&conn));
    // A wait with timeout 0 and a dequeue both return the event that did not notify.
    let (mut event, mut more) = (zeroed(), -1);
    ok(dat_evd_wait(conn.request.h(), 0, 1, &mut event, &mut more));
    check_dto(&Event(event).dto(), 0, DAT_DTO_SUCCESS, 100);
    assert_eq!(more, 1);
    check_dto(
        &dequeue(conn.request.h()).expect("the completion without notification is queued").dto(),
        1,
        DAT_DTO_SUCCESS,
        100,
    );
    ctx.meet();
}

fn client_fails_unsignalled(ctx: &Ctx) {
    let conn = ctx.connect_with(&unsignalled_requests());
    let memory = conn.memory(100);
    let waiter = evd_waiter(conn.request.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.request.h());
    let nowhere = DAT_LMR_TRIPLET { lmr_context: !memory.lmr_context, ..memory.segment(0, 100) };
    ok(Op::Send.call(&conn, 1, &[nowhere], &NOWHERE, UNSIGNALLED));
    ok(waiter.join().code);
    expect_broken(&conn);
    ctx.meet();
}

fn server_loses(ctx: &Ctx) {
    let conn = ctx.connect();
    expect_lost(&conn);
    ctx.meet();
}

fn client_is_flushed_unsignalled(ctx: &Ctx) {
    let conn = ctx.connect_with(&unsignalled_requests());
    let waiter = evd_waiter(conn.request.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.request.h());
    // There is no receive for this message.
    ok(Op::Send.call(&conn, 1, &[], &NOWHERE, UNSIGNALLED));
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    ok(waiter.join().code);
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

fn server_loses_without_an_event(ctx: &Ctx) {
    server_loses(ctx);
}

fn client_signals_on_an_unsignalled_ep(ctx: &Ctx) {
    let conn = ctx.connect_with(&unsignalled_requests());
    ctx.receive_target();
    for id in 0..5 {
        post_empty_send(&conn, id);
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn solicited_recvs() -> Setup {
    setup(|attr| attr.recv_completion_flags = SOLICITED)
}

/// Sends twice without flags, and once with a solicited event for the receiver.
fn client_sends_solicited(ctx: &Ctx) {
    let conn = ctx.connect();
    for (id, flags) in [(0, 0), (1, 0), (2, SOLICITED)] {
        assert_eq!(ctx.receive(), b"send");
        ok(Op::Send.call(&conn, id, &[], &NOWHERE, flags));
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
        ctx.send("sent");
    }
    ctx.meet();
}

fn server_receives_solicited(ctx: &Ctx) {
    let conn = ctx.connect_with(&solicited_recvs());
    (0..2).for_each(|id| post_empty_recv(&conn, id));
    let quiet = || {
        (0..2).for_each(|_| asks_for_one(ctx));
        until(|| is_recv_idle(&conn));
        post_empty_recv(&conn, 2);
    };
    stays_asleep(conn.recv.h(), quiet, || asks_for_one(ctx), 2);
    (1..3).for_each(|id| {
        check_dto(
            &dequeue(conn.recv.h()).expect("the completion without notification is queued").dto(),
            id,
            DAT_DTO_SUCCESS,
            0,
        )
    });
    ctx.meet();
}

fn server_receives_solicited_on_a_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let conn = connect_on(ctx, &ia, &cno, &solicited_recvs());
    (0..2).for_each(|id| post_empty_recv(&conn, id));
    (0..2).for_each(|_| asks_for_one(ctx));
    until(|| is_recv_idle(&conn));
    assert_eq!(agent.count(), 0);
    post_empty_recv(&conn, 2);
    asks_for_one(ctx);
    assert!(agent.wait_for(1) == [conn.recv.h()]);
    (0..3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

const LARGE: usize = 200_000;

fn client_sends_large_solicited(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(LARGE);
    ctx.meet();
    ok(Op::Send.call(&conn, 1, &[memory.segment(0, LARGE)], &NOWHERE, SOLICITED));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, LARGE as u64);
    ctx.meet();
}

fn server_receives_large_solicited(ctx: &Ctx) {
    let conn = ctx.connect_with(&solicited_recvs());
    let memory = conn.memory(LARGE);
    conn.post_recv(1, memory.segment(0, LARGE));
    let waiter = evd_waiter(conn.recv.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.recv.h());
    ctx.meet();
    ok(waiter.join().code);
    ctx.meet();
}

fn client_sends_solicited_once(ctx: &Ctx) {
    let conn = ctx.connect();
    for (id, flags) in [(0, SOLICITED), (1, 0), (2, SOLICITED)] {
        ok(Op::Send.call(&conn, id, &[], &NOWHERE, flags));
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn server_receives_as_usual(ctx: &Ctx) {
    let conn = ctx.connect();
    (0..3).for_each(|id| post_empty_recv(&conn, id));
    (0..3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn client_sends_solicited_and_suppressed(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    ok(Op::Send.call(&conn, 1, &[], &NOWHERE, SOLICITED | DAT_COMPLETION_SUPPRESS_FLAG));
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn server_receives_only_solicited(ctx: &Ctx) {
    let conn = ctx.connect_with(&solicited_recvs());
    post_empty_recv(&conn, 1);
    let waiter = evd_waiter(conn.recv.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.recv.h());
    ctx.meet();
    ok(waiter.join().code);
    ctx.meet();
}

fn client_leaves(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    conn.disconnect();
    ctx.meet();
}

fn server_waits_for_a_flush(ctx: &Ctx) {
    let conn = ctx.connect_with(&solicited_recvs());
    post_empty_recv(&conn, 1);
    let waiter = evd_waiter(conn.recv.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.recv.h());
    ctx.meet();
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

fn client_moves_solicited(ctx: &Ctx) {
    moves_with(ctx, SOLICITED);
}

fn client_moves_by_threshold(ctx: &Ctx) {
    moves_with(ctx, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
}

fn moves_with(ctx: &Ctx, flags: DAT_COMPLETION_FLAGS) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for op in Op::REQUESTS {
        ok(op.call(&conn, 1, &[memory.segment(0, 100)], &remote, flags));
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    }
    ctx.meet();
}
