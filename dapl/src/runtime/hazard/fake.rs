//! Hazard slots for loom models: one record for each of at most four threads. Both barriers are full fences, because a
//! model has no membarrier(2).
#![forbid(unsafe_code)]

use std::array;
use std::cell::Cell;

use loom::lazy_static;

use super::HazardSlots;
use crate::runtime::sync::{AtomicUsize, Ordering, fence};

const THREADS: usize = 4;

lazy_static! {
    static ref RECORDS: [HazardSlots; THREADS] = array::from_fn(|_| HazardSlots::default());
    static ref USED: AtomicUsize = AtomicUsize::new(0);
}

loom::thread_local! {
    static MINE: Cell<Option<&'static HazardSlots>> = Cell::new(None);
}

pub(super) fn own_slots() -> Option<&'static HazardSlots> {
    MINE.with(|mine| {
        if mine.get().is_none() {
            mine.set(RECORDS.get(USED.fetch_add(1, Ordering::Relaxed)));
        }
        mine.get()
    })
}

pub(super) fn existing_slots() -> Option<&'static HazardSlots> {
    MINE.with(Cell::get)
}

pub(super) fn all() -> impl Iterator<Item = &'static HazardSlots> {
    RECORDS.iter()
}

/// Has no effect in a model.
pub(super) fn prepare() {}

pub(super) fn light_barrier() {
    fence(Ordering::SeqCst);
}

pub(super) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}
