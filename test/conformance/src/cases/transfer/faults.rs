//! Transfers that fail because of an invalid local or remote segment, a length, or unmapped memory (spec/events 4.5).
//! Flushed transfers are in `flush`.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::ends::*;

/// An error in a local segment of 100 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LocalFault {
    Unknown,
    Null,
    Stale,
    OtherPz,
    OtherIa,
    Before,
    Beyond,
    Wraps,
    NoWrite,
}

const LOCAL_FAULTS: [(LocalFault, &str); 9] = [
    (LocalFault::Unknown, "an_unknown_context"),
    (LocalFault::Null, "context_0"),
    (LocalFault::Stale, "a_freed_lmr"),
    (LocalFault::OtherPz, "memory_of_another_pz"),
    (LocalFault::OtherIa, "memory_of_another_ia"),
    (LocalFault::Before, "a_byte_before_the_lmr"),
    (LocalFault::Beyond, "a_byte_beyond_the_lmr"),
    (LocalFault::Wraps, "a_range_that_wraps"),
    (LocalFault::NoWrite, "no_write_privilege"),
];

/// An error in the remote segment of 100 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RemoteFault {
    Unknown,
    Null,
    Stale,
    OtherPz,
    Before,
    Beyond,
    Wraps,
    OtherRight,
    LocalRights,
}

const REMOTE_FAULTS: [(RemoteFault, &str); 9] = [
    (RemoteFault::Unknown, "an_unknown_context"),
    (RemoteFault::Null, "context_0"),
    (RemoteFault::Stale, "a_freed_lmr"),
    (RemoteFault::OtherPz, "memory_of_another_pz"),
    (RemoteFault::Before, "a_byte_before_the_lmr"),
    (RemoteFault::Beyond, "a_byte_beyond_the_lmr"),
    (RemoteFault::Wraps, "a_range_that_wraps"),
    (RemoteFault::OtherRight, "only_the_other_remote_privilege"),
    (RemoteFault::LocalRights, "only_local_privileges"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = cases![
        "spec/events 4.5": fault_message_a_byte_longer_than_its_receive_breaks_the_connection => pair(|ctx| sends_too_much(ctx, 101), |ctx| takes_too_little(ctx, 100)),
        "spec/events 4.5": fault_message_to_a_receive_of_zero_bytes_breaks_the_connection => pair(|ctx| sends_too_much(ctx, 1), |ctx| takes_too_little(ctx, 0)),
        "spec/events 4.5": fault_fragmented_message_into_a_small_receive_breaks_the_connection => pair(|ctx| sends_too_much(ctx, 300_000), |ctx| takes_too_little(ctx, 100)),
        "spec/events 4.5": fault_message_longer_than_a_large_receive_breaks_the_connection => pair(|ctx| sends_too_much(ctx, 300_000), |ctx| takes_too_little(ctx, 299_999)),
        "spec/events 4.5": fault_message_too_long_is_reported_after_shorter_ones => pair(client_sends_fitting_then_not, server_takes_two_then_not),
        "spec/events 4.5": fault_message_too_long_is_reported_when_its_receive_is_posted => pair(client_sends_too_much_early, server_takes_too_little_late),
        "spec/events 8.1": write_to_unmapped_memory_completes_with_remote_access_error => pair(client_writes_to_gone, server_takes_memory_away),
    ];
    for (fault, words) in LOCAL_FAULTS {
        let ops = if fault == LocalFault::NoWrite { &[Op::Read, Op::Recv][..] } else { &Op::ALL[..] };
        for op in ops.iter().copied() {
            let case = match op {
                Op::Recv => pair(sends_into_trouble, move |ctx| receives_into(ctx, fault)),
                _ => pair(move |ctx| requests_from(ctx, op, fault), loses),
            };
            let word = if op == Op::Recv { "receive" } else { op.word() };
            all.push(
                case.named(format!("fault_local_{word}_with_{words}_breaks_the_connection")).proves("spec/events 4.5"),
            );
        }
    }
    for (fault, words) in REMOTE_FAULTS {
        for op in Op::RDMA {
            let case = pair(move |ctx| is_denied(ctx, op), move |ctx| denies(ctx, op, fault));
            all.push(
                case.named(format!("fault_remote_{}_with_{words}_breaks_the_connection", op.word()))
                    .proves("spec/events 4.5"),
            );
            let slow = pair(
                move |ctx| {
                    without_kernel_copies();
                    is_denied(ctx, op);
                },
                move |ctx| {
                    without_kernel_copies();
                    denies(ctx, op, fault);
                },
            );
            let name = format!("fault_remote_{}_with_{words}_breaks_the_connection_without_kernel_copies", op.word());
            all.push(slow.only_two().named(name).proves("spec/events 4.5"));
        }
    }
    for op in Op::REQUESTS {
        let case = pair(move |ctx| exceeds_the_adapter(ctx, op), loses);
        all.push(
            case.named(format!("fault_{}_longer_than_the_adapters_limit_breaks_the_connection", op.word()))
                .proves("spec/events 4.5"),
        );
    }
    all
}

/// Returns an invalid segment, and the connections and memory to keep alive with it.
#[track_caller]
fn bad_segment(ctx: &Ctx, conn: &Conn, fault: LocalFault) -> (DAT_LMR_TRIPLET, Vec<Conn>, Memory) {
    let mut others = Vec::new();
    let mut memory = match fault {
        LocalFault::OtherPz => {
            let other = Conn::on(&conn.ia);
            let memory = other.memory(300);
            others.push(other);
            memory
        }
        LocalFault::OtherIa => {
            let other = Conn::unconnected(&Ia::open(&ctx.provider, 8), &Setup::default());
            // Not the first registration: the first contexts of two adapters may be equal.
            let memory = (0..5).map(|_| other.memory(300)).next_back().expect("the range is not empty");
            others.push(other);
            memory
        }
        LocalFault::NoWrite => {
            conn.ia.memory_with(&conn.pz, 300, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG)
        }
        _ => conn.memory(300),
    };
    let good = memory.segment(100, 100);
    let bad = match fault {
        LocalFault::Unknown => DAT_LMR_TRIPLET { lmr_context: !memory.lmr_context, ..good },
        LocalFault::Null => DAT_LMR_TRIPLET { lmr_context: 0, ..good },
        LocalFault::Stale => {
            memory.deregister();
            good
        }
        LocalFault::Before => DAT_LMR_TRIPLET { virtual_address: memory.address(0) - 1, ..good },
        LocalFault::Beyond => memory.segment(201, 100),
        // A segment that wraps around the address space. The memory covers only part of the message.
        LocalFault::Wraps => DAT_LMR_TRIPLET { segment_length: 0u64.wrapping_sub(50), ..memory.segment(250, 0) },
        LocalFault::OtherPz | LocalFault::OtherIa | LocalFault::NoWrite => good,
    };
    (bad, others, memory)
}

fn requests_from(ctx: &Ctx, op: Op, fault: LocalFault) {
    let conn = ctx.connect();
    let remote = ctx.receive_target();
    let (bad, others, memory) = bad_segment(ctx, &conn, fault);
    op.post(&conn, 1, &[bad], &remote);
    let data = expect_event(conn.request.h(), SOON).dto();
    // A transport may report the wrapped segment as a length error.
    let is_length = fault == LocalFault::Wraps && data.status == DAT_DTO_ERR_LOCAL_LENGTH;
    check_dto(&data, 1, if is_length { DAT_DTO_ERR_LOCAL_LENGTH } else { DAT_DTO_ERR_LOCAL_PROTECTION }, 0);
    expect_broken(&conn);
    ctx.meet();
    drop((memory, others));
}

/// The server role of a connection that a failure of the client role ends. It posts one receive and sends the client
/// role an RDMA target.
pub(super) fn loses(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(300);
    conn.post_recv(9, memory.segment(0, 100));
    ctx.send_target(memory.target(100, 100));
    expect_lost(&conn);
    expect_flushed(&conn.recv, [9]);
    memory.expect_all(0, 300, 0);
    ctx.meet();
}

/// The client role of a connection that breaks because the server role cannot receive.
pub(super) fn sends_into_trouble(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.meet();
    conn.post_send(1, memory.segment(0, 100));
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
    // The peer ends the connection at the same time, so either event may come first.
    expect_lost(&conn);
    ctx.meet();
}

fn receives_into(ctx: &Ctx, fault: LocalFault) {
    let conn = ctx.connect();
    let (bad, others, memory) = bad_segment(ctx, &conn, fault);
    Op::Recv.post(&conn, 2, &[bad], &NOWHERE);
    expect_nothing(conn.recv.h());
    ctx.meet();
    expect_dto(conn.recv.h(), 2, DAT_DTO_ERR_LOCAL_PROTECTION, 0);
    expect_broken(&conn);
    memory.expect_all(0, 300, 0);
    ctx.meet();
    drop((memory, others));
}

/// The client role of an RDMA transfer that the target refuses.
fn is_denied(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    memory.fill(7);
    let remote = ctx.receive_target();
    op.post(&conn, 1, &[memory.segment(0, 100)], &remote);
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    if op == Op::Read {
        memory.expect_all(0, 100, 7);
    }
    ctx.meet();
}

fn denies(ctx: &Ctx, op: Op, fault: RemoteFault) {
    let conn = ctx.connect();
    let other = Conn::on(&conn.ia);
    let local = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG;
    let only = if op == Op::Read { DAT_MEM_PRIV_REMOTE_WRITE_FLAG } else { DAT_MEM_PRIV_REMOTE_READ_FLAG };
    let mut memory = match fault {
        RemoteFault::OtherPz => other.memory(300),
        RemoteFault::OtherRight => conn.ia.memory_with(&conn.pz, 300, local | only),
        RemoteFault::LocalRights => conn.ia.memory_with(&conn.pz, 300, local),
        _ => conn.memory(300),
    };
    let good = memory.target(100, 100);
    let bad = match fault {
        RemoteFault::Unknown => DAT_RMR_TRIPLET { rmr_context: !memory.rmr_context, ..good },
        RemoteFault::Null => DAT_RMR_TRIPLET { rmr_context: 0, ..good },
        RemoteFault::Stale => {
            memory.deregister();
            good
        }
        RemoteFault::Before => DAT_RMR_TRIPLET { target_address: memory.address(0) - 1, ..good },
        RemoteFault::Beyond => memory.target(201, 100),
        RemoteFault::Wraps => DAT_RMR_TRIPLET { target_address: u64::MAX - 49, ..good },
        // A local context is not sent to peers, but a peer could guess it.
        RemoteFault::LocalRights => DAT_RMR_TRIPLET { rmr_context: memory.lmr_context, ..good },
        RemoteFault::OtherPz | RemoteFault::OtherRight => good,
    };
    ctx.send_target(bad);
    expect_lost(&conn);
    memory.expect_all(0, 300, 0);
    expect_nothing(conn.recv.h());
    ctx.meet();
}

fn sends_too_much(ctx: &Ctx, length: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(length);
    ctx.meet();
    conn.post_send(1, memory.segment(0, length));
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
    expect_lost(&conn);
    ctx.meet();
}

fn takes_too_little(ctx: &Ctx, length: usize) {
    let conn = ctx.connect();
    let memory = conn.memory(length + 100);
    memory.fill(0xee);
    conn.post_recv(2, memory.segment(0, length));
    ctx.meet();
    expect_dto(conn.recv.h(), 2, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    expect_broken(&conn);
    // The buffer's content is undefined; the bytes around it are unchanged.
    memory.expect_all(length, 100, 0xee);
    ctx.meet();
}

fn client_sends_fitting_then_not(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(300);
    ctx.meet();
    conn.post_send(1, memory.segment(0, 100));
    conn.post_send(2, memory.segment(0, 10));
    conn.post_send(3, memory.segment(0, 300));
    expect_dto(conn.request.h(), 1, DAT_DTO_SUCCESS, 100);
    expect_dto(conn.request.h(), 2, DAT_DTO_SUCCESS, 10);
    expect_dto(conn.request.h(), 3, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
    expect_lost(&conn);
    ctx.meet();
}

fn server_takes_two_then_not(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    (1..=4).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    ctx.meet();
    expect_dto(conn.recv.h(), 1, DAT_DTO_SUCCESS, 100);
    expect_dto(conn.recv.h(), 2, DAT_DTO_SUCCESS, 10);
    expect_dto(conn.recv.h(), 3, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    expect_flushed(&conn.recv, [4]);
    expect_broken(&conn);
    ctx.meet();
}

fn client_sends_too_much_early(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(50_000);
    conn.post_send(1, memory.segment(0, 50_000));
    ctx.meet();
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_RESPONDER, 0);
    expect_lost(&conn);
    ctx.meet();
}

fn server_takes_too_little_late(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    ctx.meet();
    conn.ep.expect_state(DAT_EP_STATE_CONNECTED);
    conn.post_recv(2, memory.segment(0, 100));
    expect_dto(conn.recv.h(), 2, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    expect_broken(&conn);
    ctx.meet();
}

/// A segment with which every request fails when it is posted or executed.
pub(super) fn nowhere() -> DAT_LMR_TRIPLET {
    DAT_LMR_TRIPLET { lmr_context: 0xdead_beef, pad: 0, virtual_address: 4096, segment_length: 100 }
}

fn exceeds_the_adapter(ctx: &Ctx, op: Op) {
    let conn = ctx.connect();
    let attr = conn.ia.attr();
    let most = if op == Op::Send { attr.max_message_size } else { attr.max_rdma_size };
    let part = (most / 2 + 1).min(1 << 30);
    let parts = most / part + 1;
    if parts > 4 {
        // The server role waits for the end of the connection.
        drop(conn);
        ctx.unsupported("an adapter with a limit that can be reached");
    }
    // The memory is never accessed. It has at most 1 GiB, because some adapters pin registered memory.
    let map = os::Map::private(part as usize, true);
    let lmr = registered(&conn, &map);
    let segment = DAT_LMR_TRIPLET {
        lmr_context: lmr.1,
        pad: 0,
        virtual_address: map.pointer().addr() as u64,
        segment_length: part,
    };
    op.post(&conn, 1, &vec![segment; parts as usize], &ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_LOCAL_LENGTH, 0);
    expect_broken(&conn);
    ctx.meet();
}

/// A mapping registered with all privileges: the LMR, its local and its remote context.
#[track_caller]
fn registered(conn: &Conn, map: &os::Map) -> (Lmr, DAT_LMR_CONTEXT, DAT_RMR_CONTEXT) {
    let (mut lmr_context, mut rmr_context, mut length, mut address) = (0, 0, 0, 0);
    let lmr = filled(|out| {
        dat_lmr_create(
            conn.ia.h(),
            DAT_MEM_TYPE_VIRTUAL,
            DAT_REGION_DESCRIPTION { for_va: map.pointer() },
            map.length() as u64,
            conn.pz.h(),
            DAT_MEM_PRIV_ALL_FLAG,
            out,
            &mut lmr_context,
            &mut rmr_context,
            &mut length,
            &mut address,
        )
    });
    (Lmr::own(lmr), lmr_context, rmr_context)
}

fn client_writes_to_gone(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(100);
    conn.post_write(1, memory.segment(0, 100), ctx.receive_target());
    expect_dto(conn.request.h(), 1, DAT_DTO_ERR_REMOTE_ACCESS, 0);
    expect_broken(&conn);
    ctx.meet();
}

fn server_takes_memory_away(ctx: &Ctx) {
    let conn = ctx.connect();
    let map = os::Map::private(4096, true);
    let (_lmr, _, rmr_context) = registered(&conn, &map);
    let target_address = map.pointer().addr() as u64;
    drop(map);
    ctx.send_target(DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address, segment_length: 100 });
    expect_lost(&conn);
    ctx.meet();
}
