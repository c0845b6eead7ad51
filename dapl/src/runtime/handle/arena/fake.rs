//! The arena for loom models: a few table entries that exist for one run of a model. They are reused without
//! quarantine.
#![forbid(unsafe_code)]

use std::array;

use dat_abi::hook::HandleArena;
use loom::lazy_static;

use super::HandleEntry;
use crate::error::{Error, Resource, Result};
use crate::runtime::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex};

/// Number of table entries: an IA, its async EVD, and the object that a model tests.
const ENTRIES: usize = 3;

lazy_static! {
    static ref ARENA: [HandleEntry; ENTRIES] = array::from_fn(|_| fresh());
    static ref QUARANTINED: Mutex<Vec<usize>> = Mutex::new((0..ENTRIES).collect());
}

fn fresh() -> HandleEntry {
    HandleEntry {
        table: AtomicPtr::default(),
        word: AtomicU64::new(0),
        object: AtomicPtr::default(),
        release: AtomicPtr::default(),
        context: AtomicU64::new(0),
        futex: AtomicU32::new(0),
        _pad: AtomicU32::new(0),
        empty_check: AtomicPtr::new(std::ptr::null_mut()),
        _rest: AtomicU64::new(0),
    }
}

/// Always fails, since loom models have no libdat that needs the address range.
pub fn arena() -> Result<HandleArena> {
    Err(Error::Exhausted(Resource::Memory))
}

/// Number of table entries in use.
#[allow(dead_code, reason = "the real arena has this function too")]
pub fn alive() -> usize {
    ENTRIES - QUARANTINED.lock().len()
}

pub(crate) fn lock_for_fork() -> impl Sized {}

fn number(handle: usize) -> Option<usize> {
    ARENA.iter().position(|entry| std::ptr::from_ref(entry) as usize == handle)
}

pub(super) fn at(handle: usize) -> Option<&'static HandleEntry> {
    Some(&ARENA[number(handle)?])
}

pub(super) fn allocate_entry() -> Result<usize> {
    let number = QUARANTINED.lock().pop().ok_or(Error::Exhausted(Resource::Memory))?;
    Ok(std::ptr::from_ref(&ARENA[number]) as usize)
}

pub(super) fn quarantine(handle: usize) {
    QUARANTINED.lock().extend(number(handle));
}
