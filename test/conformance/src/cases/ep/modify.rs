//! `dat_ep_modify`: every field in every state, values that are refused, all or nothing; then what a change does to receives
//! that are posted. Cases only.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::create::{Parts, numbers, without_pz};
use super::scene::State::{self, *};
use super::scene::{Request, Scene, in_state, silent_listener};

/// A field: its name, its bit, and a good value.
struct Field {
    word: &'static str,
    mask: DAT_EP_PARAM_MASK,
    change: fn(&mut DAT_EP_PARAM, &Spare),
}

/// Objects to change to.
struct Spare {
    dto: Evd,
    connection: Evd,
    pz: Pz,
}

impl Spare {
    #[track_caller]
    fn new(ia: &Ia) -> Self {
        Spare { dto: ia.evd(8, DAT_EVD_DTO_FLAG), connection: ia.evd(8, DAT_EVD_CONNECTION_FLAG), pz: ia.pz() }
    }
}

const FIELDS: [Field; 17] = [
    Field { word: "pz", mask: DAT_EP_FIELD_PZ_HANDLE, change: |param, spare| param.pz_handle = spare.pz.h() },
    Field {
        word: "recv_evd",
        mask: DAT_EP_FIELD_RECV_EVD_HANDLE,
        change: |param, spare| param.recv_evd_handle = spare.dto.h(),
    },
    Field {
        word: "request_evd",
        mask: DAT_EP_FIELD_REQUEST_EVD_HANDLE,
        change: |param, spare| param.request_evd_handle = spare.dto.h(),
    },
    Field {
        word: "connect_evd",
        mask: DAT_EP_FIELD_CONNECT_EVD_HANDLE,
        change: |param, spare| param.connect_evd_handle = spare.connection.h(),
    },
    Field {
        word: "service_type",
        mask: DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE,
        change: |param, _| param.ep_attr.service_type = DAT_SERVICE_TYPE_RC,
    },
    Field {
        word: "message_size",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE,
        change: |param, _| param.ep_attr.max_message_size = 777,
    },
    Field {
        word: "rdma_size",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE,
        change: |param, _| param.ep_attr.max_rdma_size = 777,
    },
    Field { word: "qos", mask: DAT_EP_FIELD_EP_ATTR_QOS, change: |param, _| param.ep_attr.qos = DAT_QOS_ECONOMY },
    Field {
        word: "recv_flags",
        mask: DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS,
        change: |param, _| param.ep_attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG,
    },
    Field {
        word: "request_flags",
        mask: DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS,
        change: |param, _| param.ep_attr.request_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG,
    },
    Field {
        word: "recv_dtos",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS,
        change: |param, _| param.ep_attr.max_recv_dtos = 9,
    },
    Field {
        word: "request_dtos",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS,
        change: |param, _| param.ep_attr.max_request_dtos = 9,
    },
    Field {
        word: "recv_iov",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV,
        change: |param, _| param.ep_attr.max_recv_iov = 2,
    },
    Field {
        word: "request_iov",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV,
        change: |param, _| param.ep_attr.max_request_iov = 2,
    },
    Field {
        word: "reads_in",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN,
        change: |param, _| param.ep_attr.max_rdma_read_in = 1,
    },
    Field {
        word: "reads_out",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT,
        change: |param, _| param.ep_attr.max_rdma_read_out = 1,
    },
    Field {
        word: "read_iov",
        mask: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV,
        change: |param, _| param.ep_attr.max_rdma_read_iov = 2,
    },
];

type Spoil = fn(&mut DAT_EP_PARAM, &DAT_IA_ATTR, &Spare);

/// Values that no field takes, each parameter 3.
fn bad_values() -> Vec<(&'static str, DAT_EP_PARAM_MASK, Spoil)> {
    vec![
        ("pz_that_is_an_evd", DAT_EP_FIELD_PZ_HANDLE, |param, _, spare| param.pz_handle = spare.dto.h()),
        ("recv_evd_that_is_a_pz", DAT_EP_FIELD_RECV_EVD_HANDLE, |param, _, spare| param.recv_evd_handle = spare.pz.h()),
        ("recv_evd_without_dto_flag", DAT_EP_FIELD_RECV_EVD_HANDLE, |param, _, spare| {
            param.recv_evd_handle = spare.connection.h()
        }),
        ("request_evd_that_is_a_pz", DAT_EP_FIELD_REQUEST_EVD_HANDLE, |param, _, spare| {
            param.request_evd_handle = spare.pz.h()
        }),
        ("request_evd_without_dto_flag", DAT_EP_FIELD_REQUEST_EVD_HANDLE, |param, _, spare| {
            param.request_evd_handle = spare.connection.h()
        }),
        ("connect_evd_that_is_a_pz", DAT_EP_FIELD_CONNECT_EVD_HANDLE, |param, _, spare| {
            param.connect_evd_handle = spare.pz.h()
        }),
        ("connect_evd_without_connection_flag", DAT_EP_FIELD_CONNECT_EVD_HANDLE, |param, _, spare| {
            param.connect_evd_handle = spare.dto.h()
        }),
        ("another_service_type", DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, |param, _, _| param.ep_attr.service_type = 3),
        ("messages_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, |param, ia, _| {
            param.ep_attr.max_message_size = ia.max_message_size.saturating_add(1)
        }),
        ("rdma_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, |param, ia, _| {
            param.ep_attr.max_rdma_size = ia.max_rdma_size.saturating_add(1)
        }),
        ("suppressed_receives", DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, |param, _, _| {
            param.ep_attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG
        }),
        ("recv_dtos_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param, ia, _| {
            param.ep_attr.max_recv_dtos = ia.max_dto_per_ep + 1
        }),
        ("request_dtos_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, |param, ia, _| {
            param.ep_attr.max_request_dtos = ia.max_dto_per_ep + 1
        }),
        ("negative_recv_dtos", DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param, _, _| param.ep_attr.max_recv_dtos = -1),
        ("negative_request_dtos", DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, |param, _, _| {
            param.ep_attr.max_request_dtos = -1
        }),
        ("recv_segments_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param, ia, _| {
            param.ep_attr.max_recv_iov = ia.max_iov_segments_per_dto + 1
        }),
        ("request_segments_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV, |param, ia, _| {
            param.ep_attr.max_request_iov = ia.max_iov_segments_per_dto + 1
        }),
        ("reads_in_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN, |param, ia, _| {
            param.ep_attr.max_rdma_read_in = ia.max_rdma_read_per_ep_in + 1
        }),
        ("reads_out_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT, |param, ia, _| {
            param.ep_attr.max_rdma_read_out = ia.max_rdma_read_per_ep_out + 1
        }),
        ("read_segments_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV, |param, ia, _| {
            param.ep_attr.max_rdma_read_iov = ia.max_iov_segments_per_dto + 1
        }),
        ("write_segments_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV, |param, ia, _| {
            param.ep_attr.max_rdma_write_iov = ia.max_iov_segments_per_dto + 1
        }),
        (
            "recv_dtos_without_an_evd",
            DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS,
            |param, _, _| (param.recv_evd_handle, param.ep_attr.max_recv_dtos) = (DAT_HANDLE_NULL, 4),
        ),
        (
            "request_dtos_without_an_evd",
            DAT_EP_FIELD_REQUEST_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS,
            |param, _, _| (param.request_evd_handle, param.ep_attr.max_request_dtos) = (DAT_HANDLE_NULL, 4),
        ),
        ("one_bad_field_among_good_ones", DAT_EP_FIELD_EP_ATTR_ALL, |param, _, _| {
            (param.ep_attr.qos, param.ep_attr.max_message_size) = (DAT_QOS_PREMIUM, 99);
            param.ep_attr.max_recv_iov = DAT_COUNT::MAX;
        }),
        ("good_evd_with_a_bad_pz", DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE, |param, _, spare| {
            (param.recv_evd_handle, param.pz_handle) = (spare.dto.h(), spare.connection.h())
        }),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "endpoints 5.3": ep_modify_without_a_record_is_arg3,
        "endpoints 5.3": ep_modify_of_nothing_changes_nothing,
        "endpoints 5.3": ep_modify_tells_of_read_only_fields_before_the_state,
        "endpoints 13.23": ep_modify_takes_dtos_whatever_evd_the_record_names,
        "endpoints 5.3": ep_modify_without_an_evd_takes_its_dtos_away,
        "endpoints 5.3": ep_modify_of_the_pz_flushes_receives,
        "endpoints 5.3": ep_modify_of_the_recv_dtos_makes_room,
        "endpoints 5.3": ep_modify_of_the_recv_evd_moves_completions,
        "endpoints 5.3": ep_modify_of_the_connect_evd_moves_events,
        "endpoints 5.3": ep_modify_without_pz_takes_no_receive_any_more,
        "endpoints 14.4": ep_modify_pz_in_attaches_at_once,
        "endpoints 14.4": ep_modify_then_connects_and_carries,
        "endpoints 5.3": ep_modify_lets_go_of_old_objects,
        "endpoints 5.3": ep_modify_refused_holds_no_object,
        "endpoints 14.20": ep_modify_makes_a_tentative_ep_ready => local(makes_a_tentative_ep_ready).needs(Need::ProviderEp),
        "endpoints 4.1": ep_modify_lets_no_tentative_ep_connect =>
            local(lets_no_tentative_ep_connect).needs(Need::ProviderEp),
        "endpoints 5.3": ep_modify_of_reads_counts_for_the_connection,
        "endpoints 5.3": ep_modify_of_segments_counts_for_posts,
    ];
    for (number, field) in FIELDS.iter().enumerate() {
        all.extend(State::ALL.map(|at| {
            let name = format!("ep_modify_{}_{}", field.word, at.word());
            in_state(at, move |_ctx, scene| one_field(&FIELDS[number], at, &scene)).named(name).proves("endpoints 5.3")
        }));
    }
    all.extend(bad_values().into_iter().map(|(what, mask, spoil)| {
        let name = format!("ep_modify_refuses_{what}");
        local(move |ctx| refuses(ctx, mask, spoil)).named(name).proves("endpoints 5.3")
    }));
    let read_only = [
        ("ia", DAT_EP_FIELD_IA_HANDLE),
        ("state", DAT_EP_FIELD_EP_STATE),
        ("local_address", DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR),
        ("local_port", DAT_EP_FIELD_LOCAL_PORT_QUAL),
        ("remote_address", DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR),
        ("remote_port", DAT_EP_FIELD_REMOTE_PORT_QUAL),
    ];
    all.extend(read_only.map(|(word, mask)| {
        let name = format!("ep_modify_refuses_read_only_{word}");
        local(move |ctx| refuses_read_only(ctx, mask)).named(name).proves("endpoints 5.3")
    }));
    all
}

fn param_of(ep: DAT_EP_HANDLE) -> DAT_EP_PARAM {
    filled(|out| dat_ep_query(ep, DAT_EP_FIELD_ALL, out))
}

/// All that `dat_ep_modify` could have changed.
fn shape(ep: DAT_EP_HANDLE) -> (Vec<usize>, Vec<u64>) {
    let param = param_of(ep);
    let handles =
        [param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle, param.srq_handle];
    (handles.map(|handle| handle.addr()).to_vec(), numbers(&param.ep_attr))
}

#[track_caller]
fn modify(ep: &Ep, mask: DAT_EP_PARAM_MASK, change: impl FnOnce(&mut DAT_EP_PARAM)) {
    let mut param = ep.param();
    change(&mut param);
    ok(dat_ep_modify(ep.h(), mask, &param));
}

fn one_field(field: &Field, at: State, scene: &Scene) {
    let spare = Spare::new(&scene.own.ia);
    let before = shape(scene.ep());
    let mut param = param_of(scene.ep());
    let original = param;
    (field.change)(&mut param, &spare);
    let code = dat_ep_modify(scene.ep(), field.mask, &param);
    let is_pz = field.mask == DAT_EP_FIELD_PZ_HANDLE;
    match at {
        // A made EP has no EVDs, and so no DTOs.
        Tentative if matches!(field.word, "recv_dtos" | "request_dtos") => {
            bad_arg(code, 3);
            assert_eq!(shape(scene.ep()), before);
        }
        Unconnected | Tentative => ok(code),
        Reserved | Passive if !is_pz => ok(code),
        _ => {
            refused(code, DAT_INVALID_STATE, at.subtype());
            assert_eq!(shape(scene.ep()), before, "refused, and changed all the same");
        }
    }
    scene.expect(at);
    if code == DAT_SUCCESS {
        let now = param_of(scene.ep());
        assert_eq!(numbers_of_change(&now, field, at), numbers_of_change(&param, field, at));
        // The spare objects go before the EP does.
        let objects = DAT_EP_FIELD_PZ_HANDLE
            | DAT_EP_FIELD_RECV_EVD_HANDLE
            | DAT_EP_FIELD_REQUEST_EVD_HANDLE
            | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
        if field.mask & objects != 0 {
            ok(dat_ep_modify(scene.ep(), field.mask, &original));
        }
    }
}

/// What must be as asked after a change: all, but for DTOs that come along with a first EVD.
fn numbers_of_change(param: &DAT_EP_PARAM, field: &Field, at: State) -> (Vec<usize>, Vec<u64>) {
    let handles = [param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle];
    let mut attr = param.ep_attr;
    if at == Tentative && field.word.ends_with("_evd") {
        (attr.max_recv_dtos, attr.max_request_dtos) = (0, 0);
    }
    (handles.map(|handle| handle.addr()).to_vec(), numbers(&attr))
}

fn refuses(ctx: &Ctx, mask: DAT_EP_PARAM_MASK, spoil: Spoil) {
    let conn = Conn::alone(ctx);
    let (spare, limits) = (Spare::new(&conn.ia), conn.ia.attr());
    post_empty_recv(&conn, 1);
    let before = shape(conn.ep.h());
    let mut param = conn.ep.param();
    spoil(&mut param, &limits, &spare);
    let above_all = (mask == DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE && limits.max_message_size == DAT_VLEN::MAX)
        || (mask == DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE && limits.max_rdma_size == DAT_VLEN::MAX);
    if above_all {
        return; // nothing is above this limit
    }
    bad_arg(dat_ep_modify(conn.ep.h(), mask, &param), 3);
    assert_eq!(shape(conn.ep.h()), before, "all or nothing");
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(conn.recv.h());
}

fn refuses_read_only(ctx: &Ctx, mask: DAT_EP_PARAM_MASK) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    let before = shape(ep.h());
    let mut param = ep.param();
    param.ep_attr.qos = DAT_QOS_PREMIUM;
    bad_arg(dat_ep_modify(ep.h(), mask, &param), 2);
    bad_arg(dat_ep_modify(ep.h(), mask | DAT_EP_FIELD_EP_ATTR_QOS, &param), 2);
    assert_eq!(shape(ep.h()), before);
}

fn ep_modify_without_a_record_is_arg3(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    bad_arg(dat_ep_modify(ep.h(), DAT_EP_FIELD_EP_ATTR_QOS, null_mut()), 3);
    // Before the mask is looked at.
    bad_arg(dat_ep_modify(ep.h(), DAT_EP_FIELD_IA_HANDLE, null_mut()), 3);
}

fn ep_modify_of_nothing_changes_nothing(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    let (before, mut param) = (shape(ep.h()), ep.param());
    param.ep_attr = zeroed();
    ok(dat_ep_modify(ep.h(), 0, &param));
    assert_eq!(shape(ep.h()), before);
}

fn ep_modify_tells_of_read_only_fields_before_the_state(ctx: &Ctx) {
    let (near, _far) = ctx.loopback();
    let param = near.ep.param();
    bad_arg(dat_ep_modify(near.ep.h(), DAT_EP_FIELD_EP_STATE | DAT_EP_FIELD_PZ_HANDLE, &param), 2);
}

/// Only the EVD that the EP will have counts.
fn ep_modify_takes_dtos_whatever_evd_the_record_names(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    modify(&ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param| {
        (param.recv_evd_handle, param.ep_attr.max_recv_dtos) = (DAT_HANDLE_NULL, 33)
    });
    assert_eq!(ep.param().ep_attr.max_recv_dtos, 33);
}

fn ep_modify_without_an_evd_takes_its_dtos_away(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    modify(&ep, DAT_EP_FIELD_RECV_EVD_HANDLE, |param| param.recv_evd_handle = DAT_HANDLE_NULL);
    let param = ep.param();
    assert!(param.recv_evd_handle.is_null());
    assert_eq!(param.ep_attr.max_recv_dtos, 0);
}

fn ep_modify_of_the_pz_flushes_receives(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let pz = conn.ia.pz();
    (1..=3).for_each(|id| post_empty_recv(&conn, id));
    modify(&conn.ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = pz.h());
    // There when the call returns.
    let events = drain(conn.recv.h());
    let cookies: Vec<u64> = events.iter().map(|event| context_bits(event.dto().user_cookie)).collect();
    assert_eq!(cookies, [1, 2, 3]);
    assert!(events.iter().all(|event| event.dto().status == DAT_DTO_ERR_FLUSHED));
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(conn.events.h());
    post_empty_recv(&conn, 4);
    conn.ep.free();
}

fn ep_modify_of_the_recv_dtos_makes_room(ctx: &Ctx) {
    let setup = Setup { attr: DAT_EP_ATTR { max_recv_dtos: 2, ..ep_attr() }, ..Setup::default() };
    let conn = Conn::unconnected(&ctx.ia(), &setup);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param| param.ep_attr.max_recv_dtos = 40);
    (1..=40).for_each(|id| post_empty_recv(&conn, id));
}

fn ep_modify_of_the_recv_evd_moves_completions(ctx: &Ctx) {
    let ia = ctx.ia();
    let other = ia.evd(8, DAT_EVD_DTO_FLAG);
    let conn = Conn::on(&ia);
    post_empty_recv(&conn, 1);
    modify(&conn.ep, DAT_EP_FIELD_RECV_EVD_HANDLE, |param| param.recv_evd_handle = other.h());
    // What was posted before comes back where it was to come.
    expect_flushed(&conn.recv, [1]);
    post_empty_recv(&conn, 2);
    ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
    expect_flushed(&other, [2]);
    expect_nothing(conn.recv.h());
    conn.ep.free();
}

fn ep_modify_of_the_connect_evd_moves_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let other = ia.evd(8, DAT_EVD_CONNECTION_FLAG);
    let conn = Conn::on(&ia);
    modify(&conn.ep, DAT_EP_FIELD_CONNECT_EVD_HANDLE, |param| param.connect_evd_handle = other.h());
    // Nobody listens there.
    conn.connect(&ia.address(), ctx.qual(9));
    expect_conn(other.h(), conn.ep.h(), DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    expect_nothing(conn.events.h());
    conn.ep.free();
}

fn ep_modify_without_pz_takes_no_receive_any_more(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    post_empty_recv(&conn, 1);
    modify(&conn.ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = DAT_HANDLE_NULL);
    expect_flushed(&conn.recv, [1]);
    let code = dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_NOTREADY);
    // And the PZ is free.
    conn.pz.free();
}

fn ep_modify_pz_in_attaches_at_once(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = without_pz(&parts);
    modify(&ep, DAT_EP_FIELD_PZ_HANDLE, |param| param.pz_handle = parts.pz.h());
    ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
}

/// Another PZ, other EVDs, other depths: and then it is an EP like any other.
fn ep_modify_then_connects_and_carries(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    let (pz, recv) = (ia.pz(), ia.evd(32, DAT_EVD_DTO_FLAG));
    let mask = DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
    modify(&near.ep, mask, |param| {
        (param.pz_handle, param.recv_evd_handle, param.ep_attr.max_recv_dtos) = (pz.h(), recv.h(), 32)
    });
    let (into, from) = (ia.memory(&pz, 100), far.memory(100));
    from.write_pattern(0, 100, 3);
    near.post_recv(1, into.segment(0, 100));
    far.listen(ctx.qual(0), || near.connect(&ia.address(), ctx.qual(0)));
    established(&near, &far);
    far.post_send(2, from.segment(0, 100));
    expect_dto(recv.h(), 1, DAT_DTO_SUCCESS, 100);
    into.expect_pattern(0, 100, 3);
    drop(into);
    near.ep.free();
}

fn ep_modify_lets_go_of_old_objects(ctx: &Ctx) {
    let ia = ctx.ia();
    let conn = Conn::on(&ia);
    let mask = DAT_EP_FIELD_PZ_HANDLE
        | DAT_EP_FIELD_RECV_EVD_HANDLE
        | DAT_EP_FIELD_REQUEST_EVD_HANDLE
        | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    let spare = Spare::new(&conn.ia);
    modify(&conn.ep, mask, |param| {
        param.pz_handle = spare.pz.h();
        (param.recv_evd_handle, param.request_evd_handle) = (spare.dto.h(), spare.dto.h());
        param.connect_evd_handle = spare.connection.h();
    });
    let Conn { ep, recv, request, events, pz, .. } = conn;
    recv.free();
    request.free();
    events.free();
    pz.free();
    refused(dat_pz_free(spare.pz.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
    refused(dat_evd_free(spare.dto.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    refused(dat_evd_free(spare.connection.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
    ep.free();
}

fn ep_modify_refused_holds_no_object(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let spare = Spare::new(&conn.ia);
    let mut param = conn.ep.param();
    (param.pz_handle, param.recv_evd_handle) = (spare.pz.h(), spare.dto.h());
    param.ep_attr.max_recv_iov = DAT_COUNT::MAX;
    let mask = DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV;
    bad_arg(dat_ep_modify(conn.ep.h(), mask, &param), 3);
    let Spare { dto, connection, pz } = spare;
    dto.free();
    connection.free();
    pz.free();
}

/// The EP of a request at a PSP with the PROVIDER flag is born with nothing; given a PZ and EVDs it can be accepted into.
fn makes_a_tentative_ep_ready(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    let made = furnished(&scene);
    ok(dat_ep_post_recv(made.h(), 0, null_mut(), cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
    let cr = scene.request.take().expect("it waits").leak();
    ok(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, null_mut()));
    expect_conn(scene.own.events.h(), made.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    scene.expect(Connected);
    let other = scene.other();
    other.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    post_empty_send(other, 5);
    expect_dto(other.request.h(), 5, DAT_DTO_SUCCESS, 0);
    expect_dto(scene.own.recv.h(), 4, DAT_DTO_SUCCESS, 0);
}

/// With all that it lacked, its state is what is in the way.
fn lets_no_tentative_ep_connect(ctx: &Ctx) {
    let mut scene = Scene::new(ctx, Tentative);
    let made = furnished(&scene);
    let (address, time) = (scene.own.ia.address(), DAT_TIMEOUT_INFINITE);
    let code = dat_ep_connect(made.h(), address.pointer(), 1, time, 0, null_mut(), DAT_QOS_BEST_EFFORT, 0);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_TENTCONNPENDING);
    scene.expect(Tentative);
    made.leak(); // it goes with its request
    ok(dat_cr_reject(scene.request.take().expect("it waits").leak()));
    scene.other().expect(DAT_CONNECTION_EVENT_PEER_REJECTED);
}

/// The EP of a waiting request, given a PZ and EVDs.
fn furnished(scene: &Scene) -> Ep {
    let made = Ep::own(scene.ep());
    let Conn { recv, request, events, pz, .. } = &scene.own;
    let mask = DAT_EP_FIELD_PZ_HANDLE
        | DAT_EP_FIELD_RECV_EVD_HANDLE
        | DAT_EP_FIELD_REQUEST_EVD_HANDLE
        | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    modify(&made, mask, |param| {
        param.pz_handle = pz.h();
        (param.recv_evd_handle, param.request_evd_handle) = (recv.h(), request.h());
        param.connect_evd_handle = events.h();
    });
    made
}

fn ep_modify_of_reads_counts_for_the_connection(ctx: &Ctx) {
    let ia = ctx.ia();
    let (near, far) = (Conn::on(&ia), Conn::on(&ia));
    modify(&near.ep, DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT, |param| param.ep_attr.max_rdma_read_out = 0);
    let (requests, _psp) = silent_listener(ctx, &ia, 0);
    near.connect(&ia.address(), ctx.qual(0));
    Request::arrives(&requests).accept(&far.ep);
    established(&near, &far);
    let (into, from) = (near.memory(8), far.memory(8));
    let (mut segment, target) = (into.segment(0, 8), from.target(0, 8));
    let code = dat_ep_post_rdma_read(near.ep.h(), 1, &mut segment, cookie(1), &target, DAT_COMPLETION_DEFAULT_FLAG);
    assert_ne!(code, DAT_SUCCESS, "a read that could never complete is refused (endpoints 10.3)");
    expect_nothing(near.request.h());
}

fn ep_modify_of_segments_counts_for_posts(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let memory = conn.memory(64);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param| param.ep_attr.max_recv_iov = 1);
    let mut segments = [memory.segment(0, 8), memory.segment(8, 8)];
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    bad_arg(dat_ep_post_recv(conn.ep.h(), 2, segments.as_mut_ptr(), cookie(1), flags), 2);
    modify(&conn.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, |param| param.ep_attr.max_recv_iov = 2);
    ok(dat_ep_post_recv(conn.ep.h(), 2, segments.as_mut_ptr(), cookie(1), flags));
}
