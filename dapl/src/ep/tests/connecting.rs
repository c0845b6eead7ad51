//! Tests of connection set-up: connect, accept, reject and timeout.

use super::*;

#[test]
fn both_sides_get_established_and_only_the_active_side_gets_data() {
    let world = World::new(c"est");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(1 << 40));
    world.connect(client, 1 << 40, b"are you there?");
    assert_eq!(state(client), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);

    let event = next(world.requests).unwrap();
    // SAFETY: this EVD receives connection requests only, so this union member is set.
    let arrival = unsafe { event.event_data.cr_arrival_event_data };
    // SAFETY: both members are handles.
    assert_eq!((unsafe { arrival.sp_handle.psp_handle }, arrival.conn_qual), (psp, 1 << 40));
    let cr = arrival.cr_handle;
    let Asked { param, private_data } = asked(cr);
    assert_eq!(private_data, b"are you there?");
    assert_eq!(read(param.private_data, 256)[14..], [0; 242]);
    assert_eq!((param.remote_port_qual, param.local_ep_handle), (9, null_mut()));
    assert_eq!(read(param.remote_ia_address_ptr.cast(), 8), [2, 0, 0, 9, 127, 0, 0, 1]);

    // The consumer changes the private data in place, and passes the same memory to the accept.
    //
    // SAFETY: the consumer may write the CR's 256 bytes.
    unsafe { param.private_data.cast::<u8>().write(b'A') };
    assert_eq!(call!(dapl_cr_accept(cr, server, 3, param.private_data)), DAT_SUCCESS);
    assert_eq!(state(server), DAT_EP_STATE_COMPLETION_PENDING);
    assert_eq!(call!(dapl_cr_accept(cr, server, 0, null_mut())), bad(Handle::Cr), "consumed");
    world.deliver();
    assert_eq!(read(param.private_data, 3), b"Are", "still there");

    let (passive, active) = (connection(&next(world.conn).unwrap()), connection(&next(world.conn).unwrap()));
    assert_eq!((passive.ep_handle, passive.private_data_size, passive.private_data), (server, 0, null_mut()));
    assert_eq!((active.ep_handle, active.private_data_size), (client, 3));
    assert_eq!(read(active.private_data, 256)[..4], *b"Are\0");
    assert_eq!((state(client), state(server)), (DAT_EP_STATE_CONNECTED, DAT_EP_STATE_CONNECTED));
    assert_eq!((query(client).remote_port_qual, query(server).remote_port_qual), (1 << 40, 9));
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn receive_posted_before_connect_completes_and_send_of_the_acceptor_waits() {
    let world = World::new(c"early");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    assert_eq!(recv(client, 1), DAT_SUCCESS);
    assert_eq!(send(client, 2), in_state(State::EpUnconnected));
    world.connect(client, 5, &[]);
    assert_eq!(send(client, 2), in_state(State::EpActivePending));
    assert_eq!(call!(dapl_cr_accept(world.request(), server, 0, null_mut())), DAT_SUCCESS);
    assert_eq!(send(server, 3), DAT_SUCCESS, "held until the connection is established");
    assert_eq!(world.completions(), []);
    world.deliver();
    assert_eq!(world.completions(), [(1, DAT_DTO_SUCCESS), (3, DAT_DTO_SUCCESS)]);
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn reject_event_depends_on_the_rejecting_side_and_reset_allows_retry() {
    let world = World::new(c"refuse");
    let client = world.ep();
    world.connect(client, 5, &[]);
    assert_eq!(world.connection_events(), [(client, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)], "no program listens");
    assert_eq!(world.connect_for(client, 5, 1, &[]), in_state(State::EpDisconnected));
    assert_eq!(call!(dapl_ep_reset(client)), DAT_SUCCESS);

    let psp = world.psp(5);
    world.connect(client, 5, &[]);
    let cr = world.request();
    assert_eq!(call!(dapl_cr_reject(cr)), DAT_SUCCESS);
    assert_eq!(call!(dapl_cr_reject(cr)), bad(Handle::Cr));
    assert_eq!(world.connection_events(), [(client, DAT_CONNECTION_EVENT_PEER_REJECTED)]);
    assert_eq!(call!(dapl_ep_reset(client)), DAT_SUCCESS);
    assert_eq!(read(query(client).remote_ia_address_ptr.cast(), 28), [0; 28]);
    finish(world, &[client], &[(psp, free_psp)]);
}

#[test]
fn unreachable_address_leaves_the_ep_unchanged() {
    let world = World::new(c"far");
    let client = world.ep();
    assert_eq!(recv(client, 1), DAT_SUCCESS);
    let mut far = ipv4([192, 0, 2, 1]);
    let code = call!(dapl_ep_connect(client, far.as_mut_ptr().cast(), 5, 1000, 0, null_mut(), 0, 0));
    assert_eq!(code, Error::InvalidAddress(crate::error::AddressProblem::Unreachable).code());
    assert_eq!((state(client), world.connection_events()), (DAT_EP_STATE_UNCONNECTED, vec![]));
    assert_eq!(world.completions(), [], "receives stay");
    finish(world, &[client], &[]);
}

#[test]
fn ep_connect_checks_its_arguments_in_order() {
    let world = World::new(c"order");
    let (ready, unconnectable, bare) =
        (world.ep(), world.ep_with(world.pz, world.dto, null_mut()), world.ep_with(null_mut(), world.dto, world.conn));
    let mut address = ipv4([127, 0, 0, 1]);
    let address = address.as_mut_ptr().cast::<DAT_SOCK_ADDR>();
    let connect = |ep, address, timeout, size, qos, flags| {
        call!(dapl_ep_connect(ep, address, 5, timeout, size, null_mut(), qos, flags))
    };
    assert_eq!(connect(world.pz, null_mut(), 0, 0, 0, 0), bad(Handle::Ep));
    assert_eq!(connect(unconnectable, null_mut(), 0, 0, 0, 0), wrong(2));
    assert_eq!(connect(unconnectable, address, 0, 0, 0, 0), bad(Handle::EvdConn));
    assert_eq!(connect(bare, address, 0, 0, 0, 0), wrong(4));
    assert_eq!(connect(bare, address, 1, 0, 1, 0), in_state(State::EpNotReady));
    assert_eq!(connect(ready, address, 1, -1, DAT_QOS_PREMIUM, 0), Error::ModelNotSupported.code());
    assert_eq!(connect(ready, address, 1, -1, 0, 1), Error::ModelNotSupported.code());
    assert_eq!(connect(ready, address, 1, -1, 0, 0), wrong(5));
    assert_eq!(connect(ready, address, 1, 93, 0, 0), wrong(5));
    assert_eq!(connect(ready, address, 1, 4, 0, 0), wrong(6));
    assert_eq!((state(ready), recv(bare, 1)), (DAT_EP_STATE_UNCONNECTED, in_state(State::EpNotReady)));
    finish(world, &[ready, unconnectable, bare], &[]);
}

#[test]
fn dup_connect_uses_the_address_of_the_other_ep() {
    let world = World::new(c"dup");
    let (first, server) = world.pair(77);
    let (second, psp) = (world.ep(), world.psp(77));
    let dup = |ep, other, timeout, size| call!(dapl_ep_dup_connect(ep, other, timeout, size, null_mut(), 0));
    assert_eq!(dup(second, world.dto, 1, 0), bad(Handle::Ep));
    assert_eq!(dup(second, first, 0, 0), wrong(3));
    assert_eq!(dup(second, second, 1, 0), in_state(State::EpUnconnected));
    assert_eq!(dup(second, first, DAT_TIMEOUT_INFINITE, 93), wrong(4));
    assert_eq!(dup(second, first, DAT_TIMEOUT_INFINITE, 1), wrong(5));
    assert_eq!(dup(second, first, DAT_TIMEOUT_INFINITE, 0), DAT_SUCCESS);
    world.deliver();
    assert_eq!(call!(dapl_cr_reject(world.request())), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(second, DAT_CONNECTION_EVENT_PEER_REJECTED)]);
    finish(world, &[first, second, server], &[(psp, free_psp)]);
}

#[test]
fn timeout_is_reported_once_and_a_late_accept_fails() {
    let world = World::new(c"time");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    assert_eq!((recv(client, 1), recv(server, 2)), (DAT_SUCCESS, DAT_SUCCESS));
    assert_eq!(world.connect_for(client, 5, 2_000, &[]), DAT_SUCCESS);
    world.deliver();
    let event = wait(world.conn);
    assert_eq!((connection(&event).ep_handle, event.event_number), (client, DAT_CONNECTION_EVENT_TIMED_OUT));
    assert_eq!((state(client), world.completions()), (DAT_EP_STATE_DISCONNECTED, vec![(1, DAT_DTO_ERR_FLUSHED)]));

    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(server, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR)]);
    assert_eq!(state(server), DAT_EP_STATE_DISCONNECTED);
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn reply_before_the_timeout_cancels_it() {
    let world = World::new(c"in time");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    assert_eq!(world.connect_for(client, 5, 20_000_000, &[]), DAT_SUCCESS);
    world.deliver();
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    let ep = crate::runtime::handle::from_handle::<crate::ep::Ep<FakeProvider>>(client, Handle::Ep).unwrap();
    assert!(ep.core.lock().timeout.is_none());
    // Calls the expiry function, as the timer thread does when another thread has decided the outcome of the attempt at
    // the same time.
    let attempt = ep.core.lock().attempt;
    crate::runtime::timer::OnExpiry::expired(&*ep, attempt);
    drop(ep);
    assert_eq!(state(client), DAT_EP_STATE_CONNECTED);
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn request_survives_an_accept_that_fails_its_checks() {
    let world = World::new(c"crossed");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    world.connect(client, 5, &[]);
    let cr = world.request();
    assert_eq!(call!(dapl_cr_accept(cr, null_mut(), 0, null_mut())), bad(Handle::Ep));
    assert_eq!(call!(dapl_cr_accept(cr, server, 4, null_mut())), wrong(4));
    assert_eq!(world.accept(cr, server, &[0; 197]), wrong(3));
    assert_eq!(
        world.accept(cr, client, &[]),
        in_state(State::EpActivePending),
        "an EP that is connecting cannot accept a request"
    );
    let bare = world.ep_with(null_mut(), world.dto, world.conn);
    assert_eq!(world.accept(cr, bare, &[]), bad(Handle::Ep));
    assert_eq!(world.accept(cr, server, &[]), DAT_SUCCESS);
    assert_eq!(world.connection_events().len(), 2);
    finish(world, &[client, server, bare], &[(psp, free_psp)]);
}
