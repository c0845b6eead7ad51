//! Watermarks: the low one of a queue, the soft and the hard one of an EP, with a shared queue and without.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "events 6.6": srq_low_watermark_as_messages_come => served(srq_low_watermark_as_messages_come),
        "events 6.6": srq_low_watermark_is_told_once => served(srq_low_watermark_is_told_once),
        "events 6.6": srq_low_watermark_is_told_again_when_set_again
            => served(srq_low_watermark_is_told_again_when_set_again),
        "events 6.6": srq_low_watermark_zero_is_none => served(srq_low_watermark_zero_is_none),
        "events 6.6": srq_low_watermark_of_all_connections => served(srq_low_watermark_of_all_connections),
        "events 6.6": srq_low_watermark_of_an_empty_queue_is_told_at_once,
        "events 6.6": srq_low_watermark_that_is_reached_exactly_is_not_told,
        "events 6.6": srq_low_watermark_as_high_as_the_queue,
        "events 6.6": srq_low_watermark_after_a_resize,
        "events 6.6": srq_low_watermark_of_one_queue_is_not_the_others,
        "events 5.6": srq_soft_watermark_as_an_attribute => served(srq_soft_watermark_as_an_attribute),
        "events 5.6": srq_soft_watermark_is_told_once => served(srq_soft_watermark_is_told_once),
        "events 5.6": srq_soft_watermark_is_told_again_when_set_again
            => served(srq_soft_watermark_is_told_again_when_set_again),
        "events 5.6": srq_soft_watermark_is_the_eps_own => served(srq_soft_watermark_is_the_eps_own),
        "events 5.6": srq_soft_watermark_does_not_disturb_the_connection
            => served(srq_soft_watermark_does_not_disturb_the_connection),
        "events 5.6": srq_hard_watermark_breaks_the_connection => served(srq_hard_watermark_breaks_the_connection),
        "events 5.6": srq_hard_watermark_leaves_others_alone => served(srq_hard_watermark_leaves_others_alone),
        "events 5.6": srq_hard_watermark_above_what_is_taken_at_once
            => served(srq_hard_watermark_above_what_is_taken_at_once),
        "events 5.6": srq_hard_watermark_is_still_there_after_a_reset
            => served(srq_hard_watermark_is_still_there_after_a_reset),
        "events 5.6": srq_no_watermark_is_never_told => served(srq_no_watermark_is_never_told),
        "events 5.6": srq_watermark_taken_back => served(srq_watermark_taken_back),
    ];
    // EPs without a shared queue have them too.
    all.extend(cases![
        "events 5.6": watermark_of_no_ep,
        "events 5.6": watermark_that_is_none,
        "events 5.6": watermark_in_any_state,
        "events 5.6": watermark_soft_on_posted_receives,
        "events 5.6": watermark_soft_is_told_at_once,
        "events 5.6": watermark_soft_is_told_once_until_set_again,
        "events 5.6": watermark_soft_is_not_of_an_attribute_without_a_queue,
        "events 5.6": watermark_soft_counts_only_what_is_outstanding,
        "events 5.6": watermark_hard_breaks_a_connection,
        "events 5.6": watermark_hard_is_met_at_once,
        "events 5.6": watermark_hard_armed_before_the_connection,
        "events 5.6": watermark_hard_reached_exactly_breaks_nothing,
        "events 5.6": watermark_hard_alone_tells_no_soft_one,
        "events 5.6": watermark_both_at_once,
    ]);
    all.into_iter().map(|case| case.needs(Need::Srq)).collect()
}

const NONE: DAT_COUNT = DAT_WATERMARK_INFINITE;

/// What an SRQ has to say of its receives.
#[track_caller]
fn expect_low(pool: &Pool) {
    let number = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
    expect_async(pool.ia.errors(), number, pool.srq.h(), DAT_SRQ_LOW_WATERMARK_EVENT);
}

/// What an EP has to say of its receives.
#[track_caller]
fn expect_soft(ia: &Ia, ep: &Ep) {
    let number = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
    expect_async(ia.errors(), number, ep.h(), DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
}

#[track_caller]
fn expect_silence(ia: &Ia) {
    expect_quiet(ia.errors(), Duration::from_millis(20));
}

fn srq_low_watermark_as_messages_come(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_low_watermark_is_told_once(_: &Ctx, peer: &Peer, pool: &Pool) {
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
        // Above it again, and below it again: no reason to speak.
        pool.post(slot);
    }
    expect_silence(&pool.ia);
}

fn srq_low_watermark_is_told_again_when_set_again(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_low_watermark_zero_is_none(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_low_watermark_of_all_connections(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_low_watermark_of_an_empty_queue_is_told_at_once(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    for _ in 0..3 {
        ok(dat_srq_set_lw(pool.srq.h(), 1));
        expect_low(&pool);
        expect_silence(&pool.ia);
    }
}

fn srq_low_watermark_that_is_reached_exactly_is_not_told(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    pool.post_all(0..3);
    for low in [1, 2, 3] {
        ok(dat_srq_set_lw(pool.srq.h(), low));
    }
    expect_silence(&pool.ia);
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    expect_low(&pool);
}

fn srq_low_watermark_as_high_as_the_queue(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let most = pool.param().max_recv_dtos;
    for _ in 0..most {
        pool.post(0);
    }
    ok(dat_srq_set_lw(pool.srq.h(), most));
    expect_silence(&pool.ia);
}

fn srq_low_watermark_after_a_resize(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    ok(dat_srq_resize(pool.srq.h(), 32));
    ok(dat_srq_set_lw(pool.srq.h(), 32));
    expect_low(&pool);
    assert_eq!(pool.param().low_watermark, 32);
}

fn srq_low_watermark_of_one_queue_is_not_the_others(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 4);
    let other = Pool::new(&pool.ia, 4);
    other.post_all(0..4);
    ok(dat_srq_set_lw(other.srq.h(), 4));
    ok(dat_srq_set_lw(pool.srq.h(), 4));
    expect_low(&pool);
    expect_silence(&pool.ia);
}

fn srq_soft_watermark_as_an_attribute(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, NONE)));
    pool.post(0);
    expect_nothing(pool.ia.errors());
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    expect_soft(&pool.ia, &ep);
}

fn srq_soft_watermark_is_told_once(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, NONE)));
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

fn srq_soft_watermark_is_told_again_when_set_again(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    for _ in 0..4 {
        ok(dat_ep_set_watermark(ep.h(), 0, NONE));
        pool.post(0);
        peer.send(0, 8, 1);
        pool.expect(&ep, 0, 8, 1);
        expect_soft(&pool.ia, &ep);
    }
}

fn srq_soft_watermark_is_the_eps_own(_: &Ctx, peer: &Peer, pool: &Pool) {
    let marked = peer.connected_to(pool, pool.ep_with(&marked(0, NONE)));
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
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, NONE)));
    pool.post_all(0..10);
    peer.send_many(0, 10, 0);
    for message in 0..10 {
        pool.expect(&ep, message, 8, message as u8);
    }
    ep.expect_state(DAT_EP_STATE_CONNECTED);
    expect_nothing(pool.events.h());
}

fn srq_hard_watermark_breaks_the_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(NONE, 0)));
    pool.post_all(0..3);
    peer.send(0, 8, 1);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    // It had one receive in its hands, and gives it back by completing it; the others are still there.
    let data = expect_event(pool.recv.h(), SOON).dto();
    assert!(data.ep_handle == ep.h());
    pool.expect_counts(2, 2);
    pool.expect_ep_broken(&ep);
    peer.hears_the_end(0);
}

fn srq_hard_watermark_leaves_others_alone(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_hard_watermark_above_what_is_taken_at_once(_: &Ctx, peer: &Peer, pool: &Pool) {
    // As programs do that give the number of messages under way: what is completed is not held any more.
    let ep = peer.connected_to(pool, pool.ep_with(&marked(NONE, 10)));
    pool.post_all(0..10);
    peer.send_many(0, 10, 0);
    peer.sees(0, 10, DAT_DTO_SUCCESS);
    for message in 0..10 {
        pool.expect(&ep, message, 8, message as u8);
    }
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_hard_watermark_is_still_there_after_a_reset(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_no_watermark_is_never_told(_: &Ctx, peer: &Peer, pool: &Pool) {
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

fn srq_watermark_taken_back(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected_to(pool, pool.ep_with(&marked(0, 0)));
    ok(dat_ep_set_watermark(ep.h(), NONE, NONE));
    pool.post(0);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    expect_silence(&pool.ia);
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

#[track_caller]
fn post_recvs(conn: &Conn, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
}

#[track_caller]
fn watch(conn: &Conn, soft: DAT_COUNT, hard: DAT_COUNT) {
    ok(dat_ep_set_watermark(conn.ep.h(), soft, hard));
}

fn watermark_of_no_ep(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let dead = conn.ia.ep(&conn.pz, &conn.recv, &conn.request, &conn.events).free();
    for handle in [null_mut(), conn.recv.h(), dead] {
        refused(dat_ep_set_watermark(handle, 1, 1), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
}

fn watermark_that_is_none(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    for mark in [-2, DAT_VALUE_UNKNOWN, DAT_COUNT::MIN] {
        let refuse = |soft, hard, arg| {
            refused(dat_ep_set_watermark(conn.ep.h(), soft, hard), DAT_INVALID_PARAMETER, arg);
        };
        refuse(mark, 1, DAT_INVALID_ARG2);
        refuse(1, mark, DAT_INVALID_ARG3);
        refuse(mark, mark, DAT_INVALID_ARG2);
    }
    post_recvs(&conn, 0..4);
    expect_silence(&conn.ia);
}

fn watermark_in_any_state(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&near, 100, 100);
    far.disconnect();
    near.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    for mark in [0, NONE] {
        watch(&near, mark, mark);
    }
    ok(dat_ep_reset(near.ep.h()));
    watch(&near, 1, 1);
    expect_silence(&near.ia);
}

fn watermark_soft_on_posted_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    watch(&conn, 2, NONE);
    post_recvs(&conn, 0..2);
    expect_silence(&conn.ia);
    post_recvs(&conn, 2..3);
    expect_soft(&conn.ia, &conn.ep);
}

fn watermark_soft_is_told_at_once(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_recvs(&conn, 0..4);
    watch(&conn, 4, NONE);
    expect_silence(&conn.ia);
    watch(&conn, 3, NONE);
    expect_soft(&conn.ia, &conn.ep);
}

fn watermark_soft_is_told_once_until_set_again(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    watch(&conn, 0, NONE);
    post_recvs(&conn, 0..4);
    expect_soft(&conn.ia, &conn.ep);
    expect_silence(&conn.ia);
    for _ in 0..3 {
        watch(&conn, 0, NONE);
        expect_soft(&conn.ia, &conn.ep);
        expect_nothing(conn.ia.errors());
    }
}

fn watermark_soft_is_not_of_an_attribute_without_a_queue(ctx: &Ctx) {
    // Programs leave zeros there (events 12.8).
    let setup = Setup { attr: DAT_EP_ATTR { srq_soft_hw: 0, ..ep_attr() }, ..Setup::default() };
    let conn = Conn::unconnected(&ctx.ia(), &setup);
    post_recvs(&conn, 0..16);
    expect_silence(&conn.ia);
}

fn watermark_soft_counts_only_what_is_outstanding(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&far, 1, NONE);
    for id in 0..10 {
        post_recvs(&far, [id]);
        ok(dat_ep_post_send(near.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(far.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_silence(&far.ia);
    post_recvs(&far, 10..12);
    expect_soft(&far.ia, &far.ep);
}

/// The far end has broken at a watermark; the near one hears of it.
#[track_caller]
fn expect_broken(near: &Conn, far: &Conn, flushed: u64) {
    far.expect(DAT_CONNECTION_EVENT_BROKEN);
    far.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    for id in 0..flushed {
        expect_dto(far.recv.h(), id, DAT_DTO_ERR_FLUSHED, 0);
    }
    expect_nothing(far.recv.h());
    let event = expect_event(near.events.h(), SOON);
    let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
    assert!(is_end, "{}", number_name(event.number()));
    expect_nothing(near.events.h());
    expect_nothing(far.events.h());
}

fn watermark_hard_breaks_a_connection(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&far, NONE, 2);
    post_recvs(&far, 0..2);
    far.ep.expect_state(DAT_EP_STATE_CONNECTED);
    post_recvs(&far, 2..3);
    expect_broken(&near, &far, 3);
}

fn watermark_hard_is_met_at_once(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    post_recvs(&far, 0..5);
    watch(&far, NONE, 4);
    expect_broken(&near, &far, 5);
}

fn watermark_hard_armed_before_the_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let [near, far] = [0, 1].map(|_| Conn::on(&ia));
    watch(&far, NONE, 2);
    far.listen(ctx.qual(0), || near.connect(&ia.address(), ctx.qual(0)));
    established(&near, &far);
    post_recvs(&far, 0..3);
    expect_broken(&near, &far, 3);
}

fn watermark_hard_reached_exactly_breaks_nothing(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&far, NONE, 3);
    post_recvs(&far, 0..3);
    for id in 0..3 {
        ok(dat_ep_post_send(near.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(far.recv.h(), id, DAT_DTO_SUCCESS, 0);
        post_recvs(&far, [id]);
    }
    far.ep.expect_state(DAT_EP_STATE_CONNECTED);
    expect_nothing(far.events.h());
}

fn watermark_hard_alone_tells_no_soft_one(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&far, NONE, 0);
    post_recvs(&far, 0..1);
    expect_broken(&near, &far, 1);
    expect_silence(&far.ia);
}

fn watermark_both_at_once(ctx: &Ctx) {
    let (near, far) = ctx.loopback();
    watch(&far, 0, 0);
    post_recvs(&far, 0..1);
    expect_broken(&near, &far, 1);
    expect_soft(&far.ia, &far.ep);
    expect_silence(&far.ia);
}
