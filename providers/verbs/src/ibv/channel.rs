//! A completion channel: reports armed completion queues with new completions.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};

use super::{Context, destroyed, made, nonblocking};

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows any thread to use a channel.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let channel = made(unsafe { ibv_create_comp_channel(context.as_ptr()) })?;
        let channel = Channel { channel, context: context.clone() };
        nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Readable when a queue has an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, which is open as long as the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }

    /// The id of the next completion queue with an event; `None` if there is none. The event is acknowledged at once,
    /// since destroying the queue waits for that.
    pub(crate) fn next(&self) -> io::Result<Option<usize>> {
        let (mut cq, mut id) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open, and both pointers are valid. A queue whose event was read is not freed before the
        // acknowledgement, so `cq` is valid until then.
        if unsafe { ibv_get_cq_event(self.as_ptr(), &mut cq, &mut id) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: one event of this queue was read, and it is acknowledged once.
        unsafe { ibv_ack_cq_events(cq, 1) };
        Ok(Some(id as usize))
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: no queue uses it: each keeps an `Arc` of it.
        let result = unsafe { ibv_destroy_comp_channel(self.as_ptr()) };
        destroyed(&format!("{}: a completion channel", self.context.name()), result);
    }
}
