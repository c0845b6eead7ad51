//! The hazard slots of all threads: a fixed number of records. A thread that needs slots claims a free record, which is
//! reused after the thread has ended.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use super::{HazardSlots, SLOTS, local};

/// Maximum number of running threads with slots. A record occupies memory only after its first use.
const THREADS: usize = 1024;

struct HazardRecord {
    slots: HazardSlots,
    is_used: AtomicBool,
}

static RECORDS: [HazardRecord; THREADS] = [const {
    HazardRecord { slots: HazardSlots([const { AtomicUsize::new(0) }; SLOTS]), is_used: AtomicBool::new(false) }
}; THREADS];
/// Number of records that were used at least once. They precede the unused ones.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Id of the process that owns the records. The parent's other threads do not exist in a forked child.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel has membarrier(2): unknown, yes or no.
static SUPPORT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

/// A thread's record, which is released when the thread ends.
struct Owned(Cell<Option<&'static HazardRecord>>);

impl Drop for Owned {
    fn drop(&mut self) {
        local::set(None);
        if let Some(record) = self.0.take() {
            // A slot is still in use here only if a signal handler has ended the thread during a call.
            record.slots.0.iter().for_each(|slot| slot.store(0, Ordering::Release));
            record.is_used.store(false, Ordering::Release);
        }
    }
}

thread_local! {
    /// The record of this thread, if it has one. The thread-local word of `local` points into the record.
    static OWNED: Owned = const { Owned(Cell::new(None)) };
}

/// The slots of this thread, if it has any.
#[inline(always)]
pub(super) fn existing_slots() -> Option<&'static HazardSlots> {
    local::get()
}

/// The slots of this thread. The first call claims a record; `None` if it cannot claim one (see [`join`]).
#[inline(always)]
pub(super) fn own_slots() -> Option<&'static HazardSlots> {
    match local::get() {
        Some(slots) => Some(slots),
        None => join(),
    }
}

/// Claims a record for this thread. Returns `None` if the kernel has no membarrier(2), the thread is ending, or all
/// records are in use.
#[cold]
fn join() -> Option<&'static HazardSlots> {
    if !is_supported() {
        return None;
    }
    let take = |owned: &Owned| {
        let is_ours = |record: &HazardRecord| {
            record.is_used.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let (n, record) = RECORDS.iter().enumerate().find(|(_, record)| is_ours(record))?;
        USED.fetch_max(n + 1, Ordering::Relaxed);
        // Pairs with the fence in `heavy_barrier`: either the thread that ends an object sees this record, or this
        // thread sees that the object is invalid.
        fence(Ordering::SeqCst);
        owned.0.set(Some(record));
        local::set(Some(&record.slots));
        Some(&record.slots)
    };
    OWNED.try_with(take).ok().flatten()
}

/// Registers the process for membarrier(2), unless this was done before.
pub(super) fn prepare() {
    is_supported();
}

fn is_supported() -> bool {
    if SUPPORT.load(Ordering::Relaxed) == UNKNOWN {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        let is_present = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        SUPPORT.store(if is_present { PRESENT } else { ABSENT }, Ordering::Relaxed);
    }
    SUPPORT.load(Ordering::Relaxed) == PRESENT
}

/// The slots of all threads.
pub(super) fn all() -> impl Iterator<Item = &'static HazardSlots> {
    RECORDS[..USED.load(Ordering::Acquire)].iter().map(|record| &record.slots)
}

/// The barrier between the two steps of a thread that uses an object; see the parent module.
#[inline(always)]
pub(super) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// The barrier between the two steps of a thread that ends an object.
pub(super) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    let mine = local::get();
    let is_mine = |slots: &HazardSlots| mine.is_some_and(|mine| std::ptr::eq(mine, slots));
    let mut used =
        RECORDS[..USED.load(Ordering::Relaxed)].iter().filter(|record| record.is_used.load(Ordering::Acquire));
    if used.all(|record| is_mine(&record.slots)) {
        return; // no other thread has slots
    }
    let process = std::process::id();
    if PROCESS.swap(process, Ordering::Relaxed) != process {
        // The other threads of the parent do not exist in this child, so their slots protect nothing.
        let others = all().filter(|slots| !is_mine(slots));
        others.flat_map(|slots| &slots.0).for_each(|slot| slot.store(0, Ordering::Relaxed));
    }
    let is_done = membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    if !is_done {
        // membarrier(2) has worked before, so a system call filter was installed since. Instead of a barrier, this
        // waits until all CPUs have drained their store buffers, which takes microseconds.
        std::thread::sleep(Duration::from_millis(1));
    }
}
