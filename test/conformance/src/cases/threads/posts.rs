//! Several threads post transfers and dequeue completions concurrently, also while another thread disconnects or resets
//! the EP or frees the memory.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::*;

use super::{kind_in, run_threads};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 11": threads_posting_sends_to_one_ep_keep_the_order_of_each_thread => pair(client_two_posters, server_takes_two_orders).limit(40),
        "spec/events 11": threads_posting_receives_to_one_ep_get_messages_in_order => pair(client_sends_numbers, server_posts_from_three).limit(40),
        "spec/events 11": threads_posting_and_dequeuing_in_parallel_complete_in_order => pair(each_three_parties, each_three_parties).limit(40),
        "spec/events 11": threads_posting_all_kinds_of_requests_to_one_ep_succeed => pair(client_all_requests, server_exports_memory).limit(40),
        "spec/events 11": threads_posting_to_separate_eps_succeed => pair(client_four_senders, server_four_receivers).limit(40),
        "spec/events 11": threads_posting_to_one_shared_receive_queue_lose_no_receive
            => local(threads_posting_to_one_shared_receive_queue_lose_no_receive).needs(Need::Srq).limit(40),
        "spec/events 11": threads_posting_during_a_disconnect_complete_each_post_once
            => local(threads_posting_during_a_disconnect_complete_each_post_once).limit(40),
        "spec/events 11": threads_posting_receives_during_resets_complete_none_twice
            => local(threads_posting_receives_during_resets_complete_none_twice).limit(40),
        "spec/events 1.1": threads_dequeue_each_completion_once => pair(client_sends_numbers, server_dequeues_in_four).limit(40),
        "spec/events 11": threads_freeing_memory_during_writes_fail_all_after_the_first_failure
            => local(threads_freeing_memory_during_writes_fail_all_after_the_first_failure).limit(40),
        "spec/events 11": threads_binding_windows_on_one_ep_get_distinct_contexts => pair(client_binds, server_stays).needs(Need::Rmr).limit(40),
    ]
}

/// Queues deep enough for the requests of two threads.
fn deep() -> Setup {
    let attr = DAT_EP_ATTR { max_recv_dtos: 256, max_request_dtos: 256, ..ep_attr() };
    Setup { attr, qlen: 512, ..Setup::default() }
}

/// Number of transfers of each thread.
const POSTS_PER_THREAD: usize = 400;

/// Posts an 8-byte message with this number, as soon as the queue has space.
fn send_number(conn: &Conn, memory: &Memory, at: usize, number: u64) {
    memory.put(8 * at, &number.to_le_bytes());
    let mut segment = memory.segment(8 * at, 8);
    until(|| {
        let code = dat_ep_post_send(conn.ep.h(), 1, &mut segment, cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
        kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
        code == DAT_SUCCESS
    });
}

fn number_at(memory: &Memory, slot: usize) -> u64 {
    u64::from_le_bytes(memory.take(8 * slot, 8).try_into().expect("`take` returns the 8 bytes requested"))
}

fn client_two_posters(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(8 * 2 * POSTS_PER_THREAD);
    run_threads(3, |thread| {
        if thread < 2 {
            let numbers = (0..POSTS_PER_THREAD).map(|number| (thread << 32 | number) as u64);
            numbers
                .enumerate()
                .for_each(|(at, number)| send_number(&conn, &memory, thread * POSTS_PER_THREAD + at, number));
            return;
        }
        // Completions arrive in the order of the posts, and each thread posts in a known order.
        let mut next = [0, 0];
        for _ in 0..2 * POSTS_PER_THREAD {
            let data = polled_event(conn.request.h()).dto();
            assert!(
                data.status == DAT_DTO_SUCCESS,
                "a request completed with {}, wanted success",
                status_name(data.status)
            );
            in_order(&mut next, context_bits(data.user_cookie));
        }
    });
    ctx.meet();
}

/// Checks that this number is the next one of its thread.
#[track_caller]
pub(super) fn in_order(next: &mut [u64], number: u64) {
    let (thread, number) = ((number >> 32) as usize, number & 0xffff_ffff);
    assert_eq!(number, next[thread], "completions of thread {thread} are out of order");
    next[thread] += 1;
}

fn server_takes_two_orders(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(8 * 64);
    (0..64).for_each(|slot| conn.post_recv(slot as u64, memory.segment(8 * slot, 8)));
    let mut next = [0, 0];
    for _ in 0..2 * POSTS_PER_THREAD {
        let data = expect_event(conn.recv.h(), SOON).dto();
        let slot = context_bits(data.user_cookie);
        assert!(
            data.status == DAT_DTO_SUCCESS && data.transfered_length == 8,
            "{} bytes, {}; wanted 8 bytes and success",
            data.transfered_length,
            status_name(data.status)
        );
        in_order(&mut next, number_at(&memory, slot as usize));
        conn.post_recv(slot, memory.segment(8 * slot as usize, 8));
    }
    ctx.meet();
}

/// One thread sends consecutive numbers from 0, another dequeues the completions.
fn client_sends_numbers(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(8 * 3 * POSTS_PER_THREAD);
    run_threads(2, |thread| {
        if thread == 0 {
            (0..3 * POSTS_PER_THREAD).for_each(|number| send_number(&conn, &memory, number, number as u64));
        } else {
            (0..3 * POSTS_PER_THREAD).for_each(|number| {
                let data = polled_event(conn.request.h()).dto();
                check_dto(&data, number as u64, DAT_DTO_SUCCESS, 8);
            });
        }
    });
    ctx.meet();
}

fn server_posts_from_three(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(8 * 3 * POSTS_PER_THREAD);
    let begun = AtomicUsize::new(0);
    run_threads(4, |thread| {
        if thread == 3 {
            for number in 0..3 * POSTS_PER_THREAD as u64 {
                let data = polled_event(conn.recv.h()).dto();
                assert!(
                    data.status == DAT_DTO_SUCCESS,
                    "a receive completed with {}, wanted success",
                    status_name(data.status)
                );
                let slot = context_bits(data.user_cookie) as usize;
                assert_eq!(number_at(&memory, slot), number, "messages are out of order");
            }
            return;
        }
        begun.fetch_add(1, Ordering::Relaxed);
        for at in 0..POSTS_PER_THREAD {
            let slot = thread * POSTS_PER_THREAD + at;
            let mut segment = memory.segment(8 * slot, 8);
            until(|| {
                let (ep, flags) = (conn.ep.h(), DAT_COMPLETION_DEFAULT_FLAG);
                let code = dat_ep_post_recv(ep, 1, &mut segment, cookie(slot as u64), flags);
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
                code == DAT_SUCCESS
            });
        }
    });
    ctx.meet();
}

/// Three threads per endpoint: one posts requests, one posts receives and dequeues their completions, one dequeues
/// request completions.
fn each_three_parties(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let (from, into) = (conn.memory(8 * POSTS_PER_THREAD), conn.memory(8 * 16));
    run_threads(3, |thread| match thread {
        0 => (0..POSTS_PER_THREAD).for_each(|number| send_number(&conn, &from, number, number as u64)),
        1 => (0..POSTS_PER_THREAD as u64).for_each(|number| {
            check_dto(&polled_event(conn.request.h()).dto(), number, DAT_DTO_SUCCESS, 8);
        }),
        _ => {
            (0..16).for_each(|slot| conn.post_recv(slot, into.segment(8 * slot as usize, 8)));
            for number in 0..POSTS_PER_THREAD as u64 {
                let slot = number % 16;
                check_dto(&polled_event(conn.recv.h()).dto(), slot, DAT_DTO_SUCCESS, 8);
                assert_eq!(number_at(&into, slot as usize), number);
                conn.post_recv(slot, into.segment(8 * slot as usize, 8));
            }
        }
    });
    ctx.meet();
}

fn client_all_requests(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(4096);
    let target = ctx.receive_target();
    let posted = AtomicUsize::new(0);
    run_threads(4, |thread| {
        if thread == 3 {
            for _ in 0..3 * POSTS_PER_THREAD {
                let data = polled_event(conn.request.h()).dto();
                assert!(
                    data.status == DAT_DTO_SUCCESS,
                    "a request completed with {}, wanted success",
                    status_name(data.status)
                );
            }
            return;
        }
        let remote = DAT_RMR_TRIPLET { target_address: target.target_address + 1024 * thread as u64, ..target };
        let mut segment = memory.segment(1024 * thread, 64);
        for number in 0..POSTS_PER_THREAD as u64 {
            until(|| {
                let (ep, id, flags) = (conn.ep.h(), cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
                let code = match thread {
                    0 => dat_ep_post_rdma_write(ep, 1, &mut segment, id, &remote, flags),
                    1 => dat_ep_post_rdma_read(ep, 1, &mut segment, id, &remote, flags),
                    _ => dat_ep_post_send(ep, 0, null_mut(), id, flags),
                };
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
                code == DAT_SUCCESS
            });
            posted.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(posted.into_inner(), 3 * POSTS_PER_THREAD);
    expect_nothing(conn.request.h());
    ctx.meet();
}

/// Sends the peer an RDMA target, and receives the peer's empty messages.
fn server_exports_memory(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(4096);
    ctx.send_target(memory.target(0, 4096));
    let post = |id| ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    (0..64).for_each(post);
    for number in 0..POSTS_PER_THREAD as u64 {
        expect_dto(conn.recv.h(), number % 64, DAT_DTO_SUCCESS, 0);
        post(number % 64);
    }
    ctx.meet();
}

fn client_four_senders(ctx: &Ctx) {
    let ia = ctx.ia();
    let address = ctx.receive_address();
    let conns: Vec<Conn> = (0..4).map(|_| Conn::unconnected(&ia, &deep())).collect();
    for conn in &conns {
        conn.connect(&address, ctx.qual(0));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    run_threads(4, |thread| {
        let conn = &conns[thread];
        let memory = conn.memory(8 * POSTS_PER_THREAD);
        for number in 0..POSTS_PER_THREAD as u64 {
            send_number(conn, &memory, number as usize, number);
            expect_dto(conn.request.h(), number, DAT_DTO_SUCCESS, 8);
        }
    });
    ctx.meet();
}

fn server_four_receivers(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&ia);
    let conns: Vec<Conn> = (0..4).map(|_| Conn::unconnected(&ia, &deep())).collect();
    for conn in &conns {
        ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, conn.ep.h(), 0, null_mut()));
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    run_threads(4, |thread| {
        let conn = &conns[thread];
        let memory = conn.memory(8);
        for number in 0..POSTS_PER_THREAD as u64 {
            conn.post_recv(number, memory.segment(0, 8));
            expect_dto(conn.recv.h(), number, DAT_DTO_SUCCESS, 8);
            assert_eq!(number_at(&memory, 0), number);
        }
    });
    ctx.meet();
    drop(psp);
}

/// Two threads post receives, one thread sends, and one dequeues the completions of receives.
fn threads_posting_to_one_shared_receive_queue_lose_no_receive(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, requests) = (ia.pz(), ia.evd(8, DAT_EVD_CR_FLAG));
    let (recv, events) = (ia.evd(64, DAT_EVD_DTO_FLAG), ia.evd(8, DAT_EVD_CONNECTION_FLAG));
    let srq = ia.srq(&pz, 32, 1);
    let attr = DAT_EP_ATTR { max_recv_dtos: -1, srq_soft_hw: -1, ..ep_attr() };
    let ep = Ep::own(filled(|out| {
        dat_ep_create_with_srq(ia.h(), pz.h(), recv.h(), recv.h(), events.h(), srq.h(), &attr, out)
    }));
    let client = Conn::unconnected(&ia, &deep());
    let psp = ia.psp(ctx.qual(0), &requests);
    client.connect(&ia.address(), ctx.qual(0));
    ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, ep.h(), 0, null_mut()));
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    psp.free();
    let (from, into) = (client.memory(8 * 2 * POSTS_PER_THREAD), ia.memory(&pz, 8 * 2 * POSTS_PER_THREAD));
    run_threads(4, |thread| match thread {
        0 | 1 => (0..POSTS_PER_THREAD).for_each(|at| {
            let slot = thread * POSTS_PER_THREAD + at;
            let mut segment = into.segment(8 * slot, 8);
            until(|| {
                let code = dat_srq_post_recv(srq.h(), 1, &mut segment, cookie(slot as u64));
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
                code == DAT_SUCCESS
            });
        }),
        2 => (0..2 * POSTS_PER_THREAD).for_each(|number| {
            send_number(&client, &from, number, number as u64);
            expect_dto(client.request.h(), number as u64, DAT_DTO_SUCCESS, 8);
        }),
        _ => {
            let mut slots = HashSet::new();
            for number in 0..2 * POSTS_PER_THREAD as u64 {
                let data = polled_event(recv.h()).dto();
                let slot = context_bits(data.user_cookie);
                assert!(slots.insert(slot), "receive {slot} was used twice");
                assert_eq!(number_at(&into, slot as usize), number, "messages are out of order");
            }
        }
    });
    let param: DAT_SRQ_PARAM = filled(|out| dat_srq_query(srq.h(), DAT_SRQ_FIELD_ALL, out));
    assert_eq!((param.available_dto_count, param.outstanding_dto_count), (0, 0));
}

/// Every accepted post completes exactly once, whenever the disconnect happens.
fn threads_posting_during_a_disconnect_complete_each_post_once(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..15 {
        let (client, server) = ctx.loopback_with(&ia, &deep());
        (0..8).for_each(|id| {
            ok(dat_ep_post_recv(server.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        });
        let accepted = Mutex::new(HashSet::new());
        run_threads(3, |thread| {
            if thread == 2 {
                until(|| accepted.lock().expect("no thread has panicked").len() > 4);
                ok(dat_ep_disconnect(client.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
                return;
            }
            for number in 0..60 {
                let id = (thread << 16 | number) as u64;
                let code = dat_ep_post_send(client.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG);
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES, DAT_INVALID_STATE]);
                if code == DAT_SUCCESS {
                    accepted.lock().expect("no thread has panicked").insert(id);
                }
            }
        });
        let mut accepted = accepted.into_inner().expect("no thread has panicked");
        let mut has_failed = false;
        while !accepted.is_empty() {
            let data = expect_event(client.request.h(), SOON).dto();
            let id = context_bits(data.user_cookie);
            assert!(accepted.remove(&id), "{id:#x} completed twice, or was never accepted");
            assert!(data.status != DAT_DTO_SUCCESS || !has_failed, "a request succeeded after another had failed");
            has_failed |= data.status != DAT_DTO_SUCCESS;
        }
        expect_nothing(client.request.h());
        client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
        expect_nothing(client.events.h());
    }
}

fn threads_posting_receives_during_resets_complete_none_twice(ctx: &Ctx) {
    let (client, server) = ctx.loopback_with(&ctx.ia(), &deep());
    client.disconnect();
    server.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    let ep = &server.ep;
    let accepted = AtomicUsize::new(0);
    run_threads(2, |thread| {
        for id in 0..100 {
            if thread == 0 {
                ok(dat_ep_reset(ep.h()));
            } else {
                let code = dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG);
                kind_in(code, &[DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES]);
                accepted.fetch_add((code == DAT_SUCCESS).into(), Ordering::Relaxed);
            }
        }
    });
    let mut count = 0;
    ok(dat_ep_recv_query(ep.h(), &mut count, null_mut()));
    let completed = drain(server.recv.h()).len();
    assert!(completed + count as usize <= accepted.into_inner(), "more completions than accepted posts");
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn server_dequeues_in_four(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(8 * 3 * POSTS_PER_THREAD);
    let seen = Mutex::new(HashSet::new());
    run_threads(5, |thread| {
        if thread == 4 {
            for slot in 0..3 * POSTS_PER_THREAD {
                let mut segment = memory.segment(8 * slot, 8);
                let (ep, id, flags) = (conn.ep.h(), cookie(slot as u64), DAT_COMPLETION_DEFAULT_FLAG);
                until(|| dat_ep_post_recv(ep, 1, &mut segment, id, flags) == DAT_SUCCESS);
            }
            return;
        }
        until(|| {
            if let Some(event) = dequeue(conn.recv.h()) {
                let slot = context_bits(event.dto().user_cookie);
                assert!(seen.lock().expect("no thread has panicked").insert(slot), "receive {slot} completed twice");
                assert_eq!(number_at(&memory, slot as usize), slot, "receives are used out of order");
            }
            seen.lock().expect("no thread has panicked").len() == 3 * POSTS_PER_THREAD
        });
    });
    expect_nothing(conn.recv.h());
    ctx.meet();
}

/// A registration is freed during writes into it. Each write succeeds, is refused or is flushed.
fn threads_freeing_memory_during_writes_fail_all_after_the_first_failure(ctx: &Ctx) {
    let ia = ctx.ia();
    let outcomes = [DAT_DTO_SUCCESS, DAT_DTO_ERR_REMOTE_ACCESS, DAT_DTO_ERR_FLUSHED];
    for _ in 0..15 {
        let (client, server) = ctx.loopback_with(&ia, &deep());
        let from = client.memory(1 << 16);
        let into = Mutex::new(server.memory(1 << 16));
        let target = into.lock().expect("no thread has panicked").target(0, 1 << 16);
        let is_over = AtomicBool::new(false);
        run_threads(2, |thread| {
            if thread == 1 {
                into.lock().expect("no thread has panicked").deregister();
                is_over.store(true, Ordering::Release);
                return;
            }
            for id in 0..20 {
                client.post_write(id, from.segment(0, 1 << 16), target);
            }
        });
        let statuses: Vec<_> = (0..20).map(|_| expect_event(client.request.h(), SOON).dto().status).collect();
        assert!(
            statuses.iter().all(|status| outcomes.contains(status)),
            "statuses {statuses:?}, wanted only {outcomes:?}"
        );
        // After the first failed write, all later writes fail.
        let first = statuses.iter().take_while(|status| **status == DAT_DTO_SUCCESS).count();
        assert!(
            statuses[first..].iter().all(|status| *status != DAT_DTO_SUCCESS),
            "a success after a failure: {statuses:?}"
        );
    }
}

fn client_binds(ctx: &Ctx) {
    let conn = ctx.connect_with(&deep());
    let memory = conn.memory(4096);
    let windows: Vec<Rmr> = (0..4).map(|_| conn.pz.rmr()).collect();
    let contexts = Mutex::new(HashSet::new());
    run_threads(4, |thread| {
        for round in 0..30 {
            let segment = memory.segment(64 * thread, 64);
            let (ep, id, all) = (conn.ep.h(), cookie(round), DAT_MEM_PRIV_ALL_FLAG);
            let rmr = windows[thread].h();
            let context = filled(|out| dat_rmr_bind(rmr, &segment, all, ep, id, DAT_COMPLETION_DEFAULT_FLAG, out));
            let is_new = contexts.lock().expect("no thread has panicked").insert(context);
            assert!(is_new, "a context was returned twice");
        }
    });
    for _ in 0..4 * 30 {
        let data = expect_event(conn.request.h(), SOON).rmr();
        assert!(
            data.status == DAT_RMR_BIND_SUCCESS,
            "a bind completed with {}, wanted success",
            status_name(data.status)
        );
    }
    ctx.meet();
}

fn server_stays(ctx: &Ctx) {
    let _conn = ctx.connect();
    ctx.meet();
}
