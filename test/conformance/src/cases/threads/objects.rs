//! Objects created, queried, changed and freed by several threads at the same time.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::*;

use super::{kind_in, run_threads};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 11": threads_creating_and_freeing_their_own_objects_succeed,
        "spec/events 11": threads_creating_and_freeing_shared_receive_queues_succeed => local(threads_creating_and_freeing_shared_receive_queues_succeed)
            .needs(Need::Srq),
        "spec/events 11": threads_querying_and_changing_objects_of_all_kinds_keep_them_valid
            => local(threads_querying_and_changing_objects_of_all_kinds_keep_them_valid).limit(40),
        "spec/events 11": threads_opening_and_closing_adapters_succeed => local(threads_opening_and_closing_adapters_succeed).limit(40),
        "spec/events 11": threads_listing_providers_and_calling_strerror_succeed,
        "spec/events 11": threads_querying_an_ep_during_changes_get_consistent_attributes,
        "spec/events 11": threads_setting_one_context_never_mix_two_values,
        "spec/events 11": threads_requesting_one_qualifier_succeed_once,
        "spec/events 11": threads_calling_psp_create_any_get_distinct_qualifiers,
        "spec/events 11": threads_freeing_a_pz_and_creating_an_ep_with_it_never_both_succeed,
        "spec/events 11": threads_freeing_an_evd_and_creating_an_ep_with_it_never_both_succeed,
        "spec/events 11": threads_resizing_an_evd_lose_no_event,
        "spec/events 11": threads_registering_overlapping_memory_succeed,
        "spec/events 11": threads_setting_the_pz_of_one_ep_keep_its_reference_counts_correct,
    ];
    for kind in ObjectKind::ALL {
        let free = local(move |ctx| one_of_many_frees(ctx, kind)).limit(40);
        all.push(free.named(format!("threads_freeing_one_{}_succeed_once", kind.word())).proves("spec/events 11"));
        let race = local(move |ctx| freed_under_use(ctx, kind)).limit(40);
        all.push(
            race.named(format!("threads_using_one_{}_during_its_free_get_invalid_handle", kind.word()))
                .proves("spec/events 11"),
        );
    }
    all
}

fn threads_creating_and_freeing_their_own_objects_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    run_threads(4, |thread| {
        for _ in 0..25 {
            let pz = ia.pz();
            let cno = ia.cno();
            let evd = ia.evd_on(&cno, 8, DAT_EVD_DEFAULT_FLAG);
            let memory = ia.memory(&pz, 100);
            let rmr = (ia.attr().max_rmrs > 0).then(|| pz.rmr());
            let ep = ia.ep(&pz, &evd, &evd, &evd);
            let psp = ia.psp(ctx.qual(thread as u64), &evd);
            assert!(ep.param().pz_handle == pz.h());
            drop((psp, ep, rmr, memory));
        }
    });
}

fn threads_creating_and_freeing_shared_receive_queues_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let evd = ia.evd(8, DAT_EVD_DEFAULT_FLAG);
    run_threads(4, |_| {
        for _ in 0..25 {
            let srq = ia.srq(&pz, 8, 1);
            let ep = ia.ep_on(&srq, &pz, &evd, &evd, &evd);
            ok(dat_srq_post_recv(srq.h(), 0, null_mut(), cookie(0)));
            drop((ep, srq));
        }
    });
}

/// Four threads query and change one object of each kind, and make calls that are refused.
fn threads_querying_and_changing_objects_of_all_kinds_keep_them_valid(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    let address = objects.ia.address();
    run_threads(4, |thread| {
        for round in 0..40 {
            for kind in ObjectKind::ALL.into_iter().filter(|kind| objects.has(*kind)) {
                assert_eq!(filled(|out| dat_get_handle_type(objects.handle(kind), out)), kind.number());
            }
            query_all(&objects);
            change_all(&objects, thread + round);
            let qos = DAT_QOS_BEST_EFFORT;
            // The timeout 0 is invalid, so the connect is refused and the EP stays UNCONNECTED.
            let refused = dat_ep_connect(objects.ep.h(), address.pointer(), 1, 0, 0, null_mut(), qos, 0);
            kind_in(refused, &[DAT_INVALID_PARAMETER]);
            kind_in(dat_ep_post_send(objects.ep.h(), 0, null_mut(), cookie(0), 0), &[DAT_INVALID_STATE]);
        }
    });
    drain(objects.evd.h());
    objects.expect_alive();
}

fn query_all(objects: &OneOfEach) {
    objects.ia.attr();
    objects.ia.provider_attr();
    ok(dat_pz_query(objects.pz.h(), DAT_PZ_FIELD_ALL, &mut zeroed()));
    ok(dat_cno_query(objects.cno.h(), DAT_CNO_FIELD_ALL, &mut zeroed()));
    ok(dat_psp_query(objects.psp.h(), DAT_PSP_FIELD_ALL, &mut zeroed()));
    ok(dat_rsp_query(objects.rsp.h(), DAT_RSP_FIELD_ALL, &mut zeroed()));
    ok(dat_lmr_query(objects.memory.h(), DAT_LMR_FIELD_ALL, &mut zeroed()));
    ok(dat_cr_query(objects.handle(ObjectKind::Cr), DAT_CR_FIELD_ALL, &mut zeroed()));
    if let Some(rmr) = &objects.rmr {
        ok(dat_rmr_query(rmr.h(), DAT_RMR_FIELD_ALL, &mut zeroed()));
    }
    if let Some(srq) = &objects.srq {
        ok(dat_srq_query(srq.h(), DAT_SRQ_FIELD_ALL, &mut zeroed()));
    }
    objects.evd.param();
    objects.ep.param();
    objects.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
    ok(dat_ep_recv_query(objects.ep.h(), &mut 0, &mut 0));
}

fn change_all(objects: &OneOfEach, number: usize) {
    let evd = objects.evd.h();
    kind_in(dat_evd_post_se(evd, &software_event(number)), &[DAT_SUCCESS, DAT_QUEUE_FULL]);
    kind_in(dat_evd_dequeue(evd, &mut zeroed()), &[DAT_SUCCESS, DAT_QUEUE_EMPTY, DAT_INVALID_STATE]);
    let waited = dat_evd_wait(evd, 0, 1, &mut zeroed(), &mut 0);
    kind_in(waited, &[DAT_SUCCESS, DAT_TIMEOUT_EXPIRED, DAT_INVALID_STATE]);
    ok(dat_evd_disable(evd));
    ok(dat_evd_enable(evd));
    ok(dat_evd_set_unwaitable(evd));
    ok(dat_evd_clear_unwaitable(evd));
    ok(dat_evd_modify_cno(evd, if number.is_multiple_of(2) { objects.cno.h() } else { DAT_HANDLE_NULL }));
    kind_in(dat_evd_resize(evd, 8 + (number % 8) as DAT_COUNT), &[DAT_SUCCESS, DAT_INVALID_STATE]);
    ok(dat_cno_modify_agent(objects.cno.h(), NO_AGENT));
    kind_in(dat_cno_wait(objects.cno.h(), 0, &mut null_mut()), &[DAT_SUCCESS, DAT_QUEUE_EMPTY]);
    ok(dat_ep_set_watermark(objects.ep.h(), -1, -1));
    ok(dat_ep_reset(objects.ep.h()));
    ok(dat_ep_modify(objects.ep.h(), DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &objects.ep.param()));
    ok(dat_lmr_sync_rdma_read(objects.ia.h(), &objects.memory.segment(0, 8), 1));
    ok(dat_lmr_sync_rdma_write(objects.ia.h(), &objects.memory.segment(0, 8), 1));
    if let Some(srq) = &objects.srq {
        ok(dat_srq_resize(srq.h(), 8 + (number % 8) as DAT_COUNT));
        ok(dat_srq_set_lw(srq.h(), 0));
    }
}

fn threads_opening_and_closing_adapters_succeed(ctx: &Ctx) {
    run_threads(4, |thread| {
        for round in 0..6 {
            let ia = Ia::open(&ctx.provider, 4);
            let pz = ia.pz();
            if (thread + round) % 2 == 0 {
                pz.free();
                ia.close();
            } else {
                pz.leak();
                ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
            }
        }
    });
}

fn threads_listing_providers_and_calling_strerror_succeed(ctx: &Ctx) {
    let _ia = ctx.ia();
    run_threads(4, |_| {
        for code in 0..200 {
            let mut entries = vec![zeroed::<DAT_PROVIDER_INFO>(); 8];
            let mut list: Vec<_> = entries.iter_mut().map(std::ptr::from_mut).collect();
            let mut count = 0;
            ok(dat_registry_list_providers(8, &mut count, list.as_mut_ptr()));
            assert!(count >= 1, "no adapter is listed");
            let (mut major, mut minor) = (std::ptr::null(), std::ptr::null());
            dat_strerror(code << 16, &mut major, &mut minor);
            assert!(!major.is_null() && !minor.is_null());
        }
    });
}

/// A change of two attributes is visible completely or not at all.
fn threads_querying_an_ep_during_changes_get_consistent_attributes(ctx: &Ctx) {
    let conn = Conn::alone(ctx);
    let ep = &conn.ep;
    let mask = DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS | DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE;
    let set = |number: DAT_COUNT| {
        let mut param = ep.param();
        param.ep_attr.max_request_dtos = number;
        param.ep_attr.max_message_size = 1000 * number as DAT_VLEN;
        ok(dat_ep_modify(ep.h(), mask, &param));
    };
    set(1);
    let done = AtomicBool::new(false);
    run_threads(3, |thread| {
        if thread == 0 {
            (0..100).for_each(|round| set(1 + round % 20));
            done.store(true, Ordering::Release);
        }
        while !done.load(Ordering::Acquire) {
            let attr = ep.param().ep_attr;
            assert_eq!(attr.max_message_size, 1000 * attr.max_request_dtos as DAT_VLEN);
        }
    });
}

fn threads_setting_one_context_never_mix_two_values(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    // Both 32-bit halves are equal, so a value mixed from two writes would be noticed.
    let number = |n: u64| n << 32 | n;
    ok(dat_set_consumer_context(pz.h(), cookie(number(7))));
    run_threads(4, |thread| {
        for round in 0..500 {
            ok(dat_set_consumer_context(pz.h(), cookie(number(thread as u64 * 1000 + round))));
            let bits = context_bits(filled(|out| dat_get_consumer_context(pz.h(), out)));
            assert_eq!(bits >> 32, bits & 0xffff_ffff);
        }
    });
}

fn threads_requesting_one_qualifier_succeed_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    for _ in 0..20 {
        let made = Mutex::new(Vec::new());
        run_threads(4, |_| {
            let mut psp = DAT_HANDLE_NULL;
            let code = dat_psp_create(ia.h(), ctx.qual(0), requests.h(), DAT_PSP_CONSUMER_FLAG, &mut psp);
            kind_in(code, &[DAT_SUCCESS, DAT_CONN_QUAL_IN_USE]);
            if code == DAT_SUCCESS {
                made.lock().expect("no thread has panicked").push(Psp::own(psp));
            }
        });
        assert_eq!(made.into_inner().expect("no thread has panicked").len(), 1, "not exactly one thread succeeded");
    }
}

fn threads_calling_psp_create_any_get_distinct_qualifiers(ctx: &Ctx) {
    let ia = ctx.ia();
    let requests = ia.evd(8, DAT_EVD_CR_FLAG);
    let seen = Mutex::new(HashSet::new());
    let made = Mutex::new(Vec::new());
    run_threads(4, |_| {
        for _ in 0..10 {
            let mut qual = 0;
            let create = |out| dat_psp_create_any(ia.h(), &mut qual, requests.h(), DAT_PSP_CONSUMER_FLAG, out);
            let psp = Psp::own(filled(create));
            assert!(
                seen.lock().expect("no thread has panicked").insert(qual),
                "the qualifier {qual} was returned twice"
            );
            made.lock().expect("no thread has panicked").push(psp);
        }
    });
}

/// One thread frees an object while another creates an EP with it. Returns whether the object was freed, and the
/// created EP.
fn frees_while_an_ep_is_made(
    free: impl Fn() -> DAT_RETURN + Sync,
    make: impl Fn(*mut DAT_EP_HANDLE) -> DAT_RETURN + Sync,
) -> (bool, Option<Ep>) {
    let made = Mutex::new(None);
    let freed = AtomicBool::new(false);
    run_threads(2, |thread| {
        if thread == 0 {
            let code = free();
            kind_in(code, &[DAT_SUCCESS, DAT_INVALID_STATE]);
            freed.store(code == DAT_SUCCESS, Ordering::Release);
        } else {
            let mut ep = DAT_HANDLE_NULL;
            let code = make(&mut ep);
            kind_in(code, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
            *made.lock().expect("no thread has panicked") = (code == DAT_SUCCESS).then(|| Ep::own(ep));
        }
    });
    (freed.load(Ordering::Acquire), made.into_inner().expect("no thread has panicked"))
}

fn threads_freeing_a_pz_and_creating_an_ep_with_it_never_both_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(8, DAT_EVD_DEFAULT_FLAG);
    for _ in 0..60 {
        let pz = Handle::of(ia.pz().leak());
        let make = |ep| dat_ep_create(ia.h(), pz.h(), evd.h(), evd.h(), evd.h(), &ep_attr(), ep);
        let (is_freed, ep) = frees_while_an_ep_is_made(|| dat_pz_free(pz.h()), make);
        assert!(ep.is_some() != is_freed, "not exactly one of the two calls succeeded");
        if let Some(ep) = ep {
            ep.free();
            ok(dat_pz_free(pz.h()));
        }
    }
}

fn threads_freeing_an_evd_and_creating_an_ep_with_it_never_both_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    for _ in 0..60 {
        let evd = Handle::of(ia.evd(8, DAT_EVD_DEFAULT_FLAG).leak());
        let make = |ep| dat_ep_create(ia.h(), pz.h(), evd.h(), evd.h(), evd.h(), &ep_attr(), ep);
        let (is_freed, ep) = frees_while_an_ep_is_made(|| dat_evd_free(evd.h()), make);
        assert!(ep.is_none() || !is_freed, "an EP was created with an object that was freed");
        drop(ep);
        if !is_freed {
            ok(dat_evd_free(evd.h()));
        }
    }
}

fn threads_resizing_an_evd_lose_no_event(ctx: &Ctx) {
    const EVENTS: usize = 2000;
    let ia = ctx.ia();
    let evd = ia.evd(64, DAT_EVD_SOFTWARE_FLAG);
    let taken = AtomicUsize::new(0);
    run_threads(3, |thread| match thread {
        0 => {
            for number in 0..EVENTS {
                let event = software_event(number);
                until(|| {
                    let code = dat_evd_post_se(evd.h(), &event);
                    kind_in(code, &[DAT_SUCCESS, DAT_QUEUE_FULL]);
                    code == DAT_SUCCESS
                });
            }
        }
        1 => {
            for number in 0..EVENTS {
                let mut event = zeroed();
                until(|| dat_evd_dequeue(evd.h(), &mut event) == DAT_SUCCESS);
                assert_eq!(Event(event).software().addr(), number, "an event is out of order or missing");
                taken.store(number + 1, Ordering::Release);
            }
        }
        _ => {
            let mut length = 1;
            until(|| {
                length = length % 100 + 1;
                kind_in(dat_evd_resize(evd.h(), length), &[DAT_SUCCESS, DAT_INVALID_STATE]);
                taken.load(Ordering::Acquire) == EVENTS
            });
        }
    });
    expect_nothing(ia.errors());
}

fn threads_registering_overlapping_memory_succeed(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let buffer = Buffer::new(1 << 16);
    let region = Handle::of(buffer.pointer());
    run_threads(4, |thread| {
        for round in 0..50 {
            let length = (1 << 16) >> ((thread + round) % 8);
            let (mut lmr, mut context, null) = (DAT_HANDLE_NULL, 0, null_mut::<DAT_VLEN>());
            let at = DAT_REGION_DESCRIPTION { for_va: region.h() };
            let (kind, all) = (DAT_MEM_TYPE_VIRTUAL, DAT_MEM_PRIV_ALL_FLAG);
            let (out, no) = (&mut context, null_mut());
            ok(dat_lmr_create(ia.h(), kind, at, length, pz.h(), all, &mut lmr, out, no, null, null));
            ok(dat_lmr_free(lmr));
        }
    });
}

fn threads_setting_the_pz_of_one_ep_keep_its_reference_counts_correct(ctx: &Ctx) {
    let ia = ctx.ia();
    let zones = [ia.pz(), ia.pz()];
    let conn = Conn::on(&ia);
    let ep = &conn.ep;
    run_threads(2, |thread| {
        for _ in 0..50 {
            let mut param = ep.param();
            param.pz_handle = zones[thread].h();
            ok(dat_ep_modify(ep.h(), DAT_EP_FIELD_PZ_HANDLE, &param));
            let seen = Handle::of(ep.param().pz_handle);
            assert!(zones.iter().any(|zone| zone.h() == seen.h()), "the query returned neither of the two PZs");
        }
    });
    // The reference counts are correct: the PZ in use cannot be freed, and both PZs can be freed at the end.
    let own = conn.ep.param().pz_handle;
    refused(dat_pz_free(own), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE);
}

/// Four threads free the same object.
fn one_of_many_frees(ctx: &Ctx, kind: ObjectKind) {
    for _ in 0..4 {
        let objects = OneOfEach::of(ctx);
        if !objects.has(kind) {
            return;
        }
        let object = Handle::of(objects.handle(kind));
        let freed = AtomicUsize::new(0);
        let (ia, _others) = objects.abandon();
        let close = if kind == ObjectKind::Ia { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
        run_threads(4, |_| {
            let code = if kind == ObjectKind::Ia { dat_ia_close(object.h(), close) } else { kind.end(object.h()) };
            kind_in(code, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
            if code == DAT_SUCCESS {
                freed.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(freed.into_inner(), 1, "not exactly one thread freed the object");
        let ia = ia.leak();
        if kind != ObjectKind::Ia {
            ok(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        }
    }
}

/// One thread frees an object that two other threads query and change.
fn freed_under_use(ctx: &Ctx, kind: ObjectKind) {
    for _ in 0..4 {
        let objects = OneOfEach::of(ctx);
        if !objects.has(kind) {
            return;
        }
        let object = Handle::of(objects.handle(kind));
        let (ia, _others) = objects.abandon();
        let turns = AtomicUsize::new(0);
        run_threads(3, |thread| {
            if thread == 0 {
                until(|| turns.load(Ordering::Relaxed) > 20);
                let code = if kind == ObjectKind::Ia {
                    dat_ia_close(object.h(), DAT_CLOSE_ABRUPT_FLAG)
                } else {
                    kind.end(object.h())
                };
                ok(code);
                return;
            }
            until(|| {
                turns.fetch_add(1, Ordering::Relaxed);
                is_gone(kind, object.h())
            });
        });
        let ia = ia.leak();
        if kind != ObjectKind::Ia {
            ok(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        }
    }
}

/// Queries an object of this kind, and sets its consumer context. Returns whether the handle is no longer valid.
fn is_gone(kind: ObjectKind, object: DAT_HANDLE) -> bool {
    let code = match kind {
        ObjectKind::Cr => dat_cr_query(object, DAT_CR_FIELD_ALL, &mut zeroed()),
        ObjectKind::Ep => dat_ep_query(object, DAT_EP_FIELD_ALL, &mut zeroed()),
        ObjectKind::Evd => dat_evd_query(object, DAT_EVD_FIELD_ALL, &mut zeroed()),
        ObjectKind::Ia => dat_ia_query(object, null_mut(), DAT_IA_FIELD_ALL, &mut zeroed(), 0, null_mut()),
        ObjectKind::Lmr => dat_lmr_query(object, DAT_LMR_FIELD_ALL, &mut zeroed()),
        ObjectKind::Psp => dat_psp_query(object, DAT_PSP_FIELD_ALL, &mut zeroed()),
        ObjectKind::Pz => dat_pz_query(object, DAT_PZ_FIELD_ALL, &mut zeroed()),
        ObjectKind::Rmr => dat_rmr_query(object, DAT_RMR_FIELD_ALL, &mut zeroed()),
        ObjectKind::Rsp => dat_rsp_query(object, DAT_RSP_FIELD_ALL, &mut zeroed()),
        ObjectKind::Cno => dat_cno_query(object, DAT_CNO_FIELD_ALL, &mut zeroed()),
        ObjectKind::Srq => dat_srq_query(object, DAT_SRQ_FIELD_ALL, &mut zeroed()),
    };
    kind_in(code, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
    let other = dat_set_consumer_context(object, cookie(1));
    kind_in(other, &[DAT_SUCCESS, DAT_INVALID_HANDLE]);
    code != DAT_SUCCESS
}
