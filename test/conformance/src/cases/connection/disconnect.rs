//! `dat_ep_disconnect`, abrupt and graceful: by one side, by both, twice, and while the EP is unconnected, connecting,
//! accepting or connected. Its events, and its effects on posted work and on the peer. Also the free of an accepting or
//! connected EP, which disconnects the peer.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::{self, *};
use crate::cases::ep::scene::{ConnectionRequest, Scene, Stopped, WAITING_SEND, completing, in_state, silent_listener};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 13": disconnect_of_one_side_is_reported_to_both => pair(each_disconnects, each_gets_event),
        "spec/endpoints 13.5": disconnect_graceful_is_reported_to_both => pair(each_disconnects_gracefully, each_gets_event),
        "spec/endpoints 5.6": disconnect_by_the_passive_side_ends_both => pair(each_gets_event, each_disconnects),
        "spec/endpoints 5.6": disconnect_graceful_by_the_passive_side_ends_both => pair(each_gets_event, each_disconnects_gracefully),
        "spec/endpoints 13.6": disconnect_abrupt_on_both_sides_at_the_same_time_ends_both
            => pair(|c| at_once(c, 0), |c| at_once(c, 0)),
        "spec/endpoints 13.6": disconnect_graceful_on_both_sides_at_the_same_time_ends_both
            => pair(|c| at_once(c, 1), |c| at_once(c, 1)),
        "spec/endpoints 13.6": disconnect_abrupt_and_graceful_at_the_same_time_ends_both_sides
            => pair(|c| at_once(c, 0), |c| at_once(c, 1)),
        "spec/endpoints 13.6": disconnect_on_both_sides_at_the_same_time_ends_both_each_time
            => pair(at_once_often_client, at_once_often_server).limit(60),
        "spec/endpoints 5.6": disconnect_twice_succeeds_without_a_second_event,
        "spec/endpoints 13.21": disconnect_with_the_default_flag_is_abrupt,
        "spec/endpoints 5.6": disconnect_with_an_unknown_flag_is_graceful,
        "spec/endpoints 5.6": disconnect_of_an_unconnected_ep_flushes_receives_in_order,
        "spec/endpoints 5.6": disconnect_graceful_of_an_unconnected_ep_flushes_receives,
        "spec/endpoints 5.6": disconnect_of_an_unconnected_ep_with_receives_queues_one_event,
        "spec/endpoints 5.6": disconnect_of_an_unconnected_ep_without_connect_evd_flushes_receives,
        "spec/endpoints 5.6": disconnect_of_an_unconnected_ep_permits_a_later_connect => local(unconnected_then_connects),
        "spec/endpoints 5.6": disconnect_graceful_completes_posted_requests => pair(drains_client, drains_server),
        "spec/endpoints 5.6": disconnect_graceful_waits_for_a_receive_of_the_peer,
        "spec/endpoints 5.6": disconnect_graceful_keeps_receives_until_the_end,
        "spec/endpoints 5.6": disconnect_abrupt_ends_a_graceful_disconnect,
        "spec/endpoints 4.3": disconnect_flushes_receives_in_order,
        "spec/endpoints 4.3": disconnect_flushes_receives_of_the_peer_in_order,
        "spec/endpoints 4.3": disconnect_abrupt_flushes_requests_in_order,
        "spec/endpoints 4.3": disconnect_flushes_suppressed_requests_with_events,
        "spec/endpoints 4.3": disconnect_abrupt_has_flushed_all_posts_when_it_returns,
        "spec/endpoints 4.3": disconnected_ep_accepts_and_flushes_posts,
        "spec/endpoints 4.3": disconnect_of_a_pending_connect_flushes_receives,
        "spec/endpoints 5.6": disconnect_of_many_eps_queues_one_event_each,
        "spec/endpoints 14.6": disconnect_of_a_pending_connect_makes_a_later_accept_report_an_error
            => pair(client_gives_up, server_accepts_too_late),
        "spec/endpoints 14.6": disconnect_of_a_pending_accept_is_reported_to_the_peer => pair(client_gets_disconnected, server_disconnects_in_cmp).only_two(),
        "spec/endpoints 14.6": free_of_an_ep_with_a_pending_accept_is_reported_to_the_peer => pair(client_gets_disconnected, server_frees_in_cmp).only_two(),
        "spec/endpoints 4.1": pending_accept_holds_sends_until_established => pair(held_client, held_server).only_two(),
        "spec/endpoints 4.3": disconnect_of_a_pending_accept_flushes_posted_sends => pair(client_gets_disconnected, server_flushes_held).only_two(),
        "spec/endpoints 5.8": free_of_a_connected_ep_disconnects_the_peer => pair(client_frees, each_gets_event),
    ];
    all.extend([Active, Completing, Connected, Disconnecting].map(|at| {
        let name = format!("disconnect_in_state_{}_flushes_receives_and_reports_the_end", at.word());
        in_state(at, move |_ctx, scene| flushes_all(at, &scene)).named(name).proves("spec/endpoints 4.3")
    }));
    all
}

/// Returns whether the EP has no receive posted, and whether it has no request posted.
#[track_caller]
pub(crate) fn idle(conn: &Conn) -> (bool, bool) {
    let (mut recv, mut request) = (77, 77);
    ok(dat_ep_get_status(conn.ep.h(), null_mut(), &mut recv, &mut request));
    assert!([DAT_FALSE, DAT_TRUE].contains(&recv) && [DAT_FALSE, DAT_TRUE].contains(&request));
    (recv == DAT_TRUE, request == DAT_TRUE)
}

pub(crate) fn cookies(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| context_bits(event.dto().user_cookie)).collect()
}

#[track_caller]
pub(crate) fn disconnect(conn: &Conn, flags: DAT_CLOSE_FLAGS) {
    ok(dat_ep_disconnect(conn.ep.h(), flags));
}

#[track_caller]
pub(crate) fn is_over(conn: &Conn) {
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn each_disconnects(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    disconnect(&conn, DAT_CLOSE_ABRUPT_FLAG);
    is_over(&conn);
}

fn each_disconnects_gracefully(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    disconnect(&conn, DAT_CLOSE_GRACEFUL_FLAG);
    is_over(&conn);
}

fn each_gets_event(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    is_over(&conn);
}

fn client_frees(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    let ep = conn.ep.free();
    if is_2_0() {
        expect_conn(conn.events.h(), ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(conn.events.h());
}

/// Both endpoints disconnect at the same time: each gets one DISCONNECTED, and a second call has no effect.
fn at_once(ctx: &Ctx, flags: DAT_CLOSE_FLAGS) {
    let conn = ctx.connect();
    ctx.meet();
    let code = dat_ep_disconnect(conn.ep.h(), flags);
    ok(code);
    is_over(&conn);
    disconnect(&conn, flags);
    ctx.meet();
    expect_nothing(conn.events.h());
}

const ROUNDS: u32 = 200;

fn at_once_often_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    for round in 0..ROUNDS {
        conn.connect(&address, ctx.qual(0));
        at_once_again(ctx, &conn, round);
    }
}

fn at_once_often_server(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    for round in 0..ROUNDS {
        ConnectionRequest::arrives(&requests).accept(&conn.ep);
        at_once_again(ctx, &conn, round);
    }
}

fn at_once_again(ctx: &Ctx, conn: &Conn, round: u32) {
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    disconnect(conn, round % 3 % 2);
    is_over(conn);
    ok(dat_ep_reset(conn.ep.h()));
    expect_nothing(conn.events.h());
    ctx.meet();
}

fn disconnect_twice_succeeds_without_a_second_event(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    client.disconnect();
    is_over(&server);
    for flags in [DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG] {
        for conn in [&client, &server] {
            disconnect(conn, flags);
            expect_nothing(conn.events.h());
            conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
        }
    }
}

/// An abrupt disconnect ends at once. A graceful disconnect would stay in DISCONNECT_PENDING, because the send waits
/// for a receive.
fn disconnect_with_the_default_flag_is_abrupt(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    post_empty_send(&client, 1);
    disconnect(&client, DAT_CLOSE_DEFAULT);
    client.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn disconnect_with_an_unknown_flag_is_graceful(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    post_empty_send(&client, 1);
    disconnect(&client, 7);
    client.ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    refused(dat_ep_disconnect(client.ep.h(), 7), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

#[track_caller]
pub(crate) fn unconnected(ctx: &Ctx) -> Conn {
    let conn = Conn::alone(ctx);
    (1..=5).for_each(|id| post_empty_recv(&conn, id));
    conn
}

fn disconnect_of_an_unconnected_ep_flushes_receives_in_order(ctx: &Ctx) {
    let conn = unconnected(ctx);
    disconnect(&conn, DAT_CLOSE_ABRUPT_FLAG);
    let events = drain(conn.recv.h());
    assert_eq!(cookies(&events), [1, 2, 3, 4, 5], "the flushes were not queued when the call returned");
    assert!(events.iter().all(|event| event.dto().status == DAT_DTO_ERR_FLUSHED));
    assert!(events.iter().all(|event| event.dto().ep_handle == conn.ep.h()));
}

fn disconnect_graceful_of_an_unconnected_ep_flushes_receives(ctx: &Ctx) {
    let conn = unconnected(ctx);
    disconnect(&conn, DAT_CLOSE_GRACEFUL_FLAG);
    assert_eq!(cookies(&drain(conn.recv.h())), [1, 2, 3, 4, 5]);
}

fn disconnect_of_an_unconnected_ep_with_receives_queues_one_event(ctx: &Ctx) {
    let conn = unconnected(ctx);
    disconnect(&conn, DAT_CLOSE_ABRUPT_FLAG);
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(conn.events.h());
    // No receive is posted any more, so disconnecting the unconnected EP is an error.
    let code = dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    expect_nothing(conn.events.h());
}

fn disconnect_of_an_unconnected_ep_without_connect_evd_flushes_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (ia, pz, recv, request) = (conn.ia.h(), conn.pz.h(), conn.recv.h(), conn.request.h());
    let ep = Ep::own(filled(|out| dat_ep_create(ia, pz, recv, request, DAT_HANDLE_NULL, &ep_attr(), out)));
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
    ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    expect_flushed(&conn.recv, [9]);
}

fn unconnected_then_connects(ctx: &Ctx) {
    let (client, server) = (unconnected(ctx), Conn::alone(ctx));
    disconnect(&client, DAT_CLOSE_ABRUPT_FLAG);
    client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    assert_eq!(drain(client.recv.h()).len(), 5);
    post_empty_recv(&client, 6);
    server.listen(ctx.qual(0), || client.connect(&server.ia.address(), ctx.qual(0)));
    established(&client, &server);
    post_empty_send(&server, 7);
    expect_dto(client.recv.h(), 6, DAT_DTO_SUCCESS, 0);
}

fn drains_client(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    ctx.meet();
    (1..=10).for_each(|id| conn.post_send(id, memory.segment(0, 4096)));
    disconnect(&conn, DAT_CLOSE_GRACEFUL_FLAG);
    is_over(&conn);
    (1..=10).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 4096));
    ctx.meet();
}

fn drains_server(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    (1..=11).for_each(|id| conn.post_recv(id, memory.segment(0, 4096)));
    ctx.meet();
    (1..=10).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 4096));
    is_over(&conn);
    expect_flushed(&conn.recv, [11]);
    ctx.meet();
}

fn disconnect_graceful_waits_for_a_receive_of_the_peer(ctx: &Ctx) {
    let scene = Scene::new(ctx, Disconnecting);
    scene.is_still(Disconnecting);
    post_empty_recv(scene.other(), 3);
    expect_dto(scene.other().recv.h(), 3, DAT_DTO_SUCCESS, 0);
    is_over(&scene.own);
    expect_dto(scene.own.request.h(), WAITING_SEND, DAT_DTO_SUCCESS, 0);
    is_over(scene.other());
}

fn disconnect_graceful_keeps_receives_until_the_end(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    post_empty_recv(&client, 1);
    post_empty_send(&client, 2);
    disconnect(&client, DAT_CLOSE_GRACEFUL_FLAG);
    expect_nothing(client.recv.h());
    post_empty_recv(&server, 3);
    is_over(&client);
    expect_flushed(&client.recv, [1]);
}

fn disconnect_abrupt_ends_a_graceful_disconnect(ctx: &Ctx) {
    let scene = Scene::new(ctx, Disconnecting);
    disconnect(&scene.own, DAT_CLOSE_ABRUPT_FLAG);
    is_over(&scene.own);
    expect_flushed(&scene.own.request, [WAITING_SEND]);
    is_over(scene.other());
}

fn disconnect_flushes_receives_in_order(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    (1..=9).for_each(|id| post_empty_recv(&client, id));
    disconnect(&client, DAT_CLOSE_ABRUPT_FLAG);
    expect_flushed(&client.recv, 1..=9);
    expect_nothing(client.recv.h());
}

fn disconnect_flushes_receives_of_the_peer_in_order(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    (1..=9).for_each(|id| post_empty_recv(&server, id));
    disconnect(&client, DAT_CLOSE_GRACEFUL_FLAG);
    expect_flushed(&server.recv, 1..=9);
    is_over(&server);
    expect_nothing(server.recv.h());
}

fn disconnect_abrupt_flushes_requests_in_order(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    (1..=9).for_each(|id| post_empty_send(&client, id));
    disconnect(&client, DAT_CLOSE_ABRUPT_FLAG);
    expect_flushed(&client.request, 1..=9);
    expect_nothing(client.request.h());
}

/// A flushed request completes with an event despite the SUPPRESS flag.
fn disconnect_flushes_suppressed_requests_with_events(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    for id in 1..=4 {
        ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_SUPPRESS_FLAG));
    }
    disconnect(&client, DAT_CLOSE_ABRUPT_FLAG);
    expect_flushed(&client.request, 1..=4);
}

fn disconnect_abrupt_has_flushed_all_posts_when_it_returns(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    (1..=3).for_each(|id| post_empty_recv(&client, id));
    (4..=6).for_each(|id| post_empty_send(&client, id));
    disconnect(&client, DAT_CLOSE_ABRUPT_FLAG);
    assert_eq!(cookies(&drain(client.recv.h())), [1, 2, 3]);
    assert_eq!(cookies(&drain(client.request.h())), [4, 5, 6]);
}

fn disconnected_ep_accepts_and_flushes_posts(ctx: &Ctx) {
    let scene = Scene::new(ctx, Disconnected);
    for id in 1..=50 {
        post_empty_recv(&scene.own, id);
        post_empty_send(&scene.own, 100 + id);
        expect_flushed(&scene.own.recv, [id]);
        expect_flushed(&scene.own.request, [100 + id]);
    }
    scene.is_still(Disconnected);
}

fn disconnect_of_a_pending_connect_flushes_receives(ctx: &Ctx) {
    let scene = Scene::new(ctx, Active);
    (1..=3).for_each(|id| post_empty_recv(&scene.own, id));
    disconnect(&scene.own, DAT_CLOSE_GRACEFUL_FLAG);
    assert_eq!(cookies(&drain(scene.own.recv.h())), [1, 2, 3]);
    is_over(&scene.own);
}

/// Like an MPI library at finalize: all disconnects first, then all events.
fn disconnect_of_many_eps_queues_one_event_each(ctx: &Ctx) {
    let ia = ctx.ia();
    let setups = (0..12).map(|qual| Setup { qual, ..Setup::default() });
    let pairs: Vec<(Conn, Conn)> = setups.map(|setup| ctx.loopback_with(&ia, &setup)).collect();
    for (client, server) in &pairs {
        disconnect(client, DAT_CLOSE_GRACEFUL_FLAG);
        disconnect(server, DAT_CLOSE_GRACEFUL_FLAG);
    }
    pairs.iter().for_each(|(client, server)| {
        is_over(client);
        is_over(server);
    });
}

fn client_gives_up(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    ctx.meet(); // the request has arrived
    disconnect(&conn, DAT_CLOSE_ABRUPT_FLAG);
    is_over(&conn);
    ctx.meet();
    ctx.meet(); // the partner has accepted and dequeued its event
    expect_nothing(conn.events.h());
}

/// Accepts a request whose requester has disconnected or whose process has ended. Checks the ACCEPT_COMPLETION_ERROR
/// event and the flushed receive.
#[track_caller]
pub(super) fn is_accepted_too_late(conn: &Conn, request: ConnectionRequest) {
    post_empty_recv(conn, 1);
    request.accept(&conn.ep);
    conn.expect(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_flushed(&conn.recv, [1]);
    expect_nothing(conn.events.h());
}

fn server_accepts_too_late(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    let request = ConnectionRequest::arrives(&requests);
    ctx.meet();
    ctx.meet(); // the requester has disconnected
    expect_nothing(conn.events.h());
    is_accepted_too_late(&conn, request);
    ctx.meet();
}

/// Requester for an EP that is disconnected or freed in COMPLETION_PENDING. The requester gets an event that ends the
/// connection, with or without ESTABLISHED before.
fn client_gets_disconnected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    ctx.send_number(std::process::id().into());
    let mut event = expect_event(conn.events.h(), SOON);
    if event.number() == DAT_CONNECTION_EVENT_ESTABLISHED {
        event = expect_event(conn.events.h(), SOON);
    }
    assert!(event.number() > DAT_CONNECTION_EVENT_ESTABLISHED, "the event does not end a connection");
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
    ctx.meet();
}

fn server_disconnects_in_cmp(ctx: &Ctx) {
    let (scene, stopped) = completing(ctx);
    disconnect(&scene.own, DAT_CLOSE_ABRUPT_FLAG);
    is_over(&scene.own);
    drop(stopped);
    ctx.meet();
    expect_nothing(scene.own.events.h());
}

fn server_frees_in_cmp(ctx: &Ctx) {
    let (scene, stopped) = completing(ctx);
    drop(scene);
    drop::<Stopped>(stopped);
    ctx.meet();
}

fn held_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    ctx.send_number(std::process::id().into());
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    (1..=3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn held_server(ctx: &Ctx) {
    let (scene, stopped) = completing(ctx);
    (1..=3).for_each(|id| post_empty_send(&scene.own, id));
    assert_eq!(idle(&scene.own), (true, false));
    expect_nothing(scene.own.request.h());
    drop(stopped);
    scene.own.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    (1..=3).for_each(|id| _ = expect_dto(scene.own.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn server_flushes_held(ctx: &Ctx) {
    let (scene, stopped) = completing(ctx);
    (1..=3).for_each(|id| post_empty_send(&scene.own, id));
    disconnect(&scene.own, DAT_CLOSE_ABRUPT_FLAG);
    assert_eq!(cookies(&drain(scene.own.request.h())), [1, 2, 3]);
    is_over(&scene.own);
    drop(stopped);
    ctx.meet();
}

/// An abrupt disconnect of an EP that is connected, connects or disconnects flushes the receives and yields exactly one
/// disconnect event.
fn flushes_all(at: EpState, scene: &Scene) {
    (1..=3).for_each(|id| post_empty_recv(&scene.own, id));
    disconnect(&scene.own, DAT_CLOSE_ABRUPT_FLAG);
    assert_eq!(cookies(&drain(scene.own.recv.h())), [1, 2, 3]);
    is_over(&scene.own);
    if at == Disconnecting {
        expect_flushed(&scene.own.request, [WAITING_SEND]);
    }
    assert_eq!(idle(&scene.own), (true, true));
}
