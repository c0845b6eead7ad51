//! Maps the connection number in a packet header to its queue handler.
//!
//! A number is an index and a generation (`proto::ids`); a packet of a former generation finds none. Nothing is called with the
//! lock of this module held.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::proto::Nanos;
use crate::proto::ids::{self, Ids};
use crate::qp::handler::{ConnectionHandler, NextTurn};

/// A connection, or one on its way, as the device finds it.
#[derive(Clone)]
pub(crate) struct ConnectionEntry {
    pub(crate) number: u32,
    pub(crate) handler: Arc<dyn ConnectionHandler>,
    pub(crate) next_turn: Arc<NextTurn>,
    is_established: Arc<AtomicBool>,
}

impl ConnectionEntry {
    /// The connection stands, and takes its packets itself.
    pub(crate) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    /// From now on.
    pub(crate) fn set_established(&self) {
        self.is_established.store(true, Ordering::Release);
    }
}

/// Connections by index, and the free numbers.
pub(crate) struct ConnectionTable {
    slots: RwLock<Vec<Option<Arc<ConnectionEntry>>>>,
    ids: Mutex<Ids>,
}

impl ConnectionTable {
    /// For `max` connections; a number is quarantined for `rest` before its entry is used again.
    pub(crate) fn new(max: usize, rest: Nanos) -> Self {
        ConnectionTable { slots: RwLock::default(), ids: Mutex::new(Ids::new(max, rest)) }
    }

    /// A free number; `None`: all are taken.
    pub(crate) fn reserve(&self, now: Nanos) -> Option<u32> {
        self.ids.lock().take(now)
    }

    /// Packets of this number, which is taken, go to `handler` from now on.
    pub(crate) fn insert(&self, number: u32, handler: Arc<dyn ConnectionHandler>) -> Arc<NextTurn> {
        let next_turn = Arc::new(NextTurn::new());
        let entry = ConnectionEntry { number, handler, next_turn: next_turn.clone(), is_established: Arc::default() };
        let mut slots = self.slots.write();
        let at = ids::index(number);
        if at >= slots.len() {
            slots.resize_with(at + 1, || None);
        }
        let before = slots[at].replace(Arc::new(entry));
        drop(slots);
        drop(before); // it may be the last to hold a queue handler
        next_turn
    }

    /// Packets of this number go to another `handler` from now on; its next_turn stays.
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

    /// Frees the number.
    pub(crate) fn free(&self, number: u32, now: Nanos) {
        let mut slots = self.slots.write();
        let entry =
            slots.get_mut(ids::index(number)).filter(|entry| entry.as_ref().is_some_and(|p| p.number == number));
        let before = entry.and_then(Option::take);
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

impl std::fmt::Debug for ConnectionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionTable")
            .field("entries", &self.slots.read().iter().flatten().count())
            .finish_non_exhaustive()
    }
}
