//! Ends of connections on a shared queue, by a disconnect, a reset, a free or an error: effects on posted receives,
//! queued completions and other connections. Also the free of the queue.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 6": srq_receives_survive_a_disconnect => served(srq_receives_survive_a_disconnect),
        "spec/events 6": srq_receives_survive_a_local_disconnect => served(srq_receives_survive_a_local_disconnect),
        "spec/events 6": srq_receives_survive_the_free_of_an_ep => served(srq_receives_survive_the_free_of_an_ep),
        "spec/events 6": srq_receives_are_not_flushed_by_a_disconnect => served(srq_receives_are_not_flushed_by_a_disconnect),
        "spec/events 5.7": srq_ep_reset_keeps_the_queue => served(srq_ep_reset_keeps_the_queue),
        "spec/events 5.7": srq_ep_repeated_reset_keeps_the_queue => served(srq_ep_repeated_reset_keeps_the_queue).limit(40),
        "spec/events 6": srq_connection_that_ends_with_waiting_messages_consumes_no_receive => served(srq_connection_that_ends_with_waiting_messages_consumes_no_receive),
        "spec/events 6": srq_ep_freed_with_waiting_messages_consumes_no_receive => served(srq_ep_freed_with_waiting_messages_consumes_no_receive),
        "spec/events 4.5": srq_message_too_long_breaks_its_connection => served(srq_message_too_long_breaks_its_connection),
        "spec/events 4.5": srq_message_too_long_keeps_other_connections => served(srq_message_too_long_keeps_other_connections),
        "spec/events 4.8": srq_receive_of_freed_memory_completes_with_a_protection_error
            => served(srq_receive_of_freed_memory_completes_with_a_protection_error),
        "spec/events 4.7": srq_ep_disconnecting_gracefully_still_receives
            => served(srq_ep_disconnecting_gracefully_still_receives),
        "spec/events 4.7": srq_ep_free_keeps_queued_completions => served(srq_ep_free_keeps_queued_completions),
        "spec/events 4.7": srq_free_keeps_queued_completions => served(srq_free_keeps_queued_completions),
        "spec/events 6.2": srq_free_is_refused_until_the_last_ep_is_freed
            => served(srq_free_is_refused_until_the_last_ep_is_freed),
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

fn srq_receives_survive_a_local_disconnect(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    peer.gets_the_end(0);
    pool.expect_counts(4, 4);
    expect_nothing(pool.recv.h());
}

fn srq_receives_survive_the_free_of_an_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    pool.post_all(0..4);
    let ep = peer.connected(pool).free();
    pool.expect_end_of_freed(ep);
    peer.gets_the_end(0);
    pool.expect_counts(4, 4);
    let ep = peer.connected(pool);
    peer.send(1, 8, 3);
    let (handle, _, seed) = pool.next();
    assert!(handle.h() == ep.h() && seed == 3);
}

fn srq_receives_are_not_flushed_by_a_disconnect(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_ep_repeated_reset_keeps_the_queue(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_connection_that_ends_with_waiting_messages_consumes_no_receive(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_ep_freed_with_waiting_messages_consumes_no_receive(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (first, second) = (peer.connected(pool), peer.connected(pool));
    peer.send(0, 8, 1);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    first.free();
    pool.post(0);
    pool.expect_counts(1, 1);
    peer.send(1, 8, 2);
    pool.expect(&second, 0, 8, 2);
    peer.gets_the_end(0);
}

fn srq_message_too_long_breaks_its_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..3);
    peer.send(0, SLOT + 1, 1);
    let data = expect_dto(pool.recv.h(), 0, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    assert!(data.ep_handle == ep.h());
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    peer.sees(0, 1, DAT_DTO_ERR_REMOTE_RESPONDER);
    peer.gets_the_end(0);
    expect_nothing(pool.recv.h());
    pool.expect_counts(2, 2);
}

fn srq_message_too_long_keeps_other_connections(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_receive_of_freed_memory_completes_with_a_protection_error(_: &Ctx, peer: &Peer, pool: &Pool) {
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
    // The send finds no receive at the peer, and delays the disconnect.
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

fn srq_ep_free_keeps_queued_completions(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    peer.send_many(0, 3, 1);
    until(|| pool.param().available_dto_count == 1);
    peer.sees(0, 3, DAT_DTO_SUCCESS);
    let dead = ep.free();
    for slot in 0..3 {
        let data = expect_dto(pool.recv.h(), slot, DAT_DTO_SUCCESS, 8);
        assert!(data.ep_handle == dead, "the completion does not name the freed EP");
    }
    pool.expect_counts(1, 1);
}

fn srq_free_keeps_queued_completions(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_free_is_refused_until_the_last_ep_is_freed(_: &Ctx, peer: &Peer, pool: &Pool) {
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
