//! The slots of all threads: a list that only grows, whose records serve again after their thread.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use super::Slots;

/// A record, and those that were made before it.
struct Record {
    slots: Slots,
    is_used: AtomicBool,
    next: OnceLock<&'static Record>,
}

static FIRST: OnceLock<Option<&'static Record>> = OnceLock::new();
/// The process that the records are of: a forked child has none of the other threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A thread's record, which is freed at its end.
struct Owned(Cell<Option<&'static Record>>);

impl Drop for Owned {
    fn drop(&mut self) {
        MINE.set(None);
        if let Some(record) = self.0.take() {
            record.is_used.store(false, Ordering::Release);
        }
    }
}

thread_local! {
    /// The slots of this thread, if it has some. Without a destructor, so that it is read without a check.
    static MINE: Cell<Option<&'static Slots>> = const { Cell::new(None) };
    static OWNED: Owned = const { Owned(Cell::new(None)) };
}

/// The slots of this thread.
#[inline(always)]
pub(super) fn mine() -> Option<&'static Slots> {
    match MINE.get() {
        Some(slots) => Some(slots),
        None => join(),
    }
}

/// Takes a record for this thread. `None`: the kernel lacks membarrier(2), or the thread is ending.
#[cold]
fn join() -> Option<&'static Slots> {
    let first = (*FIRST.get_or_init(make_first))?;
    OWNED
        .try_with(|owned| {
            let record = iterate(first).find(|record| {
                record.is_used.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            let record = record.unwrap_or_else(|| append(first));
            owned.0.set(Some(record));
            MINE.set(Some(&record.slots));
            &record.slots
        })
        .ok()
}

fn make_first() -> Option<&'static Record> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).ok()?;
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Some(fresh(false))
}

fn fresh(is_used: bool) -> &'static Record {
    Box::leak(Box::new(Record { slots: Slots::default(), is_used: AtomicBool::new(is_used), next: OnceLock::new() }))
}

/// A new record at the end of the list.
fn append(first: &'static Record) -> &'static Record {
    let mut new = Some(fresh(true));
    let record = new.expect("it was made just now");
    let mut last = first;
    while let Some(record) = new.take() {
        new = last.next.set(record).err();
        last = last.next.get().expect("this thread or another one has set it");
    }
    record
}

fn iterate(first: &'static Record) -> impl Iterator<Item = &'static Record> {
    std::iter::successors(Some(first), |record| record.next.get().copied())
}

/// All slots.
pub(super) fn all() -> impl Iterator<Item = &'static Slots> {
    let first = FIRST.get().copied().flatten();
    first.into_iter().flat_map(iterate).map(|record| &record.slots)
}

/// The barrier between the two steps of a thread that uses an object; see the module above.
#[inline(always)]
pub(super) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// The barrier between the two steps of a thread that ends an object.
pub(super) fn heavy_barrier() {
    if FIRST.get().copied().flatten().is_none() {
        return; // no thread has slots
    }
    if PROCESS.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
        // The other threads have stayed in the parent.
        let mine = MINE.get();
        let others = all().filter(|slots| mine.is_none_or(|mine| !std::ptr::eq(mine, *slots)));
        others.flat_map(|slots| &slots.0).for_each(|slot| slot.store(0, Ordering::Relaxed));
    }
    let is_done = membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    if !is_done {
        // A filter of system calls that came later. Processors drain their store buffers within microseconds.
        std::thread::sleep(Duration::from_millis(1));
    }
}
