//! Static values that a forked child does not inherit.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// A static value behind a lock, created by its first use in a process. A forked child starts with a new value. It
/// inherits neither the value of its parent, nor a lock that another thread held during the fork.
pub struct PerProcess<T> {
    /// Null, or an instance that is never freed.
    current: AtomicPtr<ProcessInstance<T>>,
}

struct ProcessInstance<T> {
    pid: u32,
    value: Mutex<T>,
}

impl<T: Default + Send> PerProcess<T> {
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        PerProcess { current: AtomicPtr::new(null_mut()) }
    }

    /// Locks the value of this process.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let pid = std::process::id();
        let found = self.current.load(Ordering::Acquire);
        // SAFETY: `found` is null, or points to an instance, and instances are never freed.
        match unsafe { found.as_ref() } {
            Some(instance) if instance.pid == pid => instance.value.lock(),
            _ => self.create(found, pid).value.lock(),
        }
    }

    /// Creates the value of this process in place of `found`, which is null or belongs to another process. If another
    /// thread of this process has created a value meanwhile, returns that value.
    #[cold]
    fn create(&self, found: *mut ProcessInstance<T>, pid: u32) -> &ProcessInstance<T> {
        let new = Box::into_raw(Box::new(ProcessInstance { pid, value: Mutex::new(T::default()) }));
        match self.current.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `new` comes from `into_raw`, and a published instance is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: `new` comes from `into_raw`, and was not published, so no other thread has the pointer.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: `current` never becomes null again, and instances are never freed.
                unsafe { &*other }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_lock_one_value() {
        static COUNT: PerProcess<u32> = PerProcess::new();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(|| (0..100).for_each(|_| *COUNT.lock() += 1)));
        });
        assert_eq!(*COUNT.lock(), 400);
    }

    #[test]
    fn value_of_another_process_is_replaced_although_it_is_locked() {
        static COUNT: PerProcess<u32> = PerProcess::new();
        let inherited = Box::leak(Box::new(ProcessInstance { pid: 0, value: Mutex::new(7) }));
        let _guard = std::mem::ManuallyDrop::new(inherited.value.try_lock());
        COUNT.current.store(&raw mut *inherited, Ordering::Release);
        assert_eq!(*COUNT.lock(), 0);
    }
}
