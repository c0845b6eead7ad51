//! Failed transfers: their effects on both endpoints of the connection (spec/events 4.6). Also special causes, such as
//! freed memory, a changed PZ, the RDMA read depth or a killed peer.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;
use super::faults::{loses, nowhere, sends_into_trouble};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 4.6": failed_send_breaks_the_connection_before_its_completion_is_dequeued => pair(client_fails_unseen, loses),
        "spec/events 4.6": failed_suppressed_send_breaks_the_connection_and_is_reported => pair(client_fails_suppressed, loses),
        "spec/events 4.6": failed_send_flushes_both_queues_in_order => pair(client_fails_amid_work, server_loses_amid_work),
        "spec/events 4.6": failed_receive_flushes_both_queues_in_order => pair(sends_into_trouble, server_receives_badly_amid_work),
        "spec/events 4.6": failed_send_has_disconnected_the_ep_when_its_completion_is_dequeued => pair(client_fails_and_looks, loses),
        "spec/events 4.6": failed_rdma_write_leaves_the_target_without_completions => pair(client_reaches_wrong, server_loses_without_completions),
        "spec/events 4.8": receive_into_freed_memory_fails_when_a_message_arrives => pair(sends_into_trouble, server_frees_before_use),
        "spec/events 7": receive_posted_before_its_ep_changed_pz_is_not_filled => pair(client_sends_to_another_pz, server_changes_pz_before_use),
        "spec/events 8.2": lmr_free_does_not_disturb_completed_transfers => pair(client_frees_after_completion, server_loses_nothing),
        "spec/events 4.3": reads_with_depth_zero_are_refused_or_fail => pair(client_reads_without_depth, server_is_read_anyhow),
        "spec/events 4.3": reads_beyond_the_depth_of_the_target_are_delayed_or_fail => pair(client_reads_beyond_the_target, server_serves_one_read),
        "spec/events 4.3": reads_from_a_target_of_depth_zero_are_refused_or_fail => pair(client_reads_from_no_depth, server_serves_no_read),
        "spec/events 4.5": killed_peer_fails_all_posted_work => pair(client_outlives, server_dies).only_two(),
    ]
}

fn client_fails_unseen(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.receive_target();
    conn.post_send(1, nowhere());
    // The EP disconnects although the completion was not dequeued yet.
    expect_broken(&conn);
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    ctx.meet();
}

fn client_fails_suppressed(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.receive_target();
    conn.post_send_as(1, nowhere(), DAT_COMPLETION_SUPPRESS_FLAG);
    expect_broken(&conn);
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn client_fails_and_looks(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.receive_target();
    conn.post_send(1, nowhere());
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    conn.expect(DAT_CONNECTION_EVENT_BROKEN);
    ctx.meet();
}

fn client_fails_amid_work(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=3).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    ctx.meet();
    // The peer receives messages 11 and 12. Messages 14 to 16 follow the failed request 13; they are posted before
    // or after its failure is visible.
    (11..=12).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    conn.post_send(13, nowhere());
    (14..=16).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    (11..=12).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100));
    expect_dto(conn.request.h(), 13, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_flushed(&conn.request, 14..=16);
    expect_flushed(&conn.recv, 1..=3);
    expect_broken(&conn);
    ctx.meet();
}

fn server_loses_amid_work(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=4).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    ctx.meet();
    (1..=2).for_each(|id| _ = expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 100));
    expect_lost(&conn);
    expect_flushed(&conn.recv, 3..=4);
    ctx.meet();
}

fn server_receives_badly_amid_work(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    conn.post_recv(1, nowhere());
    (2..=3).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    // The client role has posted no receive, so both sends wait.
    (11..=12).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    ctx.meet();
    expect_dto(conn.recv.h(), 1, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_flushed(&conn.recv, 2..=3);
    expect_flushed(&conn.request, 11..=12);
    expect_broken(&conn);
    ctx.meet();
}

fn client_reaches_wrong(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    let good = ctx.receive_target();
    conn.post_write(1, memory.segment(0, 100), good);
    conn.post_write(2, memory.segment(0, 100), DAT_RMR_TRIPLET { rmr_context: !good.rmr_context, ..good });
    conn.post_write(3, memory.segment(0, 100), good);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    expect_dto(conn.request.h(), 2, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_flushed(&conn.request, [3]);
    expect_broken(&conn);
    ctx.meet();
}

fn server_loses_without_completions(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    expect_lost(&conn);
    expect_nothing(conn.recv.h());
    expect_nothing(conn.request.h());
    expect_nothing(conn.ia.errors());
    ctx.meet();
}

fn server_frees_before_use(ctx: &Ctx) {
    let conn = ctx.connect();
    let mut memory = conn.memory(100);
    conn.post_recv(2, memory.segment(0, 100));
    memory.deregister();
    ctx.meet();
    expect_dto(conn.recv.h(), 2, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_broken(&conn);
    memory.expect_all(0, 100, 0);
    ctx.meet();
}

fn client_sends_to_another_pz(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    conn.post_send(1, memory.segment(0, 100));
    if ctx.receive() == b"flushed" {
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    } else {
        expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
        expect_lost(&conn);
    }
    ctx.meet();
}

/// The receive fails when a message consumes it (spec/events 7), or is flushed when the change replaces the queue
/// pair (spec/endpoints 5.3).
fn server_changes_pz_before_use(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let conn = Conn::on(&ia);
    let memory = conn.memory(100);
    conn.post_recv(2, memory.segment(0, 100));
    let param = DAT_EP_PARAM { pz_handle: pz.h(), ..conn.ep.param() };
    ok(dat_ep_modify(conn.ep.h(), DAT_EP_FIELD_PZ_HANDLE, &param));
    let flushed = dequeue(conn.recv.h());
    join(ctx, &conn, 0);
    if let Some(event) = flushed {
        check_dto(&event.dto(), 2, DAT_DTO_ERR_FLUSHED, 0);
        let new = ia.memory(&pz, 100);
        conn.post_recv(3, new.segment(0, 100));
        expect_dto(conn.recv.h(), 3, DAT_DTO_SUCCESS, 100);
        ctx.send("flushed");
    } else {
        expect_dto(conn.recv.h(), 2, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
        expect_broken(&conn);
        ctx.send("failed");
    }
    memory.expect_all(0, 100, 0);
    ctx.meet();
    // The EP uses this PZ, so the EP is dropped first.
    drop((memory, conn));
}

fn client_frees_after_completion(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..20 {
        let mut memory = conn.memory(5000);
        memory.fill(id as u8);
        conn.post_send(id, memory.segment(0, 5000));
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 5000);
        memory.deregister();
    }
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
}

fn server_loses_nothing(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..20 {
        let mut memory = conn.memory(5000);
        conn.post_recv(id, memory.segment(0, 5000));
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 5000);
        memory.deregister();
        memory.expect_all(0, 5000, id as u8);
    }
    ctx.meet();
}

fn client_reads_without_depth(ctx: &Ctx) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_rdma_read_out = 0));
    let memory = conn.memory(100);
    memory.fill(7);
    refused_or_responder(ctx, &conn, &memory);
}

/// The post is refused, or the read fails because the peer has no resources for it.
#[track_caller]
fn refused_or_responder(ctx: &Ctx, conn: &Conn, memory: &Memory) {
    let code = Op::Read.call(conn, 1, &[memory.segment(0, 100)], &ctx.receive_target(), 0);
    if code == DAT_SUCCESS {
        expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
        expect_lost(conn);
    } else {
        assert_eq!(kind_of(code), error(DAT_INVALID_STATE, DAT_NO_SUBTYPE));
        conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    }
    memory.expect_all(0, 100, 7);
    ctx.meet();
}

fn server_is_read_anyhow(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    ctx.meet();
}

fn client_reads_from_no_depth(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    refused_or_responder(ctx, &conn, &memory);
}

fn server_serves_no_read(ctx: &Ctx) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_rdma_read_in = 0));
    let memory = conn.memory(100);
    ctx.send_target(memory.target(0, 100));
    ctx.meet();
}

fn client_reads_beyond_the_target(ctx: &Ctx) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_rdma_read_out = 8));
    let memory = conn.memory(8 * 5000);
    let remote = ctx.receive_target();
    (0..8).for_each(|id| conn.post_read(id, memory.segment(id as usize * 5000, 5000), remote));
    // A transport may delay reads until all complete, or break the connection.
    let mut broken = false;
    for id in 0..8 {
        let data = expect_event(conn.request.h(), SOON).dto();
        let wanted = match data.status {
            DAT_DTO_SUCCESS if !broken => DAT_DTO_SUCCESS,
            _ if broken => DAT_DTO_ERR_FLUSHED,
            _ => DAT_DTO_ERR_REMOTE_RESPONDER,
        };
        broken |= wanted != DAT_DTO_SUCCESS;
        check_dto(&data, id, wanted, 5000);
        if !broken {
            memory.expect_all(id as usize * 5000, 5000, 9);
        }
    }
    ctx.meet();
}

fn server_serves_one_read(ctx: &Ctx) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_rdma_read_in = 1));
    let memory = conn.memory(5000);
    memory.fill(9);
    ctx.send_target(memory.target(0, 5000));
    ctx.meet();
}

fn client_outlives(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=2).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    (11..=13).for_each(|id| conn.post_send(id, memory.segment(0, 100)));
    ctx.send("die");
    // All posted requests complete, none successfully, and the connection ends once.
    for id in 11..=13 {
        let data = expect_event(conn.request.h(), SOON).dto();
        assert_eq!(context_bits(data.user_cookie), id);
        let may_be = [DAT_DTO_ERR_FLUSHED, DAT_DTO_ERR_TRANSPORT, DAT_DTO_ERR_REMOTE_RESPONDER];
        assert!(
            may_be.contains(&data.status),
            "a send to an exited process completed with {}",
            status_name(data.status)
        );
    }
    expect_flushed(&conn.recv, 1..=2);
    expect_lost(&conn);
}

fn server_dies(ctx: &Ctx) {
    let _conn = ctx.connect();
    assert_eq!(ctx.receive(), b"die");
    ctx.die();
}
