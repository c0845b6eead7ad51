//! Transfers that succeed: sends, RDMA writes and RDMA reads of many sizes. Also with special segment lists, for
//! example with the maximum number of segments or with empty segments, and with remote segments longer or shorter than
//! the transfer.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;

/// Sizes below, at and above the limits of the sm provider: of a slot, a fragment, and a copy by the kernel.
const SIZES: [usize; 11] = [0, 1, 64, 112, 113, 4096, 16_384, 16_385, 32_769, (1 << 20) + 3, 16 << 20];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for op in Op::REQUESTS {
        let name = |what: &str| format!("transfer_{}_{what}", op.word());
        for size in SIZES {
            let case = pair(move |ctx| moves(ctx, op, size), move |ctx| is_moved(ctx, op, size));
            all.push(case.named(name(&format!("{}_succeeds", of_bytes(size)))).proves("spec/events 4.4").limit(40));
        }
        let many = pair(move |ctx| moves_many(ctx, op), move |ctx| is_moved_many(ctx, op));
        all.push(many.named(name("of_the_maximum_number_of_segments_succeeds")).proves("spec/events 4.4"));
        let skipped = pair(move |ctx| skips(ctx, op), move |ctx| is_moved(ctx, op, 90));
        all.push(skipped.named(name("skips_empty_segments_of_unregistered_memory")).proves("spec/events 4.4"));
        let copied = pair(move |ctx| overwrites_its_list(ctx, op), move |ctx| is_moved(ctx, op, 5000));
        all.push(copied.named(name("copies_the_segment_list")).proves("spec/events 4.2"));
    }
    for op in Op::RDMA {
        let name = |what: &str| format!("transfer_{}_{what}", op.word());
        for size in [1, 32_768, 32_769, (1 << 20) + 3, 16 << 20] {
            let slow = |role: fn(&Ctx, Op, usize)| {
                move |ctx: &Ctx| {
                    without_kernel_copies();
                    role(ctx, op, size);
                }
            };
            let case = pair(slow(moves), slow(is_moved)).only_two().limit(40);
            let what = format!("{}_succeeds_without_kernel_copies", of_bytes(size));
            all.push(case.named(name(&what)).proves("spec/events 5.3"));
        }
        for (what, advertised) in [("less", 64), ("nothing", 0), ("more", u64::MAX)] {
            let case = pair(move |ctx| moves_advertised(ctx, op, advertised), move |ctx| is_moved(ctx, op, 5000));
            all.push(
                case.named(name(&format!("moves_the_local_length_when_{what}_is_advertised")))
                    .proves("spec/events 12.1"),
            );
        }
        let unset = pair(
            move |ctx| moves_with_unset_iov(ctx, op),
            move |ctx| is_moved_over(ctx, op, 90, &setup(unset_rdma_iov)),
        );
        all.push(unset.named(name("uses_the_request_segment_limit_when_its_own_is_unset")).proves("spec/events 4.4"));
    }
    all
}

/// The size in case names: `of_up_to` if an adapter's maximum may be smaller (8 MiB over rxe).
fn of_bytes(size: usize) -> String {
    let limit = if size > 8 << 20 { "up_to_" } else { "" };
    format!("of_{limit}{size}_bytes")
}

/// Returns `size`, or the adapter's maximum if that is smaller.
fn carried(conn: &Conn, op: Op, size: usize) -> usize {
    let attr = conn.ia.attr();
    let most = if matches!(op, Op::Send | Op::Recv) { attr.max_message_size } else { attr.max_rdma_size };
    size.min(most as usize)
}

/// The role that posts the transfer.
fn moves(ctx: &Ctx, op: Op, size: usize) {
    let conn = ctx.connect();
    let size = carried(&conn, op, size);
    let memory = conn.memory(size.max(1));
    moves_segments(ctx, op, &conn, &memory, &[memory.segment(0, size)], |_| ());
}

/// Posts these segments of `memory`, which cover it from its start, and checks the result.
#[track_caller]
fn moves_segments(
    ctx: &Ctx,
    op: Op,
    conn: &Conn,
    memory: &Memory,
    segments: &[DAT_LMR_TRIPLET],
    edit: impl FnOnce(&mut DAT_RMR_TRIPLET),
) {
    let size = segments.iter().filter(|s| s.lmr_context == memory.lmr_context).map(|s| s.segment_length).sum::<u64>();
    if op != Op::Read {
        memory.write_pattern(0, size as usize, 7);
    }
    let mut remote = if op == Op::Send { NOWHERE } else { ctx.receive_target() };
    edit(&mut remote);
    op.post(conn, 0x11, segments, &remote);
    expect_dto(conn.request.h(), 0x11, DAT_DTO_SUCCESS, size);
    if op == Op::Read {
        memory.expect_pattern(0, size as usize, 9);
    }
    // Between the two barriers the peer checks its memory.
    ctx.meet();
    ctx.meet();
}

/// The peer's role: receives the message, or provides the memory that is written or read. Checks the data that it gets.
fn is_moved(ctx: &Ctx, op: Op, size: usize) {
    is_moved_over(ctx, op, size, &Setup::default());
}

fn is_moved_over(ctx: &Ctx, op: Op, size: usize, setup: &Setup) {
    let conn = ctx.connect_with(setup);
    let size = carried(&conn, op, size);
    let memory = conn.memory(size.max(1));
    match op {
        Op::Send | Op::Recv => {
            conn.post_recv(0x22, memory.segment(0, size));
            expect_dto(conn.recv.h(), 0x22, DAT_DTO_SUCCESS, size as u64);
        }
        Op::Write => ctx.send_target(memory.target(0, size)),
        Op::Read => {
            memory.write_pattern(0, size, 9);
            ctx.send_target(memory.target(0, size));
        }
    }
    ctx.meet();
    if op != Op::Read {
        memory.expect_pattern(0, size, 7);
    }
    expect_nothing(conn.recv.h());
    ctx.meet();
}

/// Returns a setup whose EP permits the adapter's maximum of segments per operation, and this maximum.
fn widest(ctx: &Ctx) -> (Setup, usize) {
    let most = ctx.ia().attr().max_iov_segments_per_dto;
    let wide = setup(|attr| {
        attr.max_recv_iov = most;
        attr.max_request_iov = most;
        attr.max_rdma_read_iov = most;
        attr.max_rdma_write_iov = most;
    });
    (wide, most as usize)
}

fn moves_many(ctx: &Ctx, op: Op) {
    let (setup, most) = widest(ctx);
    let conn = ctx.connect_with(&setup);
    let memory = conn.memory(most * 1001);
    let segments: Vec<_> = (0..most).map(|at| memory.segment(at * 1001, 1001)).collect();
    moves_segments(ctx, op, &conn, &memory, &segments, |_| ());
}

fn is_moved_many(ctx: &Ctx, op: Op) {
    let (setup, most) = widest(ctx);
    if op != Op::Send {
        return is_moved_over(ctx, op, most * 1001, &setup);
    }
    let conn = ctx.connect_with(&setup);
    let memory = conn.memory(most * 1001);
    let segments: Vec<_> = (0..most).map(|at| memory.segment(at * 1001, 1001)).collect();
    Op::Recv.post(&conn, 0x22, &segments, &NOWHERE);
    expect_dto(conn.recv.h(), 0x22, DAT_DTO_SUCCESS, most as u64 * 1001);
    memory.expect_pattern(0, most * 1001, 7);
    ctx.meet();
    ctx.meet();
}

/// An empty segment of unregistered memory.
fn garbage() -> DAT_LMR_TRIPLET {
    DAT_LMR_TRIPLET { lmr_context: 0xdead_beef, pad: 0x5555, virtual_address: 0x17, segment_length: 0 }
}

fn skips(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(90);
    let segments = [garbage(), memory.segment(0, 40), garbage(), memory.segment(40, 50)];
    moves_segments(ctx, op, &conn, &memory, &segments, |_| ());
}

fn overwrites_its_list(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    memory.write_pattern(0, 5000, if op == Op::Read { 0 } else { 7 });
    let mut remote = if op == Op::Send { NOWHERE } else { ctx.receive_target() };
    let mut list = [memory.segment(0, 2000), memory.segment(2000, 3000)];
    ok(op.post_raw(conn.ep.h(), (2, list.as_mut_ptr()), 0x11, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    list = [garbage(); 2];
    remote = NOWHERE;
    expect_dto(conn.request.h(), 0x11, DAT_DTO_SUCCESS, 5000);
    assert_eq!(
        (list[0].lmr_context, remote.rmr_context),
        (0xdead_beef, 0),
        "the library wrote to the caller's lists after the post returned"
    );
    if op == Op::Read {
        memory.expect_pattern(0, 5000, 9);
    }
    ctx.meet();
    ctx.meet();
}

fn moves_advertised(ctx: &Ctx, op: Op, advertised: u64) {
    let conn = ctx.connect();
    let memory = conn.memory(5000);
    let segments = [memory.segment(0, 5000)];
    moves_segments(ctx, op, &conn, &memory, &segments, |remote| remote.segment_length = advertised);
}

fn unset_rdma_iov(attr: &mut DAT_EP_ATTR) {
    attr.max_request_iov = 3;
    attr.max_rdma_read_iov = 0;
    attr.max_rdma_write_iov = 0;
}

fn moves_with_unset_iov(ctx: &Ctx, op: Op) {
    let conn = ctx.connect_with(&setup(unset_rdma_iov));
    let memory = conn.memory(90);
    let segments = [memory.segment(0, 20), memory.segment(20, 30), memory.segment(50, 40)];
    moves_segments(ctx, op, &conn, &memory, &segments, |_| ());
}
