//! A completion channel: reports armed completion queues with new completions.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};

use super::{Context, Handle, destroys, nonblocking};

pub(crate) struct CompletionChannel {
    pub(super) handle: Handle<ibv_comp_channel>,
    context: Arc<Context>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: `context` is open until it is dropped.
        let handle = Handle::check(unsafe { ibv_create_comp_channel(context.handle.as_ptr()) })?;
        let channel = CompletionChannel { handle, context: context.clone() };
        nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor, which is readable when a completion queue has an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, and the result borrows the channel.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).fd) }
    }

    /// Reads the next event and returns the id of its completion queue; `None` if there is no event. The event is
    /// acknowledged here, because `ibv_destroy_cq` waits until all events of the queue are acknowledged.
    pub(crate) fn next(&self) -> io::Result<Option<usize>> {
        let (mut cq, mut id) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open, and `cq` and `id` are valid pointers to write to.
        if unsafe { ibv_get_cq_event(self.handle.as_ptr(), &mut cq, &mut id) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: one event of this queue was read, and is acknowledged once. The queue exists, because
        // `ibv_destroy_cq` waits for this acknowledgement.
        unsafe { ibv_ack_cq_events(cq, 1) };
        Ok(Some(id as usize))
    }
}

destroys! { CompletionChannel, ibv_destroy_comp_channel, |channel| format!("completion channel of {}", channel.context.name()) }
