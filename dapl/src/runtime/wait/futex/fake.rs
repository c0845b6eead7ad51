//! The futex for loom models: checking the word and going to sleep are one atomic step.
//!
//! One lock and one condition variable serve all words. There is no clock, so only a wake-up ends a sleep.
#![forbid(unsafe_code)]

use loom::lazy_static;
use loom::sync::Condvar;

use super::WakeCause;
use crate::runtime::sync::{AtomicU32, Mutex, Ordering};

lazy_static! {
    static ref KERNEL: Mutex<()> = Mutex::new(());
    static ref WAKE: Condvar = Condvar::new();
}

pub(super) fn wake(_: &'static AtomicU32, _: i32) {
    let kernel = KERNEL.lock();
    WAKE.notify_all();
    drop(kernel);
}

pub(super) fn sleep(word: &'static AtomicU32, expected: u32, _: Option<u64>) -> WakeCause {
    let kernel = KERNEL.lock();
    // The kernel also executes a full barrier before it checks the word.
    crate::runtime::sync::fence(Ordering::SeqCst);
    if word.load(Ordering::SeqCst) == expected {
        drop(WAKE.wait(kernel));
    }
    WakeCause::Woken
}
