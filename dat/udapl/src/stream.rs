//! Events as a [`Stream`], for any executor.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_io::Async;
use futures_core::Stream;

use crate::error::{Error, Result};
use crate::evd::{Evd, Event};

/// The events of a queue as a stream. It never ends, not even after an error.
///
/// The reactor of `async-io` polls the descriptor of the queue, and wakes the task that waits. It works with any
/// executor.
pub struct EventStream<'e> {
    evd: &'e Evd,
    readiness: Async<BorrowedFd<'e>>,
}

impl fmt::Debug for EventStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventStream")
    }
}

impl Evd {
    /// Returns the events of this queue as a stream. Use one stream at a time, and do not call `wait` or `poll`
    /// meanwhile.
    ///
    /// # Errors
    /// Those of [`Self::descriptor`].
    pub fn stream(&self) -> Result<EventStream<'_>> {
        let readiness = Async::new(self.descriptor()?).map_err(system)?;
        Ok(EventStream { evd: self, readiness })
    }
}

impl EventStream<'_> {
    /// Waits for the next event.
    ///
    /// # Errors
    /// Those of [`Evd::poll`] and [`Evd::arm`], and errors of the reactor as [`Error::Argument`].
    pub async fn next(&mut self) -> Result<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<Event>> {
        loop {
            if let Some(event) = self.evd.poll()? {
                return Poll::Ready(Ok(event));
            }
            self.evd.arm()?;
            ready!(self.readiness.poll_readable(context)).map_err(system)?;
        }
    }
}

impl Stream for EventStream<'_> {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context).map(Some)
    }
}

fn system(error: std::io::Error) -> Error {
    Error::Argument(format!("cannot wait on the file descriptor of the event queue: {error}"))
}
