//! Private data of requests and accepts: sizes, alignment, padding and lifetime. Also events that have no private data.
#![forbid(unsafe_code)]

use crate::cases::ep::scene::{ConnectionRequest, silent_listener};
use crate::kit::*;

use super::asked::{PendingRequest, accepted, asked, data_of, pattern};
use super::call::Call;
use super::cr::ACCEPT_LIMIT;
use super::disconnect::is_over;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 9": cr_query_private_data_is_aligned_and_zero_padded,
        "spec/endpoints 13.12": private_data_is_absent_in_established_on_the_passive_side => pair(client_sends_48, server_takes_48),
        "spec/endpoints 8.3": private_data_is_absent_in_disconnect_events,
        "spec/endpoints 9.3": private_data_of_a_connect_is_copied_before_the_call_returns,
        "spec/consumers 9": private_data_limit_is_at_least_48_bytes,
        "spec/endpoints 9.2": private_data_of_an_accept_of_the_maximum_length_arrives,
        "spec/endpoints 9.2": private_data_contains_no_bytes_of_an_earlier_connection,
    ];
    let sizes = [0, 1, 4, 8, 30, 32, 36, 48, 63, 64];
    all.extend(sizes.map(|size| {
        let name = format!("private_data_of_{size}_bytes_arrives_in_both_directions");
        let case = pair(move |ctx| sends(ctx, size), move |ctx| answers(ctx, size));
        case.named(name).proves("spec/endpoints 9.2")
    }));
    all
}

fn cr_query_private_data_is_aligned_and_zero_padded(ctx: &Ctx) {
    let asked = asked(ctx, &pattern(5, 9));
    let param = asked.request.param();
    assert_eq!(param.private_data.addr() % 8, 0);
    let all = bytes_at(param.private_data, 256);
    assert_eq!(all[..5], pattern(5, 9));
    assert!(all[5..].iter().all(|byte| *byte == 0), "the bytes after the private data are not zero");
}

fn sends(ctx: &Ctx, size: usize) {
    let conn = Conn::alone(ctx);
    let (address, data) = (Some(ctx.receive_address()), pattern(size, 1));
    ok(Call { address, ..Call::to(&conn.ia, ctx.qual(0)).carrying(&data) }.make(conn.ep.h()));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    let shown = event.connection();
    expect_data(&event.private_data(), &pattern(size, 2));
    if size > 0 {
        let all = bytes_at(shown.private_data, 256);
        assert!(all[size..].iter().all(|byte| *byte == 0), "the bytes after the private data are not zero");
    }
    ctx.meet();
}

fn answers(ctx: &Ctx, size: usize) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    let request = ConnectionRequest::arrives(&requests);
    expect_data(&data_of(&request), &pattern(size, 1));
    let mut data = pattern(size, 2);
    ok(dat_cr_accept(request.leak(), conn.ep.h(), size as DAT_COUNT, data.as_mut_ptr().cast()));
    data.fill(0);
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn client_sends_48(ctx: &Ctx) {
    sends(ctx, 48);
}

fn server_takes_48(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (requests, _psp) = silent_listener(ctx, &conn.ia, 0);
    ctx.send_address(&conn.ia);
    let mut data = pattern(48, 2);
    let cr = ConnectionRequest::arrives(&requests).leak();
    ok(dat_cr_accept(cr, conn.ep.h(), 48, data.as_mut_ptr().cast()));
    let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED).connection();
    assert_eq!(event.private_data_size, 0);
    assert!(event.private_data.is_null());
    ctx.meet();
}

fn private_data_is_absent_in_disconnect_events(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    ok(dat_ep_disconnect(client.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    for conn in [&client, &server] {
        let event = expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_DISCONNECTED).connection();
        assert_eq!(event.private_data_size, 0);
        assert!(event.private_data.is_null());
    }
}

fn private_data_of_a_connect_is_copied_before_the_call_returns(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let mut data = pattern(40, 8);
    ok(Call::to(&ia, ctx.qual(0)).carrying(&data).make(client.ep.h()));
    data.fill(0xff);
    let request = ConnectionRequest::arrives(&requests);
    expect_data(&data_of(&request), &pattern(40, 8));
    accepted(request, &client, &server);
}

/// Programs send up to 48 bytes. This is also the smallest limit in spec/endpoints 9.1 (rdma_cm with DAT 1.2), other
/// than that of `cm=none` of verbs, which has no private data.
fn private_data_limit_is_at_least_48_bytes(ctx: &Ctx) {
    let limit = ctx.ia().provider_attr().max_private_data_size as usize;
    assert!(limit >= 48, "max_private_data_size is {limit}, wanted at least 48");
    let asked = asked(ctx, &pattern(limit, 3));
    assert_eq!(data_of(&asked.request), pattern(limit, 3));
}

fn private_data_of_an_accept_of_the_maximum_length_arrives(ctx: &Ctx) {
    let PendingRequest { ia: _ia, requests: _requests, psp: _psp, server, client, request } = asked(ctx, &[]);
    let mut data = pattern(ACCEPT_LIMIT, 4);
    ok(dat_cr_accept(request.leak(), server.ep.h(), data.len() as DAT_COUNT, data.as_mut_ptr().cast()));
    let event = expect_conn(client.events.h(), client.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(event.private_data(), data);
}

/// A long reply, then a short reply into the same EP.
fn private_data_contains_no_bytes_of_an_earlier_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    for size in [60, 3] {
        client.connect(&ia.address(), ctx.qual(0));
        let mut data = pattern(size, 5);
        let cr = ConnectionRequest::arrives(&requests).leak();
        ok(dat_cr_accept(cr, server.ep.h(), size as DAT_COUNT, data.as_mut_ptr().cast()));
        let event = expect_conn(client.events.h(), client.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
        expect_data(&event.private_data(), &data);
        assert!(bytes_at(event.connection().private_data, 256)[size..].iter().all(|byte| *byte == 0));
        server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        client.disconnect();
        is_over(&server);
        ok(dat_ep_reset(client.ep.h()));
        ok(dat_ep_reset(server.ep.h()));
    }
}
