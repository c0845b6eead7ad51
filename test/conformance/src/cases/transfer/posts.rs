//! Refusals of a post for the four kinds of post (spec/events 4.8), and the limits of queue depths and segments
//! (spec/events 4.4).
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

use super::ends::*;

/// An error in the parameters of a post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InvalidPost {
    NullEp,
    OtherKind,
    FreedEp,
    Negative,
    OneTooMany,
    NoList,
    NoRemote,
    UnknownFlag,
    HighestFlag,
    Unsignalled,
}

const INVALID_POSTS: [(InvalidPost, &str); 10] = [
    (InvalidPost::NullEp, "a_null_ep"),
    (InvalidPost::OtherKind, "a_handle_of_another_kind"),
    (InvalidPost::FreedEp, "a_freed_ep"),
    (InvalidPost::Negative, "a_negative_count"),
    (InvalidPost::OneTooMany, "a_segment_too_many"),
    (InvalidPost::NoList, "a_null_list"),
    (InvalidPost::NoRemote, "a_null_remote_triplet"),
    (InvalidPost::UnknownFlag, "an_unknown_flag"),
    (InvalidPost::HighestFlag, "the_highest_flag"),
    (InvalidPost::Unsignalled, "an_unsignalled_flag_that_the_ep_does_not_allow"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.4": receives_can_be_posted_up_to_the_requested_and_the_reported_depth,
        "spec/events 12.28": receives_posted_until_refused_remain_posted_after_a_reset,
        "spec/events 4.4": queue_slot_of_a_receive_is_free_at_its_completion => pair(client_sends_one_by_one, server_refills_its_queue),
        "spec/events 4.4": requests_posted_up_to_the_requested_depth_all_complete => pair(client_fills_its_queue, server_empties_it),
        "spec/events 4.4": queue_slots_of_suppressed_requests_are_freed_without_an_event => pair(client_fills_by_suppressed, server_empties_it),
        "spec/events 4.4": post_with_a_depth_of_one_request_succeeds_repeatedly => pair(client_posts_one_at_a_time, server_empties_one_by_one),
        "spec/events 4.4": post_at_full_depth_on_evds_of_that_length_loses_no_completion => pair(client_runs_at_full_depth, server_serves_full_depth),
    ];
    for (invalid, words) in INVALID_POSTS {
        let all_ops = Op::ALL.into_iter().filter(|op| invalid != InvalidPost::NoRemote || Op::RDMA.contains(op));
        all.extend(all_ops.map(|op| {
            let case = local(move |ctx| is_refused(ctx, op, invalid));
            case.named(format!("post_{}_refuses_{words}", op.word())).proves("spec/events 4.8")
        }));
    }
    for op in Op::REQUESTS {
        let case = local(move |ctx| is_refused_when_full(ctx, op));
        all.push(
            case.named(format!("post_{}_is_refused_when_the_request_queue_is_full", op.word()))
                .proves("spec/events 4.8"),
        );
    }
    for op in Op::ALL {
        let case = local(move |ctx| takes_its_own_limit(ctx, op));
        all.push(case.named(format!("post_{}_has_its_own_limit_of_segments", op.word())).proves("spec/events 4.4"));
    }
    all
}

/// Checks that a post with this invalid parameter is refused, and that the connection still works.
fn is_refused(ctx: &Ctx, op: Op, invalid: InvalidPost) {
    let (client, server) = ctx.loopback();
    let (memory, target) = (client.memory(500), server.memory(500));
    let remote = target.target(0, 500);
    let mut list = vec![memory.segment(0, 100); 5];
    let good = client.ep.h();
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    let last = if Op::RDMA.contains(&op) { DAT_INVALID_ARG6 } else { DAT_INVALID_ARG5 };
    let list = list.as_mut_ptr();
    let (code, kind, subtype) = match invalid {
        InvalidPost::NullEp => {
            (op.post_raw(DAT_HANDLE_NULL, (1, list), 1, &remote, flags), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)
        }
        InvalidPost::OtherKind => {
            (op.post_raw(client.request.h(), (1, list), 1, &remote, flags), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)
        }
        InvalidPost::FreedEp => {
            let dead = sibling(&client, &Setup::default());
            let handle = client.ia.ep(&client.pz, &dead.recv, &dead.request, &dead.events).free();
            (op.post_raw(handle, (1, list), 1, &remote, flags), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)
        }
        InvalidPost::Negative => {
            (op.post_raw(good, (-1, list), 1, &remote, flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2)
        }
        InvalidPost::OneTooMany => {
            (op.post_raw(good, (5, list), 1, &remote, flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2)
        }
        InvalidPost::NoList => {
            (op.post_raw(good, (1, null_mut()), 1, &remote, flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3)
        }
        InvalidPost::NoRemote => {
            (op.post_raw(good, (1, list), 1, null_mut(), flags), DAT_INVALID_PARAMETER, DAT_INVALID_ARG5)
        }
        InvalidPost::UnknownFlag => {
            let flag = if is_2_0() { 0x40 } else { 0x20 }; // 2.0 defines one more flag
            (op.post_raw(good, (1, list), 1, &remote, flag), DAT_INVALID_PARAMETER, last)
        }
        InvalidPost::HighestFlag => (op.post_raw(good, (1, list), 1, &remote, 1 << 31), DAT_INVALID_PARAMETER, last),
        InvalidPost::Unsignalled => {
            let flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
            (op.post_raw(good, (1, list), 1, &remote, flags), DAT_INVALID_PARAMETER, last)
        }
    };
    refused(code, kind, subtype);
    // The refused call posted nothing: these are the first posts to complete.
    post_empty_recv(&client, 2);
    post_empty_recv(&server, 3);
    post_empty_send(&client, 4);
    post_empty_send(&server, 5);
    for (evd, id) in [(&client.recv, 2), (&server.recv, 3), (&client.request, 4), (&server.request, 5)] {
        expect_dto(evd.h(), id, DAT_DTO_SUCCESS, 0);
    }
}

/// Posts operations that cannot complete, until the queue is full. Returns their number.
#[track_caller]
fn fill(conn: &Conn, op: Op, remote: &DAT_RMR_TRIPLET) -> u64 {
    for id in 0.. {
        let code = op.post_raw(conn.ep.h(), (0, null_mut()), id, remote, DAT_COMPLETION_DEFAULT_FLAG);
        if code != DAT_SUCCESS {
            refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
            return id;
        }
    }
    unreachable!("one of the posts exceeds the queue")
}

fn is_refused_when_full(ctx: &Ctx, op: Op) {
    let (client, server) = ctx.loopback();
    let (memory, target) = (client.memory(100), server.memory(100));
    // The peer has no receive for the sends.
    let sends = fill(&client, Op::Send, &NOWHERE);
    assert!(sends >= 16, "the queue holds {sends} requests, wanted at least 16");
    let code = op.call(&client, 99, &[memory.segment(0, 100)], &target.target(0, 100), DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    // The receive queue is separate, so a receive is still accepted.
    post_empty_recv(&client, 1);
    for id in 0..sends {
        post_empty_recv(&server, id);
        expect_dto(server.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    (0..sends).for_each(|id| _ = expect_dto(client.request.h(), id, DAT_DTO_SUCCESS, 0));
    op.post(&client, 100, &[memory.segment(0, 100)], &target.target(0, 100));
    if op == Op::Send {
        server.post_recv(1, memory.segment(0, 100));
    } else {
        expect_dto(client.request.h(), 100, DAT_DTO_SUCCESS, 100);
    }
}

/// The four kinds of post get limits of 1, 2, 3 and 4 segments. Each kind accepts as many segments as its limit, and
/// no more.
fn takes_its_own_limit(ctx: &Ctx, op: Op) {
    let setup = setup(|attr| {
        attr.max_recv_iov = 1;
        attr.max_request_iov = 2;
        attr.max_rdma_read_iov = 3;
        attr.max_rdma_write_iov = 4;
    });
    let (client, server) = ctx.loopback_with(&ctx.ia(), &setup);
    let limit = match op {
        Op::Recv => 1,
        Op::Send => 2,
        Op::Read => 3,
        Op::Write => 4,
    };
    let (memory, target) = (client.memory(500), server.memory(500));
    let remote = target.target(0, 500);
    let segment = memory.segment(0, 100);
    let code = op.call(&client, 1, &vec![segment; limit + 1], &remote, DAT_COMPLETION_DEFAULT_FLAG);
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    match op {
        Op::Send => server.post_recv(2, target.segment(0, 500)),
        Op::Recv => server.post_send(2, target.segment(0, 100)),
        Op::Read | Op::Write => {}
    }
    op.post(&client, 1, &vec![segment; limit], &remote);
    expect_dto(op.evd(&client), 1, DAT_DTO_SUCCESS, limit as u64 * 100);
}

fn receives_can_be_posted_up_to_the_requested_and_the_reported_depth(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let posted = fill(&conn, Op::Recv, &NOWHERE);
    let reported = conn.ep.param().ep_attr.max_recv_dtos;
    assert!(
        posted >= 16 && posted >= reported as u64,
        "{posted} receives fit, the query returns a depth of {reported}, 16 were requested"
    );
    let (mut allocated, mut span) = (-1, -1);
    if dat_ep_recv_query(conn.ep.h(), &mut allocated, &mut span) == DAT_SUCCESS {
        assert_eq!((allocated as u64, span as u64), (posted, posted));
    }
    expect_nothing(conn.recv.h());
}

fn receives_posted_until_refused_remain_posted_after_a_reset(ctx: &Ctx) {
    let ia = ctx.ia();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    let posted = fill(&client, Op::Recv, &NOWHERE);
    ok(dat_ep_reset(client.ep.h()));
    client.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    expect_nothing(client.recv.h());
    // The receives are still posted, so the connection can use them.
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    established(&client, &server);
    for id in 0..posted {
        post_empty_send(&server, id);
        expect_dto(client.recv.h(), id, DAT_DTO_SUCCESS, 0);
        expect_dto(server.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
}

fn client_sends_one_by_one(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    for id in 0..40 {
        post_empty_send(&conn, id);
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
        ctx.meet();
    }
}

fn server_refills_its_queue(ctx: &Ctx) {
    let conn = ctx.connect();
    // Fills the queue before the first message arrives: otherwise consumed receives would let further posts succeed.
    let posted = fill(&conn, Op::Recv, &NOWHERE);
    ctx.meet();
    for id in 0..40 {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
        post_empty_recv(&conn, posted + id);
        ctx.meet();
    }
}

fn client_fills_its_queue(ctx: &Ctx) {
    let conn = ctx.connect();
    let posted = fill(&conn, Op::Send, &NOWHERE);
    assert!(posted >= 16, "the queue holds {posted} requests, wanted at least 16");
    ctx.send_number(posted);
    (0..posted).for_each(|id| _ = expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0));
    ctx.meet();
}

fn server_empties_it(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..ctx.receive_number() {
        post_empty_recv(&conn, id);
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn client_fills_by_suppressed(ctx: &Ctx) {
    let conn = ctx.connect();
    let post = || Op::Send.call(&conn, 1, &[], &NOWHERE, DAT_COMPLETION_SUPPRESS_FLAG);
    let mut posted = 0;
    let code = loop {
        match post() {
            DAT_SUCCESS => posted += 1,
            code => break code,
        }
    };
    refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
    ctx.send_number(posted + 1);
    // No completion is dequeued: the slot is free as soon as the send has completed.
    until(|| post() == DAT_SUCCESS);
    // The last send must be acknowledged before the peer, which has received it, ends: otherwise the send would be
    // flushed.
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn client_posts_one_at_a_time(ctx: &Ctx) {
    let conn = ctx.connect_with(&setup(|attr| attr.max_request_dtos = 1));
    ctx.send_number(20);
    for id in 0..20 {
        post_empty_send(&conn, id);
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

fn server_empties_one_by_one(ctx: &Ctx) {
    server_empties_it(ctx);
}

/// Depth of the EP's queues, and length of the EVDs, in the case with full queues.
const DEPTH: u64 = 64;

fn full_depth() -> Setup {
    let mut setup = setup(|attr| {
        attr.max_request_dtos = DEPTH as DAT_COUNT;
        attr.max_recv_dtos = DEPTH as DAT_COUNT;
    });
    setup.qlen = DEPTH as DAT_COUNT;
    setup
}

fn client_runs_at_full_depth(ctx: &Ctx) {
    let conn = ctx.connect_with(&full_depth());
    let memory = conn.memory(1000);
    ctx.meet();
    for round in 0..10 {
        (0..DEPTH).for_each(|id| conn.post_send(round * DEPTH + id, memory.segment(0, 1000)));
        (0..DEPTH).for_each(|id| _ = expect_dto(conn.request.h(), round * DEPTH + id, DAT_DTO_SUCCESS, 1000));
    }
    ctx.meet();
}

fn server_serves_full_depth(ctx: &Ctx) {
    let conn = ctx.connect_with(&full_depth());
    let memory = conn.memory(1000);
    (0..DEPTH).for_each(|id| conn.post_recv(id, memory.segment(0, 1000)));
    ctx.meet();
    for id in 0..10 * DEPTH {
        expect_dto(conn.recv.h(), id, DAT_DTO_SUCCESS, 1000);
        conn.post_recv(id + DEPTH, memory.segment(0, 1000));
    }
    ctx.meet();
}
