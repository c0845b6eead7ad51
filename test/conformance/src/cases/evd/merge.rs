//! How an EVD notifies (threshold, UNSIGNALLED and SOLICITED streams): the query of this configuration, and the events
//! that wake a waiter or trigger a CNO. Also EVD overflow.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::full_evd;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 1.3": evd_notify_config_is_threshold_with_default_completion_flags,
        "spec/events 1.3": evd_notify_config_shows_an_unsignalled_request_stream,
        "spec/events 1.3": evd_notify_config_shows_an_unsignalled_receive_stream,
        "spec/events 1.3": evd_notify_config_shows_a_solicited_stream,
        "spec/events 1.3": evd_wait_threshold_above_one_is_refused_for_an_unsignalled_stream,
        "spec/events 1.3": evd_wait_threshold_above_one_is_refused_for_a_solicited_stream,
        "spec/events 1.3": evd_wait_threshold_counts_completions_of_default_streams,
        "spec/events 4.1": evd_unsignalled_completion_is_queued_and_wakes_no_waiter,
        "spec/events 1.3": evd_wait_returns_the_oldest_event_after_a_notification,
        "spec/events 1.3": evd_wait_with_timeout_zero_returns_an_unsignalled_event,
        "spec/events 4.1": evd_unsignalled_receive_wakes_no_waiter,
        "spec/events 4.1": evd_solicited_stream_wakes_a_waiter_only_for_solicited_events,
        "spec/events 1.3": evd_request_completions_wake_a_waiter_despite_solicited_receives,
        "spec/events 1.3": evd_default_receives_wake_a_waiter_beside_solicited_receives,
        "spec/events 14": evd_flushes_of_solicited_or_unsignalled_receives_wake_the_waiter,
        "spec/events 1.3": evd_unsignalled_completion_does_not_trigger_the_cno,
        "spec/events 4.1": evd_suppressed_success_queues_no_event,
        "spec/events 1.4": evd_overflow_raises_an_async_error_that_names_the_evd => local(overflows).limit(60),
    ]
}

/// Two connected endpoints. The client endpoint uses these completion flags for requests and receives.
fn ends(ctx: &Ctx, request: DAT_COMPLETION_FLAGS, recv: DAT_COMPLETION_FLAGS) -> (Conn, Conn) {
    let attr = DAT_EP_ATTR { request_completion_flags: request, recv_completion_flags: recv, ..Setup::default().attr };
    let ia = ctx.ia();
    let (client, server) = (Conn::unconnected(&ia, &Setup { attr, ..Setup::default() }), Conn::on(&ia));
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    (client, server)
}

const DEFAULT: DAT_COMPLETION_FLAGS = DAT_COMPLETION_DEFAULT_FLAG;
const UNSIGNALLED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_UNSIGNALLED_FLAG;
const SOLICITED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SOLICITED_WAIT_FLAG;

fn config(evd: &Evd) -> DAT_EVD_STATE {
    evd.param().evd_state & DAT_EVD_STATE_CONFIG_THRESHOLD
}

fn evd_notify_config_is_threshold_with_default_completion_flags(ctx: &Ctx) {
    let (client, server) = ends(ctx, DEFAULT, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
    for evd in [&client.recv, &client.request, &server.recv, &server.request] {
        assert_eq!(config(evd), DAT_EVD_STATE_CONFIG_THRESHOLD);
    }
}

fn evd_notify_config_shows_an_unsignalled_request_stream(ctx: &Ctx) {
    let (client, _server) = ends(ctx, UNSIGNALLED, DEFAULT);
    assert_eq!(config(&client.request), DAT_EVD_STATE_CONFIG_NOTIFY);
    assert_eq!(config(&client.recv), DAT_EVD_STATE_CONFIG_THRESHOLD);
}

fn evd_notify_config_shows_an_unsignalled_receive_stream(ctx: &Ctx) {
    let (client, _server) = ends(ctx, DEFAULT, UNSIGNALLED);
    assert_eq!(config(&client.recv), DAT_EVD_STATE_CONFIG_NOTIFY);
    assert_eq!(config(&client.request), DAT_EVD_STATE_CONFIG_THRESHOLD);
}

fn evd_notify_config_shows_a_solicited_stream(ctx: &Ctx) {
    let (client, _server) = ends(ctx, DEFAULT, SOLICITED);
    assert_eq!(config(&client.recv), DAT_EVD_STATE_CONFIG_SOLICITED);
    assert_eq!(config(&client.request), DAT_EVD_STATE_CONFIG_THRESHOLD);
}

fn threshold_two(evd: &Evd) -> DAT_RETURN {
    let mut more = 0;
    untouched(|event| dat_evd_wait(evd.h(), 0, 2, event, &mut more))
}

fn evd_wait_threshold_above_one_is_refused_for_an_unsignalled_stream(ctx: &Ctx) {
    let (client, _server) = ends(ctx, UNSIGNALLED, DEFAULT);
    refused(threshold_two(&client.request), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_CONFIG_NOTIFY);
    refused(threshold_two(&client.recv), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    expect_quiet(client.request.h(), std::time::Duration::ZERO);
}

fn evd_wait_threshold_above_one_is_refused_for_a_solicited_stream(ctx: &Ctx) {
    let (client, _server) = ends(ctx, DEFAULT, SOLICITED);
    refused(threshold_two(&client.recv), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_CONFIG_SOLICITED);
    refused(threshold_two(&client.request), DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
}

fn evd_wait_threshold_counts_completions_of_default_streams(ctx: &Ctx) {
    let (client, server) = ends(ctx, DEFAULT, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    let waiter = evd_waiter(client.recv.h(), DAT_TIMEOUT_INFINITE, 3).inside(client.recv.h());
    for number in 1..=3 {
        client.post_recv(number, here.segment(0, 8));
        server.post_send(10 + number, there.segment(0, 8));
    }
    let waited = waiter.join();
    assert_eq!((waited.code, waited.more), (DAT_SUCCESS, 2));
    for number in [2, 3] {
        expect_dto(client.recv.h(), number, DAT_DTO_SUCCESS, 8);
    }
}

/// Sends with these flags, and waits until the server has received the message.
fn send(client: &Conn, server: &Conn, memory: (&Memory, &Memory), id: u64, flags: DAT_COMPLETION_FLAGS) {
    server.post_recv(id, memory.1.segment(0, 8));
    client.post_send_as(id, memory.0.segment(0, 8), flags);
    expect_dto(server.recv.h(), id, DAT_DTO_SUCCESS, 8);
}

fn evd_unsignalled_completion_is_queued_and_wakes_no_waiter(ctx: &Ctx) {
    let (client, server) = ends(ctx, UNSIGNALLED, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    let waiter = evd_waiter(client.request.h(), DAT_TIMEOUT_INFINITE, 1).inside(client.request.h()).asleep();
    for id in 1..=3 {
        send(&client, &server, (&here, &there), id, UNSIGNALLED);
    }
    let waiter = waiter.asleep();
    assert!(!waiter.is_back(), "the waiter woke without a notification");
    ok(dat_evd_set_unwaitable(client.request.h()));
    refused(waiter.join().code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    for id in 1..=3 {
        let data = polled_event(client.request.h()).dto();
        check_dto(&data, id, DAT_DTO_SUCCESS, 8);
    }
}

fn evd_wait_returns_the_oldest_event_after_a_notification(ctx: &Ctx) {
    let (client, server) = ends(ctx, UNSIGNALLED, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    let evd = client.request.h();
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    send(&client, &server, (&here, &there), 1, UNSIGNALLED);
    send(&client, &server, (&here, &there), 2, DEFAULT);
    let waited = waiter.join();
    // The wait returned the first event.
    assert_eq!((waited.code, waited.number, waited.more), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT, 1));
    expect_dto(evd, 2, DAT_DTO_SUCCESS, 8);
}

fn evd_wait_with_timeout_zero_returns_an_unsignalled_event(ctx: &Ctx) {
    let (client, server) = ends(ctx, UNSIGNALLED, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    send(&client, &server, (&here, &there), 1, UNSIGNALLED);
    // Polls with timeout 0: the event is queued without a notification, so a blocking wait would not return.
    let data = loop {
        if let Some(event) = wait(client.request.h(), std::time::Duration::ZERO) {
            break event.dto();
        }
        std::thread::yield_now();
    };
    check_dto(&data, 1, DAT_DTO_SUCCESS, 8);
}

fn evd_unsignalled_receive_wakes_no_waiter(ctx: &Ctx) {
    let (client, server) = ends(ctx, DEFAULT, UNSIGNALLED);
    let (here, there) = (client.memory(64), server.memory(64));
    let (ep, evd) = (client.ep.h(), client.recv.h());
    ok(dat_ep_post_recv(ep, 1, &mut here.segment(0, 8), cookie(1), UNSIGNALLED));
    ok(dat_ep_post_recv(ep, 1, &mut here.segment(8, 8), cookie(2), DEFAULT));
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    server.post_send(11, there.segment(0, 8));
    expect_dto(server.request.h(), 11, DAT_DTO_SUCCESS, 8);
    let waiter = waiter.asleep();
    assert!(!waiter.is_back(), "the first receive woke the waiter");
    server.post_send(12, there.segment(0, 8));
    let waited = waiter.join();
    assert_eq!((waited.code, waited.more), (DAT_SUCCESS, 1));
    expect_dto(evd, 2, DAT_DTO_SUCCESS, 8);
}

fn evd_solicited_stream_wakes_a_waiter_only_for_solicited_events(ctx: &Ctx) {
    let (client, server) = ends(ctx, DEFAULT, SOLICITED);
    let (here, there) = (client.memory(64), server.memory(64));
    let evd = client.recv.h();
    client.post_recv(1, here.segment(0, 8));
    client.post_recv(2, here.segment(8, 8));
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    server.post_send(11, there.segment(0, 8));
    expect_dto(server.request.h(), 11, DAT_DTO_SUCCESS, 8);
    let waiter = waiter.asleep();
    assert!(!waiter.is_back(), "the first send woke the waiter");
    server.post_send_as(12, there.segment(0, 8), SOLICITED);
    let waited = waiter.join();
    assert_eq!((waited.code, waited.more), (DAT_SUCCESS, 1));
    expect_dto(evd, 2, DAT_DTO_SUCCESS, 8);
}

fn evd_request_completions_wake_a_waiter_despite_solicited_receives(ctx: &Ctx) {
    let attr = DAT_EP_ATTR { recv_completion_flags: SOLICITED, ..Setup::default().attr };
    let ia = ctx.ia();
    let (client, server) = (Conn::unconnected(&ia, &Setup { attr, ..Setup::default() }), Conn::on(&ia));
    let evd = client.recv.h();
    let param = DAT_EP_PARAM { request_evd_handle: evd, ..client.ep.param() };
    ok(dat_ep_modify(client.ep.h(), DAT_EP_FIELD_REQUEST_EVD_HANDLE, &param));
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    let (here, there) = (client.memory(64), server.memory(64));
    client.post_recv(1, here.segment(0, 8));
    server.post_recv(21, there.segment(0, 8));
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    client.post_send(2, here.segment(8, 8));
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number, waited.more), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT, 0));
    expect_dto(server.recv.h(), 21, DAT_DTO_SUCCESS, 8);
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    server.post_send_as(22, there.segment(8, 8), SOLICITED);
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number, waited.more), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT, 0));
}

fn evd_default_receives_wake_a_waiter_beside_solicited_receives(ctx: &Ctx) {
    let (solicited, _peer) = ends(ctx, DEFAULT, SOLICITED);
    let evd = solicited.recv.h();
    let (client, server) = (Conn::on(&solicited.ia), Conn::on(&solicited.ia));
    let param = DAT_EP_PARAM { recv_evd_handle: evd, ..client.ep.param() };
    ok(dat_ep_modify(client.ep.h(), DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
    server.listen(ctx.qual(1), || client.connect(&solicited.ia.address(), ctx.qual(1)));
    established(&client, &server);
    let (here, there) = (client.memory(64), server.memory(64));
    client.post_recv(1, here.segment(0, 8));
    let waiter = evd_waiter(evd, DAT_TIMEOUT_INFINITE, 1).inside(evd).asleep();
    server.post_send(21, there.segment(0, 8));
    let waited = waiter.join();
    assert_eq!((waited.code, waited.number, waited.more), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT, 0));
    expect_dto(server.request.h(), 21, DAT_DTO_SUCCESS, 8);
}

fn evd_flushes_of_solicited_or_unsignalled_receives_wake_the_waiter(ctx: &Ctx) {
    for (request, recv) in [(DEFAULT, SOLICITED), (DEFAULT, UNSIGNALLED)] {
        let (client, server) = ends(ctx, request, recv);
        let memory = client.memory(64);
        let flags = recv & UNSIGNALLED;
        ok(dat_ep_post_recv(client.ep.h(), 1, &mut memory.segment(0, 8), cookie(1), flags));
        let waiter = evd_waiter(client.recv.h(), DAT_TIMEOUT_INFINITE, 1).inside(client.recv.h()).asleep();
        server.disconnect();
        let waited = waiter.join();
        assert_eq!((waited.code, waited.number), (DAT_SUCCESS, DAT_DTO_COMPLETION_EVENT));
        client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
}

fn evd_unsignalled_completion_does_not_trigger_the_cno(ctx: &Ctx) {
    let (client, server) = ends(ctx, UNSIGNALLED, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    let cno = client.ia.cno();
    ok(dat_evd_modify_cno(client.request.h(), cno.h()));
    send(&client, &server, (&here, &there), 1, UNSIGNALLED);
    let mut evd = null_mut();
    expect(dat_cno_wait(cno.h(), 20_000, &mut evd), DAT_QUEUE_EMPTY);
    send(&client, &server, (&here, &there), 2, DEFAULT);
    ok(dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, &mut evd));
    assert_eq!(evd, client.request.h());
    for id in [1, 2] {
        let data = polled_event(client.request.h()).dto();
        check_dto(&data, id, DAT_DTO_SUCCESS, 8);
    }
    ok(dat_evd_modify_cno(client.request.h(), DAT_HANDLE_NULL));
}

fn evd_suppressed_success_queues_no_event(ctx: &Ctx) {
    let (client, server) = ends(ctx, DEFAULT, DEFAULT);
    let (here, there) = (client.memory(64), server.memory(64));
    let cno = client.ia.cno();
    ok(dat_evd_modify_cno(client.request.h(), cno.h()));
    for id in 1..=3 {
        send(&client, &server, (&here, &there), id, DAT_COMPLETION_SUPPRESS_FLAG);
    }
    let mut evd = null_mut();
    expect(dat_cno_wait(cno.h(), 20_000, &mut evd), DAT_QUEUE_EMPTY);
    expect_nothing(client.request.h());
    // A send without the flag queues its completion.
    send(&client, &server, (&here, &there), 4, DEFAULT);
    expect_dto(client.request.h(), 4, DAT_DTO_SUCCESS, 8);
    ok(dat_evd_modify_cno(client.request.h(), DAT_HANDLE_NULL));
}

/// Checks the error of a connection event that a full EVD cannot take.
fn overflows(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (evd, _filler) = full_evd(&ia, &pz, DAT_EVD_SOFTWARE_FLAG);
    let conn = Conn::on(&ia);
    let ep = ia.ep(&conn.pz, &conn.recv, &conn.request, &evd);
    let (address, forever, flags) = (ia.address(), DAT_TIMEOUT_INFINITE, DAT_CONNECT_DEFAULT_FLAG);
    ok(dat_ep_connect(ep.h(), address.pointer(), ctx.qual(9), forever, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    let error = expect_event(ia.errors(), SOON);
    error.is(DAT_ASYNC_ERROR_EVD_OVERFLOW);
    let data = error.asynchronous();
    assert_eq!((data.dat_handle, data.reason), (evd.h(), DAT_EVD_OVERFLOW_ERROR as DAT_COUNT));
    until(|| ep.state() == DAT_EP_STATE_DISCONNECTED);
    // The EVD remains usable after the overflow: queued events can be dequeued, and new events arrive.
    drain(ia.errors());
    let held = drain(evd.h());
    assert!(!held.is_empty());
    held.iter().for_each(|event| event.is(DAT_CONNECTION_EVENT_DISCONNECTED));
    evd.post(1);
    assert_eq!(expect_event(evd.h(), SOON).software().addr(), 1);
}
