//! A file descriptor that is readable while something is there: an eventfd with a count of one or zero.
//!
//! For consumers that wait in `poll` or `epoll`. Its owner changes it under the lock of the state that it shows, so the two
//! agree. The consumer may poll it, and must not read or close it.
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Resource, Result};

/// The descriptor; closed with its owner.
#[derive(Debug)]
pub struct Descriptor {
    fd: OwnedFd,
    is_readable: bool,
}

impl Descriptor {
    /// A descriptor that is not readable; closed on exec.
    pub fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            log::error!("no descriptor to wait on: eventfd: {error}");
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(Descriptor { fd, is_readable: false })
    }

    /// Makes it readable, or not readable any more. A system call only if that changes something.
    pub fn show(&mut self, is_readable: bool) {
        if is_readable == self.is_readable {
            return;
        }
        self.is_readable = is_readable;
        // Neither blocks: a count of one or zero can be added to and read. A consumer that has read it left zero.
        let _ = match is_readable {
            true => rustix::io::write(&self.fd, &1_u64.to_ne_bytes()),
            false => rustix::io::read(&self.fd, &mut [0; 8]),
        };
    }

    /// The number for the consumer.
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests;
