//! Tests of EVDs over the fake provider. They call the C entries, and internal functions for events that EPs and
//! service points post.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dat_abi::*;

use super::dapl_evd::*;
use super::*;
use crate::error::Handle;
use crate::fake::{self, FakeCq, FakeProvider, Opened};
use crate::ia::ChildKey;
use crate::ia::dapl_ia::dapl_ia_close;
use crate::provider::{Completion, ConnectionEvent, CqSink, Token};
use crate::runtime::handle::from_handle;

mod descriptor;
#[cfg(loom)]
mod interleavings;
mod quick;
#[cfg(not(loom))]
mod yields;

const BAD: DAT_RETURN = DAT_CLASS_ERROR | DAT_INVALID_HANDLE;
const WAITER: DAT_RETURN = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_WAITER;
const TIMEOUT: DAT_RETURN = DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED;

fn argument(n: u32) -> DAT_RETURN {
    DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_INVALID_ARG1 + n - 1)
}

/// A handle that may be sent to another thread.
#[derive(Clone, Copy)]
struct Evh(usize);

impl Evh {
    fn new(opened: &Opened, length: i32, flags: u32) -> Self {
        let mut evd = std::ptr::null_mut();
        // SAFETY: the IA is live, and the out parameter is writable.
        let code =
            unsafe { dapl_evd_create::<FakeProvider>(opened.ia_handle, length, std::ptr::null_mut(), flags, &mut evd) };
        assert_eq!(code, DAT_SUCCESS);
        Evh(evd as usize)
    }

    fn handle(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    fn object(self) -> Arc<Evd<FakeProvider>> {
        from_handle::<Evd<FakeProvider>>(self.handle(), Handle::Plain).unwrap().to_arc()
    }

    fn cq(self) -> Arc<FakeCq> {
        self.object().cq().unwrap()
    }

    fn wait(self, timeout: u32, threshold: i32) -> (DAT_RETURN, u64, i32) {
        let mut event = blank();
        let mut more = -1;
        // SAFETY: the call accepts any handle value, and the out parameters are writable.
        let code = unsafe { dapl_evd_wait::<FakeProvider>(self.handle(), timeout, threshold, &mut event, &mut more) };
        (code, mark_of(&event), more)
    }

    fn dequeue(self) -> (DAT_RETURN, u64) {
        let mut event = blank();
        // SAFETY: the call accepts any handle value, and the out parameters are writable.
        let code = unsafe { dapl_evd_dequeue::<FakeProvider>(self.handle(), &mut event) };
        (code, mark_of(&event))
    }

    fn post(self, mark: u64) -> DAT_RETURN {
        let mut event = blank();
        event.event_number = DAT_SOFTWARE_EVENT;
        event.event_data.software_event_data = DAT_SOFTWARE_EVENT_DATA { pointer: mark as *mut c_void };
        // SAFETY: the call accepts any handle value, and the event is a valid software event.
        unsafe { dapl_evd_post_se::<FakeProvider>(self.handle(), &event) }
    }

    fn free(self) -> DAT_RETURN {
        // SAFETY: the call accepts any handle value.
        unsafe { dapl_evd_free::<FakeProvider>(self.handle()) }
    }

    /// Waits until a thread sleeps on the EVD.
    fn wait_until_asleep(self) {
        let evd = self.object();
        while !evd.inner.lock().queue.has_sleeping_waiter() {
            std::thread::yield_now();
        }
    }
}

fn blank() -> DAT_EVENT {
    let data = DAT_EVENT_DATA { software_event_data: DAT_SOFTWARE_EVENT_DATA { pointer: std::ptr::null_mut() } };
    DAT_EVENT { event_number: 0, evd_handle: std::ptr::null_mut(), event_data: data }
}

/// Returns the cookie of a DTO event, the pointer of a software event, or 0.
fn mark_of(event: &DAT_EVENT) -> u64 {
    match event.event_number {
        // SAFETY: the event number selects the union member.
        DAT_DTO_COMPLETION_EVENT => unsafe { event.event_data.dto_completion_event_data.user_cookie.as_64 },
        // SAFETY: the event number selects the union member.
        DAT_SOFTWARE_EVENT => unsafe { event.event_data.software_event_data.pointer as u64 },
        _ => 0,
    }
}

fn done(cookie: u64) -> Completion {
    Completion { token: Token { cookie, ..Token::default() }, ..Completion::default() }
}

const ALL: u32 = DAT_EVD_DEFAULT_FLAG | DAT_EVD_SOFTWARE_FLAG;

#[test]
fn evd_create_refuses_each_invalid_argument() {
    let opened = fake::open(c"evd-create");
    let ia = opened.ia_handle;
    let mut out = std::ptr::null_mut();
    let null = std::ptr::null_mut();
    // SAFETY: the call accepts any handle values, and `out` is writable.
    let mut create =
        |ia, length, cno, flags| unsafe { dapl_evd_create::<FakeProvider>(ia, length, cno, flags, &mut out) };
    assert_eq!(create(opened.async_evd, 1, null, ALL), BAD | DAT_INVALID_HANDLE_IA);
    assert_eq!(create(ia, 0, null, ALL), argument(2));
    assert_eq!(create(ia, -1, null, ALL), argument(2));
    assert_eq!(create(ia, 1001, null, ALL), DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_TEVD);
    assert_eq!(create(ia, 1, ia, ALL), BAD | DAT_INVALID_HANDLE_CNO);
    assert_eq!(create(ia, 1, null, 0), argument(4));
    assert_eq!(create(ia, 1, null, 0x200), argument(4));
    assert_eq!(create(ia, 1000, null, ALL), DAT_SUCCESS);
    // SAFETY: the call accepts a null out parameter.
    let code = unsafe { dapl_evd_create::<FakeProvider>(ia, 1, null, ALL, null.cast()) };
    assert_eq!(code, argument(5));
}

#[test]
fn events_come_in_order_and_queue_empty_has_no_class_bit() {
    let opened = fake::open(c"evd-order");
    let evd = Evh::new(&opened, 8, ALL);
    assert_eq!(evd.dequeue().0, 0x000D_0000);
    evd.cq().put(done(1));
    assert_eq!(evd.post(2), DAT_SUCCESS, "queued behind the completion that was there");
    for cookie in 3..50 {
        evd.cq().put(done(cookie));
    }
    let marks: Vec<_> = (1..50).map(|_| evd.dequeue()).collect();
    assert_eq!(marks, (1..50).map(|mark| (DAT_SUCCESS, mark)).collect::<Vec<_>>(), "more than its length, none lost");
    assert_eq!(evd.dequeue().0, DAT_QUEUE_EMPTY);
}

#[test]
fn connection_event_comes_after_earlier_completions() {
    let opened = fake::open(c"evd-behind");
    let evd = Evh::new(&opened, 4, ALL);
    evd.cq().put(done(1));
    let kind = ConnectionEvent::Disconnected;
    dapls_evd::post(&evd.object(), Event::Connection { kind, ep: 64, data_size: 0, data: 0 }).unwrap();
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 1));
    let mut event = blank();
    // SAFETY: the handle is live, and the event is writable.
    assert_eq!(unsafe { dapl_evd_dequeue::<FakeProvider>(evd.handle(), &mut event) }, DAT_SUCCESS);
    assert_eq!((event.event_number, event.evd_handle), (DAT_CONNECTION_EVENT_DISCONNECTED, evd.handle()));
    // SAFETY: the data of connection events and of DTO completions begin with the EP's handle.
    assert_eq!(unsafe { event.event_data.dto_completion_event_data.ep_handle } as usize, 64);
}

#[test]
fn evd_wait_checks_its_arguments_in_order() {
    let opened = fake::open(c"evd-wait-arguments");
    let evd = Evh::new(&opened, 4, ALL);
    let (mut event, mut more) = (blank(), 0);
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: the calls accept any handle value, and the out parameters are null or writable.
    unsafe {
        let wait = dapl_evd_wait::<FakeProvider>;
        assert_eq!(wait(opened.ia_handle, 0, 0, null.cast(), null.cast()), BAD);
        assert_eq!(wait(evd.handle(), 0, 0, null.cast(), null.cast()), argument(4));
        assert_eq!(wait(evd.handle(), 0, 0, &mut event, null.cast()), argument(5));
        assert_eq!(wait(evd.handle(), 0, 0, &mut event, &mut more), argument(3));
        assert_eq!(wait(evd.handle(), 0, 5, &mut event, &mut more), argument(3));
    }
}

#[test]
fn timed_out_wait_takes_no_event_and_returns_the_number_of_queued_events() {
    let opened = fake::open(c"evd-time-out");
    let evd = Evh::new(&opened, 8, ALL);
    assert_eq!(evd.wait(0, 1), (TIMEOUT, 0, 0));
    evd.post(1);
    evd.cq().put(done(2));
    assert_eq!(evd.wait(0, 3), (TIMEOUT, 0, 2));
    assert_eq!(evd.wait(2_000, 3), (TIMEOUT, 0, 2));
    assert_eq!(evd.wait(0, 2), (DAT_SUCCESS, 1, 1));
    assert_eq!(evd.dequeue(), (DAT_SUCCESS, 2));
}

#[test]
fn evd_wait_announces_its_sleep_to_the_provider() {
    let opened = fake::open(c"evd-sleeps");
    for flags in [DAT_EVD_DTO_FLAG | DAT_EVD_SOFTWARE_FLAG, DAT_EVD_SOFTWARE_FLAG] {
        let evd = Evh::new(&opened, 8, flags);
        let before = opened.ia.provider.sleeps_seen();
        assert_eq!((evd.post(7), evd.wait(1_000, 1).0), (DAT_SUCCESS, DAT_SUCCESS));
        assert_eq!(evd.wait(0, 1).0, TIMEOUT);
        assert_eq!(opened.ia.provider.sleeps_seen(), before, "neither sleeps");
        assert_eq!(evd.wait(1_000, 1).0, TIMEOUT);
        assert!(opened.ia.provider.sleeps_seen() > before, "with and without a CQ: {flags:#x}");
        assert_eq!(evd.free(), DAT_SUCCESS);
    }
}

#[test]
fn completion_software_and_connection_events_wake_a_sleeping_waiter() {
    let opened = fake::open(c"evd-wake");
    let evd = Evh::new(&opened, 8, ALL);
    type Waker = (&'static str, fn(Evh));
    let wakers: [Waker; 3] = [
        ("completion", |evd| evd.cq().feed(done(7))),
        ("software", |evd| assert_eq!(evd.post(7), DAT_SUCCESS)),
        ("connection", |evd| {
            let kind = ConnectionEvent::Established;
            dapls_evd::post(&evd.object(), Event::Connection { kind, ep: 7, data_size: 0, data: 0 }).unwrap();
        }),
    ];
    for (stream, waker) in wakers {
        let sleeper = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1));
        evd.wait_until_asleep();
        assert_eq!(evd.dequeue().0, WAITER, "{stream}");
        assert_eq!(evd.wait(0, 1).0, WAITER, "{stream}");
        waker(evd);
        assert_eq!(sleeper.join().unwrap().0, DAT_SUCCESS, "{stream}");
    }
}

#[test]
fn wait_for_a_threshold_continues_after_wake_ups() {
    let opened = fake::open(c"evd-threshold");
    let evd = Evh::new(&opened, 8, ALL);
    let sleeper = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 3));
    for cookie in 1..=3 {
        evd.wait_until_asleep();
        assert!(evd.cq().is_armed(), "the sleeping waiter needs a notification");
        evd.cq().feed(done(cookie));
    }
    assert_eq!(sleeper.join().unwrap(), (DAT_SUCCESS, 1, 2));
}

#[test]
fn set_unwaitable_and_free_release_the_waiter() {
    let opened = fake::open(c"evd-release");
    let evd = Evh::new(&opened, 8, ALL);
    let unwaitable = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_UNWAITABLE;
    let sleeper = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1).0);
    evd.wait_until_asleep();
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_evd_set_unwaitable::<FakeProvider>(evd.handle()) }, DAT_SUCCESS);
    assert_eq!(sleeper.join().unwrap(), unwaitable);
    evd.post(1);
    assert_eq!(evd.wait(0, 1).0, unwaitable, "even with events");
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_evd_clear_unwaitable::<FakeProvider>(evd.handle()) }, DAT_SUCCESS);
    assert_eq!(evd.wait(0, 1).0, DAT_SUCCESS);

    let sleeper = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1).0);
    evd.wait_until_asleep();
    assert_eq!(evd.free(), DAT_SUCCESS);
    assert_eq!(sleeper.join().unwrap(), DAT_CLASS_ERROR | DAT_ABORT);
    assert_eq!(evd.free(), BAD);
    assert_eq!(evd.dequeue().0, BAD);
}

#[test]
fn abrupt_ia_close_releases_the_waiter() {
    let opened = fake::open(c"evd-abrupt");
    let evd = Evh::new(&opened, 8, DAT_EVD_CONNECTION_FLAG);
    let sleeper = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1).0);
    evd.wait_until_asleep();
    // SAFETY: the calls accept any handle value.
    unsafe {
        assert_eq!(
            dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_GRACEFUL_FLAG),
            DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_IA_IN_USE
        );
        assert_eq!(dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
        assert_eq!(dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG), BAD | DAT_INVALID_HANDLE_IA);
    }
    assert_eq!(sleeper.join().unwrap(), DAT_CLASS_ERROR | DAT_ABORT);
    assert!(opened.ia.provider.is_closed());
}

#[test]
fn full_queue_refuses_software_events_without_an_async_error() {
    let opened = fake::open(c"evd-full");
    let evd = Evh::new(&opened, 2, ALL);
    assert_eq!((evd.post(1), evd.post(2)), (DAT_SUCCESS, DAT_SUCCESS));
    assert_eq!(evd.post(3), DAT_CLASS_ERROR | DAT_QUEUE_FULL);
    assert_eq!(Evh(opened.async_evd as usize).dequeue().0, DAT_QUEUE_EMPTY);
    assert_eq!(Evh::new(&opened, 1, DAT_EVD_CR_FLAG).post(1), argument(1));
}

#[test]
fn overflow_is_reported_and_the_evd_remains_usable() {
    let opened = fake::open(c"evd-overflow");
    let evd = Evh::new(&opened, 1, DAT_EVD_CR_FLAG);
    let request = Event::Request { sp: 1, address: 2, qual: 3, cr: 4, child: ChildKey::NONE };
    let object = evd.object();
    let posted = (0..100_000).take_while(|_| dapls_evd::post(&object, request).is_ok()).count();
    assert!(posted > 10_000 && posted < 100_000);
    let mut event = blank();
    // SAFETY: the handle is live, and the event is writable.
    assert_eq!(unsafe { dapl_evd_dequeue::<FakeProvider>(opened.async_evd, &mut event) }, DAT_SUCCESS);
    assert_eq!(event.event_number, DAT_ASYNC_ERROR_EVD_OVERFLOW);
    // SAFETY: the event number selects the union member.
    let data = unsafe { event.event_data.asynch_error_event_data };
    assert_eq!((data.dat_handle, data.reason), (evd.handle(), 0));
    assert_eq!(evd.dequeue().0, DAT_SUCCESS, "the EVD still delivers events after the overflow");
}

#[test]
fn evd_query_returns_the_state_and_resize_changes_the_length() {
    let opened = fake::open(c"evd-query");
    let evd = Evh::new(&opened, 4, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_CR_FLAG);
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let mut param: DAT_EVD_PARAM = unsafe { std::mem::zeroed() };
    // SAFETY: the calls accept any handle value, and the record is null or writable.
    unsafe {
        assert_eq!(dapl_evd_query::<FakeProvider>(evd.handle(), 0x20, &mut param), argument(2));
        assert_eq!(dapl_evd_query::<FakeProvider>(evd.handle(), 0, std::ptr::null_mut()), argument(3));
        assert_eq!(dapl_evd_query::<FakeProvider>(opened.ia_handle, 0, &mut param), BAD);
        assert_eq!(dapl_evd_resize::<FakeProvider>(evd.handle(), 0), argument(2));
        assert_eq!(dapl_evd_resize::<FakeProvider>(evd.handle(), 1001), argument(2));
        assert_eq!(dapl_evd_resize::<FakeProvider>(evd.handle(), 100), DAT_SUCCESS);
        assert_eq!(dapl_evd_disable::<FakeProvider>(evd.handle()), DAT_SUCCESS);
        assert_eq!(dapl_evd_query::<FakeProvider>(evd.handle(), DAT_EVD_FIELD_ALL, &mut param), DAT_SUCCESS);
    }
    assert_eq!((param.ia_handle, param.evd_qlen, param.cno_handle), (opened.ia_handle, 100, std::ptr::null_mut()));
    assert_eq!(param.evd_flags, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_CR_FLAG);
    assert_eq!(param.evd_state, DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_WAITABLE | DAT_EVD_STATE_CONFIG_THRESHOLD);
}

#[test]
fn async_evd_is_freed_only_by_the_close_of_its_ia() {
    let opened = fake::open(c"evd-async");
    let code = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_ASYNC;
    assert_eq!(Evh(opened.async_evd as usize).free(), code);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_GRACEFUL_FLAG) }, DAT_SUCCESS);
    assert_eq!(Evh(opened.async_evd as usize).free(), BAD);
}

// The threads that are cancelled are started by pthread_create, because cancellation must not unwind the frames of a
// thread that Rust has started.

// Declared as functions that may unwind, because a cancellation unwinds through the start routine and the functions it
// calls.
unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const c_void,
        start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// Sleeps in `dat_evd_wait` until the thread is cancelled. `argument` is the EVD handle; if it is odd, cancellation is
/// asynchronous. Owns no resources.
unsafe extern "C-unwind" fn sleep_until_cancelled(argument: *mut c_void) -> *mut c_void {
    let mut event = blank();
    let mut more = 0;
    let evd = (argument as usize & !1) as *mut c_void;
    // SAFETY: the out parameters are writable local variables.
    unsafe {
        pthread_setcanceltype((argument as usize & 1) as c_int, std::ptr::null_mut());
        dapl_evd_wait::<FakeProvider>(evd, DAT_TIMEOUT_INFINITE, 1, &mut event, &mut more);
    }
    std::ptr::null_mut()
}

fn cancel_sleeping_thread(name: &CStr, asynchronous: usize) {
    let opened = fake::open(name);
    let evd = Evh::new(&opened, 8, ALL);
    let mut thread = 0;
    let argument = (evd.0 | asynchronous) as *mut c_void;
    // SAFETY: the start routine accepts the argument, and `thread` is writable.
    let started = unsafe { pthread_create(&mut thread, std::ptr::null(), sleep_until_cancelled, argument) };
    assert_eq!(started, 0);
    evd.wait_until_asleep();
    let mut result = std::ptr::null_mut();
    // SAFETY: the thread was started and not joined yet.
    unsafe {
        assert_eq!(pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, &mut result), 0);
    }
    assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
    evd.post(5);
    assert_eq!(evd.wait(0, 1), (DAT_SUCCESS, 5, 0), "no waiter is left");
    assert_eq!(evd.free(), DAT_SUCCESS);
}

#[test]
fn cancelled_evd_waiter_is_removed() {
    cancel_sleeping_thread(c"evd-cancel-async", 1);
    cancel_sleeping_thread(c"evd-cancel-deferred", 0);
}

/// Waits repeatedly until the thread is cancelled, possibly at any instruction. Owns no resources.
unsafe extern "C-unwind" fn wait_until_cancelled(evd: *mut c_void) -> *mut c_void {
    let mut event = blank();
    let mut more = 0;
    // SAFETY: the out parameters are writable local variables.
    unsafe {
        pthread_setcanceltype(1, std::ptr::null_mut());
        loop {
            dapl_evd_wait::<FakeProvider>(evd, DAT_TIMEOUT_INFINITE, 1, &mut event, &mut more);
        }
    }
}

#[test]
fn wait_spins_before_it_sleeps_unless_max_spin_is_zero() {
    let opened = fake::open(c"evd-polls");
    let evd = Evh::new(&opened, 8, ALL);
    let fetches = |longest| {
        let cq = evd.cq();
        cq.max_spin.store(longest, Ordering::Relaxed);
        cq.fetches.store(0, Ordering::Relaxed);
        assert_eq!(evd.wait(1000, 1).0, TIMEOUT);
        cq.fetches.load(Ordering::Relaxed)
    };
    let none = fetches(0);
    assert_eq!(fetches(0), none, "polls at the beginning, before it sleeps and when it wakes");
    assert!(fetches(50_000) > none);
    assert_eq!(evd.free(), DAT_SUCCESS);
}

#[test]
fn polling_waiter_needs_no_notification() {
    let opened = fake::open(c"evd-polls-on");
    let evd = Evh::new(&opened, 8, ALL);
    let (object, cq) = (evd.object(), evd.cq());
    cq.max_spin.store(u32::MAX / 2, Ordering::Relaxed);
    object.spin.set(u32::MAX / 2);
    let waiter = std::thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1).1);
    while !object.has_waiter() {
        std::thread::yield_now();
    }
    // Simulates a late notification for an event that was already dequeued.
    object.evd_ref.notify();
    assert!(!cq.is_armed() || !object.has_waiter(), "the waiter polls, but the CQ is armed for any notification");
    cq.put(done(1));
    assert_eq!(waiter.join().unwrap(), 1);
    assert!(!cq.is_armed());
    assert_eq!(evd.free(), DAT_SUCCESS);
}

#[test]
fn cancellation_at_any_moment_leaves_no_waiter() {
    let opened = fake::open(c"evd-cancel-any");
    for round in 0..300_u64 {
        let evd = Evh::new(&opened, 8, ALL);
        let mut thread = 0;
        // SAFETY: the start routine accepts the argument, and `thread` is writable.
        let started = unsafe { pthread_create(&mut thread, std::ptr::null(), wait_until_cancelled, evd.handle()) };
        assert_eq!(started, 0);
        for _ in 0..round % 7 {
            evd.post(1);
            for _ in 0..round * 10 {
                std::hint::spin_loop();
            }
        }
        let mut result = std::ptr::null_mut();
        // SAFETY: the thread was started and not joined yet.
        unsafe {
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
        }
        assert_eq!(result as isize, -1, "round {round}: PTHREAD_CANCELED");
        assert_ne!(evd.wait(0, 1).0, WAITER, "round {round}");
        assert_eq!(evd.free(), DAT_SUCCESS);
    }
}
