//! Loom models of a waiter and the threads that wake it, through the C entries, with the real locks and steps. Loom
//! reports a lost wake-up as a deadlock.
//!
//! The futex and the CQ are fakes, and threads do not spin, since a model has no clock.

use loom::thread;

use super::*;

/// Runs `model` with an EVD for all streams, then closes the IA.
fn with_evd(model: fn(Evh)) {
    loom::model(move || {
        let opened = fake::open(c"evd-interleavings");
        let evd = Evh::new(&opened, 4, ALL);
        model(evd);
        // SAFETY: the IA is live.
        assert_eq!(unsafe { dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG) }, DAT_SUCCESS);
    });
}

fn waiter(evd: Evh) -> thread::JoinHandle<(DAT_RETURN, u64, i32)> {
    thread::spawn(move || evd.wait(DAT_TIMEOUT_INFINITE, 1))
}

#[test]
fn a_posted_event_ends_a_wait() {
    with_evd(|evd| {
        let waiter = waiter(evd);
        assert_eq!(evd.post(7), DAT_SUCCESS);
        assert_eq!(waiter.join().unwrap(), (DAT_SUCCESS, 7, 0));
    });
}

#[test]
fn a_completion_ends_a_wait() {
    with_evd(|evd| {
        let waiter = waiter(evd);
        evd.cq().feed(done(7));
        assert_eq!(waiter.join().unwrap(), (DAT_SUCCESS, 7, 0));
    });
}

#[test]
fn set_unwaitable_ends_a_wait_with_an_error() {
    with_evd(|evd| {
        let waiter = waiter(evd);
        // SAFETY: the call accepts any handle value.
        assert_eq!(unsafe { dapl_evd_set_unwaitable::<FakeProvider>(evd.handle()) }, DAT_SUCCESS);
        let unwaitable = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EVD_UNWAITABLE;
        assert_eq!(waiter.join().unwrap().0, unwaitable);
    });
}

#[test]
fn abrupt_ia_close_ends_a_wait_with_an_error() {
    loom::model(|| {
        let opened = fake::open(c"evd-interleavings");
        let waiter = waiter(Evh::new(&opened, 4, ALL));
        // SAFETY: the IA is live.
        assert_eq!(unsafe { dapl_ia_close::<FakeProvider>(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG) }, DAT_SUCCESS);
        assert_ne!(waiter.join().unwrap().0, DAT_SUCCESS);
    });
}
