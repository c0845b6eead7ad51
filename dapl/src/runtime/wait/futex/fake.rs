//! The kernel's part of a sleep as loom sees it: the look at the word and the falling asleep are one step under its lock.
//!
//! Stands in for `futex` in loom's models. One lock and one bed for all words, and no clock: a sleep ends by a wake-up only.
#![forbid(unsafe_code)]

use loom::lazy_static;
use loom::sync::Condvar;

use super::Cause;
use crate::runtime::sync::{AtomicU32, Mutex, Ordering};

lazy_static! {
    static ref KERNEL: Mutex<()> = Mutex::new(());
    static ref BED: Condvar = Condvar::new();
}

pub(super) fn wake(_: &'static AtomicU32, _: i32) {
    let kernel = KERNEL.lock();
    BED.notify_all();
    drop(kernel);
}

pub(super) fn sleep(word: &'static AtomicU32, expected: u32, _: Option<u64>) -> Cause {
    let kernel = KERNEL.lock();
    // The kernel looks behind a full barrier.
    crate::runtime::sync::fence(Ordering::SeqCst);
    if word.load(Ordering::SeqCst) == expected {
        drop(BED.wait(kernel));
    }
    Cause::Woken
}
