//! The file descriptor of an EVD, for consumers that wait in `poll` or `epoll`.
//!
//! A consumer dequeues events until the EVD is empty, arms the descriptor, and polls it. If events are queued, arming
//! makes the descriptor readable immediately; otherwise the next notifying event of the enabled EVD does. The
//! descriptor stays readable until it is armed again. No event is missed, because arming and queueing hold the EVD's
//! lock, and because the CQ refuses to be armed while it has a completion.
#![forbid(unsafe_code)]

use super::Evd;
use super::dapli_evd::FetchMode;
use crate::error::{Error, Handle, Result};
use crate::provider::Provider;
use crate::runtime::descriptor::Descriptor;

/// The descriptor of an EVD. While it is armed, the next notifying event makes it readable.
#[derive(Debug)]
pub(super) struct ArmedDescriptor {
    descriptor: Descriptor,
    is_armed: bool,
}

impl ArmedDescriptor {
    pub(super) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Called when a notifying event was queued. Makes an armed descriptor readable.
    pub(super) fn trigger(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.descriptor.set_readable(true);
        }
    }

    fn arm(&mut self) {
        self.descriptor.set_readable(false);
        self.is_armed = true;
    }
}

/// Returns the descriptor of an EVD. The first call creates and arms it. It is closed when the EVD is freed.
///
/// Errors: `InvalidHandle` for an EVD that is being freed; errors of the operating system.
pub fn descriptor<P: Provider>(evd: &Evd<P>) -> Result<i32> {
    let mut inner = evd.lock();
    if inner.queue.closed {
        return Err(Error::InvalidHandle(Handle::Plain));
    }
    if let Some(known) = &inner.descriptor {
        return Ok(known.descriptor.number());
    }
    let descriptor = Descriptor::new()?;
    let number = descriptor.number();
    inner.descriptor = Some(ArmedDescriptor { descriptor, is_armed: false });
    inner.observers_changed();
    drop(inner);
    arm(evd)?;
    Ok(number)
}

/// Arms the descriptor. If events are queued, it is readable on return; otherwise the next notifying event makes it
/// readable.
///
/// Errors: `InvalidHandle` for an EVD that is being freed or has no descriptor.
pub fn arm<P: Provider>(evd: &Evd<P>) -> Result<()> {
    let mut inner = evd.lock();
    inner.descriptor.as_mut().ok_or(Error::InvalidHandle(Handle::Plain))?.arm();
    let signal = evd.fetch(&mut inner, FetchMode::Poll);
    if !inner.queue.is_empty()
        && let Some(descriptor) = &mut inner.descriptor
    {
        descriptor.trigger();
    }
    // Arms the CQ if the poll found no event, and fetches completions that arrived before the arming.
    let signal = signal.max(evd.rearm(&mut inner));
    evd.ia.provider.sleeps();
    evd.unlock(inner, signal);
    Ok(())
}
