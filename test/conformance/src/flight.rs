//! Flight record of a process: the current DAT functions of up to 255 threads, the last calls, and the observed return
//! codes and events. It is a file in the run's directory; a second file has the steps that the case reports.
//!
//! The process under test writes the record through a shared mapping, so the driver can read it after a crash and
//! during a hang. Recording a call takes no lock and never fails a case: without an open record, nothing is recorded.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api;

/// 64-bit words of a thread's slot: thread id, function number + 1 (0: outside any function), start time, unused.
const SLOT: usize = 4;
/// Number of slots. 255 threads have one slot each. Further threads share the last one; their current function is not
/// reported.
const SLOTS: usize = 256;
/// 64-bit words per recorded call: call number + 1, thread and function, code, time.
const CALL: usize = 4;
/// Number of last calls, over all threads, that the record keeps.
const CALLS: usize = 64;
/// Capacity for distinct observations, far above the number of codes and events that a case observes. Each page that
/// they occupy costs every process a page fault.
const SEEN: usize = 512;

const CALLS_AT: usize = SLOT * SLOTS;
const NEXT_AT: usize = CALLS_AT + CALL * CALLS;
const SEEN_AT: usize = NEXT_AT + 1;
const WORDS: usize = SEEN_AT + SEEN;

static WORDS_OF_THIS_PROCESS: OnceLock<&'static [AtomicU64]> = OnceLock::new();
static STEPS: Mutex<Option<File>> = Mutex::new(None);

/// An observation that counts towards the required codes and events.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Seen {
    /// The function with this number (`api::name`) returned this code.
    ReturnCode(u32, u32),
    /// An event with this number was returned.
    Event(u32),
    /// A DTO completed with this status.
    Dto(u32),
    /// A bind completed with this status.
    Rmr(u32),
    /// An asynchronous event with this number had this reason.
    Async(u32, u32),
}

impl Seen {
    fn word(self) -> u64 {
        let (kind, about, code) = match self {
            Self::ReturnCode(function, code) => (1, function, code),
            Self::Event(number) => (2, 0, number),
            Self::Dto(status) => (3, 0, status),
            Self::Rmr(status) => (4, 0, status),
            Self::Async(number, reason) => (5, number, reason),
        };
        kind << 56 | u64::from(about) << 32 | u64::from(code)
    }

    fn from_word(word: u64) -> Option<Self> {
        let (about, code) = ((word >> 32) as u32 & 0xff_ffff, word as u32);
        Some(match word >> 56 {
            1 => Self::ReturnCode(about, code),
            2 => Self::Event(code),
            3 => Self::Dto(code),
            4 => Self::Rmr(code),
            5 => Self::Async(about, code),
            _ => return None,
        })
    }
}

/// Creates the flight record of this process at `path`, and beside it (extension `steps`) a text file of the steps that
/// the case reports.
pub(crate) fn open(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(WORDS as u64 * 8)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: the call maps an open file at an address that the kernel chooses, so no existing mapping changes.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), WORDS * 8, protection, flags, file.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the map is page-aligned, of this length, zeroed, and never unmapped; all other writers use atomics.
    let words = unsafe { std::slice::from_raw_parts(map.cast::<AtomicU64>(), WORDS) };
    *STEPS.lock().unwrap_or_else(PoisonError::into_inner) = Some(File::create(steps_of(path))?);
    assert!(WORDS_OF_THIS_PROCESS.set(words).is_ok(), "the flight record of this process is already open");
    Ok(())
}

/// A call in progress. `leave` marks the thread as outside the function. If the thread is cancelled inside the call,
/// the end of the thread releases its slot.
pub(crate) struct Call {
    function: usize,
    slot: usize,
}

/// Records that this thread is about to call a function.
pub(crate) fn enter(function: usize) -> Call {
    let slot = THREAD.try_with(|thread| thread.slot).unwrap_or(SLOTS - 1);
    if let Some(words) = WORDS_OF_THIS_PROCESS.get() {
        words[slot * SLOT + 2].store(now(), Ordering::Relaxed);
        words[slot * SLOT + 1].store(function as u64 + 1, Ordering::Relaxed);
    }
    Call { function, slot }
}

impl Call {
    /// Records the function's return code.
    pub(crate) fn leave(self, code: u32) {
        let _ = LAST.try_with(|last| last.set(Some((self.function, code))));
        let Some(words) = WORDS_OF_THIS_PROCESS.get() else { return };
        words[self.slot * SLOT + 1].store(0, Ordering::Relaxed);
        let number = words[NEXT_AT].fetch_add(1, Ordering::Relaxed);
        let call = &words[CALLS_AT + number as usize % CALLS * CALL..][..CALL];
        call[1].store(words[self.slot * SLOT].load(Ordering::Relaxed) << 32 | self.function as u64, Ordering::Relaxed);
        call[2].store(u64::from(code), Ordering::Relaxed);
        call[3].store(now(), Ordering::Relaxed);
        call[0].store(number + 1, Ordering::Relaxed);
        see(Seen::ReturnCode(self.function as u32, code));
    }
}

/// Returns this thread's last call and its code.
pub(crate) fn last_call() -> Option<(&'static str, u32)> {
    let (function, code) = LAST.get()?;
    Some((api::name(function), code))
}

/// Records an event that was returned.
pub(crate) fn seen_event(number: u32) {
    see(Seen::Event(number));
}

/// Records the status of a DTO.
pub(crate) fn seen_dto(status: u32) {
    see(Seen::Dto(status));
}

/// Records the status of a bind.
pub(crate) fn seen_rmr(status: u32) {
    see(Seen::Rmr(status));
}

/// Records the reason of an asynchronous event.
pub(crate) fn seen_async(number: u32, reason: i32) {
    see(Seen::Async(number, reason as u32));
}

fn see(what: Seen) {
    let Some(words) = WORDS_OF_THIS_PROCESS.get() else { return };
    let word = what.word();
    let start = (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    for at in 0..SEEN {
        let place = &words[SEEN_AT + (start + at) % SEEN];
        match place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) if other == word => return,
            Err(_) => {}
        }
    }
}

/// Records the current step of the case.
pub(crate) fn step(role: &str, text: &str) {
    if let Some(file) = &mut *STEPS.lock().unwrap_or_else(PoisonError::into_inner) {
        // A failed write only shortens the report.
        let _ = writeln!(file, "{role}: {text}");
    }
}

/// The flight record and the steps of a running or ended process.
pub(crate) struct Record {
    words: Vec<u64>,
    steps: String,
}

impl Record {
    /// Reads the record; empty if there is none.
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        let mut words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("chunks are 8 bytes long")))
            .collect();
        words.resize(WORDS, 0);
        Record { words, steps: std::fs::read_to_string(steps_of(path)).unwrap_or_default() }
    }

    /// Returns all observations.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.words[SEEN_AT..].iter().filter_map(|word| Seen::from_word(*word)).collect()
    }

    /// Returns the threads inside a function: id, function, duration.
    pub(crate) fn inside(&self) -> Vec<(u64, &'static str, Duration)> {
        let slots = self.words[..CALLS_AT].chunks_exact(SLOT).filter(|slot| slot[0] != 0 && slot[1] != 0);
        let elapsed = |since| Duration::from_nanos(now().saturating_sub(since));
        slots.map(|slot| (slot[0], name(slot[1] - 1), elapsed(slot[2]))).collect()
    }

    /// Returns the last calls, oldest first: thread, function, code, age.
    pub(crate) fn calls(&self, count: usize) -> Vec<(u64, &'static str, u32, Duration)> {
        let mut calls: Vec<&[u64]> =
            self.words[CALLS_AT..NEXT_AT].chunks_exact(CALL).filter(|call| call[0] != 0).collect();
        calls.sort_by_key(|call| call[0]);
        let ago = |then| Duration::from_nanos(now().saturating_sub(then));
        let last = &calls[calls.len().saturating_sub(count)..];
        last.iter().map(|call| (call[1] >> 32, name(call[1] & 0xffff_ffff), call[2] as u32, ago(call[3]))).collect()
    }

    /// Returns the last steps, oldest first.
    pub(crate) fn steps(&self, count: usize) -> Vec<&str> {
        let lines: Vec<&str> = self.steps.lines().collect();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }
}

fn name(function: u64) -> &'static str {
    api::name(function as usize)
}

/// Returns the length in bytes of the text file of steps beside the flight record at `path`.
pub(crate) fn length_of_steps(path: &Path) -> u64 {
    std::fs::metadata(steps_of(path)).map_or(0, |file| file.len())
}

fn steps_of(path: &Path) -> PathBuf {
    path.with_extension("steps")
}

/// Returns nanoseconds of the system clock, which is the same in the driver and in the process under test.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

thread_local! {
    static THREAD: Thread = Thread::claim();
    static LAST: Cell<Option<(usize, u32)>> = const { Cell::new(None) };
}

/// A thread's slot in the record, released when the thread ends.
struct Thread {
    slot: usize,
}

impl Thread {
    fn claim() -> Self {
        // SAFETY: the call has no pointer argument.
        let id = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        let Some(words) = WORDS_OF_THIS_PROCESS.get() else { return Thread { slot: SLOTS - 1 } };
        let is_mine =
            |slot: &usize| words[slot * SLOT].compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Thread { slot: (0..SLOTS - 1).find(is_mine).unwrap_or(SLOTS - 1) }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(words) = WORDS_OF_THIS_PROCESS.get() {
            words[self.slot * SLOT + 1].store(0, Ordering::Relaxed);
            words[self.slot * SLOT].store(0, Ordering::Relaxed);
        }
    }
}
