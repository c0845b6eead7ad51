//! Tests of sends with invalidation, and of the operations of `dat_extension_op`.

use super::*;
use crate::v2::arguments;

/// Calls `handle_extendedop` with all arguments in memory, like a variadic call that has no register left for them.
fn extended(handle: H, op: DAT_EXTENDED_OP, words: &[u64]) -> DAT_RETURN {
    const { assert!(arguments::IS_SUPPORTED) };
    #[cfg(target_arch = "x86_64")]
    let mut state = [48_u64 | 176 << 32, words.as_ptr() as u64, 0];
    #[cfg(target_arch = "aarch64")]
    let mut state = [words.as_ptr() as u64, 0, 0, 0];
    call!(handle_extendedop_func(handle, op, state.as_mut_ptr().cast()))
}

fn address<T>(of: &T) -> u64 {
    std::ptr::from_ref(of) as u64
}

const WORD: DAT_LMR_TRIPLET = DAT_LMR_TRIPLET { virtual_address: 0x1000, segment_length: 8, lmr_context: 3 };
const REMOTE: DAT_RMR_TRIPLET = DAT_RMR_TRIPLET { virtual_address: 0x2000, segment_length: 8, rmr_context: 4 };

fn extension(event: &DAT_EVENT) -> (DAT_IB_EXT_TYPE, DAT_IB_STATUS, u32) {
    // SAFETY: the extension data have the size of this record (asserted in `dapl_evd`), whose members are numbers and
    // pointers.
    let data = unsafe { (&raw const event.event_extension_data).cast::<DAT_IB_EXTENSION_EVENT_DATA>().read() };
    // SAFETY: any bits are a valid number.
    (data.r#type, data.status, unsafe { data.val.immed }.data)
}

#[test]
fn variadic_arguments_are_taken_from_registers_then_from_the_stack() {
    #[cfg(target_arch = "x86_64")]
    {
        let (saved, overflow) = ([1_u64, 2, 3, 4, 5, 6], [7_u64, 8]);
        // The first two registers contain the named parameters of the call.
        let mut state = [16_u64 | 176 << 32, overflow.as_ptr() as u64, saved.as_ptr() as u64];
        // SAFETY: the list has six arguments left.
        let taken: [u64; 6] = unsafe { arguments::take(state.as_mut_ptr().cast()) };
        assert_eq!(taken, [3, 4, 5, 6, 7, 8]);
    }
}

#[test]
fn atomic_operations_complete_with_an_event_of_the_extension() {
    let world = World::new(c"v2 atomics");
    let (client, _server) = world.pair(50);
    let local = address(&WORD);
    let remote = address(&REMOTE);
    assert_eq!(extended(client, DAT_IB_FETCH_AND_ADD_OP as i32, &[5, local, 11, remote, 0]), DAT_SUCCESS);
    assert_eq!(extended(client, DAT_IB_CMP_AND_SWAP_OP as i32, &[5, 6, local, 12, remote, 0]), DAT_SUCCESS);
    world.deliver();
    for (cookie, operation, kind) in
        [(11, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD), (12, DAT_IB_DTO_CMP_SWAP, DAT_IB_CMP_AND_SWAP)]
    {
        let (event, done) = world.completion();
        assert_eq!((event.event_number, done.operation), (DAT_IB_DTO_EVENT, operation));
        // SAFETY: every union member of a cookie has eight bytes, and any bits are a valid integer.
        assert_eq!((unsafe { done.user_cookie.as_64 }, done.status), (cookie, DAT_DTO_SUCCESS));
        assert_eq!(extension(&event), (kind, DAT_OP_SUCCESS, 0));
    }
}

#[test]
fn immediate_data_arrive_with_an_event_of_the_extension() {
    let world = World::new(c"v2 immediate");
    let (client, server) = world.pair(51);
    assert_eq!(call!(ep_post_recv_func(server, 0, null_mut(), cookie(1), 0)), DAT_SUCCESS);
    let words = [1, address(&WORD), 2, address(&REMOTE), 0xFFFF_FFFF_0000_0ABC, 0];
    assert_eq!(extended(client, DAT_IB_RDMA_WRITE_IMMED_OP as i32, &words), DAT_SUCCESS);
    world.deliver();
    let mut seen = [world.completion(), world.completion()].map(|(event, done)| {
        assert_eq!(event.event_number, DAT_IB_DTO_EVENT);
        (done.operation, extension(&event), done.transfered_length)
    });
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            (DAT_IB_DTO_RDMA_WRITE_IMMED, (DAT_IB_RDMA_WRITE_IMMED, DAT_OP_SUCCESS, 0), 8),
            (DAT_IB_DTO_RECV_IMMED, (DAT_IB_RDMA_WRITE_IMMED_DATA, DAT_OP_SUCCESS, 0xABC), 8)
        ]
    );
}

#[test]
fn receive_completion_reports_the_context_that_a_send_invalidates() {
    let world = World::new(c"v2 invalidate");
    let (client, server) = world.pair(52);
    let send = |invalidate, flags| {
        let context = 0x77;
        call!(ep_post_send_with_invalidate_func(client, 0, null_mut(), cookie(2), flags, invalidate, context))
    };
    for (invalidate, operation, context) in
        [(DAT_TRUE, DAT_DTO_RECEIVE_WITH_INVALIDATE, 0x77), (DAT_FALSE, DAT_DTO_RECEIVE, 0)]
    {
        assert_eq!(call!(ep_post_recv_func(server, 0, null_mut(), cookie(1), 0)), DAT_SUCCESS);
        assert_eq!(send(invalidate, 0), DAT_SUCCESS);
        world.deliver();
        let mut seen = [world.completion(), world.completion()].map(|(event, done)| {
            assert_eq!(event.event_number, DAT_DTO_COMPLETION_EVENT);
            (done.operation, done.rmr_context)
        });
        seen.sort_unstable();
        assert_eq!(seen, [(DAT_DTO_SEND, 0), (operation, context)]);
    }
    assert_eq!(send(DAT_TRUE, 0x8000), bad_argument(5));
    let mut iov = [WORD; 5];
    let post = |count, iov| call!(ep_post_send_with_invalidate_func(client, count, iov, cookie(2), 0, DAT_TRUE, 1));
    assert_eq!(post(5, iov.as_mut_ptr()), bad_argument(2));
    assert_eq!(post(1, null_mut()), bad_argument(3));
    let code = call!(ep_post_send_with_invalidate_func(null_mut(), 0, null_mut(), cookie(2), 0, DAT_TRUE, 1));
    assert_eq!(code, bad_handle(DAT_INVALID_HANDLE_EP));
}

#[test]
fn unsupported_extension_operations_are_refused() {
    let world = World::new(c"v2 refused operations");
    let (ep, _peer) = world.pair(53);
    let not_there = error(DAT_MODEL_NOT_SUPPORTED, 0);
    for op in [DAT_IB_UD_SEND_OP, DAT_IB_QUERY_COUNTERS_OP, DAT_IB_COLLECTIVE_BARRIER_OP, DAT_IB_UD_AH_FREE_OP] {
        assert_eq!(extended(ep, op as i32, &[0; 8]), not_there, "{op}");
    }
    for op in [DAT_IB_UD_AH_FREE_OP as i32 + 1, DAT_IB_OPEN_QUERY_OP as i32, -1, i32::MAX] {
        assert_eq!(extended(ep, op, &[0; 8]), bad_argument(2), "{op}");
    }
    assert_eq!(extended(null_mut(), DAT_IB_FETCH_AND_ADD_OP as i32, &[0; 8]), bad_handle(DAT_INVALID_HANDLE1));
    assert_eq!(extended(world.pz, DAT_IB_FETCH_AND_ADD_OP as i32, &[0; 8]), bad_handle(DAT_INVALID_HANDLE_EP));
    let (local, remote) = (address(&WORD), address(&REMOTE));
    let add = |local, remote, flags| extended(ep, DAT_IB_FETCH_AND_ADD_OP as i32, &[1, local, 1, remote, flags]);
    assert_eq!(add(0, remote, 0), bad_argument(3));
    assert_eq!(add(local, 0, 0), bad_argument(5));
    assert_eq!(add(local, remote, 0x8000), bad_argument(6));
    let short = DAT_LMR_TRIPLET { segment_length: 4, ..WORD };
    assert_eq!(add(address(&short), remote, 0), bad_argument(3));
    let odd = DAT_RMR_TRIPLET { virtual_address: 0x2001, ..REMOTE };
    assert_eq!(add(local, address(&odd), 0), bad_argument(5));
}
