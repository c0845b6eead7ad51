//! Counted uses: an object that others use cannot be freed, and stays in memory as long as they do.
//!
//! A room that keeps a `Use` of another's object needs no thought about its end. Never blocks.
#![forbid(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result, State};

/// How many other objects use this one; while there are any it cannot be freed.
#[derive(Debug, Default)]
pub struct UseCount(AtomicUsize);

impl UseCount {
    /// `Err` with `state` while somebody uses the object.
    pub fn require_unused(&self, state: State) -> Result<()> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Error::InvalidState(state)) }
    }

    /// How many users there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// An object others can use.
pub trait Usable {
    /// Its count of users.
    fn uses(&self) -> &UseCount;
}

/// A counted use of an object: keeps it in memory and, unless the IA closes abruptly, from being freed.
pub struct Use<T: Usable + ?Sized>(Arc<T>);

impl<T: Usable + ?Sized> Use<T> {
    /// Counts one more user.
    pub fn of(object: Arc<T>) -> Self {
        object.uses().0.fetch_add(1, Ordering::AcqRel);
        Use(object)
    }

    /// The object itself.
    pub fn arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Usable + ?Sized> Clone for Use<T> {
    fn clone(&self) -> Self {
        Use::of(self.0.clone())
    }
}

impl<T: Usable + ?Sized> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Usable + ?Sized> Drop for Use<T> {
    fn drop(&mut self) {
        self.0.uses().0.fetch_sub(1, Ordering::AcqRel);
    }
}
