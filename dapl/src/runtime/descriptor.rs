//! A file descriptor that an object makes readable or not readable: an eventfd with a count of one or zero.
//!
//! Consumers wait on the descriptor in `poll` or `epoll`. The owner changes its state and the descriptor under one
//! lock, so that they agree. The consumer may poll the descriptor, but must not read or close it.
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
    /// Creates a descriptor that is not readable, and is closed on exec.
    pub fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            log::error!(
                "cannot create a file descriptor for an EVD or CNO: eventfd: {error}; allow more open files (ulimit -n)"
            );
            Error::Exhausted(Resource::Memory)
        })?;
        Ok(Descriptor { fd, is_readable: false })
    }

    /// Makes the descriptor readable or not readable. Makes a system call only on a change.
    pub fn set_readable(&mut self, is_readable: bool) {
        if is_readable == self.is_readable {
            return;
        }
        self.is_readable = is_readable;
        // The count is 0 or 1 and the descriptor is non-blocking, so neither call blocks. The read fails only if the
        // consumer has read the count itself, and then the descriptor is not readable either.
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
