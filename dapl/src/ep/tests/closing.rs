//! Tests of the end of a connection or of an attempt to connect (disconnect, reset, free, close of the IA, full EVD):
//! its events, and the flush of posted work.

use super::*;
use crate::cno::dapl_cno::{dapl_cno_create, dapl_cno_free, dapl_cno_modify_agent};
use crate::evd::{Evd, Event, dapls_evd};
use crate::runtime::handle::from_handle;

const DISCONNECTED: DAT_EVENT_NUMBER = DAT_CONNECTION_EVENT_DISCONNECTED;

#[test]
fn repeated_disconnects_give_one_event_per_side() {
    for flags in [DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG] {
        let world = World::new(c"both");
        let (client, server) = world.pair(5);
        assert_eq!((disconnect(client, flags), disconnect(server, flags)), (DAT_SUCCESS, DAT_SUCCESS));
        let mut reported = world.connection_events();
        reported.sort_unstable();
        let mut wanted = [(client, DISCONNECTED), (server, DISCONNECTED)];
        wanted.sort_unstable();
        assert_eq!(reported, wanted);
        assert_eq!((disconnect(client, flags), disconnect(server, 7)), (DAT_SUCCESS, DAT_SUCCESS));
        assert_eq!((state(client), world.connection_events()), (DAT_EP_STATE_DISCONNECTED, vec![]));
        finish(world, &[client, server], &[]);
    }
}

#[test]
fn abrupt_disconnect_ends_a_graceful_one() {
    let world = World::new(c"cut");
    let (client, server) = world.pair(5);
    assert_eq!(disconnect(client, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
    assert_eq!(state(client), DAT_EP_STATE_DISCONNECT_PENDING);
    assert_eq!(disconnect(client, DAT_CLOSE_GRACEFUL_FLAG), wrong(2));
    assert_eq!(send(client, 1), in_state(State::EpDisconnectPending));
    assert_eq!(disconnect(client, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
    let reported = world.connection_events();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported.contains(&(client, DISCONNECTED)) && reported.contains(&(server, DISCONNECTED)));
    finish(world, &[client, server], &[]);
}

#[test]
fn posts_on_an_ended_connection_are_flushed_in_order() {
    let world = World::new(c"marker");
    let (client, server) = world.pair(5);
    assert_eq!(recv(client, 1), DAT_SUCCESS);
    assert_eq!(disconnect(client, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    assert_eq!((recv(client, 2), send(client, 3)), (DAT_SUCCESS, DAT_SUCCESS));
    let flushed = |cookie| (cookie, DAT_DTO_ERR_FLUSHED);
    assert_eq!(world.completions(), [flushed(1), flushed(2), flushed(3)]);
    finish(world, &[client, server], &[]);
}

#[test]
fn either_side_can_abort_a_pending_connect() {
    let world = World::new(c"give up");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    assert_eq!(recv(client, 1), DAT_SUCCESS);
    world.connect(client, 5, &[]);
    assert_eq!(disconnect(client, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(client, DISCONNECTED)]);
    assert_eq!(world.completions(), [(1, DAT_DTO_ERR_FLUSHED)]);
    let cr = world.request();
    assert_eq!(call!(dapl_cr_accept(cr, server, 0, null_mut())), DAT_SUCCESS);
    assert_eq!(disconnect(server, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(server, DISCONNECTED)], "no event of the failed accept");
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn disconnect_of_an_unconnected_ep_flushes_receives() {
    let world = World::new(c"flush");
    let (ep, unconnectable) = (world.ep(), world.ep_with(world.pz, world.dto, null_mut()));
    assert_eq!(disconnect(ep, 0), in_state(State::EpUnconnected));
    for ep in [ep, unconnectable] {
        assert_eq!((recv(ep, 1), recv(ep, 2)), (DAT_SUCCESS, DAT_SUCCESS));
        assert_eq!(call!(dapl_ep_reset(ep)), DAT_SUCCESS);
        assert_eq!(world.completions(), [], "a reset of an unconnected EP has no effect");
        assert_eq!(disconnect(ep, 0), DAT_SUCCESS);
        assert_eq!(world.completions(), [(1, DAT_DTO_ERR_FLUSHED), (2, DAT_DTO_ERR_FLUSHED)]);
        assert_eq!((state(ep), recv(ep, 3)), (DAT_EP_STATE_UNCONNECTED, DAT_SUCCESS));
    }
    assert_eq!(world.connection_events(), [(ep, DISCONNECTED)]);
    finish(world, &[ep, unconnectable], &[]);
}

#[test]
fn free_of_a_connected_ep_in_1_2_notifies_only_the_peer() {
    let world = World::new(c"free");
    let (client, server) = world.pair(5);
    assert_eq!((recv(client, 1), recv(server, 2)), (DAT_SUCCESS, DAT_SUCCESS));
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!(call!(dapl_ep_free(client)), bad(Handle::Ep));
    assert_eq!((recv(client, 1), disconnect(client, 0)), (bad(Handle::Ep), bad(Handle::Ep)));
    assert_eq!(world.connection_events(), [(server, DISCONNECTED)]);
    assert_eq!(world.completions(), [(1, DAT_DTO_ERR_FLUSHED), (2, DAT_DTO_ERR_FLUSHED)]);
    finish(world, &[server], &[]);
}

#[test]
fn free_of_a_connecting_ep_queues_disconnected() {
    let world = World::new(c"free acp");
    let (client, psp) = (world.ep(), world.psp(5));
    world.connect(client, 5, &[]);
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!(world.connection_events(), [(client, DISCONNECTED)]);
    assert_eq!(call!(dapl_cr_reject(world.request())), DAT_SUCCESS);
    assert_eq!(world.connection_events(), []);
    finish(world, &[], &[(psp, free_psp)]);
}

#[test]
fn accept_disconnect_reset_can_be_repeated() {
    let world = World::new(c"round");
    let (client, server, psp) = (world.ep(), world.ep(), world.psp(5));
    for round in 0..50 {
        assert_eq!((recv(server, round), recv(client, round)), (DAT_SUCCESS, DAT_SUCCESS));
        world.connect(client, 5, &[]);
        assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
        assert_eq!(send(client, round), DAT_SUCCESS);
        assert_eq!(disconnect(server, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
        assert_eq!(world.connection_events().len(), 4);
        assert_eq!((call!(dapl_ep_reset(client)), call!(dapl_ep_reset(server))), (DAT_SUCCESS, DAT_SUCCESS));
        assert_eq!(world.completions().len(), 3);
    }
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn connection_ends_if_the_evd_is_full_at_its_established_event() {
    let world = World::new(c"lost");
    let full = world.evd(DAT_EVD_CONNECTION_FLAG | DAT_EVD_SOFTWARE_FLAG);
    let (client, server, psp) = (world.ep_with(world.pz, world.dto, full), world.ep(), world.psp(5));
    world.connect(client, 5, &[]);
    let evd = from_handle::<Evd<FakeProvider>>(full, Handle::EvdConn).unwrap();
    while dapls_evd::post(&evd, Event::Software { pointer: 0 }).is_ok() {}
    drop(evd);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
    assert_eq!(world.connection_events().first(), Some(&(server, DAT_CONNECTION_EVENT_ESTABLISHED)));
    while let Some(event) = next(full) {
        assert_eq!(event.event_number, DAT_SOFTWARE_EVENT);
    }
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!(call!(dapl_evd_free(full)), DAT_SUCCESS);
    finish(world, &[server], &[(psp, free_psp)]);
}

#[test]
fn abrupt_close_frees_connected_reserved_and_connecting_eps() {
    let world = World::new(c"abrupt");
    let (client, server) = world.pair(5);
    let (psp, waiting, asking) = (world.psp(6), world.ep(), world.ep());
    let mut rsp = null_mut();
    assert_eq!(call!(dapl_rsp_create(world.ia(), 7, waiting, world.requests, &mut rsp)), DAT_SUCCESS);
    world.connect(asking, 6, &[]);
    let cr = world.request();
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_GRACEFUL_FLAG)), in_state(State::IaInUse));
    assert_eq!(state(client), DAT_EP_STATE_CONNECTED);
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
    for ep in [client, server, waiting, asking] {
        assert_eq!(call!(dapl_ep_free(ep)), bad(Handle::Ep));
    }
    assert_eq!((free_psp(psp), free_rsp(rsp)), (bad(Handle::Psp), bad(Handle::Rsp)));
    assert_eq!(call!(dapl_cr_reject(cr)), bad(Handle::Cr));
}

#[test]
fn an_agent_may_disconnect_the_ep_whose_event_called_it() {
    unsafe extern "C" fn agent(ep: DAT_PVOID, _: DAT_EVD_HANDLE) {
        assert_eq!(disconnect(ep, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    }
    let world = World::new(c"agent");
    let (mut cno, mut connect_evd) = (null_mut(), null_mut());
    let no_agent = DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
    assert_eq!(call!(dapl_cno_create(world.ia(), no_agent, &mut cno)), DAT_SUCCESS);
    assert_eq!(call!(dapl_evd_create(world.ia(), 4, cno, DAT_EVD_CONNECTION_FLAG, &mut connect_evd)), DAT_SUCCESS);
    let (client, server, psp) = (world.ep_with(world.pz, world.dto, connect_evd), world.ep(), world.psp(5));
    let caller = DAT_OS_WAIT_PROXY_AGENT { instance_data: client, proxy_agent_func: Some(agent) };
    assert_eq!(call!(dapl_cno_modify_agent(cno, caller)), DAT_SUCCESS);
    world.connect(client, 5, &[]);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    let numbers: Vec<_> = std::iter::from_fn(|| next(connect_evd)).map(|event| event.event_number).collect();
    assert_eq!(numbers, [DAT_CONNECTION_EVENT_ESTABLISHED, DISCONNECTED]);
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!((call!(dapl_evd_free(connect_evd)), call!(dapl_cno_free(cno))), (DAT_SUCCESS, DAT_SUCCESS));
    finish(world, &[server], &[(psp, free_psp)]);
}
