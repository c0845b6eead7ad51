//! Sends, receives, RDMA reads and writes, their completions and errors. Cases only; what several files need goes into the kit.
#![forbid(unsafe_code)]

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "events 5": transfer_send_arrives => pair(sends, receives),
        "consumers 1": transfer_rdma_write_arrives_while_the_target_sleeps => pair(writes, watches).shares_ia(),
    ]
}

fn sends(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    memory.write_pattern(0, 1000, 7);
    conn.post_send(0x11, memory.segment(0, 1000));
    expect_dto(conn.request.h(), 0x11, DAT_DTO_SUCCESS, 1000);
    ctx.meet();
}

fn receives(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    conn.post_recv(0x22, memory.segment(8, 2000));
    expect_dto(conn.recv.h(), 0x22, DAT_DTO_SUCCESS, 1000);
    memory.expect_pattern(8, 1000, 7);
    memory.expect_all(1008, 1000, 0);
    ctx.meet();
}

fn writes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    memory.fill(9);
    conn.post_write(0x33, memory.segment(0, 4096), ctx.hear_target());
    expect_dto(conn.request.h(), 0x33, DAT_DTO_SUCCESS, 4096);
    ctx.meet();
}

fn watches(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    ctx.tell_target(memory.target(0, 4096));
    memory.spin_for(4095, 9);
    memory.expect_all(0, 4096, 9);
    ctx.meet();
}
