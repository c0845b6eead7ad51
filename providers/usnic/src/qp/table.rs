//! Maps the connection number in a packet header to its queue pair.
//!
//! A number is an index and a generation (`proto::ids`); a packet of a former generation finds none. Nothing is called with the
//! lock of this module held.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::proto::Nanos;
use crate::proto::ids::{self, Ids};
use crate::qp::pair::{Pair, Plan};

/// A connection, or one on its way, as the device finds it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) number: u32,
    pub(crate) pair: Arc<dyn Pair>,
    pub(crate) plan: Arc<Plan>,
    open: Arc<AtomicBool>,
}

impl Place {
    /// The connection stands, and takes its packets itself.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// From now on.
    pub(crate) fn opens(&self) {
        self.open.store(true, Ordering::Release);
    }
}

/// Connections by index, and the free numbers.
pub(crate) struct Table {
    places: RwLock<Vec<Option<Arc<Place>>>>,
    ids: Mutex<Ids>,
}

impl Table {
    /// For `max` connections; a number is quarantined for `rest` before its place is used again.
    pub(crate) fn new(max: usize, rest: Nanos) -> Self {
        Table { places: RwLock::default(), ids: Mutex::new(Ids::new(max, rest)) }
    }

    /// A free number; `None`: all are taken.
    pub(crate) fn take(&self, now: Nanos) -> Option<u32> {
        self.ids.lock().take(now)
    }

    /// Packets of this number, which is taken, go to `pair` from now on.
    pub(crate) fn put(&self, number: u32, pair: Arc<dyn Pair>) -> Arc<Plan> {
        let plan = Arc::new(Plan::new());
        let place = Place { number, pair, plan: plan.clone(), open: Arc::default() };
        let mut places = self.places.write();
        let at = ids::index(number);
        if at >= places.len() {
            places.resize_with(at + 1, || None);
        }
        let before = places[at].replace(Arc::new(place));
        drop(places);
        drop(before); // it may be the last to hold a queue pair
        plan
    }

    /// Packets of this number go to another `pair` from now on; its plan stays.
    pub(crate) fn replace(&self, number: u32, pair: Arc<dyn Pair>) {
        let mut places = self.places.write();
        let place = places.get_mut(ids::index(number)).and_then(Option::as_mut).filter(|place| place.number == number);
        let before = place.map(|place| {
            let next = Place { pair, ..Place::clone(place) };
            std::mem::replace(place, Arc::new(next))
        });
        drop(places);
        drop(before);
    }

    /// Frees the number.
    pub(crate) fn free(&self, number: u32, now: Nanos) {
        let mut places = self.places.write();
        let place =
            places.get_mut(ids::index(number)).filter(|place| place.as_ref().is_some_and(|p| p.number == number));
        let before = place.and_then(Option::take);
        drop(places);
        drop(before);
        self.ids.lock().free(number, now);
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<Place>> {
        self.at(ids::index(number)).filter(|place| place.number == number)
    }

    pub(crate) fn at(&self, index: usize) -> Option<Arc<Place>> {
        self.places.read().get(index)?.clone()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Place>> {
        self.places.read().iter().flatten().cloned().collect()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("places", &self.places.read().iter().flatten().count()).finish_non_exhaustive()
    }
}
