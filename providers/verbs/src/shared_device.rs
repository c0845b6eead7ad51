//! An open device, shared by all IAs of this process that use it.
//!
//! A queue pair of one IA can complete on completion queues of another IA, because both use the same device context.
//! Each IA's engine reads device events, and passes an event to its object even if the object belongs to another IA. A
//! forked child shares no device with its parent.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::ibv::Context;

/// The open devices, each with the id of the process that opened it.
static OPEN: Mutex<Vec<(u32, Weak<SharedDevice>)>> = Mutex::new(Vec::new());

/// An object that device events refer to: a completion queue, a shared receive queue or a queue pair. An engine thread
/// calls one of these functions for each event. A kind of object does not implement those for events that it never has.
pub(crate) trait EventTarget: Send + Sync {
    /// The object has failed.
    fn failed(&self);
    /// The completion queue is armed, and has a completion.
    fn completed(&self) {}
    /// The shared receive queue has fewer receives than its limit.
    fn fell_below_limit(&self) {}
    /// The queue pair has received data from the peer before the connection was confirmed.
    fn data_before_confirmation(&self) {}
}

/// Weak references to objects, by id or number.
struct EventTargets<K>(Mutex<HashMap<K, Weak<dyn EventTarget>>>);

/// An open device, and the objects that its events refer to.
pub(crate) struct SharedDevice {
    pub(crate) context: Arc<Context>,
    ids: AtomicUsize,
    /// Completion queues and shared receive queues, by their ids.
    queues: EventTargets<usize>,
    /// Queue pairs, by their numbers.
    qps: EventTargets<u32>,
    /// The ports that the device has reported as down, and not as active again.
    down_ports: Mutex<HashSet<u8>>,
}

impl SharedDevice {
    /// Returns the open device with the name of `context`; if there is none, adds `context`.
    pub(crate) fn find_or_add(context: Arc<Context>) -> Arc<Self> {
        let pid = std::process::id();
        let mut open = OPEN.lock();
        open.retain(|(_, known)| known.strong_count() > 0);
        let known = open.iter().filter(|(of, _)| *of == pid).filter_map(|(_, known)| known.upgrade());
        if let Some(known) = known.into_iter().find(|known| known.context.name() == context.name()) {
            return known;
        }
        let opened = Arc::new(SharedDevice {
            context,
            ids: AtomicUsize::new(1),
            queues: EventTargets(Mutex::default()),
            qps: EventTargets(Mutex::default()),
            down_ports: Mutex::default(),
        });
        open.push((pid, Arc::downgrade(&opened)));
        opened
    }

    /// Records an event of a port, for all IAs of the process.
    pub(crate) fn set_port_down(&self, port: u8, is_down: bool) {
        let mut ports = self.down_ports.lock();
        if is_down {
            ports.insert(port)
        } else {
            ports.remove(&port)
        };
    }

    /// Whether a port is down, by the latest event of the device.
    pub(crate) fn is_port_down(&self, port: u8) -> bool {
        self.down_ports.lock().contains(&port)
    }

    /// Returns a new id for a completion queue or shared receive queue.
    pub(crate) fn next_id(&self) -> usize {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a queue with an id from [`Self::next_id`].
    pub(crate) fn add_queue(&self, id: usize, queue: Weak<dyn EventTarget>) {
        let mut queues = self.queues.0.lock();
        queues.retain(|_, known| known.strong_count() > 0);
        queues.insert(id, queue);
    }

    pub(crate) fn add_qp(&self, number: u32, qp: Weak<dyn EventTarget>) {
        self.qps.0.lock().insert(number, qp);
    }

    /// Removes a queue pair, unless the device has meanwhile assigned the number to another queue pair.
    pub(crate) fn remove_qp(&self, number: u32, qp: *const ()) {
        let mut qps = self.qps.0.lock();
        if qps.get(&number).is_some_and(|known| std::ptr::addr_eq(known.as_ptr(), qp)) {
            qps.remove(&number);
        }
    }

    /// Passes an event to a queue, if it still exists.
    pub(crate) fn queue_event(&self, id: usize, event: fn(&dyn EventTarget)) {
        self.queues.deliver(id, event);
    }

    /// Passes an event to a queue pair, if it still exists.
    pub(crate) fn qp_event(&self, number: u32, event: fn(&dyn EventTarget)) {
        self.qps.deliver(number, event);
    }

    /// Notifies all queue pairs of a failure.
    pub(crate) fn fail_all(&self) {
        let all: Vec<_> = self.qps.0.lock().values().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|qp| qp.failed());
    }
}

impl<K: Eq + Hash> EventTargets<K> {
    fn deliver(&self, key: K, event: fn(&dyn EventTarget)) {
        // The lock is released before the object handles the event, because the handler may add or remove objects.
        let object = self.0.lock().get(&key).and_then(Weak::upgrade);
        if let Some(object) = object {
            event(&*object);
        }
    }
}
