//! Refusals of a bind (spec/events 9.2) by state and by parameter, and parameters that a bind does not check. A refused
//! bind changes nothing.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::ep::scene::EpState::{self, *};
use crate::cases::ep::scene::in_state;
use crate::cases::transfer::ends::*;
use crate::kit::*;

use super::make::*;

/// An error in the parameters of a bind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InvalidBind {
    NullRmr,
    OtherKindOfRmr,
    FreedRmr,
    NullEp,
    OtherKindOfEp,
    FreedEp,
    BothHandles,
    NoTriplet,
    UnknownContext,
    FreedLmr,
    Before,
    Beyond,
    Wraps,
    LmrOfAnotherPz,
    EpOfAnotherPz,
    RmrOfAnotherPz,
    NoLocalWrite,
    UnknownPrivilege,
    UnknownFlag,
    Unsignalled,
    NoContext,
    FullQueue,
}

use InvalidBind::*;

const INVALID_BINDS: [(InvalidBind, &str); 22] = [
    (NullRmr, "a_null_rmr"),
    (OtherKindOfRmr, "a_handle_of_another_kind_as_rmr"),
    (FreedRmr, "a_freed_rmr"),
    (NullEp, "a_null_ep"),
    (OtherKindOfEp, "a_handle_of_another_kind_as_ep"),
    (FreedEp, "a_freed_ep"),
    (BothHandles, "a_null_rmr_before_it_checks_the_ep"),
    (NoTriplet, "a_null_triplet"),
    (UnknownContext, "an_unknown_lmr"),
    (FreedLmr, "a_freed_lmr"),
    (Before, "a_byte_before_the_lmr"),
    (Beyond, "a_byte_beyond_the_lmr"),
    (Wraps, "a_range_that_wraps"),
    (LmrOfAnotherPz, "an_lmr_of_another_pz"),
    (EpOfAnotherPz, "an_ep_of_another_pz"),
    (RmrOfAnotherPz, "an_rmr_of_another_pz"),
    (NoLocalWrite, "remote_write_of_an_lmr_without_local_write"),
    (UnknownPrivilege, "an_unknown_privilege"),
    (UnknownFlag, "an_unknown_flag"),
    (Unsignalled, "an_unsignalled_flag_that_the_ep_does_not_allow"),
    (NoContext, "a_null_context_pointer"),
    (FullQueue, "a_full_request_queue"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 9.2": bind_ignores_local_privileges,
        "spec/events 9.2": bind_needs_no_remote_privilege_of_the_lmr,
        "spec/events 9.2": bind_for_reads_needs_no_local_privilege_of_the_lmr,
        "spec/events 9.2": bind_of_zero_length_ignores_the_lmr_address_and_context_pointer,
        "spec/events 9.2": bind_of_zero_length_refuses_an_rmr_and_an_ep_of_different_pzs,
        "spec/events 4.1": bind_ignores_the_solicited_wait_and_threshold_flags,
    ];
    for (invalid, words) in INVALID_BINDS {
        let case = local(move |ctx| is_refused(ctx, invalid));
        all.push(case.named(format!("bind_refuses_{words}")).proves("spec/events 9.2"));
    }
    for at in EpState::ALL {
        let case = in_state(at, move |_ctx, scene| {
            let memory = scene.own.memory(100);
            binds_in(at, scene.ep(), &scene.own, &memory);
            scene.is_still(at);
        });
        let result = match at {
            Connected => "succeeds",
            Completing => "is_queued",
            Disconnected => "is_flushed",
            _ => "is_refused",
        };
        all.push(case.named(format!("bind_in_state_{}_{result}", at.word())).proves("spec/events 9.2"));
    }
    all.into_iter().map(|case| case.needs(Need::Rmr)).collect()
}

/// A bind is executed in CONNECTED, flushed in DISCONNECTED and queued in COMPLETION_PENDING; all other states refuse
/// it with their subtype.
#[track_caller]
fn binds_in(at: EpState, ep: DAT_EP_HANDLE, conn: &Conn, memory: &Memory) {
    let rmr = conn.pz.rmr();
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    let segment = memory.segment(0, 100);
    let code = untouched(|out| dat_rmr_bind(rmr.h(), &segment, REMOTE, ep, cookie(7), flags, out));
    match at {
        Connected => {
            ok(code);
            expect_rmr(conn.request.h(), rmr.h(), 7, DAT_RMR_BIND_SUCCESS);
        }
        Disconnected => {
            ok(code);
            expect_rmr(conn.request.h(), rmr.h(), 7, DAT_RMR_BIND_FAILURE);
            expect_unbound(&rmr);
        }
        Completing => ok(code),
        _ => {
            refused(code, DAT_INVALID_STATE, at.subtype());
            expect_nothing(conn.request.h());
            expect_unbound(&rmr);
        }
    }
}

fn is_refused(ctx: &Ctx, invalid: InvalidBind) {
    let (client, server) = ctx.loopback();
    let other = Conn::on(&client.ia);
    let mut memory = match invalid {
        LmrOfAnotherPz => other.memory(1000),
        NoLocalWrite => client.ia.memory_with(&client.pz, 1000, DAT_MEM_PRIV_LOCAL_READ_FLAG | REMOTE),
        _ => client.memory(1000),
    };
    let rmr = if invalid == RmrOfAnotherPz { other.pz.rmr() } else { client.pz.rmr() };
    let (mut rmr_handle, mut ep) = (rmr.h(), client.ep.h());
    let mut segment = memory.segment(100, 200);
    let (mut privileges, mut flags) = (REMOTE, DAT_COMPLETION_DEFAULT_FLAG);
    let mut sends = 0;
    match invalid {
        NullRmr => rmr_handle = DAT_HANDLE_NULL,
        OtherKindOfRmr => rmr_handle = client.pz.h(),
        FreedRmr => rmr_handle = client.pz.rmr().free(),
        NullEp => ep = DAT_HANDLE_NULL,
        OtherKindOfEp => ep = client.request.h(),
        FreedEp => ep = client.ia.ep(&client.pz, &client.recv, &client.request, &client.events).free(),
        BothHandles => (rmr_handle, ep) = (DAT_HANDLE_NULL, DAT_HANDLE_NULL),
        UnknownContext => segment.lmr_context = !segment.lmr_context,
        FreedLmr => _ = memory.deregister(),
        Before => segment.virtual_address = memory.address(0) - 1,
        Beyond => segment = memory.segment(801, 200),
        Wraps => segment.segment_length = 0u64.wrapping_sub(50),
        EpOfAnotherPz => ep = other.ep.h(),
        UnknownPrivilege => privileges |= 0x04,
        UnknownFlag => flags = 0x40,
        Unsignalled => flags = DAT_COMPLETION_UNSIGNALLED_FLAG,
        FullQueue => {
            // The server EP has no receives yet, so the sends fill the queue.
            while Op::Send.call(&client, sends, &[], &NOWHERE, 0) == DAT_SUCCESS {
                sends += 1;
            }
        }
        NoTriplet | NoContext | LmrOfAnotherPz | RmrOfAnotherPz | NoLocalWrite => {}
    }
    let triplet: *const DAT_LMR_TRIPLET = if invalid == NoTriplet { null_mut() } else { &segment };
    let call = |out| dat_rmr_bind(rmr_handle, triplet, privileges, ep, cookie(7), flags, out);
    let code = if invalid == NoContext { call(null_mut()) } else { untouched(call) };
    let arg = |number| error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + number - 1);
    match invalid {
        NullRmr | OtherKindOfRmr | FreedRmr | BothHandles => {
            refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RMR);
        }
        NullEp | OtherKindOfEp | FreedEp => refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP),
        NoTriplet | UnknownContext | FreedLmr | Before | Beyond | Wraps => expect(code, arg(2)),
        UnknownPrivilege => expect(code, arg(3)),
        UnknownFlag | Unsignalled => expect(code, arg(6)),
        NoContext => expect(code, arg(7)),
        LmrOfAnotherPz | EpOfAnotherPz | RmrOfAnotherPz => {
            assert_eq!(kind_of(code), error(DAT_PROTECTION_VIOLATION, DAT_NO_SUBTYPE));
        }
        NoLocalWrite => refused(code, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE),
        FullQueue => refused(code, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY),
    }
    // The refused bind has had no effect.
    expect_unbound(&rmr);
    for id in 0..sends {
        post_empty_recv(&server, id);
        expect_dto(client.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    expect_nothing(client.request.h());
    if invalid != FreedLmr {
        memory.deregister();
    }
    rmr.free();
}

fn bind_ignores_local_privileges(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.ia.memory_with(&client.pz, 100, DAT_MEM_PRIV_NONE_FLAG);
    let rmr = client.pz.rmr();
    bind(&client, &rmr, memory.segment(0, 100), LOCAL | DAT_MEM_PRIV_REMOTE_READ_FLAG);
    unbind(&client, &rmr);
}

fn bind_needs_no_remote_privilege_of_the_lmr(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.ia.memory_with(&client.pz, 100, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
    assert_eq!(memory.rmr_context, 0);
    let rmr = client.pz.rmr();
    let target = bind(&client, &rmr, memory.segment(0, 100), REMOTE);
    let theirs = server.memory(100);
    theirs.fill(7);
    server.post_write(1, theirs.segment(0, 100), target);
    expect_dto(server.request.h(), 1, DAT_DTO_SUCCESS, 100);
    memory.expect_all(0, 100, 7);
    unbind(&client, &rmr);
}

fn bind_for_reads_needs_no_local_privilege_of_the_lmr(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let memory = client.ia.memory_with(&client.pz, 100, DAT_MEM_PRIV_NONE_FLAG);
    memory.fill(7);
    let rmr = client.pz.rmr();
    let target = bind(&client, &rmr, memory.segment(0, 100), DAT_MEM_PRIV_REMOTE_READ_FLAG);
    let theirs = server.memory(100);
    server.post_read(1, theirs.segment(0, 100), target);
    expect_dto(server.request.h(), 1, DAT_DTO_SUCCESS, 100);
    theirs.expect_all(0, 100, 7);
    unbind(&client, &rmr);
}

fn bind_of_zero_length_ignores_the_lmr_address_and_context_pointer(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let rmr = client.pz.rmr();
    // An unbind must ignore its other arguments: `unbind` passes an unknown LMR, an invalid address, and a null output
    // for the context.
    unbind(&client, &rmr);
    expect_unbound(&rmr);
}

fn bind_of_zero_length_refuses_an_rmr_and_an_ep_of_different_pzs(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let other = client.ia.pz();
    let rmr = other.rmr();
    let nothing = DAT_LMR_TRIPLET { lmr_context: 0, pad: 0, virtual_address: 0, segment_length: 0 };
    let code = dat_rmr_bind(rmr.h(), &nothing, 0, client.ep.h(), cookie(1), 0, null_mut());
    assert_eq!(kind_of(code), error(DAT_PROTECTION_VIOLATION, DAT_NO_SUBTYPE));
    expect_nothing(client.request.h());
}

fn bind_ignores_the_solicited_wait_and_threshold_flags(ctx: &Ctx) {
    let (client, _server) = ctx.loopback();
    let memory = client.memory(100);
    let rmr = client.pz.rmr();
    let segment = memory.segment(0, 100);
    for flags in [DAT_COMPLETION_SOLICITED_WAIT_FLAG, DAT_COMPLETION_EVD_THRESHOLD_FLAG] {
        let _: DAT_RMR_CONTEXT =
            filled(|out| dat_rmr_bind(rmr.h(), &segment, REMOTE, client.ep.h(), cookie(7), flags, out));
        expect_rmr(client.request.h(), rmr.h(), 7, DAT_RMR_BIND_SUCCESS);
    }
    unbind(&client, &rmr);
}
