//! `dat_ep_connect`: refused calls and the order of their checks, addresses, connects that fail, and connects of an IA
//! to itself. Also transfers that are posted before ESTABLISHED.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::{ConnectionRequest, EpState, Scene, in_state, silent_listener};
use crate::kit::*;

use super::call::{Call, expect_unconnected, without_connect_evd, without_pz};

/// Requests more than one path.
const MULTIPATH: DAT_CONNECT_FLAGS = DAT_CONNECT_MULTIPATH_FLAG;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/endpoints 5.4": connect_without_an_address_returns_invalid_arg2,
        "spec/endpoints 5.4": connect_reports_a_missing_address_before_a_missing_connect_evd,
        "spec/endpoints 5.4": connect_without_a_connect_evd_returns_invalid_handle,
        "spec/endpoints 5.4": connect_reports_a_missing_connect_evd_before_timeout_zero,
        "spec/endpoints 5.4": connect_with_an_evd_of_a_closed_ia_returns_invalid_handle,
        "spec/endpoints 13.32": connect_with_timeout_zero_returns_invalid_arg4,
        "spec/endpoints 5.4": connect_reports_timeout_zero_before_a_missing_pz,
        "spec/endpoints 5.4": connect_of_a_reserved_ep_without_a_pz_is_not_ready,
        "spec/endpoints 5.4": connect_reports_a_wrong_state_before_an_unsupported_qos,
        "spec/endpoints 5.4": connect_reports_an_unsupported_qos_before_a_negative_private_data_size,
        "spec/endpoints 5.4": connect_that_is_refused_leaves_receives_posted,
        "spec/endpoints 5.4": connect_succeeds_immediately_after_a_refused_call,
        "spec/endpoints 5.4": connect_does_not_modify_the_address,
        "spec/endpoints 5.4": connect_to_an_absent_host_is_unreachable_or_times_out => local(to_absent_host).limit(40),
        "spec/endpoints 8.1": connect_without_a_listener_is_non_peer_rejected,
        "spec/endpoints 4.3": connect_without_a_listener_flushes_receives,
        "spec/endpoints 14.35": connect_succeeds_after_a_rejection_and_a_reset,
        "spec/consumers 7": connect_by_the_address_of_the_ia_succeeds => local(|ctx| by_address(ctx, |ia| ia.address())),
        "spec/consumers 7": connect_by_127_0_0_1_succeeds => local(|ctx| by_address(ctx, |_| Address::ipv4([127, 0, 0, 1]))),
        "spec/consumers 7": connect_by_127_0_1_1_succeeds => local(|ctx| by_address(ctx, |_| Address::ipv4([127, 0, 1, 1]))),
        "spec/endpoints 5.4": connect_with_an_unknown_address_family_returns_address_malformed,
        "spec/consumers 6": connect_ignores_the_port_of_the_address => local(|ctx| by_address(ctx, with_a_port)),
        "spec/consumers 8": connect_of_an_ia_to_itself_in_one_thread_succeeds,
        "spec/endpoints 13.35": connect_of_an_ia_to_itself_returns_before_the_accept,
        "spec/endpoints 13.1": connect_keeps_receives_posted_before_it => pair(survives_client, survives_server),
        "spec/endpoints 4.1": send_posted_directly_after_the_accept_arrives => pair(early_client, early_server),
        "spec/endpoints 4.3": established_comes_before_the_first_receive_on_a_shared_evd => pair(merged_client, early_server),
    ];
    let plain = [
        ("connect_with_qos_high_throughput", DAT_QOS_HIGH_THROUGHPUT, DAT_CONNECT_DEFAULT_FLAG),
        ("connect_with_qos_low_latency", DAT_QOS_LOW_LATENCY, DAT_CONNECT_DEFAULT_FLAG),
        ("connect_with_qos_economy", DAT_QOS_ECONOMY, DAT_CONNECT_DEFAULT_FLAG),
        ("connect_with_qos_premium", DAT_QOS_PREMIUM, DAT_CONNECT_DEFAULT_FLAG),
        ("connect_with_an_unknown_qos", 0x10, DAT_CONNECT_DEFAULT_FLAG),
        ("connect_that_requires_multipath", DAT_QOS_BEST_EFFORT, MULTIPATH),
        ("connect_with_an_unknown_flag", DAT_QOS_BEST_EFFORT, 8),
    ];
    all.extend(plain.map(|(name, qos, flags)| {
        let name = format!("{name}_is_not_supported");
        // In 2.0 the flag accepts a single path, unless a second flag requires several.
        let required =
            move || if flags == MULTIPATH && is_2_0() { v2::DAT_CONNECT_MULTIPATH_REQUIRED_FLAG } else { flags };
        local(move |ctx| not_plain(ctx, qos, required())).named(name).proves("spec/endpoints 13.14")
    }));
    let sizes = [("one_byte_too_many", 1), ("a_negative_size", DAT_COUNT::MIN), ("2_gigabytes", DAT_COUNT::MAX)];
    all.extend(sizes.map(|(word, more)| {
        let name = format!("connect_with_private_data_of_{word}_returns_invalid_arg5");
        local(move |ctx| private_data_refused(ctx, more)).named(name).proves("spec/endpoints 14.2")
    }));
    all.extend(cases!["spec/endpoints 5.4": connect_without_private_data_but_with_a_size_returns_invalid_arg6]);
    all.extend([EpState::Reserved, EpState::Passive, EpState::Active, EpState::Connected, EpState::Disconnected].map(
        |at| {
            let name = format!("connect_in_state_{}_is_refused_without_effect", at.word());
            in_state(at, move |ctx, scene| twice(ctx, at, &scene)).named(name).proves("spec/endpoints 13.22")
        },
    ));
    all
}

fn connect_without_an_address_returns_invalid_arg2(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    bad_arg(Call { address: None, ..Call::to(&conn.ia, 1) }.make(conn.ep.h()), 2);
    expect_unconnected(&conn);
}

fn connect_reports_a_missing_address_before_a_missing_connect_evd(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    bad_arg(Call { address: None, timeout: 0, ..Call::to(&conn.ia, 1) }.make(without_connect_evd(&conn).h()), 2);
}

fn connect_without_a_connect_evd_returns_invalid_handle(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let ep = without_connect_evd(&conn);
    bad_handle(Call::to(&conn.ia, 1).make(ep.h()), DAT_INVALID_HANDLE_EVD_CONN);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn connect_reports_a_missing_connect_evd_before_timeout_zero(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let call = Call { timeout: 0, ..Call::to(&conn.ia, 1) };
    bad_handle(call.make(without_connect_evd(&conn).h()), DAT_INVALID_HANDLE_EVD_CONN);
}

fn connect_with_an_evd_of_a_closed_ia_returns_invalid_handle(ctx: &Ctx) {
    let (name, mut errors) = (ctx.name(), DAT_HANDLE_NULL);
    let other = filled(|ia| dat_ia_openv(name.as_ptr().cast_mut(), 8, &mut errors, ia, 1, 2, DAT_THREADSAFE));
    let flags = DAT_EVD_CONNECTION_FLAG;
    let events: DAT_EVD_HANDLE = filled(|out| dat_evd_create(other, 8, DAT_HANDLE_NULL, flags, out));
    let conn = Conn::alone(ctx);
    let (ia, pz, recv, request) = (conn.ia.h(), conn.pz.h(), conn.recv.h(), conn.request.h());
    let ep = Ep::own(filled(|out| dat_ep_create(ia, pz, recv, request, events, &ep_attr(), out)));
    ok(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG));
    bad_handle(Call::to(&conn.ia, 1).make(ep.h()), DAT_INVALID_HANDLE_EVD_CONN);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn connect_with_timeout_zero_returns_invalid_arg4(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    bad_arg(Call { timeout: 0, ..Call::to(&conn.ia, 1) }.make(conn.ep.h()), 4);
    expect_unconnected(&conn);
}

fn connect_reports_timeout_zero_before_a_missing_pz(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    bad_arg(Call { timeout: 0, ..Call::to(&conn.ia, 1) }.make(without_pz(&conn).h()), 4);
}

/// NOTREADY is checked before the state.
fn connect_of_a_reserved_ep_without_a_pz_is_not_ready(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let requests = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let ep = without_pz(&conn);
    let _rsp = conn.ia.rsp(ctx.qual(0), &ep, &requests);
    let code = Call::to(&conn.ia, 1).make(ep.h());
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
    ep.expect_state(DAT_EP_STATE_RESERVED);
}

fn connect_reports_a_wrong_state_before_an_unsupported_qos(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let call = Call { qos: DAT_QOS_PREMIUM, ..Call::to(&client.ia, 1) };
    refused(call.make(client.ep.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
}

fn connect_reports_an_unsupported_qos_before_a_negative_private_data_size(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let call = Call { qos: DAT_QOS_PREMIUM, size: -1, ..Call::to(&conn.ia, 1) };
    refused(call.make(conn.ep.h()), DAT_MODEL_NOT_SUPPORTED, DAT_NO_SUBTYPE);
}

fn not_plain(ctx: &Ctx, qos: DAT_QOS, flags: DAT_CONNECT_FLAGS) {
    let conn = Conn::alone(ctx);
    if flags == DAT_CONNECT_MULTIPATH_FLAG && conn.ia.provider_attr().supports_multipath != DAT_FALSE {
        return; // a provider that supports multipath may accept the call
    }
    let call = Call { qos, flags, ..Call::to(&conn.ia, ctx.qual(0)) };
    refused(call.make(conn.ep.h()), DAT_MODEL_NOT_SUPPORTED, DAT_NO_SUBTYPE);
    expect_unconnected(&conn);
}

fn private_data_refused(ctx: &Ctx, more: DAT_COUNT) {
    let conn = Conn::alone(ctx);
    let limit = conn.ia.provider_attr().max_private_data_size;
    let size = if more == 1 { limit + 1 } else { more };
    let data = vec![7; 4096];
    let call = Call { size, data: &data, ..Call::to(&conn.ia, ctx.qual(0)) };
    bad_arg(call.make(conn.ep.h()), 5);
    expect_unconnected(&conn);
}

fn connect_without_private_data_but_with_a_size_returns_invalid_arg6(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    bad_arg(Call { size: 1, ..Call::to(&conn.ia, ctx.qual(0)) }.make(conn.ep.h()), 6);
    expect_unconnected(&conn);
}

/// Checks that a connect in a wrong state is refused, keeps the EP's state, and flushes no posted receive.
fn twice(ctx: &Ctx, at: EpState, scene: &Scene) {
    if at != EpState::Disconnected {
        post_empty_recv(&scene.own, 1);
    }
    let code = Call::to(&scene.own.ia, ctx.qual(9)).make(scene.ep());
    refused(code, DAT_INVALID_STATE, at.subtype());
    scene.is_still(at);
    expect_nothing(scene.own.recv.h());
    if at == EpState::Connected {
        post_empty_send(scene.other(), 2);
        expect_dto(scene.own.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    }
}

fn connect_that_is_refused_leaves_receives_posted(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    bad_arg(Call { timeout: 0, ..Call::to(&conn.ia, 1) }.make(conn.ep.h()), 4);
    expect_nothing(conn.recv.h());
    let idle: DAT_BOOLEAN = filled(|out| dat_ep_get_status(conn.ep.h(), null_mut(), out, null_mut()));
    assert_eq!(idle, DAT_FALSE);
}

fn connect_succeeds_immediately_after_a_refused_call(ctx: &Ctx) {
    let (client, server) = (Conn::alone(ctx), Conn::alone(ctx));
    bad_arg(Call { timeout: 0, ..Call::to(&server.ia, ctx.qual(0)) }.make(client.ep.h()), 4);
    server.listen(ctx.qual(0), || client.connect(&server.ia.address(), ctx.qual(0)));
    established(&client, &server);
}

fn connect_does_not_modify_the_address(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = conn.ia.address();
    let before = bytes_at(address.pointer().cast(), 28);
    let call = Call { address: Some(address.clone()), ..Call::to(&conn.ia, ctx.qual(9)) };
    let pointer = call.address.as_ref().expect("this call has an address").pointer();
    ok(call.make(conn.ep.h()));
    conn.expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    assert_eq!(bytes_at(pointer.cast(), 28), before);
}

/// Connects to an address reserved for documentation (RFC 5737). An error detected by the call is returned; otherwise
/// an event arrives, at the latest at the timeout.
fn to_absent_host(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = Some(Address::ipv4([203, 0, 113, 77]));
    let code = Call { address, timeout: 1_000_000, ..Call::to(&conn.ia, ctx.qual(0)) }.make(conn.ep.h());
    if code == DAT_SUCCESS {
        let number = expect_event(conn.events.h(), ctx.left()).number();
        assert!([DAT_CONNECTION_EVENT_UNREACHABLE, DAT_CONNECTION_EVENT_TIMED_OUT].contains(&number));
        conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    } else {
        refused(code, DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE);
        conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    }
    expect_nothing(conn.events.h());
}

fn connect_without_a_listener_is_non_peer_rejected(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&conn.ia.address(), ctx.qual(9));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    assert_eq!(event.connection().private_data_size, 0);
    assert!(event.connection().private_data.is_null());
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
}

fn connect_without_a_listener_flushes_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    (1..=4).for_each(|id| post_empty_recv(&conn, id));
    conn.connect(&conn.ia.address(), ctx.qual(9));
    conn.expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    expect_flushed(&conn.recv, 1..=4);
    expect_nothing(conn.recv.h());
}

fn connect_succeeds_after_a_rejection_and_a_reset(ctx: &Ctx) {
    let (client, server) = (Conn::alone(ctx), Conn::alone(ctx));
    for _ in 0..20 {
        client.connect(&server.ia.address(), ctx.qual(0));
        client.expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
        ok(dat_ep_reset(client.ep.h()));
    }
    server.listen(ctx.qual(0), || client.connect(&server.ia.address(), ctx.qual(0)));
    established(&client, &server);
}

fn by_address(ctx: &Ctx, address: impl Fn(&Ia) -> Address) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let address = address(&ia);
    server.listen(ctx.qual(0), || client.connect(&address, ctx.qual(0)));
    established(&client, &server);
}

/// The refused EP is still unconnected, gets no event, and can connect immediately.
fn connect_with_an_unknown_address_family_returns_address_malformed(ctx: &Ctx) {
    let (client, server) = (Conn::alone(ctx), Conn::alone(ctx));
    for family in [0, 16, 77, u16::MAX] {
        let mut bytes = address_at(server.ia.attr().ia_address_ptr);
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        let call = Call { address: Some(Address::of_bytes(&bytes)), ..Call::to(&server.ia, ctx.qual(0)) };
        refused(call.make(client.ep.h()), DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_MALFORMED);
        client.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
        expect_nothing(client.events.h());
    }
    server.listen(ctx.qual(0), || client.connect(&server.ia.address(), ctx.qual(0)));
    established(&client, &server);
}

fn with_a_port(ia: &Ia) -> Address {
    let mut bytes = address_at(ia.attr().ia_address_ptr);
    bytes[2..4].fill(0x77);
    Address::of_bytes(&bytes)
}

/// One thread plays both roles: no call may wait for a later call of the same thread.
fn connect_of_an_ia_to_itself_in_one_thread_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let events = ia.evd(16, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG);
    let (pz, dto) = (ia.pz(), ia.evd(16, DAT_EVD_DTO_FLAG));
    let (client, server) = (ia.ep(&pz, &dto, &dto, &events), ia.ep(&pz, &dto, &dto, &events));
    let psp = ia.psp(ctx.qual(0), &events);
    ok(Call::to(&ia, ctx.qual(0)).make(client.h()));
    let event = expect_event(events.h(), SOON);
    assert_eq!(event.service_point(), psp.h());
    ok(dat_cr_accept(event.arrival().cr_handle, server.h(), 0, null_mut()));
    let mut named = [(); 2].map(|()| {
        let event = expect_event(events.h(), SOON);
        event.is(DAT_CONNECTION_EVENT_ESTABLISHED);
        event.connection().ep_handle
    });
    named.sort();
    let mut both = [client.h(), server.h()];
    both.sort();
    assert_eq!(named, both);
    ok(dat_ep_disconnect(client.h(), DAT_CLOSE_GRACEFUL_FLAG));
    for _ in 0..2 {
        expect_event(events.h(), SOON).is(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    expect_nothing(events.h());
}

fn connect_of_an_ia_to_itself_returns_before_the_accept(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    conn.connect(&conn.ia.address(), ctx.qual(0));
    conn.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    let _request = ConnectionRequest::arrives(&requests);
    conn.ep.expect_state(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    expect_nothing(conn.events.h());
}

fn survives_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    (11..=13).for_each(|id| post_empty_send(&conn, id));
    (1..=3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    (11..=13).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn survives_server(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    conn.listen(ctx.qual(0), || ctx.send_address(&conn.ia));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    (11..=13).for_each(|id| post_empty_send(&conn, id));
    (1..=3).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0));
    (11..=13).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn early_client(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

/// The first send is posted directly after the accept, without waiting for ESTABLISHED.
fn early_server(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.listen(ctx.qual(0), || ctx.send_address(&conn.ia));
    post_empty_send(&conn, 2);
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

/// With one EVD for connections and completions, ESTABLISHED comes first.
fn merged_client(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, evd) = (ia.pz(), ia.evd(16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG));
    let ep = ia.ep(&pz, &evd, &evd, &evd);
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    let call = Call { address: Some(ctx.receive_address()), ..Call::to(&ia, ctx.qual(0)) };
    ok(call.make(ep.h()));
    expect_conn(evd.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    expect_dto(evd.h(), 1, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}
