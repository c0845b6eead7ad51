//! `dat_ia_close`: refused arguments; graceful closes, which are refused while objects exist; abrupt closes with any
//! objects; and the effects on peers and other IAs.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/registry 6.1": ia_close_twice_returns_invalid_handle,
        "spec/registry 6.1": ia_close_unknown_flags_return_invalid_arg2,
        "spec/registry 6.1": ia_close_unknown_flags_leave_the_adapter_unchanged,
        "spec/registry 6.1": ia_close_graceful_of_an_adapter_without_objects_succeeds,
        "spec/registry 6.1": ia_close_abrupt_of_an_adapter_without_objects_succeeds,
        "spec/registry 6.2": ia_close_graceful_succeeds_with_a_modified_async_evd,
        "spec/registry 6.2": ia_close_graceful_is_refused_while_objects_of_all_kinds_exist,
        "spec/registry 6.2": ia_close_graceful_that_is_refused_keeps_a_pending_request_queryable,
        "spec/registry 6.2": ia_close_graceful_is_refused_while_a_connection_exists,
        "spec/consumers 14": ia_close_that_is_refused_leaves_a_connection_working,
        "spec/registry 6.3": ia_close_abrupt_invalidates_all_handles,
        "spec/registry 6.3": ia_close_abrupt_succeeds_after_freeing_some_objects,
        "spec/registry 6.3": ia_close_abrupt_with_posted_work_succeeds,
        "spec/registry 6.3": ia_close_abrupt_succeeds_after_a_refused_graceful_close,
        "spec/registry 6.3": ia_close_abrupt_keeps_other_adapters_usable,
        "spec/registry 6.3": ia_close_abrupt_invalidates_an_evd_of_another_adapters_ep,
        "spec/registry 6.3": ia_close_abrupt_frees_the_connection_qualifiers_of_the_adapter,
        "spec/registry 6.3": ia_close_abrupt_succeeds_while_another_thread_uses_the_adapter,
        "spec/registry 6.3": ia_close_abrupt_disconnects_the_peer => pair(client_closes, server_gets_the_end),
        "spec/registry 6.3": ia_close_abrupt_rejects_pending_requests => pair(client_asks, server_closes_undecided),
    ];
    for kind in ObjectKind::ALL.into_iter().filter(|kind| ![ObjectKind::Ia, ObjectKind::Cr].contains(kind)) {
        let case = local(move |ctx| is_refused_with(ctx, kind));
        let case = match kind {
            ObjectKind::Srq => case.needs(Need::Srq),
            ObjectKind::Rmr => case.needs(Need::Rmr),
            _ => case,
        };
        let name = format!("ia_close_graceful_is_refused_while_one_{}_exists", kind.word());
        all.push(case.named(name).proves("spec/registry 6.2"));
    }
    all
}

#[track_caller]
fn in_use(ia: &Ia) {
    let code = dat_ia_close(ia.h(), DAT_CLOSE_GRACEFUL_FLAG);
    refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE);
}

fn ia_close_twice_returns_invalid_handle(ctx: &Ctx) {
    let ia = ctx.ia().close();
    for flag in [DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG, 7] {
        refused(dat_ia_close(ia, flag), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}

fn ia_close_unknown_flags_return_invalid_arg2(ctx: &Ctx) {
    let ia = ctx.ia();
    for flag in [2, 3, 0x80, u32::MAX] {
        refused(dat_ia_close(ia.h(), flag), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn ia_close_unknown_flags_leave_the_adapter_unchanged(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    refused(dat_ia_close(objects.ia.h(), 2), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    objects.expect_alive();
    let (ia, _) = objects.abandon();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
}

fn ia_close_graceful_of_an_adapter_without_objects_succeeds(ctx: &Ctx) {
    ctx.ia().close();
}

fn ia_close_abrupt_of_an_adapter_without_objects_succeeds(ctx: &Ctx) {
    ok(dat_ia_close(ctx.ia().leak(), DAT_CLOSE_ABRUPT_FLAG));
}

fn ia_close_graceful_succeeds_with_a_modified_async_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_evd_disable(ia.errors()));
    ok(dat_evd_set_unwaitable(ia.errors()));
    ok(dat_evd_resize(ia.errors(), 100));
    ia.close();
}

/// A graceful close is refused while an object of this kind, or an object that it uses, exists. The close succeeds
/// after all of them are freed.
fn is_refused_with(ctx: &Ctx, kind: ObjectKind) {
    let ia = ctx.ia();
    let evd = |flags| ia.evd(8, flags);
    // Freed in this order, in which no object uses an earlier one.
    let mut left: Vec<(ObjectKind, DAT_HANDLE)> = match kind {
        ObjectKind::Pz | ObjectKind::Evd | ObjectKind::Cno => Vec::new(),
        ObjectKind::Psp => vec![(ObjectKind::Evd, evd(DAT_EVD_CR_FLAG).leak())],
        _ => vec![(ObjectKind::Pz, ia.pz().leak())],
    };
    let base = left.first().map_or(null_mut(), |(_, handle)| *handle);
    let own = match kind {
        ObjectKind::Pz => ia.pz().leak(),
        ObjectKind::Evd => evd(DAT_EVD_DEFAULT_FLAG).leak(),
        ObjectKind::Cno => ia.cno().leak(),
        ObjectKind::Psp => filled(|out| dat_psp_create(ia.h(), ctx.qual(0), base, DAT_PSP_CONSUMER_FLAG, out)),
        ObjectKind::Rmr => filled(|out| dat_rmr_create(base, out)),
        ObjectKind::Srq => {
            let mut attr = DAT_SRQ_ATTR { max_recv_dtos: 4, max_recv_iov: 1, low_watermark: 0 };
            filled(|out| dat_srq_create(ia.h(), base, &mut attr, out))
        }
        ObjectKind::Ep => filled(|out| {
            let none = DAT_HANDLE_NULL;
            dat_ep_create(ia.h(), base, none, none, none, std::ptr::null(), out)
        }),
        ObjectKind::Lmr => {
            let pz = Pz::own(base);
            let memory = ia.memory(&pz, 64);
            pz.leak();
            let handle = memory.h();
            std::mem::forget(memory);
            handle
        }
        ObjectKind::Rsp => {
            let conn = Conn::on(&ia);
            let requests = evd(DAT_EVD_CR_FLAG);
            let rsp = ia.rsp(ctx.qual(0), &conn.ep, &requests).leak();
            let Conn { ep, recv, request, events, pz, ia: _ } = conn;
            left.push((ObjectKind::Ep, ep.leak()));
            left.extend([recv, request, events, requests].map(|evd| (ObjectKind::Evd, evd.leak())));
            left.push((ObjectKind::Pz, pz.leak()));
            rsp
        }
        ObjectKind::Ia | ObjectKind::Cr => unreachable!("this kind has a separate case"),
    };
    left.insert(0, (kind, own));
    while !left.is_empty() {
        in_use(&ia);
        for (kind, handle) in &left {
            let number = filled(|out| dat_get_handle_type(*handle, out));
            assert_eq!(number, kind.number(), "a refused close changed the object");
        }
        let (kind, handle) = left.remove(0);
        ok(kind.end(handle));
    }
    ia.close();
}

fn ia_close_graceful_is_refused_while_objects_of_all_kinds_exist(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    in_use(&objects.ia);
    objects.expect_alive();
}

fn ia_close_graceful_that_is_refused_keeps_a_pending_request_queryable(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    in_use(&objects.ia);
    let param: DAT_CR_PARAM = filled(|out| dat_cr_query(objects.handle(ObjectKind::Cr), DAT_CR_FIELD_ALL, out));
    assert!(!param.remote_ia_address_ptr.is_null(), "remote_ia_address_ptr is null after a refused close");
}

fn ia_close_graceful_is_refused_while_a_connection_exists(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    in_use(&client.ia);
    client.ep.expect_state(DAT_EP_STATE_CONNECTED);
    server.ep.expect_state(DAT_EP_STATE_CONNECTED);
}

fn ia_close_that_is_refused_leaves_a_connection_working(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let (here, there) = (client.memory(64), server.memory(64));
    for round in 1..5 {
        in_use(&client.ia);
        server.post_recv(round, there.segment(0, 8));
        client.post_send(10 + round, here.segment(0, 8));
        expect_dto(server.recv.h(), round, DAT_DTO_SUCCESS, 8);
        expect_dto(client.request.h(), 10 + round, DAT_DTO_SUCCESS, 8);
    }
}

/// Checks that all these handles are invalid.
#[track_caller]
fn expect_dead(handles: &[(ObjectKind, Handle)]) {
    for (kind, handle) in handles {
        let code = untouched(|out| dat_get_handle_type(handle.h(), out));
        let wanted = error(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1);
        assert!(code == wanted, "the {} is still valid after its IA was closed", kind.word());
        assert_eq!(kind_of(kind.end(handle.h())), error(DAT_INVALID_HANDLE, 0));
    }
}

fn ia_close_abrupt_invalidates_all_handles(ctx: &Ctx) {
    let (ia, handles) = OneOfEach::of(ctx).abandon();
    let errors = Handle::of(ia.errors());
    let ia = ia.leak();
    ok(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    expect_dead(&handles);
    expect_dead(&[(ObjectKind::Evd, errors), (ObjectKind::Ia, Handle::of(ia))]);
}

/// Repeats a habit of programs: they free remembered handles in any order, ignore the return codes, and close.
fn ia_close_abrupt_succeeds_after_freeing_some_objects(ctx: &Ctx) {
    for turn in 0..6 {
        let (ia, mut handles) = OneOfEach::of(ctx).abandon();
        let places = handles.len();
        handles.rotate_left(turn * places / 6);
        for (kind, handle) in &handles[..places / 2] {
            kind.end(handle.h());
        }
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
        expect_dead(&handles);
    }
}

fn ia_close_abrupt_with_posted_work_succeeds(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let (here, there) = (client.memory(64), server.memory(64));
    for id in 0..8 {
        server.post_recv(id, there.segment(0, 8));
        client.post_recv(id, here.segment(0, 8));
        // The peer has no receive for the last messages.
        client.post_send(id, here.segment(8, 8));
        client.post_send(id, here.segment(8, 8));
    }
    let ia = client.ia.clone();
    let eps = [(ObjectKind::Ep, Handle::of(client.ep.h())), (ObjectKind::Ep, Handle::of(server.ep.h()))];
    std::mem::forget((client, server, here, there));
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    expect_dead(&eps);
}

fn ia_close_abrupt_succeeds_after_a_refused_graceful_close(ctx: &Ctx) {
    let (ia, handles) = OneOfEach::of(ctx).abandon();
    in_use(&ia);
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    expect_dead(&handles);
}

fn ia_close_abrupt_keeps_other_adapters_usable(ctx: &Ctx) {
    let stays = OneOfEach::of(ctx);
    let (ia, handles) = OneOfEach::within(ctx, &ctx.ia(), 3).abandon();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    expect_dead(&handles);
    stays.expect_alive();
    ok(dat_evd_post_se(stays.evd.h(), &software_event(1)));
    assert_eq!(expect_event(stays.evd.h(), SOON).software().addr(), 1);
}

/// An EVD may report events of another adapter's EP. After the close of the EVD's adapter, the EP remains usable
/// without the EVD.
fn ia_close_abrupt_invalidates_an_evd_of_another_adapters_ep(ctx: &Ctx) {
    let (lender, user) = (ctx.ia(), ctx.ia());
    let pz = user.pz();
    let dtos = user.evd(8, DAT_EVD_DTO_FLAG);
    let events = lender.evd(8, DAT_EVD_CONNECTION_FLAG).leak();
    let ep = Ep::own(filled(|out| dat_ep_create(user.h(), pz.h(), dtos.h(), dtos.h(), events, &ep_attr(), out)));
    ok(dat_ia_close(lender.leak(), DAT_CLOSE_ABRUPT_FLAG));
    let code = untouched(|event| dat_evd_dequeue(events, event));
    refused(code, DAT_INVALID_HANDLE, DAT_NO_SUBTYPE);
    ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    ep.free();
}

fn ia_close_abrupt_frees_the_connection_qualifiers_of_the_adapter(ctx: &Ctx) {
    for _ in 0..5 {
        let (ia, _) = OneOfEach::of(ctx).abandon();
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    }
}

fn ia_close_abrupt_succeeds_while_another_thread_uses_the_adapter(ctx: &Ctx) {
    for _ in 0..10 {
        let ia = ctx.ia();
        let evd = Handle::of(ia.evd(8, DAT_EVD_SOFTWARE_FLAG).leak());
        let adapter = Handle::of(ia.h());
        let caller = blocked(move || {
            let mut calls = 0;
            while dat_evd_post_se(evd.h(), &software_event(1)) != error(DAT_INVALID_HANDLE, DAT_NO_SUBTYPE) {
                let mut pz = DAT_HANDLE_NULL;
                let _ = dat_pz_create(adapter.h(), &mut pz);
                calls += 1;
            }
            calls
        });
        ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
        caller.join();
    }
}

fn client_closes(ctx: &Ctx) {
    let conn = ctx.connect();
    ctx.meet();
    let ia = conn.ia.clone();
    std::mem::forget(conn);
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    ctx.meet();
}

fn server_gets_the_end(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(64);
    conn.post_recv(1, memory.segment(0, 8));
    ctx.meet();
    conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    expect_dto(conn.recv.h(), 1, DAT_DTO_ERR_FLUSHED, 0);
    conn.ep.expect_state(DAT_EP_STATE_DISCONNECTED);
    ctx.meet();
}

fn client_asks(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    conn.connect(&ctx.receive_address(), ctx.qual(0));
    let event = expect_event(conn.events.h(), SOON);
    // The specification allows either error here.
    let number = event.number();
    let refusals = [DAT_CONNECTION_EVENT_NON_PEER_REJECTED, DAT_CONNECTION_EVENT_PEER_REJECTED];
    assert!(refusals.contains(&number), "the event is {}, wanted a rejection", number_name(number));
    ctx.meet();
}

fn server_closes_undecided(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    ia.psp(ctx.qual(0), &requests).leak();
    ctx.send_address(&ia);
    expect_cr(requests.h());
    requests.leak();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    ctx.meet();
}
