//! Tests of registrations, of remote memory regions, and of reads into them.

use super::*;

fn lmr(world: &World, privileges: DAT_MEM_PRIV_FLAGS, va_type: DAT_VA_TYPE) -> Result<(H, u32, u32), DAT_RETURN> {
    let (mut lmr, mut local, mut remote) = (null_mut(), 0, 0);
    let region = DAT_REGION_DESCRIPTION { for_va: 0x10000 as *mut c_void };
    let code = call!(lmr_create_func(
        world.ia(),
        DAT_MEM_TYPE_VIRTUAL,
        region,
        0x1000,
        world.pz,
        privileges,
        va_type,
        &mut lmr,
        &mut local,
        &mut remote,
        null_mut(),
        null_mut()
    ));
    if code == DAT_SUCCESS { Ok((lmr, local, remote)) } else { Err(code) }
}

fn bind(rmr: H, lmr: H, triplet: DAT_LMR_TRIPLET, ep: H, va_type: DAT_VA_TYPE) -> Result<u32, DAT_RETURN> {
    let mut context = 0;
    let privileges = DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
    let code = call!(rmr_bind_func(rmr, lmr, &triplet, privileges, va_type, ep, cookie(5), 0, &mut context));
    if code == DAT_SUCCESS { Ok(context) } else { Err(code) }
}

#[test]
fn lmr_create_of_2_0_refuses_zero_based_addresses_without_support() {
    let world = World::new(c"v2 lmr");
    let all = DAT_MEM_PRIV_ALL_FLAG;
    let (lmr_handle, local, _) = lmr(&world, all, DAT_VA_TYPE_VA).unwrap();
    let param: DAT_LMR_PARAM = written(|out| call!(lmr_query_func(lmr_handle, DAT_LMR_FIELD_VA_TYPE, out)));
    assert_eq!((param.va_type, param.lmr_context, param.length), (DAT_VA_TYPE_VA, local, 0x1000));
    assert_eq!((param.mem_priv, param.registered_size), (all, 0x1000));
    let atomic = all | DAT_IB_MEM_PRIV_REMOTE_ATOMIC;
    let (with_atomics, ..) = lmr(&world, atomic, DAT_VA_TYPE_VA).unwrap();
    let param: DAT_LMR_PARAM = written(|out| call!(lmr_query_func(with_atomics, DAT_LMR_FIELD_ALL, out)));
    assert_eq!(param.mem_priv, atomic);
    assert_eq!(lmr(&world, all, DAT_VA_TYPE_ZB), Err(error(DAT_MODEL_NOT_SUPPORTED, 0)));
    assert_eq!(lmr(&world, all, 2), Err(bad_argument(7)));
    assert_eq!(lmr(&world, 0x800, DAT_VA_TYPE_VA), Err(bad_argument(6)));
    assert_eq!(call!(lmr_query_func(lmr_handle, DAT_LMR_FIELD_ALL + 1, null_mut())), bad_argument(2));
    assert_eq!(call!(lmr_query_func(lmr_handle, 0, null_mut())), bad_argument(3));

    let inside = DAT_LMR_TRIPLET { virtual_address: 0x10010, segment_length: 4, lmr_context: local };
    let outside = DAT_LMR_TRIPLET { segment_length: 0x1000, ..inside };
    for (list, code) in [([inside, inside], DAT_SUCCESS), ([inside, outside], bad_argument(2))] {
        assert_eq!(call!(lmr_sync_rdma_read_func(world.ia(), list.as_ptr(), 2)), code);
        assert_eq!(call!(lmr_sync_rdma_write_func(world.ia(), list.as_ptr(), 2)), code);
    }
    assert_eq!(call!(lmr_sync_rdma_read_func(world.ia(), null(), 1)), bad_argument(2));
    assert_eq!(call!(lmr_sync_rdma_read_func(world.ia(), null(), 0)), DAT_SUCCESS);
    assert_eq!(call!(lmr_free_func(lmr_handle)), DAT_SUCCESS);
}

#[test]
fn an_rmr_is_bound_to_the_lmr_of_its_triplet() {
    let world = World::new(c"v2 rmr");
    let (ep, _peer) = world.pair(20);
    let (lmr_handle, local, _) = lmr(&world, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA).unwrap();
    let rmr = written(|out| call!(rmr_create_for_ep_func(world.pz, out)));
    let scope = || written::<DAT_RMR_PARAM>(|out| call!(rmr_query_func(rmr, DAT_RMR_FIELD_RMR_SCOPE, out)));
    assert_eq!(scope().rmr_scope, DAT_RMR_SCOPE_EP);
    let part = DAT_LMR_TRIPLET { virtual_address: 0x10100, segment_length: 0x100, lmr_context: local };
    assert_eq!(bind(rmr, null_mut(), part, ep, DAT_VA_TYPE_VA), Err(bad_handle(DAT_INVALID_HANDLE_LMR)));
    let other = DAT_LMR_TRIPLET { lmr_context: local + 1, ..part };
    assert_eq!(bind(rmr, lmr_handle, other, ep, DAT_VA_TYPE_VA), Err(bad_argument(3)));
    assert_eq!(bind(rmr, lmr_handle, part, ep, DAT_VA_TYPE_ZB), Err(error(DAT_MODEL_NOT_SUPPORTED, 0)));
    assert_eq!(bind(rmr, lmr_handle, part, ep, 9), Err(bad_argument(5)));
    assert_eq!(bind(rmr, lmr_handle, part, null_mut(), DAT_VA_TYPE_VA), Err(bad_handle(DAT_INVALID_HANDLE_EP)));
    let code = call!(rmr_bind_func(rmr, lmr_handle, &part, 0, DAT_VA_TYPE_VA, ep, cookie(5), 0, null_mut()));
    assert_eq!(code, bad_argument(9));

    let context = bind(rmr, lmr_handle, part, ep, DAT_VA_TYPE_VA).unwrap();
    world.deliver();
    let event = next(world.dto).unwrap();
    assert_eq!(event.event_number, DAT_RMR_BIND_COMPLETION_EVENT);
    // SAFETY: the event number selects the union member.
    assert_eq!(unsafe { event.event_data.rmr_completion_event_data }.rmr_handle, rmr);
    let bound = scope();
    assert_eq!((bound.rmr_context, bound.lmr_triplet.segment_length), (context, 0x100));
    let nothing = DAT_LMR_TRIPLET { segment_length: 0, ..part };
    assert_eq!(bind(rmr, null_mut(), nothing, ep, DAT_VA_TYPE_VA), Ok(0), "an unbind looks at no LMR");
}

#[test]
fn read_to_rmr_needs_a_writable_context_that_contains_the_target() {
    let world = World::new(c"v2 read to rmr");
    let (ep, _peer) = world.pair(21);
    let (lmr_handle, local, own) = lmr(&world, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA).unwrap();
    let rmr = written(|out| call!(rmr_create_func(world.pz, out)));
    let part = DAT_LMR_TRIPLET { virtual_address: 0x10100, segment_length: 0x100, lmr_context: local };
    let context = bind(rmr, lmr_handle, part, ep, DAT_VA_TYPE_VA).unwrap();
    world.deliver();
    next(world.dto).expect("the EVD has the completion of the bind");
    let remote = DAT_RMR_TRIPLET { virtual_address: 0x9000, segment_length: 64, rmr_context: 77 };
    let read = |rmr_context, virtual_address, length| {
        let local = DAT_RMR_TRIPLET { virtual_address, segment_length: length, rmr_context };
        call!(ep_post_rdma_read_to_rmr_func(ep, &local, cookie(8), &remote, 0))
    };
    for (context, address) in [(context, 0x10180), (own, 0x10000)] {
        assert_eq!(read(context, address, 64), DAT_SUCCESS);
        world.deliver();
        let (event, done) = world.completion();
        assert_eq!((event.event_number, done.operation), (DAT_DTO_COMPLETION_EVENT, DAT_DTO_RDMA_READ));
        assert_eq!((done.status, done.transfered_length), (DAT_DTO_SUCCESS, 64));
    }
    let outside = error(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_WRITE);
    assert_eq!(read(context, 0x101C1, 64), outside);
    assert_eq!(read(context, 0x100FF, 1), outside);
    assert_eq!(read(0, 0x10180, 64), outside);
    let (readable, _, of_readable) = lmr(&world, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA).unwrap();
    assert_eq!(read(of_readable, 0x10000, 64), error(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE));
    let missing = call!(ep_post_rdma_read_to_rmr_func(ep, null(), cookie(8), &remote, 0));
    assert_eq!(missing, bad_argument(2));
    let target = DAT_RMR_TRIPLET { virtual_address: 0x10180, segment_length: 1, rmr_context: context };
    assert_eq!(call!(ep_post_rdma_read_to_rmr_func(ep, &target, cookie(8), null(), 0)), bad_argument(4));
    assert_eq!(call!(ep_post_rdma_read_to_rmr_func(ep, &target, cookie(8), &remote, 0x8000)), bad_argument(5));
    assert_eq!(call!(rmr_free_func(rmr)), DAT_SUCCESS);
    assert_eq!(read(context, 0x10180, 64), outside, "its context has gone with it");
    assert_eq!(call!(lmr_free_func(readable)), DAT_SUCCESS);
}
