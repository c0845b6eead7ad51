//! The arena in loom's models: a few stubs that live as long as one run of a model, and are reused at once.
#![forbid(unsafe_code)]

use std::array;

use dat_abi::hook::HandleArena;
use loom::lazy_static;

use super::Stub;
use crate::error::{Error, Resource, Result};
use crate::runtime::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex};

/// An IA, its async EVD, and what a model is about.
const STUBS: usize = 3;

lazy_static! {
    static ref ARENA: [Stub; STUBS] = array::from_fn(|_| fresh());
    static ref RESTING: Mutex<Vec<usize>> = Mutex::new((0..STUBS).collect());
}

fn fresh() -> Stub {
    Stub {
        table: AtomicPtr::default(),
        word: AtomicU64::new(0),
        object: AtomicPtr::default(),
        release: AtomicPtr::default(),
        context: AtomicU64::new(0),
        futex: AtomicU32::new(0),
        _pad: AtomicU32::new(0),
        _rest: array::from_fn(|_| AtomicU64::new(0)),
    }
}

/// libdat has nothing to read here.
pub fn arena() -> Result<HandleArena> {
    Err(Error::Exhausted(Resource::Memory))
}

/// Number of stubs in use.
#[allow(dead_code, reason = "the same functions as the real one")]
pub fn alive() -> usize {
    STUBS - RESTING.lock().len()
}

pub(crate) fn hold() -> impl Sized {}

fn number(handle: usize) -> Option<usize> {
    ARENA.iter().position(|stub| std::ptr::from_ref(stub) as usize == handle)
}

pub(super) fn at(handle: usize) -> Option<&'static Stub> {
    Some(&ARENA[number(handle)?])
}

pub(super) fn take() -> Result<usize> {
    let number = RESTING.lock().pop().ok_or(Error::Exhausted(Resource::Memory))?;
    Ok(std::ptr::from_ref(&ARENA[number]) as usize)
}

pub(super) fn rest(handle: usize) {
    RESTING.lock().extend(number(handle));
}
