//! Tests of creating, querying and modifying endpoints, of the checks of posts, and of the completions for which the CQ
//! of an EP's EVD is armed.

use super::*;
use crate::evd::{Evd, dapls_descriptor};
use crate::provider::ArmMode;
use crate::runtime::handle::from_handle;

#[test]
fn ep_create_checks_its_arguments_in_order() {
    let world = World::new(c"ep order");
    let mut ep = null_mut();
    let mut attr = query(world.ep()).ep_attr;
    attr.max_recv_dtos = 0;
    let odd = (&raw const attr).cast::<u8>().wrapping_add(1).cast::<DAT_EP_ATTR>();
    let create = |ia, pz, recv, request, conn, attr: *const DAT_EP_ATTR, out| {
        call!(dapl_ep_create(ia, pz, recv, request, conn, attr, out))
    };
    let (ia, dto, conn) = (world.ia(), world.dto, world.conn);
    assert_eq!(create(dto, dto, conn, conn, dto, odd, null_mut()), bad(Handle::Ia));
    assert_eq!(create(ia, dto, conn, conn, dto, odd, null_mut()), bad(Handle::Pz));
    assert_eq!(create(ia, world.pz, conn, conn, dto, odd, null_mut()), bad(Handle::EvdConn));
    assert_eq!(create(ia, world.pz, conn, conn, conn, odd, null_mut()), bad(Handle::EvdRecv));
    assert_eq!(create(ia, world.pz, dto, conn, conn, odd, null_mut()), bad(Handle::EvdRequest));
    assert_eq!(create(ia, world.pz, dto, dto, conn, odd, null_mut()), wrong(7));
    assert_eq!(create(ia, world.pz, dto, dto, conn, odd, &mut ep), wrong(6));
    assert_eq!(create(ia, world.pz, dto, dto, conn, &attr, &mut ep), wrong(6));
    assert_eq!(ep, null_mut());
    attr.max_recv_dtos = 50_000;
    assert_eq!(create(ia, world.pz, dto, dto, conn, &attr, &mut ep), DAT_SUCCESS);
    assert_eq!(query(ep).ep_attr.max_recv_dtos, 64, "clamped");
    assert_eq!(call!(dapl_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}

#[test]
fn query_returns_given_attributes_and_writes_nothing_for_an_unknown_mask() {
    let world = World::new(c"query");
    let ep = world.ep();
    let param = query(ep);
    assert_eq!((param.pz_handle, param.recv_evd_handle), (world.pz, world.dto));
    assert_eq!((param.request_evd_handle, param.connect_evd_handle), (world.dto, world.conn));
    assert_eq!((param.ep_state, param.srq_handle), (DAT_EP_STATE_UNCONNECTED, null_mut()));
    assert_eq!(read(param.local_ia_address_ptr.cast(), 8), [2, 0, 0, 0, 127, 0, 0, 1]);
    assert_eq!((param.ep_attr.max_recv_dtos, param.ep_attr.max_request_iov), (16, 4));
    let mut untouched = DAT_EP_PARAM { ep_state: 99, ..param };
    assert_eq!(call!(dapl_ep_query(ep, 0x800, &mut untouched)), DAT_SUCCESS);
    assert_eq!(untouched.ep_state, 99);
    assert_eq!(call!(dapl_ep_query(ep, 1, null_mut())), wrong(3));
    finish(world, &[ep], &[]);
}

#[test]
fn ep_modify_changes_all_or_nothing() {
    let world = World::new(c"nothing");
    let ep = world.ep();
    let modify = |mask, change: fn(&mut DAT_EP_PARAM)| {
        let mut param = query(ep);
        change(&mut param);
        call!(dapl_ep_modify(ep, mask, &param))
    };
    assert_eq!(call!(dapl_ep_modify(ep, 0, null())), wrong(3));
    assert_eq!(modify(DAT_EP_FIELD_EP_STATE, |_| ()), wrong(2));
    assert_eq!(modify(DAT_EP_FIELD_PZ_HANDLE, |p| p.pz_handle = p.recv_evd_handle), wrong(3));
    assert_eq!(modify(DAT_EP_FIELD_CONNECT_EVD_HANDLE, |p| p.connect_evd_handle = p.recv_evd_handle), wrong(3));
    let both = DAT_EP_FIELD_CONNECT_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
    let spoil = |p: &mut DAT_EP_PARAM| (p.connect_evd_handle, p.ep_attr.max_recv_dtos) = (null_mut(), 65);
    assert_eq!(modify(both, spoil), wrong(3));
    assert_eq!(query(ep).connect_evd_handle, world.conn);
    assert_eq!(modify(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV, |p| p.ep_attr.max_rdma_write_iov = 5), wrong(3));
    assert_eq!(modify(DAT_EP_FIELD_EP_ATTR_ALL, |p| p.ep_attr.qos = 4), DAT_SUCCESS);
    assert_eq!(query(ep).ep_attr.qos, 4);

    let (client, server) = world.pair(5);
    let param = query(client);
    let code = call!(dapl_ep_modify(client, DAT_EP_FIELD_EP_ATTR_QOS, &param));
    assert_eq!(code, in_state(State::EpConnected));
    finish(world, &[ep, client, server], &[]);
}

#[test]
fn replaced_queue_pair_flushes_its_receives() {
    let world = World::new(c"rebuild");
    let ep = world.ep_with(null_mut(), world.dto, world.conn);
    let mut param = query(ep);
    param.pz_handle = world.pz;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param)), DAT_SUCCESS);
    assert_eq!(recv(ep, 1), DAT_SUCCESS, "an EP with a PZ has a QP");
    let other = world.evd(DAT_EVD_DTO_FLAG);
    param.recv_evd_handle = other;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE, &param)), DAT_SUCCESS);
    assert_eq!(world.completions(), [(1, DAT_DTO_ERR_FLUSHED)]);
    assert_eq!(call!(dapl_evd_free(other)), in_state(State::EvdInUse));
    param.ep_attr.max_recv_dtos = 1;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param)), DAT_SUCCESS);
    assert_eq!((recv(ep, 2), recv(ep, 3)), (DAT_SUCCESS, Error::Exhausted(crate::error::Resource::Memory).code()));
    param.ep_attr.max_recv_iov = 4;
    assert_eq!(call!(dapl_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, &param)), DAT_SUCCESS);
    assert!(next(other).is_none(), "nothing has changed");
    (param.recv_evd_handle, param.pz_handle) = (world.dto, null_mut());
    let mask = DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_PZ_HANDLE;
    assert_eq!(call!(dapl_ep_modify(ep, mask, &param)), DAT_SUCCESS);
    assert_eq!(recv(ep, 4), in_state(State::EpNotReady), "an EP without a PZ has no QP");
    assert!(next(other).is_some());
    assert_eq!((call!(dapl_evd_free(other)), call!(dapl_pz_free(world.pz))), (DAT_SUCCESS, DAT_SUCCESS));
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}

#[test]
fn invalid_posts_are_refused_without_a_completion() {
    let world = World::new(c"posts");
    let (client, server) = world.pair(5);
    let cookie = DAT_CONTEXT { as_64: 1 };
    let segment = DAT_LMR_TRIPLET { lmr_context: 1, pad: 0, virtual_address: 0, segment_length: 8 };
    let mut list = [segment; 5];
    let list = list.as_mut_ptr();
    let remote = DAT_RMR_TRIPLET { rmr_context: 1, pad: 0, target_address: 0, segment_length: 8 };
    let send = |count, list, flags| call!(dapl_ep_post_send(client, count, list, cookie, flags));
    let write = |count, list, remote, flags| call!(dapl_ep_post_rdma_write(client, count, list, cookie, remote, flags));
    assert_eq!((send(-1, list, 0), send(5, list, 0), send(1, null_mut(), 0)), (wrong(2), wrong(2), wrong(3)));
    assert_eq!((send(1, list, 0x20), send(1, list, DAT_COMPLETION_UNSIGNALLED_FLAG)), (wrong(5), wrong(5)));
    assert_eq!((write(1, list, null(), 0), write(1, list, &remote, 0x40)), (wrong(5), wrong(6)));
    assert_eq!(call!(dapl_ep_post_rdma_read(client, 1, list, cookie, null(), 0)), wrong(5));
    assert_eq!(call!(dapl_ep_post_recv(client, 5, list, cookie, 0)), wrong(2));
    assert_eq!(call!(dapl_ep_post_send(world.pz, 1, list, cookie, 0)), bad(Handle::Ep));
    assert_eq!(world.completions(), []);
    assert_eq!(send(4, list, DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_BARRIER_FENCE_FLAG), DAT_SUCCESS);
    assert_eq!(write(2, list, &remote, 0), DAT_SUCCESS);
    assert_eq!(world.completions(), [(1, DAT_DTO_SUCCESS)]);
    finish(world, &[client, server], &[]);
}

#[test]
fn ep_is_idle_without_outstanding_work() {
    let world = World::new(c"idle");
    let ep = world.ep();
    let idle = || {
        let (mut state, mut recv, mut request) = (0, 9, 9);
        assert_eq!(call!(dapl_ep_get_status(ep, &mut state, &mut recv, &mut request)), DAT_SUCCESS);
        (recv, request)
    };
    assert_eq!(idle(), (DAT_TRUE, DAT_TRUE));
    assert_eq!(recv(ep, 1), DAT_SUCCESS);
    assert_eq!(idle(), (DAT_FALSE, DAT_TRUE));
    finish(world, &[ep], &[]);
}

#[test]
fn ep_handle_is_refused_as_cr_and_as_srq() {
    let world = World::new(c"kinds");
    let (ep, mut out) = (world.ep(), null_mut());
    assert_eq!(call!(dapl_cr_handoff(ep, 1)), bad(Handle::Cr));
    let (pz, dto, conn) = (world.pz, world.dto, world.conn);
    let code = call!(dapl_ep_create_with_srq(world.ia(), pz, dto, dto, conn, ep, null(), &mut out));
    assert_eq!(code, bad(Handle::Srq));
    finish(world, &[ep], &[]);
}

#[test]
fn evd_with_solicited_receives_and_other_work_is_armed_in_mixed_mode() {
    let world = World::new(c"solicited");
    let create = |recv, request, flags| {
        let (mut ep, mut attr) = (null_mut(), query(world.ep()).ep_attr);
        attr.recv_completion_flags = flags;
        assert_eq!(call!(dapl_ep_create(world.ia(), world.pz, recv, request, world.conn, &attr, &mut ep)), DAT_SUCCESS);
        ep
    };
    let evd = world.evd(DAT_EVD_DTO_FLAG);
    let object = from_handle::<Evd<FakeProvider>>(evd, Handle::Plain).unwrap().to_arc();
    dapls_descriptor::descriptor(&object).unwrap();
    dapls_descriptor::arm(&object).unwrap();
    let mode = || object.cq().unwrap().armed_mode();
    let first = create(evd, world.dto, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    assert_eq!(mode(), Some(ArmMode::Solicited));
    for (recv, request) in [(evd, world.dto), (world.dto, evd)] {
        let other = create(recv, request, DAT_COMPLETION_DEFAULT_FLAG);
        assert_eq!(mode(), Some(ArmMode::Mixed), "other receives or requests");
        assert_eq!(call!(dapl_ep_free(other)), DAT_SUCCESS);
        dapls_descriptor::arm(&object).unwrap();
        assert_eq!(mode(), Some(ArmMode::Solicited));
    }
    let mut param = query(first);
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
    assert_eq!(call!(dapl_ep_modify(first, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param)), DAT_SUCCESS);
    assert_eq!(mode(), Some(ArmMode::Mixed), "only other receives");
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}
