//! Hazard pointers: references that cost no atomic read-modify-write and no fence.
//!
//! A thread that is about to use an object stores the object's address in a slot of its own ([`protect`]), and then
//! checks whether the object is still valid. A thread that ends an object first invalidates it, and then searches the
//! slots of all threads ([`is_protected`]). Between its two steps, the ending thread makes every thread of the process
//! execute a memory barrier (membarrier(2)), so the using thread needs only a compiler barrier. At least one of the two
//! threads then sees the other's write.
//!
//! Sources: M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects" (IEEE TPDS, 2004); asymmetric
//! fences as in C++ proposal P1202.

use std::marker::PhantomData;
use std::time::Duration;

use crate::runtime::sync::{AtomicUsize, Ordering, sleep, yield_now};

#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod records;
#[cfg(loom)]
#[path = "hazard/fake.rs"]
mod records;

/// Number of slots per thread. Uses nest: a post on an EP also uses a registration, and a signal handler may post
/// during a post.
const SLOTS: usize = 4;

/// A waiting thread yields between checks until it has made this many checks, and sleeps between later ones.
const YIELDS: u32 = 100;
/// Length of a sleep between checks. A use takes microseconds unless its thread is preempted.
const SLEEP: Duration = Duration::from_micros(50);

/// The hazard slots of one thread: each contains the address of an object in use, or 0 if the slot is free.
#[derive(Debug, Default)]
#[repr(align(128))]
struct HazardSlots([AtomicUsize; SLOTS]);

/// A hazard slot of this thread that contains the address of an object in use. Dropping it clears the slot.
#[derive(Debug)]
#[repr(transparent)]
pub struct Protection {
    slot: &'static AtomicUsize,
    /// Makes the type neither `Send` nor `Sync`, because only the thread that owns a slot writes it.
    _is_local: PhantomData<*const ()>,
}

/// Registers the process for membarrier(2). Called before a provider starts a thread: the registration of a process with
/// several threads takes about 10 ms, because the kernel waits until all CPUs have scheduled.
pub fn prepare() {
    records::prepare();
}

/// Stores `address` in a slot. The thread may have cleared the slot of an earlier use just before. Another thread that
/// waits for the end of that use may then read `address` instead of 0. So this is also a Release store: all accesses of
/// the earlier use come before it.
#[inline(always)]
fn announce(slot: &AtomicUsize, address: usize) {
    slot.store(address, Ordering::Release);
    records::light_barrier();
}

/// Stores `address` in a slot. The caller then checks that the object is valid. Returns `None` if the thread has no
/// free slot: without membarrier(2), in a thread that is ending, if all slots of the thread are in use, or if other
/// threads use all records. The caller then counts a reference instead.
#[inline(always)]
pub fn protect(address: usize) -> Option<Protection> {
    let slot = records::own_slots()?.0.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)?;
    announce(slot, address);
    Some(Protection { slot, _is_local: PhantomData })
}

/// Like [`protect`], but uses only the first slot of the thread. That slot is usually free, and fewer instructions are
/// needed.
#[inline(always)]
pub fn protect_first(address: usize) -> Option<Protection> {
    protect_in_first(records::own_slots()?, address)
}

/// Like [`protect_first`], but only for a thread that has slots already, so that it makes no function call. Other
/// threads get `None`, and the caller then uses [`protect`].
#[inline(always)]
pub fn protect_again(address: usize) -> Option<Protection> {
    protect_in_first(records::existing_slots()?, address)
}

#[inline(always)]
fn protect_in_first(slots: &'static HazardSlots, address: usize) -> Option<Protection> {
    let slot = &slots.0[0];
    if slot.load(Ordering::Relaxed) != 0 {
        return None;
    }
    announce(slot, address);
    Some(Protection { slot, _is_local: PhantomData })
}

impl Protection {
    /// Like [`Self::thread`], for a protection by the first slot.
    #[inline(always)]
    pub fn thread_of_first(&self) -> usize {
        debug_assert_eq!(self.thread(), std::ptr::from_ref(self.slot) as usize);
        std::ptr::from_ref(self.slot) as usize
    }

    /// A number that identifies the calling thread among the running threads.
    #[inline(always)]
    pub fn thread(&self) -> usize {
        std::ptr::from_ref(self.slot) as usize & !(align_of::<HazardSlots>() - 1)
    }

    #[inline(always)]
    pub fn address(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    /// Clears the slot. If the search of a thread that ends the object still finds the address in the slot, the calling
    /// thread's later reads see that the object is invalid. So at least one of the two threads drops the object.
    #[inline(always)]
    pub fn end(self) {
        drop(self);
        records::light_barrier();
    }
}

impl Drop for Protection {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the Acquire in `is_protected`: all accesses to the object come before the slot is cleared.
        self.slot.store(0, Ordering::Release);
    }
}

/// Waits until all current uses of the objects whose addresses `of` accepts have ended. Must not be called during such
/// a use, because the thread would wait for itself.
#[cold]
pub fn await_uses(of: impl Fn(usize) -> bool) {
    records::heavy_barrier();
    for slot in records::all().flat_map(|slots| &slots.0) {
        let used = slot.load(Ordering::Acquire);
        if used != 0 && of(used) {
            wait_until(|| slot.load(Ordering::Acquire) != used);
        }
    }
}

/// Waits until no thread uses the object at this address. The caller has invalidated the object, so no thread can begin
/// to use it.
#[cold]
pub fn await_no_use(address: usize) {
    wait_until(|| !is_protected(address));
}

fn wait_until(is_so: impl Fn() -> bool) {
    let mut checks = 0;
    while !is_so() {
        checks += 1;
        if checks < YIELDS {
            yield_now();
        } else {
            sleep(SLEEP); // the using thread may have been preempted
        }
    }
}

/// Whether a thread uses the object at this address. The caller has invalidated the object, so no thread can begin to
/// use it.
#[cold]
pub fn is_protected(address: usize) -> bool {
    records::heavy_barrier();
    records::all().any(|slots| slots.0.iter().any(|slot| slot.load(Ordering::Acquire) == address))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn address_is_protected_until_the_slot_is_free() {
        let object = 0;
        let address = &raw const object as usize;
        assert!(!is_protected(address));
        let protection = protect(address).expect("Linux 4.14 has membarrier");
        assert!(thread::scope(|scope| scope.spawn(|| is_protected(address)).join().unwrap()), "seen by another thread");
        protection.end();
        assert!(!is_protected(address));
    }

    #[test]
    fn protect_returns_none_without_a_free_hazard_slot() {
        let all: Vec<_> = (1..=SLOTS).map(|n| protect(n).expect("a slot is free")).collect();
        assert!(protect(SLOTS + 1).is_none());
        drop(all);
        assert!(protect(1).is_some());
    }

    #[test]
    fn hazard_slots_of_ended_threads_are_reused() {
        let count = || records::all().count();
        protect(1);
        let before = count();
        for _ in 0..500 {
            thread::spawn(|| assert!(protect(2).is_some())).join().unwrap();
        }
        // Other tests run concurrently and use records too.
        assert!(count() < before + 250, "{before} records, then {}", count());
    }
}
