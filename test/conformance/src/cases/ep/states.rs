//! Calls whose result depends on the EP state: each call in each state, one case per pair (spec/endpoints 4.1). Binds
//! in each state are in `memory::bind_posts`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::scene::EpState::{self, *};
use super::scene::{ConnectionRequest, Scene, WAITING_SEND, in_state, silent_listener};

/// A column of the table in spec/endpoints 4.1: the call and its result in a state, as parts of the case name, and the
/// check to run in each state.
type Column = (&'static str, fn(EpState) -> &'static str, fn(&Ctx, EpState, Scene));

const COLUMNS: [Column; 17] = [
    ("get_status", |_| "returns_it", is_reported),
    ("post_recv", result_of_receive, post_recv),
    ("post_send", result_of_request, post_send),
    ("post_rdma_read", result_of_request, rdma_read),
    ("post_rdma_write", result_of_request, rdma_write),
    ("connect", |at| result(at == Unconnected), connect),
    ("dup_connect", |at| result(at == Unconnected), dup_connect),
    ("accept_of_a_psp_request", |at| result(at == Unconnected), accept_free),
    ("accept_of_its_own_request", |at| result(at == Passive), accept_own),
    ("rsp_create", |at| result(at == Unconnected), rsp_create),
    (
        "disconnect_graceful",
        |at| result(matches!(at, Active | Completing | Connected | Disconnected)),
        disconnect_graceful,
    ),
    (
        "disconnect_abrupt",
        |at| result(matches!(at, Active | Completing | Connected | Disconnecting | Disconnected)),
        disconnect_abrupt,
    ),
    ("reset", |at| result(matches!(at, Unconnected | Disconnected)), reset),
    ("free", |at| result(!matches!(at, Reserved | Passive | Tentative)), free),
    ("modify_of_the_qos", |at| result(matches!(at, Unconnected | Reserved | Passive | Tentative)), modify),
    ("modify_of_the_pz", |at| result(matches!(at, Unconnected | Tentative)), modify_pz),
    ("dup_connect_to_its_listener", |at| result(at == Connected), is_a_dup),
];

fn result(succeeds: bool) -> &'static str {
    if succeeds { "succeeds" } else { "is_refused" }
}

fn result_of_receive(at: EpState) -> &'static str {
    match at {
        Tentative => "is_refused",
        Disconnected => "is_flushed",
        _ => "succeeds",
    }
}

fn result_of_request(at: EpState) -> &'static str {
    match at {
        Connected => "succeeds",
        Completing => "is_queued",
        Disconnected => "is_flushed",
        _ => "is_refused",
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let cells = EpState::ALL.into_iter().flat_map(|at| COLUMNS.map(|column| (at, column)));
    let cell = |(at, (word, result, body)): (EpState, Column)| {
        let name = format!("ep_{word}_in_state_{}_{}", at.word(), result(at));
        in_state(at, move |ctx, scene| body(ctx, at, scene)).named(name).proves("spec/endpoints 4.1")
    };
    cells.map(cell).collect()
}

/// Checks that the call was refused with the EP's state, and has changed nothing.
#[track_caller]
fn refused_by_state(code: DAT_RETURN, at: EpState, scene: &Scene) {
    refused(code, DAT_INVALID_STATE, at.subtype());
    scene.is_still(at);
}

fn is_reported(_ctx: &Ctx, at: EpState, scene: Scene) {
    scene.is_still(at);
    assert_eq!(filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out)).ep_state, at.number());
}

fn post_recv(_ctx: &Ctx, at: EpState, scene: Scene) {
    let code = dat_ep_post_recv(scene.ep(), 0, null_mut(), cookie(7), DAT_COMPLETION_DEFAULT_FLAG);
    match at {
        // The EP has neither PZ nor EVD yet.
        Tentative => refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY),
        _ => ok(code),
    }
    if at == Disconnected {
        expect_dto(scene.own.recv.h(), 7, DAT_DTO_ERR_FLUSHED, 0);
    }
    scene.is_still(at);
    if at == Disconnecting {
        ok(dat_ep_disconnect(scene.ep(), DAT_CLOSE_ABRUPT_FLAG));
        expect_dto(scene.own.recv.h(), 7, DAT_DTO_ERR_FLUSHED, 0);
    }
}

fn post_send(_ctx: &Ctx, at: EpState, scene: Scene) {
    if let Some(other) = &scene.other
        && at == Connected
    {
        ok(dat_ep_post_recv(other.ep.h(), 0, null_mut(), cookie(8), DAT_COMPLETION_DEFAULT_FLAG));
    }
    let code = dat_ep_post_send(scene.ep(), 0, null_mut(), cookie(7), DAT_COMPLETION_DEFAULT_FLAG);
    request_goes(code, at, &scene, 0);
}

fn rdma_read(_ctx: &Ctx, at: EpState, scene: Scene) {
    let memory = scene.own.memory(64);
    let theirs = scene.other.as_ref().map(|other| other.memory(64));
    let from = theirs.as_ref().unwrap_or(&memory).target(0, 64);
    let mut into = memory.segment(0, 64);
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    request_goes(dat_ep_post_rdma_read(scene.ep(), 1, &mut into, cookie(7), &from, flags), at, &scene, 64);
}

fn rdma_write(_ctx: &Ctx, at: EpState, scene: Scene) {
    let memory = scene.own.memory(64);
    let theirs = scene.other.as_ref().map(|other| other.memory(64));
    let to = theirs.as_ref().unwrap_or(&memory).target(0, 64);
    let mut from = memory.segment(0, 64);
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    request_goes(dat_ep_post_rdma_write(scene.ep(), 1, &mut from, cookie(7), &to, flags), at, &scene, 64);
}

/// A request is executed in CONNECTED, queued in COMPLETION_PENDING, flushed in DISCONNECTED, and refused in the other
/// states.
#[track_caller]
fn request_goes(code: DAT_RETURN, at: EpState, scene: &Scene, length: u64) {
    let request = scene.own.request.h();
    match at {
        Connected => {
            ok(code);
            expect_dto(request, 7, DAT_DTO_SUCCESS, length);
        }
        Disconnected => {
            ok(code);
            expect_dto(request, 7, DAT_DTO_ERR_FLUSHED, 0);
        }
        Completing => {
            ok(code);
            expect_nothing(request);
        }
        _ => {
            refused(code, DAT_INVALID_STATE, at.subtype());
            expect_nothing(request);
        }
    }
    scene.is_still(at);
}

fn connect(ctx: &Ctx, at: EpState, scene: Scene) {
    let ia = &scene.own.ia;
    let (requests, _psp) = silent_listener(ctx, ia, 1);
    let (ep, address, qual) = (scene.ep(), ia.address(), ctx.qual(1));
    let (time, flags) = (DAT_TIMEOUT_INFINITE, DAT_CONNECT_DEFAULT_FLAG);
    let code = dat_ep_connect(ep, address.pointer(), qual, time, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags);
    attempt_begins(code, at, &scene, &requests);
}

fn dup_connect(ctx: &Ctx, at: EpState, scene: Scene) {
    let ia = &scene.own.ia;
    let (dup, _dup_peer) = ctx.loopback_with(ia, &Setup { qual: 1, ..Setup::default() });
    let (requests, _psp) = silent_listener(ctx, ia, 1);
    let (ep, time) = (scene.ep(), DAT_TIMEOUT_INFINITE);
    let code = dat_ep_dup_connect(ep, dup.ep.h(), time, 0, null_mut(), DAT_QOS_BEST_EFFORT);
    attempt_begins(code, at, &scene, &requests);
}

#[track_caller]
fn attempt_begins(code: DAT_RETURN, at: EpState, scene: &Scene, requests: &Evd) {
    match at {
        Unconnected => {
            ok(code);
            let _request = ConnectionRequest::arrives(requests);
            scene.is_still(Active);
        }
        // The order of checks in 5.4 decides: the EP has no connect EVD yet.
        Tentative => {
            refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_CONN);
            scene.is_still(at);
        }
        _ => {
            refused_by_state(code, at, scene);
            expect_nothing(requests.h());
        }
    }
}

fn accept_free(ctx: &Ctx, at: EpState, scene: Scene) {
    let ia = &scene.own.ia;
    let (requests, _psp) = silent_listener(ctx, ia, 1);
    let requester = Conn::on(ia);
    requester.connect(&ia.address(), ctx.qual(1));
    let request = ConnectionRequest::arrives(&requests);
    let code = dat_cr_accept(request.h(), scene.ep(), 0, null_mut());
    match at {
        Unconnected => {
            ok(code);
            request.leak();
            scene.own.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            scene.expect(Connected);
            requester.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            return;
        }
        // The EP is in the wrong state and also lacks a PZ. Section 4.1 requires the state error, the order of checks
        // in 7.3 the PZ error, so both are correct.
        Tentative => {
            let by_state = error(DAT_INVALID_STATE, at.subtype());
            one_of(code, &[by_state, error(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)]);
            scene.is_still(at);
        }
        _ => refused_by_state(code, at, &scene),
    }
    // The refused call left the request pending.
    let spare = Conn::on(ia);
    request.accept(&spare.ep);
    established(&spare, &requester);
}

fn accept_own(_ctx: &Ctx, at: EpState, mut scene: Scene) {
    let (no_ep, bad_ep) = (DAT_HANDLE_NULL, (DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP));
    match at {
        Passive => {
            let request = scene.request.take().expect("the request is pending");
            refused(dat_cr_accept(request.h(), scene.ep(), 0, null_mut()), bad_ep.0, bad_ep.1);
            scene.is_still(at);
            ok(dat_cr_accept(request.leak(), no_ep, 0, null_mut()));
            scene.own.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            scene.expect(Connected);
            scene.other().expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        }
        Tentative => {
            let request = scene.request.as_ref().expect("the request is pending");
            refused(dat_cr_accept(request.h(), scene.ep(), 0, null_mut()), bad_ep.0, bad_ep.1);
            // The EP has no PZ yet.
            refused(dat_cr_accept(request.h(), no_ep, 0, null_mut()), bad_ep.0, bad_ep.1);
            scene.is_still(at);
        }
        // The service point uses EPs of the consumer, so the pending request has no EP.
        Active => {
            let request = scene.request.as_ref().expect("the request is pending");
            refused(dat_cr_accept(request.h(), no_ep, 0, null_mut()), bad_ep.0, bad_ep.1);
            scene.is_still(at);
        }
        // The request of the connection has been accepted.
        Completing | Connected | Disconnecting | Disconnected => {
            let cr = scene.answered.expect("the scene has accepted a request").h();
            refused(dat_cr_accept(cr, no_ep, 0, null_mut()), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
            scene.is_still(at);
        }
        Unconnected | Reserved => {
            refused(dat_cr_accept(no_ep, scene.ep(), 0, null_mut()), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
            scene.is_still(at);
        }
    }
}

fn rsp_create(ctx: &Ctx, at: EpState, scene: Scene) {
    let requests = scene.own.ia.evd(8, DAT_EVD_CR_FLAG);
    let (ia, ep) = (scene.own.ia.h(), scene.ep());
    let mut made = DAT_HANDLE_NULL;
    let code = dat_rsp_create(ia, ctx.qual(1), ep, requests.h(), &mut made);
    match at {
        Unconnected => {
            ok(code);
            let rsp = Rsp::own(made);
            scene.is_still(Reserved);
            drop(rsp);
            scene.is_still(Unconnected);
        }
        _ => {
            refused_by_state(code, at, &scene);
            assert!(made.is_null(), "the refused call wrote a handle");
        }
    }
}

fn disconnect_graceful(_ctx: &Ctx, at: EpState, scene: Scene) {
    let code = dat_ep_disconnect(scene.ep(), DAT_CLOSE_GRACEFUL_FLAG);
    match at {
        Disconnecting => {
            refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
            scene.is_still(at);
        }
        Connected => {
            ok(code);
            let state = scene.state();
            assert!(
                [Disconnecting.number(), Disconnected.number()].contains(&state),
                "the EP is in {} after the disconnect",
                state_name(state)
            );
            is_over(&scene);
        }
        _ => disconnects(code, at, &scene),
    }
}

fn disconnect_abrupt(_ctx: &Ctx, at: EpState, scene: Scene) {
    disconnects(dat_ep_disconnect(scene.ep(), DAT_CLOSE_ABRUPT_FLAG), at, &scene);
}

#[track_caller]
fn disconnects(code: DAT_RETURN, at: EpState, scene: &Scene) {
    match at {
        Unconnected | Reserved | Passive | Tentative => refused_by_state(code, at, scene),
        Disconnected => {
            ok(code);
            scene.is_still(at);
        }
        Active | Completing | Connected | Disconnecting => {
            ok(code);
            scene.expect(Disconnected);
            is_over(scene);
        }
    }
}

/// Checks that exactly one DISCONNECTED arrives.
#[track_caller]
fn is_over(scene: &Scene) {
    scene.own.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    scene.is_still(Disconnected);
    if let Some(other) = &scene.other {
        other.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        other.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    }
    expect_nothing(scene.own.events.h());
}

fn reset(_ctx: &Ctx, at: EpState, scene: Scene) {
    let code = dat_ep_reset(scene.ep());
    match at {
        Unconnected | Disconnected => {
            ok(code);
            scene.is_still(Unconnected);
        }
        _ => refused_by_state(code, at, &scene),
    }
}

fn free(_ctx: &Ctx, at: EpState, scene: Scene) {
    if matches!(at, Reserved | Passive | Tentative) {
        refused_by_state(dat_ep_free(scene.ep()), at, &scene);
        return;
    }
    // Drops run in reverse order, so the IA must be first.
    let _ia = scene.own.ia.clone();
    let Scene { other, own, requests: _requests, psp: _psp, request: _request, subject, .. } = scene;
    let Conn { pz: _pz, recv: _recv, request, events, ep, .. } = own;
    ok(dat_ep_free(ep.leak()));
    refused(dat_ep_free(subject.h()), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    let code = untouched(|state| dat_ep_get_status(subject.h(), state, null_mut(), null_mut()));
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    // The free causes an event only for a pending attempt and, in 2.0, for a connection (5.8).
    if matches!(at, Active | Completing) || is_2_0() && at == Connected {
        expect_conn(events.h(), subject.h(), DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(events.h());
    if at == Disconnecting {
        let flushed = drain(request.h());
        assert!(flushed.iter().all(|event| context_bits(event.dto().user_cookie) == WAITING_SEND));
    }
    if let Some(other) = &other
        && at != Disconnected
    {
        other.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
}

fn modify(_ctx: &Ctx, at: EpState, scene: Scene) {
    let mut param: DAT_EP_PARAM = filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out));
    let before = param.ep_attr.qos;
    param.ep_attr.qos = DAT_QOS_LOW_LATENCY;
    let code = dat_ep_modify(scene.ep(), DAT_EP_FIELD_EP_ATTR_QOS, &param);
    let after = filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out)).ep_attr.qos;
    match at {
        Unconnected | Reserved | Passive | Tentative => {
            ok(code);
            assert_eq!(after, DAT_QOS_LOW_LATENCY);
            scene.is_still(at);
        }
        _ => {
            refused_by_state(code, at, &scene);
            assert_eq!(after, before);
        }
    }
}

fn modify_pz(_ctx: &Ctx, at: EpState, scene: Scene) {
    let mut param: DAT_EP_PARAM = filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out));
    let before = param.pz_handle;
    let pz = scene.own.ia.pz();
    param.pz_handle = pz.h();
    let code = dat_ep_modify(scene.ep(), DAT_EP_FIELD_PZ_HANDLE, &param);
    let after = filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out)).pz_handle;
    match at {
        Unconnected | Tentative => {
            ok(code);
            assert_eq!(after, pz.h());
            scene.is_still(at);
            // Restores the scene's PZ, because the new PZ is freed before the EP.
            param.pz_handle = before;
            ok(dat_ep_modify(scene.ep(), DAT_EP_FIELD_PZ_HANDLE, &param));
        }
        _ => {
            refused_by_state(code, at, &scene);
            assert_eq!(after, before);
        }
    }
}

/// `dat_ep_dup_connect` requires the EP to duplicate to be connected (5.5).
fn is_a_dup(ctx: &Ctx, at: EpState, scene: Scene) {
    let ia = &scene.own.ia;
    let spare = Conn::on(ia);
    // A CONNECTED scene was connected to qualifier 0, so the spare EP must reach a listener there.
    let (requests, _psp) = silent_listener(ctx, ia, if at == Connected { 0 } else { 1 });
    let (dup, time) = (scene.ep(), DAT_TIMEOUT_INFINITE);
    let code = dat_ep_dup_connect(spare.ep.h(), dup, time, 0, null_mut(), DAT_QOS_BEST_EFFORT);
    if at == Connected {
        ok(code);
        let _request = ConnectionRequest::arrives(&requests);
        spare.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    } else {
        refused(code, DAT_INVALID_STATE, at.subtype());
        spare.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    }
    scene.is_still(at);
}
