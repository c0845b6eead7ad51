//! Shared queues when their IA is closed abruptly, when the process of a peer is killed, and in the call sequence of
//! the program dtestsrq.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 6.3": srq_abrupt_close_disconnects_the_peer => pair(client_is_left, server_leaves).needs(Need::Srq),
        "spec/consumers 14": srq_stays_usable_after_a_peer_is_killed => pair(obey, server_uses_queue_after_kill).needs(Need::Srq).only_two(),
        "spec/consumers 14": srq_stays_usable_after_a_peer_with_waiting_messages_is_killed
            => pair(obey, server_uses_queue_after_kill_of_waiting_peer).needs(Need::Srq).only_two(),
        "spec/events 10": srq_call_sequence_of_the_program_dtestsrq_succeeds => pair(srq_client, srq_server).needs(Need::Srq),
    ]
}

fn client_is_left(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..3 {
        let conn = Conn::on(&ia);
        conn.connect(&ctx.receive_address(), ctx.qual(0));
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

fn server_leaves(ctx: &Ctx) {
    for round in 0..3 {
        let ia = Ia::open(&ctx.provider, 8);
        let pool = Pool::new(&ia, 8);
        let _psp = ia.psp(ctx.qual(0), &pool.requests).leak();
        ctx.send_address(&ia);
        let ep = pool.ep();
        // While the EP ends, messages of the peer arrive and find few receives.
        pool.post_all(0..2 * round);
        pool.accept(&ep);
        ctx.meet();
        let (srq, ep) = (pool.srq.h(), ep.leak());
        // The memory stays mapped and its LMR is not freed first: the close alone must stop the library's writes.
        std::mem::forget(pool);
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
        refused(dat_srq_free(srq), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
        refused(dat_ep_free(ep), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
}

/// Server role of a case whose client process is killed: the queue remains usable.
fn server_uses_queue_after_kill(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 16);
    let peer = Peer::listen(ctx, &pool);
    let ep = peer.connected(&pool);
    pool.post_all(0..4);
    peer.send(0, 8, 1);
    pool.expect(&ep, 0, 8, 1);
    peer.dies();
    expect_usable_queue_after_death(ctx, &pool, &ep, 3);
}

fn server_uses_queue_after_kill_of_waiting_peer(ctx: &Ctx) {
    let pool = Pool::new(&ctx.ia(), 16);
    let peer = Peer::listen(ctx, &pool);
    let ep = peer.connected(&pool);
    peer.send_many(0, 5, 1);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    peer.dies();
    expect_usable_queue_after_death(ctx, &pool, &ep, 0);
}

#[track_caller]
fn expect_usable_queue_after_death(ctx: &Ctx, pool: &Pool, ep: &Ep, left: DAT_COUNT) {
    let event = expect_event(pool.events.h(), SOON);
    let is_end = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN].contains(&event.number());
    assert!(
        is_end && event.connection().ep_handle == ep.h(),
        "{} is for another EP, or ends no connection",
        number_name(event.number())
    );
    pool.expect_ep_broken(ep);
    pool.expect_counts(left, left);
    let psp = pool.ia.psp(ctx.qual(1), &pool.requests);
    let (client, other) = (Conn::on(&pool.ia), pool.ep());
    client.connect(&pool.ia.address(), ctx.qual(1));
    pool.accept(&other);
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    pool.post(9);
    let memory = client.memory(8);
    for id in 0..=left as u64 {
        client.post_send(id, memory.segment(0, 8));
        let (handle, _, _) = pool.next();
        assert!(handle.h() == other.h());
    }
    drop(psp);
}

/// Number of EPs, as in the program dtestsrq.
const EPS: usize = 8;

/// Number of messages that dtestsrq sends without waiting.
const BURST: usize = 10;

/// The attributes that dtestsrq uses.
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
    let address = ctx.receive_address();
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
    ctx.send_address(&ia);
    let eps: Vec<Ep> = (0..EPS).map(|_| pool.ep_with(&program_attr())).collect();
    for ep in &eps {
        pool.accept(ep);
    }
    psp.free();
    ping(ctx, &pool, &eps);
    ends(&pool, &eps);
}

/// Posts receives for all EPs, sends a burst over each EP, and posts each receive again after its completion.
fn ping(ctx: &Ctx, pool: &Pool, eps: &[Ep]) {
    assert!(pool.recv.param().evd_qlen >= 64, "evd_qlen is less than the requested 64");
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
        let at = eps.iter().position(|ep| ep.h() == handle.h()).expect("the completion names an EP of this case");
        came[at] += 1;
        pool.post(slot);
    }
    assert_eq!(came, vec![BURST; EPS]);
    for _ in 0..all {
        let data = expect_event(pool.request.h(), SOON).dto();
        assert!(
            data.status == DAT_DTO_SUCCESS,
            "a request completed with {}, wanted success",
            status_name(data.status)
        );
    }
    pool.expect_counts(all as DAT_COUNT, all as DAT_COUNT);
    ctx.meet();
}

/// Waits for one DISCONNECTED and one EP_BROKEN event per EP.
fn ends(pool: &Pool, eps: &[Ep]) {
    for _ in eps {
        expect_event(pool.events.h(), SOON).is(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    for _ in eps {
        expect_event(pool.ia.errors(), SOON).is(DAT_ASYNC_ERROR_EP_BROKEN);
    }
    expect_nothing(pool.recv.h());
}
