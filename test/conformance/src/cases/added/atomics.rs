//! Fetch-and-add and compare-and-swap: results, atomicity, fences, suppressed completions, killed peers, and targets to
//! which access is denied.
#![forbid(unsafe_code)]

use dat_abi::v2;

use super::scenes::*;
use crate::api::added::{self, Extended};
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        "spec/events 4.1": v2_fetch_and_add_returns_the_previous_value => pair(client_add, server_be_changed),
        "spec/events 4.1": v2_cmp_and_swap_replaces_an_equal_value => pair(client_swap, server_be_changed),
        "spec/events 4.1": v2_atomics_of_two_processes_are_atomic => pair(client_take_tickets, server_sell_tickets).limit(40),
        "spec/events 4.1": v2_fenced_write_waits_for_a_fetch_and_add => pair(client_add_and_write, server_be_changed),
        "spec/events 4.3": v2_suppressed_fetch_and_adds_complete_without_events => pair(client_add_silently, server_be_changed),
        "spec/endpoints 4.2": v2_kill_of_the_initiator_leaves_no_partial_fetch_and_add => pair(client_die_adding, server_count_adds).only_two(),
        "spec/endpoints 4.2": v2_fetch_and_adds_complete_in_order_after_the_target_is_killed => pair(client_lose_target, server_die_as_target).only_two(),
    ];
    for denied in DeniedAccess::ALL {
        let body = move |ctx: &Ctx| be_denied(ctx, denied);
        let case = pair(body, move |ctx| deny(ctx, denied));
        cases.push(case.named(format!("v2_cmp_and_swap_is_denied_{}", denied.word())).proves("spec/events 4.5"));
    }
    cases
}

/// Ends the case as unsupported unless the adapter has both operations.
fn needs_both_atomics(ctx: &Ctx) {
    needs(ctx, Feature::FetchAdd);
    needs(ctx, Feature::CompareSwap);
}

/// Posts an atomic operation that stores the former value in `back`, and waits for its completion. Returns the former
/// value.
#[track_caller]
fn execute(conn: &Conn, operation: Extended, back: &Memory, target: DAT_RMR_TRIPLET, at: u64) -> u64 {
    post(conn, operation, 1, (back, 0), (target, at), 0);
    expect_request(&conn.request, operation, 1, v2::DAT_DTO_SUCCESS, WORD as u32);
    number(back, 0)
}

#[track_caller]
fn post(
    conn: &Conn,
    operation: Extended,
    cookie: u64,
    (back, place): (&Memory, usize),
    (target, at): (DAT_RMR_TRIPLET, u64),
    flags: u32,
) {
    let (segment, target) = (local_segment(back, place, WORD), remote(target, at, WORD as u32));
    ok(added::post_extended(conn.ep.h(), operation, &segment, cookie, &target, flags));
}

fn client_add(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(WORD));
    let mut value = 0_u64;
    for add in [1, 41, u64::MAX, 1 << 63, 1 << 63, 0] {
        assert_eq!(
            execute(&conn, Extended::FetchAdd { add }, &back, target, 8),
            value,
            "adding {add:#x} returned another value"
        );
        value = value.wrapping_add(add);
    }
    ctx.send_number(value);
    ctx.meet();
}

fn client_swap(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(WORD));
    let swaps = [(0, 7, 0), (0, 8, 7), (7, u64::MAX, 7), (u64::MAX, 3, u64::MAX), (3, 3, 3)];
    for (compare, swap, found) in swaps {
        assert_eq!(execute(&conn, Extended::CompareSwap { compare, swap }, &back, target, 8), found);
    }
    ctx.send_number(3);
    ctx.meet();
}

/// Sends the peer a target of three 64-bit words; the peer changes the second.
fn server_be_changed(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, 3 * WORD, ATOMIC);
    ctx.send_target(memory.target(0, 3 * WORD));
    let wanted = ctx.receive_number();
    assert_eq!([0, 8, 16].map(|at| number(&memory, at)), [0, wanted, 0]);
    ctx.meet();
}

const TICKETS: u64 = 500;

/// Increments the first word by fetch-and-add, and after each increment also the second word by compare-and-swap.
/// Returns the sum of the former values of the first word.
fn contend(conn: &Conn, target: DAT_RMR_TRIPLET) -> u64 {
    let back = conn.memory(WORD);
    let (mut sum, mut last, mut seen) = (0, None, 0);
    for _ in 0..TICKETS {
        let ticket = execute(conn, Extended::FetchAdd { add: 1 }, &back, target, 0);
        assert!(last < Some(ticket), "an increment returned {ticket} after {last:?}, wanted a higher value");
        (sum, last) = (sum + ticket, Some(ticket));
        loop {
            let swap = Extended::CompareSwap { compare: seen, swap: seen + 1 };
            let found = execute(conn, swap, &back, target, 8);
            let is_swapped = found == seen;
            seen = if is_swapped { seen + 1 } else { found };
            if is_swapped {
                break;
            }
        }
    }
    sum
}

fn client_take_tickets(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let target = ctx.receive_target();
    ctx.meet();
    ctx.send_number(contend(&conn, target));
    ctx.meet();
}

/// Runs the same increments as the peer on the local memory, over a connection to itself.
fn server_sell_tickets(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (own, other) = ctx.loopback_with(&conn.ia, &Setup { qual: 1, ..Setup::default() });
    let memory = conn.ia.memory_with(&conn.pz, 2 * WORD, ATOMIC);
    let (lmr, target) = register_again(&other.ia, &other.pz, &memory, ATOMIC);
    ctx.send_target(memory.target(0, 2 * WORD));
    ctx.meet();
    let sum = contend(&own, target) + ctx.receive_number();
    let all = 2 * TICKETS;
    assert_eq!((number(&memory, 0), number(&memory, 8)), (all, all));
    assert_eq!(sum, all * (all - 1) / 2, "a ticket is missing or was returned twice");
    drop(lmr);
    ctx.meet();
}

/// A fenced write starts after the preceding atomic operation has completed, so it sends the former value.
fn client_add_and_write(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(WORD));
    back.fill(0xFF);
    let add = Extended::FetchAdd { add: 9 };
    post(&conn, add, 1, (&back, 0), (target, 8), 0);
    let mut segment = back.segment(0, WORD);
    let to = DAT_RMR_TRIPLET { target_address: target.target_address + 8, segment_length: WORD as u64, ..target };
    let fence = DAT_COMPLETION_BARRIER_FENCE_FLAG;
    ok(dat_ep_post_rdma_write(conn.ep.h(), 1, &mut segment, cookie(2), &to, fence));
    expect_request(&conn.request, add, 1, v2::DAT_DTO_SUCCESS, WORD as u32);
    let written = done(&conn.request);
    assert_eq!((written.cookie, written.status, written.operation), (2, v2::DAT_DTO_SUCCESS, v2::DAT_DTO_RDMA_WRITE));
    ctx.send_number(0);
    ctx.meet();
}

fn client_add_silently(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(16 * WORD));
    for n in 0..12 {
        let flags = if n % 4 == 3 { DAT_COMPLETION_DEFAULT_FLAG } else { DAT_COMPLETION_SUPPRESS_FLAG };
        post(&conn, Extended::FetchAdd { add: 1 }, n, (&back, n as usize * WORD), (target, 8), flags);
    }
    for cookie in [3, 7, 11] {
        expect_request(&conn.request, Extended::FetchAdd { add: 1 }, cookie, v2::DAT_DTO_SUCCESS, WORD as u32);
    }
    let found: Vec<u64> = (0..12).map(|n| number(&back, n * WORD)).collect();
    assert_eq!(found, (0..12).collect::<Vec<_>>(), "completions are not in the order of the posts");
    expect_nothing(conn.request.h());
    ctx.send_number(12);
    ctx.meet();
}

/// Number of atomic operations that have completed when a process dies; up to `IN_FLIGHT` more may be outstanding.
const COMPLETE: u64 = 20;
const IN_FLIGHT: u64 = 8;

fn client_die_adding(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(WORD));
    // A partial addition would change only some of the bytes.
    let add = 0x0101_0101_0101_0101;
    for n in 0..COMPLETE {
        assert_eq!(execute(&conn, Extended::FetchAdd { add }, &back, target, 0), n * add);
    }
    for n in 0..IN_FLIGHT {
        post(&conn, Extended::FetchAdd { add }, n, (&back, 0), (target, 0), 0);
    }
    ctx.die();
}

fn server_count_adds(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, WORD, ATOMIC);
    post_empty_recv(&conn, 1);
    ctx.send_target(memory.target(0, WORD));
    expect_over(&conn);
    assert_eq!(done(&conn.recv).status, v2::DAT_DTO_ERR_FLUSHED);
    let sum = number(&memory, 0);
    let times = sum / 0x0101_0101_0101_0101;
    assert_eq!(sum, times * 0x0101_0101_0101_0101, "an addition was not atomic");
    assert!(
        (COMPLETE..=COMPLETE + IN_FLIGHT).contains(&times),
        "{times} additions are in the memory, wanted at least {COMPLETE}"
    );
    // The peer has exited: only this process accesses the memory, and the adapter still works.
    let (own, other) = ctx.loopback_with(&conn.ia, &Setup { qual: 1, ..Setup::default() });
    let (lmr, target) = register_again(&other.ia, &other.pz, &memory, ATOMIC);
    let back = own.memory(WORD);
    assert_eq!(execute(&own, Extended::FetchAdd { add: 1 }, &back, target, 0), sum);
    drop(lmr);
}

fn client_lose_target(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (target, back) = (ctx.receive_target(), conn.memory(WORD));
    let operation = Extended::FetchAdd { add: 1 };
    for n in 0..COMPLETE {
        assert_eq!(execute(&conn, operation, &back, target, 0), n);
    }
    ctx.meet();
    let post = |n| post(&conn, operation, n, (&back, 0), (target, 0), 0);
    (0..IN_FLIGHT).for_each(post);
    // Each success is followed by a further post, until the end of the peer makes one fail.
    let (mut posted, mut completed, mut has_failed) = (IN_FLIGHT, 0, false);
    while completed < posted {
        let came = done(&conn.request);
        assert_eq!(
            (came.number, came.cookie),
            (v2::DAT_IB_DTO_EVENT, completed),
            "completions are not in the order of the posts"
        );
        completed += 1;
        assert!(!has_failed || came.status != v2::DAT_DTO_SUCCESS, "a request succeeded after another had failed");
        has_failed |= came.status != v2::DAT_DTO_SUCCESS;
        if !has_failed {
            post(posted);
            posted += 1;
        }
    }
    expect_over(&conn);
    expect_nothing(conn.request.h());
}

fn server_die_as_target(ctx: &Ctx) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let memory = conn.ia.memory_with(&conn.pz, WORD, ATOMIC);
    ctx.send_target(memory.target(0, WORD));
    ctx.meet();
    ctx.die();
}

/// An access that the target does not allow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DeniedAccess {
    Key,
    Behind,
    Before,
    Wrapped,
    OnlyRead,
    OnlyWrite,
    OtherZone,
    Freed,
}

impl DeniedAccess {
    const ALL: [DeniedAccess; 8] = [
        DeniedAccess::Key,
        DeniedAccess::Behind,
        DeniedAccess::Before,
        DeniedAccess::Wrapped,
        DeniedAccess::OnlyRead,
        DeniedAccess::OnlyWrite,
        DeniedAccess::OtherZone,
        DeniedAccess::Freed,
    ];

    fn word(self) -> &'static str {
        match self {
            DeniedAccess::Key => "with_an_unknown_context",
            DeniedAccess::Behind => "beyond_the_memory",
            DeniedAccess::Before => "before_the_memory",
            DeniedAccess::Wrapped => "at_the_end_of_the_address_space",
            DeniedAccess::OnlyRead => "on_remote_read_only_memory",
            DeniedAccess::OnlyWrite => "on_remote_write_only_memory",
            DeniedAccess::OtherZone => "in_another_pz",
            DeniedAccess::Freed => "on_freed_memory",
        }
    }
}

fn be_denied(ctx: &Ctx, denied: DeniedAccess) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let (mut target, back) = (ctx.receive_target(), conn.memory(WORD));
    back.fill(0x55);
    let mut at = 8;
    match denied {
        DeniedAccess::Key => target.rmr_context ^= 1,
        DeniedAccess::Behind => at = 24,
        DeniedAccess::Before => at = 0u64.wrapping_sub(8),
        DeniedAccess::Wrapped => at = 0u64.wrapping_sub(8).wrapping_sub(target.target_address),
        _ => {}
    }
    let operation = Extended::CompareSwap { compare: 0, swap: 1 };
    post(&conn, operation, 1, (&back, 0), (target, at), 0);
    expect_request(&conn.request, operation, 1, v2::DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    back.expect_all(0, WORD, 0x55);
    ctx.meet();
}

fn deny(ctx: &Ctx, denied: DeniedAccess) {
    needs_both_atomics(ctx);
    let conn = ctx.connect();
    let other = conn.ia.pz();
    let read = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG;
    let (pz, privileges) = match denied {
        DeniedAccess::OnlyRead => (&conn.pz, read | DAT_MEM_PRIV_REMOTE_READ_FLAG),
        DeniedAccess::OnlyWrite => (&conn.pz, read | DAT_MEM_PRIV_REMOTE_WRITE_FLAG),
        DeniedAccess::OtherZone => (&other, ATOMIC),
        _ => (&conn.pz, ATOMIC),
    };
    let whole = conn.memory(4 * WORD);
    let mut memory = conn.ia.memory_with(pz, 3 * WORD, privileges);
    let target = memory.target(0, 3 * WORD);
    if denied == DeniedAccess::Freed {
        memory.deregister();
    }
    ctx.send_target(target);
    expect_over(&conn);
    memory.expect_all(0, 3 * WORD, 0);
    whole.expect_all(0, 4 * WORD, 0);
    ctx.meet();
}
