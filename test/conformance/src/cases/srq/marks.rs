//! Watermarks with a shared queue: the queue's low watermark, and the soft and hard watermarks of an EP on the queue.
#![forbid(unsafe_code)]

use crate::cases::ep::watermark::{NONE, expect_silence, expect_soft};
use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    let all = cases![
        "spec/events 6.6": srq_low_watermark_is_reported_when_receives_fall_below_it => served(srq_low_watermark_is_reported_when_receives_fall_below_it),
        "spec/events 6.6": srq_low_watermark_is_reported_once => served(srq_low_watermark_is_reported_once),
        "spec/events 6.6": srq_low_watermark_is_reported_again_when_set_again
            => served(srq_low_watermark_is_reported_again_when_set_again),
        "spec/events 6.6": srq_low_watermark_zero_reports_nothing => served(srq_low_watermark_zero_reports_nothing),
        "spec/events 6.6": srq_low_watermark_counts_receives_of_all_connections => served(srq_low_watermark_counts_receives_of_all_connections),
        "spec/events 6.6": srq_low_watermark_of_an_empty_queue_is_reported_immediately,
        "spec/events 6.6": srq_low_watermark_that_is_reached_exactly_is_not_reported,
        "spec/events 6.6": srq_low_watermark_at_the_length_of_a_full_queue_is_not_reported,
        "spec/events 6.6": srq_low_watermark_may_equal_the_resized_length,
        "spec/events 6.6": srq_low_watermark_is_separate_for_each_queue,
        "spec/events 5.6": srq_soft_watermark_is_reported_for_a_consumed_receive => served(srq_soft_watermark_is_reported_for_a_consumed_receive),
        "spec/events 12": srq_soft_watermark_zero_as_an_attribute_reports_nothing
            => served(srq_soft_watermark_zero_as_an_attribute_reports_nothing),
        "spec/events 5.6": srq_soft_watermark_is_reported_once => served(srq_soft_watermark_is_reported_once),
        "spec/events 5.6": srq_soft_watermark_is_reported_again_when_set_again
            => served(srq_soft_watermark_is_reported_again_when_set_again),
        "spec/events 5.6": srq_soft_watermark_counts_only_receives_of_its_ep => served(srq_soft_watermark_counts_only_receives_of_its_ep),
        "spec/events 5.6": srq_soft_watermark_does_not_disturb_the_connection
            => served(srq_soft_watermark_does_not_disturb_the_connection),
        "spec/events 5.6": srq_hard_watermark_exceeded_breaks_the_connection => served(srq_hard_watermark_exceeded_breaks_the_connection),
        "spec/events 5.6": srq_hard_watermark_exceeded_keeps_other_connections => served(srq_hard_watermark_exceeded_keeps_other_connections),
        "spec/events 5.6": srq_hard_watermark_reached_exactly_keeps_the_connection
            => served(srq_hard_watermark_reached_exactly_keeps_the_connection),
        "spec/events 5.6": srq_hard_watermark_survives_a_reset
            => served(srq_hard_watermark_survives_a_reset),
        "spec/events 5.6": srq_without_watermark_queues_no_event => served(srq_without_watermark_queues_no_event),
        "spec/events 5.6": srq_watermark_attributes_are_disarmed_by_set_watermark => served(srq_watermark_attributes_are_disarmed_by_set_watermark),
    ];
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

/// Expects the low-watermark event of the SRQ.
#[track_caller]
fn expect_low(pool: &Pool) {
    let number = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
    expect_async(pool.ia.errors(), number, pool.srq.h(), DAT_SRQ_LOW_WATERMARK_EVENT);
}

fn srq_low_watermark_is_reported_when_receives_fall_below_it(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    ok(dat_srq_set_lw(pool.srq.h(), 3));
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    expect_silence(&pool.ia);
    peer.send(0, 8, 2);
    pool.expect(&ep, 1, 8, 2);
    expect_low(pool);
}

fn srq_low_watermark_is_reported_once(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    for round in 0..10 {
        let slot = round % 4;
        peer.send(0, 8, 1);
        pool.expect(&ep, slot, 8, 1);
        if round == 0 {
            expect_low(pool);
        }
        // The count rises above the watermark and falls below it again; the watermark is no longer armed, so nothing
        // is reported.
        pool.post(slot);
    }
    expect_silence(&pool.ia);
}

fn srq_low_watermark_is_reported_again_when_set_again(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    for round in 0..5 {
        ok(dat_srq_set_lw(pool.srq.h(), 4));
        expect_nothing(pool.ia.errors());
        peer.send(0, 8, 1);
        pool.expect(&ep, round % 4, 8, 1);
        expect_low(pool);
        pool.post(round % 4);
    }
}

fn srq_low_watermark_zero_reports_nothing(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..2);
    ok(dat_srq_set_lw(pool.srq.h(), 2));
    ok(dat_srq_set_lw(pool.srq.h(), 0));
    for slot in 0..2 {
        peer.send(0, 8, 1);
        pool.expect(&ep, slot, 8, 1);
    }
    expect_silence(&pool.ia);
}

fn srq_low_watermark_counts_receives_of_all_connections(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps = [peer.connected(pool), peer.connected(pool), peer.connected(pool)];
    pool.post_all(0..6);
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    for conn in 0..3 {
        expect_nothing(pool.ia.errors());
        peer.send(conn, 8, 1);
        pool.expect(&eps[conn as usize], conn, 8, 1);
    }
    expect_low(pool);
}

fn srq_low_watermark_of_an_empty_queue_is_reported_immediately(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for _ in 0..3 {
        ok(dat_srq_set_lw(pool.srq.h(), 1));
        expect_low(&pool);
        expect_silence(&pool.ia);
    }
}

fn srq_low_watermark_that_is_reached_exactly_is_not_reported(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    pool.post_all(0..3);
    for low in [1, 2, 3] {
        ok(dat_srq_set_lw(pool.srq.h(), low));
    }
    expect_silence(&pool.ia);
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    expect_low(&pool);
}

fn srq_low_watermark_at_the_length_of_a_full_queue_is_not_reported(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let most = pool.param().max_recv_dtos;
    for _ in 0..most {
        pool.post(0);
    }
    ok(dat_srq_set_lw(pool.srq.h(), most));
    expect_silence(&pool.ia);
}

fn srq_low_watermark_may_equal_the_resized_length(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    ok(dat_srq_resize(pool.srq.h(), 32));
    ok(dat_srq_set_lw(pool.srq.h(), 32));
    expect_low(&pool);
    assert_eq!(pool.param().low_watermark, 32);
}

fn srq_low_watermark_is_separate_for_each_queue(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let other = Pool::new(&pool.ia, 4);
    other.post_all(0..4);
    ok(dat_srq_set_lw(other.srq.h(), 4));
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    expect_low(&pool);
    expect_silence(&pool.ia);
}

/// Returns an EP with the soft watermark 0, so it reports the first receive that it consumes. As an attribute, 0
/// would not arm the watermark.
fn eager(peer: &Peer, pool: &Pool) -> Ep {
    let ep = pool.ep();
    ok(dat_ep_set_watermark(ep.h(), 0, NONE));
    peer.connected_to(pool, ep)
}

fn srq_soft_watermark_is_reported_for_a_consumed_receive(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = eager(peer, pool);
    pool.post(0);
    expect_nothing(pool.ia.errors());
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    expect_soft(&pool.ia, &ep);
}

/// Imitates programs that clear the EP attributes and set only some: such programs expect no watermark event.
fn srq_soft_watermark_zero_as_an_attribute_reports_nothing(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, 8)));
    assert_eq!(ep.param().ep_attr.srq_soft_hw, 0, "the query does not return the requested watermark");
    pool.post_all(0..4);
    peer.send_many(0, 4, 0);
    for message in 0..4 {
        pool.expect(&ep, message, 8, message as u8);
    }
    peer.disconnect(0);
    pool.expect_ep_broken(&ep);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_silence(&pool.ia);
}

fn srq_soft_watermark_is_reported_once(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = eager(peer, pool);
    for round in 0..5 {
        pool.post(0);
        peer.send(0, 8, 1);
        pool.expect(&ep, 0, 8, 1);
        if round == 0 {
            expect_soft(&pool.ia, &ep);
        }
    }
    expect_silence(&pool.ia);
}

fn srq_soft_watermark_is_reported_again_when_set_again(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    for _ in 0..4 {
        ok(dat_ep_set_watermark(ep.h(), 0, NONE));
        pool.post(0);
        peer.send(0, 8, 1);
        pool.expect(&ep, 0, 8, 1);
        expect_soft(&pool.ia, &ep);
    }
}

fn srq_soft_watermark_counts_only_receives_of_its_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    let marked = eager(peer, pool);
    let other = peer.connected(pool);
    pool.post_all(0..2);
    peer.send(1, 8, 1);
    pool.expect(&other, 0, 8, 1);
    expect_silence(&pool.ia);
    peer.send(0, 8, 1);
    pool.expect(&marked, 1, 8, 1);
    expect_soft(&pool.ia, &marked);
}

fn srq_soft_watermark_does_not_disturb_the_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = eager(peer, pool);
    pool.post_all(0..10);
    peer.send_many(0, 10, 0);
    for message in 0..10 {
        pool.expect(&ep, message, 8, message as u8);
    }
    ep.expect_state(DAT_EP_STATE_CONNECTED);
    expect_nothing(pool.events.h());
}

fn srq_hard_watermark_exceeded_breaks_the_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(NONE, 0)));
    pool.post_all(0..3);
    peer.send(0, 8, 1);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    // The EP consumed one of the three receives, whose completion is dequeued here. The others are still queued.
    let data = expect_event(pool.recv.h(), SOON).dto();
    assert!(data.ep_handle == ep.h());
    pool.expect_counts(2, 2);
    pool.expect_ep_broken(&ep);
    peer.gets_the_end(0);
}

fn srq_hard_watermark_exceeded_keeps_other_connections(_: &Ctx, peer: &Peer, pool: &Pool) {
    let broken = peer.connected_to(pool, pool.ep_with(&marked(NONE, 0)));
    let whole = peer.connected(pool);
    pool.post_all(0..3);
    peer.send(0, 8, 1);
    pool.expect_end(&broken, DAT_CONNECTION_EVENT_BROKEN);
    expect_event(pool.recv.h(), SOON);
    for slot in 1..3 {
        peer.send(1, 8, 2);
        pool.expect(&whole, slot, 8, 2);
    }
}

fn srq_hard_watermark_reached_exactly_keeps_the_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    // One message at a time: the EP has consumed one receive at most.
    let ep = peer.connected_to(pool, pool.ep_with(&marked(NONE, 1)));
    for message in 0..10 {
        pool.post(0);
        peer.send(0, 8, message);
        pool.expect(&ep, 0, 8, message);
    }
    ep.expect_state(DAT_EP_STATE_CONNECTED);
    // Like programs whose attribute is the number of messages in flight.
    let ep = peer.connected_to(pool, pool.ep_with(&marked(NONE, 10)));
    pool.post_all(0..10);
    peer.send_many(1, 10, 0);
    peer.sees(1, 10, DAT_DTO_SUCCESS);
    for message in 0..10 {
        pool.expect(&ep, message, 8, message as u8);
    }
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_hard_watermark_survives_a_reset(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    ok(dat_ep_set_watermark(ep.h(), NONE, 0));
    peer.disconnect(0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    ok(dat_ep_reset(ep.h()));
    assert_eq!(ep.param().ep_attr.max_recv_dtos, 0);
    peer.redial(0);
    pool.accept(&ep);
    pool.post(0);
    peer.send(0, 8, 1);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
}

fn srq_without_watermark_queues_no_event(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    ok(dat_ep_set_watermark(ep.h(), NONE, NONE));
    pool.post_all(0..16);
    peer.send_many(0, 16, 0);
    for message in 0..16 {
        pool.expect(&ep, message, 8, message as u8);
    }
    expect_silence(&pool.ia);
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_watermark_attributes_are_disarmed_by_set_watermark(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, 0)));
    ok(dat_ep_set_watermark(ep.h(), NONE, NONE));
    pool.post(0);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    expect_silence(&pool.ia);
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}
