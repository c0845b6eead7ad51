//! Tests of CNOs, mostly through their C entries, with EVDs over the fake provider.

mod descriptor;
mod quick;

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use dat_abi::*;

use super::dapl_cno::*;
use super::*;
use crate::error::{Error, Handle};
use crate::evd::dapl_evd::*;
use crate::evd::{Evd, dapls_evd};
use crate::fake::{self, FakeProvider, Opened};
use crate::ia::dapl_ia::dapl_ia_close;
use crate::provider::{Completion, Token};
use crate::runtime::handle::from_handle;

const NULL: *mut c_void = std::ptr::null_mut();
const IN_USE: DAT_RETURN = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_CNO_IN_USE;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Hand(usize);

impl Hand {
    fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

const NO_AGENT: DAT_OS_WAIT_PROXY_AGENT = DAT_OS_WAIT_PROXY_AGENT { instance_data: NULL, proxy_agent_func: None };

fn cno(opened: &Opened, agent: DAT_OS_WAIT_PROXY_AGENT) -> Hand {
    let mut out = NULL;
    // SAFETY: the IA is live, the agent accepts every call, and the out parameter is writable.
    assert_eq!(unsafe { dapl_cno_create::<FakeProvider>(opened.ia_handle, agent, &mut out) }, DAT_SUCCESS);
    Hand(out as usize)
}

fn evd(opened: &Opened, cno: Hand) -> Hand {
    let mut out = NULL;
    let flags = DAT_EVD_DTO_FLAG | DAT_EVD_SOFTWARE_FLAG;
    // SAFETY: the handles are live, and the out parameter is writable.
    let code = unsafe { dapl_evd_create::<FakeProvider>(opened.ia_handle, 8, cno.raw(), flags, &mut out) };
    assert_eq!(code, DAT_SUCCESS);
    Hand(out as usize)
}

fn wait(cno: Hand, timeout: u32) -> (DAT_RETURN, Hand) {
    let mut out = 9 as *mut c_void;
    // SAFETY: the call accepts any handle value; the out parameter is writable.
    let code = unsafe { dapl_cno_wait::<FakeProvider>(cno.raw(), timeout, &mut out) };
    (code, Hand(out as usize))
}

fn post(evd: Hand) {
    dapls_evd::post_software(&*from_handle::<Evd<FakeProvider>>(evd.raw(), Handle::Plain).unwrap(), 1).unwrap();
}

fn feed(evd: Hand, token: Token) {
    let object = from_handle::<Evd<FakeProvider>>(evd.raw(), Handle::Plain).unwrap();
    object.cq().unwrap().feed(Completion { token, ..Completion::default() });
}

fn take(evd: Hand) -> bool {
    // SAFETY: all-zero bytes are a valid event, and the handle is live.
    unsafe {
        let mut event = std::mem::zeroed();
        dapl_evd_dequeue::<FakeProvider>(evd.raw(), &mut event) == DAT_SUCCESS
    }
}

fn free_evd(evd: Hand) {
    // SAFETY: the call accepts any handle value.
    assert_eq!(unsafe { dapl_evd_free::<FakeProvider>(evd.raw()) }, DAT_SUCCESS);
}

fn free(cno: Hand) -> DAT_RETURN {
    // SAFETY: the call accepts any handle value.
    unsafe { dapl_cno_free::<FakeProvider>(cno.raw()) }
}

fn await_waiters(cno: Hand, count: usize) {
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    while object.inner.lock().waiters.len() < count {
        std::thread::yield_now();
    }
}

/// Number of calls of an agent, and the EVD of the last call.
#[derive(Default)]
struct Seen {
    calls: AtomicUsize,
    evd: AtomicUsize,
}

unsafe extern "C" fn note(seen: *mut c_void, evd: *mut c_void) {
    // SAFETY: the test passes a `Seen` that outlives its CNO.
    let seen = unsafe { &*seen.cast::<Seen>() };
    seen.evd.store(evd as usize, Ordering::SeqCst);
    seen.calls.fetch_add(1, Ordering::SeqCst);
}

fn agent(seen: &Seen) -> DAT_OS_WAIT_PROXY_AGENT {
    let seen = std::ptr::from_ref(seen).cast_mut().cast();
    DAT_OS_WAIT_PROXY_AGENT { instance_data: seen, proxy_agent_func: Some(note) }
}

#[test]
fn timed_out_cno_wait_returns_queue_empty_and_a_null_evd() {
    let opened = fake::open(c"cno-time-out");
    let cno = cno(&opened, NO_AGENT);
    assert_eq!(wait(cno, 0), (0x000D_0000, Hand(0)));
    assert_eq!(wait(cno, 1_000), (0x000D_0000, Hand(0)));
    assert_eq!(wait(Hand(3), 0).0, DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_CNO);
    // SAFETY: the call accepts a null out parameter.
    let code = unsafe { dapl_cno_wait::<FakeProvider>(cno.raw(), 0, std::ptr::null_mut()) };
    assert_eq!(code, DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG3);
    assert_eq!(free(cno), DAT_SUCCESS);
}

#[test]
fn cno_wait_announces_its_sleep_to_the_provider() {
    let opened = fake::open(c"cno-sleeps");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    let sleeps = || opened.ia.provider.sleeps_seen();
    post(evd);
    assert_eq!((wait(cno, 1_000), sleeps()), ((DAT_SUCCESS, evd), 0), "the wait does not sleep");
    assert!(take(evd));
    assert_eq!((wait(cno, 0).0, sleeps()), (DAT_QUEUE_EMPTY, 0), "nor does this");
    assert_eq!(wait(cno, 1_000).0, DAT_QUEUE_EMPTY);
    assert!(sleeps() > 0);
}

#[test]
fn evds_are_returned_in_the_order_of_their_events() {
    let opened = fake::open(c"cno-order");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    feed(b, Token::default());
    post(a);
    feed(b, Token::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b));
    assert!(take(b));
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, a));
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b), "returned again for the remaining event");
    assert!(take(b));
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY, "events left in the other EVD do not trigger again");
}

#[test]
fn an_emptied_or_detached_evd_is_not_returned() {
    let opened = fake::open(c"cno-emptied");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    post(a);
    post(b);
    assert!(take(a));
    // SAFETY: the handles are live.
    assert_eq!(unsafe { dapl_evd_modify_cno::<FakeProvider>(b.raw(), NULL) }, DAT_SUCCESS);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    assert_eq!(free(cno), IN_USE);
    free_evd(a);
    assert_eq!(free(cno), DAT_SUCCESS);
}

#[test]
fn disabled_evds_and_unsignalled_events_trigger_nothing() {
    let opened = fake::open(c"cno-quiet");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    feed(evd, Token { unsignalled: true, ..Token::default() });
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_evd_disable::<FakeProvider>(evd.raw()) }, DAT_SUCCESS);
    post(evd);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_evd_enable::<FakeProvider>(evd.raw()) }, DAT_SUCCESS);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY, "earlier events are no trigger");
    feed(evd, Token::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
}

#[test]
fn each_trigger_wakes_one_waiter() {
    let opened = fake::open(c"cno-sleepers");
    let cno = cno(&opened, NO_AGENT);
    let evds = [evd(&opened, cno), evd(&opened, cno)];
    let sleepers = [(); 2].map(|()| std::thread::spawn(move || wait(cno, DAT_TIMEOUT_INFINITE)));
    await_waiters(cno, 2);
    assert_eq!(free(cno), IN_USE);
    evds.into_iter().for_each(post);
    let mut woken = sleepers.map(|sleeper| sleeper.join().unwrap());
    woken.sort_by_key(|(_, evd)| evd.0);
    let mut expected = evds.map(|evd| (DAT_SUCCESS, evd));
    expected.sort_by_key(|(_, evd)| evd.0);
    assert_eq!(woken, expected);
}

#[test]
fn freeing_the_last_evd_releases_all_waiters() {
    let opened = fake::open(c"cno-alone");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    let sleepers = [(); 2].map(|()| std::thread::spawn(move || wait(cno, DAT_TIMEOUT_INFINITE)));
    await_waiters(cno, 2);
    free_evd(a);
    free_evd(b);
    assert_eq!(sleepers.map(|sleeper| sleeper.join().unwrap()), [(DAT_SUCCESS, Hand(0)); 2]);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY, "all waiters were released");
    assert_eq!(free(cno), DAT_SUCCESS);
}

#[test]
fn abrupt_close_ends_a_wait_and_calls_the_agent_without_an_evd() {
    let opened = fake::open(c"cno-abrupt");
    let seen = Seen::default();
    let cno = cno(&opened, agent(&seen));
    let sleeper = std::thread::spawn(move || wait(cno, DAT_TIMEOUT_INFINITE));
    await_waiters(cno, 1);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG) }, DAT_SUCCESS);
    assert_eq!(sleeper.join().unwrap(), (DAT_SUCCESS, Hand(0)));
    assert_eq!((seen.calls.load(Ordering::SeqCst), seen.evd.load(Ordering::SeqCst)), (1, 0));
}

#[test]
fn agent_is_called_once_until_set_again_and_a_wait_still_returns_the_evd() {
    let opened = fake::open(c"cno-agent");
    let seen = Seen::default();
    let cno = cno(&opened, agent(&seen));
    let evd = evd(&opened, cno);
    feed(evd, Token::default());
    assert_eq!((seen.calls.load(Ordering::SeqCst), seen.evd.load(Ordering::SeqCst)), (1, evd.0));
    post(evd);
    assert_eq!(seen.calls.load(Ordering::SeqCst), 1, "one shot");
    // SAFETY: all-zero bytes are a valid record of pointers, and the handles are live.
    let param = unsafe {
        let mut param: DAT_CNO_PARAM = std::mem::zeroed();
        assert_eq!(dapl_cno_query::<FakeProvider>(cno.raw(), DAT_CNO_FIELD_ALL, &mut param), DAT_SUCCESS);
        param
    };
    assert!(param.agent.proxy_agent_func.is_none());
    // SAFETY: the handle is live, and `seen` outlives the CNO.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno.raw(), agent(&seen)) }, DAT_SUCCESS);
    post(evd);
    assert_eq!(seen.calls.load(Ordering::SeqCst), 2);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd));
    free_evd(evd);
    assert_eq!(free(cno), DAT_SUCCESS);
}

/// Empties the EVD and arms the agent again, as MPI libraries do.
unsafe extern "C" fn drain(cno: *mut c_void, evd: *mut c_void) {
    while take(Hand(evd as usize)) {}
    let again = DAT_OS_WAIT_PROXY_AGENT { instance_data: cno, proxy_agent_func: Some(drain) };
    // SAFETY: the CNO is live.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno, again) }, DAT_SUCCESS);
}

#[test]
fn an_agent_may_call_back_into_dat() {
    let opened = fake::open(c"cno-agent-calls");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    let armed = DAT_OS_WAIT_PROXY_AGENT { instance_data: cno.raw(), proxy_agent_func: Some(drain) };
    // SAFETY: the agent accepts every call.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno.raw(), armed) }, DAT_SUCCESS);
    for _ in 0..3 {
        post(evd);
        feed(evd, Token::default());
        assert!(!take(evd));
    }
    // SAFETY: the agent accepts every call.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno.raw(), NO_AGENT) }, DAT_SUCCESS);
}

#[test]
fn a_waiter_on_the_evd_takes_precedence_over_its_cno() {
    let opened = fake::open(c"cno-precedence");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    let sleeper = std::thread::spawn(move || {
        // SAFETY: all-zero bytes are a valid event, and the handle is live.
        unsafe {
            let (mut event, mut more) = (std::mem::zeroed(), 0);
            crate::evd::dapl_evd_wait::<FakeProvider>(evd.raw(), DAT_TIMEOUT_INFINITE, 2, &mut event, &mut more)
        }
    });
    let object = from_handle::<Evd<FakeProvider>>(evd.raw(), Handle::Plain).unwrap();
    while !object.has_waiter() {
        std::thread::yield_now();
    }
    post(evd);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    post(evd);
    assert_eq!(sleeper.join().unwrap(), DAT_SUCCESS);
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, evd), "for the remaining event");
}

#[test]
fn wait_on_a_cno_freed_after_the_handle_check_is_refused() {
    let opened = fake::open(c"cno-late");
    let cno = cno(&opened, NO_AGENT);
    let freed = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    assert_eq!(free(cno), DAT_SUCCESS);
    let (_, next) = dapli_cno::begin(&freed, DAT_TIMEOUT_INFINITE, false);
    assert!(matches!(next, dapli_cno::CnoWaitResult::Fail(Error::InvalidHandle(Handle::Cno))), "{next:?}");
}

fn cq(evd: Hand) -> Arc<fake::FakeCq> {
    from_handle::<Evd<FakeProvider>>(evd.raw(), Handle::Plain).unwrap().cq().unwrap()
}

#[test]
fn cno_wait_polls_its_evds_without_a_notification() {
    let opened = fake::open(c"cno-polls");
    let cno = cno(&opened, NO_AGENT);
    let [_a, b] = [evd(&opened, cno), evd(&opened, cno)];
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    cq(b).put(Completion::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b), "found without a notification");
    assert!(!cq(b).is_armed(), "a waiter that polls needs none");
    assert!(take(b));
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    object.spin.set(u32::MAX / 2);
    cq(b).max_spin.store(u32::MAX / 2, Ordering::Relaxed);
    // SAFETY: the handles are live.
    let modified = unsafe { dapl_evd_modify_cno::<FakeProvider>(b.raw(), cno.raw()) };
    assert_eq!(modified, DAT_SUCCESS, "the new bound is used");
    let spinner = std::thread::spawn(move || wait(cno, DAT_TIMEOUT_INFINITE));
    await_waiters(cno, 1);
    cq(b).put(Completion::default());
    assert_eq!(spinner.join().unwrap(), (DAT_SUCCESS, b), "found while it spins");
}

#[test]
fn wait_that_polls_returns_each_evd_with_events_in_turn() {
    let opened = fake::open(c"cno-turns");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    cq(a).put(Completion::default());
    cq(b).put(Completion::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, a), "the first one polled");
    cq(a).put(Completion::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b), "its event is older than the new event of the first EVD");
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, a));
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY, "no event since its last return");
    assert!(take(a) && take(a) && take(b));
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
}

/// Posts an event to another EVD when it is polled for the first time.
struct PostsWhenPolled(Hand, AtomicUsize);

impl EvdSource for PostsWhenPolled {
    fn id(&self) -> ObjectId {
        ObjectId { handle: 3, generation: 0 }
    }
    fn pending(&self, _: ObjectId) -> bool {
        false
    }
    fn poll(&self, _: &mut PollPass) {
        if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            post(self.0);
        }
    }
    fn arm(&self) {}
}

#[test]
fn evd_that_triggers_during_a_pass_is_returned_before_one_polled_later() {
    let opened = fake::open(c"cno-pass");
    let cno = cno(&opened, NO_AGENT);
    let b = evd(&opened, cno);
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    object.watch(Arc::new(PostsWhenPolled(b, AtomicUsize::new(0))), 0);
    let a = evd(&opened, cno);
    cq(a).put(Completion::default());
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, b));
    assert_eq!(wait(cno, 0), (DAT_SUCCESS, a));
    object.unwatch(ObjectId { handle: 3, generation: 0 });
}

#[test]
fn a_pending_trigger_is_taken_without_polling() {
    let opened = fake::open(c"cno-no-poll");
    let cno = cno(&opened, NO_AGENT);
    let [a, b] = [evd(&opened, cno), evd(&opened, cno)];
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    post(b);
    let fetches = || [a, b].map(|evd| cq(evd).fetches.load(Ordering::Relaxed));
    let before = fetches();
    assert_eq!((wait(cno, 1_000), fetches()), ((DAT_SUCCESS, b), before));
}

#[test]
fn first_dequeue_that_finds_nothing_after_a_success_does_not_poll() {
    let opened = fake::open(c"cno-dequeues");
    let cno = cno(&opened, NO_AGENT);
    let evd = evd(&opened, cno);
    feed(evd, Token::default());
    assert_eq!(wait(cno, 1_000), (DAT_SUCCESS, evd));
    let polls = || cq(evd).polls.load(Ordering::Relaxed);
    let before = polls();
    assert!(take(evd) && !take(evd));
    assert_eq!(polls(), before, "dequeued until empty, before the next wait");
    assert!(!take(evd));
    assert_eq!(polls(), before + 1, "a consumer that only dequeues makes progress");
}

#[test]
fn completion_queues_are_armed_before_a_cno_waiter_sleeps() {
    let opened = fake::open(c"cno-sleeps");
    let cno = cno(&opened, NO_AGENT);
    let evds = [evd(&opened, cno), evd(&opened, cno)];
    let object = from_handle::<Cno<FakeProvider>>(cno.raw(), Handle::Cno).unwrap();
    for evd in evds.into_iter().cycle().take(6) {
        let sleeper = std::thread::spawn(move || wait(cno, DAT_TIMEOUT_INFINITE));
        while object.inner.lock().asleep.is_empty() || object.is_polled() || !cq(evd).is_armed() {
            std::thread::yield_now();
        }
        feed(evd, Token::default());
        assert_eq!(sleeper.join().unwrap(), (DAT_SUCCESS, evd));
        assert!(!cq(evd).is_armed(), "the only sleeper was woken");
        assert!(take(evd));
    }
}

#[test]
fn agent_set_after_a_polling_wait_is_called_for_the_next_event() {
    let opened = fake::open(c"cno-agent-armed");
    let (cno, seen) = (cno(&opened, NO_AGENT), Seen::default());
    let evd = evd(&opened, cno);
    assert_eq!(wait(cno, 0).0, DAT_QUEUE_EMPTY);
    cq(evd).put(Completion::default());
    // SAFETY: the handle is live, and `seen` outlives the CNO.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno.raw(), agent(&seen)) }, DAT_SUCCESS);
    assert_eq!(seen.calls.load(Ordering::SeqCst), 0, "earlier events do not call the agent");
    feed(evd, Token::default());
    assert_eq!((seen.calls.load(Ordering::SeqCst), seen.evd.load(Ordering::SeqCst)), (1, evd.0));
    // SAFETY: the handle is live, and `seen` outlives the CNO.
    assert_eq!(unsafe { dapl_cno_modify_agent::<FakeProvider>(cno.raw(), NO_AGENT) }, DAT_SUCCESS);
}
