//! Functions with each kind of invalid handle.
//!
//! The table of parameters and calls is in `params`; this file has the invalid values and the expected codes.
//! `ia::open_async` tests the async EVD parameter of `dat_ia_openv`.
#![forbid(unsafe_code)]

use std::ptr::{null_mut, without_provenance_mut};

use crate::kit::*;

use super::params::{HandleParam, handle_params};

/// Body of a case that tests one handle parameter.
type Group = fn(&Ctx, &HandleParam);

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases!["spec/endpoints 5.5": handles_ep_dup_connect_refuses_a_handle_that_is_no_ep];
    for (at, place) in handle_params().into_iter().enumerate() {
        let groups: [(&str, Group); 4] = [
            ("small_numbers", refuses_small_numbers),
            ("invalid_addresses", refuses_addresses),
            ("freed_handles", refuses_freed_handles),
            ("handles_of_other_kinds", refuses_other_kinds),
        ];
        for (word, group) in groups {
            if !place.has_group(word) {
                continue;
            }
            let case = local(move |ctx| group(ctx, &handle_params()[at]));
            all.push(place.kinds().fold(case.named(place.case_name(word)).proves("spec/events 0.1"), with_need));
        }
    }
    all
}

/// Marks a case that needs an optional feature.
fn with_need(case: Case, kind: ObjectKind) -> Case {
    match kind {
        ObjectKind::Srq => case.needs(Need::Srq),
        ObjectKind::Rmr => case.needs(Need::Rmr),
        _ => case,
    }
}

/// Null and small integers, aligned or not. The number of the open IA is left out.
fn refuses_small_numbers(ctx: &Ctx, place: &HandleParam) {
    let objects = OneOfEach::of(ctx);
    for number in [0, 1, 2, 3, 4, 7, 8, 0x18, 0x1001, 0xfff8, 0xffff, 0x1_0001] {
        let handle = without_provenance_mut(number);
        let is_allowed = number == 0 && place.is_optional;
        if handle != objects.ia.h() && !is_allowed {
            ctx.step(format!("{number:#x}"));
            place.refuses(&objects, handle, &[place.libdat_subtype]);
        }
    }
    finish(&objects);
}

/// Addresses: unmapped, of the case's memory and code, and close to a live handle.
fn refuses_addresses(ctx: &Ctx, place: &HandleParam) {
    let objects = OneOfEach::of(ctx);
    let nowhere = [0x7_0000_0000, 1 << 46, 1 << 63, 0xffff_8000_0000_0000, usize::MAX & !7, usize::MAX];
    for address in nowhere {
        ctx.step(format!("{address:#x}"));
        place.refuses(&objects, without_provenance_mut(address), &[place.libdat_subtype]);
    }
    let variable = objects.ep.h();
    let memory = Buffer::new(4096);
    // Memory that resembles an object: the first 8 bytes are the address of a table, or their own address.
    let forged = Buffer::new(4096);
    forged.put(0, &bytes_at(objects.evd.h(), 8));
    let circle = Buffer::new(4096);
    circle.put(0, &circle.address(0).to_ne_bytes());
    let own = [
        ("a handle's variable", std::ptr::from_ref(&variable).cast_mut().cast()),
        ("memory of zeros", memory.pointer()),
        ("a forged object", forged.pointer()),
        ("a word that points at itself", circle.pointer()),
        ("code", (finish as fn(&OneOfEach) as *const ()).cast_mut().cast()),
    ];
    for (what, address) in own {
        ctx.step(what);
        place.refuses(&objects, address, &[place.libdat_subtype]);
    }
    let live = objects.handle(place.wants.unwrap_or(ObjectKind::Evd)).addr().max(objects.evd.h().addr());
    for (offset, answers) in [
        (1, [place.libdat_subtype, place.libdat_subtype]),
        (8, [place.libdat_subtype, place.libdat_subtype]),
        (1 << 18, place.both()),
    ] {
        ctx.step(format!("a live handle + {offset}"));
        place.refuses(&objects, without_provenance_mut(live + offset), &answers);
    }
    finish(&objects);
}

/// A freed object of the required kind, and an object whose IA was closed abruptly.
fn refuses_freed_handles(ctx: &Ctx, place: &HandleParam) {
    let objects = OneOfEach::of(ctx);
    let kind = place.wants.unwrap_or(ObjectKind::Evd);
    ctx.step("freed");
    let dead = objects.dead(ctx, kind);
    place.refuses(&objects, dead, &[place.dead(kind)]);
    ctx.step("closed with its IA");
    let (ia, gone) = OneOfEach::within(ctx, &ctx.ia(), 3).abandon();
    let ia = ia.leak();
    ok(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    let dead = gone.iter().find(|(one, _)| *one == kind).map_or(ia, |(_, handle)| handle.h());
    place.refuses(&objects, dead, &[place.dead(kind)]);
    finish(&objects);
}

/// Live objects of all other kinds. An IA is passed by its number and by its address.
fn refuses_other_kinds(ctx: &Ctx, place: &HandleParam) {
    let objects = OneOfEach::of(ctx);
    for kind in ObjectKind::ALL.into_iter().filter(|kind| place.wants != Some(*kind) && objects.has(*kind)) {
        ctx.step(kind.word());
        let answer = if kind == ObjectKind::Ia { place.libdat_subtype } else { place.provider_subtype };
        place.refuses(&objects, objects.handle(kind), &[answer]);
    }
    if place.wants != Some(ObjectKind::Ia) {
        ctx.step("an IA's address");
        let address = filled(|out| dats_get_ia_handle(objects.ia.h(), out));
        place.refuses(&objects, address, &[place.provider_subtype]);
    }
    finish(&objects);
}

/// The call checks the EP to duplicate first, so that EP must be connected.
fn handles_ep_dup_connect_refuses_a_handle_that_is_no_ep(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let objects = OneOfEach::within(ctx, &client.ia, 1);
    let dup = |handle| dat_ep_dup_connect(handle, client.ep.h(), 1000, 0, null_mut(), DAT_QOS_BEST_EFFORT);
    let dead = ctx.ia().close();
    let dead_ep = client.ia.ep(&client.pz, &client.recv, &client.request, &client.events).free();
    let live = ObjectKind::ALL.into_iter().filter(|kind| *kind != ObjectKind::Ep && objects.has(*kind));
    for handle in live.map(|kind| objects.handle(kind)).chain([dead, dead_ep, DAT_HANDLE_NULL]) {
        refused(dup(handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
    }
    client.ep.expect_state(DAT_EP_STATE_CONNECTED);
    finish(&objects);
}

/// Checks that the objects still exist and no event was queued.
fn finish(objects: &OneOfEach) {
    objects.expect_alive();
    for evd in [&objects.recv, &objects.request, &objects.events, &objects.requests, &objects.evd] {
        expect_nothing(evd.h());
    }
    expect_nothing(objects.ia.errors());
}
