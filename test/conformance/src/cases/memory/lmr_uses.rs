//! Transfers from and to LMRs, and the free of LMRs that transfers use (spec/events 8.1, 8.2). LMRs as objects are in
//! `lmr`.
#![forbid(unsafe_code)]

use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::make::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 8.1": lmr_of_an_lmr_is_valid_after_its_source_is_freed => pair(client_writes_to_it, server_frees_the_source),
        "spec/events 8.1": lmr_of_an_lmr_has_its_own_privileges => pair(client_writes_beyond_privilege, server_exports_twice),
        "spec/events 8.1": lmr_of_an_lmr_of_another_pz_permits_writes => pair(client_writes_to_it, server_exports_from_another_pz),
        "spec/events 8.1": lmr_overlapping_others_has_separate_privileges => pair(client_writes_then_reads_overlapping, server_exports_overlapping),
        "spec/events 8.1": lmr_with_remote_write_needs_no_local_write => pair(client_writes_to_it, server_exports_remote_write_only),
        "spec/events 8.1": lmr_of_read_only_memory_can_be_sent_from => pair(client_sends_from_read_only, server_receives_zeros),
        "spec/events 8.1": lmr_of_read_only_memory_cannot_receive => pair(client_sends_to_read_only, server_receives_into_read_only),
        "spec/events 8.1": lmr_of_read_only_memory_cannot_be_written => pair(client_writes_to_read_only, server_exports_read_only),
        "spec/events 8.2": lmr_free_with_posted_receives_lets_a_disconnect_flush_them => pair(client_frees_with_receives, server_idles_on),
        "spec/events 8.2": lmr_free_of_an_rdma_target_makes_later_writes_fail => pair(client_writes_on_and_on, server_frees_amid_writes),
        "spec/events 8.2": lmr_free_of_an_rdma_target_makes_later_reads_fail => pair(client_reads_on_and_on, server_frees_amid_reads),
        "spec/events 8.2": lmr_free_leaves_the_memory_unchanged,
    ]
}

fn client_writes_to_it(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    memory.fill(7);
    conn.post_write(1, memory.segment(0, 1000), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 1000);
    ctx.meet();
}

fn server_frees_the_source(ctx: &Ctx) {
    let conn = ctx.connect();
    let buffer = Buffer::new(1000);
    let source = LmrArgs::memory(buffer.pointer(), 1000).make(&conn.ia, &conn.pz);
    let made = LmrArgs::lmr(source.lmr.h()).make(&conn.ia, &conn.pz);
    source.lmr.free();
    ctx.send_target(made.target(0, 1000));
    ctx.meet();
    buffer.expect_all(0, 1000, 7);
}

/// Writes to the first target successfully; the write to the second target is refused.
fn client_writes_beyond_privilege(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    memory.fill(7);
    conn.post_write(1, memory.segment(0, 1000), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 1000);
    conn.post_write(2, memory.segment(0, 1000), ctx.receive_target());
    expect_dto(conn.request.h(), 2, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_exports_twice(ctx: &Ctx) {
    let conn = ctx.connect();
    let buffer = Buffer::new(1000);
    let source = LmrArgs::memory(buffer.pointer(), 1000).make(&conn.ia, &conn.pz);
    let read = DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let made = LmrArgs::lmr(source.lmr.h()).with(LOCAL | read).make(&conn.ia, &conn.pz);
    ctx.send_target(source.target(0, 1000));
    ctx.send_target(made.target(0, 1000));
    expect_lost(&conn);
    ctx.meet();
    buffer.expect_all(0, 1000, 7);
}

fn server_exports_from_another_pz(ctx: &Ctx) {
    let conn = ctx.connect();
    let other = conn.ia.pz();
    let buffer = Buffer::new(1000);
    let source = LmrArgs::memory(buffer.pointer(), 1000).make(&conn.ia, &other);
    let made = LmrArgs::lmr(source.lmr.h()).make(&conn.ia, &conn.pz);
    ctx.send_target(made.target(0, 1000));
    ctx.meet();
    buffer.expect_all(0, 1000, 7);
}

fn client_writes_then_reads_overlapping(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    memory.fill(7);
    conn.post_write(1, memory.segment(0, 500), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 500);
    memory.fill(0);
    conn.post_read(2, memory.segment(0, 500), ctx.receive_target());
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 500);
    memory.expect_all(0, 250, 7);
    memory.expect_all(250, 250, 1);
    ctx.meet();
}

fn server_exports_overlapping(ctx: &Ctx) {
    let conn = ctx.connect();
    let buffer = Buffer::new(1000);
    buffer.fill(1);
    let register = |at: usize, privilege| {
        LmrArgs::memory(buffer.pointer().wrapping_byte_add(at), 500).with(privilege).make(&conn.ia, &conn.pz)
    };
    let writable = register(0, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
    let readable = register(250, DAT_MEM_PRIV_REMOTE_READ_FLAG);
    ctx.send_target(writable.target(0, 500));
    ctx.send_target(readable.target(0, 500));
    ctx.meet();
}

fn server_exports_remote_write_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, 1000, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
    ctx.send_target(memory.target(0, 1000));
    ctx.meet();
    memory.expect_all(0, 1000, 7);
}

fn client_sends_from_read_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = os::Map::private(4096, false);
    let made = LmrArgs::memory(map.pointer(), 4096).with(DAT_MEM_PRIV_LOCAL_READ_FLAG).make(&conn.ia, &conn.pz);
    conn.post_send(1, made.segment(0, 1000));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 1000);
    ctx.meet();
}

fn server_receives_zeros(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    memory.fill(9);
    conn.post_recv(1, memory.segment(0, 1000));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 1000);
    memory.expect_all(0, 1000, 0);
    ctx.meet();
}

/// Registers the memory with all privileges. Returns `None` if the library refuses the memory.
#[track_caller]
fn register_if_accepted(conn: &Conn, map: &os::Map) -> Option<CreatedLmr> {
    let wanted = LmrArgs::memory(map.pointer(), 4096);
    let mut lmr = DAT_HANDLE_NULL;
    let code = wanted.call(conn.ia.h(), conn.pz.h(), &mut lmr);
    if code != DAT_SUCCESS {
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
        return None;
    }
    drop(Lmr::own(lmr));
    Some(wanted.make(&conn.ia, &conn.pz))
}

fn client_sends_to_read_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    if ctx.receive() == b"registered" {
        conn.post_send(1, memory.segment(0, 1000));
        expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
        expect_lost(&conn);
    }
    ctx.meet();
}

fn server_receives_into_read_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = os::Map::private(4096, false);
    let made = register_if_accepted(&conn, &map);
    receive_fails(ctx, &conn, made);
}

#[track_caller]
fn receive_fails(ctx: &Ctx, conn: &Conn, made: Option<CreatedLmr>) {
    if let Some(made) = &made {
        conn.post_recv(1, made.segment(0, 1000));
        ctx.send("registered");
        expect_dto(conn.recv.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
        expect_broken(conn);
    } else {
        ctx.send("refused");
    }
    ctx.meet();
}

fn client_writes_to_read_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    if ctx.receive() == b"registered" {
        conn.post_write(1, memory.segment(0, 1000), ctx.receive_target());
        expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
        expect_broken(&conn);
    }
    ctx.meet();
}

fn server_exports_read_only(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = os::Map::private(4096, false);
    let made = register_if_accepted(&conn, &map);
    if let Some(made) = &made {
        ctx.send("registered");
        ctx.send_target(made.target(0, 1000));
        expect_lost(&conn);
    } else {
        ctx.send("refused");
    }
    ctx.meet();
}

fn client_frees_with_receives(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(1000);
    (1..=5).for_each(|id| conn.post_recv(id, memory.segment(0, 1000)));
    memory.deregister();
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    conn.disconnect();
    expect_flushed(&conn.recv, 1..=5);
    ctx.meet();
}

fn server_idles_on(ctx: &Ctx) {
    let conn = ctx.connect();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ctx.meet();
}

const LARGE: usize = 1 << 20;

/// Repeats a transfer until it fails because the peer has freed its memory.
#[track_caller]
fn moves_until_denied(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(LARGE);
    memory.fill(7);
    let remote = ctx.receive_target();
    for id in 0.. {
        op.post(&conn, id, &[memory.segment(0, LARGE)], &remote);
        let data = expect_event(conn.request.h(), SOON).dto();
        if data.status != DAT_DTO_SUCCESS {
            check_dto(&data, id, DAT_DTO_ERR_REMOTE_ACCESS, 0);
            break;
        }
        if id == 0 {
            ctx.send("moving");
        }
    }
    expect_broken(&conn);
    ctx.meet();
}

fn client_writes_on_and_on(ctx: &Ctx) {
    moves_until_denied(ctx, Op::Write);
}

fn client_reads_on_and_on(ctx: &Ctx) {
    moves_until_denied(ctx, Op::Read);
}

fn server_frees_amid_writes(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(LARGE);
    ctx.send_target(memory.target(0, LARGE));
    assert_eq!(ctx.receive(), b"moving");
    memory.deregister();
    // After the free, the library must not access the memory.
    memory.fill(3);
    expect_lost(&conn);
    ctx.meet();
    memory.expect_all(0, LARGE, 3);
}

fn server_frees_amid_reads(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(LARGE);
    ctx.send_target(memory.target(0, LARGE));
    assert_eq!(ctx.receive(), b"moving");
    memory.deregister();
    expect_lost(&conn);
    ctx.meet();
}

fn lmr_free_leaves_the_memory_unchanged(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let mut memory = ia.memory(&pz, 10_000);
    memory.write_pattern(0, 10_000, 3);
    memory.deregister();
    memory.expect_pattern(0, 10_000, 3);
}
