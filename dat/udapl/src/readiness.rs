//! File descriptors of event queues, for event loops.

use std::os::fd::BorrowedFd;

use crate::descriptor::DescriptorCalls;
use crate::error::{Error, Result};
use crate::evd::Evd;

impl Evd {
    /// Returns the file descriptor of the queue, for `poll`, `epoll` and event loops. Call [`Self::poll`] until it
    /// returns `None`, call [`Self::arm`], then wait until the descriptor is readable. Do not read or write the
    /// descriptor.
    ///
    /// # Errors
    /// [`Error::Argument`] if the provider does not support descriptors; [`Error::Call`] if it cannot create one.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let (calls, mut fd) = (self.descriptor_calls()?, -1);
        // SAFETY: the queue exists and belongs to this provider; the result is written to a local variable.
        let code = unsafe { (calls.descriptor)(self.inner.handle.0, &raw mut fd) };
        self.inner.ia.functions.check("descriptor_func", code)?;
        // SAFETY: the descriptor stays open as long as the queue.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Makes the descriptor readable now if there are events, otherwise when the next event arrives.
    ///
    /// # Errors
    /// Those of [`Self::descriptor`], which must be called first.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: the queue exists and belongs to this provider.
        let code = unsafe { (self.descriptor_calls()?.arm)(self.inner.handle.0) };
        self.inner.ia.functions.check("descriptor_arm_func", code)
    }

    fn descriptor_calls(&self) -> Result<DescriptorCalls> {
        let none = || {
            Error::Argument(
                "the provider of this adapter has no file descriptors for event queues; use the blocking calls".into(),
            )
        };
        self.inner.ia.descriptors.ok_or_else(none)
    }
}
