//! Connections and adapters that several threads open, end and close at the same time.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::*;

use super::{kind_in, run_threads};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 11": threads_connecting_over_separate_adapters_all_succeed => pair(client_connects_in_four, server_accepts_in_two).limit(60),
        "spec/events 11": threads_connecting_over_one_adapter_all_succeed => pair(client_connects_in_four, server_accepts_in_two)
            .shares_ia().limit(60),
        "spec/consumers 12": threads_disconnecting_both_endpoints_queue_one_event_each => pair(each_both_disconnect, each_both_disconnect).limit(60),
        "spec/consumers 12": threads_disconnecting_one_ep_queue_one_event => local(threads_disconnecting_one_ep_queue_one_event).limit(40),
        "spec/events 11": threads_accepting_one_request_succeed_once => local(threads_accepting_one_request_succeed_once).limit(40),
        "spec/events 11": threads_connecting_one_ep_succeed_once => local(threads_connecting_one_ep_succeed_once).limit(40),
        "spec/events 11": threads_freeing_an_ep_complete_all_sends_of_its_peer_in_order
            => local(threads_freeing_an_ep_complete_all_sends_of_its_peer_in_order).limit(40),
        "spec/events 11": threads_freeing_a_listener_during_connects_reject_each_request => local(threads_freeing_a_listener_during_connects_reject_each_request).limit(40),
        "spec/events 1.5": threads_waiting_on_evds_and_a_cno_are_released_by_an_abrupt_close => local(threads_waiting_on_evds_and_a_cno_are_released_by_an_abrupt_close).limit(40),
        "spec/events 11": threads_posting_and_waiting_return_after_an_abrupt_close => local(threads_posting_and_waiting_return_after_an_abrupt_close).limit(60),
        "spec/events 11": abrupt_close_under_load_completes_all_sends_of_the_peer_in_order => pair(client_loads, server_closes).limit(60),
        "spec/events 11": threads_closing_one_adapter_succeed_once => local(threads_closing_one_adapter_succeed_once).limit(40),
        "spec/events 11": threads_closing_one_adapter_keep_another_usable => local(threads_closing_one_adapter_keep_another_usable).limit(40),
        "spec/events 11": threads_resetting_and_connecting_separate_eps_succeed => local(threads_resetting_and_connecting_separate_eps_succeed).limit(60),
    ]
}

/// Number of connections of each thread.
const ROUNDS_PER_THREAD: usize = 6;

fn client_connects_in_four(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    let conns = Mutex::new(Vec::new());
    run_threads(4, |_| {
        for _ in 0..ROUNDS_PER_THREAD {
            let conn = Conn::on(&ia);
            conn.connect(&address, ctx.qual(0));
            conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(7), DAT_COMPLETION_DEFAULT_FLAG));
            expect_dto(conn.request.h(), 7, DAT_DTO_SUCCESS, 0);
            conns.lock().expect("no thread has panicked").push(conn);
        }
    });
    ctx.meet();
    let conns = conns.into_inner().expect("no thread has panicked");
    run_threads(4, |thread| {
        for conn in conns.iter().skip(thread).step_by(4) {
            ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
            conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        }
    });
    ctx.meet();
    conns.iter().for_each(|conn| expect_nothing(conn.events.h()));
}

fn server_accepts_in_two(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(64, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let conns = Mutex::new(Vec::new());
    run_threads(2, |_| {
        for _ in 0..2 * ROUNDS_PER_THREAD {
            let conn = Conn::on(&ia);
            ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
            // Polls, because a wait would be refused while another thread waits.
            let mut event = zeroed();
            until(|| dat_evd_dequeue(requests.h(), &mut event) == DAT_SUCCESS);
            ok(dat_cr_accept(Event(event).arrival().cr_handle, conn.ep.h(), 0, null_mut()));
            conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
            conns.lock().expect("no thread has panicked").push(conn);
        }
    });
    ctx.meet();
    let conns = conns.into_inner().expect("no thread has panicked");
    for conn in &conns {
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    ctx.meet();
    conns.iter().for_each(|conn| expect_nothing(conn.events.h()));
    drop(psp);
}

fn each_both_disconnect(ctx: &Ctx) {
    for round in 0..10 {
        let conn = ctx.connect();
        ctx.meet();
        let flags = if round % 2 == 0 { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
        ok(dat_ep_disconnect(conn.ep.h(), flags));
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        ctx.meet();
        ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        expect_nothing(conn.events.h());
    }
}

fn threads_disconnecting_one_ep_queue_one_event(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..20 {
        let (client, server) = ctx.loopback_with(&ia, &Setup::default());
        run_threads(4, |thread| {
            let ep = if thread < 2 { client.ep.h() } else { server.ep.h() };
            ok(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
        });
        for conn in [&client, &server] {
            conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
            conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
        }
        for conn in [&client, &server] {
            expect_nothing(conn.events.h());
        }
    }
}

fn threads_accepting_one_request_succeed_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    for _ in 0..15 {
        let ends: Vec<Conn> = (0..3).map(|_| Conn::on(&ia)).collect();
        let client = Conn::on(&ia);
        client.connect(&ia.address(), ctx.qual(0));
        let cr = Handle::of(expect_cr(requests.h()).cr_handle);
        let accepted = Mutex::new(Vec::new());
        run_threads(3, |thread| {
            let code = dat_cr_accept(cr.h(), ends[thread].ep.h(), 0, null_mut());
            if code == DAT_SUCCESS {
                accepted.lock().expect("no thread has panicked").push(thread);
            } else {
                refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
            }
        });
        let accepted = accepted.into_inner().expect("no thread has panicked");
        assert_eq!(accepted.len(), 1, "not exactly one thread succeeded");
        client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        for (thread, end) in ends.iter().enumerate() {
            if thread == accepted[0] {
                end.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
            } else {
                end.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
                expect_nothing(end.events.h());
            }
        }
    }
    drop(psp);
}

fn threads_connecting_one_ep_succeed_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    for _ in 0..15 {
        let (client, server) = (Conn::on(&ia), Conn::on(&ia));
        let begun = AtomicUsize::new(0);
        run_threads(3, |_| {
            let address = ia.address();
            let (ep, pointer, flags) = (client.ep.h(), address.pointer(), DAT_CONNECT_DEFAULT_FLAG);
            let (qos, no_limit) = (DAT_QOS_BEST_EFFORT, DAT_TIMEOUT_INFINITE);
            let code = dat_ep_connect(ep, pointer, ctx.qual(0), no_limit, 0, null_mut(), qos, flags);
            kind_in(code, &[DAT_SUCCESS, DAT_INVALID_STATE]);
            begun.fetch_add((code == DAT_SUCCESS).into(), Ordering::Relaxed);
        });
        assert_eq!(begun.into_inner(), 1, "not exactly one thread succeeded");
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, server.ep.h(), 0, null_mut()));
        established(&client, &server);
        expect_nothing(requests.h());
    }
    drop(psp);
}

fn threads_freeing_an_ep_complete_all_sends_of_its_peer_in_order(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..20 {
        let (client, server) = ctx.loopback_with(&ia, &Setup::default());
        let memory = server.memory(4096);
        (0..16).for_each(|id| server.post_recv(id, memory.segment(0, 4096)));
        let from = client.memory(4096);
        let dead = Mutex::new(Some(server.ep));
        let posted = AtomicUsize::new(0);
        run_threads(2, |thread| {
            if thread == 0 {
                until(|| posted.load(Ordering::Acquire) > 2);
                dead.lock()
                    .expect("no thread has panicked")
                    .take()
                    .expect("only this thread frees the EP, once")
                    .free();
                return;
            }
            for id in 0..16 {
                client.post_send(id, from.segment(0, 4096));
                posted.fetch_add(1, Ordering::AcqRel);
            }
        });
        for id in 0..16 {
            assert_eq!(
                context_bits(expect_event(client.request.h(), SOON).dto().user_cookie),
                id,
                "completions are out of order"
            );
        }
        client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        // Completions of the freed EP may be queued on its EVDs, which drop them when they are freed.
        drop((server.recv, server.request, server.events));
    }
}

fn threads_freeing_a_listener_during_connects_reject_each_request(ctx: &Ctx) {
    let ia = ctx.ia();
    let events = ia.evd(64, DAT_EVD_CONNECTION_FLAG);
    let (pz, dtos) = (ia.pz(), ia.evd(8, DAT_EVD_DTO_FLAG));
    for _ in 0..15 {
        let requests = ia.evd(8, DAT_EVD_CR_FLAG);
        let psp = Handle::of(ia.psp(ctx.qual(0), &requests).leak());
        let eps: Vec<Ep> = (0..3).map(|_| ia.ep(&pz, &dtos, &dtos, &events)).collect();
        run_threads(2, |thread| {
            if thread == 0 {
                ok(dat_psp_free(psp.h()));
                return;
            }
            let address = ia.address();
            for ep in &eps {
                let (pointer, no_limit) = (address.pointer(), DAT_TIMEOUT_INFINITE);
                let (qos, flags) = (DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
                ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, null_mut(), qos, flags));
            }
        });
        // Each request is rejected here, or by the library because the listener is gone.
        let mut answered = 0;
        until(|| {
            if let Some(event) = dequeue(requests.h()) {
                ok(dat_cr_reject(event.arrival().cr_handle));
            }
            if let Some(event) = dequeue(events.h()) {
                let number = event.number();
                let refusals = [DAT_CONNECTION_EVENT_PEER_REJECTED, DAT_CONNECTION_EVENT_NON_PEER_REJECTED];
                assert!(refusals.contains(&number), "the event is {}, wanted a rejection", number_name(number));
                answered += 1;
            }
            answered == eps.len()
        });
    }
}

fn threads_waiting_on_evds_and_a_cno_are_released_by_an_abrupt_close(ctx: &Ctx) {
    for _ in 0..10 {
        let ia = ctx.ia();
        let cno = ia.cno();
        let _attached = ia.evd_on(&cno, 4, DAT_EVD_SOFTWARE_FLAG).leak();
        let evds: Vec<Evd> = (0..3).map(|_| ia.evd(4, DAT_EVD_DEFAULT_FLAG)).collect();
        let on_evds: Vec<_> =
            evds.iter().map(|evd| evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h())).collect();
        let on_cno: Vec<_> = (0..3).map(|_| cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep()).collect();
        cno.leak();
        for evd in evds {
            evd.leak();
        }
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
        for waiter in on_evds {
            refused(waiter.join().code, DAT_ABORT, DAT_NO_SUBTYPE);
        }
        for waiter in on_cno {
            let (code, evd) = waiter.join();
            ok(code);
            assert!(evd.h().is_null(), "a wait that the close released returned an EVD");
        }
    }
}

/// An adapter with outstanding work is closed, and all calls of other threads return.
fn threads_posting_and_waiting_return_after_an_abrupt_close(ctx: &Ctx) {
    for _ in 0..8 {
        let ia = ctx.ia();
        let (client, server) = ctx.loopback_with(&ia, &Setup::default());
        let (from, into) = (client.memory(8192), server.memory(8192));
        let cno = ia.cno();
        let software = ia.evd_on(&cno, 16, DAT_EVD_SOFTWARE_FLAG);
        let (adapter, work) = (Handle::of(ia.h()), AtomicUsize::new(0));
        let is_over = |code: DAT_RETURN| kind_of(code) == error(DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
        let others = [DAT_SUCCESS, DAT_INVALID_HANDLE, DAT_INSUFFICIENT_RESOURCES, DAT_INVALID_STATE, DAT_QUEUE_FULL];
        let waits = [DAT_SUCCESS, DAT_ABORT, DAT_INVALID_HANDLE, DAT_INVALID_STATE, DAT_TIMEOUT_EXPIRED];
        run_threads(6, |thread| match thread {
            0 => {
                until(|| work.load(Ordering::Relaxed) > 200);
                ok(dat_ia_close(adapter.h(), DAT_CLOSE_ABRUPT_FLAG));
            }
            1 => until(|| {
                let code = dat_ep_post_send(client.ep.h(), 1, &mut from.segment(0, 8192), cookie(1), 0);
                kind_in(code, &others);
                work.fetch_add(1, Ordering::Relaxed);
                is_over(code)
            }),
            2 => until(|| {
                let code = dat_ep_post_recv(server.ep.h(), 1, &mut into.segment(0, 8192), cookie(1), 0);
                kind_in(code, &others);
                work.fetch_add(1, Ordering::Relaxed);
                is_over(code)
            }),
            3 | 4 => until(|| {
                let evd = if thread == 3 { client.request.h() } else { server.recv.h() };
                let code = dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &mut zeroed(), &mut 0);
                kind_in(code, &waits);
                code != DAT_SUCCESS
            }),
            _ => until(|| {
                kind_in(dat_evd_post_se(software.h(), &software_event(1)), &others);
                let mut evd = DAT_HANDLE_NULL;
                let code = dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, &mut evd);
                kind_in(code, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
                if code == DAT_SUCCESS && !evd.is_null() {
                    let taken = dat_evd_dequeue(evd, &mut zeroed());
                    kind_in(taken, &[DAT_SUCCESS, DAT_INVALID_HANDLE, DAT_QUEUE_EMPTY]);
                }
                work.fetch_add(1, Ordering::Relaxed);
                is_over(code) || evd.is_null()
            }),
        });
        // The close has freed all objects, so the case must not free them. It leaks the buffers too.
        std::mem::forget((client, server, cno, software, ia));
        std::mem::forget((from, into));
    }
}

fn client_loads(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..5 {
        let conn = Conn::on(&ia);
        conn.connect(&ctx.receive_address(), ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        let memory = conn.memory(64 << 10);
        // Posts until a completion fails, because the connection has ended. All accepted work must complete.
        let (mut posted, mut completed, mut has_failed) = (0u64, 0, false);
        while !has_failed || completed < posted {
            if !has_failed {
                let mut segment = memory.segment(0, 64 << 10);
                let code = dat_ep_post_send(conn.ep.h(), 1, &mut segment, cookie(posted), DAT_COMPLETION_DEFAULT_FLAG);
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
                posted += u64::from(code == DAT_SUCCESS);
            }
            while let Some(event) = dequeue(conn.request.h()) {
                let data = event.dto();
                assert_eq!(
                    context_bits(data.user_cookie),
                    completed,
                    "a completion is out of order, missing or duplicate"
                );
                has_failed |= data.status != DAT_DTO_SUCCESS;
                completed += 1;
            }
        }
        let event = expect_event(conn.events.h(), SOON);
        let ends = [DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN];
        assert!(
            ends.contains(&event.number()),
            "the event is {}, wanted DISCONNECTED or BROKEN",
            number_name(event.number())
        );
        expect_nothing(conn.events.h());
    }
}

fn server_closes(ctx: &Ctx) {
    for _ in 0..5 {
        let ia = Ia::open(&ctx.provider, 8);
        let conn = Conn::on(&ia);
        let memory = conn.memory(64 << 10);
        conn.listen(ctx.qual(0), || ctx.send_address(&ia));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        for id in 0..20 {
            conn.post_recv(id, memory.segment(0, 64 << 10));
            expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 64 << 10);
        }
        let adapter = ia.h();
        std::mem::forget((conn, memory, ia));
        ok(dat_ia_close(adapter, DAT_CLOSE_ABRUPT_FLAG));
    }
}

fn threads_closing_one_adapter_succeed_once(ctx: &Ctx) {
    for _ in 0..10 {
        let ia = ctx.ia();
        let _pz = ia.pz().leak();
        let _evd = ia.evd(4, DAT_EVD_DEFAULT_FLAG).leak();
        let ia = Handle::of(ia.leak());
        let closed = AtomicUsize::new(0);
        run_threads(4, |_| {
            let code = dat_ia_close(ia.h(), DAT_CLOSE_ABRUPT_FLAG);
            kind_in(code, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
            closed.fetch_add((code == DAT_SUCCESS).into(), Ordering::Relaxed);
        });
        assert_eq!(closed.into_inner(), 1);
    }
}

fn threads_closing_one_adapter_keep_another_usable(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = server.memory(64);
    run_threads(2, |thread| {
        for round in 0..10 {
            if thread == 0 {
                let ia = Ia::open(&ctx.provider, 4);
                ia.pz().leak();
                ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
                continue;
            }
            for id in 0..10 {
                server.post_recv(round + id, memory.segment(0, 64));
                ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
                expect_dto(client.request.h(), id, DAT_DTO_SUCCESS, 0);
                expect_dto(server.recv.h(), round + id, DAT_DTO_SUCCESS, 0);
            }
        }
    });
}

/// Each thread has a pair of EPs and connects them repeatedly, over one adapter.
fn threads_resetting_and_connecting_separate_eps_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    run_threads(4, |thread| {
        let requests = ia.evd(8, DAT_EVD_CR_FLAG);
        let _psp = ia.psp(ctx.qual(thread as u64), &requests);
        let (client, server) = (Conn::on(&ia), Conn::on(&ia));
        for round in 0..8 {
            ok(dat_ep_post_recv(server.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
            client.connect(&ia.address(), ctx.qual(thread as u64));
            ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, server.ep.h(), 0, null_mut()));
            established(&client, &server);
            ok(dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
            expect_dto(server.recv.h(), round, DAT_DTO_SUCCESS, 0);
            expect_dto(client.request.h(), round, DAT_DTO_SUCCESS, 0);
            let first = if round % 2 == 0 { &client } else { &server };
            ok(dat_ep_disconnect(first.ep.h(), DAT_CLOSE_GRACEFUL_FLAG));
            for conn in [&client, &server] {
                conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
                ok(dat_ep_reset(conn.ep.h()));
            }
        }
    });
}
