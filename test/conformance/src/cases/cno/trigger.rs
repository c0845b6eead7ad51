//! Events that trigger a CNO and events that do not, and the EVD that `dat_cno_wait` then returns. Agents are in
//! `agent`.
#![forbid(unsafe_code)]

use crate::kit::*;

use super::object::{expect_untriggered, next};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 3.6": cno_wait_returns_the_evd_of_the_event,
        "spec/events 3.6": cno_is_not_triggered_by_a_disabled_evd,
        "spec/events 3.6": cno_is_not_triggered_while_a_thread_waits_on_the_evd,
        "spec/events 3.6": cno_is_not_triggered_by_a_detached_evd,
        "spec/events 3.6": cno_wait_returns_an_evd_with_five_undequeued_events_once,
        "spec/events 3.6": cno_wait_returns_evds_in_the_order_of_their_events,
        "spec/events 3.6": cno_wait_skips_evds_emptied_before_the_wait,
        "spec/events 3.6": cno_wait_skips_evds_disabled_before_the_wait,
        "spec/events 3.6": cno_wait_skips_evds_detached_before_the_wait,
        "spec/events 3.6": cno_wait_skips_evds_freed_before_the_wait,
        "spec/events 3.6": cno_wait_returns_an_evd_again_until_dequeues_empty_it,
        "spec/events 3.6": cno_wait_returns_an_evd_again_until_evd_waits_empty_it,
        "spec/events 3.6": cno_wait_returns_an_evd_only_once_if_no_event_is_dequeued,
        "spec/events 3.6": cno_wait_with_one_dequeue_per_wait_loses_no_event,
        "spec/events 2.3": cno_is_not_triggered_by_events_queued_before_modify_cno,
        "spec/events 2.4": cno_is_not_triggered_by_events_queued_before_enable,
        "spec/events 2.3": cno_trigger_after_modify_cno_reaches_only_the_new_cno,
        "spec/events 2.9": cno_is_triggered_by_an_unwaitable_evd,
        "spec/events 3.6": cno_is_triggered_regardless_of_an_earlier_wait_threshold,
        "spec/consumers 5": cno_is_triggered_by_send_and_receive_completions,
        "spec/events 3.6": cno_is_triggered_by_connection_requests_and_connection_events,
        "spec/events 3.6": cno_wait_returns_the_recv_evd_before_the_connect_evd_at_a_disconnect => pair(ended_client, ended_server),
        "spec/events 3.6": disconnect_event_in_an_evd_that_triggered_earlier_precedes_completions,
        "spec/events 2.3": cno_free_succeeds_after_all_evds_are_detached_and_a_cno_wait_fails,
    ]
}

pub(super) fn on(ia: &Ia, cno: &Cno) -> Evd {
    ia.evd_on(cno, 16, DAT_EVD_SOFTWARE_FLAG)
}

fn cno_wait_returns_the_evd_of_the_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds = [on(&ia, &cno), on(&ia, &cno), on(&ia, &cno)];
    for evd in [&evds[1], &evds[0], &evds[2], &evds[2]] {
        evd.post(1);
        assert_eq!(next(&cno), evd.h());
        drain(evd.h());
        expect_untriggered(&cno);
    }
}

fn cno_is_not_triggered_by_a_disabled_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    ok(dat_evd_disable(evd.h()));
    evd.post(1);
    expect_untriggered(&cno);
    assert_eq!(drain(evd.h()).len(), 1, "the event is queued although it triggers no CNO");
}

fn cno_is_not_triggered_while_a_thread_waits_on_the_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let agent = Agent::default();
    let cno = ia.cno_with(agent.arm());
    let evd = on(&ia, &cno);
    let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
    evd.post(1);
    ok(waiter.join().code);
    expect_untriggered(&cno);
    assert_eq!(agent.count(), 0);
}

fn cno_is_not_triggered_by_a_detached_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
    evd.post(1);
    expect_untriggered(&cno);
}

fn cno_wait_returns_an_evd_with_five_undequeued_events_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    for number in 1..=5 {
        evd.post(number);
    }
    assert_eq!(next(&cno), evd.h());
    expect_untriggered(&cno);
}

fn cno_wait_returns_evds_in_the_order_of_their_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..5).map(|_| on(&ia, &cno)).collect();
    let order = [3, 0, 4, 1, 2];
    for at in order.into_iter().chain(order) {
        evds[at].post(1);
    }
    for at in order {
        assert_eq!(next(&cno), evds[at].h());
    }
    expect_untriggered(&cno);
}

const ENDS: u64 = 50;

/// Waits for a receive completion, which may be flushed, and then for the end of the connection. The CNO returns the
/// two EVDs in this order. In even rounds the CNO wait begins after the connection has ended, in odd rounds it may
/// begin earlier.
fn ended_client(ctx: &Ctx) {
    for round in 0..ENDS {
        let conn = ctx.connect();
        let cno = conn.ia.cno();
        let events = [(&conn.recv, DAT_DTO_COMPLETION_EVENT), (&conn.events, DAT_CONNECTION_EVENT_DISCONNECTED)];
        events.iter().for_each(|(evd, _)| ok(dat_evd_modify_cno(evd.h(), cno.h())));
        post_empty_recv(&conn, 1);
        ctx.send([]);
        while round % 2 == 0 && conn.ep.state() != DAT_EP_STATE_DISCONNECTED {
            std::thread::yield_now();
        }
        for (evd, number) in events {
            assert_eq!(filled(|out| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, out)), evd.h());
            let numbers: Vec<_> = drain(evd.h()).iter().map(Event::number).collect();
            assert_eq!(numbers, [number]);
        }
        events.iter().for_each(|(evd, _)| ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL)));
    }
}

fn ended_server(ctx: &Ctx) {
    for _ in 0..ENDS {
        let conn = ctx.connect();
        let _: Vec<u8> = ctx.receive();
        post_empty_send(&conn, 1);
        ok(dat_ep_disconnect(conn.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        conn.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }
}

/// The connect EVD triggers for ESTABLISHED and keeps its place, so DISCONNECTED is dequeued before the flushed
/// receives. These can then be dequeued without a wait.
fn disconnect_event_in_an_evd_that_triggered_earlier_precedes_completions(ctx: &Ctx) {
    const RECEIVES: u64 = 5;
    let ia = ctx.ia();
    let cno = ia.cno();
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    [&client.recv, &client.events].iter().for_each(|evd| ok(dat_evd_modify_cno(evd.h(), cno.h())));
    (0..RECEIVES).for_each(|id| post_empty_recv(&client, id));
    server.listen(ctx.qual(0), || client.connect(&ia.address(), ctx.qual(0)));
    server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    await_state(&client, DAT_EP_STATE_CONNECTED);
    server.disconnect();
    await_state(&client, DAT_EP_STATE_DISCONNECTED);
    assert_eq!(filled(|out| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, out)), client.events.h());
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    let flushed = drain(client.recv.h());
    assert_eq!(flushed.len() as u64, RECEIVES);
    (0..).zip(&flushed).for_each(|(id, event)| check_dto(&event.dto(), id, DAT_DTO_ERR_FLUSHED, 0));
    expect_untriggered(&cno);
    [&client.recv, &client.events].iter().for_each(|evd| ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL)));
}

fn await_state(conn: &Conn, state: DAT_EP_STATE) {
    while conn.ep.state() != state {
        std::thread::yield_now();
    }
}

fn cno_wait_skips_evds_emptied_before_the_wait(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    one.post(1);
    other.post(2);
    drain(one.h());
    assert_eq!(next(&cno), other.h());
    one.post(1);
    drain(one.h());
    expect_untriggered(&cno);
}

fn cno_wait_skips_evds_disabled_before_the_wait(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    one.post(1);
    other.post(2);
    ok(dat_evd_disable(one.h()));
    assert_eq!(next(&cno), other.h());
    expect_untriggered(&cno);
}

fn cno_wait_skips_evds_detached_before_the_wait(ctx: &Ctx) {
    let ia = ctx.ia();
    let (cno, elsewhere) = (ia.cno(), ia.cno());
    let (one, other, third) = (on(&ia, &cno), on(&ia, &cno), on(&ia, &cno));
    one.post(1);
    other.post(2);
    third.post(3);
    ok(dat_evd_modify_cno(one.h(), DAT_HANDLE_NULL));
    ok(dat_evd_modify_cno(other.h(), elsewhere.h()));
    assert_eq!(next(&cno), third.h());
    expect_untriggered(&cno);
    expect_untriggered(&elsewhere);
}

fn cno_wait_skips_evds_freed_before_the_wait(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    one.post(1);
    other.post(2);
    one.free();
    assert_eq!(next(&cno), other.h());
    expect_untriggered(&cno);
}

/// Each CNO wait returns the EVD again while the EVD still has events.
fn returns_evd_again_until_it_is_empty(ctx: &Ctx, take: impl Fn(DAT_EVD_HANDLE) -> Option<Event>) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    for number in 1..=4 {
        evd.post(number);
    }
    for number in 1..=4 {
        assert_eq!(next(&cno), evd.h());
        assert_eq!(take(evd.h()).map(|event| event.software().addr()), Some(number));
    }
    expect_untriggered(&cno);
}

fn cno_wait_returns_an_evd_again_until_dequeues_empty_it(ctx: &Ctx) {
    returns_evd_again_until_it_is_empty(ctx, dequeue);
}

fn cno_wait_returns_an_evd_again_until_evd_waits_empty_it(ctx: &Ctx) {
    returns_evd_again_until_it_is_empty(ctx, |evd| Some(expect_event(evd, SOON)));
}

fn cno_wait_returns_an_evd_only_once_if_no_event_is_dequeued(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let (one, other) = (on(&ia, &cno), on(&ia, &cno));
    one.post(1);
    assert_eq!(next(&cno), one.h());
    expect_untriggered(&cno);
    other.post(2);
    assert_eq!(next(&cno), other.h());
    drain(other.h());
    expect_untriggered(&cno);
}

/// A program that dequeues one event for each `dat_cno_wait`, from the EVD that the wait returned.
fn cno_wait_with_one_dequeue_per_wait_loses_no_event(ctx: &Ctx) {
    const EVENTS_PER_EVD: usize = 300;
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..3).map(|_| ia.evd_on(&cno, 1000, DAT_EVD_SOFTWARE_FLAG)).collect();
    let handles: Vec<Handle> = evds.iter().map(|evd| Handle::of(evd.h())).collect();
    let poster = std::thread::spawn(move || {
        for number in 0..EVENTS_PER_EVD {
            for evd in &handles {
                ok(dat_evd_post_se(evd.h(), &software_event(number)));
            }
        }
    });
    let mut taken = [0; 3];
    for _ in 0..3 * EVENTS_PER_EVD {
        let named: DAT_EVD_HANDLE = filled(|evd| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, evd));
        let at = evds.iter().position(|evd| evd.h() == named).expect("the CNO names an EVD of this case");
        let event = dequeue(named).expect("the CNO wait returned an EVD without an event");
        assert_eq!(event.software().addr(), taken[at]);
        taken[at] += 1;
    }
    poster.join().expect("the posting thread does not panic");
    expect_untriggered(&cno);
}

fn cno_is_not_triggered_by_events_queued_before_modify_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd(8, DAT_EVD_SOFTWARE_FLAG);
    evd.post(1);
    ok(dat_evd_modify_cno(evd.h(), cno.h()));
    expect_untriggered(&cno);
    evd.post(2);
    assert_eq!(next(&cno), evd.h());
}

fn cno_is_not_triggered_by_events_queued_before_enable(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    ok(dat_evd_disable(evd.h()));
    evd.post(1);
    ok(dat_evd_enable(evd.h()));
    expect_untriggered(&cno);
    evd.post(2);
    assert_eq!(next(&cno), evd.h());
}

fn cno_trigger_after_modify_cno_reaches_only_the_new_cno(ctx: &Ctx) {
    let ia = ctx.ia();
    let (old, new) = (ia.cno(), ia.cno());
    let evd = on(&ia, &old);
    ok(dat_evd_modify_cno(evd.h(), new.h()));
    evd.post(1);
    expect_untriggered(&old);
    assert_eq!(next(&new), evd.h());
}

fn cno_is_triggered_by_an_unwaitable_evd(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    ok(dat_evd_set_unwaitable(evd.h()));
    evd.post(1);
    assert_eq!(next(&cno), evd.h());
}

/// A threshold belongs to one wait on the EVD: after that wait it does not affect triggers.
fn cno_is_triggered_regardless_of_an_earlier_wait_threshold(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = on(&ia, &cno);
    let (mut event, mut more) = (zeroed(), 0);
    let code = dat_evd_wait(evd.h(), 0, 5, &mut event, &mut more);
    refused(code, DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
    evd.post(1);
    assert_eq!(next(&cno), evd.h());
}

fn cno_is_triggered_by_send_and_receive_completions(ctx: &Ctx) {
    let (client, server) = ctx.loopback();
    let (here, there) = (client.memory(64), server.memory(64));
    let cno = client.ia.cno();
    for evd in [&client.request, &server.recv] {
        ok(dat_evd_modify_cno(evd.h(), cno.h()));
    }
    for id in 1..10 {
        server.post_recv(id, there.segment(0, 8));
        client.post_send(100 + id, here.segment(0, 8));
        for _ in 0..2 {
            let named: DAT_EVD_HANDLE = filled(|evd| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, evd));
            let is_send = named == client.request.h();
            assert!(is_send || named == server.recv.h());
            let data = polled_event(named).dto();
            check_dto(&data, if is_send { 100 + id } else { id }, DAT_DTO_SUCCESS, 8);
        }
    }
    expect_untriggered(&cno);
    for evd in [&client.request, &server.recv] {
        ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
    }
}

fn cno_is_triggered_by_connection_requests_and_connection_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let requests = ia.evd_on(&cno, 8, DAT_EVD_CR_FLAG);
    let (client, server) = (Conn::on(&ia), Conn::on(&ia));
    ok(dat_evd_modify_cno(client.events.h(), cno.h()));
    let psp = ia.psp(ctx.qual(0), &requests);
    client.connect(&ia.address(), ctx.qual(0));
    let wait = || filled::<DAT_EVD_HANDLE>(|evd| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, evd));
    assert_eq!(wait(), requests.h());
    ok(dat_cr_accept(expect_cr(requests.h()).cr_handle, server.ep.h(), 0, std::ptr::null_mut()));
    assert_eq!(wait(), client.events.h());
    established(&client, &server);
    server.disconnect();
    assert_eq!(wait(), client.events.h());
    client.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    ok(dat_evd_modify_cno(client.events.h(), DAT_HANDLE_NULL));
    psp.free();
}

/// Detaches all EVDs, then calls `dat_cno_wait` until the call fails. Each returned EVD must hold an event. Then
/// frees the CNO.
fn cno_free_succeeds_after_all_evds_are_detached_and_a_cno_wait_fails(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    ok(dat_evd_modify_cno(ia.errors(), cno.h()));
    let evds: Vec<Evd> = (0..4).map(|_| on(&ia, &cno)).collect();
    evds[0].post(1);
    evds[2].post(1);
    for evd in evds.iter().map(Evd::h).chain([ia.errors()]) {
        ok(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    }
    let mut evd = DAT_HANDLE_NULL;
    while dat_cno_wait(cno.h(), 0, &mut evd) == DAT_SUCCESS {
        assert!(dequeue(evd).is_some(), "the CNO wait returned an EVD without an event");
    }
    cno.free();
}
