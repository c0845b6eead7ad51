//! Objects whose memory is never freed, so that a thread may read an object without a reference to it.
//!
//! An object returns to a pool when its owner drops it, and the next owner reuses it. A thread that reads the object
//! meanwhile may read values of another owner, but never memory of another type. Every field is an atomic.
#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::runtime::sync::StaticMutex;

/// A type whose objects are pooled.
pub trait Poolable: Default + Sync + 'static {
    /// The pool of free objects of this type.
    fn pool() -> &'static Pool<Self>;
    /// Resets the object for a new owner. Called before the owner passes the object to other threads, and before the
    /// object returns to the pool.
    fn clear(&self);
}

/// The free objects of a type.
pub type Pool<T> = StaticMutex<Vec<&'static T>>;

/// The owner of a pooled object.
#[derive(Debug)]
pub struct Pooled<T: Poolable>(&'static T);

impl<T: Poolable> Pooled<T> {
    /// Takes an object out of the pool, or allocates one.
    pub fn take() -> Self {
        // Models have no pool, because loom forbids that one run of a model uses an object of another run.
        let free = if cfg!(loom) { None } else { T::pool().lock().pop() };
        let object: &'static T = free.unwrap_or_else(|| Box::leak(Box::default()));
        object.clear();
        Pooled(object)
    }

    /// Allocates an object that never returns to the pool.
    pub fn leak() -> &'static T {
        let object = Pooled::<T>::take();
        let object = std::mem::ManuallyDrop::new(object);
        object.0
    }

    /// The object, for threads that may read it after the owner has dropped it.
    pub fn get(&self) -> &'static T {
        self.0
    }
}

impl<T: Poolable> Deref for Pooled<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Poolable> Drop for Pooled<T> {
    fn drop(&mut self) {
        self.0.clear();
        T::pool().lock().push(self.0);
    }
}
