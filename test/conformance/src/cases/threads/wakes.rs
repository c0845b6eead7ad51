//! Waiting threads, agents, and the events that wake or call them: no event and no wake-up is lost, also while EVD,
//! CNO and agent are changed.
#![forbid(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::kit::*;

use super::{kind_in, run_threads};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/events 2.7": threads_wake_each_other_by_software_events,
        "spec/events 2.7": threads_wake_each_other_over_cnos,
        "spec/events 3.5": threads_many_waiters_on_one_cno_lose_no_wake_up,
        "spec/events 3.6": threads_many_evds_on_one_cno_lose_no_event,
        "spec/events 2.3": threads_moving_an_evd_to_another_cno_lose_no_wake_up
            => local(threads_moving_an_evd_to_another_cno_lose_no_wake_up).limit(40),
        "spec/events 2.4": threads_enabling_and_disabling_an_evd_lose_no_wake_up
            => local(threads_enabling_and_disabling_an_evd_lose_no_wake_up).limit(40),
        "spec/events 2.3": threads_detaching_and_attaching_an_evd_lose_no_wake_up => local(threads_detaching_and_attaching_an_evd_lose_no_wake_up).limit(40),
        "spec/events 2.9": threads_setting_an_evd_unwaitable_end_the_wait_of_another,
        "spec/events 1.5": threads_waiting_on_an_evd_and_its_cno_lose_no_event,
        "spec/events 3.6": threads_agent_that_rearms_itself_misses_no_event,
        "spec/events 3.6": threads_agent_dequeues_each_event_once,
        "spec/events 3.6": threads_agent_posting_to_another_evd_loses_no_event,
        "spec/events 3.2": threads_replacing_an_agent_cause_at_most_one_call_per_arming,
        "spec/events 3.6": threads_agent_is_called_for_completions => pair(client_sends_one_by_one, server_takes_in_an_agent).limit(40),
        "spec/events 3.4": threads_freeing_a_cno_are_refused_during_its_use_then_succeed_once,
        "spec/events 2.5": threads_interrupting_waits_lose_no_event => local(threads_interrupting_waits_lose_no_event).limit(40),
        "spec/consumers 15": threads_cancelling_waits_lose_no_event => local(threads_cancelling_waits_lose_no_event).limit(40),
    ]
}

/// Waits without a timeout: a lost wake-up shows as a hang, which the watchdog reports.
fn wait_for(evd: &Evd) -> usize {
    let mut event = zeroed();
    ok(dat_evd_wait(evd.h(), DAT_TIMEOUT_INFINITE, 1, &mut event, &mut 0));
    Event(event).software().addr()
}

fn wait_on(cno: &Cno) -> DAT_EVD_HANDLE {
    filled(|out| dat_cno_wait(cno.h(), DAT_TIMEOUT_INFINITE, out))
}

fn threads_wake_each_other_by_software_events(ctx: &Ctx) {
    let ia = ctx.ia();
    let evds = [ia.evd(1, DAT_EVD_SOFTWARE_FLAG), ia.evd(1, DAT_EVD_SOFTWARE_FLAG)];
    run_threads(2, |thread| {
        for round in 0..1000 {
            if thread == 0 {
                evds[0].post(round);
                assert_eq!(wait_for(&evds[1]), round);
            } else {
                assert_eq!(wait_for(&evds[0]), round);
                evds[1].post(round);
            }
        }
    });
}

fn threads_wake_each_other_over_cnos(ctx: &Ctx) {
    let ia = ctx.ia();
    let cnos = [ia.cno(), ia.cno()];
    let evds = [0, 1].map(|at| ia.evd_on(&cnos[at], 1, DAT_EVD_SOFTWARE_FLAG));
    let receive = |at: usize, round: usize| {
        assert!(wait_on(&cnos[at]) == evds[at].h());
        assert_eq!(dequeue(evds[at].h()).map(|event| event.software().addr()), Some(round));
    };
    run_threads(2, |thread| {
        for round in 0..1000 {
            if thread == 0 {
                evds[0].post(round);
                receive(1, round);
            } else {
                receive(0, round);
                evds[1].post(round);
            }
        }
    });
}

/// Each waiter dequeues the events of the EVD that the wait returned. Together the waiters dequeue all events. They wait
/// without a timeout, so that a lost wake-up shows as a hang. Further events release the waiters that are left.
fn threads_many_waiters_on_one_cno_lose_no_wake_up(ctx: &Ctx) {
    const EVENTS: usize = 900;
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..3).map(|_| ia.evd_on(&cno, EVENTS as DAT_COUNT, DAT_EVD_SOFTWARE_FLAG)).collect();
    let (taken, waiters) = (AtomicUsize::new(0), AtomicUsize::new(3));
    run_threads(4, |thread| {
        if thread == 3 {
            (0..EVENTS).for_each(|number| evds[number % 3].post(number));
            until(|| taken.load(Ordering::Acquire) == EVENTS);
            return until(|| {
                kind_in(dat_evd_post_se(evds[0].h(), &software_event(EVENTS)), &[DAT_SUCCESS, DAT_QUEUE_FULL]);
                waiters.load(Ordering::Acquire) == 0
            });
        }
        while taken.load(Ordering::Acquire) < EVENTS {
            let evd = wait_on(&cno);
            while let Some(event) = dequeue(evd) {
                taken.fetch_add((event.software().addr() < EVENTS).into(), Ordering::AcqRel);
            }
        }
        waiters.fetch_sub(1, Ordering::AcqRel);
    });
    assert_eq!(taken.into_inner(), EVENTS);
}

fn threads_many_evds_on_one_cno_lose_no_event(ctx: &Ctx) {
    const EVENTS_PER_EVD: usize = 200;
    let ia = ctx.ia();
    let cno = ia.cno();
    let evds: Vec<Evd> = (0..4).map(|_| ia.evd_on(&cno, EVENTS_PER_EVD as DAT_COUNT, DAT_EVD_SOFTWARE_FLAG)).collect();
    run_threads(5, |thread| {
        if thread < 4 {
            return (0..EVENTS_PER_EVD).for_each(|number| evds[thread].post(number));
        }
        let mut next = [0; 4];
        while next.iter().sum::<usize>() < 4 * EVENTS_PER_EVD {
            let evd = wait_on(&cno);
            let at = evds.iter().position(|one| one.h() == evd).expect("the CNO names an EVD of this case");
            // Dequeues one event per wake-up, as some programs do.
            let event = dequeue(evd).expect("the CNO wait returned an EVD without an event");
            assert_eq!(event.software().addr(), next[at]);
            next[at] += 1;
        }
    });
}

/// After the change, the next event wakes the waiter of the new CNO.
fn threads_moving_an_evd_to_another_cno_lose_no_wake_up(ctx: &Ctx) {
    let ia = ctx.ia();
    let cnos = [ia.cno(), ia.cno()];
    let evd = ia.evd_on(&cnos[1], 8, DAT_EVD_SOFTWARE_FLAG);
    for round in 0..150 {
        let new = &cnos[round % 2];
        let waiter = cno_waiter(new.h(), DAT_TIMEOUT_INFINITE);
        run_threads(2, |thread| {
            if thread == 0 {
                ok(dat_evd_modify_cno(evd.h(), new.h()));
            } else {
                evd.post(1);
            }
        });
        evd.post(2);
        let (code, named) = waiter.join();
        ok(code);
        assert!(named.h() == evd.h());
        assert_eq!(drain(evd.h()).len(), 2, "an event is missing");
        // A leftover trigger of either CNO must not return an empty EVD.
        for cno in &cnos {
            expect(dat_cno_wait(cno.h(), 0, &mut null_mut()), DAT_QUEUE_EMPTY);
        }
    }
}

/// Ten events arrive while another thread changes the EVD ten times. The thread that waits on the CNO wakes up, at the
/// latest after one more event.
fn wakes_after_changes(cno: &Cno, evd: &Evd, change: impl Fn() + Sync) {
    let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE);
    run_threads(2, |thread| {
        for number in 0..10 {
            if thread == 0 {
                change();
            } else {
                evd.post(number);
            }
        }
    });
    evd.post(10);
    let (code, named) = waiter.join();
    ok(code);
    assert!(named.h() == evd.h());
    assert_eq!(drain(evd.h()).len(), 11);
}

fn threads_enabling_and_disabling_an_evd_lose_no_wake_up(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 64, DAT_EVD_SOFTWARE_FLAG);
    for _ in 0..150 {
        wakes_after_changes(&cno, &evd, || {
            ok(dat_evd_disable(evd.h()));
            ok(dat_evd_enable(evd.h()));
        });
        expect(dat_cno_wait(cno.h(), 0, &mut null_mut()), DAT_QUEUE_EMPTY);
    }
}

fn threads_detaching_and_attaching_an_evd_lose_no_wake_up(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 64, DAT_EVD_SOFTWARE_FLAG);
    // A second EVD stays attached, so the CNO has an EVD at every moment.
    let _other = ia.evd_on(&cno, 1, DAT_EVD_SOFTWARE_FLAG);
    for _ in 0..150 {
        wakes_after_changes(&cno, &evd, || {
            ok(dat_evd_modify_cno(evd.h(), DAT_HANDLE_NULL));
            ok(dat_evd_modify_cno(evd.h(), cno.h()));
        });
    }
}

fn threads_setting_an_evd_unwaitable_end_the_wait_of_another(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(64, DAT_EVD_SOFTWARE_FLAG);
    let (is_over, has_posted_all) = (AtomicBool::new(false), AtomicBool::new(false));
    let (posted, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    run_threads(3, |thread| match thread {
        0 => {
            for _ in 0..300 {
                ok(dat_evd_set_unwaitable(evd.h()));
                ok(dat_evd_clear_unwaitable(evd.h()));
            }
            is_over.store(true, Ordering::Release);
            until(|| {
                has_posted_all.load(Ordering::Acquire)
                    && taken.load(Ordering::Acquire) == posted.load(Ordering::Acquire)
            });
            // No event is left, so only this call can end the last wait.
            ok(dat_evd_set_unwaitable(evd.h()));
        }
        1 => {
            until(|| {
                let code = dat_evd_post_se(evd.h(), &software_event(0));
                kind_in(code, &[DAT_SUCCESS, DAT_QUEUE_FULL]);
                posted.fetch_add((code == DAT_SUCCESS).into(), Ordering::AcqRel);
                is_over.load(Ordering::Acquire)
            });
            has_posted_all.store(true, Ordering::Release);
        }
        _ => until(|| {
            let is_last = has_posted_all.load(Ordering::Acquire);
            let mut event = zeroed();
            let code = dat_evd_wait(evd.h(), DAT_TIMEOUT_INFINITE, 1, &mut event, &mut 0);
            if code != DAT_SUCCESS {
                refused(code, DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
            }
            taken.fetch_add((code == DAT_SUCCESS).into(), Ordering::AcqRel);
            is_last && code != DAT_SUCCESS
        }),
    });
}

/// One thread waits on the EVD, another on its CNO. Together the threads dequeue all events.
fn threads_waiting_on_an_evd_and_its_cno_lose_no_event(ctx: &Ctx) {
    const EVENTS: usize = 1000;
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, EVENTS as DAT_COUNT, DAT_EVD_SOFTWARE_FLAG);
    let taken = AtomicUsize::new(0);
    let is_done = || taken.load(Ordering::Acquire) == EVENTS;
    run_threads(3, |thread| match thread {
        0 => (0..EVENTS).for_each(|number| evd.post(number)),
        1 => until(|| {
            let mut event = zeroed();
            let code = dat_evd_wait(evd.h(), 1000, 1, &mut event, &mut 0);
            kind_in(code, &[DAT_SUCCESS, DAT_TIMEOUT_EXPIRED]);
            taken.fetch_add((code == DAT_SUCCESS).into(), Ordering::AcqRel);
            is_done()
        }),
        _ => until(|| {
            let code = dat_cno_wait(cno.h(), 1000, &mut null_mut());
            kind_in(code, &[DAT_SUCCESS, DAT_QUEUE_EMPTY]);
            let mut event = zeroed();
            while code == DAT_SUCCESS && dat_evd_dequeue(evd.h(), &mut event) == DAT_SUCCESS {
                taken.fetch_add(1, Ordering::AcqRel);
            }
            is_done()
        }),
    });
    expect_nothing(evd.h());
}

/// An agent is called once per arming. This agent arms itself again.
fn threads_agent_that_rearms_itself_misses_no_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 64, DAT_EVD_SOFTWARE_FLAG);
    let calls = Arc::new(AtomicUsize::new(0));
    arm_again_after_each_call(Handle::of(cno.h()), calls.clone());
    run_threads(3, |thread| {
        for number in 0..20 {
            if thread < 2 {
                evd.post(number);
            } else {
                kind_in(dat_cno_wait(cno.h(), 0, &mut null_mut()), &[DAT_SUCCESS, DAT_QUEUE_EMPTY]);
            }
        }
    });
    // No trigger is left. From here on each event must cause a call.
    drain(evd.h());
    for round in 0..20 {
        let before = calls.load(Ordering::Acquire);
        expect(dat_cno_wait(cno.h(), 0, &mut null_mut()), DAT_QUEUE_EMPTY);
        evd.post(round);
        until(|| calls.load(Ordering::Acquire) > before);
        assert!(wait_on(&cno) == evd.h(), "the CNO lost its trigger");
        drain(evd.h());
    }
    ok(dat_cno_modify_agent(cno.h(), NO_AGENT));
}

fn arm_again_after_each_call(cno: Handle, calls: Arc<AtomicUsize>) {
    let again = agent(move |_| {
        arm_again_after_each_call(cno, calls.clone());
        calls.fetch_add(1, Ordering::AcqRel);
    });
    ok(dat_cno_modify_agent(cno.h(), again));
}

fn threads_agent_dequeues_each_event_once(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 64, DAT_EVD_SOFTWARE_FLAG);
    for round in 0..200 {
        let taken = Arc::new(AtomicUsize::new(usize::MAX));
        let own = taken.clone();
        ok(dat_cno_modify_agent(
            cno.h(),
            agent(move |evd| {
                let event = dequeue(evd.h()).expect("the EVD holds the event that triggered the agent");
                own.store(event.software().addr(), Ordering::Release);
            }),
        ));
        // The post may call the agent in this thread before it returns.
        evd.post(round);
        until(|| taken.load(Ordering::Acquire) == round);
        expect_nothing(evd.h());
    }
}

fn threads_agent_posting_to_another_evd_loses_no_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let (first, second) = (ia.cno(), ia.cno());
    let from = ia.evd_on(&first, 64, DAT_EVD_SOFTWARE_FLAG);
    let to = ia.evd_on(&second, 256, DAT_EVD_SOFTWARE_FLAG);
    let target = Handle::of(to.h());
    for round in 0..100 {
        ok(dat_cno_modify_agent(
            first.h(),
            agent(move |evd| {
                drain(evd.h());
                ok(dat_evd_post_se(target.h(), &software_event(round)));
            }),
        ));
        let waiter = cno_waiter(second.h(), DAT_TIMEOUT_INFINITE);
        from.post(round);
        let (code, named) = waiter.join();
        ok(code);
        assert!(named.h() == to.h());
        assert_eq!(dequeue(to.h()).map(|event| event.software().addr()), Some(round));
    }
}

fn threads_replacing_an_agent_cause_at_most_one_call_per_arming(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let evd = ia.evd_on(&cno, 256, DAT_EVD_SOFTWARE_FLAG);
    let noted = Agent::default();
    run_threads(3, |thread| match thread {
        0 => (0..200).for_each(|number| evd.post(number)),
        1 => (0..100).for_each(|_| {
            ok(dat_cno_modify_agent(cno.h(), noted.arm()));
            ok(dat_cno_modify_agent(cno.h(), NO_AGENT));
        }),
        _ => (0..200).for_each(|_| {
            kind_in(dat_cno_wait(cno.h(), 0, &mut null_mut()), &[DAT_SUCCESS, DAT_QUEUE_EMPTY]);
            drain(evd.h());
        }),
    });
    assert!(noted.all().iter().all(|named| *named == evd.h()), "the agent was called for another EVD");
    let before = noted.count();
    assert!(before <= 100, "the agent was called more than once per arming");
    // The agent still works, and the second of two events does not call it again.
    drain(evd.h());
    ok(dat_cno_modify_agent(cno.h(), noted.arm()));
    evd.post(1);
    noted.wait_for(before + 1);
    evd.post(2);
    assert_eq!(noted.count(), before + 1, "the agent was called more than once per arming");
}

fn client_sends_one_by_one(ctx: &Ctx) {
    let conn = ctx.connect();
    for id in 0..100 {
        ctx.receive();
        ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
        expect_dto(conn.request.h(), id, DAT_DTO_SUCCESS, 0);
    }
    ctx.meet();
}

/// An agent, called in an arbitrary thread, dequeues the receive completion and posts the receive again. The peer sends
/// each message after the agent was armed, so only the agent can take the completion.
fn server_takes_in_an_agent(ctx: &Ctx) {
    let ia = ctx.ia();
    let cno = ia.cno();
    let recv = ia.evd_on(&cno, 64, DAT_EVD_DTO_FLAG);
    let mut conn = Conn::on(&ia);
    conn.ep = ia.ep(&conn.pz, &recv, &conn.request, &conn.events);
    ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(0), DAT_COMPLETION_DEFAULT_FLAG));
    let ep = Handle::of(conn.ep.h());
    conn.listen(ctx.qual(0), || ctx.send_address(&ia));
    conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    let taken = Arc::new(Mutex::new(0));
    for number in 0..100 {
        let own = taken.clone();
        ok(dat_cno_modify_agent(cno.h(), agent(move |evd| take_and_post(evd, ep, &own))));
        ctx.send("next");
        until(|| *taken.lock().expect("no thread has panicked") > number);
    }
    ctx.meet();
    ok(dat_cno_modify_agent(cno.h(), NO_AGENT));
    conn.ep.free();
}

/// Dequeues the completed receives, and posts one receive for each.
fn take_and_post(evd: Handle, ep: Handle, taken: &Mutex<u64>) {
    let mut taken = taken.lock().expect("no thread has panicked");
    while let Some(event) = dequeue(evd.h()) {
        let data = event.dto();
        if data.status == DAT_DTO_ERR_FLUSHED {
            return;
        }
        check_dto(&data, *taken, DAT_DTO_SUCCESS, 0);
        *taken += 1;
        ok(dat_ep_post_recv(ep.h(), 0, null_mut(), cookie(*taken), DAT_COMPLETION_DEFAULT_FLAG));
    }
}

/// The CNO is first used by a waiter only, then by an EVD only, then by neither.
fn threads_freeing_a_cno_are_refused_during_its_use_then_succeed_once(ctx: &Ctx) {
    let ia = ctx.ia();
    for _ in 0..50 {
        let cno = ia.cno();
        let free_is_refused = || {
            run_threads(2, |_| refused(dat_cno_free(cno.h()), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE));
        };
        let waiter = cno_waiter(cno.h(), DAT_TIMEOUT_INFINITE).asleep();
        free_is_refused();
        assert!(!waiter.is_back(), "the wait has returned without an event");
        let evd = ia.evd_on(&cno, 8, DAT_EVD_SOFTWARE_FLAG);
        evd.post(1);
        assert_eq!(waiter.join(), (DAT_SUCCESS, Handle::of(evd.h())));
        free_is_refused();
        evd.free();
        let cno = Handle::of(cno.leak());
        let freed = AtomicUsize::new(0);
        run_threads(2, |_| {
            let code = dat_cno_free(cno.h());
            if code != DAT_SUCCESS {
                refused(code, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CNO);
            }
            freed.fetch_add((code == DAT_SUCCESS).into(), Ordering::Relaxed);
        });
        assert_eq!(freed.into_inner(), 1, "not exactly one thread freed the CNO");
    }
}

fn threads_interrupting_waits_lose_no_event(ctx: &Ctx) {
    let ia = ctx.ia();
    let evd = ia.evd(64, DAT_EVD_SOFTWARE_FLAG);
    for round in 0..40 {
        let waiter = evd_waiter(evd.h(), DAT_TIMEOUT_INFINITE, 1).inside(evd.h());
        run_threads(2, |thread| if thread == 0 { waiter.interrupt() } else { evd.post(round) });
        let waited = waiter.join();
        kind_in(waited.code, &[DAT_SUCCESS, DAT_INTERRUPTED_CALL]);
        let left = drain(evd.h());
        let taken = usize::from(waited.code == DAT_SUCCESS);
        assert_eq!(left.len() + taken, 1, "the event was lost or duplicated");
    }
}

/// After a wait was cancelled, another thread waits on the EVD while two threads post.
fn threads_cancelling_waits_lose_no_event(ctx: &Ctx) {
    let ia = ctx.ia();
    for round in 0..40 {
        let evd = ia.evd(64, DAT_EVD_SOFTWARE_FLAG);
        let sleeper = Cancellable::on_evd(evd.h());
        // The thread is cancelled at different points of the wait.
        (0..round).for_each(|_| std::thread::yield_now());
        sleeper.cancel();
        let taken = Mutex::new(Vec::new());
        run_threads(3, |thread| {
            if thread < 2 {
                return (0..20).for_each(|number| evd.post(20 * thread + number));
            }
            *taken.lock().expect("no thread has panicked") = (0..40).map(|_| wait_for(&evd)).collect();
        });
        let mut taken = taken.into_inner().expect("no thread has panicked");
        taken.sort_unstable();
        assert_eq!(taken, (0..40).collect::<Vec<_>>(), "an event was lost or duplicated");
        expect_nothing(evd.h());
    }
}
