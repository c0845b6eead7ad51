//! Connections on a shared queue that end: what becomes of the receives, who hears of it, and who goes on.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "events 6": srq_receives_survive_a_disconnect => served(srq_receives_survive_a_disconnect),
        "events 6": srq_receives_survive_a_disconnect_of_ones_own => served(srq_receives_survive_a_disconnect_of_ones_own),
        "events 6": srq_receives_survive_the_ep => served(srq_receives_survive_the_ep),
        "events 6": srq_receives_are_not_flushed_by_an_end => served(srq_receives_are_not_flushed_by_an_end),
        "events 5.7": srq_ep_reset_keeps_the_queue => served(srq_ep_reset_keeps_the_queue),
        "events 5.7": srq_ep_reset_again_and_again => served(srq_ep_reset_again_and_again).limit(40),
        "events 6": srq_waiting_connection_that_ends_takes_nothing => served(srq_waiting_connection_that_ends_takes_nothing),
        "events 6": srq_waiting_ep_that_is_freed_takes_nothing => served(srq_waiting_ep_that_is_freed_takes_nothing),
        "events 4.5": srq_message_too_long_breaks_its_connection => served(srq_message_too_long_breaks_its_connection),
        "events 4.5": srq_message_too_long_leaves_others_alone => served(srq_message_too_long_leaves_others_alone),
        "events 4.8": srq_receive_of_freed_memory_is_local_protection
            => served(srq_receive_of_freed_memory_is_local_protection),
        "events 4.7": srq_ep_disconnecting_gracefully_still_receives
            => served(srq_ep_disconnecting_gracefully_still_receives),
        "events 4.7": srq_ep_freed_with_completions_queued => served(srq_ep_freed_with_completions_queued),
        "events 4.7": srq_queue_freed_with_completions_queued => served(srq_queue_freed_with_completions_queued),
        "events 6.2": srq_free_is_refused_until_the_last_ep_is_gone
            => served(srq_free_is_refused_until_the_last_ep_is_gone),
        "events 10": srq_ep_broken_after_the_peer_disconnects => served(srq_ep_broken_after_the_peer_disconnects),
        "events 10": srq_ep_broken_after_a_disconnect_of_ones_own
            => served(srq_ep_broken_after_a_disconnect_of_ones_own),
        "events 10": srq_ep_broken_after_a_failure => served(srq_ep_broken_after_a_failure),
        "events 10": srq_ep_broken_once_per_connection => served(srq_ep_broken_once_per_connection),
        "events 10": srq_ep_broken_for_each_of_several => served(srq_ep_broken_for_each_of_several),
        "events 10": srq_ep_broken_comes_after_the_completions => served(srq_ep_broken_comes_after_the_completions),
        "events 10": srq_ep_broken_never_without_a_queue => local(srq_ep_broken_never_without_a_queue).needs(Need::Srq),
        "events 10": srq_ep_broken_never_without_a_connection => served(srq_ep_broken_never_without_a_connection),
        "registry-ia 6.3": srq_abrupt_close_under_connections => pair(is_left, leaves).needs(Need::Srq),
        "consumers 14": srq_peer_is_killed => pair(obey, srq_peer_is_killed).needs(Need::Srq).only_two(),
        "consumers 14": srq_peer_is_killed_while_it_waits
            => pair(obey, srq_peer_is_killed_while_it_waits).needs(Need::Srq).only_two(),
        "events 10": srq_life_of_dtestsrq => pair(srq_client, srq_server).needs(Need::Srq),
    ]
}

fn srq_receives_survive_a_disconnect(_: &Ctx, peer: &Peer, pool: &Pool) {
    let first = peer.connected(pool);
    pool.post_all(0..4);
    peer.send(0, 8, 1);
    pool.expect(&first, 0, 8, 1);
    peer.disconnect(0);
    pool.expect_end(&first, DAT_CONNECTION_EVENT_DISCONNECTED);
    pool.expect_counts(3, 3);
    let second = peer.connected(pool);
    for slot in 1..4 {
        peer.send(1, 8, 10);
        pool.expect(&second, slot, 8, 10);
    }
}

fn srq_receives_survive_a_disconnect_of_ones_own(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    peer.hears_the_end(0);
    pool.expect_counts(4, 4);
    expect_nothing(pool.recv.h());
}

fn srq_receives_survive_the_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    pool.post_all(0..4);
    peer.connected(pool).free();
    peer.hears_the_end(0);
    pool.expect_counts(4, 4);
    let ep = peer.connected(pool);
    peer.send(1, 8, 3);
    let (handle, _, seed) = pool.next();
    assert!(handle.h() == ep.h() && seed == 3);
}

fn srq_receives_are_not_flushed_by_an_end(_: &Ctx, peer: &Peer, pool: &Pool) {
    pool.post_all(0..8);
    for conn in 0..4 {
        let ep = peer.connected(pool);
        peer.disconnect(conn);
        pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        pool.expect_ep_broken(&ep);
    }
    expect_quiet(pool.recv.h(), Duration::from_millis(20));
    pool.expect_counts(8, 8);
}

fn srq_ep_reset_keeps_the_queue(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..2);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    peer.disconnect(0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    ok(dat_ep_reset(ep.h()));
    assert!(ep.param().srq_handle == pool.srq.h());
    peer.redial(0);
    pool.accept(&ep);
    peer.send(0, 8, 2);
    pool.expect(&ep, 1, 8, 2);
}

fn srq_ep_reset_again_and_again(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post(0);
    for round in 0..20 {
        peer.send(0, 8, round);
        pool.expect(&ep, 0, 8, round);
        peer.sees(0, 1, DAT_DTO_SUCCESS);
        peer.disconnect(0);
        pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        pool.expect_ep_broken(&ep);
        ok(dat_ep_reset(ep.h()));
        pool.post(0);
        peer.redial(0);
        pool.accept(&ep);
    }
}

fn srq_waiting_connection_that_ends_takes_nothing(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (first, second) = (peer.connected(pool), peer.connected(pool));
    peer.send(0, 8, 1);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    peer.send(1, 8, 2);
    peer.disconnect(0);
    pool.expect_end(&first, DAT_CONNECTION_EVENT_DISCONNECTED);
    pool.post(0);
    pool.expect(&second, 0, 8, 2);
    pool.post(1);
    pool.expect_counts(1, 1);
}

fn srq_waiting_ep_that_is_freed_takes_nothing(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (first, second) = (peer.connected(pool), peer.connected(pool));
    peer.send(0, 8, 1);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    first.free();
    pool.post(0);
    pool.expect_counts(1, 1);
    peer.send(1, 8, 2);
    pool.expect(&second, 0, 8, 2);
    peer.hears_the_end(0);
}

fn srq_message_too_long_breaks_its_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..3);
    peer.send(0, SLOT + 1, 1);
    let data = expect_dto(pool.recv.h(), 0, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    assert!(data.ep_handle == ep.h());
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    peer.sees(0, 1, DAT_DTO_ERR_REMOTE_RESPONDER);
    peer.hears_the_end(0);
    expect_nothing(pool.recv.h());
    pool.expect_counts(2, 2);
}

fn srq_message_too_long_leaves_others_alone(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (broken, whole) = (peer.connected(pool), peer.connected(pool));
    pool.post_all(0..3);
    peer.send(0, 2 * SLOT, 1);
    expect_dto(pool.recv.h(), 0, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    pool.expect_end(&broken, DAT_CONNECTION_EVENT_BROKEN);
    for slot in 1..3 {
        peer.send(1, SLOT, 7);
        pool.expect(&whole, slot, SLOT, 7);
    }
    whole.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_receive_of_freed_memory_is_local_protection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    let mut memory = pool.ia.memory(&pool.pz, SLOT);
    ok(pool.post_as(9, &mut [memory.segment(0, SLOT)]));
    memory.deregister();
    peer.send(0, 8, 1);
    expect_dto(pool.recv.h(), 9, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    memory.expect_all(0, SLOT, 0);
}

fn srq_ep_disconnecting_gracefully_still_receives(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    // It finds no receive at the peer, and holds the disconnect up.
    ok(dat_ep_post_send(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    pool.post(0);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    ep.expect_state(DAT_EP_STATE_DISCONNECT_PENDING);
    peer.post_recv(0);
    expect_dto(pool.request.h(), 1, DAT_DTO_SUCCESS, 0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
}

fn srq_ep_freed_with_completions_queued(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    peer.send_many(0, 3, 1);
    until(|| pool.param().available_dto_count == 1);
    peer.sees(0, 3, DAT_DTO_SUCCESS);
    let dead = ep.free();
    for slot in 0..3 {
        let data = expect_dto(pool.recv.h(), slot, DAT_DTO_SUCCESS, 8);
        assert!(data.ep_handle == dead, "it names the EP that was");
    }
    pool.expect_counts(1, 1);
}

fn srq_queue_freed_with_completions_queued(_: &Ctx, peer: &Peer, pool: &Pool) {
    let srq = pool.ia.srq(&pool.pz, 4, 1);
    let (ia, attr) = (pool.ia.h(), unmarked());
    let ep = Ep::own(filled(|out| {
        let [pz, recv, request, events] = [pool.pz.h(), pool.recv.h(), pool.request.h(), pool.events.h()];
        dat_ep_create_with_srq(ia, pz, recv, request, events, srq.h(), &attr, out)
    }));
    let ep = peer.connected_to(pool, ep);
    ok(dat_srq_post_recv(srq.h(), 1, &mut pool.slot(2), cookie(2)));
    peer.send(0, 8, 1);
    peer.sees(0, 1, DAT_DTO_SUCCESS);
    until(|| {
        let param: DAT_SRQ_PARAM = filled(|out| dat_srq_query(srq.h(), DAT_SRQ_FIELD_ALL, out));
        param.available_dto_count == 0
    });
    ep.free();
    srq.free();
    expect_dto(pool.recv.h(), 2, DAT_DTO_SUCCESS, 8);
    pool.memory.expect_pattern(2 * SLOT, 8, 1);
    pool.expect_counts(0, 0);
}

fn srq_free_is_refused_until_the_last_ep_is_gone(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (first, second) = (peer.connected(pool), peer.connected(pool));
    let in_use = || refused(dat_srq_free(pool.srq.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
    in_use();
    peer.disconnect(0);
    pool.expect_end(&first, DAT_CONNECTION_EVENT_DISCONNECTED);
    in_use();
    first.free();
    in_use();
    pool.post(0);
    peer.send(1, 8, 1);
    pool.expect(&second, 0, 8, 1);
}

fn srq_ep_broken_after_the_peer_disconnects(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..2);
    peer.disconnect(0);
    pool.expect_ep_broken(&ep);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_after_a_disconnect_of_ones_own(_: &Ctx, peer: &Peer, pool: &Pool) {
    for (conn, flags) in [(0, DAT_CLOSE_ABRUPT_FLAG), (1, DAT_CLOSE_GRACEFUL_FLAG)] {
        let ep = peer.connected(pool);
        ok(dat_ep_disconnect(ep.h(), flags));
        pool.expect_ep_broken(&ep);
        pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
        peer.hears_the_end(conn);
        ok(dat_ep_disconnect(ep.h(), flags));
        expect_quiet(pool.ia.errors(), Duration::from_millis(20));
    }
}

fn srq_ep_broken_after_a_failure(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post(0);
    peer.send(0, SLOT + 1, 1);
    pool.expect_ep_broken(&ep);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_once_per_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_ep_broken_for_each_of_several(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps: Vec<Ep> = (0..4).map(|_| peer.connected(pool)).collect();
    for conn in 0..4 {
        peer.disconnect(conn);
    }
    let mut wanted: Vec<_> = eps.iter().map(|ep| ep.h()).collect();
    while !wanted.is_empty() {
        let event = expect_event(pool.ia.errors(), SOON);
        event.is(DAT_ASYNC_ERROR_EP_BROKEN);
        let about = event.asynchronous().dat_handle;
        let at = wanted.iter().position(|ep| *ep == about).expect("each EP once");
        wanted.remove(at);
    }
}

fn srq_ep_broken_comes_after_the_completions(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..8);
    peer.send_many(0, 8, 0);
    peer.sees(0, 8, DAT_DTO_SUCCESS);
    peer.disconnect(0);
    pool.expect_ep_broken(&ep);
    // Not waited for: all are there.
    let all = drain(pool.recv.h());
    assert_eq!(all.len(), 8);
    for (slot, event) in all.iter().enumerate() {
        check_dto(&event.dto(), slot as u64, DAT_DTO_SUCCESS, 8);
    }
}

fn srq_ep_broken_never_without_a_queue(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    near.disconnect();
    far.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_quiet(near.ia.errors(), Duration::from_millis(20));
}

fn srq_ep_broken_never_without_a_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    // Reserved and never asked for, refused by the other side, freed unconnected.
    pool.ep().free();
    let ep = peer.connected(pool);
    ep.free();
    peer.hears_the_end(0);
    expect_quiet(pool.ia.errors(), Duration::from_millis(20));
}

fn is_left(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..3 {
        let conn = Conn::on(&ia);
        conn.connect(&ctx.hear_address(), ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        let memory = conn.memory(64);
        for id in 0..8 {
            conn.post_send(id, memory.segment(0, 64));
        }
        ctx.meet();
        expect_conn(conn.events.h(), conn.ep.h(), DAT_CONNECTION_EVENT_DISCONNECTED);
        conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    }
}

fn leaves(ctx: &Ctx) {
    for round in 0..3 {
        let ia = Ia::open(&ctx.provider, 8);
        let pool = Pool::new(&ia, 8);
        let _psp = ia.psp(ctx.qual(0), &pool.requests).leak();
        ctx.tell_address(&ia);
        let ep = pool.ep();
        // The peer's messages come meanwhile, and find few receives.
        pool.post_all(0..2 * round);
        pool.accept(&ep);
        ctx.meet();
        let (srq, ep) = (pool.srq.h(), ep.leak());
        // The memory stays where it is: the library may be told of it no more, but has to let go of it by itself.
        std::mem::forget(pool);
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
        refused(dat_srq_free(srq), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
        refused(dat_ep_free(ep), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
}

/// The far role of a case whose near process dies: the queue goes on without it.
fn srq_peer_is_killed(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 16);
    let peer = Peer::listen(ctx, &pool);
    let ep = peer.connected(&pool);
    pool.post_all(0..4);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    peer.dies();
    dies_and_others_go_on(ctx, &pool, &ep, 3);
}

fn srq_peer_is_killed_while_it_waits(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 16);
    let peer = Peer::listen(ctx, &pool);
    let ep = peer.connected(&pool);
    peer.send_many(0, 5, 1);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    peer.dies();
    dies_and_others_go_on(ctx, &pool, &ep, 0);
}

#[track_caller]
fn dies_and_others_go_on(ctx: &Ctx, pool: &Pool, ep: &Ep, left: DAT_COUNT) {
    let event = expect_event(pool.events.h(), SOON);
    let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
    assert!(is_end && event.connection().ep_handle == ep.h(), "{}", number_name(event.number()));
    pool.expect_ep_broken(ep);
    pool.expect_counts(left, left);
    let psp = pool.ia.psp(ctx.qual(1), &pool.requests);
    let (near, other) = (Conn::on(&pool.ia), pool.ep());
    near.connect(&pool.ia.address(), ctx.qual(1));
    pool.accept(&other);
    near.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    pool.post(9);
    let memory = near.memory(8);
    for id in 0..=left as u64 {
        near.post_send(id, memory.segment(0, 8));
        let (handle, _, _) = pool.next();
        assert!(handle.h() == other.h());
    }
    drop(psp);
}

/// As dtestsrq: EPs, burst.
const EPS: usize = 8;
const BURST: usize = 10;

/// What the attributes of that program are.
fn program_attr() -> DAT_EP_ATTR {
    let burst = BURST as DAT_COUNT;
    DAT_EP_ATTR {
        max_recv_dtos: burst,
        max_request_dtos: burst,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: 0,
        max_rdma_read_out: 0,
        srq_soft_hw: DAT_HW_DEFAULT,
        ..ep_attr()
    }
}

fn srq_client(ctx: &Ctx) {
    let ia = ctx.ia();
    let pool = Pool::new(&ia, 2 * (EPS * BURST) as DAT_COUNT);
    let address = ctx.hear_address();
    let eps: Vec<Ep> = (0..EPS).map(|_| pool.ep_with(&program_attr())).collect();
    for ep in &eps {
        let (pointer, no_data, flags) = (address.pointer(), null_mut(), DAT_CONNECT_DEFAULT_FLAG);
        let no_limit = DAT_TIMEOUT_INFINITE;
        ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, no_data, DAT_QOS_BEST_EFFORT, flags));
        expect_conn(pool.events.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    ping(ctx, &pool, &eps);
    for ep in &eps {
        ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
    }
    ends(&pool, &eps);
}

fn srq_server(ctx: &Ctx) {
    let ia = ctx.ia();
    let pool = Pool::new(&ia, 2 * (EPS * BURST) as DAT_COUNT);
    let psp = ia.psp(ctx.qual(0), &pool.requests);
    ctx.tell_address(&ia);
    let eps: Vec<Ep> = (0..EPS).map(|_| pool.ep_with(&program_attr())).collect();
    for ep in &eps {
        pool.accept(ep);
    }
    psp.free();
    ping(ctx, &pool, &eps);
    ends(&pool, &eps);
}

/// Posts for all, sends a burst over each EP, and takes what comes, posting each receive again.
fn ping(ctx: &Ctx, pool: &Pool, eps: &[Ep]) {
    assert!(pool.recv.param().evd_qlen >= 64, "at least as long as asked for");
    let all = (EPS * BURST) as u64;
    pool.post_all(0..all);
    let memory = pool.ia.memory(&pool.pz, 64);
    ctx.meet();
    for ep in eps {
        for id in 0..BURST as u64 {
            let mut segment = memory.segment(0, 64);
            ok(dat_ep_post_send(ep.h(), 1, &mut segment, cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        }
    }
    let mut came = vec![0; EPS];
    for _ in 0..all {
        let (handle, slot, _) = pool.next();
        let at = eps.iter().position(|ep| ep.h() == handle.h()).expect("one of ours");
        came[at] += 1;
        pool.post(slot);
    }
    assert_eq!(came, vec![BURST; EPS]);
    for _ in 0..all {
        let data = expect_event(pool.request.h(), SOON).dto();
        assert!(data.status == DAT_DTO_SUCCESS, "{}", status_name(data.status));
    }
    pool.expect_counts(all as DAT_COUNT, all as DAT_COUNT);
    ctx.meet();
}

/// One DISCONNECTED per EP, and one EP_BROKEN, both waited for without limit.
fn ends(pool: &Pool, eps: &[Ep]) {
    for _ in eps {
        expect_event(pool.events.h(), SOON).is(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    for _ in eps {
        expect_event(pool.ia.errors(), SOON).is(DAT_ASYNC_ERROR_EP_BROKEN);
    }
    expect_nothing(pool.recv.h());
}
