//! Wrapper of a completion queue of the device (`ibv_cq`).

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{ibv_cq, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq, ibv_wc};

use super::{CompletionChannel, Context, Handle, check_result, destroys, missing_verb};

pub(crate) struct Cq {
    pub(super) handle: Handle<ibv_cq>,
    /// Capacity that the device has granted; at least the requested one.
    capacity: AtomicU32,
    context: Arc<Context>,
    /// Keeps the channel open.
    _channel: Arc<CompletionChannel>,
}

impl Cq {
    /// Creates a queue for at least `capacity` completions. `channel` reports its events with `id`.
    pub(crate) fn new(
        context: &Arc<Context>,
        channel: &Arc<CompletionChannel>,
        capacity: u32,
        id: usize,
    ) -> io::Result<Arc<Self>> {
        let attributes = c_int::try_from(capacity).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: `context` and `channel` are open, and `channel` belongs to `context`. libibverbs stores `id` and
        // never dereferences it.
        let handle = Handle::check(unsafe {
            ibv_create_cq(context.handle.as_ptr(), attributes, id as *mut c_void, channel.handle.as_ptr(), 0)
        })?;
        // SAFETY: `handle` was returned by `ibv_create_cq`.
        let capacity = AtomicU32::new(unsafe { (*handle.as_ptr()).cqe } as u32);
        Ok(Arc::new(Cq { handle, capacity, context: context.clone(), _channel: channel.clone() }))
    }

    /// Polls at most `out.len()` completions into `out`, and returns them.
    pub(crate) fn poll_into<'a>(&self, out: &'a mut [MaybeUninit<ibv_wc>]) -> io::Result<&'a [ibv_wc]> {
        // SAFETY: the queue exists and points to its open context, whose function table does not change.
        let ops = unsafe { &(*(*self.handle.as_ptr()).context).ops };
        let poll = ops.poll_cq.ok_or_else(missing_verb)?;
        let capacity = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue exists, and `out` has space for `capacity` records.
        let taken = unsafe { poll(self.handle.as_ptr(), capacity, out.as_mut_ptr().cast()) };
        // A negative result is not an error number.
        let taken = usize::try_from(taken).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        // SAFETY: the call has initialised the first `taken` records of `out`.
        Ok(unsafe { std::slice::from_raw_parts(out.as_ptr().cast(), taken.min(out.len())) })
    }

    /// Requests one event through the channel for the next completion; with `solicited_only`, for the next completion
    /// that is solicited or has failed.
    pub(crate) fn arm(&self, solicited_only: bool) -> io::Result<()> {
        let arm = self.context.ops().req_notify_cq.ok_or_else(missing_verb)?;
        // SAFETY: the queue exists until `self` is dropped.
        check_result(unsafe { arm(self.handle.as_ptr(), solicited_only.into()) })
    }

    /// Changes the capacity. Queued completions are kept. Errors: the device does not support resizing, or the capacity
    /// is too large.
    pub(crate) fn resize(&self, capacity: u32) -> io::Result<()> {
        let attributes = c_int::try_from(capacity).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the queue exists; the driver locks out concurrent polls.
        check_result(unsafe { ibv_resize_cq(self.handle.as_ptr(), attributes) })?;
        // SAFETY: the queue exists. The driver has set `cqe` before it returned, and callers do not resize
        // concurrently.
        self.capacity.store(unsafe { (*self.handle.as_ptr()).cqe } as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the capacity in completions.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }
}

destroys! { Cq, ibv_destroy_cq, |cq| format!("completion queue of {}", cq.context.name()) }
