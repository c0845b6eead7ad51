//! Tests of service points: the checks of their creation, how requests arrive, are rejected or handed off, and which
//! objects outlive a service point.

use super::*;
use crate::error::Resource;
use crate::runtime::handle::ObjectId;

#[test]
fn psp_create_checks_its_arguments_in_order() {
    let world = World::new(c"psp order");
    let mut psp = null_mut();
    let create = |qual, evd, flags, out| call!(dapl_psp_create(world.ia(), qual, evd, flags, out));
    assert_eq!(create(0, world.pz, 2, null_mut()), bad(Handle::EvdCr));
    assert_eq!(create(0, world.conn, 2, null_mut()), wrong(5));
    assert_eq!(create(0, world.conn, 2, &mut psp), bad(Handle::EvdCr));
    assert_eq!(create(0, world.requests, 2, &mut psp), wrong(4));
    assert_eq!(create(0, world.requests, 0, &mut psp), wrong(2));
    assert_eq!(create(9, world.requests, 0, &mut psp), DAT_SUCCESS);
    let mut other = null_mut();
    assert_eq!(create(9, world.requests, 0, &mut other), 0x8002_0000, "a psp of this IA");
    assert_eq!(other, null_mut());
    let ep = world.ep();
    let clash = call!(dapl_rsp_create(world.ia(), 9, ep, world.requests, &mut other));
    assert_eq!((clash, state(ep)), (0x0002_0000, DAT_EP_STATE_UNCONNECTED), "a conflict of an RSP");
    assert_eq!(free_psp(psp), DAT_SUCCESS);
    assert_eq!(create(9, world.requests, 0, &mut psp), DAT_SUCCESS, "free again");
    finish(world, &[ep], &[(psp, free_psp)]);
}

#[test]
fn failed_psp_create_does_not_remove_the_psp_of_the_same_qualifier() {
    let world = World::new(c"psp failed");
    let (psp, mut other) = (world.psp(9), null_mut());
    let mut create = || call!(dapl_psp_create(world.ia(), 9, world.requests, 0, &mut other));
    world.opened.ia.provider.at_next_listen(|_| Err(Error::Exhausted(Resource::Memory)));
    assert_eq!(create(), Error::Exhausted(Resource::Memory).code());
    assert_eq!(create(), 0x8002_0000, "a psp of this IA");
    finish(world, &[], &[(psp, free_psp)]);
}

#[test]
fn service_point_freed_during_its_create_does_not_listen() {
    let world = World::new(c"freed in create");
    let (ep, mut point) = (world.ep(), null_mut());
    let provider = &world.opened.ia.provider;
    let freed = |free: Free| {
        move |id: ObjectId| {
            assert_eq!(free(id.handle as H), DAT_SUCCESS);
            Ok(())
        }
    };
    provider.at_next_listen(freed(free_psp));
    assert_eq!(call!(dapl_psp_create(world.ia(), 9, world.requests, 0, &mut point)), bad(Handle::Psp));
    provider.at_next_listen(freed(free_rsp));
    assert_eq!(call!(dapl_rsp_create(world.ia(), 9, ep, world.requests, &mut point)), bad(Handle::Rsp));
    assert_eq!(state(ep), DAT_EP_STATE_UNCONNECTED);
    let psp = world.psp(9);
    finish(world, &[ep], &[(psp, free_psp)]);
}

#[test]
fn psp_create_any_chooses_a_free_qualifier_below_65536() {
    let world = World::new(c"any");
    let mut points = Vec::new();
    let mut quals = std::collections::BTreeSet::new();
    let any = |qual, out| call!(dapl_psp_create_any(world.ia(), qual, world.requests, 0, out));
    let mut psp = null_mut();
    let mut qual = 0;
    assert_eq!((any(&mut qual, null_mut()), any(null_mut(), &mut psp)), (wrong(5), wrong(2)));
    for _ in 0..20 {
        assert_eq!(any(&mut qual, &mut psp), DAT_SUCCESS);
        let mut param = MaybeUninit::uninit();
        assert_eq!(call!(dapl_psp_query(psp, 0, param.as_mut_ptr())), DAT_SUCCESS);
        // SAFETY: the call has succeeded, so it has written the record.
        let param: DAT_PSP_PARAM = unsafe { param.assume_init() };
        assert_eq!((param.conn_qual, param.evd_handle, param.psp_flags), (qual, world.requests, 0));
        assert!((1024..65536).contains(&qual) && quals.insert(qual));
        points.push((psp, free_psp as Free));
    }
    finish(world, &[], &points);
}

#[test]
fn requests_outlive_their_psp() {
    let world = World::new(c"zombie");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    world.connect(client, 5, b"x");
    assert_eq!(free_psp(psp), DAT_SUCCESS);
    assert_eq!(free_psp(psp), bad(Handle::Psp));
    let cr = world.request();
    assert_eq!(call!(dapl_evd_free(world.requests)), DAT_SUCCESS, "the freed psp is no longer in use");
    assert_eq!(asked(cr).private_data, b"x");
    assert_eq!(world.accept(cr, server, &[]), DAT_SUCCESS);
    assert_eq!(world.connection_events().len(), 2);
    let late = world.ep();
    world.connect(late, 5, &[]);
    assert_eq!(world.connection_events(), [(late, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)]);
    let world = World { requests: world.evd(DAT_EVD_CR_FLAG), ..world };
    finish(world, &[client, server, late], &[]);
}

#[test]
fn psp_with_provider_flag_creates_one_ep_per_request() {
    let world = World::new(c"makes");
    let client = world.ep();
    let mut psp = null_mut();
    assert_eq!(call!(dapl_psp_create(world.ia(), 5, world.requests, DAT_PSP_PROVIDER_FLAG, &mut psp)), DAT_SUCCESS);
    world.connect(client, 5, &[]);
    let cr = world.request();
    let made = asked(cr).param.local_ep_handle;
    assert_eq!(state(made), DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
    assert_eq!(call!(dapl_ep_free(made)), in_state(State::EpTentativePending));
    assert_eq!(world.accept(cr, client, &[]), bad(Handle::Ep), "the provider has created an EP for this request");
    assert_eq!(world.accept(cr, null_mut(), &[]), bad(Handle::Ep), "not configured yet");

    let mut param = query(made);
    (param.pz_handle, param.connect_evd_handle) = (world.pz, world.conn);
    (param.recv_evd_handle, param.request_evd_handle) = (world.dto, world.dto);
    let mask = DAT_EP_FIELD_PZ_HANDLE
        | DAT_EP_FIELD_RECV_EVD_HANDLE
        | DAT_EP_FIELD_REQUEST_EVD_HANDLE
        | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
    assert_eq!(call!(dapl_ep_modify(made, mask, &param)), DAT_SUCCESS);
    assert_eq!(recv(made, 1), DAT_SUCCESS);
    assert_eq!(world.accept(cr, null_mut(), &[]), DAT_SUCCESS);
    assert_eq!(
        world.connection_events(),
        [(made, DAT_CONNECTION_EVENT_ESTABLISHED), (client, DAT_CONNECTION_EVENT_ESTABLISHED)]
    );

    // The reject of a request frees the EP that was created for it.
    let second = world.ep();
    world.connect(second, 5, &[]);
    let cr = world.request();
    let made_too = asked(cr).param.local_ep_handle;
    assert_eq!(call!(dapl_cr_reject(cr)), DAT_SUCCESS);
    assert_eq!(call!(dapl_ep_free(made_too)), bad(Handle::Ep));
    assert_eq!(world.connection_events(), [(second, DAT_CONNECTION_EVENT_PEER_REJECTED)]);
    finish(world, &[client, made, second], &[(psp, free_psp)]);
}

#[test]
fn rsp_accepts_one_request() {
    let world = World::new(c"rsp");
    let (client, server, late) = (world.ep(), world.ep(), world.ep());
    let mut rsp = null_mut();
    let create = |ep, evd, out| call!(dapl_rsp_create(world.ia(), 5, ep, evd, out));
    assert_eq!(create(null_mut(), null_mut(), null_mut()), bad(Handle::Ep));
    assert_eq!(create(server, null_mut(), null_mut()), bad(Handle::EvdCr));
    assert_eq!(create(server, world.conn, null_mut()), wrong(5));
    assert_eq!(create(server, world.conn, &mut rsp), bad(Handle::EvdCr));
    assert_eq!(state(server), DAT_EP_STATE_UNCONNECTED);
    assert_eq!(create(server, world.requests, &mut rsp), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_RESERVED);
    assert_eq!(call!(dapl_ep_free(server)), in_state(State::EpReserved));
    assert_eq!(create(server, world.requests, &mut rsp), in_state(State::EpReserved));

    world.connect(client, 5, &[]);
    assert_eq!(state(server), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    world.connect(late, 5, &[]);
    assert_eq!(
        world.connection_events(),
        [(late, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)],
        "an RSP accepts one request only"
    );
    let cr = world.request();
    assert_eq!(asked(cr).param.local_ep_handle, server);
    assert_eq!(free_rsp(rsp), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, "the request is still pending");
    assert_eq!(world.accept(cr, null_mut(), &[]), DAT_SUCCESS);
    assert_eq!(world.connection_events().len(), 2);
    finish(world, &[client, server, late], &[]);
}

#[test]
fn reject_releases_the_ep_of_the_rsp() {
    let world = World::new(c"rsp no");
    let (client, server) = (world.ep(), world.ep());
    let mut rsp = null_mut();
    assert_eq!(call!(dapl_rsp_create(world.ia(), 5, server, world.requests, &mut rsp)), DAT_SUCCESS);
    world.connect(client, 5, &[]);
    assert_eq!(call!(dapl_cr_reject(world.request())), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_UNCONNECTED);
    assert_eq!(world.connection_events(), [(client, DAT_CONNECTION_EVENT_PEER_REJECTED)]);
    assert_eq!(free_rsp(rsp), DAT_SUCCESS);
    assert_eq!(call!(dapl_rsp_create(world.ia(), 5, server, world.requests, &mut rsp)), DAT_SUCCESS);
    assert_eq!(free_rsp(rsp), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_UNCONNECTED, "the ep of an unused rsp is free again");
    finish(world, &[client, server], &[]);
}

#[test]
fn handoff_passes_a_request_to_another_service_point() {
    let world = World::new(c"hand-off");
    let (client, server, reserved) = (world.ep(), world.ep(), world.ep());
    let (first, second) = (world.psp(5), world.psp(6));
    world.connect(client, 5, b"keep");
    let cr = world.request();
    assert_eq!(call!(dapl_cr_handoff(cr, 0)), wrong(2));
    assert_eq!(call!(dapl_cr_handoff(cr, 77)), wrong(2), "no program listens on qualifier 77");
    assert_eq!(asked(cr).private_data, b"keep", "the request stays pending");
    assert_eq!(call!(dapl_cr_handoff(cr, 6)), DAT_SUCCESS);
    assert_eq!(call!(dapl_cr_handoff(cr, 6)), bad(Handle::Cr), "the request was handed off already");
    world.deliver();
    let handed = world.request();
    assert_eq!(asked(handed).private_data, b"keep");
    assert_eq!(world.accept(handed, server, &[]), DAT_SUCCESS);
    assert_eq!(world.connection_events().len(), 2);

    let mut rsp = null_mut();
    assert_eq!(call!(dapl_rsp_create(world.ia(), 7, reserved, world.requests, &mut rsp)), DAT_SUCCESS);
    let late = world.ep();
    world.connect(late, 7, &[]);
    assert_eq!(call!(dapl_cr_handoff(world.request(), 5)), DAT_SUCCESS);
    assert_eq!(state(reserved), DAT_EP_STATE_UNCONNECTED, "the reserved ep is free again");
    world.deliver();
    assert_eq!(call!(dapl_cr_reject(world.request())), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(late, DAT_CONNECTION_EVENT_PEER_REJECTED)]);
    finish(world, &[client, server, reserved, late], &[(rsp, free_rsp), (first, free_psp), (second, free_psp)]);
}

#[test]
fn request_is_rejected_and_the_rsp_kept_if_the_evd_is_full() {
    use crate::evd::{Evd, Event, dapls_evd};
    let world = World::new(c"full");
    let (client, server) = (world.ep(), world.ep());
    let full = world.evd(DAT_EVD_CR_FLAG);
    let mut rsp = null_mut();
    assert_eq!(call!(dapl_rsp_create(world.ia(), 5, server, full, &mut rsp)), DAT_SUCCESS);
    let evd = crate::runtime::handle::from_handle::<Evd<FakeProvider>>(full, Handle::EvdCr).unwrap();
    while dapls_evd::post(&evd, Event::Software { pointer: 0 }).is_ok() {}
    drop(evd);
    world.connect(client, 5, &[]);
    assert_eq!(world.connection_events(), [(client, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)]);
    assert_eq!(state(server), DAT_EP_STATE_RESERVED);
    while next(full).is_some() {}
    assert_eq!(call!(dapl_ep_reset(client)), DAT_SUCCESS);
    world.connect(client, 5, &[]);
    assert!(next(full).is_some());
    assert_eq!(state(server), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}
