//! Refused calls of 2.0: handles, states, arguments, full queues, and operations that no provider supports. Also
//! queries of an adapter by its name, the operations that its attributes name, and the largest private data.
#![forbid(unsafe_code)]

use std::ptr::{null, null_mut};

use dat_abi::v2;

use super::scenes::*;
use super::{argument, error};
use crate::api::added::{self, Extended};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 9.1": v2_calls_refuse_handles_that_are_null_freed_or_of_another_kind,
        "spec/registry 9.1": v2_extended_operations_refuse_bad_handles,
        "spec/registry 9.1": v2_adapter_can_be_queried_by_its_name,
        "spec/events 4.1": v2_posts_accept_exactly_the_operations_that_the_attributes_name => pair(client_post_each, server_be_there),
        "spec/events 4.8": v2_extended_operations_are_refused_before_a_connection,
        "spec/events 4.8": v2_extended_operations_refuse_bad_arguments => pair(client_misuse, server_be_there),
        "spec/events 4.8": v2_full_queue_refuses_extended_operations => pair(client_fill_the_queue, server_leave_full),
        "spec/endpoints 5.1": v2_datagrams_and_counters_are_not_supported,
        "spec/endpoints 5.4": v2_connect_to_a_multicast_address_fails,
        "spec/endpoints 9.1": v2_largest_private_data_reaches_the_listener => pair(client_send_largest, server_take_largest),
        "spec/endpoints 5.4": v2_common_connect_refuses_bad_states_and_arguments => pair(client_connect_wrongly, server_be_there),
    ]
}

fn v2_calls_refuse_handles_that_are_null_freed_or_of_another_kind(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evd = ia.evd(4, DAT_EVD_DTO_FLAG);
    let freed = ia.evd(4, DAT_EVD_DTO_FLAG).free();
    let kinds = |function: &str| match function {
        "dat_csp_create" | "dat_cno_fd_create" | "dat_registry_providers_related" => v2::DAT_INVALID_HANDLE_IA,
        "dat_csp_query" | "dat_csp_free" => v2::DAT_INVALID_HANDLE_CSP,
        "dat_rmr_create_for_ep" => v2::DAT_INVALID_HANDLE_PZ,
        "dat_cno_trigger" => v2::DAT_INVALID_HANDLE_CNO,
        _ => v2::DAT_INVALID_HANDLE_EP,
    };
    let number = std::ptr::without_provenance_mut(4096);
    for handle in [null_mut(), number, evd.h(), freed] {
        for (function, code) in added::calls_with_handle(ia.h(), handle) {
            ctx.step(format!("{function} of {handle:?}"));
            expect(code, error(DAT_INVALID_HANDLE, kinds(function)));
        }
    }
    drop(pz);
}

/// libdat reads the function table through the handle, so it must validate the handle first.
fn v2_extended_operations_refuse_bad_handles(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let words = [0_u64; 8];
    let dead = conn.ia.evd(4, DAT_EVD_DTO_FLAG).free();
    let (none, odd) = (null_mut(), std::ptr::without_provenance_mut(0x1001));
    let (small, wild) = (std::ptr::without_provenance_mut(0x7FFF), words.as_ptr().cast_mut().cast());
    let operations = [v2::DAT_IB_FETCH_AND_ADD_OP, v2::DAT_IB_RDMA_WRITE_IMMED_OP, v2::DAT_IB_UD_SEND_OP];
    for op in operations.map(|op| op as i32) {
        for handle in [none, odd, small, wild, dead] {
            let code = added::extension_op(handle, op, [0; 5]);
            assert_eq!(code & !DAT_SUBTYPE_MASK, error(DAT_INVALID_HANDLE, 0), "{op} of {handle:?}: {code:#x}");
        }
    }
    let query = added::extension_op(none, v2::DAT_IB_OPEN_QUERY_OP as i32, [0; 5]);
    expect(query, error(DAT_INVALID_PARAMETER, v2::DAT_INVALID_ARG1));
    let other = added::extension_op(none, v2::DAT_IB_OPEN_QUERY_OP as i32 + 1, [0; 5]);
    expect(other, v2::DAT_NOT_IMPLEMENTED);
    let of_pz = added::extension_op(conn.pz.h(), v2::DAT_IB_CMP_AND_SWAP_OP as i32, [0; 5]);
    expect(of_pz, error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE_EP));
}

/// The attributes from `dat_ib_open_query` equal those of the open adapter. `dat_ib_close_query` refuses an IA that has
/// objects.
fn v2_adapter_can_be_queried_by_its_name(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let expected = added::attributes(conn.ia.h()).0;
    let (code, opened, attr) = added::open_query(&ctx.name());
    ok(code);
    assert_eq!((attr.max_eps, attr.max_message_size), (expected.max_eps, expected.max_message_size));
    assert_eq!(attr.extension_supported, expected.extension_supported);
    let close = |ia| added::extension_op(ia, v2::DAT_IB_CLOSE_QUERY_OP as i32, [0; 5]);
    assert_eq!(
        close(conn.ia.h()) & !DAT_SUBTYPE_MASK,
        error(DAT_INVALID_STATE, 0),
        "the close succeeded although the IA has objects"
    );
    ok(close(opened));
    assert_eq!(close(null_mut()) & !DAT_SUBTYPE_MASK, error(DAT_INVALID_HANDLE, 0));
    let (unknown, ..) = added::open_query(c"no such adapter");
    assert_eq!(unknown & !DAT_SUBTYPE_MASK, error(DAT_PROVIDER_NOT_FOUND, 0));
}

const OPERATIONS: [(Feature, Extended); 3] = [
    (Feature::FetchAdd, Extended::FetchAdd { add: 1 }),
    (Feature::CompareSwap, Extended::CompareSwap { compare: 1, swap: 2 }),
    (Feature::Immediate, Extended::WriteImmediate { count: 1, data: 3 }),
];

/// Posts every extended operation and a send that invalidates a context. Those that the attributes name must work; the
/// others must be refused.
fn client_post_each(ctx: &Ctx) {
    let conn = ctx.connect();
    let (memory, target) = (conn.memory(WORD), ctx.receive_target());
    let attr = added::attributes(conn.ia.h()).0;
    let is_any = OPERATIONS.iter().any(|(feature, _)| has_feature(&conn.ia, *feature));
    let extension = if is_any { v2::DAT_EXTENSION_IB } else { v2::DAT_EXTENSION_NONE };
    assert_eq!(attr.extension_supported, extension);
    assert_eq!(attr.extension_version, if is_any { v2::DAT_IB_EXTENSION_VERSION } else { 0 });
    for (feature, operation) in OPERATIONS {
        let (segment, target) = (local_segment(&memory, 0, WORD), remote(target, 0, WORD as u32));
        let code = added::post_extended(conn.ep.h(), operation, &segment, 1, &target, 0);
        if has_feature(&conn.ia, feature) {
            ok(code);
            expect_request(&conn.request, operation, 1, v2::DAT_DTO_SUCCESS, WORD as u32);
        } else {
            expect(code, NOT_SUPPORTED);
        }
    }
    let code = added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_TRUE, 0);
    if has_feature(&conn.ia, Feature::Invalidate) {
        ok(code)
    } else {
        expect(code, NOT_SUPPORTED)
    }
    ctx.meet();
}

/// Sends the peer, which makes the calls under test, an RDMA target, and posts two receives.
fn server_be_there(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, 2 * WORD, ATOMIC);
    post_empty_recv(&conn, 1);
    post_empty_recv(&conn, 2);
    ctx.send_target(memory.target(0, 2 * WORD));
    ctx.meet();
}

fn v2_extended_operations_are_refused_before_a_connection(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(2 * WORD);
    let target = remote(memory.target(0, WORD), 0, WORD as u32);
    let check = |wanted: DAT_RETURN| {
        for (feature, operation) in OPERATIONS {
            let code = added::post_extended(conn.ep.h(), operation, &local_segment(&memory, 8, WORD), 1, &target, 0);
            expect(code, if has_feature(&conn.ia, feature) { wanted } else { NOT_SUPPORTED });
        }
        let code = added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_TRUE, 7);
        expect(code, if has_feature(&conn.ia, Feature::Invalidate) { wanted } else { NOT_SUPPORTED });
        expect(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_FALSE, 7), wanted);
        expect(added::ep_post_rdma_read_to_rmr(conn.ep.h(), &target, 1, &target, 0), wanted);
    };
    check(in_state(DAT_INVALID_STATE_EP_UNCONNECTED));
    let requests = conn.ia.evd(4, DAT_EVD_CR_FLAG);
    let rsp = conn.ia.rsp(ctx.qual(if ctx.is_client() { 0 } else { 1 }), &conn.ep, &requests);
    check(in_state(DAT_INVALID_STATE_EP_RESERVED));
    drop(rsp);
    check(in_state(DAT_INVALID_STATE_EP_UNCONNECTED));
}

fn client_misuse(ctx: &Ctx) {
    let conn = ctx.connect();
    let (memory, of_peer) = (conn.memory(2 * WORD), ctx.receive_target());
    let (good, target) = (local_segment(&memory, 0, WORD), remote(of_peer, 0, WORD as u32));
    let post = |operation, segment: *const _, target: *const _, flags| {
        added::post_extended(conn.ep.h(), operation, segment, 1, target, flags)
    };
    // Parameter numbers of the local memory, the remote memory and the flags, per call.
    let places = [[3, 5, 6], [4, 6, 7], [3, 5, 7]];
    for ((feature, operation), [of_local, of_remote, of_flags]) in OPERATIONS.into_iter().zip(places) {
        if !has_feature(&conn.ia, feature) {
            continue;
        }
        expect(post(operation, null(), &target, 0), argument(of_local));
        expect(post(operation, &good, null(), 0), argument(of_remote));
        expect(post(operation, &good, &target, 0x8000), argument(of_flags));
        if feature == Feature::Immediate {
            let (many, none) =
                (Extended::WriteImmediate { count: 5, data: 0 }, Extended::WriteImmediate { count: -1, data: 0 });
            expect(post(many, [good; 5].as_ptr(), &target, 0), argument(2));
            expect(post(none, &good, &target, 0), argument(2));
            continue;
        }
        for length in [0, 4, 7, 9, 16] {
            let segment = v2::DAT_LMR_TRIPLET { segment_length: length, ..good };
            expect(post(operation, &segment, &target, 0), argument(of_local));
        }
        for at in [1, 4, 7] {
            let odd = v2::DAT_RMR_TRIPLET { virtual_address: target.virtual_address + at, ..target };
            expect(post(operation, &good, &odd, 0), argument(of_remote));
        }
    }
    let ep = conn.ep.h();
    expect(added::ep_post_send_without_list(ep), argument(3));
    if has_feature(&conn.ia, Feature::Invalidate) {
        let send = |segments: &mut [_], flags| added::ep_post_send_with_invalidate(ep, segments, flags, DAT_TRUE, 1);
        expect(send(&mut [good; 5], 0), argument(2));
        expect(send(&mut [good], 0x8000), argument(5));
    }
    expect(added::ep_post_rdma_read_to_rmr(ep, &target_of(&memory), 1, &target, 0x8000), argument(5));
    for op in [v2::DAT_IB_UD_AH_FREE_OP as i32 + 1, 0x1000, 0x3000, -1, i32::MAX, i32::MIN] {
        expect(added::extension_op(ep, op, [0; 5]), argument(2));
    }
    let close = added::extension_op(ep, v2::DAT_IB_CLOSE_QUERY_OP as i32, [0; 5]);
    expect(close, error(DAT_INVALID_HANDLE, v2::DAT_INVALID_HANDLE_IA));
    ctx.meet();
}

/// The whole memory as a 2.0 remote triplet.
fn target_of(memory: &Memory) -> v2::DAT_RMR_TRIPLET {
    remote(memory.target(0, memory.length()), 0, memory.length() as u32)
}

/// Fills the EP's request queue with requests that cannot complete. The queue must hold at least 16.
fn client_fill_the_queue(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let (memory, target) = (conn.memory(WORD), ctx.receive_target());
    let (segment, target) = (local_segment(&memory, 0, WORD), remote(target, 0, WORD as u32));
    let full = error(DAT_INSUFFICIENT_RESOURCES, v2::DAT_RESOURCE_MEMORY);
    let mut posted = 0;
    let code = loop {
        let operation = Extended::WriteImmediate { count: 1, data: posted };
        match added::post_extended(conn.ep.h(), operation, &segment, posted.into(), &target, 0) {
            DAT_SUCCESS => posted += 1,
            code => break code,
        }
    };
    expect(code, full);
    assert!(posted >= 16, "only {posted} requests fit, wanted at least 16");
    expect(added::ep_post_send_with_invalidate(conn.ep.h(), &mut [], 0, DAT_FALSE, 0), full);
    if has_feature(&conn.ia, Feature::FetchAdd) {
        let add = Extended::FetchAdd { add: 1 };
        expect(added::post_extended(conn.ep.h(), add, &segment, 1, &target, 0), full);
    }
    ctx.meet();
    conn.disconnect();
    for n in 0..posted {
        let came = done(&conn.request);
        assert_eq!((came.cookie, came.status), (n.into(), v2::DAT_DTO_ERR_FLUSHED));
    }
    ctx.meet();
}

fn server_leave_full(ctx: &Ctx) {
    needs(ctx, Feature::Immediate);
    let conn = ctx.connect();
    let memory = conn.memory(WORD);
    ctx.send_target(memory.target(0, WORD));
    ctx.meet();
    expect_over(&conn);
    ctx.meet();
}

fn v2_datagrams_and_counters_are_not_supported(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let attr = DAT_EP_ATTR { service_type: v2::DAT_IB_SERVICE_TYPE_UD, ..ep_attr() };
    let (ia, pz) = (conn.ia.h(), conn.pz.h());
    let (recv, request, events) = (conn.recv.h(), conn.request.h(), conn.events.h());
    expect(untouched(|out| dat_ep_create(ia, pz, recv, request, events, &attr, out)), NOT_SUPPORTED);
    let srq = conn.ia.srq(&conn.pz, 4, 1);
    let create = |out| dat_ep_create_with_srq(ia, pz, recv, request, events, srq.h(), &attr, out);
    expect(untouched(create), NOT_SUPPORTED);
    let operations = [
        v2::DAT_IB_UD_SEND_OP,
        v2::DAT_IB_UD_CM_FREE_OP,
        v2::DAT_IB_UD_AH_FREE_OP,
        v2::DAT_IB_QUERY_COUNTERS_OP,
        v2::DAT_IB_PRINT_COUNTERS_OP,
        v2::DAT_IB_START_COUNTERS_OP,
        v2::DAT_IB_STOP_COUNTERS_OP,
        v2::DAT_IB_COLLECTIVE_CREATE_MEMBER_OP,
        v2::DAT_IB_COLLECTIVE_CREATE_GROUP_OP,
        v2::DAT_IB_COLLECTIVE_BARRIER_OP,
    ];
    for op in operations {
        expect(added::extension_op(conn.ep.h(), op as i32, [0; 5]), NOT_SUPPORTED);
    }
    let named = v2::DAT_IB_ATTR_UD.to_str().expect("attribute names are ASCII");
    let attr = conn.ia.provider_attr();
    let all = named_attributes(attr.provider_specific_attr, attr.num_provider_specific_attr);
    assert!(all.iter().all(|(name, _)| name != named), "the attribute {named} is listed");
}

fn v2_connect_to_a_multicast_address_fails(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let group = Address::ipv4([239, 1, 2, 3]);
    let (ep, qual, flags) = (conn.ep.h(), ctx.qual(0), DAT_CONNECT_DEFAULT_FLAG);
    let code = dat_ep_connect(ep, group.pointer(), qual, 2_000_000, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags);
    if code == DAT_SUCCESS {
        let event = expect_event(conn.events.h(), ctx.left());
        let ends = [DAT_CONNECTION_EVENT_UNREACHABLE, DAT_CONNECTION_EVENT_TIMED_OUT, DAT_CONNECTION_EVENT_BROKEN];
        assert!(
            ends.contains(&event.number()),
            "the event is {}, wanted UNREACHABLE, TIMED_OUT or BROKEN",
            number_name(event.number())
        );
    } else {
        refused(code, DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE);
    }
}

fn client_send_largest(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let address = ctx.receive_address();
    let most = added::attributes(conn.ia.h()).1.max_private_data_size;
    let mut data: Vec<u8> = (0..=most).map(|n| n as u8 ^ 0x5A).collect();
    let (ep, qual, flags) = (conn.ep.h(), ctx.qual(0), DAT_CONNECT_DEFAULT_FLAG);
    let mut connect = |size| {
        let data = data.as_mut_ptr().cast();
        dat_ep_connect(ep, address.pointer(), qual, DAT_TIMEOUT_INFINITE, size, data, DAT_QOS_BEST_EFFORT, flags)
    };
    bad_arg(connect(most + 1), 5);
    bad_arg(connect(-1), 5);
    ok(connect(most));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ctx.meet();
}

fn server_take_largest(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let most = added::attributes(conn.ia.h()).1.max_private_data_size;
    let requests = conn.ia.evd(8, DAT_EVD_CR_FLAG);
    let psp = conn.ia.psp(ctx.qual(0), &requests);
    ctx.send_address(&conn.ia);
    let cr = expect_cr(requests.h()).cr_handle;
    let param: DAT_CR_PARAM = filled(|out| dat_cr_query(cr, DAT_CR_FIELD_ALL, out));
    assert_eq!(param.private_data_size, most);
    let wanted: Vec<u8> = (0..most).map(|n| n as u8 ^ 0x5A).collect();
    assert_eq!(bytes_at(param.private_data, most as usize), wanted);
    ok(dat_cr_accept(cr, conn.ep.h(), 0, null_mut()));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    drop(psp);
    ctx.meet();
}

fn client_connect_wrongly(ctx: &Ctx) {
    let conn = ctx.connect();
    let _ = ctx.receive_target();
    let mut bytes = address_at(conn.ia.attr().ia_address_ptr);
    bytes[2..4].copy_from_slice(&(ctx.qual(1) as u16).to_be_bytes());
    let address = Address::of_bytes(&bytes);
    let connect = |ep, size, data| added::ep_common_connect(ep, address.pointer(), DAT_TIMEOUT_INFINITE, size, data);
    expect(connect(conn.ep.h(), 0, null_mut()), in_state(DAT_INVALID_STATE_EP_CONNECTED));
    let alone = Conn::on(&conn.ia);
    let most = added::attributes(conn.ia.h()).1.max_private_data_size;
    let mut data = vec![0_u8; most as usize + 1];
    expect(connect(alone.ep.h(), most + 1, data.as_mut_ptr().cast()), argument(4));
    expect(connect(alone.ep.h(), 1, null_mut()), argument(5));
    ctx.meet();
}
