//! Connection requests: what they show, how they are answered, handed on, left by their requesters; private data both ways.
//! Cases only.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::State::*;
use crate::cases::ep::scene::{Request, Scene, silent_listener};
use crate::kit::*;

use super::connect::Call;
use super::disconnect::is_over;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "endpoints 7.2": cr_query_without_room_is_arg3,
        "endpoints 7.2": cr_query_writes_all_whatever_the_mask,
        "endpoints 14.22": cr_query_tells_the_requesters_address,
        "consumers 9": cr_query_data_is_aligned_and_zero_behind,
        "endpoints 13.3": cr_accept_takes_the_requests_own_data_back,
        "endpoints 7.2": cr_is_dead_after_the_accept,
        "endpoints 7.2": cr_is_dead_after_the_rejection,
        "endpoints 8.1": cr_reject_is_peer_rejected => pair(is_rejected, rejects),
        "endpoints 4.3": cr_reject_flushes_the_requesters_receives,
        "endpoints 13.13": cr_reject_then_reset_and_retry,
        "endpoints 7.3": cr_accept_refusals_leave_it_usable,
        "endpoints 7.3": cr_accept_checks_in_order,
        "endpoints 14.10": cr_accept_with_too_much_data_leaves_it_usable,
        "endpoints 7.3": cr_accept_into_an_ep_without_pz,
        "endpoints 7.3": cr_accept_into_an_ep_without_connect_evd,
        "consumers 10": cr_accept_again_after_the_ep_was_reset,
        "endpoints 13.36": cr_accept_of_crossed_connects => pair(wins, loses),
        "consumers 11": cr_answers_in_any_order,
        "endpoints 4.4": cr_left_query_succeeds,
        "endpoints 4.4": cr_left_reject_succeeds,
        "endpoints 4.4": cr_left_reject_gives_the_rsp_ep_back,
        "endpoints 4.4": cr_left_accept_is_accept_completion_error,
        "endpoints 4.4": cr_left_accept_of_the_rsp_ep_is_accept_completion_error,
        "endpoints 4.4": cr_left_by_a_free_then_accepted,
        "endpoints 4.4": cr_left_by_a_timeout_then_accepted,
        "endpoints 4.4": cr_left_ep_connects_again_after_a_reset,
        "endpoints 7.5": cr_handoff_to_another_point,
        "endpoints 7.5": cr_handoff_to_a_reserved_point,
        "endpoints 7.5": cr_handoff_to_the_requesters_process => pair(takes_it_itself, hands_it_back),
        "endpoints 7.5": cr_handoff_to_nobody_leaves_it_usable,
        "endpoints 7.5": cr_handoff_to_qualifier_zero_leaves_it_usable,
        "endpoints 7.5": cr_handoff_of_no_request_is_invalid_handle,
        "endpoints 7.5": cr_handoff_gives_the_rsp_ep_back,
        "endpoints 7.5": cr_handoff_twice,
        "endpoints 13.12": private_data_of_the_passive_established_is_none => pair(sends_48, takes_48),
        "endpoints 8.3": private_data_of_failures_is_none,
        "endpoints 9.3": private_data_is_the_callers_again_at_once,
        "consumers 9": private_data_at_least_64_bytes,
        "endpoints 9.2": private_data_of_an_accept_at_its_limit,
        "endpoints 9.2": private_data_of_the_next_connection_has_no_leftovers,
    ];
    let sizes = [0, 1, 4, 8, 30, 32, 36, 48, 63, 64];
    all.extend(sizes.map(|size| {
        let name = format!("private_data_of_{size}_bytes_both_ways");
        let case = pair(move |ctx| sends(ctx, size), move |ctx| answers(ctx, size));
        case.named(name).proves("endpoints 9.2")
    }));
    all
}

/// A request that waits, and who asks.
struct Asked {
    request: Request,
    near: Conn,
    far: Conn,
    psp: Psp,
    requests: Evd,
    ia: Ia,
}

#[track_caller]
fn asked(ctx: &Ctx, data: &[u8]) -> Asked {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, psp) = silent_listener(ctx, &ia, 0);
    ok(Call::to(&ia, ctx.qual(0)).carrying(data).make(near.ep.h()));
    Asked { request: Request::arrives(&requests), near, far, psp, requests, ia }
}

#[track_caller]
fn accepted(request: Request, near: &Conn, far: &Conn) {
    request.accept(&far.ep);
    established(near, far);
}

#[track_caller]
fn data_of(request: &Request) -> Vec<u8> {
    let param = request.param();
    bytes_at(param.private_data, param.private_data_size as usize)
}

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(3).wrapping_add(seed) | 1).collect()
}

fn cr_query_without_room_is_arg3(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    bad_arg(dat_cr_query(asked.request.h(), DAT_CR_FIELD_ALL, null_mut()), 3);
}

fn cr_query_writes_all_whatever_the_mask(ctx: &Ctx) {
    let asked = asked(ctx, &pattern(20, 1));
    for mask in [0, DAT_CR_FIELD_ALL, DAT_CR_FIELD_PRIVATE_DATA, 0x4000_0000] {
        let param: DAT_CR_PARAM = filled(|out| dat_cr_query(asked.request.h(), mask, out));
        assert_eq!(param.private_data_size, 20);
        assert_eq!(bytes_at(param.private_data, 20), pattern(20, 1));
        assert!(!param.remote_ia_address_ptr.is_null() && param.local_ep_handle.is_null());
    }
}

fn cr_query_tells_the_requesters_address(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    let theirs = address_at(asked.request.param().remote_ia_address_ptr);
    let own = address_at(asked.ia.attr().ia_address_ptr);
    assert_eq!((&theirs[..2], &theirs[4..8]), (&own[..2], &own[4..8]), "family and host");
}

fn cr_query_data_is_aligned_and_zero_behind(ctx: &Ctx) {
    let asked = asked(ctx, &pattern(5, 9));
    let param = asked.request.param();
    assert_eq!(param.private_data.addr() % 8, 0);
    let all = bytes_at(param.private_data, 256);
    assert_eq!(all[..5], pattern(5, 9));
    assert!(all[5..].iter().all(|byte| *byte == 0), "programs read on behind the size");
}

/// Edited in place, and passed on to the accept.
fn cr_accept_takes_the_requests_own_data_back(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &pattern(32, 5));
    let data = request.param().private_data;
    write_at(data, &pattern(32, 77));
    ok(dat_cr_accept(request.leak(), far.ep.h(), 32, data));
    let event = expect_conn(near.events.h(), near.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(event.private_data(), pattern(32, 77));
    far.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    // The request's storage lasts as long as the connection.
    assert_eq!(bytes_at(data, 32), pattern(32, 77));
}

#[track_caller]
fn is_dead(cr: DAT_CR_HANDLE, ep: DAT_EP_HANDLE) {
    bad_handle(untouched(|out| dat_cr_query(cr, DAT_CR_FIELD_ALL, out)), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_accept(cr, ep, 0, null_mut()), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_reject(cr), DAT_INVALID_HANDLE_CR);
    bad_handle(dat_cr_handoff(cr, 1), DAT_INVALID_HANDLE_CR);
}

fn cr_is_dead_after_the_accept(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let (cr, spare) = (request.h(), Conn::on(&ia));
    accepted(request, &near, &far);
    is_dead(cr, spare.ep.h());
    spare.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn cr_is_dead_after_the_rejection(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let cr = request.h();
    request.reject();
    is_dead(cr, far.ep.h());
    near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

fn is_rejected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.hear_address(), ctx.qual(0));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_PEER_REJECTED);
    assert_eq!(event.connection().private_data_size, 0);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
    ctx.meet();
}

fn rejects(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.tell_address(&ia);
    Request::arrives(&requests).reject();
    ctx.meet();
}

fn cr_reject_flushes_the_requesters_receives(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    (1..=3).for_each(|id| post_empty_recv(&asked.near, id));
    asked.request.reject();
    asked.near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    expect_flushed(&asked.near.recv, 1..=3);
}

/// dapltest's client: reset, drain until empty, post again, connect again.
fn cr_reject_then_reset_and_retry(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    for _ in 0..8 {
        (1..=2).for_each(|id| post_empty_recv(&near, id));
        near.connect(&ia.address(), ctx.qual(0));
        Request::arrives(&requests).reject();
        near.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
        ok(dat_ep_reset(near.ep.h()));
        assert_eq!(drain(near.recv.h()).len(), 2, "all or nothing");
    }
    near.connect(&ia.address(), ctx.qual(0));
    accepted(Request::arrives(&requests), &near, &far);
}

fn cr_accept_refusals_leave_it_usable(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &pattern(10, 2));
    let (cr, ep, mut byte) = (request.h(), far.ep.h(), [0_u8; 4096]);
    let data = byte.as_mut_ptr().cast();
    bad_handle(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_handle(dat_cr_accept(cr, ia.pz().h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_handle(dat_cr_accept(cr, cr, 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_arg(dat_cr_accept(cr, ep, 4, null_mut()), 4);
    bad_arg(dat_cr_accept(cr, ep, -1, data), 3);
    bad_arg(dat_cr_accept(cr, ep, DAT_COUNT::MAX, data), 3);
    let code = dat_cr_accept(cr, near.ep.h(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
    far.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    near.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    expect_nothing(far.events.h());
    assert_eq!(data_of(&request), pattern(10, 2));
    accepted(request, &near, &far);
}

fn cr_accept_checks_in_order(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    let (cr, near) = (asked.request.h(), asked.near.ep.h());
    bad_handle(dat_cr_accept(cr, DAT_HANDLE_NULL, -1, null_mut()), DAT_INVALID_HANDLE_EP);
    bad_arg(dat_cr_accept(cr, near, DAT_COUNT::MAX, null_mut()), 4);
    // The size before the state.
    let mut byte = [0_u8; 16];
    bad_arg(dat_cr_accept(cr, near, DAT_COUNT::MAX, byte.as_mut_ptr().cast()), 3);
}

/// Bytes of private data with an accept, whatever the provider (endpoints 9.1).
const ACCEPT_LIMIT: usize = 196;

fn cr_accept_with_too_much_data_leaves_it_usable(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let mut data = pattern(4096, 1);
    let size = ACCEPT_LIMIT as DAT_COUNT + 1;
    bad_arg(dat_cr_accept(request.h(), far.ep.h(), size, data.as_mut_ptr().cast()), 3);
    expect_nothing(near.events.h());
    accepted(request, &near, &far);
}

fn cr_accept_into_an_ep_without_pz(ctx: &Ctx) {
    let parts = crate::cases::ep::create::Parts::new(ctx);
    let bare = crate::cases::ep::create::without_pz(&parts);
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    bad_handle(dat_cr_accept(request.h(), bare.h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    bare.expect_state(DAT_EP_STATE_UNCONNECTED);
    accepted(request, &near, &far);
}

fn cr_accept_into_an_ep_without_connect_evd(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let (pz, recv, send) = (far.pz.h(), far.recv.h(), far.request.h());
    let deaf = Ep::own(filled(|out| dat_ep_create(ia.h(), pz, recv, send, DAT_HANDLE_NULL, null_mut(), out)));
    bad_handle(dat_cr_accept(request.h(), deaf.h(), 0, null_mut()), DAT_INVALID_HANDLE_EP);
    deaf.expect_state(DAT_EP_STATE_UNCONNECTED);
    accepted(request, &near, &far);
}

fn cr_accept_again_after_the_ep_was_reset(ctx: &Ctx) {
    let scene = Scene::new(ctx, Disconnected);
    let ia = &scene.own.ia;
    let (requests, _psp) = silent_listener(ctx, ia, 1);
    let near = Conn::on(ia);
    near.connect(&ia.address(), ctx.qual(1));
    let request = Request::arrives(&requests);
    let code = dat_cr_accept(request.h(), scene.ep(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_DISCONNECTED);
    ok(dat_ep_reset(scene.ep()));
    accepted(request, &near, &scene.own);
}

/// Both connect, both get a request. The one that wins refuses the other's.
fn wins(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.tell_address(&conn.ia);
    conn.connect(&ctx.hear_address(), ctx.qual(1));
    let request = Request::arrives(&requests);
    ctx.meet();
    ctx.meet(); // the loser has tried
    request.reject();
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn loses(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 1);
    ctx.tell_address(&conn.ia);
    conn.connect(&ctx.hear_address(), ctx.qual(0));
    let request = Request::arrives(&requests);
    ctx.meet();
    let code = dat_cr_accept(request.h(), conn.ep.h(), 0, null_mut());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
    ok(dat_ep_reset(conn.ep.h()));
    request.accept(&conn.ep);
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn cr_answers_in_any_order(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let near: Vec<Conn> = (0..6_u8)
        .map(|n| {
            let conn = Conn::on(&ia);
            ok(Call::to(&ia, ctx.qual(0)).carrying(&[n]).make(conn.ep.h()));
            conn
        })
        .collect();
    let mut came: Vec<Request> = (0..6).map(|_| Request::arrives(&requests)).collect();
    came.sort_by_key(|request| [3, 0, 5, 1, 4, 2][usize::from(data_of(request)[0])]);
    for request in came {
        let from = usize::from(data_of(&request)[0]);
        if from % 2 == 0 {
            let far = Conn::on(&ia);
            accepted(request, &near[from], &far);
        } else {
            request.reject();
            near[from].expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
        }
    }
}

/// A request whose requester has given up.
#[track_caller]
fn left(ctx: &Ctx) -> Asked {
    let asked = asked(ctx, &pattern(12, 4));
    asked.near.disconnect();
    asked
}

fn cr_left_query_succeeds(ctx: &Ctx) {
    assert_eq!(data_of(&left(ctx).request), pattern(12, 4));
}

fn cr_left_reject_succeeds(ctx: &Ctx) {
    let left = left(ctx);
    let cr = left.request.h();
    left.request.reject();
    is_dead(cr, left.far.ep.h());
    expect_nothing(left.near.events.h());
}

fn cr_left_reject_gives_the_rsp_ep_back(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.other().disconnect();
    scene.is_still(Passive);
    scene.request.take().expect("it waits").reject();
    scene.is_still(Unconnected);
}

fn cr_left_accept_is_accept_completion_error(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = left(ctx);
    (1..=2).for_each(|id| post_empty_recv(&far, id));
    request.accept(&far.ep);
    far.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    far.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&far.recv, 1..=2);
    expect_nothing(far.events.h());
    expect_nothing(near.events.h());
}

fn cr_left_accept_of_the_rsp_ep_is_accept_completion_error(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    scene.other().disconnect();
    ok(dat_cr_accept(scene.request.take().expect("it waits").leak(), DAT_HANDLE_NULL, 0, null_mut()));
    scene.own.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    scene.is_still(Disconnected);
}

fn cr_left_by_a_free_then_accepted(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    near.ep.free();
    request.accept(&far.ep);
    far.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    far.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn cr_left_by_a_timeout_then_accepted(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ok(Call { timeout: 50_000, ..Call::to(&ia, ctx.qual(0)) }.make(near.ep.h()));
    let request = Request::arrives(&requests);
    near.expect(DAT_CONNECTION_EVENT_TIMED_OUT);
    request.accept(&far.ep);
    far.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    expect_nothing(near.events.h());
    near.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn cr_left_ep_connects_again_after_a_reset(ctx: &Ctx) {
    let Asked { ia, requests, psp: _psp, far, near, request } = left(ctx);
    request.accept(&far.ep);
    far.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    ok(dat_ep_reset(far.ep.h()));
    ok(dat_ep_reset(near.ep.h()));
    near.connect(&ia.address(), ctx.qual(0));
    accepted(Request::arrives(&requests), &near, &far);
}

fn cr_handoff_to_another_point(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &pattern(33, 6));
    let (others, other) = silent_listener(ctx, &ia, 1);
    let cr = request.leak();
    ok(dat_cr_handoff(cr, ctx.qual(1)));
    is_dead(cr, far.ep.h());
    let event = expect_event(others.h(), SOON);
    assert_eq!((event.service_point(), event.arrival().conn_qual), (other.h(), ctx.qual(1)));
    let request = Request::own(event.arrival().cr_handle);
    assert_eq!(data_of(&request), pattern(33, 6));
    expect_nothing(near.events.h());
    accepted(request, &near, &far);
}

fn cr_handoff_to_a_reserved_point(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let others = ia.evd(8, DAT_EVD_CR_FLAG);
    let _rsp = ia.rsp(ctx.qual(1), &far.ep, &others);
    ok(dat_cr_handoff(request.leak(), ctx.qual(1)));
    let request = Request::arrives(&others);
    assert_eq!(request.param().local_ep_handle, far.ep.h());
    ok(dat_cr_accept(request.leak(), DAT_HANDLE_NULL, 0, null_mut()));
    established(&near, &far);
}

/// The requester's own process listens where its request is handed to: it meets itself.
fn takes_it_itself(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 1);
    ok(Call { address: Some(ctx.hear_address()), ..Call::to(&ia, ctx.qual(0)).carrying(b"home") }.make(near.ep.h()));
    let request = Request::arrives(&requests);
    assert_eq!(data_of(&request), b"home");
    accepted(request, &near, &far);
    ctx.meet();
    near.disconnect();
    is_over(&far);
}

fn hands_it_back(ctx: &Ctx) {
    let ia = ctx.ia();
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    ctx.tell_address(&ia);
    ok(dat_cr_handoff(Request::arrives(&requests).leak(), ctx.qual(1)));
    ctx.meet();
}

fn cr_handoff_to_nobody_leaves_it_usable(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &pattern(7, 7));
    bad_arg(dat_cr_handoff(request.h(), ctx.qual(9)), 2);
    assert_eq!(data_of(&request), pattern(7, 7));
    expect_nothing(near.events.h());
    accepted(request, &near, &far);
}

fn cr_handoff_to_qualifier_zero_leaves_it_usable(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    bad_arg(dat_cr_handoff(request.h(), 0), 2);
    accepted(request, &near, &far);
}

fn cr_handoff_of_no_request_is_invalid_handle(ctx: &Ctx) {
    let asked = asked(ctx, &[]);
    for handle in [DAT_HANDLE_NULL, asked.psp.h(), asked.near.ep.h()] {
        bad_handle(dat_cr_handoff(handle, ctx.qual(0)), DAT_INVALID_HANDLE_CR);
    }
}

fn cr_handoff_gives_the_rsp_ep_back(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Passive);
    let (requests, _psp) = silent_listener(ctx, &scene.own.ia, 1);
    ok(dat_cr_handoff(scene.request.take().expect("it waits").leak(), ctx.qual(1)));
    scene.is_still(Unconnected);
    let request = Request::arrives(&requests);
    // And can be accepted into right away.
    accepted(request, scene.other(), &scene.own);
}

fn cr_handoff_twice(ctx: &Ctx) {
    let Asked { ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &pattern(3, 3));
    let (first, _one) = silent_listener(ctx, &ia, 1);
    let (second, _two) = silent_listener(ctx, &ia, 2);
    ok(dat_cr_handoff(request.leak(), ctx.qual(1)));
    ok(dat_cr_handoff(Request::arrives(&first).leak(), ctx.qual(2)));
    let request = Request::arrives(&second);
    assert_eq!(data_of(&request), pattern(3, 3));
    accepted(request, &near, &far);
}

fn sends(ctx: &Ctx, size: usize) {
    let conn = Conn::alone(ctx);
    let (address, data) = (Some(ctx.hear_address()), pattern(size, 1));
    ok(Call { address, ..Call::to(&conn.ia, ctx.qual(0)).carrying(&data) }.make(conn.ep.h()));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    let shown = event.connection();
    assert_eq!((shown.private_data_size as usize, event.private_data()), (size, pattern(size, 2)));
    if size > 0 {
        let all = bytes_at(shown.private_data, 256);
        assert!(all[size..].iter().all(|byte| *byte == 0), "zeros behind");
    }
    ctx.meet();
}

fn answers(ctx: &Ctx, size: usize) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.tell_address(&conn.ia);
    let request = Request::arrives(&requests);
    assert_eq!((request.param().private_data_size as usize, data_of(&request)), (size, pattern(size, 1)));
    let mut data = pattern(size, 2);
    ok(dat_cr_accept(request.leak(), conn.ep.h(), size as DAT_COUNT, data.as_mut_ptr().cast()));
    data.fill(0);
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn sends_48(ctx: &Ctx) {
    sends(ctx, 48);
}

fn takes_48(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.tell_address(&conn.ia);
    let mut data = pattern(48, 2);
    let cr = Request::arrives(&requests).leak();
    ok(dat_cr_accept(cr, conn.ep.h(), 48, data.as_mut_ptr().cast()));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED).connection();
    assert_eq!(event.private_data_size, 0);
    assert!(event.private_data.is_null());
    ctx.meet();
}

fn private_data_of_failures_is_none(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    ok(dat_ep_disconnect(near.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    for conn in [&near, &far] {
        let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_DISCONNECTED).connection();
        assert_eq!(event.private_data_size, 0);
        assert!(event.private_data.is_null());
    }
}

fn private_data_is_the_callers_again_at_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let mut data = pattern(40, 8);
    ok(Call::to(&ia, ctx.qual(0)).carrying(&data).make(near.ep.h()));
    data.fill(0xff);
    let request = Request::arrives(&requests);
    assert_eq!(data_of(&request), pattern(40, 8));
    accepted(request, &near, &far);
}

fn private_data_at_least_64_bytes(ctx: &Ctx) {
    let limit = ctx.ia().provider_attr().max_private_data_size as usize;
    // Over rdma_cm there is no room for more than 48 (9.1).
    assert!(limit >= 64 || limit == 48, "{limit}");
    let asked = asked(ctx, &pattern(limit, 3));
    assert_eq!(data_of(&asked.request), pattern(limit, 3));
}

fn private_data_of_an_accept_at_its_limit(ctx: &Ctx) {
    let Asked { ia: _ia, requests: _requests, psp: _psp, far, near, request } = asked(ctx, &[]);
    let mut data = pattern(ACCEPT_LIMIT, 4);
    ok(dat_cr_accept(request.leak(), far.ep.h(), data.len() as DAT_COUNT, data.as_mut_ptr().cast()));
    let event = expect_conn(near.events.h(), near.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(event.private_data(), data);
}

/// A long reply, then a short one into the same EP.
fn private_data_of_the_next_connection_has_no_leftovers(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    for size in [60, 3] {
        near.connect(&ia.address(), ctx.qual(0));
        let mut data = pattern(size, 5);
        let cr = Request::arrives(&requests).leak();
        ok(dat_cr_accept(cr, far.ep.h(), size as DAT_COUNT, data.as_mut_ptr().cast()));
        let event = expect_conn(near.events.h(), near.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
        assert_eq!(event.private_data(), data);
        assert!(bytes_at(event.connection().private_data, 256)[size..].iter().all(|byte| *byte == 0));
        far.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        near.disconnect();
        is_over(&far);
        ok(dat_ep_reset(near.ep.h()));
        ok(dat_ep_reset(far.ep.h()));
    }
}
