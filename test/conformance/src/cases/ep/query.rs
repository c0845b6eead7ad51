//! `dat_ep_query`: the fields that each mask writes, the objects in use, both addresses in each state, and the remote
//! qualifier.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::parts::{Parts, numbers};
use super::scene::{EpState, Scene, in_state};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/endpoints 5.2": ep_query_without_out_pointer_returns_invalid_arg3,
        "spec/endpoints 5.2": ep_query_with_an_empty_mask_writes_nothing,
        "spec/endpoints 5.2": ep_query_of_unknown_bits_writes_nothing,
        "spec/endpoints 5.2": ep_query_accepts_unknown_bits_beside_known_ones,
        "spec/endpoints 5.2": ep_query_returns_the_objects_in_use,
        "spec/endpoints 5.2": ep_query_remote_address_is_cleared_by_a_reset,
        "spec/endpoints 5.2": ep_query_remote_address_outlives_the_connection,
        "spec/endpoints 5.2": ep_query_returns_a_qualifier_above_16_bits_unchanged => local(returns_wide_qualifier_unchanged),
        "spec/endpoints 5.2": ep_query_of_the_passive_ep_does_not_return_the_listeners_qualifier,
    ];
    all.extend((0..31).filter(|bit| *bit != 11).map(|bit| {
        let name = format!("ep_query_of_mask_bit_{bit}_writes_all_fields");
        local(move |ctx| one_bit_writes_all(ctx, 1 << bit)).named(name).proves("spec/endpoints 5.2")
    }));
    all.extend(EpState::ALL.map(|at| {
        let name = format!("ep_query_in_state_{}_returns_the_addresses", at.word());
        in_state(at, move |ctx, scene| addresses(ctx, at, &scene)).named(name).proves("spec/endpoints 5.2")
    }));
    all
}

fn ep_query_without_out_pointer_returns_invalid_arg3(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    bad_arg(dat_ep_query(ep.h(), DAT_EP_FIELD_ALL, null_mut()), 3);
    bad_arg(dat_ep_query(ep.h(), 0, null_mut()), 3);
}

/// A record whose state and port qualifiers no EP of these cases has, so that a query that fills in the record is
/// noticed.
fn marked() -> DAT_EP_PARAM {
    DAT_EP_PARAM { ep_state: 77, local_port_qual: 78, remote_port_qual: 79, ..zeroed() }
}

fn is_marked(param: &DAT_EP_PARAM) -> bool {
    (param.ep_state, param.local_port_qual, param.remote_port_qual) == (77, 78, 79) && param.ia_handle.is_null()
}

fn ep_query_with_an_empty_mask_writes_nothing(ctx: &Ctx) {
    let (parts, mut param) = (Parts::new(ctx), marked());
    let ep = parts.ep(&ep_attr());
    ok(dat_ep_query(ep.h(), 0, &mut param));
    assert!(is_marked(&param));
}

fn ep_query_of_unknown_bits_writes_nothing(ctx: &Ctx) {
    let (parts, mut param) = (Parts::new(ctx), marked());
    let ep = parts.ep(&ep_attr());
    ok(dat_ep_query(ep.h(), !DAT_EP_FIELD_ALL, &mut param));
    assert!(is_marked(&param));
}

fn ep_query_accepts_unknown_bits_beside_known_ones(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    let param = filled(|out| dat_ep_query(ep.h(), !0, out));
    assert_eq!((param.ia_handle, param.pz_handle), (parts.ia.h(), parts.pz.h()));
}

fn one_bit_writes_all(ctx: &Ctx, mask: DAT_EP_PARAM_MASK) {
    let (parts, mut param) = (Parts::new(ctx), marked());
    let ep = parts.ep(&ep_attr());
    ok(dat_ep_query(ep.h(), mask, &mut param));
    assert_eq!((param.ep_state, param.ia_handle, param.pz_handle), (0, parts.ia.h(), parts.pz.h()));
    assert_eq!(numbers(&param.ep_attr), numbers(&ep.param().ep_attr));
}

fn ep_query_returns_the_objects_in_use(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let param = parts.ep(&ep_attr()).param();
    assert_eq!(param.ia_handle, parts.ia.h());
    assert_eq!(param.pz_handle, parts.pz.h());
    assert_eq!(param.recv_evd_handle, parts.recv.h());
    assert_eq!(param.request_evd_handle, parts.request.h());
    assert_eq!(param.connect_evd_handle, parts.connect.h());
    assert!(param.srq_handle.is_null());
}

/// Family and host of an address, without the port.
fn host(address: &[u8]) -> Vec<u8> {
    [&address[..2], &address[4..]].concat()
}

/// Each state reports the IA's own address. The peer's address is reported once the request or the connect call has
/// supplied it.
fn addresses(_ctx: &Ctx, at: EpState, scene: &Scene) {
    let param = filled(|out| dat_ep_query(scene.ep(), DAT_EP_FIELD_ALL, out));
    let own = scene.own.ia.attr().ia_address_ptr;
    assert_eq!(param.local_ia_address_ptr.addr(), own.addr(), "the query returns another pointer than that of the IA");
    assert!(!param.remote_ia_address_ptr.is_null(), "remote_ia_address_ptr is null");
    let remote = address_at(param.remote_ia_address_ptr);
    match at {
        EpState::Unconnected | EpState::Reserved => {
            assert_eq!(remote[..2], [0, 0], "the EP has a remote address before a connection")
        }
        _ => assert_eq!(host(&remote), host(&address_at(own)), "the remote address is not the peer's"),
    }
}

fn ep_query_remote_address_is_cleared_by_a_reset(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    for conn in [&client, &server] {
        ok(dat_ep_reset(conn.ep.h()));
        let param = conn.ep.param();
        assert_eq!(address_at(param.remote_ia_address_ptr)[..2], [0, 0]);
        assert_eq!(param.remote_port_qual, 0);
    }
}

fn ep_query_remote_address_outlives_the_connection(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let before = [&client, &server].map(|conn| address_at(conn.ep.param().remote_ia_address_ptr));
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    assert_eq!([&client, &server].map(|conn| address_at(conn.ep.param().remote_ia_address_ptr)), before);
}

/// A qualifier above 16 bits is reported unchanged, because `dat_ep_dup_connect` needs it.
fn returns_wide_qualifier_unchanged(ctx: &Ctx) {
    let ia = ctx.ia();
    let qual = ctx.qual(0) + (7 << 35);
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    server.listen(qual, || {
        client.connect(&ia.address(), qual);
        assert_eq!(client.ep.param().remote_port_qual, qual);
    });
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(client.ep.param().remote_port_qual, qual);
    server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

/// The server EP's remote qualifier is the client's port, not the qualifier of the server's PSP (spec/endpoints 13.27).
fn ep_query_of_the_passive_ep_does_not_return_the_listeners_qualifier(ctx: &Ctx) {
    let (_client, server) = ctx.loopback();
    assert_ne!(server.ep.param().remote_port_qual, ctx.qual(0));
}
