//! Maps the connection number in a packet header to the handler of the connection.
//!
//! A number consists of an index and a generation (`proto::ids`), so a packet of an earlier generation matches no
//! entry. The table calls no handler under its lock.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::proto::Nanos;
use crate::proto::ids::{self, Ids};
use crate::qp::handler::{ConnectionHandler, NextService};

/// A connection or a connection attempt.
#[derive(Clone)]
pub(crate) struct ConnectionEntry {
    pub(crate) number: u32,
    pub(crate) handler: Arc<dyn ConnectionHandler>,
    pub(crate) next_service: Arc<NextService>,
    is_established: Arc<AtomicBool>,
}

impl ConnectionEntry {
    /// Whether the connection is established. Passes give packets of established connections to the handler. They queue
    /// packets of other connections for the connection manager.
    pub(crate) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    pub(crate) fn set_established(&self) {
        self.is_established.store(true, Ordering::Release);
    }
}

/// Entries by index, and the allocator of connection numbers.
pub(crate) struct ConnectionTable {
    slots: RwLock<Vec<Option<Arc<ConnectionEntry>>>>,
    ids: Mutex<Ids>,
}

impl ConnectionTable {
    /// Creates a table for `max` connections. The index of a freed number is not reused for `quarantine` nanoseconds,
    /// unless all other indexes are in use or in quarantine.
    pub(crate) fn new(max: usize, quarantine: Nanos) -> Self {
        ConnectionTable { slots: RwLock::default(), ids: Mutex::new(Ids::new(max, quarantine)) }
    }

    /// Reserves a connection number. Returns `None` if all indexes are in use.
    pub(crate) fn reserve(&self, now: Nanos) -> Option<u32> {
        self.ids.lock().take(now)
    }

    /// Adds a handler for a reserved number.
    pub(crate) fn insert(&self, number: u32, handler: Arc<dyn ConnectionHandler>) -> Arc<NextService> {
        let next_service = Arc::new(NextService::new());
        let entry =
            ConnectionEntry { number, handler, next_service: next_service.clone(), is_established: Arc::default() };
        let mut slots = self.slots.write();
        let at = ids::index(number);
        if at >= slots.len() {
            slots.resize_with(at + 1, || None);
        }
        let before = slots[at].replace(Arc::new(entry));
        drop(slots);
        drop(before); // The last reference to a queue pair may be dropped here, so the lock is released first.
        next_service
    }

    /// Replaces the handler of an entry. The other fields of the entry stay the same.
    pub(crate) fn replace(&self, number: u32, handler: Arc<dyn ConnectionHandler>) {
        let mut slots = self.slots.write();
        let entry = slots.get_mut(ids::index(number)).and_then(Option::as_mut).filter(|entry| entry.number == number);
        let before = entry.map(|entry| {
            let next = ConnectionEntry { handler, ..ConnectionEntry::clone(entry) };
            std::mem::replace(entry, Arc::new(next))
        });
        drop(slots);
        drop(before);
    }

    /// Removes the entry, and frees its number.
    pub(crate) fn free(&self, number: u32, now: Nanos) {
        let mut slots = self.slots.write();
        let slot = slots.get_mut(ids::index(number));
        let before = slot.and_then(|slot| slot.take_if(|entry| entry.number == number));
        drop(slots);
        drop(before);
        self.ids.lock().free(number, now);
    }

    pub(crate) fn lookup(&self, number: u32) -> Option<Arc<ConnectionEntry>> {
        self.entry_at(ids::index(number)).filter(|entry| entry.number == number)
    }

    pub(crate) fn entry_at(&self, index: usize) -> Option<Arc<ConnectionEntry>> {
        self.slots.read().get(index)?.clone()
    }

    pub(crate) fn entries(&self) -> Vec<Arc<ConnectionEntry>> {
        self.slots.read().iter().flatten().cloned().collect()
    }
}
