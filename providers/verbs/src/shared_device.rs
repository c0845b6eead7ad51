//! A device that is open in this process, shared by all its IAs. A queue pair of one IA can complete on queues of
//! another, and an event finds its object, whichever engine reads it. A forked child shares no device with its
//! parent.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::ibv::Context;

/// The devices that are open, by the process that opened them.
static OPEN: Mutex<Vec<(u32, Weak<Opened>)>> = Mutex::new(Vec::new());

/// An event of one object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ObjectEvent {
    /// Of a completion queue: it was armed, and has a completion.
    Completion,
    /// Of a shared receive queue: fewer receives are left than its limit.
    Low,
    /// Of a queue pair: the peer has sent data before it confirmed the connection.
    PeerIsThere,
    /// The object has failed.
    Failed,
}

/// An object that the device's events name: a completion queue, a shared receive queue or a queue pair.
pub(crate) trait EventTarget: Send + Sync {
    /// Handles an event. Called by an engine only; events that are not of this kind of object are ignored.
    fn handle(&self, event: ObjectEvent);
}

/// Objects by their ids or numbers. They are removed when they are dropped.
struct Objects<K>(Mutex<HashMap<K, Weak<dyn EventTarget>>>);

/// An open device, and the objects of its events.
pub(crate) struct Opened {
    pub(crate) context: Arc<Context>,
    ids: AtomicUsize,
    /// Completion queues and shared receive queues, by their ids.
    queues: Objects<usize>,
    /// Queue pairs, by their numbers.
    qps: Objects<u32>,
}

impl Opened {
    /// Returns the device if it is already open, otherwise adds this one.
    pub(crate) fn of(context: Arc<Context>) -> Arc<Self> {
        let pid = std::process::id();
        let mut open = OPEN.lock();
        open.retain(|(_, known)| known.strong_count() > 0);
        let known = open.iter().filter(|(of, _)| *of == pid).filter_map(|(_, known)| known.upgrade());
        if let Some(known) = known.into_iter().find(|known| known.context.name() == context.name()) {
            return known;
        }
        let opened = Arc::new(Opened {
            context,
            ids: AtomicUsize::new(1),
            queues: Objects(Mutex::default()),
            qps: Objects(Mutex::default()),
        });
        open.push((pid, Arc::downgrade(&opened)));
        opened
    }

    /// A new id for a queue.
    pub(crate) fn next_id(&self) -> usize {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters a queue with an id of [`Self::next_id`].
    pub(crate) fn adopt_queue(&self, id: usize, queue: Weak<dyn EventTarget>) {
        let mut queues = self.queues.0.lock();
        queues.retain(|_, known| known.strong_count() > 0);
        queues.insert(id, queue);
    }

    pub(crate) fn adopt_qp(&self, number: u32, qp: Weak<dyn EventTarget>) {
        self.qps.0.lock().insert(number, qp);
    }

    /// The number may have been reused already.
    pub(crate) fn forget_qp(&self, number: u32, qp: *const ()) {
        let mut qps = self.qps.0.lock();
        if qps.get(&number).is_some_and(|known| std::ptr::addr_eq(known.as_ptr(), qp)) {
            qps.remove(&number);
        }
    }

    /// Passes an event to a queue that still exists.
    pub(crate) fn queue_event(&self, id: usize, event: ObjectEvent) {
        self.queues.pass(id, event);
    }

    /// Passes an event to a queue pair that still exists.
    pub(crate) fn qp_event(&self, number: u32, event: ObjectEvent) {
        self.qps.pass(number, event);
    }

    /// Informs all queue pairs that they have failed.
    pub(crate) fn fail_all(&self) {
        let all: Vec<_> = self.qps.0.lock().values().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|qp| qp.handle(ObjectEvent::Failed));
    }
}

impl<K: Eq + Hash> Objects<K> {
    fn pass(&self, key: K, event: ObjectEvent) {
        // The lock is not held while the object handles the event.
        let object = self.0.lock().get(&key).and_then(Weak::upgrade);
        if let Some(object) = object {
            object.handle(event);
        }
    }
}
