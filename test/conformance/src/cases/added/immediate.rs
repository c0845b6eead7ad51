//! RDMA writes with immediate data: order, receives and bounds. Also EVDs with the extension flag.
#![forbid(unsafe_code)]

use dat_abi::v2;

use super::scenes::*;
use crate::api::added::{self, Done, Extended};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 4.1": v2_immediate_data_arrives_after_the_bytes_of_its_write => pair(client_write, server_be_written),
        "spec/events 4.1": v2_write_with_immediate_data_before_a_receive_succeeds => pair(client_write_early, server_receive_late),
        "spec/events 4.1": v2_immediate_data_arrives_in_the_order_of_posts => pair(client_write_many, server_receive_many),
        "spec/events 4.5": v2_write_with_immediate_data_out_of_bounds_ends_the_connection => pair(client_write_outside, server_keep_receive),
        "spec/events 4.1": v2_evd_create_accepts_the_extension_flag,
    ]
}

const LENGTHS: [u32; 6] = [0, 1, 8, 100, 4096, 60_000];

/// The expected completion of a receive that carries immediate data.
fn arrived(cookie: u64, bytes: u32, data: u32) -> Done {
    Done {
        number: v2::DAT_IB_DTO_EVENT,
        cookie,
        status: v2::DAT_DTO_SUCCESS,
        bytes,
        operation: v2::DAT_IB_DTO_RECV_IMMED,
        context: 0,
        extension: (v2::DAT_IB_RDMA_WRITE_IMMED_DATA, v2::DAT_OP_SUCCESS, data),
    }
}

fn client_write(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(LENGTHS[5] as usize);
    let target = ctx.receive_target();
    for (n, length) in LENGTHS.into_iter().enumerate() {
        memory.write_pattern(0, length as usize, n as u8);
        ctx.meet();
        let segment = local_segment(&memory, 0, length as usize);
        let operation = Extended::WriteImmediate { count: 1, data: !(n as u32) };
        ok(added::post_extended(conn.ep.h(), operation, &segment, n as u64, &remote(target, 0, length), 0));
        expect_request(&conn.request, operation, n as u64, v2::DAT_DTO_SUCCESS, length);
        ctx.meet();
    }
}

fn server_be_written(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(LENGTHS[5] as usize + 1);
    ctx.send_target(memory.target(0, LENGTHS[5] as usize));
    for (n, length) in LENGTHS.into_iter().enumerate() {
        memory.fill(0xEE);
        post_empty_recv(&conn, 100 + n as u64);
        ctx.meet();
        assert_eq!(done(&conn.recv), arrived(100 + n as u64, length, !(n as u32)));
        memory.expect_pattern(0, length as usize, n as u8);
        memory.expect_all(length as usize, 1, 0xEE);
        ctx.meet();
    }
}

fn client_write_early(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let target = ctx.receive_target();
    memory.write_pattern(0, 100, 5);
    let operation = Extended::WriteImmediate { count: 1, data: 5 };
    ok(added::post_extended(conn.ep.h(), operation, &local_segment(&memory, 0, 100), 1, &remote(target, 0, 100), 0));
    ctx.meet();
    expect_request(&conn.request, operation, 1, v2::DAT_DTO_SUCCESS, 100);
    ctx.meet();
}

fn server_receive_late(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    ctx.meet();
    post_empty_recv(&conn, 9);
    assert_eq!(done(&conn.recv), arrived(9, 100, 5));
    memory.expect_pattern(0, 100, 5);
    ctx.meet();
}

const MANY: u32 = 200;

/// Posts a mix of sends and writes with immediate data, eight outstanding.
fn client_write_many(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(16);
    let target = ctx.receive_target();
    for n in 0..MANY {
        if n >= 8 {
            assert_eq!(done(&conn.request).cookie, u64::from(n - 8));
        }
        if n % 3 == 0 {
            post_empty_send(&conn, n.into());
        } else {
            let operation = Extended::WriteImmediate { count: 1, data: n };
            let (segment, target) = (local_segment(&memory, 0, 16), remote(target, 0, 16));
            ok(added::post_extended(conn.ep.h(), operation, &segment, n.into(), &target, 0));
        }
    }
    for n in MANY - 8..MANY {
        assert_eq!(done(&conn.request).cookie, u64::from(n));
    }
    ctx.meet();
}

fn server_receive_many(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(16);
    (0..8).for_each(|n| post_empty_recv(&conn, n));
    ctx.send_target(memory.target(0, 16));
    for n in 0..MANY {
        let came = done(&conn.recv);
        assert_eq!((came.cookie, came.status), (n.into(), v2::DAT_DTO_SUCCESS));
        if n % 3 == 0 {
            assert_eq!((came.number, came.operation), (v2::DAT_DTO_COMPLETION_EVENT, v2::DAT_DTO_RECEIVE));
        } else {
            assert_eq!(came, arrived(n.into(), 16, n));
        }
        post_empty_recv(&conn, u64::from(n) + 8);
    }
    ctx.meet();
}

fn client_write_outside(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    let target = ctx.receive_target();
    let operation = Extended::WriteImmediate { count: 1, data: 5 };
    ok(added::post_extended(conn.ep.h(), operation, &local_segment(&memory, 0, 100), 1, &remote(target, 1, 100), 0));
    expect_request(&conn.request, operation, 1, v2::DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    // Requests on a disconnected EP are flushed.
    ok(added::post_extended(conn.ep.h(), operation, &local_segment(&memory, 0, 100), 2, &remote(target, 0, 100), 0));
    expect_request(&conn.request, operation, 2, v2::DAT_DTO_ERR_FLUSHED, 0);
    ctx.meet();
}

fn server_keep_receive(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(100);
    post_empty_recv(&conn, 3);
    ctx.send_target(memory.target(0, 100));
    expect_over(&conn);
    let left = done(&conn.recv);
    // A device may have consumed the receive for the write, and report the failure on the receive.
    assert!(
        left.cookie == 3 && left.status != v2::DAT_DTO_SUCCESS && left.extension == (0, 0, 0),
        "{left:?} is not the failed receive 3"
    );
    memory.expect_all(0, 100, 0);
    ctx.meet();
}

fn v2_evd_create_accepts_the_extension_flag(ctx: &Ctx) {
    let ia = ctx.ia();
    let flags = DAT_EVD_DTO_FLAG | v2::DAT_IB_EVD_EXTENSION_FLAG;
    let evd = ia.evd(8, flags);
    assert_eq!(evd.param().evd_flags, flags);
    let alone = ia.evd(8, v2::DAT_IB_EVD_EXTENSION_FLAG);
    assert_eq!(alone.param().evd_flags, v2::DAT_IB_EVD_EXTENSION_FLAG);
}
