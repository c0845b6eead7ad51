//! Connects with a timeout: each attempt has exactly one outcome, whether the reply or the timeout is first. The timer
//! ends with the attempt.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cases::ep::scene::{ConnectionRequest, silent_listener};
use crate::kit::*;

use super::call::Call;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 11": connect_timeout_without_an_answer_reports_timed_out_once,
        "spec/endpoints 4.3": connect_timeout_flushes_receives,
        "spec/endpoints 11": connect_timeout_permits_reset_and_another_connect,
        "spec/endpoints 11": connect_timeout_of_a_microsecond_is_reported,
        "spec/endpoints 13.32": connect_timeout_of_the_longest_finite_value_permits_the_connection,
        "spec/endpoints 11": connect_timeout_after_a_disconnect_queues_no_second_event,
        "spec/endpoints 11": connect_timeout_of_an_old_attempt_does_not_end_the_new_one,
        "spec/endpoints 11": connect_timeout_of_60_connects_is_reported_once_each,
        "spec/endpoints 11": connect_timeout_racing_with_the_ep_free_reports_one_event => local(connect_timeout_racing_with_the_ep_free_reports_one_event).limit(60),
        "spec/endpoints 11": connect_timeout_racing_with_the_accept_reports_one_outcome => pair(races_client, races_server).limit(60),
    ]
}

/// Connects with a timeout to the case's qualifier on the EP's own IA.
#[track_caller]
fn limited(ctx: &Ctx, conn: &Conn, timeout: DAT_TIMEOUT) {
    ok(Call { timeout, ..Call::to(&conn.ia, ctx.qual(0)) }.make(conn.ep.h()));
}

/// 20 ms, in microseconds.
const SHORT: DAT_TIMEOUT = 20_000;

fn connect_timeout_without_an_answer_reports_timed_out_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    limited(ctx, &conn, SHORT);
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_TIMED_OUT);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    assert_eq!(event.connection().private_data_size, 0);
    expect_quiet(conn.events.h(), Duration::from_millis(50));
}

fn connect_timeout_flushes_receives(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    limited(ctx, &conn, SHORT);
    conn.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    expect_flushed(&conn.recv, 1..=3);
}

fn connect_timeout_permits_reset_and_another_connect(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    limited(ctx, &client, SHORT);
    client.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    ok(dat_ep_reset(client.ep.h()));
    psp.free();
    let _psp = ia.psp(ctx.qual(0), &requests);
    ok(Call::to(&ia, ctx.qual(0)).carrying(b"again").make(client.ep.h()));
    // The request of the abandoned attempt may also reach the second listener, so requests without "again" are rejected
    // by their drop.
    loop {
        let request = ConnectionRequest::arrives(&requests);
        let param = request.param();
        if bytes_at(param.private_data, param.private_data_size as usize).starts_with(b"again") {
            request.accept(&server.ep);
            break;
        }
    }
    established(&client, &server);
}

fn connect_timeout_of_a_microsecond_is_reported(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    for _ in 0..50 {
        limited(ctx, &conn, 1);
        conn.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
        ok(dat_ep_reset(conn.ep.h()));
    }
    expect_nothing(conn.events.h());
}

fn connect_timeout_of_the_longest_finite_value_permits_the_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    limited(ctx, &client, DAT_TIMEOUT_INFINITE - 1);
    ConnectionRequest::arrives(&requests).accept(&server.ep);
    established(&client, &server);
}

fn connect_timeout_after_a_disconnect_queues_no_second_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    limited(ctx, &conn, 100_000);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    let number = expect_event(conn.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_TIMED_OUT].contains(&number));
    expect_quiet(conn.events.h(), Duration::from_millis(150));
}

fn connect_timeout_of_an_old_attempt_does_not_end_the_new_one(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    limited(ctx, &conn, 50_000);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    expect_event(conn.events.h(), SOON);
    ok(dat_ep_reset(conn.ep.h()));
    conn.connect(&ia.address(), ctx.qual(0));
    expect_quiet(conn.events.h(), Duration::from_millis(100));
    conn.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
}

fn connect_timeout_of_60_connects_is_reported_once_each(ctx: &Ctx) {
    const MANY: usize = 60;
    let ia = ctx.ia();
    let requests = ia.evd(MANY as DAT_COUNT, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    let (pz, dto) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG));
    let events = ia.evd(MANY as DAT_COUNT, DAT_EVD_CONNECTION_FLAG);
    let eps: Vec<Ep> = (0..MANY).map(|_| ia.ep(&pz, &dto, &dto, &events)).collect();
    for (n, ep) in eps.iter().enumerate() {
        let timeout = SHORT + (n as u32 % 7) * 1000;
        ok(Call { timeout, ..Call::to(&ia, ctx.qual(0)) }.make(ep.h()));
    }
    let mut counts = BTreeMap::new();
    for _ in 0..MANY {
        let event = expect_event(events.h(), SOON);
        event.is(DAT_CONNECTION_EVENT_TIMED_OUT);
        *counts.entry(event.connection().ep_handle).or_insert(0) += 1;
    }
    assert!(eps.iter().all(|ep| counts.get(&ep.h()) == Some(&1)));
    expect_nothing(events.h());
}

/// Whether the timeout or the free is first, there is one event and no crash.
fn connect_timeout_racing_with_the_ep_free_reports_one_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(512, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    let (pz, dto, events) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_CONNECTION_FLAG));
    for round in 0..200_u32 {
        let ep = ia.ep(&pz, &dto, &dto, &events);
        ok(Call { timeout: 1 + round * 3 % 200, ..Call::to(&ia, ctx.qual(0)) }.make(ep.h()));
        let handle = ep.free();
        let event = expect_event(events.h(), SOON);
        assert!([DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_TIMED_OUT].contains(&event.number()));
        assert_eq!(event.connection().ep_handle, handle);
        expect_nothing(events.h());
    }
}

const RACES: u32 = 200;

/// The timeout is about as long as a handshake, so either may be first: each attempt has exactly one outcome.
fn races_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    let attempt = |timeout, data: &[u8]| {
        let call = Call { address: Some(address.clone()), timeout, ..Call::to(&conn.ia, ctx.qual(0)).carrying(data) };
        ok(call.make(conn.ep.h()));
        let event = expect_event(conn.events.h(), SOON);
        if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
            conn.disconnect();
        } else {
            event.is(DAT_CONNECTION_EVENT_TIMED_OUT);
        }
        conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
        ok(dat_ep_reset(conn.ep.h()));
        expect_nothing(conn.events.h());
    };
    let began = Instant::now();
    (0..8).for_each(|_| attempt(DAT_TIMEOUT_INFINITE, b"race"));
    let usual = micros(began.elapsed() / 8);
    for round in 0..RACES {
        attempt(1 + usual / 4 + usual * (round % 50) / 50, b"race");
    }
    attempt(DAT_TIMEOUT_INFINITE, b"last");
    ctx.meet();
    expect_nothing(conn.events.h());
}

fn races_server(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG));
    let events = ia.evd(1000, DAT_EVD_CONNECTION_FLAG);
    let requests = ia.evd(512, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let mut eps = Vec::new();
    let mut is_last = false;
    while !is_last {
        let request = ConnectionRequest::arrives(&requests);
        let param = request.param();
        is_last = bytes_at(param.private_data, 4) == b"last";
        let ep = ia.ep(&pz, &dto, &dto, &events);
        request.accept(&ep);
        eps.push(ep);
    }
    // Collects events until each EP has reported the end of its connection.
    let mut stories: BTreeMap<DAT_EP_HANDLE, Vec<DAT_EVENT_NUMBER>> = BTreeMap::new();
    let is_reported = |story: &Vec<u32>| story.last().is_some_and(|last| *last > DAT_CONNECTION_EVENT_ESTABLISHED);
    while stories.values().filter(|story| is_reported(story)).count() < eps.len() {
        let event = expect_event(events.h(), SOON);
        stories.entry(event.connection().ep_handle).or_default().push(event.number());
    }
    let whole = [DAT_CONNECTION_EVENT_ESTABLISHED, DAT_CONNECTION_EVENT_DISCONNECTED];
    let failed = [DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR];
    // A requester that times out after the accept, but before its own ESTABLISHED event, ends the connection: the
    // acceptor then gets only DISCONNECTED.
    let withdrawn = [DAT_CONNECTION_EVENT_DISCONNECTED];
    for ep in &eps {
        let story = stories.get(&ep.h()).map_or(&[][..], |story| story);
        assert!([&whole[..], &failed, &withdrawn].contains(&story), "unexpected events of an accepted EP: {story:x?}");
        ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    }
    ctx.meet();
    expect_nothing(events.h());
}
