//! Creation of EPs: refused and accepted arguments, the order of checks, default attributes, and all combinations of
//! EVDs.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::parts::{Parts, numbers, without_pz};
use super::scene::{ConnectionRequest, silent_listener};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/endpoints 5.1": ep_create_checks_handles_before_pointers_in_order,
        "spec/endpoints 5.1": ep_create_requires_the_connection_flag_of_the_connect_evd,
        "spec/endpoints 5.1": ep_create_requires_the_dto_flag_of_the_recv_evd,
        "spec/endpoints 5.1": ep_create_requires_the_dto_flag_of_the_request_evd,
        "spec/endpoints 5.1": ep_create_without_out_pointer_returns_invalid_arg7,
        "spec/endpoints 5.1": ep_create_with_misaligned_attributes_returns_invalid_arg6,
        "spec/endpoints 5.1": ep_create_reports_a_missing_out_pointer_before_bad_attributes,
        "spec/endpoints 5.1": ep_create_that_is_refused_keeps_no_object_in_use,
        "spec/endpoints 5.1": ep_create_without_attributes_stores_the_default_attributes,
        "spec/endpoints 13.15": ep_create_with_a_freed_pz_returns_invalid_handle,
        "spec/endpoints 5.1": ep_create_accepts_evds_of_another_ia => local(takes_evds_of_another_ia),
        "spec/endpoints 5.1": ep_create_accepts_one_evd_for_all_roles,
        "spec/endpoints 5.1": ep_create_keeps_the_pz_and_each_evd_in_use_until_the_ep_is_freed,
        "spec/endpoints 13.37": ep_create_accepts_the_queried_attributes_of_a_freed_ep,
        "spec/consumers 17": ep_create_accepts_more_dtos_than_the_length_of_the_evds,
        "spec/consumers 17": ep_create_accepts_messages_of_two_gigabytes,
        "spec/endpoints 13.18": ep_create_accepts_attributes_that_are_zero_except_for_counts,
        "spec/endpoints 5.1": ep_create_clamps_recv_dtos_to_the_limit,
        "spec/endpoints 5.1": ep_create_clamps_request_dtos_to_the_limit,
        "spec/endpoints 5.1": ep_create_stores_requested_attributes,
        "spec/endpoints 5.1": ep_without_recv_evd_accepts_receives,
        "spec/endpoints 5.1": ep_without_pz_cannot_connect,
        "spec/endpoints 5.1": ep_without_pz_refuses_receives,
        "spec/endpoints 3.2": ep_create_with_one_evd_in_three_roles_keeps_it_in_use_until_the_free,
    ];
    all.extend(refused_attributes().into_iter().map(|(what, spoil)| {
        let name = format!("ep_create_refuses_{what}");
        local(move |ctx| refuses(ctx, spoil)).named(name).proves("spec/endpoints 5.1")
    }));
    all.extend(accepted_attributes().into_iter().map(|(what, change)| {
        let name = format!("ep_create_accepts_{what}");
        local(move |ctx| takes(ctx, change)).named(name).proves("spec/endpoints 5.1")
    }));
    all.extend((0..8).map(|set: u32| {
        let has = [set & 1 != 0, set & 2 != 0, set & 4 != 0];
        let words = ["recv", "request", "connect"].iter().zip(has).filter(|(_, has)| *has).map(|(word, _)| *word);
        let counts = match set & 3 {
            1 => "only_the_recv_dto_count",
            2 => "only_the_request_dto_count",
            3 => "both_dto_counts",
            _ => "dto_counts_to_zero",
        };
        let name = format!("ep_create_with_{}_evd_sets_{counts}", words.collect::<Vec<_>>().join("_and_"));
        let name = if set == 0 { "ep_create_without_evds_sets_dto_counts_to_zero".to_owned() } else { name };
        local(move |ctx| with_evds(ctx, has)).named(name).proves("spec/endpoints 5.1")
    }));
    all
}

type Spoil = fn(&mut DAT_EP_ATTR, &DAT_IA_ATTR);

/// Returns the value above a limit, or `None` if the limit is the largest number.
fn above(limit: DAT_VLEN) -> Option<DAT_VLEN> {
    limit.checked_add(1)
}

fn refused_attributes() -> Vec<(&'static str, Spoil)> {
    vec![
        // In 2.0, service type 1 is valid, but no provider supports it (`v2_datagrams_and_counters_are_not_supported`).
        ("an_unknown_service_type", |attr, _| attr.service_type = if is_2_0() { 3 } else { 1 }),
        ("a_service_type_of_all_ones", |attr, _| attr.service_type = !0),
        ("suppressed_receives", |attr, _| attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG),
        ("zero_recv_dtos_with_a_recv_evd", |attr, _| attr.max_recv_dtos = 0),
        ("zero_request_dtos_with_a_request_evd", |attr, _| attr.max_request_dtos = 0),
        ("zero_recv_segments", |attr, _| attr.max_recv_iov = 0),
        ("zero_request_segments", |attr, _| attr.max_request_iov = 0),
        ("negative_recv_dtos", |attr, _| attr.max_recv_dtos = -1),
        ("negative_request_dtos", |attr, _| attr.max_request_dtos = -1),
        ("the_most_negative_recv_dtos", |attr, _| attr.max_recv_dtos = DAT_COUNT::MIN),
        ("negative_recv_segments", |attr, _| attr.max_recv_iov = -1),
        ("negative_request_segments", |attr, _| attr.max_request_iov = -1),
        ("negative_reads_in", |attr, _| attr.max_rdma_read_in = -1),
        ("negative_reads_out", |attr, _| attr.max_rdma_read_out = -1),
        ("a_message_size_above_the_limit", |attr, ia| {
            (attr.max_message_size, attr.service_type) = too_long(ia.max_message_size)
        }),
        ("an_rdma_size_above_the_limit", |attr, ia| {
            (attr.max_rdma_size, attr.service_type) = too_long(ia.max_rdma_size)
        }),
        ("recv_segments_above_the_limit", |attr, ia| attr.max_recv_iov = ia.max_iov_segments_per_dto + 1),
        ("request_segments_above_the_limit", |attr, ia| attr.max_request_iov = ia.max_iov_segments_per_dto + 1),
        ("reads_in_above_the_limit", |attr, ia| attr.max_rdma_read_in = ia.max_rdma_read_per_ep_in + 1),
        ("reads_out_above_the_limit", |attr, ia| attr.max_rdma_read_out = ia.max_rdma_read_per_ep_out + 1),
    ]
}

/// Attributes that must be refused: a size above the limit or, without a limit, an unsupported service type.
fn too_long(limit: DAT_VLEN) -> (DAT_VLEN, DAT_SERVICE_TYPE) {
    above(limit).map_or((limit, 1), |length| (length, DAT_SERVICE_TYPE_RC))
}

fn refuses(ctx: &Ctx, spoil: Spoil) {
    let parts = Parts::new(ctx);
    let mut attr = ep_attr();
    spoil(&mut attr, &parts.ia.attr());
    bad_arg(untouched(|ep| parts.create(&attr, ep)), 6);
}

fn accepted_attributes() -> Vec<(&'static str, Spoil)> {
    vec![
        ("sizes_of_zero", |attr, _| (attr.max_message_size, attr.max_rdma_size) = (0, 0)),
        ("a_message_size_at_the_limit", |attr, ia| attr.max_message_size = ia.max_message_size),
        ("an_rdma_size_at_the_limit", |attr, ia| attr.max_rdma_size = ia.max_rdma_size),
        ("segments_at_the_limit", |attr, ia| {
            (attr.max_recv_iov, attr.max_request_iov) = (ia.max_iov_segments_per_dto, ia.max_iov_segments_per_dto)
        }),
        ("reads_at_the_limit", |attr, ia| {
            (attr.max_rdma_read_in, attr.max_rdma_read_out) = (ia.max_rdma_read_per_ep_in, ia.max_rdma_read_per_ep_out)
        }),
        ("zero_reads_in_and_out", |attr, _| (attr.max_rdma_read_in, attr.max_rdma_read_out) = (0, 0)),
        ("zero_segments_of_reads_and_writes", |attr, _| (attr.max_rdma_read_iov, attr.max_rdma_write_iov) = (0, 0)),
        ("one_dto_and_one_segment_per_queue", |attr, _| {
            (attr.max_recv_dtos, attr.max_request_dtos, attr.max_recv_iov, attr.max_request_iov) = (1, 1, 1, 1)
        }),
        ("completion_flags_of_zero", |attr, _| (attr.recv_completion_flags, attr.request_completion_flags) = (0, 0)),
        ("unsignalled_requests", |attr, _| attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG),
        ("threshold_flags", |attr, _| {
            attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
            attr.request_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
        }),
        ("qos_high_throughput", |attr, _| attr.qos = DAT_QOS_HIGH_THROUGHPUT),
        ("qos_low_latency", |attr, _| attr.qos = DAT_QOS_LOW_LATENCY),
        ("qos_economy", |attr, _| attr.qos = DAT_QOS_ECONOMY),
        ("qos_premium", |attr, _| attr.qos = DAT_QOS_PREMIUM),
    ]
}

fn takes(ctx: &Ctx, change: Spoil) {
    let parts = Parts::new(ctx);
    let mut attr = ep_attr();
    change(&mut attr, &parts.ia.attr());
    let ep = parts.ep(&attr);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    assert_eq!(numbers(&ep.param().ep_attr), numbers(&attr), "the query does not return the requested attributes");
}

fn ep_create_checks_handles_before_pointers_in_order(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let Parts { connect, request, recv, pz, ia } = &parts;
    let bad = ia.h(); // a handle that no other parameter accepts
    let create = |pz, recv, request, connect| dat_ep_create(ia.h(), pz, recv, request, connect, null_mut(), null_mut());
    bad_handle(create(bad, bad, bad, bad), DAT_INVALID_HANDLE_PZ);
    bad_handle(create(pz.h(), bad, bad, bad), DAT_INVALID_HANDLE_EVD_CONN);
    bad_handle(create(pz.h(), bad, bad, connect.h()), DAT_INVALID_HANDLE_EVD_RECV);
    bad_handle(create(pz.h(), recv.h(), bad, connect.h()), DAT_INVALID_HANDLE_EVD_REQUEST);
    bad_arg(create(pz.h(), recv.h(), request.h(), connect.h()), 7);
}

fn ep_create_requires_the_connection_flag_of_the_connect_evd(ctx: &Ctx) {
    let Parts { connect: _connect, request, recv, pz, ia } = &Parts::new(ctx);
    let code = untouched(|ep| dat_ep_create(ia.h(), pz.h(), recv.h(), request.h(), recv.h(), null_mut(), ep));
    bad_handle(code, DAT_INVALID_HANDLE_EVD_CONN);
}

fn ep_create_requires_the_dto_flag_of_the_recv_evd(ctx: &Ctx) {
    let Parts { connect, request, recv: _recv, pz, ia } = &Parts::new(ctx);
    let code = untouched(|ep| dat_ep_create(ia.h(), pz.h(), connect.h(), request.h(), connect.h(), null_mut(), ep));
    bad_handle(code, DAT_INVALID_HANDLE_EVD_RECV);
}

fn ep_create_requires_the_dto_flag_of_the_request_evd(ctx: &Ctx) {
    let Parts { connect, request: _request, recv, pz, ia } = &Parts::new(ctx);
    let code = untouched(|ep| dat_ep_create(ia.h(), pz.h(), recv.h(), connect.h(), connect.h(), null_mut(), ep));
    bad_handle(code, DAT_INVALID_HANDLE_EVD_REQUEST);
}

fn ep_create_without_out_pointer_returns_invalid_arg7(ctx: &Ctx) {
    bad_arg(Parts::new(ctx).create(&ep_attr(), null_mut()), 7);
}

fn ep_create_with_misaligned_attributes_returns_invalid_arg6(ctx: &Ctx) {
    let (parts, attr) = (Parts::new(ctx), ep_attr());
    let odd = std::ptr::from_ref(&attr).wrapping_byte_add(1);
    bad_arg(untouched(|ep| parts.create(odd, ep)), 6);
}

fn ep_create_reports_a_missing_out_pointer_before_bad_attributes(ctx: &Ctx) {
    let attr = DAT_EP_ATTR { service_type: 7, ..ep_attr() };
    bad_arg(Parts::new(ctx).create(&attr, null_mut()), 7);
}

fn ep_create_that_is_refused_keeps_no_object_in_use(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let attr = DAT_EP_ATTR { service_type: 7, ..ep_attr() };
    bad_arg(untouched(|ep| parts.create(&attr, ep)), 6);
    // Frees all objects, then closes the IA gracefully. Each call fails if the refused EP still uses an object.
    let Parts { connect, request, recv, pz, ia } = parts;
    connect.free();
    request.free();
    recv.free();
    pz.free();
    drop(ia);
}

fn ep_create_without_attributes_stores_the_default_attributes(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let limits = parts.ia.attr();
    let ep = Ep::own(filled(|out| parts.create(null_mut(), out)));
    let attr = ep.param().ep_attr;
    assert_eq!(attr.service_type, DAT_SERVICE_TYPE_RC);
    assert_eq!(attr.max_message_size, limits.max_message_size.min(0x8000_0000));
    assert_eq!(attr.max_rdma_size, limits.max_rdma_size.min(0x8000_0000));
    assert_eq!(attr.qos, DAT_QOS_BEST_EFFORT);
    assert_eq!(attr.recv_completion_flags, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
    assert_eq!(attr.request_completion_flags, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
    let dtos = limits.max_dto_per_ep.min(16);
    assert_eq!((attr.max_recv_dtos, attr.max_request_dtos), (dtos, dtos));
    let segments = limits.max_iov_segments_per_dto.min(4);
    assert_eq!((attr.max_recv_iov, attr.max_request_iov), (segments, segments));
    assert_eq!(attr.max_rdma_read_in, limits.max_rdma_read_per_ep_in.min(8));
    assert_eq!(attr.max_rdma_read_out, limits.max_rdma_read_per_ep_out.min(8));
    assert_eq!((attr.srq_soft_hw, attr.max_rdma_read_iov, attr.max_rdma_write_iov), (0, 0, 0));
    assert_eq!(attr.ep_transport_specific_count, 0);
    // Provider-specific attributes have non-empty names.
    let added = named_attributes(attr.ep_provider_specific, attr.ep_provider_specific_count);
    assert!(added.iter().all(|(name, _)| !name.is_empty()));
}

fn ep_create_with_a_freed_pz_returns_invalid_handle(ctx: &Ctx) {
    let Parts { connect, request, recv, pz: _pz, ia } = &Parts::new(ctx);
    let dead = ia.pz().free();
    let code = untouched(|ep| dat_ep_create(ia.h(), dead, recv.h(), request.h(), connect.h(), null_mut(), ep));
    bad_handle(code, DAT_INVALID_HANDLE_PZ);
}

/// EVDs of another IA report the events of the EP.
fn takes_evds_of_another_ia(ctx: &Ctx) {
    let (ia, other) = (Ia::open(&ctx.provider, 8), Ia::open(&ctx.provider, 8));
    let foreign = Parts {
        connect: other.evd(8, DAT_EVD_CONNECTION_FLAG),
        request: other.evd(8, DAT_EVD_DTO_FLAG),
        recv: other.evd(8, DAT_EVD_DTO_FLAG),
        pz: ia.pz(),
        ia: ia.clone(),
    };
    let ep = foreign.ep(&ep_attr());
    let server = Conn::on(&ia);
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    let (address, time) = (ia.address(), DAT_TIMEOUT_INFINITE);
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(5), DAT_COMPLETION_DEFAULT_FLAG));
    ok(dat_ep_connect(ep.h(), address.pointer(), ctx.qual(0), time, 0, null_mut(), DAT_QOS_BEST_EFFORT, 0));
    ConnectionRequest::arrives(&requests).accept(&server.ep);
    expect_conn(foreign.connect.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    post_empty_send(&server, 6);
    expect_dto(server.request.h(), 6, DAT_DTO_SUCCESS, 0);
    expect_dto(foreign.recv.h(), 5, DAT_DTO_SUCCESS, 0);
}

fn ep_create_accepts_one_evd_for_all_roles(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evd = ia.evd(16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
    let ep = ia.ep(&pz, &evd, &evd, &evd);
    let param = ep.param();
    assert_eq!([param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle], [evd.h(); 3]);
}

fn ep_create_with_one_evd_in_three_roles_keeps_it_in_use_until_the_free(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evd = ia.evd(16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
    let ep = ia.ep(&pz, &evd, &evd, &evd);
    refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    ep.free();
    evd.free();
}

fn ep_create_keeps_the_pz_and_each_evd_in_use_until_the_ep_is_freed(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    refused(dat_pz_free(parts.pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    for evd in [&parts.recv, &parts.request, &parts.connect] {
        refused(dat_evd_free(evd.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    }
    ep.free();
}

/// Like Open MPI: queries an EP with default attributes, then creates an EP with another depth from those attributes.
fn ep_create_accepts_the_queried_attributes_of_a_freed_ep(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let first = Ep::own(filled(|out| parts.create(null_mut(), out)));
    let mut attr = first.param().ep_attr;
    first.free();
    (attr.max_recv_dtos, attr.max_request_dtos) = (12, 12);
    let second = parts.ep(&attr);
    assert_eq!(numbers(&second.param().ep_attr), numbers(&attr));
}

fn ep_create_accepts_more_dtos_than_the_length_of_the_evds(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, connect) = (ia.pz(), ia.evd(8, DAT_EVD_CONNECTION_FLAG));
    let (recv, request) = (ia.evd(1024, DAT_EVD_DTO_FLAG), ia.evd(1024, DAT_EVD_DTO_FLAG));
    let attr = DAT_EP_ATTR { max_recv_dtos: 50_000, max_request_dtos: 50_000, ..ep_attr() };
    let ep = ia.ep_with(&pz, &recv, &request, &connect, &attr);
    let granted = ep.param().ep_attr.max_recv_dtos;
    assert_eq!(granted, ia.attr().max_dto_per_ep.min(50_000));
}

fn ep_create_accepts_messages_of_two_gigabytes(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    if parts.ia.attr().max_message_size < 1 << 31 {
        ctx.unsupported("messages of two gigabytes: the device's port carries less");
    }
    parts.ep(&DAT_EP_ATTR { max_message_size: 1 << 31, ..ep_attr() });
}

fn ep_create_accepts_attributes_that_are_zero_except_for_counts(ctx: &Ctx) {
    let attr = DAT_EP_ATTR { max_recv_dtos: 2, max_request_dtos: 2, max_recv_iov: 1, max_request_iov: 1, ..zeroed() };
    Parts::new(ctx).ep(&attr);
}

fn ep_create_clamps_recv_dtos_to_the_limit(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&DAT_EP_ATTR { max_recv_dtos: DAT_COUNT::MAX, ..ep_attr() });
    assert_eq!(ep.param().ep_attr.max_recv_dtos, parts.ia.attr().max_dto_per_ep);
}

fn ep_create_clamps_request_dtos_to_the_limit(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&DAT_EP_ATTR { max_request_dtos: DAT_COUNT::MAX, ..ep_attr() });
    assert_eq!(ep.param().ep_attr.max_request_dtos, parts.ia.attr().max_dto_per_ep);
}

fn ep_create_stores_requested_attributes(ctx: &Ctx) {
    let attr = DAT_EP_ATTR {
        max_message_size: 12345,
        max_rdma_size: 54321,
        qos: DAT_QOS_ECONOMY,
        max_recv_dtos: 5,
        max_request_dtos: 6,
        max_recv_iov: 2,
        max_request_iov: 3,
        max_rdma_read_in: 1,
        max_rdma_read_out: 2,
        ..ep_attr()
    };
    let parts = Parts::new(ctx);
    assert_eq!(numbers(&parts.ep(&attr).param().ep_attr), numbers(&attr));
}

/// Each EVD may be absent. Another EP can be created from the queried attributes.
fn with_evds(ctx: &Ctx, has: [bool; 3]) {
    let parts = Parts::new(ctx);
    let Parts { connect, request, recv, pz, ia } = &parts;
    let handle = |evd: &Evd, has: bool| if has { evd.h() } else { DAT_HANDLE_NULL };
    let (recv, request, connect) = (handle(recv, has[0]), handle(request, has[1]), handle(connect, has[2]));
    let create = |attr| Ep::own(filled(|out| dat_ep_create(ia.h(), pz.h(), recv, request, connect, attr, out)));
    let first = create(null_mut());
    let param = first.param();
    assert_eq!([param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle], [recv, request, connect]);
    let attr = param.ep_attr;
    assert_eq!(
        (attr.max_recv_dtos == 0, attr.max_request_dtos == 0),
        (!has[0], !has[1]),
        "the EP has a queue without an EVD, or an EVD without a queue"
    );
    let second = create(&raw const attr);
    assert_eq!(numbers(&second.param().ep_attr), numbers(&attr));
    // A DTO count without its EVD is refused, and so is an EVD with a zero DTO count.
    for (recv_dtos, request_dtos) in [(!has[0], has[1]), (has[0], !has[1])] {
        let count = |some: bool| if some { 4 } else { 0 };
        let (max_recv_dtos, max_request_dtos) = (count(recv_dtos), count(request_dtos));
        let attr = DAT_EP_ATTR { max_recv_dtos, max_request_dtos, ..ep_attr() };
        bad_arg(untouched(|ep| dat_ep_create(ia.h(), pz.h(), recv, request, connect, &attr, ep)), 6);
    }
}

fn ep_without_recv_evd_accepts_receives(ctx: &Ctx) {
    let (ia, none) = (ctx.ia(), DAT_HANDLE_NULL);
    let pz = ia.pz();
    let ep = Ep::own(filled(|out| dat_ep_create(ia.h(), pz.h(), none, none, none, null_mut(), out)));
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
}

fn ep_without_pz_cannot_connect(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = without_pz(&parts);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    let (address, time) = (parts.ia.address(), DAT_TIMEOUT_INFINITE);
    let code = dat_ep_connect(ep.h(), address.pointer(), 1, time, 0, null_mut(), DAT_QOS_BEST_EFFORT, 0);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn ep_without_pz_refuses_receives(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = without_pz(&parts);
    let code = dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
}
