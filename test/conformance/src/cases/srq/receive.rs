//! Messages received from a shared queue: the EP and the receive that each message gets, order, counts of receives,
//! messages that wait for a receive, lengths, protection zones, and waiters that completions wake.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::kit::*;

use super::pool::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 6.3": srq_completion_names_the_receiving_ep => served(srq_completion_names_the_receiving_ep),
        "spec/events 6.3": srq_completion_has_the_posted_cookie => served(srq_completion_has_the_posted_cookie),
        "spec/events 6": srq_available_count_falls_on_receipt_outstanding_count_on_dequeue => served_with(8, srq_available_count_falls_on_receipt_outstanding_count_on_dequeue),
        "spec/events 6": srq_counts_receives_until_their_completions_are_dequeued => served(srq_counts_receives_until_their_completions_are_dequeued),
        "spec/events 6.3": srq_is_full_until_completions_are_dequeued => served_with(4, srq_is_full_until_completions_are_dequeued),
        "spec/events 6": srq_delivers_each_message_to_the_ep_of_its_connection => served(srq_delivers_each_message_to_the_ep_of_its_connection),
        "spec/events 1.1": srq_keeps_the_order_of_each_connection => served(srq_keeps_the_order_of_each_connection).limit(40),
        "spec/events 5.7": srq_completions_are_queued_on_the_evd_of_the_ep => served(srq_completions_are_queued_on_the_evd_of_the_ep),
        "spec/events 6": srq_message_to_an_empty_queue_is_received_after_a_post => served(srq_message_to_an_empty_queue_is_received_after_a_post),
        "spec/events 6": srq_empty_queue_delays_messages_until_receives_are_posted => served(srq_empty_queue_delays_messages_until_receives_are_posted),
        "spec/events 6": srq_empty_queue_delays_messages_of_many_senders => served(srq_empty_queue_delays_messages_of_many_senders),
        "spec/events 6": srq_busy_connection_does_not_starve_another => served(srq_busy_connection_does_not_starve_another),
        "spec/events 6": srq_one_reposted_receive_gets_a_hundred_messages => served_with(1, srq_one_reposted_receive_gets_a_hundred_messages),
        "spec/events 6.5": srq_resized_beyond_the_evd_length_loses_no_completion
            => served_with(4, srq_resized_beyond_the_evd_length_loses_no_completion).limit(40),
        "spec/events 6.5": srq_resize_keeps_waiting_messages => served_with(2, srq_resize_keeps_waiting_messages),
        "spec/events 4.4": srq_message_of_zero_bytes_succeeds => served(srq_message_of_zero_bytes_succeeds),
        "spec/events 4.4": srq_receive_of_zero_bytes_succeeds => served(srq_receive_of_zero_bytes_succeeds),
        "spec/events 4.4": srq_message_of_the_receive_length_succeeds => served(srq_message_of_the_receive_length_succeeds),
        "spec/events 4.4": srq_message_fills_several_segments => served(srq_message_fills_several_segments),
        "spec/events 6.3": srq_long_messages_succeed => served(srq_long_messages_succeed),
        "spec/events 5.7": srq_receive_of_memory_in_the_pz_of_the_queue_succeeds => served(srq_receive_of_memory_in_the_pz_of_the_queue_succeeds),
        "spec/events 5.7": srq_receive_of_memory_in_the_pz_of_the_ep_fails
            => served(srq_receive_of_memory_in_the_pz_of_the_ep_fails),
        "spec/events 5.7": srq_rdma_to_memory_in_the_pz_of_the_ep_succeeds => served(srq_rdma_to_memory_in_the_pz_of_the_ep_succeeds),
        "spec/events 5.7": srq_rdma_to_memory_in_the_pz_of_the_queue_fails
            => served(srq_rdma_to_memory_in_the_pz_of_the_queue_fails),
        "spec/events 4.3": srq_writes_are_placed_before_the_next_message => served(srq_writes_are_placed_before_the_next_message),
        "spec/events 1.3": srq_completions_wake_a_waiter => served(srq_completions_wake_a_waiter),
        "spec/events 3.6": srq_completions_trigger_a_cno => served(srq_completions_trigger_a_cno),
        "spec/events 4.8": srq_ep_refuses_post_recv_while_connected_and_disconnected => served(srq_ep_refuses_post_recv_while_connected_and_disconnected),
        "spec/events 5.5": ep_recv_query_counts_only_incomplete_srq_receives_of_the_ep
            => served(ep_recv_query_counts_only_incomplete_srq_receives_of_the_ep),
        "spec/endpoints 5.9": srq_ep_status_is_idle_while_a_message_waits_for_a_receive => served(srq_ep_status_is_idle_while_a_message_waits_for_a_receive),
        "spec/events 6": srq_on_both_endpoints_delivers_messages_in_order => pair(each_talks, each_talks).needs(Need::Srq),
    ]
}

fn srq_completion_names_the_receiving_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (first, second) = (peer.connected(pool), peer.connected(pool));
    pool.post_all(0..2);
    peer.send(1, 100, 1);
    pool.expect(&second, 0, 100, 1);
    peer.send(0, 100, 2);
    pool.expect(&first, 1, 100, 2);
}

fn srq_completion_has_the_posted_cookie(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    for id in [0, 1, u64::MAX, 0x8000_0000_0000_0000, 0xdead_beef] {
        ok(pool.post_as(id, &mut [pool.slot(0)]));
        peer.send(0, 9, 1);
        let data = expect_dto(pool.recv.h(), id, DAT_DTO_SUCCESS, 9);
        assert!(data.ep_handle == ep.h());
    }
}

fn srq_available_count_falls_on_receipt_outstanding_count_on_dequeue(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..4);
    pool.expect_counts(4, 4);
    peer.send(0, 10, 1);
    peer.sees(0, 1, DAT_DTO_SUCCESS);
    until(|| pool.param().available_dto_count == 3);
    pool.expect_counts(3, 4);
    pool.expect(&ep, 0, 10, 1);
    pool.expect_counts(3, 3);
}

fn srq_counts_receives_until_their_completions_are_dequeued(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.post_all(0..6);
    for message in 1..=6 {
        peer.send(0, 10, message as u8);
        until(|| pool.param().available_dto_count == 6 - message);
        assert_eq!(pool.param().outstanding_dto_count, 6);
    }
    for taken in 1..=6 {
        pool.expect(&ep, taken as u64 - 1, 10, taken as u8);
        pool.expect_counts(0, 6 - taken);
    }
}

fn srq_is_full_until_completions_are_dequeued(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    let most = pool.param().max_recv_dtos;
    for _ in 0..most {
        pool.post(0);
    }
    peer.send(0, 10, 1);
    until(|| pool.param().available_dto_count == most - 1);
    let full = pool.post_as(0, &mut [pool.slot(0)]);
    refused(full, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    pool.expect(&ep, 0, 10, 1);
    pool.post(0);
}

fn srq_delivers_each_message_to_the_ep_of_its_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps: Vec<Ep> = (0..5).map(|_| peer.connected(pool)).collect();
    pool.post_all(0..10);
    for round in 0..2 {
        for (conn, ep) in eps.iter().enumerate() {
            let seed = 10 * round + conn as u8;
            peer.send(conn as u64, 64, seed);
            let (handle, slot, first) = pool.next();
            assert!(handle.h() == ep.h() && first == seed, "a message of another connection arrived at {conn}");
            pool.memory.expect_pattern(slot as usize * SLOT, 64, seed);
        }
    }
    pool.expect_counts(0, 0);
}

fn srq_keeps_the_order_of_each_connection(_: &Ctx, peer: &Peer, pool: &Pool) {
    const MESSAGES_PER_CONNECTION: u64 = 150;
    let eps: Vec<Ep> = (0..3).map(|_| peer.connected(pool)).collect();
    pool.post_all(0..16);
    for (conn, first) in [0u8, 50, 100].into_iter().enumerate() {
        peer.send_many(conn as u64, MESSAGES_PER_CONNECTION, first);
    }
    let mut next = [0u8, 50, 100];
    for _ in 0..3 * MESSAGES_PER_CONNECTION {
        let (handle, slot, seed) = pool.next();
        let conn = eps.iter().position(|ep| ep.h() == handle.h()).expect("the completion names an EP of this case");
        assert_eq!(seed, next[conn], "messages of connection {conn} are out of order");
        next[conn] = next[conn].wrapping_add(1);
        pool.post(slot);
    }
    for conn in 0..3 {
        peer.sees(conn, MESSAGES_PER_CONNECTION, DAT_DTO_SUCCESS);
    }
    pool.expect_counts(16, 16);
}

fn srq_completions_are_queued_on_the_evd_of_the_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    let evds = [pool.ia.evd(4, DAT_EVD_DTO_FLAG), pool.ia.evd(4, DAT_EVD_DTO_FLAG)];
    let eps = [0, 1].map(|at| peer.connected_to(pool, pool.ep_in(&pool.pz, &evds[at], &unmarked())));
    pool.post_all(0..4);
    for conn in [1, 0, 0, 1] {
        peer.send(conn as u64, 20, 3);
        let data = expect_event(evds[conn].h(), SOON).dto();
        assert!(data.ep_handle == eps[conn].h());
        expect_nothing(evds[1 - conn].h());
    }
    expect_nothing(pool.recv.h());
}

fn srq_message_to_an_empty_queue_is_received_after_a_post(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    peer.send(0, 200, 4);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    pool.post(3);
    pool.expect(&ep, 3, 200, 4);
    peer.sees(0, 1, DAT_DTO_SUCCESS);
    pool.expect_counts(0, 0);
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_empty_queue_delays_messages_until_receives_are_posted(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    peer.send_many(0, 12, 20);
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    for message in 0..12 {
        pool.post(message);
        pool.expect(&ep, message, 8, 20 + message as u8);
    }
    peer.sees(0, 12, DAT_DTO_SUCCESS);
    expect_nothing(pool.events.h());
    expect_nothing(pool.ia.errors());
}

fn srq_empty_queue_delays_messages_of_many_senders(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps: Vec<Ep> = (0..6).map(|_| peer.connected(pool)).collect();
    for conn in 0..6 {
        peer.send_many(conn, 2, 10 * conn as u8);
    }
    expect_quiet(pool.recv.h(), Duration::from_millis(50));
    let mut came = [0u8; 6];
    for slot in 0..12 {
        pool.post(slot);
        let (handle, taken, seed) = pool.next();
        assert_eq!(taken, slot);
        let conn = eps.iter().position(|ep| ep.h() == handle.h()).expect("the completion names an EP of this case");
        assert_eq!(seed, 10 * conn as u8 + came[conn], "messages of connection {conn} are out of order");
        came[conn] += 1;
    }
    assert_eq!(came, [2; 6], "a message was lost or duplicated");
    expect_nothing(pool.recv.h());
}

/// The busy EP always has waiting messages until the message of the quiet EP has arrived.
fn srq_busy_connection_does_not_starve_another(_: &Ctx, peer: &Peer, pool: &Pool) {
    let (busy, quiet) = (peer.connected(pool), peer.connected(pool));
    peer.send_many(0, 50, 0);
    peer.send(1, 8, 200);
    let mut is_served = false;
    while !is_served {
        peer.send_many(0, 8, 0);
        for _ in 0..8 {
            pool.post(0);
            let (handle, _, _) = pool.next();
            assert!(handle.h() == quiet.h() || handle.h() == busy.h());
            is_served |= handle.h() == quiet.h();
        }
        peer.sees(0, if is_served { 7 } else { 8 }, DAT_DTO_SUCCESS);
    }
    peer.sees(1, 1, DAT_DTO_SUCCESS);
}

fn srq_one_reposted_receive_gets_a_hundred_messages(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    peer.send_many(0, 100, 0);
    for message in 0..100 {
        pool.post(0);
        pool.expect(&ep, 0, 8, message);
    }
    peer.sees(0, 100, DAT_DTO_SUCCESS);
}

fn srq_resize_keeps_waiting_messages(_: &Ctx, peer: &Peer, pool: &Pool) {
    let eps = [peer.connected(pool), peer.connected(pool)];
    peer.send_many(0, 10, 0);
    peer.send_many(1, 10, 100);
    let mut next = [0, 100];
    for round in 0..20 {
        let length = if round % 2 == 0 { 30 } else { 2 };
        ok(dat_srq_resize(pool.srq.h(), length));
        pool.post(round % 2);
        let (handle, _, seed) = pool.next();
        let conn = eps.iter().position(|ep| ep.h() == handle.h()).expect("the completion names an EP of this case");
        assert_eq!(seed, next[conn]);
        next[conn] += 1;
    }
    assert_eq!(next, [10, 110], "a message was lost or duplicated");
}

fn srq_resized_beyond_the_evd_length_loses_no_completion(_: &Ctx, peer: &Peer, pool: &Pool) {
    const MANY: u64 = 320;
    let ep = peer.connected(pool);
    ok(dat_srq_resize(pool.srq.h(), MANY as DAT_COUNT));
    (0..MANY).for_each(|_| pool.post(0));
    // Completions are dequeued only after all messages have arrived.
    for _ in 0..MANY / 32 {
        peer.send_many(0, 32, 0);
        peer.sees(0, 32, DAT_DTO_SUCCESS);
    }
    (0..MANY).for_each(|_| _ = expect_dto(pool.recv.h(), 0, DAT_DTO_SUCCESS, 8));
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_message_of_zero_bytes_succeeds(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.memory.fill(0x77);
    pool.post(0);
    peer.send(0, 0, 1);
    let data = expect_dto(pool.recv.h(), 0, DAT_DTO_SUCCESS, 0);
    assert!(data.ep_handle == ep.h());
    pool.memory.expect_all(0, SLOT, 0x77);
}

fn srq_receive_of_zero_bytes_succeeds(_: &Ctx, peer: &Peer, pool: &Pool) {
    let _ep = peer.connected(pool);
    ok(pool.post_as(5, &mut []));
    peer.send(0, 0, 1);
    expect_dto(pool.recv.h(), 5, DAT_DTO_SUCCESS, 0);
    peer.sees(0, 1, DAT_DTO_SUCCESS);
}

fn srq_message_of_the_receive_length_succeeds(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    pool.memory.fill(0x77);
    pool.post(1);
    peer.send(0, SLOT, 6);
    pool.expect(&ep, 1, SLOT, 6);
    pool.memory.expect_all(0, SLOT, 0x77);
    pool.memory.expect_all(2 * SLOT, SLOT, 0x77);
}

fn srq_message_fills_several_segments(_: &Ctx, peer: &Peer, pool: &Pool) {
    let _ep = peer.connected(pool);
    let memory = &pool.memory;
    let mut list = [memory.segment(0, 10), memory.segment(64, 0), memory.segment(100, 20), memory.segment(200, 30)];
    ok(pool.post_as(1, &mut list));
    peer.send(0, 45, 1);
    expect_dto(pool.recv.h(), 1, DAT_DTO_SUCCESS, 45);
    let parts = [memory.take(0, 10), memory.take(100, 20), memory.take(200, 15)].concat();
    let all: Vec<u8> = (1..=45).collect();
    assert_eq!(parts, all, "the segments are not filled in order");
    memory.expect_all(215, 15, 0);
}

fn srq_long_messages_succeed(_: &Ctx, peer: &Peer, pool: &Pool) {
    const LONG: usize = 200_000;
    let eps = [peer.connected(pool), peer.connected(pool)];
    let memory = pool.ia.memory(&pool.pz, 4 * LONG);
    for slot in 0..4 {
        ok(pool.post_as(slot as u64, &mut [memory.segment(slot * LONG, LONG)]));
    }
    for (conn, seed) in [(0, 1), (1, 2), (0, 3), (1, 4)] {
        peer.send(conn, LONG - seed as usize, seed);
    }
    let mut next = [1, 2];
    for _ in 0..4 {
        let data = expect_event(pool.recv.h(), SOON).dto();
        assert!(
            data.status == DAT_DTO_SUCCESS,
            "a receive completed with {}, wanted success",
            status_name(data.status)
        );
        let conn = eps.iter().position(|ep| ep.h() == data.ep_handle).expect("the completion names an EP of this case");
        let length = LONG - next[conn] as usize;
        assert_eq!(data.transfered_length, length as u64);
        memory.expect_pattern(context_bits(data.user_cookie) as usize * LONG, length, next[conn]);
        next[conn] += 2;
    }
}

fn srq_receive_of_memory_in_the_pz_of_the_queue_succeeds(_: &Ctx, peer: &Peer, pool: &Pool) {
    let other = pool.ia.pz();
    let ep = peer.connected_to(pool, pool.ep_in(&other, &pool.recv, &unmarked()));
    pool.post(0);
    peer.send(0, 100, 1);
    pool.expect(&ep, 0, 100, 1);
}

fn srq_receive_of_memory_in_the_pz_of_the_ep_fails(_: &Ctx, peer: &Peer, pool: &Pool) {
    let other = pool.ia.pz();
    let memory = pool.ia.memory(&other, SLOT);
    let ep = peer.connected_to(pool, pool.ep_in(&other, &pool.recv, &unmarked()));
    ok(pool.post_as(7, &mut [memory.segment(0, SLOT)]));
    peer.send(0, 100, 1);
    let data = expect_dto(pool.recv.h(), 7, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    assert!(data.ep_handle == ep.h());
    memory.expect_all(0, SLOT, 0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_BROKEN);
    peer.sees(0, 1, DAT_DTO_ERR_REMOTE_RESPONDER);
}

fn srq_rdma_to_memory_in_the_pz_of_the_ep_succeeds(_: &Ctx, peer: &Peer, pool: &Pool) {
    let other = pool.ia.pz();
    let memory = pool.ia.memory(&other, 64);
    let ep = peer.connected_to(pool, pool.ep_in(&other, &pool.recv, &unmarked()));
    peer.write(0, memory.target(0, 8), 5);
    peer.sees(0, 1, DAT_DTO_SUCCESS);
    memory.expect_pattern(0, 8, 5);
    ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn srq_rdma_to_memory_in_the_pz_of_the_queue_fails(_: &Ctx, peer: &Peer, pool: &Pool) {
    let other = pool.ia.pz();
    let _ep = peer.connected_to(pool, pool.ep_in(&other, &pool.recv, &unmarked()));
    peer.write(0, pool.memory.target(0, 8), 5);
    peer.sees(0, 1, DAT_DTO_ERR_REMOTE_ACCESS);
    pool.memory.expect_all(0, 8, 0);
}

fn srq_writes_are_placed_before_the_next_message(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    for round in 1..20 {
        pool.post(0);
        peer.write(0, pool.memory.target(2 * SLOT, 8), round);
        peer.send(0, 8, round);
        pool.expect(&ep, 0, 8, round);
        pool.memory.expect_pattern(2 * SLOT, 8, round);
    }
}

fn srq_completions_wake_a_waiter(_: &Ctx, peer: &Peer, pool: &Pool) {
    let _ep = peer.connected(pool);
    pool.post_all(0..4);
    let waiter = evd_waiter(pool.recv.h(), DAT_TIMEOUT_INFINITE, 3).inside(pool.recv.h());
    peer.send_many(0, 3, 0);
    let waited = waiter.join();
    ok(waited.code);
    assert_eq!((waited.number, waited.more), (DAT_DTO_COMPLETION_EVENT, 2));
}

fn srq_completions_trigger_a_cno(_: &Ctx, peer: &Peer, pool: &Pool) {
    let cno = pool.ia.cno();
    let recv = pool.ia.evd_on(&cno, 4, DAT_EVD_DTO_FLAG);
    let _ep = peer.connected_to(pool, pool.ep_in(&pool.pz, &recv, &unmarked()));
    pool.post(0);
    peer.send(0, 8, 1);
    let evd: DAT_EVD_HANDLE = filled(|out| dat_cno_wait(cno.h(), micros(SOON), out));
    assert!(evd == recv.h());
    expect_dto(recv.h(), 0, DAT_DTO_SUCCESS, 8);
}

fn srq_ep_refuses_post_recv_while_connected_and_disconnected(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    let refuse = || dat_ep_post_recv(ep.h(), 1, &mut pool.slot(0), cookie(0), DAT_COMPLETION_DEFAULT_FLAG);
    refused(refuse(), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
    peer.disconnect(0);
    pool.expect_end(&ep, DAT_CONNECTION_EVENT_DISCONNECTED);
    refused(refuse(), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
}

fn ep_recv_query_counts_only_incomplete_srq_receives_of_the_ep(_: &Ctx, peer: &Peer, pool: &Pool) {
    const LONG: usize = 200_000;
    let (ep, idle) = (peer.connected(pool), peer.connected(pool));
    let memory = pool.ia.memory(&pool.pz, LONG);
    for _ in 0..8 {
        ok(pool.post_as(0, &mut [memory.segment(0, LONG)]));
        peer.send(0, LONG, 9);
        // A query returns both values of the same moment. Messages of other EPs do not count.
        let mut event = zeroed();
        until(|| {
            for (ep, most) in [(&ep, 1), (&idle, 0)] {
                let (mut count, mut span) = (-1, -1);
                ok(dat_ep_recv_query(ep.h(), &mut count, &mut span));
                assert!(
                    (0..=most).contains(&count) && span >= count,
                    "count {count}, span {span}, wanted 0 to {most} receives"
                );
            }
            dat_evd_dequeue(pool.recv.h(), &mut event) == DAT_SUCCESS
        });
        let (mut count, mut span) = (-1, -1);
        ok(dat_ep_recv_query(ep.h(), &mut count, &mut span));
        assert_eq!((count, span), (0, 0), "a completed receive is still counted");
    }
}

fn srq_ep_status_is_idle_while_a_message_waits_for_a_receive(_: &Ctx, peer: &Peer, pool: &Pool) {
    let ep = peer.connected(pool);
    peer.send(0, 8, 1);
    let mut idle = 7;
    ok(dat_ep_get_status(ep.h(), std::ptr::null_mut(), &mut idle, std::ptr::null_mut()));
    assert_eq!(idle, DAT_TRUE);
    pool.post(0);
    pool.expect(&ep, 0, 8, 1);
}

/// Sends and receives at the same time; every receive comes from the shared queue.
fn each_talks(ctx: &Ctx) {
    const MESSAGES: u64 = 200;
    let ia = ctx.ia();
    let pool = Pool::new(&ia, 8);
    let ep = pool.ep();
    let listens = !ctx.is_client();
    let psp = listens.then(|| ia.psp(ctx.qual(0), &pool.requests));
    if listens {
        ctx.send_address(&ia);
        pool.accept(&ep);
    } else {
        let (address, flags) = (ctx.receive_address(), DAT_CONNECT_DEFAULT_FLAG);
        let (pointer, no_data) = (address.pointer(), std::ptr::null_mut());
        let no_limit = DAT_TIMEOUT_INFINITE;
        ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, no_data, DAT_QOS_BEST_EFFORT, flags));
        expect_conn(pool.events.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    let own = ia.memory(&pool.pz, 256);
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    pool.post_all(0..8);
    while completed < MESSAGES || received < MESSAGES {
        if sent < MESSAGES && sent - completed < 32 {
            own.put(sent as usize % 64, &[sent as u8]);
            let mut segment = own.segment(sent as usize % 64, 1);
            ok(dat_ep_post_send(ep.h(), 1, &mut segment, cookie(sent), DAT_COMPLETION_DEFAULT_FLAG));
            sent += 1;
        }
        if let Some(event) = dequeue(pool.request.h()) {
            check_dto(&event.dto(), completed, DAT_DTO_SUCCESS, 1);
            completed += 1;
        }
        if let Some(event) = dequeue(pool.recv.h()) {
            let slot = context_bits(event.dto().user_cookie);
            check_dto(&event.dto(), slot, DAT_DTO_SUCCESS, 1);
            assert_eq!(pool.memory.byte(slot as usize * SLOT), received as u8, "messages are out of order");
            received += 1;
            pool.post(slot);
        }
        std::thread::yield_now();
    }
    ctx.meet();
    drop(psp);
}
