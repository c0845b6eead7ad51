//! Use counts between objects. An object that other objects use stays in memory while they exist, and cannot be freed
//! except by an abrupt close of its IA.
#![forbid(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Handle, Result, State};

/// Number of objects that use an object. The object can be freed only when the number is zero.
#[derive(Debug, Default)]
pub struct UseCount(AtomicUsize);

/// Set in the count of an object that is being freed; the object then refuses new users.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl UseCount {
    /// Closes the object to new users before it is freed. Returns `InvalidState` with the subtype `state` if the object
    /// is in use.
    pub fn close(&self, state: State) -> Result<()> {
        match self.0.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire) {
            // If two threads free the object at the same time, both can close it; one of them then finds that the
            // handle is invalid.
            Ok(_) => Ok(()),
            Err(count) if count & !CLOSED == 0 => Ok(()),
            Err(_) => Err(Error::InvalidState(state)),
        }
    }

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns `InvalidState` with the subtype `state` if the object is in use.
    pub fn require_unused(&self, state: State) -> Result<()> {
        if self.count() == 0 { Ok(()) } else { Err(Error::InvalidState(state)) }
    }

    /// Number of users.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire) & !CLOSED
    }
}

/// An object that other objects can use.
pub trait UseCounted {
    /// The number of its users.
    fn uses(&self) -> &UseCount;
}

/// A counted use of an object. It keeps the object in memory, and prevents its free except in an abrupt close of the
/// IA.
pub struct UseGuard<T: UseCounted + ?Sized>(Arc<T>);

impl<T: UseCounted + ?Sized> UseGuard<T> {
    /// Counts one more user.
    pub fn of(object: Arc<T>) -> Self {
        object.uses().0.fetch_add(1, Ordering::AcqRel);
        UseGuard(object)
    }

    /// Like `of`, for an object that the consumer passes. Errors: `InvalidHandle(wanted)` if the object is being freed.
    pub fn of_open(object: Arc<T>, wanted: Handle) -> Result<Self> {
        let user = UseGuard::of(object);
        if user.0.uses().is_closed() { Err(Error::InvalidHandle(wanted)) } else { Ok(user) }
    }

    pub fn arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: UseCounted + ?Sized> Clone for UseGuard<T> {
    fn clone(&self) -> Self {
        UseGuard::of(self.0.clone())
    }
}

impl<T: UseCounted + ?Sized> Deref for UseGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: UseCounted + ?Sized> Drop for UseGuard<T> {
    fn drop(&mut self) {
        self.0.uses().0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct TypeB(UseCount);

    impl UseCounted for TypeB {
        fn uses(&self) -> &UseCount {
            &self.0
        }
    }

    #[test]
    fn object_in_use_is_not_freed_and_a_freed_object_gets_no_user() {
        let b = Arc::new(TypeB::default());
        let user = UseGuard::of_open(b.clone(), Handle::Pz).unwrap();
        assert_eq!(b.0.close(State::PzInUse), Err(Error::InvalidState(State::PzInUse)));
        drop(user);
        assert_eq!(b.0.close(State::PzInUse), Ok(()));
        assert_eq!(UseGuard::of_open(b.clone(), Handle::Pz).err(), Some(Error::InvalidHandle(Handle::Pz)));
        assert_eq!((b.0.count(), b.0.require_unused(State::PzInUse)), (0, Ok(())));
        assert_eq!(b.0.close(State::PzInUse), Ok(()), "the invalid handle is reported by its caller");
    }
}
