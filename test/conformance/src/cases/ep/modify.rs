//! `dat_ep_modify`: the fields of the table `FIELDS` in every state, refused values, read-only fields, and atomicity.
//! Effects on posted work and connections are in `modify_effects`.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::parts::{Parts, numbers};
use super::scene::EpState::{self, *};
use super::scene::{Scene, in_state};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/endpoints 5.3": ep_modify_without_a_record_returns_invalid_arg3,
        "spec/endpoints 5.3": ep_modify_with_an_empty_mask_changes_nothing,
        "spec/endpoints 5.3": ep_modify_reports_read_only_fields_before_the_state,
        "spec/endpoints 13.23": ep_modify_of_dtos_ignores_the_unselected_evd_in_the_record,
        "spec/endpoints 5.3": ep_modify_to_a_null_recv_evd_sets_the_recv_dtos_to_zero,
        "spec/endpoints 5.3": ep_modify_that_is_refused_keeps_no_object_in_use,
    ];
    for (number, field) in FIELDS.iter().enumerate() {
        all.extend(EpState::ALL.map(|at| {
            let outcome = if is_modifiable(field, at) { "succeeds" } else { "is_refused" };
            let name = format!("ep_modify_of_{}_in_state_{}_{outcome}", field.word, at.word());
            in_state(at, move |_ctx, scene| one_field(&FIELDS[number], at, &scene))
                .named(name)
                .proves("spec/endpoints 5.3")
        }));
    }
    all.extend(bad_values().into_iter().map(|(what, mask, spoil)| {
        let name = format!("ep_modify_refuses_{what}");
        local(move |ctx| refuses(ctx, mask, spoil)).named(name).proves("spec/endpoints 5.3")
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
        let name = format!("ep_modify_refuses_the_read_only_field_{word}");
        local(move |ctx| refuses_read_only(ctx, mask)).named(name).proves("spec/endpoints 5.3")
    }));
    all
}

#[track_caller]
pub(super) fn modify(ep: &Ep, mask: DAT_EP_PARAM_MASK, change: impl FnOnce(&mut DAT_EP_PARAM)) {
    let mut param = ep.param();
    change(&mut param);
    ok(dat_ep_modify(ep.h(), mask, &param));
}

/// A modifiable field: its name, its mask bit, and a valid value.
struct Field {
    word: &'static str,
    mask: DAT_EP_PARAM_MASK,
    change: fn(&mut DAT_EP_PARAM, &Spare),
}

/// Objects for use as new values.
pub(super) struct Spare {
    pub(super) dto: Evd,
    pub(super) connection: Evd,
    pub(super) pz: Pz,
}

impl Spare {
    #[track_caller]
    pub(super) fn new(ia: &Ia) -> Self {
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

/// Invalid values; each is refused as parameter 3, which is tested in UNCONNECTED.
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
        ("an_unknown_service_type", DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, |param, _, _| param.ep_attr.service_type = 3),
        ("a_message_size_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, |param, ia, _| {
            param.ep_attr.max_message_size = ia.max_message_size.saturating_add(1)
        }),
        ("an_rdma_size_above_the_limit", DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, |param, ia, _| {
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

fn param_of(ep: DAT_EP_HANDLE) -> DAT_EP_PARAM {
    filled(|out| dat_ep_query(ep, DAT_EP_FIELD_ALL, out))
}

/// Returns the handles and the attributes of the EP, to detect changes by a refused call.
fn shape(ep: DAT_EP_HANDLE) -> (Vec<usize>, Vec<u64>) {
    let param = param_of(ep);
    let handles =
        [param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle, param.srq_handle];
    (handles.map(|handle| handle.addr()).to_vec(), numbers(&param.ep_attr))
}

/// Whether `dat_ep_modify` may change the field in this state.
fn is_modifiable(field: &Field, at: EpState) -> bool {
    match at {
        // The provider created this EP without EVDs, so its DTO counts must stay 0.
        Tentative => !matches!(field.word, "recv_dtos" | "request_dtos"),
        Unconnected => true,
        Reserved | Passive => field.mask != DAT_EP_FIELD_PZ_HANDLE,
        _ => false,
    }
}

fn one_field(field: &Field, at: EpState, scene: &Scene) {
    let spare = Spare::new(&scene.own.ia);
    let before = shape(scene.ep());
    let mut param = param_of(scene.ep());
    let original = param;
    (field.change)(&mut param, &spare);
    let code = dat_ep_modify(scene.ep(), field.mask, &param);
    if is_modifiable(field, at) {
        ok(code);
    } else {
        match at {
            Tentative => bad_arg(code, 3),
            _ => refused(code, DAT_INVALID_STATE, at.subtype()),
        }
        assert_eq!(shape(scene.ep()), before, "the refused call changed the EP");
    }
    scene.expect(at);
    if code == DAT_SUCCESS {
        let now = param_of(scene.ep());
        assert_eq!(numbers_of_change(&now, field, at), numbers_of_change(&param, field, at));
        // The EP must not keep the spare objects: they are freed before the EP.
        let objects = DAT_EP_FIELD_PZ_HANDLE
            | DAT_EP_FIELD_RECV_EVD_HANDLE
            | DAT_EP_FIELD_REQUEST_EVD_HANDLE
            | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
        if field.mask & objects != 0 {
            ok(dat_ep_modify(scene.ep(), field.mask, &original));
        }
    }
}

/// The fields that must have the requested values after a change. When a TENTATIVE EP gets an EVD, the library chooses
/// the DTO counts, so they are set to 0 here.
fn numbers_of_change(param: &DAT_EP_PARAM, field: &Field, at: EpState) -> (Vec<usize>, Vec<u64>) {
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
        return; // the limit is the largest value, so no value exceeds it
    }
    bad_arg(dat_ep_modify(conn.ep.h(), mask, &param), 3);
    assert_eq!(shape(conn.ep.h()), before, "the refused call changed the EP");
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

fn ep_modify_without_a_record_returns_invalid_arg3(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    bad_arg(dat_ep_modify(ep.h(), DAT_EP_FIELD_EP_ATTR_QOS, null_mut()), 3);
    // The null check comes before the mask check.
    bad_arg(dat_ep_modify(ep.h(), DAT_EP_FIELD_IA_HANDLE, null_mut()), 3);
}

fn ep_modify_with_an_empty_mask_changes_nothing(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    let (before, mut param) = (shape(ep.h()), ep.param());
    param.ep_attr = zeroed();
    ok(dat_ep_modify(ep.h(), 0, &param));
    assert_eq!(shape(ep.h()), before);
}

fn ep_modify_reports_read_only_fields_before_the_state(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let param = client.ep.param();
    bad_arg(dat_ep_modify(client.ep.h(), DAT_EP_FIELD_EP_STATE | DAT_EP_FIELD_PZ_HANDLE, &param), 2);
}

/// Only the EVD that the EP has after the change matters for the DTO counts.
fn ep_modify_of_dtos_ignores_the_unselected_evd_in_the_record(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    modify(&ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, |param| {
        (param.recv_evd_handle, param.ep_attr.max_recv_dtos) = (DAT_HANDLE_NULL, 33)
    });
    assert_eq!(ep.param().ep_attr.max_recv_dtos, 33);
}

fn ep_modify_to_a_null_recv_evd_sets_the_recv_dtos_to_zero(ctx: &Ctx) {
    let parts = Parts::new(ctx);
    let ep = parts.ep(&ep_attr());
    modify(&ep, DAT_EP_FIELD_RECV_EVD_HANDLE, |param| param.recv_evd_handle = DAT_HANDLE_NULL);
    let param = ep.param();
    assert!(param.recv_evd_handle.is_null());
    assert_eq!(param.ep_attr.max_recv_dtos, 0);
}

fn ep_modify_that_is_refused_keeps_no_object_in_use(ctx: &Ctx) {
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
