//! The function table, file descriptors of CNOs, related adapters, RMRs of one EP, reads into an RMR triplet, sends
//! that invalidate a context, and refused extended operations.

use std::ptr::{null, null_mut};

use dat_abi::v2;

use super::{argument, error};
use crate::api::added;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 3.3": v2_function_table_has_81_entries,
        "spec/events 3.6": v2_cno_descriptor_is_readable_until_all_triggered_evds_are_returned,
        "spec/events 3.6": v2_cno_descriptor_is_readable_after_completions => pair(client_send_later, server_poll_for_it),
        "spec/registry 11": v2_ia_ha_related_reports_an_adapter_as_unrelated_to_itself,
        "spec/events 9.1": v2_rmr_create_for_ep_succeeds_or_returns_model_not_supported,
        "spec/events 4.1": v2_read_into_an_rmr_triplet_of_registered_memory_succeeds => pair(client_read_into_rmr, server_be_read),
        "spec/events 4.1": v2_send_with_invalidate_completes_or_returns_model_not_supported => pair(client_send_invalidating, server_receive_it),
        "spec/events 4.1": v2_unsupported_extended_operations_are_refused,
    ]
}

fn v2_function_table_has_81_entries(ctx: &Ctx) {
    let words = added::table_words(ctx.ia().h());
    assert_eq!(words.len(), 81);
    // The provider owns the second 8 bytes, which may be null.
    assert!(
        words.iter().enumerate().all(|(n, word)| n == 1 || *word != 0),
        "an entry of the function table is null: {words:x?}"
    );
}

fn v2_cno_descriptor_is_readable_until_all_triggered_evds_are_returned(ctx: &Ctx) {
    let ia = ctx.ia();
    let (mut fd, mut cno, mut evd) = (-1, null_mut(), null_mut());
    expect(added::cno_fd_create(ia.h(), null_mut(), &mut cno), argument(2));
    expect(added::cno_fd_create(ia.h(), &mut fd, null_mut()), argument(3));
    ok(added::cno_fd_create(ia.h(), &mut fd, &mut cno));
    let cno = Cno::own(cno);
    let (first, second) = (ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG), ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG));
    assert!(!added::is_readable(fd));
    expect(added::cno_trigger(cno.h(), &mut evd), DAT_QUEUE_EMPTY);
    second.post(1);
    first.post(2);
    first.post(3);
    for wanted in [&second, &first] {
        assert!(added::is_readable(fd));
        ok(added::cno_trigger(cno.h(), &mut evd));
        assert_eq!(evd, wanted.h());
    }
    assert!(!added::is_readable(fd), "the descriptor is readable although no triggered EVD is left");
    assert!(
        dequeue(first.h()).is_some() && added::is_readable(fd),
        "the remaining event does not trigger the CNO again"
    );
    assert!(dequeue(first.h()).is_some() && dequeue(second.h()).is_some());
    expect(added::cno_trigger(cno.h(), &mut evd), DAT_QUEUE_EMPTY);
    assert!(evd.is_null() && !added::is_readable(fd));
    expect(added::cno_trigger(cno.h(), null_mut()), argument(2));
}

fn client_send_later(ctx: &Ctx) {
    let conn = ctx.connect();
    for _ in 0..100 {
        ctx.meet();
        post_empty_send(&conn, 5);
        expect_dto(conn.request.h(), 5, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

/// Sleeps in `poll` until the descriptor is readable, as an event loop does.
fn server_poll_for_it(ctx: &Ctx) {
    let conn = ctx.connect();
    let (mut fd, mut cno, mut evd) = (-1, null_mut(), null_mut());
    ok(added::cno_fd_create(conn.ia.h(), &mut fd, &mut cno));
    let cno = Cno::own(cno);
    ok(dat_evd_modify_cno(conn.recv.h(), cno.h()));
    for _ in 0..100 {
        post_empty_recv(&conn, 6);
        ctx.meet();
        loop {
            added::await_readable(fd, ctx.left());
            if added::cno_trigger(cno.h(), &mut evd) == DAT_SUCCESS {
                break;
            }
        }
        assert_eq!(evd, conn.recv.h());
        expect_dto(conn.recv.h(), 6, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
    ok(dat_evd_modify_cno(conn.recv.h(), null_mut()));
}

fn v2_ia_ha_related_reports_an_adapter_as_unrelated_to_itself(ctx: &Ctx) {
    let ia = ctx.ia();
    let name = ctx.name();
    let mut answer = 9;
    ok(added::ia_ha_related(ia.h(), name.as_ptr().cast_mut(), &mut answer));
    assert_eq!(answer, DAT_FALSE);
    expect(added::ia_ha_related(ia.h(), null_mut(), &mut answer), argument(2));
    expect(added::ia_ha_related(ia.h(), name.as_ptr().cast_mut(), null_mut()), argument(3));
}

fn v2_rmr_create_for_ep_succeeds_or_returns_model_not_supported(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let mut rmr = null_mut();
    expect(added::rmr_create_for_ep(pz.h(), null_mut()), argument(2));
    match added::rmr_create_for_ep(pz.h(), &mut rmr) {
        DAT_SUCCESS => drop(Rmr::own(rmr)),
        code => expect(code, error(DAT_MODEL_NOT_SUPPORTED, 0)),
    }
}

fn client_read_into_rmr(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    let DAT_RMR_TRIPLET { rmr_context, target_address, segment_length, .. } = ctx.receive_target();
    let length = segment_length as u32;
    let remote = v2::DAT_RMR_TRIPLET { virtual_address: target_address, segment_length: length, rmr_context };
    let own = memory.target(512, 0).rmr_context;
    let at = |offset: usize, rmr_context| v2::DAT_RMR_TRIPLET {
        virtual_address: memory.segment(offset, 0).virtual_address,
        segment_length: length,
        rmr_context,
    };
    ok(added::ep_post_rdma_read_to_rmr(conn.ep.h(), &at(512, own), 3, &remote, 0));
    expect_dto(conn.request.h(), 3, DAT_DTO_SUCCESS, segment_length);
    memory.expect_pattern(512, segment_length as usize, 9);
    let outside = error(DAT_PROTECTION_VIOLATION, v2::DAT_PROTECTION_WRITE);
    expect(added::ep_post_rdma_read_to_rmr(conn.ep.h(), &at(4000, own), 3, &remote, 0), outside);
    expect(added::ep_post_rdma_read_to_rmr(conn.ep.h(), &at(512, 0), 3, &remote, 0), outside);
    expect(added::ep_post_rdma_read_to_rmr(conn.ep.h(), null(), 3, &remote, 0), argument(2));
    expect(added::ep_post_rdma_read_to_rmr(conn.ep.h(), &at(512, own), 3, null(), 0), argument(4));
    ctx.meet();
}

fn server_be_read(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1024);
    memory.write_pattern(0, 1000, 9);
    ctx.send_target(memory.target(0, 1000));
    ctx.meet();
}

fn client_send_invalidating(ctx: &Ctx) {
    let conn = ctx.connect();
    expect(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0x8000, DAT_FALSE, 0), argument(5));
    ok(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_FALSE, 0));
    expect_dto(conn.request.h(), 77, DAT_DTO_SUCCESS, 0);
    match added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_TRUE, 0x1234) {
        DAT_SUCCESS => {
            ctx.send_number(1);
            // The transport may ignore an unbound context, or end the connection.
            let done = expect_event(conn.request.h(), ctx.left());
            assert_eq!(context_bits(done.dto().user_cookie), 77);
        }
        code => {
            expect(code, error(DAT_MODEL_NOT_SUPPORTED, 0));
            ctx.send_number(0);
        }
    }
    ctx.meet();
}

fn server_receive_it(ctx: &Ctx) {
    let conn = ctx.connect();
    post_empty_recv(&conn, 1);
    post_empty_recv(&conn, 2);
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 0);
    if ctx.receive_number() == 1 {
        let done = expect_event(conn.recv.h(), ctx.left());
        assert_eq!(context_bits(done.dto().user_cookie), 2);
    }
    ctx.meet();
}

fn v2_unsupported_extended_operations_are_refused(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let (ep, none) = (conn.ep.h(), [0; 5]);
    let not_there = error(DAT_MODEL_NOT_SUPPORTED, 0);
    for op in [v2::DAT_IB_UD_SEND_OP, v2::DAT_IB_QUERY_COUNTERS_OP, v2::DAT_IB_COLLECTIVE_BARRIER_OP] {
        expect(added::extension_op(ep, op as i32, none), not_there);
    }
    for op in [v2::DAT_IB_UD_AH_FREE_OP as i32 + 1, -1, i32::MAX] {
        expect(added::extension_op(ep, op, none), argument(2));
    }
    let add = v2::DAT_IB_FETCH_AND_ADD_OP as i32;
    expect(added::extension_op(conn.pz.h(), add, none), error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE_EP));
    expect(added::extension_op(null_mut(), add, none), error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE1));
    one_of(added::extension_op(ep, add, none), &[argument(5), not_there]);
}
