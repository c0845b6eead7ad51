//! Agents of CNOs: when they are called, how often, and what they may do during their call.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::*;

use super::object::{armed, next};
use super::trigger::on;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 3.6": cno_agent_is_called_with_the_evd_of_the_event,
        "spec/events 3.6": cno_agent_is_called_once_per_arming,
        "spec/events 3.6": cno_agent_armed_again_is_called_again,
        "spec/events 3.6": cno_agent_armed_after_an_event_is_called_for_the_next_event,
        "spec/events 3.6": cno_agent_can_rearm_itself_during_its_call,
        "spec/events 3.6": cno_agent_can_dequeue_post_and_query_during_its_call,
        "spec/events 3.6": cno_agent_can_post_to_another_evd_of_its_cno,
        "spec/events 3.6": cno_agent_and_waiter_both_get_the_evd_of_an_event,
        "spec/events 3.6": cno_agent_call_leaves_the_trigger_pending,
        "spec/events 3.6": cno_agent_that_was_replaced_is_not_called,
        "spec/events 3.6": cno_agent_is_not_called_for_disabled_evds,
        "spec/events 3.6": cno_agent_is_not_called_for_events_left_in_the_queue,
        "spec/events 3.6": cno_agent_is_called_for_completions,
        "spec/events 3.6": cno_agent_is_called_with_null_when_the_last_evd_is_freed,
        "spec/registry 6.3": cno_agent_is_called_with_null_by_an_abrupt_close,
        "spec/registry 6.3": cno_agent_can_close_its_adapter_during_its_call,
        "spec/registry 6.3": cno_agent_has_returned_when_close_returns,
    ]
}

fn cno_agent_is_called_with_the_evd_of_the_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let (_one, other) = (on(&ia, &cno), on(&ia, &cno));
    other.post(1);
    assert_eq!(agent.wait_for(1), [other.h()]);
}

fn cno_agent_is_called_once_per_arming(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = on(&ia, &cno);
    for number in 1..=5 {
        evd.post(number);
    }
    drain(evd.h());
    evd.post(6);
    assert_eq!(agent.all(), [evd.h()]);
}

fn cno_agent_armed_again_is_called_again(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    for round in 1..=5 {
        ok(dat_cno_modify_agent(cno.h(), agent.arm()));
        evd.post(round);
        agent.wait_for(round);
    }
    assert_eq!(agent.count(), 5);
}

fn cno_agent_armed_after_an_event_is_called_for_the_next_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    evd.post(1);
    ok(dat_cno_modify_agent(cno.h(), agent.arm()));
    assert_eq!(agent.count(), 0);
    assert!(armed(&cno).1);
    evd.post(2);
    assert_eq!(agent.wait_for(1), [evd.h()]);
}

fn cno_agent_can_rearm_itself_during_its_call(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    let calls = Arc::new(AtomicUsize::new(0));
    let handle = Handle::of(cno.h());
    let own = Arc::clone(&calls);
    let again = Arc::new(std::sync::OnceLock::new());
    let inner = Arc::clone(&again);
    let arming = agent(move |_evd| {
        own.fetch_add(1, Ordering::AcqRel);
        let itself: &usize = inner.get().expect("the value is set before the agent is armed");
        ok(dat_cno_modify_agent(handle.h(), agent_again(*itself)));
    });
    again.set(arming.instance_data.addr()).expect("the value is set only here");
    ok(dat_cno_modify_agent(cno.h(), arming));
    for number in 1..=10 {
        evd.post(number);
        until(|| calls.load(Ordering::Acquire) >= number);
    }
    assert_eq!(calls.load(Ordering::Acquire), 10);
    ok(dat_cno_modify_agent(cno.h(), NO_AGENT));
}

fn cno_agent_can_dequeue_post_and_query_during_its_call(ctx: &Ctx) {
    let ia = ctx.ia();
    let results = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    let to = Handle::of(results.h());
    let cno = ia.cno_with(agent(move |evd| {
        let event = dequeue(evd.h()).expect("the EVD holds the event that triggered the agent");
        let param: DAT_EVD_PARAM = filled(|out| dat_evd_query(evd.h(), DAT_EVD_FIELD_ALL, out));
        assert!(!param.cno_handle.is_null());
        let mut none = DAT_HANDLE_NULL;
        expect(dat_cno_wait(param.cno_handle, 0, &mut none), DAT_QUEUE_EMPTY);
        ok(dat_evd_post_se(to.h(), &software_event(event.software().addr() + 1)));
    }));
    let evd = on(&ia, &cno);
    evd.post(41);
    assert_eq!(expect_event(results.h(), SOON).software().addr(), 42);
    expect_nothing(evd.h());
}

fn cno_agent_can_post_to_another_evd_of_its_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    let to = Handle::of(other.h());
    ok(dat_cno_modify_agent(cno.h(), agent(move |_| ok(dat_evd_post_se(to.h(), &software_event(2))))));
    one.post(1);
    assert_eq!(expect_event(other.h(), SOON).software().addr(), 2);
    assert_eq!(next(&cno), one.h());
}

fn cno_agent_and_waiter_both_get_the_evd_of_an_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = on(&ia, &cno);
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
    evd.post(1);
    assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
    assert_eq!(agent.wait_for(1), [evd.h()]);
}

fn cno_agent_call_leaves_the_trigger_pending(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = on(&ia, &cno);
    evd.post(1);
    agent.wait_for(1);
    assert_eq!(next(&cno), evd.h());
}

fn cno_agent_that_was_replaced_is_not_called(ctx: &Ctx) {
    let ia = ctx.ia();
    let (old, new) = (Agent::default(), Agent::default());
    let cno = ia.cno_with(old.arm());
    let evd = on(&ia, &cno);
    ok(dat_cno_modify_agent(cno.h(), new.arm()));
    evd.post(1);
    assert_eq!(new.wait_for(1), [evd.h()]);
    assert_eq!(old.count(), 0);
}

fn cno_agent_is_not_called_for_disabled_evds(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    ok(dat_evd_disable(one.h()));
    one.post(1);
    ok(dat_evd_enable(one.h()));
    other.post(1);
    assert_eq!(agent.wait_for(1), [other.h()]);
}

/// Only arriving events call the agent, not events that a consumer leaves in the queue.
fn cno_agent_is_not_called_for_events_left_in_the_queue(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    evd.post(1);
    evd.post(2);
    ok(dat_cno_modify_agent(cno.h(), agent.arm()));
    assert!(dequeue(evd.h()).is_some());
    assert_eq!(next(&cno), evd.h());
    assert_eq!(agent.count(), 0);
}

fn cno_agent_is_called_for_completions(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let (here, there) = (client.memory(64), server.memory(64));
    let agent = Agent::default();
    let cno = client.ia.cno_with(agent.arm());
    ok(dat_evd_modify_cno(server.recv.h(), cno.h()));
    server.post_recv(1, there.segment(0, 8));
    client.post_send(2, here.segment(0, 8));
    assert_eq!(agent.wait_for(1), [server.recv.h()]);
    expect_dto(server.recv.h(), 1, DAT_DTO_SUCCESS, 8);
    expect_dto(client.request.h(), 2, DAT_DTO_SUCCESS, 8);
    ok(dat_evd_modify_cno(server.recv.h(), DAT_HANDLE_NULL));
}

fn cno_agent_is_called_with_null_when_the_last_evd_is_freed(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    one.free();
    assert_eq!(agent.count(), 0);
    other.free();
    assert_eq!(agent.wait_for(1), [DAT_HANDLE_NULL]);
    cno.free();
}

fn cno_agent_is_called_with_null_by_an_abrupt_close(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    on(&ia, &cno).leak();
    cno.leak();
    ok(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG));
    assert_eq!(agent.all(), [DAT_HANDLE_NULL]);
}

fn cno_agent_can_close_its_adapter_during_its_call(ctx: &Ctx) {
    let ia = ctx.ia();
    let done = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&done);
    let adapter = Handle::of(ia.h());
    let cno = ia.cno_with(agent(move |_evd| {
        ok(dat_ia_close(adapter.h(), DAT_CLOSE_ABRUPT_FLAG));
        own.fetch_add(1, Ordering::AcqRel);
    }));
    let evd = on(&ia, &cno).leak();
    cno.leak();
    ok(dat_evd_post_se(evd, &software_event(1)));
    until(|| done.load(Ordering::Acquire) == 1);
    refused(dat_ia_close(ia.leak(), DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}

fn cno_agent_has_returned_when_close_returns(ctx: &Ctx) {
    let ia = ctx.ia();
    let (inside, leave) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (is_inside, may_leave) = (Arc::clone(&inside), Arc::clone(&leave));
    let cno = ia.cno_with(agent(move |evd| {
        if evd.h().is_null() {
            return;
        }
        is_inside.store(1, Ordering::Release);
        until(|| may_leave.load(Ordering::Acquire) == 1);
        is_inside.store(2, Ordering::Release);
    }));
    let evd = Handle::of(on(&ia, &cno).leak());
    cno.leak();
    let poster = blocked(move || dat_evd_post_se(evd.h(), &software_event(1)));
    until(|| inside.load(Ordering::Acquire) == 1);
    let adapter = Handle::of(ia.leak());
    let closer = blocked(move || dat_ia_close(adapter.h(), DAT_CLOSE_ABRUPT_FLAG)).asleep();
    assert!(!closer.is_back(), "the close returned while the agent ran");
    leave.store(1, Ordering::Release);
    ok(closer.join());
    assert_eq!(inside.load(Ordering::Acquire), 2);
    ok(poster.join());
}
