//! Transfers in simple setups, one claim per case: for example, that bytes arrive while the peer makes no calls, or
//! that cookies are returned unchanged. Also a disconnect after successful transfers.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::ends::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 5": transfer_send_delivers_its_bytes => pair(client_sends, server_receives),
        "spec/consumers 1": transfer_rdma_write_arrives_while_the_target_makes_no_calls => pair(client_writes, server_watches).shares_ia(),
        "spec/consumers 1": transfer_send_arrives_while_the_receiver_makes_no_calls => pair(client_sends_on_word, server_watches_recv),
        "spec/consumers 1": transfer_rdma_read_is_served_while_the_target_makes_no_calls => pair(client_reads, server_exports_memory),
        "spec/consumers 3": transfer_rdma_write_has_placed_its_bytes_when_it_completes => pair(client_writes_then_says, server_frees_on_request),
        "spec/consumers 4": transfer_send_waits_for_its_receive => pair(client_sends_on_word, server_posts_late),
        "spec/consumers 5": transfer_in_both_directions_completes_in_order => pair(each_talks, each_talks),
        "spec/consumers 19": transfer_of_no_segments_and_no_list_succeeds => pair(client_sends_nothing, server_receives_nothing),
        "spec/events 4.4": transfer_rdma_write_of_no_segments_needs_no_privilege => pair(client_writes_nothing, server_idles),
        "spec/events 4.4": transfer_rdma_read_of_no_segments_needs_no_privilege => pair(client_reads_nothing, server_idles),
        "spec/events 4.4": transfer_receive_fills_its_segments_from_the_front => pair(client_sends_ten, server_receives_in_four),
        "spec/events 4.4": transfer_into_a_longer_receive_reports_the_message_length => pair(client_sends_ten, server_receives_in_a_page),
        "spec/events 4.2": transfer_cookies_are_returned_unchanged => pair(client_sends_odd_cookies, server_receives_odd_cookies),
        "spec/events 4.2": transfer_buffer_can_be_overwritten_after_its_completion => pair(client_reuses_its_buffer, server_receives_all_values),
        "spec/events 12.33": transfer_one_buffer_can_be_posted_many_times => pair(client_sends_the_same, server_receives_into_the_same),
        "spec/events 12.33": transfer_one_buffer_can_be_read_into_many_times => pair(client_reads_the_same, server_exports_memory),
        "spec/events 12.4": transfer_send_needs_no_local_read_privilege => pair(client_sends_from_write_only, server_receives_ten),
        "spec/events 12.4": transfer_source_of_rdma_write_needs_no_privilege => pair(client_writes_from_nothing, server_takes_a_write),
        "spec/events 12.31": transfer_progresses_when_programs_poll_instead_of_waiting => pair(client_sends_and_polls, server_receives_and_polls),
        "spec/events 12.20": disconnect_with_posted_receives_reports_disconnected_and_not_broken => pair(client_flushes_quietly, server_posts_and_is_left),
    ]
}

fn client_sends(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    memory.write_pattern(0, 1000, 7);
    conn.post_send(0x11, memory.segment(0, 1000));
    expect_dto(conn.request.h(), 0x11, DAT_DTO_SUCCESS, 1000);
    ctx.meet();
}

fn server_receives(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    conn.post_recv(0x22, memory.segment(8, 2000));
    expect_dto(conn.recv.h(), 0x22, DAT_DTO_SUCCESS, 1000);
    memory.expect_pattern(8, 1000, 7);
    memory.expect_all(1008, 1000, 0);
    ctx.meet();
}

fn client_writes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    memory.fill(9);
    conn.post_write(0x33, memory.segment(0, 4096), ctx.receive_target());
    expect_dto(conn.request.h(), 0x33, DAT_DTO_SUCCESS, 4096);
    ctx.meet();
}

fn server_watches(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    ctx.send_target(memory.target(0, 4096));
    memory.spin_for(4095, 9);
    memory.expect_all(0, 4096, 9);
    ctx.meet();
}

fn client_sends_on_word(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    memory.fill(3);
    conn.post_send(1, memory.segment(0, 5000));
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 5000);
    ctx.meet();
}

fn server_watches_recv(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    conn.post_recv(2, memory.segment(0, 5000));
    memory.spin_for(4999, 3);
    ctx.meet();
    // The completion is queued when the last byte is visible (spec/consumers 2), so it is dequeued without a wait.
    let event = dequeue(conn.recv.h()).expect("the completion is queued before the last byte becomes visible");
    check_dto(&event.dto(), 2, DAT_DTO_SUCCESS, 5000);
    memory.expect_all(0, 5000, 3);
    ctx.meet();
}

fn server_posts_late(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    // The peer posted its send before this barrier, so the message has probably arrived.
    ctx.meet();
    expect_quiet(conn.events.h(), std::time::Duration::from_millis(50));
    conn.post_recv(2, memory.segment(0, 5000));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 5000);
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
}

fn client_reads(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    conn.post_read(1, memory.segment(0, 5000), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 5000);
    memory.expect_pattern(0, 5000, 9);
    ctx.meet();
}

/// Sends the peer an RDMA target, which the peer reads while this role makes no DAT calls.
fn server_exports_memory(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    memory.write_pattern(0, 5000, 9);
    ctx.send_target(memory.target(0, 5000));
    ctx.meet();
    expect_nothing(conn.recv.h());
    expect_nothing(conn.request.h());
}

fn client_writes_then_says(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    for round in 0..8 {
        memory.fill(round + 1);
        conn.post_write(1, memory.segment(0, 1 << 20), ctx.receive_target());
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 1 << 20);
        ctx.send_number(round.into());
    }
    ctx.meet();
}

fn server_frees_on_request(ctx: &Ctx) {
    let conn = ctx.connect();
    for round in 0..8 {
        let mut memory = conn.memory(1 << 20);
        ctx.send_target(memory.target(0, 1 << 20));
        assert_eq!(ctx.receive_number(), round);
        memory.expect_all(0, 1 << 20, round as u8 + 1);
        memory.deregister();
    }
    ctx.meet();
}

/// Sends and receives a hundred messages at the same time, with eight outstanding.
fn each_talks(ctx: &Ctx) {
    let conn = ctx.connect();
    let (out, into) = (conn.memory(8 * 3000), conn.memory(8 * 3000));
    let post_recv = |n: u64| conn.post_recv(n, into.segment(n as usize % 8 * 3000, 3000));
    (0..8).for_each(post_recv);
    let (mut sent, mut received, mut answered) = (0, 0, 0);
    while received < 100 || answered < 100 {
        while sent < 100 && sent < answered + 8 {
            let at = sent as usize % 8 * 3000;
            out.write_pattern(at, 3000, sent as u8);
            conn.post_send(sent, out.segment(at, 3000));
            sent += 1;
        }
        if let Some(event) = dequeue(conn.recv.h()) {
            check_dto(&event.dto(), received, DAT_DTO_SUCCESS, 3000);
            into.expect_pattern(received as usize % 8 * 3000, 3000, received as u8);
            if received + 8 < 100 {
                post_recv(received + 8);
            }
            received += 1;
        }
        if let Some(event) = dequeue(conn.request.h()) {
            check_dto(&event.dto(), answered, DAT_DTO_SUCCESS, 3000);
            answered += 1;
        }
        std::thread::yield_now();
    }
    ctx.meet();
}

fn client_sends_nothing(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_send(&conn, 1);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn server_receives_nothing(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_recv(&conn, 2);
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 0);
    ctx.meet();
}

fn client_writes_nothing(ctx: &Ctx) {
    moves_no_segments(ctx, Op::Write);
}

fn client_reads_nothing(ctx: &Ctx) {
    moves_no_segments(ctx, Op::Read);
}

fn moves_no_segments(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let nowhere = DAT_RMR_TRIPLET { rmr_context: 0xdead_beef, target_address: 7, ..NOWHERE };
    ok(op.post_raw(conn.ep.h(), (0, null_mut()), 1, &nowhere, DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 0);
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
}

fn server_idles(ctx: &Ctx) {
    let _conn = ctx.connect();
    ctx.meet();
}

fn client_sends_ten(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(10);
    memory.write_pattern(0, 10, 7);
    conn.post_send(1, memory.segment(0, 10));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 10);
    ctx.meet();
}

fn server_receives_in_four(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    memory.fill(0xee);
    let segments = [(0, 4), (100, 3), (200, 8), (300, 8)].map(|(at, length)| memory.segment(at, length));
    Op::Recv.post(&conn, 2, &segments, &NOWHERE);
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 10);
    for (at, bytes) in [(0, [7, 8, 9, 10, 0xee]), (100, [11, 12, 13, 0xee, 0xee]), (200, [14, 15, 16, 0xee, 0xee])] {
        memory.expect_bytes(at, &bytes);
    }
    memory.expect_all(203, 797, 0xee);
    ctx.meet();
}

fn server_receives_in_a_page(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    memory.fill(0xee);
    conn.post_recv(2, memory.segment(0, 4096));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 10);
    memory.expect_pattern(0, 10, 7);
    memory.expect_all(10, 4086, 0xee);
    ctx.meet();
}

const ODD_COOKIES: [u64; 6] = [0, u64::MAX, 1 << 63, 0xdead_beef, 0, 0x0123_4567_89ab_cdef];

fn client_sends_odd_cookies(ctx: &Ctx) {
    let conn = ctx.connect();
    ODD_COOKIES.into_iter().for_each(|id| post_empty_send(&conn, id));
    ODD_COOKIES.into_iter().for_each(|id| {
        let data = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
        assert!(data.ep_handle == conn.ep.h(), "the event is for another EP");
    });
    ctx.meet();
}

fn server_receives_odd_cookies(ctx: &Ctx) {
    let conn = ctx.connect();
    ODD_COOKIES.into_iter().for_each(|id| post_empty_recv(&conn, !id));
    ODD_COOKIES.into_iter().for_each(|id| {
        let data = expect_dto(conn.recv.h(), !id, DAT_DTO_SUCCESS, 0);
        assert!(data.ep_handle == conn.ep.h(), "the event is for another EP");
    });
    ctx.meet();
}

fn client_reuses_its_buffer(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(2000);
    for round in 0..50 {
        memory.fill(round);
        conn.post_send(round.into(), memory.segment(0, 2000));
        expect_dto(conn.request.h(), round.into(), DAT_DTO_SUCCESS, 2000);
        memory.fill(0xff);
    }
    ctx.meet();
}

fn server_receives_all_values(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(16 * 2000);
    let post = |n: u64| conn.post_recv(n, memory.segment(n as usize % 16 * 2000, 2000));
    (0..16).for_each(post);
    for round in 0..50 {
        expect_dto(conn.recv.h(), round, DAT_DTO_SUCCESS, 2000);
        memory.expect_all(round as usize % 16 * 2000, 2000, round as u8);
        post(round + 16);
    }
    ctx.meet();
}

fn client_sends_the_same(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(3000);
    memory.fill(5);
    (0..16).for_each(|id| conn.post_send(id, memory.segment(0, 3000)));
    (0..16).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 3000));
    ctx.meet();
}

fn server_receives_into_the_same(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(3000);
    (0..16).for_each(|id| conn.post_recv(id, memory.segment(0, 3000)));
    (0..16).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 3000));
    memory.expect_all(0, 3000, 5);
    ctx.meet();
}

fn client_reads_the_same(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    let from = ctx.receive_target();
    (0..16).for_each(|id| conn.post_read(id, memory.segment(0, 5000), from));
    (0..16).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 5000));
    memory.expect_pattern(0, 5000, 9);
    ctx.meet();
}

fn client_sends_from_write_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, 10, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
    memory.write_pattern(0, 10, 7);
    conn.post_send(1, memory.segment(0, 10));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 10);
    ctx.meet();
}

fn server_receives_ten(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(10);
    conn.post_recv(2, memory.segment(0, 10));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 10);
    memory.expect_pattern(0, 10, 7);
    ctx.meet();
}

fn client_writes_from_nothing(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, 5000, DAT_MEM_PRIV_NONE_FLAG);
    memory.write_pattern(0, 5000, 7);
    conn.post_write(1, memory.segment(0, 5000), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 5000);
    ctx.meet();
}

fn server_takes_a_write(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    ctx.send_target(memory.target(0, 5000));
    ctx.meet();
    memory.expect_pattern(0, 5000, 7);
}

fn client_sends_and_polls(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    for round in 0..200 {
        conn.post_recv(round, memory.segment(0, 50));
        conn.post_send(round, memory.segment(50, 50));
        check_dto(&polled_event(conn.request.h()).dto(), round, DAT_DTO_SUCCESS, 50);
        check_dto(&polled_event(conn.recv.h()).dto(), round, DAT_DTO_SUCCESS, 50);
    }
    ctx.meet();
}

fn server_receives_and_polls(ctx: &Ctx) {
    client_sends_and_polls(ctx);
}

fn client_flushes_quietly(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_recv(&conn, 1);
    ctx.meet();
    conn.disconnect();
    expect_flushed(&conn.recv, [1]);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    expect_nothing(conn.events.h());
    ctx.meet();
}

fn server_posts_and_is_left(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_recv(&conn, 1);
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_flushed(&conn.recv, [1]);
    expect_nothing(conn.events.h());
    ctx.meet();
}
