//! Sends signals to threads, and cancels threads with `pthread_cancel`, as C programs do.
//!
//! This module and `raw` are the only unsafe modules of the kit.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use dat_abi::*;

use super::codes::zeroed;
use super::object::Handle;
use super::thread::until;

/// A thread whose sleep in the kernel ends when a signal arrives.
#[derive(Clone, Copy)]
pub(crate) struct Interruptible(libc::pthread_t);

impl Interruptible {
    /// Returns the calling thread, and installs a signal handler that does nothing but interrupt a sleep in the
    /// kernel.
    pub(crate) fn this() -> Self {
        extern "C" fn nothing(_signal: c_int) {}
        // SAFETY: all fields of sigaction are integers or nullable pointers, so all-zero bytes are valid. Without
        // SA_RESTART, system calls are not restarted.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        // SAFETY: installs a handler that accesses no data.
        unsafe { libc::sigaction(libc::SIGUSR1, &action, null_mut()) };
        // SAFETY: pthread_self has no arguments and cannot fail.
        Interruptible(unsafe { libc::pthread_self() })
    }

    /// Sends SIGUSR1 to the thread, which must not have been joined.
    pub(crate) fn interrupt(self) {
        // SAFETY: the caller guarantees that the thread has not been joined.
        unsafe { libc::pthread_kill(self.0, libc::SIGUSR1) };
    }
}

/// A thread that waits without a timeout and may be cancelled asynchronously. It calls the DAT function directly: no
/// stack frame of the thread needs a drop.
pub(crate) struct Cancellable {
    thread: libc::pthread_t,
    frame: Box<Frame>,
}

/// Data that the thread reads; outlives the thread.
struct Frame {
    wait: *mut c_void,
    handle: Handle,
    begun: AtomicBool,
}

type Body = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

// Cancellation unwinds through these functions. The `libc` crate declares them without unwinding, so they are
// declared here.
unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attr: *const libc::pthread_attr_t,
        body: Body,
        arg: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
/// Value that `pthread_join` returns for a cancelled thread.
const PTHREAD_CANCELED: usize = usize::MAX;

impl Cancellable {
    /// Starts a thread that calls `dat_evd_wait` with threshold 1.
    pub(crate) fn on_evd(evd: DAT_EVD_HANDLE) -> Self {
        Self::start(c"dat_evd_wait", evd, on_evd)
    }

    /// Starts a thread that calls `dat_cno_wait`.
    pub(crate) fn on_cno(cno: DAT_CNO_HANDLE) -> Self {
        Self::start(c"dat_cno_wait", cno, on_cno)
    }

    fn start(function: &CStr, handle: DAT_HANDLE, body: Body) -> Self {
        // SAFETY: the library was opened with RTLD_GLOBAL; the name is NUL-terminated.
        let wait = unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) };
        assert!(!wait.is_null(), "the library does not export {function:?}");
        let frame = Box::new(Frame { wait, handle: Handle::of(handle), begun: AtomicBool::new(false) });
        let mut thread = 0;
        let arg = std::ptr::from_ref(&*frame).cast_mut().cast();
        // SAFETY: the frame is valid until the thread has been joined.
        let code = unsafe { pthread_create(&mut thread, std::ptr::null(), body, arg) };
        assert_eq!(code, 0, "pthread_create failed");
        let cancellable = Cancellable { thread, frame };
        until(|| cancellable.frame.begun.load(Ordering::Acquire));
        cancellable
    }

    /// Cancels the thread, and checks that it ends by cancellation.
    #[track_caller]
    pub(crate) fn cancel(self) {
        // SAFETY: the thread has not been joined yet.
        let code = unsafe { pthread_cancel(self.thread) };
        assert_eq!(code, 0, "pthread_cancel failed");
        let mut result = null_mut();
        // SAFETY: the thread was created above and not joined: the join consumes `self`.
        let code = unsafe { libc::pthread_join(self.thread, &mut result) };
        assert_eq!(code, 0, "pthread_join failed");
        assert_eq!(result.addr(), PTHREAD_CANCELED, "the wait returned instead of being cancelled");
        drop(self.frame);
    }
}

/// # Safety
/// `arg` points to a `Frame` that outlives the call.
unsafe extern "C-unwind" fn on_evd(arg: *mut c_void) -> *mut c_void {
    // SAFETY: the caller guarantees that `arg` points to a `Frame` that outlives the call.
    let frame = unsafe { &*arg.cast::<Frame>() };
    let (mut event, mut more): (DAT_EVENT, DAT_COUNT) = (zeroed(), 0);
    frame.begin();
    // SAFETY: the frame holds the address of `dat_evd_wait`; the out parameters live as long as the call.
    let code = unsafe {
        let wait = transmute::<*mut c_void, DAT_EVD_WAIT_FUNC>(frame.wait);
        wait(frame.handle.h(), DAT_TIMEOUT_INFINITE, 1, &mut event, &mut more)
    };
    std::ptr::without_provenance_mut(code as usize)
}

/// # Safety
///
/// `arg` points to a `Frame` that outlives the call.
unsafe extern "C-unwind" fn on_cno(arg: *mut c_void) -> *mut c_void {
    // SAFETY: the caller guarantees that `arg` points to a `Frame` that outlives the call.
    let frame = unsafe { &*arg.cast::<Frame>() };
    let mut evd = DAT_HANDLE_NULL;
    frame.begin();
    // SAFETY: the frame holds the address of `dat_cno_wait`; the out parameter lives as long as the call.
    let code = unsafe {
        let wait = transmute::<*mut c_void, DAT_CNO_WAIT_FUNC>(frame.wait);
        wait(frame.handle.h(), DAT_TIMEOUT_INFINITE, &mut evd)
    };
    std::ptr::without_provenance_mut(code as usize)
}

impl Frame {
    fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        // SAFETY: changes the cancellation type of this thread; a null output is allowed.
        unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, null_mut()) };
    }
}
