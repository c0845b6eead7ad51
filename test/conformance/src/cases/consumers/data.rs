//! What programs expect of progress, memory order, sends before receives, and shared EVDs (spec/consumers 1 to 5).
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::cases::transfer::ends::is_request_idle;
use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/consumers 1": consumers_1_write_becomes_visible_without_calls_of_the_target => pair(client_writes_marks, server_spins_on_marks),
        "spec/consumers 1": consumers_1_rings_of_rdma_writes_in_both_directions_lose_no_message => pair(each_eager_ring, each_eager_ring).limit(40),
        "spec/consumers 1": consumers_1_read_after_a_write_returns_the_written_bytes => pair(client_writes_and_reads_back, server_sits_still),
        "spec/consumers 2": consumers_2_last_byte_of_a_write_is_visible_last => pair(client_writes_sizes, server_watches_sizes).limit(40),
        "spec/consumers 2": consumers_2_last_byte_of_a_gathered_write_is_visible_last => pair(client_gathers, server_watches_gathered),
        "spec/consumers 2": consumers_2_completion_is_queued_before_the_last_byte_is_visible => pair(client_sends_sizes, server_spins_then_dequeues).limit(40),
        "spec/consumers 3": consumers_3_write_is_complete_when_another_connection_reports_it => pair(client_writes_then_tells, server_frees_at_once).limit(40),
        "spec/consumers 4": consumers_4_sends_before_any_receive_are_delivered => pair(client_sends_early, server_receives_late),
        "spec/consumers 4": consumers_4_mutual_sends_before_any_receive_are_delivered => pair(each_both_early, each_both_early),
        "spec/consumers 4": consumers_4_send_without_a_receive_does_not_block_other_connections => pair(holds_client, holds_server),
        "spec/consumers 5": consumers_5_one_evd_receives_several_event_types => pair(each_one_evd, each_one_evd),
        "spec/consumers 5": consumers_5_one_dto_evd_receives_completions_of_all_eps => pair(each_many_eps, each_many_eps),
        "spec/consumers 5": consumers_5_receives_and_unsignalled_requests_share_an_evd => pair(each_mixed_flags, each_mixed_flags),
    ]
}

fn client_writes_marks(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    let target = ctx.receive_target();
    for round in 1..=50 {
        memory.fill(round);
        conn.post_write(round.into(), memory.segment(0, 4096), target);
        expect_dto(conn.request.h(), round.into(), DAT_DTO_SUCCESS, 4096);
        ctx.receive();
    }
}

fn server_spins_on_marks(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(4096);
    ctx.send_target(memory.target(0, 4096));
    for round in 1..=50 {
        memory.spin_for(4095, round);
        memory.expect_all(0, 4096, round);
        ctx.send("seen");
    }
}

/// A ring of slots filled with the round number; the last byte shows that a slot has arrived. The sender dequeues no
/// completions: its writes are suppressed, and the receiver reports free slots by a write.
fn each_eager_ring(ctx: &Ctx) {
    const SLOTS: usize = 8;
    const SLOT: usize = 512;
    const MESSAGES: usize = 400;
    let conn = ctx.connect();
    let (ring, out) = (conn.memory(SLOTS * SLOT), conn.memory(SLOTS * SLOT));
    let (credits, own) = (conn.memory(8), conn.memory(8));
    ctx.send_target(ring.target(0, SLOTS * SLOT));
    ctx.send_target(credits.target(0, 8));
    let (to_ring, to_credits) = (ctx.receive_target(), ctx.receive_target());
    let write = |from: DAT_LMR_TRIPLET, to: DAT_RMR_TRIPLET| {
        let (ep, flags) = (conn.ep.h(), DAT_COMPLETION_SUPPRESS_FLAG);
        until(|| {
            let code = dat_ep_post_rdma_write(ep, 1, &mut from.clone(), cookie(0), &to, flags);
            one_of(code, &[DAT_SUCCESS, error(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY)]);
            code == DAT_SUCCESS
        });
    };
    let credit = |memory: &Memory| {
        u64::from_le_bytes(memory.take(0, 8).try_into().expect("`take` returns the 8 bytes requested")) as usize
    };
    let (mut sent, mut received) = (0, 0);
    while sent < MESSAGES || received < MESSAGES {
        if sent < MESSAGES && sent < credit(&credits) + SLOTS {
            let at = sent % SLOTS * SLOT;
            let mark = (1 + sent / SLOTS) as u8;
            out.put(at, &[mark; SLOT]);
            let to = DAT_RMR_TRIPLET { target_address: to_ring.target_address + at as u64, ..to_ring };
            write(out.segment(at, SLOT), to);
            sent += 1;
        }
        let (at, mark) = (received % SLOTS * SLOT, (1 + received / SLOTS) as u8);
        if received < MESSAGES && ring.byte(at + SLOT - 1) == mark {
            ring.expect_all(at, SLOT, mark);
            received += 1;
            own.put(0, &(received as u64).to_le_bytes());
            write(own.segment(0, 8), to_credits);
        }
        std::thread::yield_now();
    }
    // The last credits must also be acknowledged before either side ends: otherwise they would be flushed.
    until(|| is_request_idle(&conn));
    expect_nothing(conn.request.h());
    ctx.meet();
}

fn client_writes_and_reads_back(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(2000);
    let target = ctx.receive_target();
    for round in 1..20 {
        memory.write_pattern(0, 1000, round);
        conn.post_write(1, memory.segment(0, 1000), target);
        conn.post_read(2, memory.segment(1000, 1000), target);
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 1000);
        expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 1000);
        memory.expect_pattern(1000, 1000, round);
    }
    ctx.meet();
}

fn server_sits_still(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1000);
    ctx.send_target(memory.target(0, 1000));
    ctx.meet();
}

const SIZES: [usize; 14] = [1, 2, 7, 63, 64, 65, 127, 4095, 4096, 4097, 65_535, 65_536, 300_001, 1 << 20];

fn client_writes_sizes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    let target = ctx.receive_target();
    let mut mark = 0;
    for _ in 0..3 {
        for size in SIZES {
            mark += 1;
            memory.fill(mark);
            conn.post_write(1, memory.segment(0, size), target);
            expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, size as u64);
            ctx.receive();
        }
    }
}

fn server_watches_sizes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    ctx.send_target(memory.target(0, 1 << 20));
    let mut mark = 0;
    for _ in 0..3 {
        for size in SIZES {
            mark += 1;
            memory.spin_for(size - 1, mark);
            memory.expect_all(0, size, mark);
            ctx.send("seen");
        }
    }
}

fn client_gathers(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8192);
    let target = ctx.receive_target();
    for round in 1..=20 {
        memory.fill(round);
        let mut list = [memory.segment(0, 1500), memory.segment(3000, 1), memory.segment(4000, 2000)];
        let flags = DAT_COMPLETION_SUPPRESS_FLAG;
        ok(dat_ep_post_rdma_write(conn.ep.h(), 3, list.as_mut_ptr(), cookie(1), &target, flags));
        ctx.receive();
    }
}

fn server_watches_gathered(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(8192);
    ctx.send_target(memory.target(0, 64));
    for round in 1..=20 {
        memory.spin_for(3500, round);
        memory.expect_all(0, 3501, round);
        ctx.send("seen");
    }
    memory.expect_all(3501, 100, 0);
}

fn client_sends_sizes(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    for (round, size) in SIZES.into_iter().enumerate() {
        ctx.receive();
        memory.fill(round as u8 + 1);
        conn.post_send(1, memory.segment(0, size));
        expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, size as u64);
    }
    ctx.meet();
}

fn server_spins_then_dequeues(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(1 << 20);
    for (round, size) in SIZES.into_iter().enumerate() {
        conn.post_recv(9, memory.segment(0, 1 << 20));
        ctx.send("post");
        memory.spin_for(size - 1, round as u8 + 1);
        let event = dequeue(conn.recv.h()).expect("the completion is queued before the last byte becomes visible");
        check_dto(&event.dto(), 9, DAT_DTO_SUCCESS, size as u64);
        memory.expect_all(0, size, round as u8 + 1);
    }
    ctx.meet();
}

/// Two connections: one for data, one for notifications.
fn two_conns(ctx: &Ctx) -> (Conn, Conn) {
    (ctx.connect(), ctx.connect_with(&Setup { qual: 1, ..Setup::default() }))
}

const ROUNDS: u64 = 20;

fn client_writes_then_tells(ctx: &Ctx) {
    let (data, control) = two_conns(ctx);
    let memory = data.memory(1 << 18);
    for round in 0..ROUNDS {
        memory.write_pattern(0, 1 << 18, round as u8);
        data.post_write(round, memory.segment(0, 1 << 18), ctx.receive_target());
        expect_dto(data.request.h(), round, DAT_DTO_SUCCESS, 1 << 18);
        ok(dat_ep_post_send(control.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
    }
    ctx.meet();
}

fn server_frees_at_once(ctx: &Ctx) {
    let (data, control) = two_conns(ctx);
    for round in 0..ROUNDS {
        let mut memory = data.memory(1 << 18);
        ok(dat_ep_post_recv(control.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
        ctx.send_target(memory.target(0, 1 << 18));
        expect_dto(control.recv.h(), round, DAT_DTO_SUCCESS, 0);
        memory.deregister();
        memory.expect_pattern(0, 1 << 18, round as u8);
    }
    data.ep.expect_state(DAT_EP_STATE_CONNECTED);
    ctx.meet();
}

fn client_sends_early(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(16 * 100);
    for id in 0..16 {
        memory.write_pattern(100 * id, 100, id as u8);
        conn.post_send(id as u64, memory.segment(100 * id, 100));
    }
    ctx.meet();
    for id in 0..16 {
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 100);
    }
    ctx.meet();
}

fn server_receives_late(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(16 * 100);
    ctx.meet();
    for id in 0..16 {
        conn.post_recv(id as u64, memory.segment(100 * id, 100));
        expect_dto(conn.recv.h(), id as u64, DAT_DTO_SUCCESS, 100);
        memory.expect_pattern(100 * id, 100, id as u8);
    }
    ctx.meet();
}

fn each_both_early(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    memory.write_pattern(0, 100, 1);
    conn.post_send(1, memory.segment(0, 100));
    ctx.meet();
    conn.post_recv(2, memory.segment(100, 100));
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 100);
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    memory.expect_pattern(100, 100, 1);
    ctx.meet();
}

/// A send waits for a receive on one connection while another connection stays busy.
fn holds_client(ctx: &Ctx) {
    let (held, busy) = two_conns(ctx);
    let memory = held.memory(64);
    held.post_send(77, memory.segment(0, 64));
    for round in 0..300 {
        ok(dat_ep_post_send(busy.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(busy.request.h(), round, DAT_DTO_SUCCESS, 0);
        expect_nothing(held.request.h());
    }
    ctx.meet();
    expect_dto(held.request.h(), 77, DAT_DTO_SUCCESS, 64);
    ctx.meet();
}

fn holds_server(ctx: &Ctx) {
    let (held, busy) = two_conns(ctx);
    let memory = held.memory(64);
    for round in 0..300 {
        ok(dat_ep_post_recv(busy.ep.h(), 0, null_mut(), cookie(round), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(busy.recv.h(), round, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
    held.post_recv(5, memory.segment(0, 64));
    expect_dto(held.recv.h(), 5, DAT_DTO_SUCCESS, 64);
    ctx.meet();
}

/// Requests, connections, receives and sends of both directions report to one EVD of length 16.
fn each_one_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, all) = (ia.pz(), ia.evd(16, DAT_EVD_DEFAULT_FLAG));
    let ep = ia.ep(&pz, &all, &all, &all);
    let memory = ia.memory(&pz, 32 * 8);
    let recv = |id: u64| {
        let mut segment = memory.segment(8 * id as usize, 8);
        ok(dat_ep_post_recv(ep.h(), 1, &mut segment, cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    };
    (0..16).for_each(recv);
    let psp = (!ctx.is_client()).then(|| ia.psp(ctx.qual(0), &all));
    if psp.is_some() {
        ctx.send_address(&ia);
        ok(dat_cr_accept(expect_cr(all.h()).cr_handle, ep.h(), 0, null_mut()));
    } else {
        let (address, no_limit) = (ctx.receive_address(), DAT_TIMEOUT_INFINITE);
        let (pointer, flags) = (address.pointer(), DAT_CONNECT_DEFAULT_FLAG);
        ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    }
    expect_conn(all.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
    for id in 16..32 {
        let mut segment = memory.segment(8 * id as usize, 8);
        ok(dat_ep_post_send(ep.h(), 1, &mut segment, cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }
    let (mut receives, mut sends) = (0, 16);
    for _ in 0..32 {
        let data = expect_event(all.h(), SOON).dto();
        let next = if context_bits(data.user_cookie) < 16 { &mut receives } else { &mut sends };
        check_dto(&data, *next, DAT_DTO_SUCCESS, 8);
        *next += 1;
    }
    ctx.meet();
    drop(psp);
}

/// One DTO EVD of length 64 for both directions of eight EPs.
fn each_many_eps(ctx: &Ctx) {
    let ia = ctx.ia();
    let (pz, dtos) = (ia.pz(), ia.evd(64, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG));
    let both = ia.evd(16, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG);
    let eps: Vec<Ep> = (0..8).map(|_| ia.ep(&pz, &dtos, &dtos, &both)).collect();
    let psp = (!ctx.is_client()).then(|| ia.psp(ctx.qual(0), &both));
    if psp.is_some() {
        ctx.send_address(&ia);
    }
    let address = ctx.is_client().then(|| ctx.receive_address());
    for ep in &eps {
        ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
        if let Some(address) = &address {
            let (pointer, no_limit, flags) = (address.pointer(), DAT_TIMEOUT_INFINITE, DAT_CONNECT_DEFAULT_FLAG);
            ok(dat_ep_connect(ep.h(), pointer, ctx.qual(0), no_limit, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
        } else {
            ok(dat_cr_accept(expect_cr(both.h()).cr_handle, ep.h(), 0, null_mut()));
        }
        expect_conn(both.h(), ep.h(), DAT_CONNECTION_EVENT_ESTABLISHED);
        ctx.meet();
    }
    for ep in &eps {
        ok(dat_ep_post_send(ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    }
    let mut wanted: Vec<_> = eps.iter().flat_map(|ep| [(ep.h(), 1), (ep.h(), 2)]).collect();
    while !wanted.is_empty() {
        let data = expect_event(dtos.h(), SOON).dto();
        let came = (data.ep_handle, context_bits(data.user_cookie));
        let at = wanted.iter().position(|one| *one == came).expect("each completion is reported once");
        wanted.remove(at);
    }
    ctx.meet();
    drop(psp);
}

/// Receives with default flags and unsignalled requests of one EP report to one EVD, which the program polls.
fn each_mixed_flags(ctx: &Ctx) {
    let ia = ctx.ia();
    let attr = DAT_EP_ATTR { request_completion_flags: DAT_COMPLETION_UNSIGNALLED_FLAG, ..ep_attr() };
    let mut conn = Conn::unconnected(&ia, &Setup { attr, ..Setup::default() });
    conn.ep = ia.ep_with(&conn.pz, &conn.recv, &conn.recv, &conn.events, &attr);
    ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
    if ctx.is_client() {
        conn.connect(&ctx.receive_address(), ctx.qual(0));
    } else {
        conn.listen(ctx.qual(0), || ctx.send_address(&ia));
    }
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(2), DAT_COMPLETION_UNSIGNALLED_FLAG));
    let mut ids: Vec<_> = (0..2).map(|_| context_bits(polled_event(conn.recv.h()).dto().user_cookie)).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    ctx.meet();
    conn.ep.free();
}
