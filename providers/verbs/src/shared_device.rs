//! A device that is open in this process, shared by all IAs over it: a queue pair of one can complete on the queues of
//! another, and an event finds its object, whichever engine reads it. A forked child shares nothing with its parent.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::cq::CqCore;
use crate::ibv::Context;
use crate::qp::QpCore;
use crate::srq::SrqCore;

/// The devices that are open, by the process that opened them.
static OPEN: Mutex<Vec<(u32, Weak<Opened>)>> = Mutex::new(Vec::new());

/// An open device, and the objects of its events.
pub(crate) struct Opened {
    pub(crate) context: Arc<Context>,
    ids: AtomicUsize,
    cqs: Mutex<HashMap<usize, Weak<CqCore>>>,
    srqs: Mutex<HashMap<usize, Weak<SrqCore>>>,
    qps: Mutex<HashMap<u32, Weak<QpCore>>>,
}

impl Opened {
    /// The one that is open already, or this one.
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
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            qps: Mutex::default(),
        });
        open.push((pid, Arc::downgrade(&opened)));
        opened
    }

    /// A new id for a queue.
    pub(crate) fn next_id(&self) -> usize {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn adopt_cq(&self, id: usize, cq: Weak<CqCore>) {
        let mut cqs = self.cqs.lock();
        cqs.retain(|_, known| known.strong_count() > 0);
        cqs.insert(id, cq);
    }

    pub(crate) fn adopt_srq(&self, id: usize, srq: Weak<SrqCore>) {
        let mut srqs = self.srqs.lock();
        srqs.retain(|_, known| known.strong_count() > 0);
        srqs.insert(id, srq);
    }

    pub(crate) fn adopt_qp(&self, number: u32, qp: Weak<QpCore>) {
        self.qps.lock().insert(number, qp);
    }

    /// Its number may have been reused already.
    pub(crate) fn forget_qp(&self, number: u32, qp: &Weak<QpCore>) {
        let mut qps = self.qps.lock();
        if qps.get(&number).is_some_and(|known| known.ptr_eq(qp)) {
            qps.remove(&number);
        }
    }

    pub(crate) fn cq(&self, id: usize) -> Option<Arc<CqCore>> {
        self.cqs.lock().get(&id).and_then(Weak::upgrade)
    }

    pub(crate) fn srq(&self, id: usize) -> Option<Arc<SrqCore>> {
        self.srqs.lock().get(&id).and_then(Weak::upgrade)
    }

    pub(crate) fn qp(&self, number: u32) -> Option<Arc<QpCore>> {
        self.qps.lock().get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn qps(&self) -> Vec<Arc<QpCore>> {
        self.qps.lock().values().filter_map(Weak::upgrade).collect()
    }
}
