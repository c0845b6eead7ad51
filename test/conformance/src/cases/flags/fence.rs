//! BARRIER_FENCE: a fenced request begins when all earlier reads have completed.
#![forbid(unsafe_code)]

use crate::cases::transfer::ends::*;
use crate::kit::*;

const FENCE: DAT_COMPLETION_FLAGS = DAT_COMPLETION_BARRIER_FENCE_FLAG;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.1": flag_fence_without_a_preceding_read_succeeds => pair(client_fences_nothing, server_exports_and_receives),
        "spec/events 4.1": flag_fenced_bind_completes_after_reads => pair(client_fences_a_bind, server_exports_memory).needs(Need::Rmr),
    ];
    for size in [100, 40_000, 1 << 20] {
        type Role = fn(&Ctx, usize);
        let rows: [(&str, Role, Role); 3] = [
            ("write_waits_for_the_read_of_its_data", writes_what_it_read, is_written_what_it_exported),
            ("send_waits_for_the_read_of_its_data", sends_what_it_read, is_sent_what_it_exported),
            ("write_waits_for_the_read_of_its_target", overwrites_what_it_reads, is_overwritten),
        ];
        for (words, client, server) in rows {
            let name = |end: &str| format!("flag_fenced_{words}_{size}_bytes{end}");
            let case = pair(move |ctx| client(ctx, size), move |ctx| server(ctx, size));
            all.push(case.named(name("")).proves("spec/events 4.1"));
            let slow = |role: Role| {
                move |ctx: &Ctx| {
                    without_kernel_copies();
                    role(ctx, size);
                }
            };
            let case = pair(slow(client), slow(server)).only_two();
            all.push(case.named(name("_without_kernel_copies")).proves("spec/events 4.1"));
        }
    }
    all
}

const ROUNDS: u8 = 10;

/// Reads the first part of the peer's memory. A fenced write then sends the bytes just read to the second part.
fn writes_what_it_read(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    let (from, to) = (ctx.receive_target(), ctx.receive_target());
    for _ in 0..ROUNDS {
        memory.fill(0xff);
        conn.post_read(1, memory.segment(0, size), from);
        ok(Op::Write.call(&conn, 2, &[memory.segment(0, size)], &to, FENCE));
        (1..=2).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, size as u64));
        ctx.meet();
        ctx.meet();
    }
}

fn is_written_what_it_exported(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let (from, to) = (conn.memory(size), conn.memory(size));
    from.fill(1);
    ctx.send_target(from.target(0, size));
    ctx.send_target(to.target(0, size));
    for round in 1..=ROUNDS {
        ctx.meet();
        to.expect_all(0, size, round);
        from.fill(round + 1);
        ctx.meet();
    }
}

fn sends_what_it_read(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    let from = ctx.receive_target();
    for _ in 0..ROUNDS {
        memory.fill(0xff);
        conn.post_read(1, memory.segment(0, size), from);
        ok(Op::Send.call(&conn, 2, &[memory.segment(0, size)], &NOWHERE, FENCE));
        (1..=2).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, size as u64));
        ctx.meet();
        ctx.meet();
    }
}

fn is_sent_what_it_exported(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let (from, to) = (conn.memory(size), conn.memory(size));
    from.fill(1);
    conn.post_recv(1, to.segment(0, size));
    ctx.send_target(from.target(0, size));
    for round in 1..=ROUNDS {
        ctx.meet();
        expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, size as u64);
        to.expect_all(0, size, round);
        conn.post_recv(1, to.segment(0, size));
        from.fill(round + 1);
        ctx.meet();
    }
}

/// Reads, then overwrites the source of the read with a fenced write. The read must return the previous content.
fn overwrites_what_it_reads(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let (into, from) = (conn.memory(size), conn.memory(size));
    let remote = ctx.receive_target();
    for round in 1..=ROUNDS {
        from.fill(round);
        conn.post_read(1, into.segment(0, size), remote);
        ok(Op::Write.call(&conn, 2, &[from.segment(0, size)], &remote, FENCE));
        (1..=2).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, size as u64));
        into.expect_all(0, size, round - 1);
    }
    ctx.meet();
}

fn is_overwritten(ctx: &Ctx, size: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(size);
    ctx.send_target(memory.target(0, size));
    ctx.meet();
    memory.expect_all(0, size, ROUNDS);
}

fn client_fences_nothing(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let remote = ctx.receive_target();
    for op in Op::REQUESTS {
        ok(op.call(&conn, 1, &[memory.segment(0, 100)], &remote, FENCE));
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    }
    ctx.meet();
}

fn server_exports_and_receives(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    conn.post_recv(1, memory.segment(100, 100));
    ctx.send_target(memory.target(0, 100));
    ctx.meet();
}

const EXPORTED: usize = 100_000;

fn client_fences_a_bind(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4 * EXPORTED);
    let rmr = conn.pz.rmr();
    let remote = ctx.receive_target();
    (0..4).for_each(|id| conn.post_read(id, memory.segment(id as usize * EXPORTED, EXPORTED), remote));
    let segment = memory.segment(0, 100);
    let privileges = DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let _: DAT_RMR_CONTEXT =
        filled(|out| dat_rmr_bind(rmr.h(), &segment, privileges, conn.ep.h(), cookie(4), FENCE, out));
    (0..4).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, EXPORTED as u64));
    expect_rmr(conn.request.h(), rmr.h(), 4, DAT_RMR_BIND_SUCCESS);
    ctx.meet();
}

fn server_exports_memory(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(EXPORTED);
    ctx.send_target(memory.target(0, EXPORTED));
    ctx.meet();
}
