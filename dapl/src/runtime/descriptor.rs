//! A file descriptor that its owner, an EVD or CNO, makes readable or not readable: an eventfd whose count is 1 or 0.
//!
//! Consumers wait on the descriptor in `poll` or `epoll`, but must not read or close it. The owner changes its own
//! state and the descriptor under one lock, so that the two agree.
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
    /// Creates a descriptor that is not readable and has close-on-exec set.
    pub fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            log::error!(
                "cannot create a file descriptor for an EVD or CNO: eventfd: {error}; allow more open files (ulimit -n)"
            );
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(Descriptor { fd, is_readable: false })
    }

    /// Makes the descriptor readable or not readable. A system call is made only on a change.
    pub fn set_readable(&mut self, is_readable: bool) {
        if is_readable == self.is_readable {
            return;
        }
        self.is_readable = is_readable;
        // Neither call blocks, because the count is 0 or 1 and the descriptor is non-blocking. The read fails only if
        // the consumer has read the count itself; then the descriptor is not readable either.
        let _ = match is_readable {
            true => rustix::io::write(&self.fd, &1_u64.to_ne_bytes()),
            false => rustix::io::read(&self.fd, &mut [0; 8]),
        };
    }

    /// The number of the descriptor, for the consumer.
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests;
