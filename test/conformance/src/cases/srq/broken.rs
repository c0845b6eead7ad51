//! EP_BROKEN of EPs on a shared queue: when it is reported, for which EPs, and its order among other events.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 10": srq_ep_broken_is_reported_after_the_peer_disconnects => served(srq_ep_broken_is_reported_after_the_peer_disconnects),
        "spec/events 10": srq_ep_broken_is_reported_after_a_local_disconnect
            => served(srq_ep_broken_is_reported_after_a_local_disconnect),
        "spec/events 10": srq_ep_broken_is_reported_after_a_failure => served(srq_ep_broken_is_reported_after_a_failure),
        "spec/events 10": srq_ep_broken_is_reported_once_per_connection => served(srq_ep_broken_is_reported_once_per_connection),
        "spec/events 10": srq_ep_broken_is_reported_for_each_of_several_eps => served(srq_ep_broken_is_reported_for_each_of_several_eps),
        "spec/events 10": srq_ep_broken_comes_after_the_completions => served(srq_ep_broken_comes_after_the_completions),
        "spec/events 10": srq_ep_broken_is_not_reported_for_an_ep_without_srq => local(srq_ep_broken_is_not_reported_for_an_ep_without_srq).needs(Need::Srq),
        "spec/events 10": srq_ep_broken_is_not_reported_for_a_freed_ep => served(srq_ep_broken_is_not_reported_for_a_freed_ep),
    ]
}

fn srq_ep_broken_is_reported_after_the_peer_disconnects(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..2);
    peer.disconnect(0);
    pool.expect_ep_broken(&ep);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_is_reported_after_a_local_disconnect(_: &Ctx, peer: &Peer, pool: &Pool) {
    for (conn, flags) in [(0, DAT_CLOSE_ABRUPT_FLAG), (1, DAT_CLOSE_GRACEFUL_FLAG)] {
        let ep = peer.connected(pool);
        ok(dat_ep_disconnect(ep.h(), flags));
        pool.expect_ep_broken(&ep);
        pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        peer.gets_the_end(conn);
        ok(dat_ep_disconnect(ep.h(), flags));
        expect_quiet(pool.ia.errors(), Duration::from_millis(20));
    }
}

fn srq_ep_broken_is_reported_after_a_failure(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post(0);
    peer.send(0, SLOT + 1, 1);
    pool.expect_ep_broken(&ep);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_is_reported_once_per_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    for _ in 0..3 {
        peer.disconnect(0);
        pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        pool.expect_ep_broken(&ep);
        expect_nothing(pool.ia.errors());
        ok(dat_ep_reset(ep.h()));
        peer.redial(0);
        pool.accept(&ep);
    }
}

fn srq_ep_broken_is_reported_for_each_of_several_eps(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps: Vec<Ep> = (0..4).map(|_| peer.connected(pool)).collect();
    for conn in 0..4 {
        peer.disconnect(conn);
    }
    let mut wanted: Vec<_> = eps.iter().map(|ep| ep.h()).collect();
    while !wanted.is_empty() {
        let event = expect_event(pool.ia.errors(), SOON);
        event.is(DAT_ASYNC_ERROR_EP_BROKEN);
        let about = event.asynchronous().dat_handle;
        let at = wanted.iter().position(|ep| *ep == about).expect("each EP is reported once");
        wanted.remove(at);
    }
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_comes_after_the_completions(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..8);
    peer.send_many(0, 8, 0);
    peer.sees(0, 8, DAT_DTO_SUCCESS);
    peer.disconnect(0);
    pool.expect_ep_broken(&ep);
    // Dequeues without a wait: all completions are already queued.
    let all = drain(pool.recv.h());
    assert_eq!(all.len(), 8);
    for (slot, event) in all.iter().enumerate() {
        check_dto(&event.dto(), slot as u64, DAT_DTO_SUCCESS, 8);
    }
}

fn srq_ep_broken_is_not_reported_for_an_ep_without_srq(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_quiet(client.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_is_not_reported_for_a_freed_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    // Neither the free of an unconnected EP nor that of a connected EP queues EP_BROKEN.
    pool.ep().free();
    let ep = peer.connected(pool);
    ep.free();
    peer.gets_the_end(0);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}
