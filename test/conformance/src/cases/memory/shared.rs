//! Memory that processes share under a name (spec/events 8.4): accepted and refused registrations, access by a peer,
//! and the release of the name when processes are killed.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::make::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 8.4": shared_memory_can_be_registered_three_times_in_one_process,
        "spec/events 8.4": shared_lmrs_have_their_own_privileges_and_zones,
        "spec/events 8.4": shared_name_with_another_length_is_refused,
        "spec/events 8.4": shared_name_can_have_another_length_after_the_last_free,
        "spec/events 8.4": shared_names_that_differ_in_the_last_of_40_bytes_are_distinct,
        "spec/events 8.4": shared_registration_refuses_private_memory,
        "spec/events 8.4": shared_registration_refuses_a_null_name,
        "spec/events 8.4": shared_registration_copies_the_name_and_is_returned_by_the_query,
        "spec/events 8.4": shared_registration_of_an_anonymous_shared_mapping_succeeds,
        "spec/events 8.4": shared_memory_can_be_registered_by_both_peers_under_one_name => pair(client_writes_into_shared, server_sees_in_its_own_map),
        "spec/events 8.4": shared_registration_of_another_length_than_the_peers_is_refused => pair(client_joins_too_long, server_joins_first),
        "spec/events 8.4": shared_name_is_released_by_killed_processes => pair(client_joins_after_death, server_joins_and_dies).only_two(),
        "spec/events 8.4": shared_name_stays_registered_when_another_process_is_killed => pair(client_stays_when_one_dies, server_joins_and_dies).only_two(),
    ]
}

const LENGTH: usize = 8192;

/// A name that contains the connection qualifier, so that cases which run at the same time use different names.
fn name(ctx: &Ctx, number: u8) -> [u8; 40] {
    let mut name = [0; 40];
    name[..8].copy_from_slice(&ctx.qual(0).to_le_bytes());
    name[39] = number;
    name
}

/// A file of this run, mapped.
fn map(ctx: &Ctx) -> os::Map {
    os::Map::of_file(&ctx.file("shared"), LENGTH)
}

fn shared_memory_can_be_registered_three_times_in_one_process(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let (one, other) = (map(ctx), map(ctx));
    let mut name = name(ctx, 1);
    let first = LmrArgs::shared(one.pointer(), LENGTH, &mut name).make(&ia, &pz);
    let second = LmrArgs::shared(one.pointer(), LENGTH, &mut name).make(&ia, &pz);
    let third = LmrArgs::shared(other.pointer(), LENGTH, &mut name).make(&ia, &pz);
    assert!(first.lmr.h() != second.lmr.h() && first.lmr_context != second.lmr_context);
    assert!(third.address == other.pointer().addr() as u64 && first.address != third.address);
    // The free of the other registrations leaves the second usable.
    first.lmr.free();
    third.lmr.free();
    assert_eq!(second.param().length, LENGTH as u64);
}

fn shared_lmrs_have_their_own_privileges_and_zones(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, other) = (ia.pz(), ia.pz());
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let all = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&ia, &pz);
    let local = LmrArgs::shared(map.pointer(), LENGTH, &mut name).with(LOCAL).make(&ia, &other);
    assert!(all.rmr_context != 0 && local.rmr_context == 0);
    assert_eq!((all.param().mem_priv, local.param().mem_priv), (DAT_MEM_PRIV_ALL_FLAG, LOCAL));
    assert!(local.param().pz_handle == other.h());
}

fn shared_name_with_another_length_is_refused(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let _first = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&ia, &pz);
    for length in [1, 4096, LENGTH - 1] {
        let wanted = LmrArgs::shared(map.pointer(), length, &mut name);
        wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    }
}

fn shared_name_can_have_another_length_after_the_last_free(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    for length in [LENGTH, 4096, 100, LENGTH] {
        let wanted = LmrArgs::shared(map.pointer(), length, &mut name);
        drop([wanted.make(&ia, &pz), wanted.make(&ia, &pz)]);
    }
}

fn shared_names_that_differ_in_the_last_of_40_bytes_are_distinct(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    // Names that differ only after a NUL, or in one byte, are different, so their lengths may differ.
    let mut made = Vec::new();
    for number in 1..=5 {
        let mut name = name(ctx, number);
        made.push(LmrArgs::shared(map.pointer(), 1000 * usize::from(number), &mut name).make(&ia, &pz));
    }
    assert!(made.iter().zip(1..).all(|(made, number)| made.length == 1000 * number));
}

fn shared_registration_refuses_private_memory(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let private = os::Map::private(LENGTH, true);
    let mut name = name(ctx, 1);
    let wanted = LmrArgs::shared(private.pointer(), LENGTH, &mut name);
    wanted.is_refused(&ia, &pz, DAT_INVALID_STATE, DAT_NO_SUBTYPE);
}

fn shared_registration_refuses_a_null_name(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let shared = DAT_SHARED_MEMORY { virtual_address: map.pointer(), shared_memory_id: std::ptr::null_mut() };
    let region = DAT_REGION_DESCRIPTION { for_shared_memory: shared };
    let wanted = LmrArgs { region, kind: DAT_MEM_TYPE_SHARED_VIRTUAL, ..LmrArgs::memory(map.pointer(), LENGTH) };
    wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn shared_registration_copies_the_name_and_is_returned_by_the_query(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let made = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&ia, &pz);
    name = [0xff; 40];
    let param = made.param();
    assert_eq!((param.mem_type, param.length), (DAT_MEM_TYPE_SHARED_VIRTUAL, LENGTH as u64));
    assert!(region_address(param.region_desc) == map.pointer(), "the query returns another region");
    assert_eq!((param.registered_address, param.registered_size), (made.address, LENGTH as u64));
    // The library copied the 40 bytes, so the changed name denotes other memory.
    let other = LmrArgs::shared(map.pointer(), 100, &mut name).make(&ia, &pz);
    assert_eq!(other.length, 100);
}

fn shared_registration_of_an_anonymous_shared_mapping_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = os::Map::shared(LENGTH);
    let mut name = name(ctx, 1);
    let made = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&ia, &pz);
    assert_eq!((made.address, made.length), (map.pointer().addr() as u64, LENGTH as u64));
}

fn client_writes_into_shared(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let made = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&conn.ia, &conn.pz);
    let memory = conn.memory(LENGTH);
    memory.fill(7);
    ctx.meet();
    // The write goes through the peer's registration into memory that this process shares.
    conn.post_write(1, memory.segment(0, LENGTH), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, LENGTH as u64);
    assert_eq!(map.take(0, LENGTH), vec![7; LENGTH]);
    ctx.meet();
    drop(made);
}

fn server_sees_in_its_own_map(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let made = LmrArgs::shared(map.pointer(), LENGTH, &mut name).make(&conn.ia, &conn.pz);
    ctx.meet();
    ctx.send_target(made.target(0, LENGTH as u64));
    ctx.meet();
    assert_eq!(map.take(0, LENGTH), vec![7; LENGTH]);
}

fn client_joins_too_long(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    ctx.meet();
    let wanted = LmrArgs::shared(map.pointer(), LENGTH, &mut name);
    wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    let made = LmrArgs::shared(map.pointer(), 4096, &mut name).make(&ia, &pz);
    ctx.meet();
    // The partner has deregistered the memory; this process has not.
    ctx.meet();
    let wanted = LmrArgs::shared(map.pointer(), LENGTH, &mut name);
    wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    made.lmr.free();
    drop(wanted.make(&ia, &pz));
}

fn server_joins_first(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let made = LmrArgs::shared(map.pointer(), 4096, &mut name).make(&ia, &pz);
    ctx.meet();
    ctx.meet();
    drop(made);
    ctx.meet();
}

fn server_joins_and_dies(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let _made = LmrArgs::shared(map.pointer(), 4096, &mut name).make(&ia, &pz);
    ctx.send("joined");
    assert_eq!(ctx.receive(), b"die");
    ctx.die();
}

fn client_joins_after_death(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    let wanted = LmrArgs::shared(map.pointer(), LENGTH, &mut name);
    assert_eq!(ctx.receive(), b"joined");
    wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    ctx.send("die");
    // After the process is killed, its shared memory can be registered with another length.
    let mut lmr = DAT_HANDLE_NULL;
    until(|| wanted.call(ia.h(), pz.h(), &mut lmr) == DAT_SUCCESS);
    drop(Lmr::own(lmr));
}

fn client_stays_when_one_dies(ctx: &Ctx) {
    let ia = ctx.ia();
    let pz = ia.pz();
    let map = map(ctx);
    let mut name = name(ctx, 1);
    assert_eq!(ctx.receive(), b"joined");
    let made = LmrArgs::shared(map.pointer(), 4096, &mut name).make(&ia, &pz);
    ctx.send("die");
    // The library may not have noticed the killed process yet, so the check is repeated.
    for _ in 0..50 {
        let wanted = LmrArgs::shared(map.pointer(), LENGTH, &mut name);
        wanted.is_refused(&ia, &pz, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    }
    made.lmr.free();
}
