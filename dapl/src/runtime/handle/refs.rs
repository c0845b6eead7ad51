//! References to the object of a handle for the duration of a call. [`Ref`] is counted. [`QuickRef`] stores the entry's
//! address in a hazard slot. [`PostRef`] does the same if possible, and is counted otherwise.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{HandleEntry, Object};
use crate::runtime::hazard::Protection;

/// A counted reference for the duration of a call.
pub struct Ref<T: Object> {
    pub(super) entry: &'static HandleEntry,
    pub(super) object: NonNull<T>,
    pub(super) _owns: PhantomData<Arc<T>>,
}

// SAFETY: a `Ref` is a shared reference to a `T: Send + Sync`, and its count is an atomic.
unsafe impl<T: Object> Send for Ref<T> {}
// SAFETY: a `Ref` is a shared reference to a `T: Send + Sync`, and its count is an atomic.
unsafe impl<T: Object> Sync for Ref<T> {}

impl<T: Object> Ref<T> {
    /// Returns a reference that may be kept after the call.
    pub fn to_arc(&self) -> Arc<T> {
        // SAFETY: the pointer came from `Arc::into_raw` in `publish`, and the reference count of the entry keeps that
        // `Arc` alive.
        unsafe {
            Arc::increment_strong_count(self.object.as_ptr());
            Arc::from_raw(self.object.as_ptr())
        }
    }
}

impl<T: Object> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the reference count of the entry keeps the object alive.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Object> Drop for Ref<T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.entry.release_reference();
    }
}

/// A reference for the duration of a post, of a dequeue, or of the first step of a wait. It costs no atomic
/// read-modify-write unless it had to be counted.
pub struct PostRef<T: Object> {
    pub(super) entry: &'static HandleEntry,
    pub(super) object: NonNull<T>,
    /// The hazard slot, cleared by `drop`. `None`: the reference is counted.
    pub(super) protection: Option<Protection>,
}

impl<T: Object> PostRef<T> {
    /// Whether this reference is counted, like a [`Ref`]; [`exclude`](super::exclude) does not wait for counted
    /// references.
    #[inline(always)]
    pub fn is_counted(&self) -> bool {
        self.protection.is_none()
    }

    /// The number that identifies the calling thread, if the reference is not counted.
    #[inline(always)]
    pub fn thread(&self) -> Option<usize> {
        self.protection.as_ref().map(Protection::thread)
    }

    /// Like `drop`, but inlined into the caller.
    #[inline(always)]
    pub fn release(self) {
        let mut this = ManuallyDrop::new(self);
        this.end();
    }

    #[inline(always)]
    fn end(&mut self) {
        match self.protection.take() {
            Some(protection) => self.entry.end_protection(protection),
            None => self.entry.release_reference(),
        }
    }
}

impl<T: Object> Deref for PostRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the hazard slot or the reference count keeps `drop_if_unused` from dropping the object.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Object> Drop for PostRef<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Like [`PostRef`], but always protected by a hazard slot and never counted.
pub struct QuickRef<T: Object> {
    pub(super) entry: &'static HandleEntry,
    pub(super) object: NonNull<T>,
    /// The hazard slot, cleared by `drop`.
    pub(super) protection: ManuallyDrop<Protection>,
}

impl<T: Object> QuickRef<T> {
    /// The number that identifies the calling thread.
    #[inline(always)]
    pub fn thread(&self) -> usize {
        self.protection.thread_of_first()
    }
}

impl<T: Object> QuickRef<T> {
    /// Like `drop`, but a cold function that is not inlined into the caller.
    #[cold]
    #[inline(never)]
    pub fn release_rarely(self) {
        drop(self);
    }
}

impl<T: Object> Deref for QuickRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the hazard slot keeps `drop_if_unused` from dropping the object.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Object> Drop for QuickRef<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the value is moved out only here, and `drop` runs once.
        self.entry.end_protection(unsafe { ManuallyDrop::take(&mut self.protection) });
    }
}
