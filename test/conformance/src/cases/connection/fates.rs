//! What happens to attempts and connections from within: time-outs, failed transfers, deaths, lost events, crowds. Each attempt
//! has one end, and the state can be seen when its event can. Cases only.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::cases::ep::scene::State::*;
use crate::cases::ep::scene::{Request, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::connect::Call;
use super::disconnect::{cookies, is_over};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "endpoints 11": timeout_without_answer_is_timed_out_once,
        "endpoints 4.3": timeout_flushes_receives,
        "endpoints 11": timeout_then_reset_and_connect,
        "endpoints 11": timeout_of_a_microsecond,
        "endpoints 13.32": timeout_longest_but_infinite_is_no_hindrance,
        "endpoints 11": timeout_ends_with_the_disconnect,
        "endpoints 11": timeout_of_an_old_attempt_does_not_end_the_new_one,
        "endpoints 11": timeout_of_many_each_once,
        "endpoints 11": timeout_races_with_the_free => local(timeout_races_with_the_free).limit(60),
        "endpoints 11": timeout_races_with_the_answer => pair(races_near, races_far).limit(60),
        "endpoints 4.4": death_of_the_requester_then_accept => pair(asks_and_dies, accepts_the_dead).only_two(),
        "endpoints 4.4": death_of_the_requester_then_reject => pair(asks_and_dies, rejects_the_dead).only_two(),
        "endpoints 8.1": death_of_the_listener_is_peer_rejected => pair(left_alone, dies_undecided).only_two(),
        "endpoints 8.1": death_of_the_passive_end_is_disconnected => pair(survives, dies).only_two(),
        "endpoints 8.1": death_of_the_active_end_is_disconnected => pair(dies, survives).only_two(),
        "endpoints 4.2": death_of_the_peer_ends_a_graceful_disconnect => pair(drains, dies).only_two(),
        "endpoints 6.1": death_of_the_listener_frees_its_qualifier => pair(takes_over, dies_listening).only_two(),
        "consumers 14": exit_with_everything_open_is_disconnected => pair(survives, exits).only_two(),
        "endpoints 13.30": close_of_the_ia_is_disconnected => pair(survives, closes),
        "endpoints 13.30": close_of_the_ia_refuses_its_requests => pair(is_refused, closes_undecided),
        "endpoints 8.4": broken_by_a_write_to_nowhere,
        "endpoints 14.37": broken_whether_or_not_anybody_polls,
        "endpoints 8.4": broken_by_a_local_key_that_is_none,
        "endpoints 8.4": broken_by_a_message_too_long,
        "endpoints 4.3": broken_flushes_what_follows_in_order,
        "endpoints 8.4": broken_then_disconnect_is_silent,
        "endpoints 8.4": broken_then_reset_and_connect,
        "endpoints 8.5": lost_established_of_the_active_end_tears_down => local(lost_active).limit(60),
        "endpoints 14.34": lost_established_of_the_passive_end_tears_down => local(lost_passive).limit(60),
        "endpoints 13.33": over_before_the_first_event_was_read,
        "endpoints 13.7": many_endpoints_on_one_evd => pair(crowd_near, crowd_far).limit(60),
        "endpoints 4.2": many_threads_connect => pair(threads_near, threads_far).limit(60),
    ]
}

/// Connects to a silent listener with a limit.
#[track_caller]
fn limited(ctx: &Ctx, conn: &Conn, timeout: DAT_TIMEOUT) {
    ok(Call { timeout, ..Call::to(&conn.ia, ctx.qual(0)) }.make(conn.ep.h()));
}

/// 20 ms.
const SHORT: DAT_TIMEOUT = 20_000;

fn timeout_without_answer_is_timed_out_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    limited(ctx, &conn, SHORT);
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_TIMED_OUT);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    assert_eq!(event.connection().private_data_size, 0);
    expect_quiet(conn.events.h(), Duration::from_millis(50));
}

fn timeout_flushes_receives(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    limited(ctx, &conn, SHORT);
    conn.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    expect_flushed(&conn.recv, 1..=3);
}

fn timeout_then_reset_and_connect(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    limited(ctx, &near, SHORT);
    near.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    ok(dat_ep_reset(near.ep.h()));
    psp.free();
    drain(requests.h());
    far.listen(ctx.qual(0), || near.connect(&ia.address(), ctx.qual(0)));
    established(&near, &far);
}

fn timeout_of_a_microsecond(ctx: &Ctx) {
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

fn timeout_longest_but_infinite_is_no_hindrance(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    limited(ctx, &near, DAT_TIMEOUT_INFINITE - 1);
    Request::arrives(&requests).accept(&far.ep);
    established(&near, &far);
}

fn timeout_ends_with_the_disconnect(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    let conn = Conn::on(&ia);
    limited(ctx, &conn, 100_000);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    let number = expect_event(conn.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_TIMED_OUT].contains(&number));
    expect_quiet(conn.events.h(), Duration::from_millis(150));
}

fn timeout_of_an_old_attempt_does_not_end_the_new_one(ctx: &Ctx) {
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

fn timeout_of_many_each_once(ctx: &Ctx) {
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
    let mut told = BTreeMap::new();
    for _ in 0..MANY {
        let event = expect_event(events.h(), SOON);
        event.is(DAT_CONNECTION_EVENT_TIMED_OUT);
        *told.entry(event.connection().ep_handle).or_insert(0) += 1;
    }
    assert!(eps.iter().all(|ep| told.get(&ep.h()) == Some(&1)));
    expect_nothing(events.h());
}

/// Whoever wins, there is one event and no crash.
fn timeout_races_with_the_free(ctx: &Ctx) {
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

/// A time limit near the time that an answer takes: one outcome each.
fn races_near(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.hear_address();
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

fn races_far(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG));
    let events = ia.evd(1000, DAT_EVD_CONNECTION_FLAG);
    let requests = ia.evd(512, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    ctx.tell_address(&ia);
    let mut eps = Vec::new();
    let mut is_last = false;
    while !is_last {
        let request = Request::arrives(&requests);
        let param = request.param();
        is_last = bytes_at(param.private_data, 4) == b"last";
        let ep = ia.ep(&pz, &dto, &dto, &events);
        request.accept(&ep);
        eps.push(ep);
    }
    // Each: ESTABLISHED and DISCONNECTED, or ACCEPT_COMPLETION_ERROR alone.
    let mut stories: BTreeMap<DAT_EP_HANDLE, Vec<DAT_EVENT_NUMBER>> = BTreeMap::new();
    let is_told = |story: &Vec<u32>| story.last().is_some_and(|last| *last > DAT_CONNECTION_EVENT_ESTABLISHED);
    while stories.values().filter(|story| is_told(story)).count() < eps.len() {
        let event = expect_event(events.h(), SOON);
        stories.entry(event.connection().ep_handle).or_default().push(event.number());
    }
    let whole = [DAT_CONNECTION_EVENT_ESTABLISHED, DAT_CONNECTION_EVENT_DISCONNECTED];
    let failed = [DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR];
    // A requester may leave between the acceptance and its own ESTABLISHED.
    let withdrawn = [DAT_CONNECTION_EVENT_DISCONNECTED];
    for ep in &eps {
        let story = stories.get(&ep.h()).map_or(&[][..], |story| story);
        assert!([&whole[..], &failed, &withdrawn].contains(&story), "{story:x?}");
        ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    }
    ctx.meet();
    expect_nothing(events.h());
}

fn asks_and_dies(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.hear_address(), ctx.qual(0));
    ctx.meet(); // the request has come
    ctx.die();
}

/// The request of a process that is gone.
fn of_the_dead(ctx: &Ctx, conn: &Conn) -> Request {
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.tell_address(&conn.ia);
    let request = Request::arrives(&requests);
    ctx.meet();
    is_gone(ctx);
    expect_nothing(conn.events.h());
    request.param();
    request
}

/// The other process has ended: its end of the channel is closed.
fn is_gone(ctx: &Ctx) {
    use std::io::Read;
    let mut channel = ctx.channel.as_ref().expect("a pair");
    let _ = channel.set_read_timeout(Some(ctx.left().max(Duration::from_millis(1))));
    let end = channel.read(&mut [0; 1]);
    assert!(matches!(end, Ok(0) | Err(_)), "the other role is alive");
}

fn accepts_the_dead(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let request = of_the_dead(ctx, &conn);
    post_empty_recv(&conn, 1);
    request.accept(&conn.ep);
    conn.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&conn.recv, [1]);
    expect_nothing(conn.events.h());
}

fn rejects_the_dead(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    of_the_dead(ctx, &conn).reject();
}

fn left_alone(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    conn.connect(&ctx.hear_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&conn.recv, [1]);
    expect_nothing(conn.events.h());
}

fn dies_undecided(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.tell_address(&ia);
    let _request = Request::arrives(&requests);
    ctx.die();
}

fn dies(ctx: &Ctx) {
    let _conn = ctx.connect();
    ctx.meet();
    ctx.die();
}

/// What is posted comes back, and the end is told once.
fn survives(ctx: &Ctx) {
    let conn = ctx.connect();
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    (4..=5).for_each(|id| post_empty_send(&conn, id));
    ctx.meet();
    is_over(&conn);
    expect_flushed(&conn.recv, 1..=3);
    expect_flushed(&conn.request, 4..=5);
    expect_nothing(conn.events.h());
    ok(dat_ep_reset(conn.ep.h()));
}

fn drains(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_send(&conn, 1);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    ctx.meet();
    is_over(&conn);
    // It failed or was flushed; success it was not.
    assert_ne!(expect_event(conn.request.h(), SOON).dto().status, DAT_DTO_SUCCESS);
}

fn dies_listening(ctx: &Ctx) {
    let ia = ctx.ia();
    let (_requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.meet();
    ctx.die();
}

fn takes_over(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_CR_FLAG);
    ctx.meet();
    is_gone(ctx);
    let mut psp = DAT_HANDLE_NULL;
    while dat_psp_create(ia.h(), ctx.qual(0), evd.h(), DAT_PSP_CONSUMER_FLAG, &mut psp) != DAT_SUCCESS {
        assert!(!ctx.left().is_zero(), "its qualifier is never free again");
        std::thread::yield_now();
    }
    drop(Psp::own(psp));
}

fn exits(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    std::mem::forget(conn);
}

fn closes(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    ok(dat_ia_close(conn.ia.h(), DAT_CLOSE_ABRUPT_FLAG));
    // All its handles are dead.
    std::mem::forget(conn);
}

fn is_refused(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.hear_address(), ctx.qual(0));
    let number = expect_event(conn.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_PEER_REJECTED, DAT_CONNECTION_EVENT_NON_PEER_REJECTED].contains(&number));
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn closes_undecided(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    ctx.tell_address(&ia);
    let request = Request::arrives(&requests);
    ok(dat_ia_close(ia.h(), DAT_CLOSE_ABRUPT_FLAG));
    // All its handles are dead.
    request.leak();
    psp.leak();
    requests.leak();
    std::mem::forget(ia);
}

/// A write to memory that the peer never gave out.
fn write_nowhere(conn: &Conn, memory: &Memory, id: u64) {
    let nowhere = DAT_RMR_TRIPLET { rmr_context: 0x7777_7777, pad: 0, target_address: 4096, segment_length: 64 };
    conn.post_write(id, memory.segment(0, 64), nowhere);
}

#[track_caller]
fn is_broken(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn broken_by_a_write_to_nowhere(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    let memory = near.memory(64);
    write_nowhere(&near, &memory, 1);
    expect_dto(near.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    is_broken(&near);
    is_over(&far);
}

fn broken_whether_or_not_anybody_polls(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    let memory = near.memory(64);
    write_nowhere(&near, &memory, 1);
    is_broken(&near);
    is_over(&far);
}

fn broken_by_a_local_key_that_is_none(ctx: &Ctx) {
    let (near, _far) = ctx.loopback();
    let memory = near.memory(64);
    near.post_send(1, DAT_LMR_TRIPLET { lmr_context: 0x7777_7777, ..memory.segment(0, 64) });
    expect_dto(near.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    is_broken(&near);
}

fn broken_by_a_message_too_long(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    let (from, into) = (near.memory(64), far.memory(64));
    far.post_recv(1, into.segment(0, 8));
    near.post_send(2, from.segment(0, 64));
    expect_dto(far.recv.h(), 1, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    is_broken(&far);
    // The sender: a failure of its own request, or the end by the peer.
    let number = expect_event(near.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED].contains(&number));
    near.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(near.events.h());
}

fn broken_flushes_what_follows_in_order(ctx: &Ctx) {
    let (near, _far) = ctx.loopback();
    let memory = near.memory(64);
    (1..=3).for_each(|id| post_empty_recv(&near, id));
    write_nowhere(&near, &memory, 4);
    // Without a receive at the peer none of these can succeed.
    (5..=8).for_each(|id| {
        let code = dat_ep_post_send(near.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_SUPPRESS_FLAG);
        ok(code);
    });
    is_broken(&near);
    expect_dto(near.request.h(), 4, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_flushed(&near.request, 5..=8);
    expect_flushed(&near.recv, 1..=3);
    assert!(cookies(&drain(near.request.h())).is_empty());
}

fn broken_then_disconnect_is_silent(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    let memory = near.memory(64);
    write_nowhere(&near, &memory, 1);
    is_broken(&near);
    is_over(&far);
    for conn in [&near, &far] {
        ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        expect_nothing(conn.events.h());
    }
}

fn broken_then_reset_and_connect(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    for _ in 0..10 {
        let memory = near.memory(64);
        write_nowhere(&near, &memory, 1);
        is_broken(&near);
        is_over(&far);
        ok(dat_ep_reset(near.ep.h()));
        ok(dat_ep_reset(far.ep.h()));
        expect_dto(near.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
        far.listen(ctx.qual(0), || near.connect(&near.ia.address(), ctx.qual(0)));
        established(&near, &far);
    }
}

/// An EP whose connect EVD is full. Declared in the order in which things must go.
struct Deaf {
    ep: Ep,
    _filler: Ep,
    events: Evd,
    other: Conn,
}

fn deaf(ia: &Ia) -> Deaf {
    let other = Conn::on(ia);
    let (events, filler) = full_evd(ia, &other.pz, 0);
    let ep = ia.ep(&other.pz, &other.recv, &other.request, &events);
    Deaf { ep, _filler: filler, events, other }
}

/// The connection that nobody can be told of ends; its EVD says so, and works on.
fn tears_down(ctx: &Ctx, ia: &Ia, deaf: &Deaf, connects: impl Fn(&Ep, &Ep), is_active: bool) {
    let (near, far) = if is_active { (&deaf.ep, &deaf.other.ep) } else { (&deaf.other.ep, &deaf.ep) };
    connects(near, far);
    let event = expect_event(ia.errors(), SOON);
    event.is(DAT_ASYNC_ERROR_EVD_OVERFLOW);
    assert_eq!(event.asynchronous().dat_handle, deaf.events.h());
    let mut story = vec![expect_event(deaf.other.events.h(), SOON).number()];
    if story[0] == DAT_CONNECTION_EVENT_ESTABLISHED {
        story.push(expect_event(deaf.other.events.h(), SOON).number());
    }
    assert!(story.last().is_some_and(|last| *last > DAT_CONNECTION_EVENT_ESTABLISHED), "{story:x?}");
    deaf.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    assert!(drain(deaf.events.h()).iter().all(|event| event.connection().ep_handle != deaf.ep.h()));
    ctx.step("again, with room");
    ok(dat_ep_reset(deaf.ep.h()));
    ok(dat_ep_reset(deaf.other.ep.h()));
    drain(ia.errors());
    connects(near, far);
    expect_conn(deaf.events.h(), deaf.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    deaf.other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

fn lost(ctx: &Ctx, is_active: bool) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let deaf = deaf(&ia);
    let connects = |near: &Ep, far: &Ep| {
        ok(Call::to(&ia, ctx.qual(0)).make(near.h()));
        Request::arrives(&requests).accept(far);
    };
    tears_down(ctx, &ia, &deaf, connects, is_active);
}

fn lost_active(ctx: &Ctx) {
    lost(ctx, true);
}

fn lost_passive(ctx: &Ctx) {
    lost(ctx, false);
}

fn over_before_the_first_event_was_read(ctx: &Ctx) {
    let (near, far) = {
        let scene = Scene::new(ctx, Active);
        let Scene { own, request, .. } = scene;
        let far = Conn::on(&own.ia);
        request.expect("it came").accept(&far.ep);
        (own, far)
    };
    near.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    near.disconnect();
    while far.ep.state() != DAT_EP_STATE_DISCONNECTED {
        std::thread::yield_now();
    }
    // In order, though the state shows the end.
    let first = expect_event(far.events.h(), SOON);
    if first.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
        far.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(far.events.h());
}

const CROWD: usize = 40;

/// dtestcm: a burst of connects on one EVD of twice as many events, a DTO EVD of one; EPs are freed in the event loop.
fn crowd_near(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(1, DAT_EVD_DTO_FLAG));
    let events = ia.evd(2 * CROWD as DAT_COUNT, DAT_EVD_CONNECTION_FLAG);
    let address = ctx.hear_address();
    let mut eps: BTreeMap<DAT_EP_HANDLE, Ep> = (0..CROWD)
        .map(|_| {
            let ep = ia.ep(&pz, &dto, &dto, &events);
            (ep.h(), ep)
        })
        .collect();
    for ep in eps.values() {
        ok(Call { address: Some(address.clone()), ..Call::to(&ia, ctx.qual(0)) }.make(ep.h()));
    }
    let mut stood = 0;
    while !eps.is_empty() {
        let event = expect_event(events.h(), SOON);
        if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
            stood += 1;
            ok(dat_ep_disconnect(event.connection().ep_handle, DAT_CLOSE_DEFAULT));
        } else {
            take_ended(&event, &mut eps).free();
        }
    }
    assert_eq!(stood, CROWD, "each one began");
    expect_nothing(events.h());
    events.free();
    ctx.meet();
}

/// The EP that this DISCONNECTED is of.
fn take_ended(event: &Event, eps: &mut BTreeMap<DAT_EP_HANDLE, Ep>) -> Ep {
    event.is(DAT_CONNECTION_EVENT_DISCONNECTED);
    eps.remove(&event.connection().ep_handle).expect("a known EP, once")
}

fn crowd_far(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dto) = (ia.pz(), ia.evd(1, DAT_EVD_DTO_FLAG));
    let events = ia.evd(2 * CROWD as DAT_COUNT, DAT_EVD_CONNECTION_FLAG);
    let requests = ia.evd(CROWD as DAT_COUNT, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.tell_address(&ia);
    let mut eps = BTreeMap::new();
    for _ in 0..CROWD {
        let ep = ia.ep(&pz, &dto, &dto, &events);
        Request::arrives(&requests).accept(&ep);
        eps.insert(ep.h(), ep);
    }
    let mut stood = 0;
    while !eps.is_empty() {
        let event = expect_event(events.h(), SOON);
        if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
            stood += 1;
        } else {
            take_ended(&event, &mut eps).free();
        }
    }
    assert_eq!(stood, CROWD, "each one began");
    psp.free();
    requests.free();
    expect_nothing(events.h());
    events.free();
    ctx.meet();
}

const THREADS: usize = 4;
const EACH: usize = 20;

fn threads_near(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.hear_address();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let conn = Conn::on(&ia);
                for _ in 0..EACH {
                    conn.connect(&address, ctx.qual(0));
                    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
                    conn.disconnect();
                    ok(dat_ep_reset(conn.ep.h()));
                }
            });
        }
    });
    ctx.meet();
}

fn threads_far(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(64, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(ctx.qual(0), &requests);
    ctx.tell_address(&ia);
    std::thread::scope(|scope| {
        for _ in 0..THREADS * EACH {
            let request = Handle::of(Request::arrives(&requests).leak());
            scope.spawn({
                let ia = ia.clone();
                move || {
                    let conn = Conn::on(&ia);
                    Request::own(request.h()).accept(&conn.ep);
                    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
                    is_over(&conn);
                }
            });
        }
    });
    ctx.meet();
}
