//! Tests of the counters of endpoints and of the sums of the IA, of attributes that are passed from a query to a create
//! or modify, and of the trace of an endpoint.

use std::ffi::CStr;

use super::*;
use crate::ep::Ep;
use crate::runtime::handle::from_handle;

/// The counters of an EP that are not 0.
fn counters(ep: H) -> Vec<(String, u64)> {
    let attr = query(ep).ep_attr;
    // SAFETY: the query has set a list with this number of attributes, whose strings are NUL-terminated.
    let list =
        unsafe { std::slice::from_raw_parts(attr.ep_provider_specific, attr.ep_provider_specific_count as usize) };
    // SAFETY: the strings of the list are NUL-terminated, and the EP keeps them.
    let text = |string| unsafe { CStr::from_ptr(string) }.to_str().unwrap().to_owned();
    let all = list.iter().map(|named| (text(named.name), text(named.value).parse().unwrap()));
    all.filter(|(_, count)| *count > 0).collect()
}

fn are(counted: &[(String, u64)], wanted: &[(&str, u64)]) {
    let counted: Vec<_> = counted.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counted, wanted);
}

#[test]
fn ep_counts_posts_completions_and_state_changes() {
    let world = World::new(c"counting");
    let (client, server) = world.pair(40);
    are(&counters(client), &[("connects", 1)]);
    for cookie in 0..3 {
        assert_eq!((recv(server, cookie), send(client, cookie)), (DAT_SUCCESS, DAT_SUCCESS));
    }
    recv(server, 9);
    world.deliver();
    assert_eq!(world.completions().len(), 6);
    are(&counters(client), &[("posts.send", 3), ("completions.ok", 3), ("connects", 1)]);
    are(&counters(server), &[("posts.recv", 4), ("completions.ok", 3), ("connects", 1)]);
    assert_eq!(disconnect(client, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    world.deliver();
    assert_eq!(call!(dapl_ep_reset(server)), DAT_SUCCESS);
    let after = [
        ("posts.recv", 4),
        ("completions.ok", 3),
        ("completions.flushed", 1),
        ("connects", 1),
        ("disconnects", 1),
        ("resets", 1),
    ];
    are(&counters(server), &after);

    // When the EP changes to another EVD, it keeps the counts of the old one.
    let other = world.evd(DAT_EVD_DTO_FLAG);
    let mut param = query(server);
    param.recv_evd_handle = other;
    assert_eq!(call!(dapl_ep_modify(server, DAT_EP_FIELD_RECV_EVD_HANDLE, &param)), DAT_SUCCESS);
    are(&counters(server), &after);
    assert_eq!((world.completions().len(), world.connection_events().len()), (1, 2));
    finish(world, &[client, server], &[(other, |evd| call!(dapl_evd_free(evd)))]);
}

#[test]
fn queried_attributes_are_accepted_by_ep_create_and_ep_modify() {
    let world = World::new(c"counting-attributes");
    let ep = world.ep();
    let param = query(ep);
    let mut another = null_mut();
    let attr = &param.ep_attr;
    assert_eq!(
        call!(dapl_ep_create(world.ia(), world.pz, world.dto, world.dto, world.conn, attr, &mut another)),
        DAT_SUCCESS
    );
    let all = DAT_EP_FIELD_ALL & !crate::ep::record::READ_ONLY;
    assert_eq!(call!(dapl_ep_modify(another, all, &param)), DAT_SUCCESS);
    are(&counters(another), &[]);
    finish(world, &[ep, another], &[]);
}

#[test]
fn ia_keeps_the_counts_of_freed_objects() {
    let world = World::new(c"counting-sums");
    let (client, server) = world.pair(41);
    recv(server, 1);
    send(client, 1);
    world.deliver();
    assert_eq!(world.completions().len(), 2);
    let ia = &world.opened.ia;
    let before = ia.totals_now();
    assert_eq!((before.eps.sends, before.eps.ok, before.eps.connects), (1, 2, 2));
    for ep in [client, server] {
        assert_eq!(call!(dapl_ep_free(ep)), DAT_SUCCESS);
    }
    let after = ia.totals_now();
    assert_eq!((after.eps.sends, after.eps.ok, after.eps.disconnects), (1, 2, 2));
    assert_eq!((after.each.len(), after.evds.overflows), (4, 0));
    world.deliver();
    world.connection_events();
    finish(world, &[], &[]);
}

#[test]
fn trace_matches_completions_to_posts_and_is_absent_unless_enabled() {
    let plain = World::new(c"counting-untraced");
    let ep = plain.ep();
    let object = from_handle::<Ep<FakeProvider>>(ep, Handle::Ep).unwrap();
    assert!(object.trace.is_none());
    drop(object);
    finish(plain, &[ep], &[]);

    let world = World::traced(c"counting-traced", c"io_trc=4");
    let (client, server) = world.pair(42);
    for cookie in 1..=6 {
        assert_eq!((recv(server, cookie), send(client, cookie)), (DAT_SUCCESS, DAT_SUCCESS));
    }
    recv(server, 7);
    world.deliver();
    assert_eq!(world.completions().len(), 12);
    let ends = |ep: H| {
        let ep = from_handle::<Ep<FakeProvider>>(ep, Handle::Ep).unwrap();
        ep.trace.as_ref().unwrap().ends()
    };
    assert_eq!(ends(client), [(3, true), (4, true), (5, true), (6, true)]);
    assert_eq!(ends(server), [(4, true), (5, true), (6, true), (7, false)]);
    finish(world, &[client, server], &[]);
}
