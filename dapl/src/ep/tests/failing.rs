//! Tests of failed work. When a consumer has dequeued the failed completion, the connection is broken, even if the
//! provider has not reported that yet. Flushed work, and a failure during a graceful disconnect, do not break the
//! connection.

use super::*;
use crate::cno::dapl_cno::{dapl_cno_create, dapl_cno_free, dapl_cno_modify_agent};
use crate::ep::{Ep, dapls_ep};
use crate::evd::Evd;
use crate::provider::{Completion, ConnectionEvent, Status, Token};
use crate::runtime::handle::from_handle;

const DISCONNECTED: DAT_EVENT_NUMBER = DAT_CONNECTION_EVENT_DISCONNECTED;

/// Adds the completion of failed work of `ep` to the CQ of `evd`. The provider has not reported `Broken` yet.
fn fail(evd: H, ep: H, cookie: u64) {
    let token = Token { cookie, ep: ep as usize, ..Token::default() };
    let cq = from_handle::<Evd<FakeProvider>>(evd, Handle::Plain).unwrap().cq().unwrap();
    cq.feed(Completion { token, status: Status::Transport, ..Completion::default() });
}

/// Reports `Broken` for a connection attempt, as the provider does.
fn report_broken(ep: H, attempt: u32) {
    let ep = from_handle::<Ep<FakeProvider>>(ep, Handle::Ep).unwrap();
    dapls_ep::connection_event(&ep, attempt, ConnectionEvent::Broken, &[]);
}

const FAILED: DAT_DTO_COMPLETION_STATUS = DAT_DTO_ERR_TRANSPORT;
const BROKEN: DAT_EVENT_NUMBER = DAT_CONNECTION_EVENT_BROKEN;

#[test]
fn connection_is_broken_when_a_failed_completion_is_dequeued() {
    let dequeue = |evd| next(evd).unwrap();
    for take in [dequeue, wait] {
        let world = World::new(c"failed");
        let (client, server) = world.pair(5);
        fail(world.dto, client, 1);
        assert_eq!(take(world.dto).event_number, DAT_DTO_COMPLETION_EVENT);
        assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
        assert_eq!(next(world.conn).map(|event| event.event_number), Some(BROKEN), "before the provider reports it");
        fail(world.dto, client, 2);
        report_broken(client, 1);
        assert_eq!((world.completions(), world.connection_events()), (vec![(2, FAILED)], vec![]), "reported once");
        finish(world, &[client, server], &[]);
    }
}

#[test]
fn reset_after_the_broken_event_makes_flushed_completions_available() {
    let world = World::new(c"failed, then reset");
    let (client, server) = world.pair(5);
    assert_eq!(recv(client, 1), DAT_SUCCESS);
    fail(world.dto, client, 2);
    assert_eq!(world.completions(), [(2, FAILED)], "the provider has not flushed the receive yet");
    assert_eq!(world.connection_events(), [(client, BROKEN)]);
    assert_eq!(call!(dapl_ep_reset(client)), DAT_SUCCESS);
    assert_eq!(world.completions(), [(1, DAT_DTO_ERR_FLUSHED)]);
    finish(world, &[client, server], &[]);
}

#[test]
fn concurrent_failures_break_the_connection_once() {
    let world = World::new(c"failure race");
    for round in 0..100 {
        let (client, server) = world.pair(5);
        fail(world.dto, client, round);
        let handle = client as usize;
        std::thread::scope(|scope| {
            let provider = scope.spawn(move || report_broken(handle as H, 1));
            assert!(next(world.dto).is_some());
            assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
            assert_eq!(next(world.conn).map(|event| event.event_number), Some(BROKEN));
            provider.join().unwrap();
        });
        assert_eq!(next(world.conn).map(|event| event.event_number), None);
        assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
        assert_eq!(call!(dapl_ep_free(server)), DAT_SUCCESS);
        world.connection_events();
    }
    finish(world, &[], &[]);
}

#[test]
fn flush_or_failure_in_graceful_disconnect_breaks_no_connection() {
    let world = World::new(c"draining");
    let (client, server) = world.pair(5);
    let cq = from_handle::<Evd<FakeProvider>>(world.dto, Handle::Plain).unwrap().cq().unwrap();
    let token = Token { cookie: 1, ep: client as usize, ..Token::default() };
    cq.feed(Completion { token, status: Status::Flushed, ..Completion::default() });
    assert_eq!((world.completions(), state(client)), (vec![(1, DAT_DTO_ERR_FLUSHED)], DAT_EP_STATE_CONNECTED));
    assert_eq!(disconnect(client, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
    fail(world.dto, client, 2);
    assert_eq!((world.completions(), state(client)), (vec![(2, FAILED)], DAT_EP_STATE_DISCONNECT_PENDING));
    let mut reported = world.connection_events();
    reported.sort_unstable();
    let mut wanted = [(client, DISCONNECTED), (server, DISCONNECTED)];
    wanted.sort_unstable();
    assert_eq!(reported, wanted);
    finish(world, &[client, server], &[]);
}

#[test]
fn failure_of_an_earlier_connection_does_not_break_the_next() {
    let world = World::new(c"old failure");
    let (client, server) = world.pair(5);
    fail(world.dto, client, 1);
    report_broken(client, 1);
    assert_eq!(disconnect(server, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    assert_eq!(world.connection_events().len(), 2);
    assert_eq!((call!(dapl_ep_reset(client)), call!(dapl_ep_reset(server))), (DAT_SUCCESS, DAT_SUCCESS));
    let psp = world.psp(5);
    world.connect(client, 5, &[]);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    assert_eq!((world.completions(), state(client)), (vec![(1, FAILED)], DAT_EP_STATE_CONNECTED));
    fail(world.dto, client, 2);
    assert_eq!(
        (world.completions(), state(client)),
        (vec![(2, FAILED)], DAT_EP_STATE_DISCONNECTED),
        "a new failure does"
    );
    finish(world, &[client, server], &[(psp, free_psp)]);
}

#[test]
fn failed_completion_of_a_freed_ep_can_be_dequeued() {
    let world = World::new(c"freed failure");
    let (client, server) = world.pair(5);
    fail(world.dto, client, 1);
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    fail(world.dto, client, 2);
    assert_eq!(world.completions(), [(1, FAILED), (2, FAILED)]);
    assert_eq!(world.connection_events(), [(server, DISCONNECTED)]);
    finish(world, &[server], &[]);
}

#[test]
fn completions_precede_the_broken_event_in_one_evd() {
    let world = World::new(c"one evd");
    let both = world.evd(DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
    let (client, server, psp) = (world.ep_with(world.pz, both, both), world.ep(), world.psp(5));
    world.connect(client, 5, &[]);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    assert_eq!(send(client, 1), DAT_SUCCESS);
    fail(both, client, 2);
    let numbers: Vec<_> = std::iter::from_fn(|| next(both)).map(|event| event.event_number).collect();
    let done = DAT_DTO_COMPLETION_EVENT;
    assert_eq!(numbers, [DAT_CONNECTION_EVENT_ESTABLISHED, done, done, BROKEN]);
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!(call!(dapl_evd_free(both)), DAT_SUCCESS);
    finish(world, &[server], &[(psp, free_psp)]);
}

#[test]
fn agent_called_for_the_broken_event_may_dequeue_the_failed_completion() {
    unsafe extern "C" fn agent(dto: DAT_PVOID, _: DAT_EVD_HANDLE) {
        assert_eq!(next(dto).map(|event| event.event_number), Some(DAT_DTO_COMPLETION_EVENT));
    }
    let world = World::new(c"agent dequeues all");
    let (mut cno, mut connect_evd) = (null_mut(), null_mut());
    let no_agent = DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
    assert_eq!(call!(dapl_cno_create(world.ia(), no_agent, &mut cno)), DAT_SUCCESS);
    assert_eq!(call!(dapl_evd_create(world.ia(), 4, cno, DAT_EVD_CONNECTION_FLAG, &mut connect_evd)), DAT_SUCCESS);
    let (client, server, psp) = (world.ep_with(world.pz, world.dto, connect_evd), world.ep(), world.psp(5));
    world.connect(client, 5, &[]);
    assert_eq!(world.accept(world.request(), server, &[]), DAT_SUCCESS);
    let caller = DAT_OS_WAIT_PROXY_AGENT { instance_data: world.dto, proxy_agent_func: Some(agent) };
    assert_eq!(call!(dapl_cno_modify_agent(cno, caller)), DAT_SUCCESS);
    fail(world.dto, client, 1);
    assert_eq!(world.completions(), [], "the agent has dequeued it");
    assert_eq!(state(client), DAT_EP_STATE_DISCONNECTED);
    assert_eq!(call!(dapl_ep_free(client)), DAT_SUCCESS);
    assert_eq!((call!(dapl_evd_free(connect_evd)), call!(dapl_cno_free(cno))), (DAT_SUCCESS, DAT_SUCCESS));
    finish(world, &[server], &[(psp, free_psp)]);
}
