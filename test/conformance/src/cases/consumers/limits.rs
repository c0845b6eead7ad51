//! Queue lengths, attributes and registrations that programs request (spec/consumers 16, 17, 19).
#![forbid(unsafe_code)]

use std::ptr::{null, null_mut};

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/consumers 16": consumers_16_evd_lengths_from_1_to_6000_are_accepted,
        "spec/consumers 16": consumers_16_evd_shorter_than_the_posted_work_loses_no_event => pair(client_sends_sixty, server_receives_sixty_on_three),
        "spec/consumers 16": consumers_16_idle_evd_can_be_resized,
        "spec/consumers 16": consumers_16_evd_can_be_grown_after_a_first_ep_is_freed,
        "spec/consumers 17": consumers_17_ep_create_accepts_edited_query_attributes,
        "spec/consumers 17": consumers_17_eps_with_edited_attributes_carry_messages => pair(each_remade, each_remade),
        "spec/consumers 17": consumers_17_zero_sizes_in_attributes_permit_transfers,
        "spec/consumers 17": consumers_17_max_message_size_of_two_gigabytes_can_be_requested => pair(each_asks_for_much, each_asks_for_much),
        "spec/consumers 17": consumers_17_queue_depths_of_fifty_thousand_can_be_requested => pair(each_fifty_thousand, each_fifty_thousand),
        "spec/consumers 17": consumers_17_five_thousand_posts_on_short_evds_lose_no_completion => pair(client_posts_thousands, server_takes_thousands).limit(60),
        "spec/consumers 19": consumers_19_null_out_parameters_of_a_registration_are_accepted,
        "spec/consumers 19": consumers_19_overlapping_page_rounded_registrations_succeed,
        "spec/consumers 19": consumers_19_registration_for_each_send_succeeds => pair(client_registers_each_time, server_takes_each).limit(40),
    ]
}

fn consumers_16_evd_lengths_from_1_to_6000_are_accepted(ctx: &Ctx) {
    let ia = ctx.ia();
    for length in [1, 2, 3, 8, 10, 16, 64, 100, 1000, 1024, 4096, 5000, 6000] {
        for flags in [DAT_EVD_DTO_FLAG, DAT_EVD_DEFAULT_FLAG, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG] {
            let shown = ia.evd(length, flags).param().evd_qlen;
            assert!(shown >= length, "the query returns {shown} for an EVD of {length}");
        }
    }
}

const SIXTY: DAT_COUNT = 60;

fn sixty_deep() -> Setup {
    let attr = DAT_EP_ATTR { max_recv_dtos: SIXTY, max_request_dtos: SIXTY, ..ep_attr() };
    Setup { attr, qlen: 3, ..Setup::default() }
}

fn client_sends_sixty(ctx: &Ctx) {
    let conn = ctx.connect_with(&sixty_deep());
    for id in 0..SIXTY as u64 {
        ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
    ctx.meet();
    // Up to here no completion was dequeued, so the EVD of length three may have to queue all of them.
    for id in 0..SIXTY as u64 {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_nothing(conn.ia.errors());
    ctx.meet();
}

fn server_receives_sixty_on_three(ctx: &Ctx) {
    let conn = ctx.connect_with(&sixty_deep());
    for id in 0..SIXTY as u64 {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
    ctx.meet();
    for id in 0..SIXTY as u64 {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_nothing(conn.ia.errors());
    ctx.meet();
}

fn consumers_16_idle_evd_can_be_resized(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
    for length in [16, 100, 1000, 6000] {
        if evd.param().evd_qlen < length {
            ok(dat_evd_resize(evd.h(), length));
        }
        let shown = evd.param().evd_qlen;
        assert!(shown >= length, "the query returns {shown} for an EVD of {length}");
    }
}

/// Like Open MPI: reads the queue depth of a first EP, frees that EP, and resizes the EVD for the next EPs.
fn consumers_16_evd_can_be_grown_after_a_first_ep_is_freed(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, evd) = (ia.pz(), ia.evd(1, DAT_EVD_DEFAULT_FLAG));
    let make = |attr: *const DAT_EP_ATTR| {
        Ep::own(filled(|out| dat_ep_create(ia.h(), pz.h(), evd.h(), evd.h(), evd.h(), attr, out)))
    };
    let first = make(null());
    let attr = first.param().ep_attr;
    first.free();
    let length = 2 * (attr.max_recv_dtos + attr.max_request_dtos);
    ok(dat_evd_resize(evd.h(), length));
    assert!(evd.param().evd_qlen >= length);
    let _eps = [make(&attr), make(&attr)];
}

/// Returns the attributes of an EP created with null attributes.
fn default_attr(ia: &Ia, pz: &Pz, evd: &Evd) -> DAT_EP_ATTR {
    let ep = Ep::own(filled(|out| dat_ep_create(ia.h(), pz.h(), evd.h(), evd.h(), evd.h(), null(), out)));
    ep.param().ep_attr
}

fn consumers_17_ep_create_accepts_edited_query_attributes(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, evd) = (ia.pz(), ia.evd(64, DAT_EVD_DEFAULT_FLAG));
    let plain = default_attr(&ia, &pz, &evd);
    assert!(plain.max_recv_dtos >= 1 && plain.max_request_dtos >= 1 && plain.max_request_iov >= 1);
    let edits: [fn(&mut DAT_EP_ATTR); 5] = [
        |_| (),
        |attr| attr.max_recv_dtos *= 2,
        |attr| (attr.max_recv_iov, attr.max_request_iov) = (4, 4),
        |attr| (attr.max_rdma_read_in, attr.max_rdma_read_out) = (4, 4),
        |attr| attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG,
    ];
    for edit in edits {
        let mut attr = plain;
        edit(&mut attr);
        let ep = ia.ep_with(&pz, &evd, &evd, &evd, &attr);
        let shown = ep.param().ep_attr;
        assert!(shown.max_recv_dtos >= attr.max_recv_dtos && shown.max_request_iov >= attr.max_request_iov);
    }
}

/// Sends one message in each direction over EPs with these attributes.
fn carries(ctx: &Ctx, setup: &Setup) {
    let conn = ctx.connect_with(setup);
    let memory = conn.memory(2000);
    conn.post_recv(1, memory.segment(0, 1000));
    conn.post_send(2, memory.segment(1000, 1000));
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 1000);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 1000);
    ctx.meet();
}

fn each_remade(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, evd) = (ia.pz(), ia.evd(64, DAT_EVD_DEFAULT_FLAG));
    let mut attr = default_attr(&ia, &pz, &evd);
    (attr.max_recv_dtos, attr.max_request_dtos) = (32, 32);
    carries(ctx, &Setup { attr, ..Setup::default() });
}

fn consumers_17_zero_sizes_in_attributes_permit_transfers(ctx: &Ctx) {
    let ia = ctx.ia();
    let attr = DAT_EP_ATTR {
        max_message_size: 0,
        max_rdma_size: 0,
        max_rdma_read_iov: 0,
        max_rdma_write_iov: 0,
        srq_soft_hw: 0,
        ..ep_attr()
    };
    let (client, server) = ctx.loopback_with(&ia, &Setup { attr, ..Setup::default() });
    let (from, into) = (client.memory(10_000), server.memory(10_000));
    from.write_pattern(0, 10_000, 1);
    let mut list = [from.segment(0, 4000), from.segment(4000, 6000)];
    let target = into.target(0, 10_000);
    ok(dat_ep_post_rdma_write(client.ep.h(), 2, list.as_mut_ptr(), cookie(1), &target, DAT_COMPLETION_DEFAULT_FLAG));
    expect_dto(client.request.h(), 1, DAT_DTO_SUCCESS, 10_000);
    into.expect_pattern(0, 10_000, 1);
    server.post_recv(2, into.segment(0, 10_000));
    client.post_send(3, from.segment(0, 10_000));
    expect_dto(server.recv.h(), 2, DAT_DTO_SUCCESS, 10_000);
    expect_dto(client.request.h(), 3, DAT_DTO_SUCCESS, 10_000);
}

fn each_asks_for_much(ctx: &Ctx) {
    let limits = ctx.ia().attr();
    if limits.max_message_size.min(limits.max_rdma_size) < 1 << 31 {
        ctx.unsupported("messages of two gigabytes: the device's port carries less");
    }
    let attr = DAT_EP_ATTR { max_message_size: 1 << 31, max_rdma_size: 1 << 31, ..ep_attr() };
    carries(ctx, &Setup { attr, ..Setup::default() });
}

/// NetPIPE's setup: queue depths of 50,000, on EVDs of length 1024.
fn netpipe() -> Setup {
    let attr = DAT_EP_ATTR { max_recv_dtos: 50_000, max_request_dtos: 50_000, ..ep_attr() };
    Setup { attr, qlen: 1024, ..Setup::default() }
}

fn each_fifty_thousand(ctx: &Ctx) {
    carries(ctx, &netpipe());
}

const THOUSANDS: u64 = 5000;

fn client_posts_thousands(ctx: &Ctx) {
    let conn = ctx.connect_with(&netpipe());
    ctx.meet();
    for id in 0..THOUSANDS {
        ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
    for id in 0..THOUSANDS {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn server_takes_thousands(ctx: &Ctx) {
    let conn = ctx.connect_with(&netpipe());
    for id in 0..THOUSANDS {
        ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
    ctx.meet();
    for id in 0..THOUSANDS {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_nothing(conn.ia.errors());
    ctx.meet();
}

/// Registers a range with all privileges. Returns the LMR and the local context.
fn register(ia: &Ia, pz: &Pz, buffer: &Buffer, (at, length): (usize, usize)) -> (Lmr, DAT_LMR_CONTEXT) {
    let (mut lmr, mut context) = (DAT_HANDLE_NULL, 0);
    let region = DAT_REGION_DESCRIPTION { for_va: buffer.pointer().wrapping_byte_add(at) };
    let (kind, all, length) = (DAT_MEM_TYPE_VIRTUAL, DAT_MEM_PRIV_ALL_FLAG, length as DAT_VLEN);
    let (rmr, null) = (null_mut(), null_mut());
    let (size, place): (*mut DAT_VLEN, *mut DAT_VADDR) = (null, null_mut());
    ok(dat_lmr_create(ia.h(), kind, region, length, pz.h(), all, &mut lmr, &mut context, rmr, size, place));
    (Lmr::own(lmr), context)
}

fn consumers_19_null_out_parameters_of_a_registration_are_accepted(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let buffer = Buffer::new(5000);
    let (lmr, context) = register(&ia, &pz, &buffer, (0, 5000));
    let param: DAT_LMR_PARAM = filled(|out| dat_lmr_query(lmr.h(), DAT_LMR_FIELD_ALL, out));
    assert_eq!(param.lmr_context, context);
}

fn consumers_19_overlapping_page_rounded_registrations_succeed(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let buffer = Buffer::new(4 * 4096);
    let into = server.memory(4096);
    buffer.write_pattern(0, 4 * 4096, 5);
    let places = [(0, 4096), (0, 4 * 4096), (4096, 8192), (0, 4096), (1000, 100)];
    let all: Vec<_> = places.iter().map(|place| register(&client.ia, &client.pz, &buffer, *place)).collect();
    for (round, ((_, context), (at, length))) in all.iter().zip(places).enumerate() {
        let length = length.min(4096);
        let segment = DAT_LMR_TRIPLET {
            lmr_context: *context,
            pad: 0,
            virtual_address: buffer.address(at),
            segment_length: length as DAT_VLEN,
        };
        server.post_recv(round as u64, into.segment(0, 4096));
        client.post_send(round as u64, segment);
        expect_dto(server.recv.h(), round as u64, DAT_DTO_SUCCESS, length as u64);
        into.expect_bytes(0, &buffer.take(at, length));
        expect_dto(client.request.h(), round as u64, DAT_DTO_SUCCESS, length as u64);
    }
}

fn client_registers_each_time(ctx: &Ctx) {
    let conn = ctx.connect();
    let buffer = Buffer::new(8192);
    for round in 0..500 {
        let (lmr, context) = register(&conn.ia, &conn.pz, &buffer, (round % 7 * 100, 4096));
        let virtual_address = buffer.address(round % 7 * 100);
        let segment = DAT_LMR_TRIPLET { lmr_context: context, pad: 0, virtual_address, segment_length: 64 };
        conn.post_send(round as u64, segment);
        expect_dto(conn.request.h(), round as u64, DAT_DTO_SUCCESS, 64);
        lmr.free();
    }
    ctx.meet();
}

fn server_takes_each(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    for round in 0..500 {
        conn.post_recv(round, memory.segment(0, 64));
        expect_dto(conn.recv.h(), round, DAT_DTO_SUCCESS, 64);
    }
    ctx.meet();
}
