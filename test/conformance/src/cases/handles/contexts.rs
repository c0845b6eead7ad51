//! Consumer contexts, handle types and double frees, for objects of every kind.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/registry 8": context_of_an_ia_is_not_inherited_by_its_objects,
        "spec/registry 8": context_of_a_new_object_at_a_reused_address_is_null,
        "spec/registry 8": context_set_concurrently_is_always_one_of_the_set_values,
        "spec/registry 8": context_of_an_ia_is_the_same_by_its_handle_and_provider_pointer,
    ];
    let families: [(&str, &str, Claim); 5] = [
        ("type_of_{}_is_correct", "spec/registry 8", type_is_right),
        (
            "type_and_context_of_{}_without_out_pointer_return_invalid_arg2",
            "spec/registry 8",
            null_out_pointers_are_refused,
        ),
        ("context_of_{}_is_initially_null", "spec/registry 8", begins_as_null),
        ("context_of_{}_is_the_last_one_set", "spec/registry 8", last_set_context_is_returned),
        ("handles_{}_freed_twice_returns_invalid_handle", "spec/events 0.1", ends_once),
    ];
    for kind in ObjectKind::ALL {
        for (name, section, claim) in families {
            let case = local(move |ctx| claim(ctx, kind)).named(name.replace("{}", kind.word())).proves(section);
            all.push(match kind {
                ObjectKind::Srq => case.needs(Need::Srq),
                ObjectKind::Rmr => case.needs(Need::Rmr),
                _ => case,
            });
        }
    }
    all
}

/// A check that every kind of object must pass.
type Claim = fn(&Ctx, ObjectKind);

fn context(handle: DAT_HANDLE) -> u64 {
    context_bits(filled(|out| dat_get_consumer_context(handle, out)))
}

fn type_is_right(ctx: &Ctx, kind: ObjectKind) {
    let objects = OneOfEach::of(ctx);
    assert_eq!(filled::<DAT_HANDLE_TYPE>(|out| dat_get_handle_type(objects.handle(kind), out)), kind.number());
}

fn null_out_pointers_are_refused(ctx: &Ctx, kind: ObjectKind) {
    let objects = OneOfEach::of(ctx);
    let handle = objects.handle(kind);
    refused(dat_get_handle_type(handle, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    refused(dat_get_consumer_context(handle, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}

fn begins_as_null(ctx: &Ctx, kind: ObjectKind) {
    let objects = OneOfEach::of(ctx);
    assert_eq!(context(objects.handle(kind)), 0);
}

fn last_set_context_is_returned(ctx: &Ctx, kind: ObjectKind) {
    let objects = OneOfEach::of(ctx);
    let handle = objects.handle(kind);
    for number in [1, 0x1234_5678_9abc_def0, u64::MAX, 0, 1 << 63] {
        ok(dat_set_consumer_context(handle, cookie(number)));
        assert_eq!(context(handle), number);
        assert_eq!(context(handle), number, "reading the context changed it");
    }
    // Sets the union's pointer member.
    let pointer = objects.memory.pointer();
    ok(dat_set_consumer_context(handle, DAT_CONTEXT { as_ptr: pointer }));
    assert_eq!(context(handle), pointer.addr() as u64);
    let others = ObjectKind::ALL.into_iter().filter(|other| *other != kind && objects.has(*other));
    for other in others {
        assert_eq!(context(objects.handle(other)), 0, "the context of the {} was changed too", other.word());
    }
}

fn ends_once(ctx: &Ctx, kind: ObjectKind) {
    let objects = OneOfEach::of(ctx);
    let dead = objects.dead(ctx, kind);
    let code = kind.end(dead);
    assert_eq!(kind_of(code), error(DAT_INVALID_HANDLE, 0));
    let code = untouched(|out| dat_get_handle_type(dead, out));
    refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1);
    refused(dat_set_consumer_context(dead, cookie(1)), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1);
    objects.expect_alive();
}

fn context_of_an_ia_is_not_inherited_by_its_objects(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_set_consumer_context(ia.h(), cookie(7)));
    assert_eq!(context(ia.pz().h()), 0);
    assert_eq!(context(ia.evd(8, DAT_EVD_DTO_FLAG).h()), 0);
    assert_eq!(context(ia.errors()), 0);
    assert_eq!(context(ia.h()), 7);
}

fn context_of_a_new_object_at_a_reused_address_is_null(ctx: &Ctx) {
    let ia = ctx.ia();
    // dapl reuses the address of a freed object after 4096 other objects were freed.
    for _ in 0..5000 {
        let pz = ia.pz();
        assert_eq!(context(pz.h()), 0);
        ok(dat_set_consumer_context(pz.h(), cookie(9)));
    }
}

fn context_set_concurrently_is_always_one_of_the_set_values(ctx: &Ctx) {
    let ia = ctx.ia();
    let handle = Handle::of(ia.h());
    let values = [0, u64::MAX, 0x1111_1111_2222_2222];
    std::thread::scope(|scope| {
        for value in values {
            scope.spawn(move || (0..2000).for_each(|_| ok(dat_set_consumer_context(handle.h(), cookie(value)))));
        }
        for _ in 0..2000 {
            let seen = context(handle.h());
            assert!(values.contains(&seen), "the context {seen:#x} was never set");
        }
    });
}

fn context_of_an_ia_is_the_same_by_its_handle_and_provider_pointer(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer: DAT_HANDLE = filled(|out| dats_get_ia_handle(ia.h(), out));
    ok(dat_set_consumer_context(pointer, cookie(3)));
    assert_eq!(context(ia.h()), 3);
    ok(dat_set_consumer_context(ia.h(), cookie(4)));
    assert_eq!(context(pointer), 4);
}
