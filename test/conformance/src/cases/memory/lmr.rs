//! LMRs as objects (spec/events 8.1 to 8.3): registrations and their errors, contexts, privileges, queries,
//! `dat_lmr_sync_*`.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ptr::{null_mut, without_provenance_mut};

use crate::kit::*;

use super::make::*;

/// A memory type from another platform's headers: strongly ordered memory.
const SO_VIRTUAL: DAT_MEM_TYPE = 3;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/consumers 19": lmr_create_accepts_null_for_optional_outputs,
        "spec/events 8.1": lmr_create_returns_the_requested_range,
        "spec/events 8.1": lmr_of_one_byte_can_be_registered,
        "spec/events 8.1": lmr_create_accepts_the_strongly_ordered_type_for_ordinary_memory,
        "spec/events 8.1": lmr_of_an_lmr_has_the_range_of_its_source,
        "spec/events 8.1": lmr_of_an_lmr_of_an_lmr_outlives_its_sources,
        "spec/events 8.1": lmr_create_refuses_an_invalid_lmr_handle,
        "spec/events 8.1": lmr_create_refuses_a_bad_ia,
        "spec/events 8.1": lmr_create_refuses_a_bad_pz,
        "spec/events 8.1": lmr_create_refuses_a_null_handle_pointer,
        "spec/events 8.1": lmr_create_refuses_unknown_memory_types,
        "spec/events 8.1": lmr_create_refuses_unknown_privileges,
        "spec/events 8.1": lmr_create_refuses_a_zero_length,
        "spec/events 8.1": lmr_create_refuses_a_null_address,
        "spec/events 8.1": lmr_create_refuses_a_range_that_wraps,
        "spec/events 8.1": lmr_create_refuses_a_length_above_the_adapters_limit,
        "spec/events 8.1": lmr_of_unmapped_memory_is_refused,
        "spec/events 14.7": lmr_contexts_are_never_zero,
        "spec/events 8.1": lmr_contexts_are_distinct_in_2000_registrations,
        "spec/consumers 19": lmr_contexts_of_1000_overlapping_lmrs_are_distinct,
        "spec/consumers 19": lmr_of_whole_pages_covers_an_lmr_inside_them,
        "spec/consumers 19": lmr_20000_successive_registrations_succeed,
        "spec/consumers 19": lmr_successive_registrations_by_four_threads_succeed,
        "spec/events 8.2": lmr_query_returns_the_parameters_of_the_registration,
        "spec/events 8.2": lmr_query_of_an_lmr_made_from_an_lmr_returns_its_source,
        "spec/events 8.2": lmr_query_of_one_mask_bit_writes_its_field,
        "spec/events 8.2": lmr_query_refuses_a_bad_mask_and_a_null_record,
        "spec/events 8.2": lmr_query_and_free_refuse_handles_null_freed_or_of_another_kind,
    ];
    for privileges in 0..16 {
        // Maps the loop counter to the four privilege bits 0, 1, 4 and 5.
        let privileges = (privileges & 3) | (privileges & 12) << 2;
        let case = local(move |ctx| has_privileges(ctx, privileges));
        all.push(
            case.named(format!("lmr_with_privileges_{privileges:02x}_returns_them_in_the_query"))
                .proves("spec/events 8.1"),
        );
    }
    for (word, sync) in [("read", dat_lmr_sync_rdma_read as Sync), ("write", dat_lmr_sync_rdma_write as Sync)] {
        let case = |what: &str, body: fn(&Ctx, Sync)| {
            local(move |ctx| body(ctx, sync)).named(format!("lmr_sync_rdma_{word}_{what}")).proves("spec/events 8.3")
        };
        all.push(case("accepts_ranges_in_several_lmrs_and_zones", syncs));
        all.push(case("refuses_a_bad_ia", sync_refuses_a_bad_ia));
        all.push(case("refuses_ranges_that_are_not_registered", sync_refuses_ranges));
    }
    all
}

type Sync = fn(DAT_IA_HANDLE, *const DAT_LMR_TRIPLET, DAT_VLEN) -> DAT_RETURN;

fn ia_pz_and_buffer(ctx: &Ctx) -> (Ia, Pz, Buffer) {
    let ia = ctx.ia();
    let pz = ia.pz();
    (ia, pz, Buffer::new(10_000))
}

fn lmr_create_accepts_null_for_optional_outputs(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let wanted = LmrArgs::memory(buffer.pointer(), 10_000);
    let lmr = Lmr::own(filled(|out| wanted.call(ia.h(), pz.h(), out)));
    let param: DAT_LMR_PARAM = filled(|out| dat_lmr_query(lmr.h(), DAT_LMR_FIELD_ALL, out));
    assert!(param.lmr_context != 0 && param.rmr_context != 0);
}

fn lmr_create_returns_the_requested_range(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    for (at, length) in [(0, 10_000), (1, 1), (4095, 2), (17, 9000)] {
        let pointer = buffer.pointer().wrapping_byte_add(at);
        let made = LmrArgs::memory(pointer, length).make(&ia, &pz);
        assert_eq!((made.address, made.length), (buffer.address(at), length as u64));
    }
}

fn lmr_of_one_byte_can_be_registered(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 1).make(&ia, &pz);
    assert_eq!(made.length, 1);
}

fn lmr_create_accepts_the_strongly_ordered_type_for_ordinary_memory(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs { kind: SO_VIRTUAL, ..LmrArgs::memory(buffer.pointer(), 10_000) }.make(&ia, &pz);
    assert_eq!((made.address, made.length), (buffer.address(0), 10_000));
}

fn lmr_of_an_lmr_has_the_range_of_its_source(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let source = LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz);
    let other_pz = ia.pz();
    let made = LmrArgs::lmr(source.lmr.h()).with(LOCAL).make(&ia, &other_pz);
    assert_eq!((made.address, made.length), (source.address, source.length));
    assert!(made.lmr_context != source.lmr_context && made.lmr.h() != source.lmr.h());
    assert_eq!(made.rmr_context, 0, "an LMR without remote privileges has an RMR context");
}

fn lmr_of_an_lmr_of_an_lmr_outlives_its_sources(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let first = LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz);
    let second = LmrArgs::lmr(first.lmr.h()).make(&ia, &pz);
    let third = LmrArgs::lmr(second.lmr.h()).make(&ia, &pz);
    // Two registrations of the same memory are independent.
    first.lmr.free();
    second.lmr.free();
    assert_eq!((third.address, third.length), (buffer.address(0), 10_000));
    assert_eq!(third.param().length, 10_000);
}

fn lmr_create_refuses_an_invalid_lmr_handle(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let dead = LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz).lmr.free();
    for bad in [DAT_HANDLE_NULL, pz.h(), dead] {
        LmrArgs::lmr(bad).is_refused(&ia, &pz, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
    }
}

fn lmr_create_refuses_a_bad_ia(ctx: &Ctx) {
    let (_ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let wanted = LmrArgs::memory(buffer.pointer(), 10_000);
    for bad in [DAT_HANDLE_NULL, pz.h(), ctx.ia().close()] {
        let code = untouched(|out| wanted.call(bad, pz.h(), out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}

fn lmr_create_refuses_a_bad_pz(ctx: &Ctx) {
    let (ia, _pz, buffer) = ia_pz_and_buffer(ctx);
    let wanted = LmrArgs::memory(buffer.pointer(), 10_000);
    for bad in [DAT_HANDLE_NULL, ia.h(), ia.pz().free()] {
        let code = untouched(|out| wanted.call(ia.h(), bad, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
    }
}

fn lmr_create_refuses_a_null_handle_pointer(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let code = LmrArgs::memory(buffer.pointer(), 10_000).call(ia.h(), pz.h(), null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG7);
}

fn lmr_create_refuses_unknown_memory_types(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    for kind in [4, 7, 0x8000_0000, u32::MAX] {
        let wanted = LmrArgs { kind: kind as DAT_MEM_TYPE, ..LmrArgs::memory(buffer.pointer(), 10_000) };
        wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
}

fn lmr_create_refuses_unknown_privileges(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let atomic = if is_2_0() { 0x100 } else { v2::DAT_IB_MEM_PRIV_REMOTE_ATOMIC };
    for bits in [0x04, 0x08, atomic, 0x80, 0x8000_0000] {
        let wanted = LmrArgs::memory(buffer.pointer(), 10_000).with(DAT_MEM_PRIV_ALL_FLAG | bits);
        wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
    }
}

fn lmr_create_refuses_a_zero_length(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let mut name = [7; 40];
    for wanted in [LmrArgs::memory(buffer.pointer(), 0), LmrArgs::shared(buffer.pointer(), 0, &mut name)] {
        wanted.is_refused(&ia, &pz, DAT_LENGTH_ERROR, DAT_NO_SUBTYPE);
    }
}

fn lmr_create_refuses_a_null_address(ctx: &Ctx) {
    let (ia, pz, _buffer) = ia_pz_and_buffer(ctx);
    LmrArgs::memory(null_mut(), 100).is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn lmr_create_refuses_a_range_that_wraps(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let wraps = [
        LmrArgs { length: u64::MAX, ..LmrArgs::memory(buffer.pointer(), 0) },
        LmrArgs { length: 0u64.wrapping_sub(buffer.address(0)), ..LmrArgs::memory(buffer.pointer(), 0) },
        LmrArgs::memory(without_provenance_mut(usize::MAX - 99), 101),
    ];
    for wanted in wraps {
        let code = untouched(|out| wanted.call(ia.h(), pz.h(), out));
        one_of(code, &[DAT_INVALID_ARG3, DAT_INVALID_ARG4].map(|arg| error(DAT_INVALID_PARAMETER, arg)));
    }
}

fn lmr_create_refuses_a_length_above_the_adapters_limit(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let most = ia.attr().max_lmr_block_size;
    if most == u64::MAX {
        ctx.unsupported("a limit on the length of a registration");
    }
    let wanted = LmrArgs { length: most + 1, ..LmrArgs::memory(buffer.pointer(), 0) };
    let code = untouched(|out| wanted.call(ia.h(), pz.h(), out));
    one_of(code, &[DAT_INVALID_ARG3, DAT_INVALID_ARG4].map(|arg| error(DAT_INVALID_PARAMETER, arg)));
}

fn lmr_of_unmapped_memory_is_refused(ctx: &Ctx) {
    let (ia, pz, _buffer) = ia_pz_and_buffer(ctx);
    let map = os::Map::private(8192, true);
    let wanted = LmrArgs::memory(map.pointer(), 8192);
    drop(map);
    let code = untouched(|out| {
        let code = wanted.call(ia.h(), pz.h(), out);
        if code == DAT_SUCCESS {
            ctx.unsupported("registrations that check whether their memory is mapped");
        }
        code
    });
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn lmr_contexts_are_never_zero(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let all: Vec<CreatedLmr> = (0..300).map(|_| LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz)).collect();
    assert!(all.iter().all(|made| made.lmr_context != 0 && made.rmr_context != 0));
}

fn lmr_contexts_are_distinct_in_2000_registrations(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let (mut local, mut remote) = (HashSet::new(), HashSet::new());
    for n in 0..2000 {
        let made = LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz);
        assert!(
            local.insert(made.lmr_context),
            "the lmr_context {:#x} was returned again by registration {n}",
            made.lmr_context
        );
        assert!(
            remote.insert(made.rmr_context),
            "the rmr_context {:#x} was returned again by registration {n}",
            made.rmr_context
        );
    }
}

fn lmr_contexts_of_1000_overlapping_lmrs_are_distinct(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let one = |n: usize| LmrArgs::memory(buffer.pointer().wrapping_byte_add(n % 100), 5000).make(&ia, &pz);
    let all: Vec<CreatedLmr> = (0..1000).map(one).collect();
    let contexts: HashSet<_> = all.iter().map(|made| made.lmr_context).collect();
    assert_eq!(contexts.len(), 1000);
}

fn lmr_of_whole_pages_covers_an_lmr_inside_them(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    // A program may round a range up to whole pages before it registers the range, because the rest of the last page is
    // mapped too. It holds other data.
    let map = os::Map::private(8192, true);
    let made = LmrArgs::memory(map.pointer(), 8192).make(&ia, &pz);
    let inner = LmrArgs::memory(map.pointer().wrapping_byte_add(100), 5000).make(&ia, &pz);
    assert!(made.address <= inner.address && made.address + made.length >= inner.address + inner.length);
}

fn lmr_20000_successive_registrations_succeed(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    for _ in 0..20_000 {
        LmrArgs::memory(buffer.pointer(), 10_000).make(&ia, &pz).lmr.free();
    }
}

fn lmr_successive_registrations_by_four_threads_succeed(ctx: &Ctx) {
    let (ia, pz, _buffer) = ia_pz_and_buffer(ctx);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let buffer = Buffer::new(5000);
                for _ in 0..2000 {
                    let made = LmrArgs::memory(buffer.pointer(), 5000).make(&ia, &pz);
                    assert_eq!(made.param().lmr_context, made.lmr_context);
                    made.lmr.free();
                }
            });
        }
    });
}

fn has_privileges(ctx: &Ctx, privileges: DAT_MEM_PRIV_FLAGS) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 10_000).with(privileges).make(&ia, &pz);
    let param = made.param();
    assert_eq!(param.mem_priv, privileges);
    assert_eq!(made.rmr_context != 0, privileges & REMOTE != 0, "the RMR context does not fit the privileges");
    assert_eq!(param.rmr_context, made.rmr_context);
}

fn lmr_query_returns_the_parameters_of_the_registration(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 9999).make(&ia, &pz);
    let param = made.param();
    assert!(param.ia_handle == ia.h() && param.pz_handle == pz.h(), "the query returns another IA or PZ");
    assert_eq!((param.mem_type, param.length), (DAT_MEM_TYPE_VIRTUAL, 9999));
    assert!(region_address(param.region_desc) == buffer.pointer(), "the query returns another region");
    assert_eq!((param.lmr_context, param.rmr_context), (made.lmr_context, made.rmr_context));
    assert_eq!((param.registered_address, param.registered_size), (made.address, made.length));
    assert_eq!(param.mem_priv, DAT_MEM_PRIV_ALL_FLAG);
}

fn lmr_query_of_an_lmr_made_from_an_lmr_returns_its_source(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let source = LmrArgs::memory(buffer.pointer(), 9999).make(&ia, &pz);
    let made = LmrArgs::lmr(source.lmr.h()).make(&ia, &pz);
    let param = made.param();
    assert_eq!((param.mem_type, param.length), (DAT_MEM_TYPE_LMR, 9999));
    assert!(
        region_address(param.region_desc) == source.lmr.h(),
        "the query does not return the source LMR as the region"
    );
    assert_eq!((param.registered_address, param.registered_size), (source.address, 9999));
}

fn lmr_query_of_one_mask_bit_writes_its_field(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 9999).make(&ia, &pz);
    for bit in (0..10).map(|n| 1 << n) {
        let param: DAT_LMR_PARAM = filled(|out| dat_lmr_query(made.lmr.h(), bit, out));
        let is_there = match bit {
            0x001 => param.ia_handle == ia.h(),
            0x002 => param.mem_type == DAT_MEM_TYPE_VIRTUAL,
            0x004 => region_address(param.region_desc) == buffer.pointer(),
            0x008 => param.length == 9999,
            0x010 => param.pz_handle == pz.h(),
            0x020 => param.mem_priv == DAT_MEM_PRIV_ALL_FLAG,
            0x040 => param.lmr_context == made.lmr_context,
            0x080 => param.rmr_context == made.rmr_context,
            0x100 => param.registered_size == made.length,
            _ => param.registered_address == made.address,
        };
        assert!(is_there, "the query returned a wrong value for mask bit {bit:#x}");
    }
}

fn lmr_query_refuses_a_bad_mask_and_a_null_record(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 9999).make(&ia, &pz);
    for mask in [0x400, DAT_LMR_FIELD_ALL | 0x800, 1 << 31] {
        let code = untouched::<DAT_LMR_PARAM>(|out| dat_lmr_query(made.lmr.h(), mask, out));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
    }
    refused(dat_lmr_query(made.lmr.h(), DAT_LMR_FIELD_ALL, null_mut()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn lmr_query_and_free_refuse_handles_null_freed_or_of_another_kind(ctx: &Ctx) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let dead = LmrArgs::memory(buffer.pointer(), 9999).make(&ia, &pz).lmr.free();
    for bad in [DAT_HANDLE_NULL, pz.h(), dead] {
        let code = untouched::<DAT_LMR_PARAM>(|out| dat_lmr_query(bad, DAT_LMR_FIELD_ALL, out));
        refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
        refused(dat_lmr_free(bad), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
    }
}

fn syncs(ctx: &Ctx, sync: Sync) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let other = ia.pz();
    let one = LmrArgs::memory(buffer.pointer(), 5000).make(&ia, &pz);
    let two = LmrArgs::memory(buffer.pointer(), 10_000).with(LOCAL).make(&ia, &other);
    let garbage = DAT_LMR_TRIPLET { lmr_context: 0xdead_beef, pad: 1, virtual_address: 7, segment_length: 0 };
    let list = [one.segment(0, 5000), two.segment(9999, 1), garbage, one.segment(17, 4)];
    ok(sync(ia.h(), list.as_ptr(), 4));
    ok(sync(ia.h(), list.as_ptr(), 1));
    ok(sync(ia.h(), null_mut(), 0));
}

fn sync_refuses_a_bad_ia(ctx: &Ctx, sync: Sync) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 5000).make(&ia, &pz);
    let list = [made.segment(0, 5000)];
    for bad in [DAT_HANDLE_NULL, pz.h()] {
        refused(sync(bad, list.as_ptr(), 1), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
    }
}

fn sync_refuses_ranges(ctx: &Ctx, sync: Sync) {
    let (ia, pz, buffer) = ia_pz_and_buffer(ctx);
    let made = LmrArgs::memory(buffer.pointer(), 5000).make(&ia, &pz);
    let good = made.segment(0, 5000);
    let dead = LmrArgs::memory(buffer.pointer(), 5000).make(&ia, &pz);
    let stale = dead.segment(0, 5000);
    drop(dead);
    let bad = [
        made.segment(1, 5000),
        made.segment(5001, 1),
        DAT_LMR_TRIPLET { virtual_address: made.address - 1, ..good },
        DAT_LMR_TRIPLET { segment_length: u64::MAX, ..good },
        DAT_LMR_TRIPLET { lmr_context: !good.lmr_context, ..good },
        stale,
    ];
    for bad in bad {
        let list = [good, bad];
        refused(sync(ia.h(), list.as_ptr(), 2), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
        ok(sync(ia.h(), list.as_ptr(), 1));
    }
    refused(sync(ia.h(), null_mut(), 1), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
}
