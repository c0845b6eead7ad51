//! Ordering guarantees of posts (spec/events 4.3). Cases about the visibility of data and about reads beyond the depth
//! also run without copies by the kernel (`DAPL_SM_RMA=mmap`).
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;

/// Message lengths: over the sm provider a slot, one fragment, many fragments.
const SIZES: [usize; 3] = [64, 4096, 1 << 20];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.3": order_sends_of_all_sizes_arrive_in_order => pair(client_sends_mixed, server_receives_mixed),
        "spec/events 4.3": order_sends_that_waited_arrive_in_order => pair(client_sends_early, server_receives_mixed_late),
        "spec/events 4.3": order_receives_are_filled_in_posting_order => pair(client_sends_numbers, server_receives_numbers),
        "spec/events 4.3": order_completions_come_in_posting_order => pair(client_requests_mixed, server_serves_mixed),
        "spec/events 4.3": order_reads_complete_in_order => pair(client_reads_mixed, server_serves_mixed_reads),
        "spec/events 4.3": order_waiting_send_does_not_delay_receives => pair(client_waits_with_a_send, server_sends_past_it),
        "spec/events 4.3": order_read_and_later_write_complete_in_order => pair(client_reads_then_writes, server_serves_mixed_reads),
    ];
    for size in SIZES {
        type Role = fn(&Ctx, usize);
        let rows: [(&str, Role, Role); 5] = [
            ("write_is_seen_by_the_receiver_of_a_later_send", writes_then_sends, receives_then_looks),
            ("write_is_seen_before_a_later_write", writes_twice, sees_the_second),
            ("last_byte_of_a_write_comes_last", writes_rounds, spins_for_last_bytes),
            ("read_sees_an_earlier_write", writes_then_reads, is_written_and_read),
            ("last_byte_of_a_send_comes_last", sends_rounds, spins_for_received),
        ];
        for (row, client, server) in rows {
            let name = |end: &str| format!("order_{row}_{size}_bytes{end}");
            let case = pair(move |ctx| client(ctx, size), move |ctx| server(ctx, size));
            all.push(case.named(name("")).proves("spec/events 4.3"));
            let slow = |role: Role| {
                move |ctx: &Ctx| {
                    without_kernel_copies();
                    role(ctx, size);
                }
            };
            all.push(
                pair(slow(client), slow(server))
                    .only_two()
                    .named(name("_without_kernel_copies"))
                    .proves("spec/events 4.3"),
            );
        }
    }
    for depth in [1, 2, 4] {
        let client = move |ctx: &Ctx| reads_beyond_its_depth(ctx, depth);
        let case = pair(client, server_serves_mixed_reads)
            .named(format!("order_reads_beyond_a_depth_of_{depth}_complete_in_order"));
        all.push(case.proves("spec/events 4.3"));
        let slow = pair(
            move |ctx| {
                without_kernel_copies();
                reads_beyond_its_depth(ctx, depth);
            },
            |ctx| {
                without_kernel_copies();
                server_serves_mixed_reads(ctx);
            },
        );
        let name = format!("order_reads_beyond_a_depth_of_{depth}_complete_in_order_without_kernel_copies");
        all.push(slow.only_two().named(name).proves("spec/events 4.3"));
    }
    all
}

/// Message lengths around the limits of a slot (112 bytes) and a fragment (16,384 bytes) of the sm provider.
const MIXED: [usize; 12] = [1, 113, 40_000, 0, 112, 16_384, 5, 70_000, 0, 4096, 113, 2];
/// The longest message length in `MIXED`.
const LONGEST: usize = 70_000;

fn client_sends_mixed(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    posts_mixed_sends(&conn);
    ctx.meet();
}

fn client_sends_early(ctx: &Ctx) {
    let conn = ctx.connect();
    posts_mixed_sends_and(&conn, || ctx.meet());
    ctx.meet();
}

#[track_caller]
fn posts_mixed_sends(conn: &Conn) {
    posts_mixed_sends_and(conn, || ());
}

#[track_caller]
fn posts_mixed_sends_and(conn: &Conn, then: impl FnOnce()) {
    let memory = conn.memory(LONGEST);
    memory.write_pattern(0, LONGEST, 3);
    let ids = || (0..).zip(MIXED);
    ids().for_each(|(id, length)| conn.post_send(id, memory.segment(0, length)));
    then();
    ids().for_each(|(id, length)| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, length as u64));
}

fn server_receives_mixed(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(MIXED.len() * LONGEST);
    posts_mixed_recvs(&conn, &memory);
    ctx.meet();
    expects_mixed(&conn, &memory);
    ctx.meet();
}

fn server_receives_mixed_late(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(MIXED.len() * LONGEST);
    ctx.meet();
    posts_mixed_recvs(&conn, &memory);
    expects_mixed(&conn, &memory);
    ctx.meet();
}

#[track_caller]
fn posts_mixed_recvs(conn: &Conn, memory: &Memory) {
    (0..MIXED.len()).for_each(|n| conn.post_recv(n as u64, memory.segment(n * LONGEST, LONGEST)));
}

#[track_caller]
fn expects_mixed(conn: &Conn, memory: &Memory) {
    for (n, length) in MIXED.into_iter().enumerate() {
        expect_dto(conn.recv.h(), n as u64, DAT_DTO_SUCCESS, length as u64);
        memory.expect_pattern(n * LONGEST, length, 3);
    }
}

fn client_sends_numbers(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(16);
    memory.put(0, &std::array::from_fn::<u8, 16, _>(|n| n as u8));
    for id in 0..200 {
        conn.post_send(id, memory.segment(id as usize % 16, 1));
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 1);
    }
    ctx.meet();
}

fn server_receives_numbers(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(16);
    // Cookies and addresses decrease while message numbers increase: only the order of the posts matters.
    let post = |id: u64| conn.post_recv(1000 - id, memory.segment(15 - id as usize % 16, 1));
    (0..16).for_each(post);
    for id in 0..200 {
        expect_dto(conn.recv.h(), 1000 - id, DAT_DTO_SUCCESS, 1);
        memory.expect_all(15 - id as usize % 16, 1, id as u8 % 16);
        post(id + 16);
    }
    ctx.meet();
}

fn writes_then_sends(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    let remote = ctx.receive_target();
    for round in 1..=20 {
        memory.fill(round);
        conn.post_write(0, memory.segment(0, size), remote);
        post_empty_send(&conn, 1);
        expect_dto(conn.request.h(), 0, DAT_DTO_SUCCESS, size as u64);
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 0);
        ctx.meet();
    }
}

fn receives_then_looks(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    post_empty_recv(&conn, 1);
    ctx.send_target(memory.target(0, size));
    for round in 1..=20 {
        expect_dto(conn.recv.h(), round, DAT_DTO_SUCCESS, 0);
        memory.expect_all(0, size, round as u8);
        post_empty_recv(&conn, round + 1);
        ctx.meet();
    }
}

fn writes_twice(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    let first = ctx.receive_target();
    let second = ctx.receive_target();
    for round in 1..=20 {
        memory.fill(round);
        conn.post_write(0, memory.segment(0, size), first);
        conn.post_write(1, memory.segment(0, 1), second);
        (0..2).for_each(|id| {
            expect_event(conn.request.h(), SOON);
            ctx.step(format!("round {round}, write {id}"));
        });
        ctx.meet();
    }
}

fn sees_the_second(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let (memory, flag) = (conn.memory(size), conn.memory(1));
    ctx.send_target(memory.target(0, size));
    ctx.send_target(flag.target(0, 1));
    for round in 1..=20 {
        flag.spin_for(0, round);
        memory.expect_all(0, size, round);
        ctx.meet();
    }
}

fn writes_rounds(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    let remote = ctx.receive_target();
    for round in 1..=20 {
        memory.fill(round);
        conn.post_write(0, memory.segment(0, size), remote);
        expect_dto(conn.request.h(), 0, DAT_DTO_SUCCESS, size as u64);
        ctx.meet();
    }
}

fn spins_for_last_bytes(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    ctx.send_target(memory.target(0, size));
    for round in 1..=20 {
        memory.spin_for(size - 1, round);
        memory.expect_all(0, size, round);
        ctx.meet();
    }
}

fn sends_rounds(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    for round in 1..=20 {
        memory.fill(round);
        conn.post_send(0, memory.segment(0, size));
        expect_dto(conn.request.h(), 0, DAT_DTO_SUCCESS, size as u64);
        ctx.meet();
    }
}

fn spins_for_received(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    for round in 1..=20 {
        conn.post_recv(round.into(), memory.segment(0, size));
        memory.spin_for(size - 1, round);
        memory.expect_all(0, size, round);
        expect_dto(conn.recv.h(), round.into(), DAT_DTO_SUCCESS, size as u64);
        ctx.meet();
    }
}

fn writes_then_reads(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let (from, into) = (conn.memory(size), conn.memory(size));
    let remote = ctx.receive_target();
    for round in 1..=20 {
        from.fill(round);
        conn.post_write(0, from.segment(0, size), remote);
        conn.post_read(1, into.segment(0, size), remote);
        (0..2).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, size as u64));
        into.expect_all(0, size, round);
    }
    ctx.meet();
}

fn is_written_and_read(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    ctx.send_target(memory.target(0, size));
    ctx.meet();
}

fn client_requests_mixed(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    let remote = ctx.receive_target();
    for round in 0..10 {
        let posts = [
            (Op::Read, 1 << 20),
            (Op::Send, 1),
            (Op::Write, 1 << 20),
            (Op::Send, 40_000),
            (Op::Read, 1),
            (Op::Write, 1),
            (Op::Send, 0),
        ];
        for (at, (op, length)) in posts.into_iter().enumerate() {
            op.post(&conn, round * 100 + at as u64, &[memory.segment(0, length)], &remote);
        }
        for (at, (_, length)) in posts.into_iter().enumerate() {
            expect_dto(conn.request.h(), round * 100 + at as u64, DAT_DTO_SUCCESS, length as u64);
        }
    }
    ctx.meet();
}

fn server_serves_mixed(ctx: &Ctx) {
    let conn = ctx.connect();
    let (target, memory) = (conn.memory(1 << 20), conn.memory(40_000));
    ctx.send_target(target.target(0, 1 << 20));
    (0..15).for_each(|id| conn.post_recv(id, memory.segment(0, 40_000)));
    for id in 0..30 {
        let length = [1, 40_000, 0][id as usize % 3];
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, length);
        conn.post_recv(id + 15, memory.segment(0, 40_000));
    }
    ctx.meet();
}

fn client_reads_mixed(ctx: &Ctx) {
    let conn = ctx.connect();
    reads_all(ctx, &conn);
}

/// Posts twelve reads of the server role's pattern.
#[track_caller]
fn reads_all(ctx: &Ctx, conn: &Conn) {
    let memory = conn.memory(MIXED.len() * LONGEST);
    let remote = ctx.receive_target();
    for (n, length) in MIXED.into_iter().enumerate() {
        conn.post_read(n as u64, memory.segment(n * LONGEST, length), remote);
    }
    for (n, length) in MIXED.into_iter().enumerate() {
        expect_dto(conn.request.h(), n as u64, DAT_DTO_SUCCESS, length as u64);
        memory.expect_pattern(n * LONGEST, length, 5);
    }
    ctx.meet();
}

fn server_serves_mixed_reads(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(LONGEST);
    memory.write_pattern(0, LONGEST, 5);
    ctx.send_target(memory.target(0, LONGEST));
    ctx.meet();
}

fn reads_beyond_its_depth(ctx: &Ctx, depth: DAT_COUNT) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_rdma_read_out = depth));
    reads_all(ctx, &conn);
}

fn client_reads_then_writes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(2 * LONGEST);
    let remote = ctx.receive_target();
    conn.post_read(0, memory.segment(0, LONGEST), remote);
    conn.post_write(1, memory.segment(LONGEST, 100), remote);
    (0..2).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, [LONGEST as u64, 100][id as usize]));
    // The write may be executed before the read of the first hundred bytes, so those bytes are not checked.
    memory.expect_bytes(100, &(100..LONGEST).map(|at| (at % 251) as u8 + 5).collect::<Vec<_>>());
    ctx.meet();
}

fn client_waits_with_a_send(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    conn.post_recv(1, memory.segment(0, 100));
    conn.post_send(2, memory.segment(100, 100));
    // The peer has no receive for this role's message, and sends a message itself.
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    expect_nothing(conn.request.h());
    ctx.meet();
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn server_sends_past_it(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    conn.post_send(3, memory.segment(0, 100));
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, 100);
    ctx.meet();
    conn.post_recv(4, memory.segment(100, 100));
    expect_dto(conn.recv.h(), 4, DAT_DTO_SUCCESS, 100);
    ctx.meet();
}
