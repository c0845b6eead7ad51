//! How programs disconnect, exit and cancel threads (spec/consumers 12 to 15), and reset EPs to use them again
//! (spec/endpoints 5.7).
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 12": consumers_12_disconnect_of_six_connections_queues_one_event_each => pair(each_ends_all, each_ends_all),
        "spec/consumers 12": consumers_12_second_disconnect_queues_no_event => pair(each_ends_again, each_ends_again),
        "spec/consumers 13": consumers_13_polling_peer_sees_the_disconnect => pair(client_disconnects, server_polls_for_the_end),
        "spec/consumers 13": consumers_13_waiting_peer_sees_the_disconnect => pair(client_disconnects, server_waits_for_the_end),
        "spec/consumers 13": consumers_13_disconnect_sequence_of_dtest_succeeds => pair(dtest_client, dtest_server),
        "spec/consumers 14": consumers_14_exit_without_cleanup_disconnects_the_peer => pair(client_leaves_all, server_sees_an_orderly_end).only_two(),
        "spec/consumers 14": consumers_14_refused_close_keeps_all_handles_valid,
        "spec/consumers 14": consumers_14_abrupt_close_succeeds_after_a_partial_clean_up => pair(client_cleans_partly, server_gets_event),
        "spec/consumers 15": consumers_15_progress_thread_can_be_cancelled => pair(client_cancels_its_thread, server_connects_to_it),
        "spec/consumers 15": consumers_15_connection_works_after_a_waiter_is_cancelled => pair(client_cancels_after_events, server_connects_and_sends),
        "spec/endpoints 5.7": consumers_reset_cycle_of_dapltest_succeeds => pair(client_resets_and_connects, server_resets_and_accepts).limit(40),
        "spec/endpoints 5.7": consumers_reset_succeeds_after_receives_are_posted_until_full,
    ];
    for (word, client, server) in [
        ("abrupt_on_both_sides", DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_ABRUPT_FLAG),
        ("abrupt_by_client_and_graceful_by_server", DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG),
        ("graceful_by_client_and_abrupt_by_server", DAT_CLOSE_GRACEFUL_FLAG, DAT_CLOSE_ABRUPT_FLAG),
        ("graceful_on_both_sides", DAT_CLOSE_GRACEFUL_FLAG, DAT_CLOSE_GRACEFUL_FLAG),
    ] {
        let case = pair(move |ctx| both_end(ctx, client), move |ctx| both_end(ctx, server));
        all.push(
            case.named(format!("consumers_12_disconnect_{word}_queues_one_event_each")).proves("spec/consumers 12"),
        );
    }
    all
}

fn both_end(ctx: &Ctx, flags: DAT_CLOSE_FLAGS) {
    let conn = ctx.connect();
    for _ in 0..4 {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    }
    ctx.meet();
    ok(dat_ep_disconnect(conn.ep.h(), flags));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    for _ in 0..4 {
        expect_dto(conn.recv.h(), 1, DAT_DTO_ERR_FLUSHED, 0);
    }
    ctx.meet();
    expect_nothing(conn.events.h());
    expect_nothing(conn.recv.h());
}

/// Six connections over one IA, with one EVD for all connection events. The client role connects.
fn six(ctx: &Ctx) -> (Ia, Pz, [Evd; 2], Evd, Vec<Ep>) {
    let ia = ctx.ia();
    let (pz, dtos, requests) = (ia.pz(), ia.evd(64, DAT_EVD_DTO_FLAG), ia.evd(16, DAT_EVD_CR_FLAG));
    let events = ia.evd(16, DAT_EVD_CONNECTION_FLAG);
    let eps: Vec<Ep> = (0..6).map(|_| ia.ep(&pz, &dtos, &dtos, &events)).collect();
    if ctx.is_client() {
        let address = ctx.receive_address();
        for ep in &eps {
            let (pointer, no_limit, flags) = (address.pointer(), DAT_TIMEOUT_INFINITE, DAT_CONNECT_DEFAULT_FLAG);
            ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
        }
    } else {
        let psp = ia.psp(ctx.qual(0), &requests);
        ctx.send_address(&ia);
        eps.iter().for_each(|ep| ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, ep.h(), 0, null_mut())));
        psp.free();
    }
    eps.iter().for_each(|_| expect_event(events.h(), SOON).is(DAT_CONNECTION_EVENT_ESTABLISHED));
    (ia, pz, [dtos, requests], events, eps)
}

fn each_ends_all(ctx: &Ctx) {
    let (_ia, _pz, _others, events, eps) = six(ctx);
    ctx.meet();
    eps.iter().for_each(|ep| ok(dat_ep_disconnect(ep.h(), DAT_CLOSE_GRACEFUL_FLAG)));
    let mut wanted: Vec<_> = eps.iter().map(Ep::h).collect();
    while !wanted.is_empty() {
        let event = expect_event(events.h(), SOON);
        event.is(DAT_CONNECTION_EVENT_DISCONNECTED);
        let at = wanted.iter().position(|ep| *ep == event.connection().ep_handle).expect("each EP gets one event");
        wanted.remove(at);
    }
    ctx.meet();
    expect_nothing(events.h());
}

fn each_ends_again(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
    for flags in [DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG] {
        expect(dat_ep_disconnect(conn.ep.h(), flags), DAT_SUCCESS);
    }
    expect_nothing(conn.events.h());
}

fn client_disconnects(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    conn.disconnect();
    ctx.meet();
}

fn server_polls_for_the_end(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    polled_event(conn.events.h()).is(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    ctx.meet();
    expect_nothing(conn.events.h());
}

fn server_waits_for_the_end(ctx: &Ctx) {
    let conn = ctx.connect();
    let waiter = evd_waiter(conn.events.h(), DAT_TIMEOUT_INFINITE, 1).inside(conn.events.h());
    ctx.meet();
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.number, waited.more), (DAT_CONNECTION_EVENT_DISCONNECTED, 0));
    ctx.meet();
}

/// Disconnects, dequeues the event, and frees the memory, the EP, and the receive EVD with events still queued.
fn dtest_client(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(4096);
    (0..5).for_each(|id| conn.post_recv(id, memory.segment(0, 64)));
    ctx.meet();
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_DEFAULT));
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    memory.deregister();
    conn.ep.free();
    conn.recv.free();
    ctx.meet();
}

/// A program that never disconnects.
fn dtest_server(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(4096);
    (0..5).for_each(|id| conn.post_recv(id, memory.segment(0, 64)));
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    memory.deregister();
    conn.ep.free();
    conn.recv.free();
    ctx.meet();
}

/// Makes the shutdown calls of a program that ignores all errors, and exits.
fn client_leaves_all(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(4096);
    conn.post_recv(1, memory.segment(0, 64));
    conn.post_recv(2, memory.segment(0, 64));
    ctx.meet();
    for evd in [&conn.recv, &conn.request, &conn.events] {
        refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    }
    refused(dat_pz_free(conn.pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    let code = dat_ia_close(conn.ia.h(), DAT_CLOSE_GRACEFUL_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
    // The refused calls have changed nothing: the connection still works.
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    memory.deregister();
    // Leaves the objects alive, as an exit handler may find them.
    std::mem::forget((conn, memory));
}

fn server_sees_an_orderly_end(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 0);
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
}

fn consumers_14_refused_close_keeps_all_handles_valid(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    for _ in 0..3 {
        let code = dat_ia_close(objects.ia.h(), DAT_CLOSE_GRACEFUL_FLAG);
        refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
        objects.expect_alive();
    }
    ok(dat_evd_post_se(objects.evd.h(), &software_event(1)));
    assert_eq!(drain(objects.evd.h()).len(), 1);
    objects.ia.pz().free();
}

/// Frees some objects, each time in another order, and closes abruptly.
fn client_cleans_partly(ctx: &Ctx) {
    for order in 0..3 {
        let ia = Ia::open(&ctx.provider, 8);
        let conn = Conn::unconnected(&ia, &Setup::default());
        conn.connect(&ctx.receive_address(), ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        let memory = conn.memory(64);
        conn.post_recv(1, memory.segment(0, 64));
        let handles = [conn.recv.h(), conn.request.h(), conn.events.h()];
        let (adapter, ep, pz, lmr) = (ia.h(), conn.ep.h(), conn.pz.h(), memory.h());
        std::mem::forget((conn, ia, memory));
        let free_evds = || {
            for evd in handles {
                dat_evd_free(evd);
            }
        };
        match order {
            0 => free_evds(),
            1 => {
                ok(dat_ep_free(ep));
                free_evds();
                dat_pz_free(pz);
            }
            _ => {
                dat_pz_free(pz);
                ok(dat_lmr_free(lmr));
                free_evds();
                ok(dat_ep_free(ep));
                dat_evd_free(handles[1]);
            }
        }
        ok(dat_ia_close(adapter, DAT_CLOSE_ABRUPT_FLAG));
        refused(dat_ia_close(adapter, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}

fn server_gets_event(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..3 {
        let conn = Conn::unconnected(&ia, &Setup::default());
        conn.listen(ctx.qual(0), || ctx.send_address(&ia));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
}

/// Cancels threads that sleep on the EVD of requests and connections. The EVD stays usable, and is freed at the end.
fn client_cancels_its_thread(ctx: &Ctx) {
    let ia = ctx.ia();
    let both = ia.evd(16, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG);
    for _ in 0..5 {
        Cancellable::on_evd(both.h()).cancel();
    }
    let mut conn = Conn::unconnected(&ia, &Setup::default());
    conn.ep = ia.ep(&conn.pz, &conn.recv, &conn.request, &both);
    let psp = ia.psp(ctx.qual(0), &both);
    ctx.send_address(&ia);
    ok(dat_cr_accept(expect_cr(both.h()).cr_handle, conn.ep.h(), 0, null_mut()));
    expect_conn(both.h(), conn.ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    Cancellable::on_evd(both.h()).cancel();
    refused(dat_evd_free(both.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    ctx.meet();
    psp.free();
    conn.ep.free();
    both.free();
}

fn server_connects_to_it(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
}

fn client_cancels_after_events(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    let sleeper = Cancellable::on_evd(conn.recv.h());
    (0..3).for_each(|id| conn.post_recv(id, memory.segment(0, 64)));
    sleeper.cancel();
    ctx.meet();
    // After the cancellation, the next waiter gets the events.
    for id in 0..3 {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 8);
    }
    Cancellable::on_evd(conn.recv.h()).cancel();
    ctx.meet();
    conn.ep.free();
    conn.recv.free();
}

fn server_connects_and_sends(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    ctx.meet();
    (0..3).for_each(|id| conn.post_send(id, memory.segment(0, 8)));
    for id in 0..3 {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 8);
    }
    ctx.meet();
}

const CYCLES: u64 = 25;

fn client_resets_and_connects(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    let address = ctx.receive_address();
    let memory = conn.memory(64);
    for cycle in 0..CYCLES {
        conn.post_recv(cycle, memory.segment(0, 64));
        conn.connect(&address, ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        conn.post_send(cycle, memory.segment(0, 32));
        expect_dto(conn.request.h(), cycle, DAT_DTO_SUCCESS, 32);
        expect_dto(conn.recv.h(), cycle, DAT_DTO_SUCCESS, 16);
        conn.disconnect();
        ok(dat_ep_reset(conn.ep.h()));
        conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    }
}

fn server_resets_and_accepts(ctx: &Ctx) {
    let ia = ctx.ia();
    let (conn, requests) = (Conn::unconnected(&ia, &Setup::default()), ia.evd(8, DAT_EVD_CR_FLAG));
    let memory = conn.memory(64);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    for cycle in 0..CYCLES {
        conn.post_recv(cycle, memory.segment(0, 64));
        conn.post_recv(cycle + CYCLES, memory.segment(0, 64));
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        expect_dto(conn.recv.h(), cycle, DAT_DTO_SUCCESS, 32);
        conn.post_send(cycle, memory.segment(0, 16));
        expect_dto(conn.request.h(), cycle, DAT_DTO_SUCCESS, 16);
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        // The last receive is a marker: its completion shows that all earlier events were dequeued.
        conn.post_recv(999, memory.segment(0, 64));
        expect_dto(conn.recv.h(), cycle + CYCLES, DAT_DTO_ERR_FLUSHED, 0);
        expect_dto(conn.recv.h(), 999, DAT_DTO_ERR_FLUSHED, 0);
        ok(dat_ep_reset(conn.ep.h()));
    }
    drop(psp);
}

fn consumers_reset_succeeds_after_receives_are_posted_until_full(ctx: &Ctx) {
    let conn = Conn::unconnected(&ctx.ia(), &Setup::default());
    let memory = conn.memory(64);
    for _ in 0..3 {
        let mut code = DAT_SUCCESS;
        while code == DAT_SUCCESS {
            let mut segment = memory.segment(0, 64);
            code = dat_ep_post_recv(conn.ep.h(), 1, &mut segment, cookie(0), DAT_COMPLETION_DEFAULT_FLAG);
        }
        refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
        ok(dat_ep_reset(conn.ep.h()));
    }
}
