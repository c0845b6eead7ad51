//! Sockets of single connections: each has a port of its own, and the kernel steers what comes by that (UR-5).
//!
//! Only where the `sockets` knob says so; else all connections share the IA's. Which of them has something is asked of the kernel in
//! one call, however many there are.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dapl::error::{Error, Resource, Result};
use parking_lot::RwLock;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::net::socket::{Socket, Wanted};

/// Sockets that are served in one pass: then it is others' turn, and who was not served comes first the next time.
const AT_ONCE: usize = 64;

/// All of an IA.
#[derive(Debug)]
pub(crate) struct OwnSockets {
    /// What each is to be.
    wanted: Wanted,
    by_number: RwLock<HashMap<u32, Arc<Socket>>>,
    epoll: OwnedFd,
    /// The error queue of one of them has something.
    errors: AtomicBool,
}

impl OwnSockets {
    pub(crate) fn new(wanted: Wanted) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            log::error!("cannot watch several sockets: {error}");
            Error::Exhausted(Resource::Device)
        })?;
        Ok(OwnSockets { wanted, by_number: RwLock::default(), epoll, errors: AtomicBool::new(false) })
    }

    /// One for the connection of this number. Errors are logged.
    pub(crate) fn open(&self, number: u32) -> Result<Arc<Socket>> {
        let failed = |error: std::io::Error| {
            log::error!("cannot open a socket for a connection: {error}");
            Error::Exhausted(Resource::Device)
        };
        let socket = Arc::new(Socket::open(&self.wanted).map_err(failed)?);
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.epoll, &*socket, data, epoll::EventFlags::IN).map_err(|error| failed(error.into()))?;
        self.by_number.write().insert(number, socket.clone());
        Ok(socket)
    }

    /// That connection is over.
    pub(crate) fn close(&self, number: u32) {
        let closed = self.by_number.write().remove(&number);
        if let Some(socket) = closed {
            // Its queue pair may hold it a little longer.
            let _ = epoll::delete(&self.epoll, &*socket);
        }
    }

    /// Those that have something, so many at most. True: the error queue of one of them has something for the first time.
    pub(crate) fn ready(&self) -> (Vec<Arc<Socket>>, bool) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)).is_err() {
            return (Vec::new(), false);
        }
        let by_number = self.by_number.read();
        let (mut ready, mut has_errors) = (Vec::with_capacity(events.len()), false);
        for event in &events {
            let Some(socket) = by_number.get(&(event.data.u64() as u32)) else { continue };
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::ERR) {
                socket.note_errors(true);
                has_errors |= !self.errors.swap(true, Ordering::Relaxed);
            }
            ready.push(socket.clone());
        }
        (ready, has_errors)
    }

    /// Those whose error queues have something.
    pub(crate) fn failed(&self) -> Vec<Arc<Socket>> {
        if !self.errors.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        self.by_number.read().values().filter(|socket| socket.has_errors()).cloned().collect()
    }

    /// Datagrams that found the receive buffer of one of them full.
    pub(crate) fn drops(&self) -> u64 {
        self.by_number.read().values().map(|socket| socket.drops()).sum()
    }
}

impl AsFd for OwnSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
