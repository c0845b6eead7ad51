//! `dat_ep_dup_connect`: its checks, the listener that it connects to, and its private data.
#![forbid(unsafe_code)]

use std::ptr::{from_ref, null_mut};

use crate::cases::ep::scene::ConnectionRequest;
use crate::kit::*;

use super::call::{expect_unconnected, without_connect_evd, without_pz};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/endpoints 5.5": dup_connect_of_a_handle_that_is_no_ep_returns_invalid_handle,
        "spec/endpoints 5.5": dup_connect_with_timeout_zero_returns_invalid_arg3,
        "spec/endpoints 5.5": dup_connect_reports_the_duplicated_eps_state_before_the_missing_evd,
        "spec/endpoints 5.5": dup_connect_on_an_ep_without_a_pz_returns_not_ready,
        "spec/endpoints 5.5": dup_connect_with_qos_is_not_supported,
        "spec/endpoints 14.32": dup_connect_with_too_much_private_data_returns_invalid_arg4,
        "spec/endpoints 14.32": dup_connect_with_a_size_and_no_data_returns_invalid_arg5,
        "spec/endpoints 5.5": dup_connect_reaches_the_listener_of_the_duplicated_ep,
        "spec/endpoints 5.5": dup_connect_carries_private_data,
        "spec/endpoints 5.5": dup_connect_reaches_a_qualifier_above_32_bits,
        "spec/endpoints 5.5": dup_connect_of_a_passive_ep_finds_no_listener,
        "spec/endpoints 5.5": dup_connect_of_the_ep_itself_returns_invalid_state,
    ]
}

/// Calls `dat_ep_dup_connect` without private data.
fn dup(ep: &Ep, like: DAT_EP_HANDLE, timeout: DAT_TIMEOUT, qos: DAT_QOS) -> DAT_RETURN {
    dat_ep_dup_connect(ep.h(), like, timeout, 0, null_mut(), qos)
}

fn dup_connect_of_a_handle_that_is_no_ep_returns_invalid_handle(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    for handle in [DAT_HANDLE_NULL, conn.pz.h(), conn.events.h(), from_ref(&conn.ep).cast_mut().cast()] {
        bad_handle(dup(&conn.ep, handle, DAT_TIMEOUT_INFINITE, DAT_QOS_BEST_EFFORT), DAT_INVALID_HANDLE_EP);
    }
    expect_unconnected(&conn);
}

fn dup_connect_with_timeout_zero_returns_invalid_arg3(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    // The timeout is checked before the state of the EP to duplicate.
    bad_arg(dup(&conn.ep, conn.ep.h(), 0, DAT_QOS_BEST_EFFORT), 3);
    let (client, _server) = ctx.loopback_with(&conn.ia, &Setup::default());
    bad_arg(dup(&conn.ep, client.ep.h(), 0, DAT_QOS_BEST_EFFORT), 3);
    expect_unconnected(&conn);
}

fn dup_connect_reports_the_duplicated_eps_state_before_the_missing_evd(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let code = dup(&without_connect_evd(&conn), conn.ep.h(), DAT_TIMEOUT_INFINITE, DAT_QOS_BEST_EFFORT);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
}

fn dup_connect_on_an_ep_without_a_pz_returns_not_ready(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (client, _server) = ctx.loopback_with(&conn.ia, &Setup::default());
    let ep = without_pz(&conn);
    let code = dup(&ep, client.ep.h(), DAT_TIMEOUT_INFINITE, DAT_QOS_BEST_EFFORT);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn dup_connect_with_qos_is_not_supported(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (client, _server) = ctx.loopback_with(&conn.ia, &Setup::default());
    let code = dup(&conn.ep, client.ep.h(), DAT_TIMEOUT_INFINITE, DAT_QOS_LOW_LATENCY);
    refused(code, DAT_MODEL_NOT_SUPPORTED, DAT_NO_SUBTYPE);
    expect_unconnected(&conn);
}

fn dup_connect_with_too_much_private_data_returns_invalid_arg4(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (client, _server) = ctx.loopback_with(&conn.ia, &Setup::default());
    let limit = conn.ia.provider_attr().max_private_data_size;
    let data = vec![1_u8; 4096];
    for size in [limit + 1, -1] {
        let pointer = data.as_ptr().cast_mut().cast();
        let (ep, like) = (conn.ep.h(), client.ep.h());
        bad_arg(dat_ep_dup_connect(ep, like, DAT_TIMEOUT_INFINITE, size, pointer, DAT_QOS_BEST_EFFORT), 4);
    }
    expect_unconnected(&conn);
}

fn dup_connect_with_a_size_and_no_data_returns_invalid_arg5(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (client, _server) = ctx.loopback_with(&conn.ia, &Setup::default());
    let (ep, like) = (conn.ep.h(), client.ep.h());
    bad_arg(dat_ep_dup_connect(ep, like, DAT_TIMEOUT_INFINITE, 4, null_mut(), DAT_QOS_BEST_EFFORT), 5);
    expect_unconnected(&conn);
}

/// Connects to the qualifier, then duplicates the connection. Returns the private data of the second request.
#[track_caller]
fn second_like_it(ctx: &Ctx, qual: DAT_CONN_QUAL, data: &[u8]) -> Vec<u8> {
    let ia = ctx.ia();
    let [client, server, second, other] = [(); 4].map(|()| Conn::on(&ia));
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let _psp = ia.psp(qual, &requests);
    client.connect(&ia.address(), qual);
    ConnectionRequest::arrives(&requests).accept(&server.ep);
    established(&client, &server);
    let (size, pointer) = (data.len() as DAT_COUNT, data.as_ptr().cast_mut().cast());
    let (ep, like, time) = (second.ep.h(), client.ep.h(), DAT_TIMEOUT_INFINITE);
    ok(dat_ep_dup_connect(ep, like, time, size, pointer, DAT_QOS_BEST_EFFORT));
    let request = ConnectionRequest::arrives(&requests);
    let param = request.param();
    let came = bytes_at(param.private_data, param.private_data_size as usize);
    request.accept(&other.ep);
    established(&second, &other);
    assert_eq!(second.ep.param().remote_port_qual, client.ep.param().remote_port_qual);
    // The first connection is not affected.
    client.ep.expect_state(DAT_EP_STATE_CONNECTED);
    came
}

fn dup_connect_reaches_the_listener_of_the_duplicated_ep(ctx: &Ctx) {
    second_like_it(ctx, ctx.qual(0), &[]);
}

fn dup_connect_carries_private_data(ctx: &Ctx) {
    let data: Vec<u8> = (1..=48).collect();
    assert_eq!(second_like_it(ctx, ctx.qual(0), &data), data);
}

fn dup_connect_reaches_a_qualifier_above_32_bits(ctx: &Ctx) {
    second_like_it(ctx, ctx.qual(0) + (3 << 40), &[]);
}

/// The passive side knows only the peer's source port, on which no program listens.
fn dup_connect_of_a_passive_ep_finds_no_listener(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let conn = Conn::on(&client.ia);
    ok(dup(&conn.ep, server.ep.h(), DAT_TIMEOUT_INFINITE, DAT_QOS_BEST_EFFORT));
    conn.expect(DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
}

fn dup_connect_of_the_ep_itself_returns_invalid_state(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let code = dup(&client.ep, client.ep.h(), DAT_TIMEOUT_INFINITE, DAT_QOS_BEST_EFFORT);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED);
}
