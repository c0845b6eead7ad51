//! Connections that a failed transfer breaks, and full connect EVDs. The EP state is visible no later than the event.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::State::*;
use crate::cases::ep::scene::{Request, Scene, full_evd, silent_listener};
use crate::kit::*;

use super::call::Call;
use super::disconnect::{cookies, is_over};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 8.4": broken_by_a_write_to_nowhere,
        "spec/endpoints 14.37": broken_with_and_without_a_poller,
        "spec/endpoints 8.4": broken_by_an_invalid_local_key,
        "spec/endpoints 8.4": broken_by_a_message_too_long,
        "spec/endpoints 4.3": broken_flushes_later_posts_in_order,
        "spec/endpoints 8.4": broken_then_disconnect_reports_no_event,
        "spec/endpoints 8.4": broken_then_reset_and_connect,
        "spec/endpoints 8.5": lost_established_of_the_active_end_tears_down => local(lost_active).limit(60),
        "spec/endpoints 14.34": lost_established_of_the_passive_end_tears_down => local(lost_passive).limit(60),
        "spec/endpoints 13.33": over_before_the_first_event_was_read,
    ]
}

/// Writes to an address that the peer never exported.
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

fn broken_with_and_without_a_poller(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    let memory = near.memory(64);
    write_nowhere(&near, &memory, 1);
    is_broken(&near);
    is_over(&far);
}

fn broken_by_an_invalid_local_key(ctx: &Ctx) {
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
    // The sender sees its own request fail, or sees the peer disconnect first.
    let number = expect_event(near.events.h(), SOON).number();
    assert!([DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED].contains(&number));
    near.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(near.events.h());
}

fn broken_flushes_later_posts_in_order(ctx: &Ctx) {
    let (near, _far) = ctx.loopback();
    let memory = near.memory(64);
    (1..=3).for_each(|id| post_empty_recv(&near, id));
    write_nowhere(&near, &memory, 4);
    // The peer has no receive, so none of the sends 5 to 8 can succeed.
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

fn broken_then_disconnect_reports_no_event(ctx: &Ctx) {
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

/// An EP whose connect EVD is full. Fields are declared in the order in which they must be dropped.
struct FullConnectEvd {
    ep: Ep,
    _filler: Ep,
    events: Evd,
    other: Conn,
}

fn full(ia: &Ia) -> FullConnectEvd {
    let other = Conn::on(ia);
    let (events, filler) = full_evd(ia, &other.pz, 0);
    let ep = ia.ep(&other.pz, &other.recv, &other.request, &events);
    FullConnectEvd { ep, _filler: filler, events, other }
}

/// A connection whose event cannot be queued ends. Its EVD reports the overflow and remains usable.
fn ends_connection(ctx: &Ctx, ia: &Ia, full: &FullConnectEvd, connects: impl Fn(&Ep, &Ep), is_active: bool) {
    let (near, far) = if is_active { (&full.ep, &full.other.ep) } else { (&full.other.ep, &full.ep) };
    connects(near, far);
    let event = expect_event(ia.errors(), SOON);
    event.is(DAT_ASYNC_ERROR_EVD_OVERFLOW);
    assert_eq!(event.asynchronous().dat_handle, full.events.h());
    let mut story = vec![expect_event(full.other.events.h(), SOON).number()];
    if story[0] == DAT_CONNECTION_EVENT_ESTABLISHED {
        story.push(expect_event(full.other.events.h(), SOON).number());
    }
    assert!(story.last().is_some_and(|last| *last > DAT_CONNECTION_EVENT_ESTABLISHED), "{story:x?}");
    full.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    assert!(drain(full.events.h()).iter().all(|event| event.connection().ep_handle != full.ep.h()));
    ctx.step("again, with space");
    ok(dat_ep_reset(full.ep.h()));
    ok(dat_ep_reset(full.other.ep.h()));
    drain(ia.errors());
    connects(near, far);
    expect_conn(full.events.h(), full.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    full.other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

fn lost(ctx: &Ctx, is_active: bool) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let full = full(&ia);
    let connects = |near: &Ep, far: &Ep| {
        ok(Call::to(&ia, ctx.qual(0)).make(near.h()));
        Request::arrives(&requests).accept(far);
    };
    ends_connection(ctx, &ia, &full, connects, is_active);
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
    // ESTABLISHED still precedes the disconnect event, although the EP state already shows the disconnect.
    let first = expect_event(far.events.h(), SOON);
    if first.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
        far.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(far.events.h());
}
