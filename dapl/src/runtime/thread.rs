//! Threads of this library inside the consumer's program: named, with all signals blocked, and never cancelled. Also
//! registers handlers for `fork` and for the exit of the process.
//!
//! The object layer and providers start all their threads here, so that the consumer's signal handlers run on the
//! consumer's threads only.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt;
use std::thread::{Builder, JoinHandle};

use crate::runtime::cancel;

/// Starts a thread with all signals blocked and cancellation disabled. `name` has at most 15 bytes, the kernel's limit.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let before = block_all();
    let thread = Builder::new().name(name.into()).spawn(move || {
        let _deferral = cancel::defer();
        body()
    });
    if let Some(before) = before {
        // SAFETY: `before` is the complete mask that `block_all` read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    thread
}

/// Identifies a thread while it runs; a later thread may get the same id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThreadId(libc::pthread_t);

/// The id of the calling thread. `std::thread::current` is not used, because it allocates a handle for each thread of
/// the consumer, and leak checkers report that of the main thread as possibly lost.
pub fn current() -> ThreadId {
    // SAFETY: pthread_self has no preconditions and cannot fail.
    ThreadId(unsafe { libc::pthread_self() })
}

/// Waits until a thread has ended. Does not wait for the calling thread itself: a consumer's agent may close the IA on
/// the engine thread.
pub fn join(thread: JoinHandle<()>) {
    if ThreadId(thread.as_pthread_t()) != current() {
        // An error means that the thread has panicked; the panic has printed its message.
        let _ = thread.join();
    }
}

/// Requests a short time slice for the calling thread, so that it runs soon after a wake-up even if all CPUs are busy:
/// since Linux 6.12, a thread with a shorter slice can preempt others (EEVDF, sched_setattr(2)). The thread's share of
/// the CPU time does not change.
pub fn request_short_slice() {
    /// Slice in nanoseconds; the kernel's minimum.
    const SLICE: u64 = 100_000;
    // SAFETY: the calls affect the calling thread only. All-zero bytes are a valid record, and the kernel reads a record of
    // the length in its field `size`.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            return; // the administrator has chosen another scheduling policy
        }
        let mut attributes = std::mem::zeroed::<libc::sched_attr>();
        attributes.size = size_of::<libc::sched_attr>() as u32;
        attributes.sched_nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        attributes.sched_runtime = SLICE;
        if libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) != 0 {
            log::debug!(
                "cannot set a short time slice for the engine thread: {}; wake-ups may be slower",
                std::io::Error::last_os_error()
            );
        }
    }
}

/// Registers fork handlers: `before` runs in a thread that is about to fork, `after` in parent and child. They ensure
/// that the child inherits no lock held by another thread. `before` handlers run in reverse order of registration.
pub fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    unsafe extern "C" {
        fn pthread_atfork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> libc::c_int;
    }
    // SAFETY: the functions belong to a library that is never unmapped. If the registration fails for lack of memory,
    // `fork` works as without handlers.
    unsafe { pthread_atfork(before, after, after) };
}

/// Registers a function that runs when the process calls `exit`. It must not panic or wait for the exiting thread.
pub fn at_exit(last: extern "C" fn()) {
    // SAFETY: the function belongs to a library that is never unmapped. If the registration fails for lack of memory,
    // nothing runs at exit.
    unsafe { libc::atexit(last) };
}

/// Blocks all signals in the calling thread, whose new threads inherit the mask. Returns the previous mask.
fn block_all() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both pointers are writable sets; `sigfillset` fills the first before `pthread_sigmask` reads it.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    // SAFETY: on success the call has written the old mask.
    (failed == 0).then(|| unsafe { before.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_waits_for_another_thread_and_not_for_the_calling_one() {
        let (sender, handle) = std::sync::mpsc::channel::<JoinHandle<()>>();
        let (done, is_done) = std::sync::mpsc::channel();
        let own = spawn("dapl-test", move || {
            join(handle.recv().unwrap());
            done.send(()).unwrap();
        });
        sender.send(own.unwrap()).unwrap();
        is_done.recv().unwrap();
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let set = flag.clone();
        join(spawn("dapl-test", move || set.store(true, std::sync::atomic::Ordering::Release)).unwrap());
        assert!(flag.load(std::sync::atomic::Ordering::Acquire));
    }

    #[test]
    fn spawned_thread_blocks_signals_and_parent_does_not() {
        let blocked = || {
            block_all().map(|mask| {
                // SAFETY: the mask is a complete local variable.
                unsafe { libc::sigismember(&mask, libc::SIGUSR1) }
            })
        };
        assert_eq!(spawn("dapl-test", blocked).unwrap().join().unwrap(), Some(1));
        // Starts a thread in which no signals are blocked.
        let parent = std::thread::spawn(move || {
            spawn("dapl-test", || ()).unwrap().join().unwrap();
            blocked()
        });
        assert_eq!(parent.join().unwrap(), Some(0));
    }
}
