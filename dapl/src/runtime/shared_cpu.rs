//! When a thread that polls without success pauses or yields its CPU: a thread that is limited to one CPU may have to
//! let its peer run.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::OnceLock;

use crate::runtime::empty_check::LOCKED_POLL_INTERVAL;
use crate::runtime::sync::yield_now;
use crate::runtime::wait::now;

/// Minimum duration of a yield, in nanoseconds, during which another thread has run. A `sched_yield` that finds no other
/// runnable thread takes 200 to 500 ns.
const LONG_YIELD: u64 = 1_000;

/// Yields the CPU. Returns whether another thread has used it.
pub(crate) fn yield_cpu() -> bool {
    let begin = now();
    yield_now();
    now() - begin >= LONG_YIELD
}

/// Pauses between two polls: executes a pause instruction, or yields if the process had a single CPU at the first call,
/// because the peer may need that CPU. While no other thread uses it, most of the yields are omitted.
pub(crate) fn relax() {
    /// Maximum number of pauses between two yields: a few microseconds of polling.
    const MAX_PAUSES: u32 = 63;
    static MAY_SPIN: OnceLock<bool> = OnceLock::new();
    thread_local! {
        /// Number of pauses between two yields, and the number of pauses until the next one.
        static PAUSES: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    if !*MAY_SPIN.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1)) {
        let (interval, left) = PAUSES.get();
        if left == 0 {
            let interval = if yield_cpu() { 0 } else { MAX_PAUSES.min(2 * interval + 1) };
            return PAUSES.set((interval, interval));
        }
        PAUSES.set((interval, left - 1));
    }
    std::hint::spin_loop();
}

/// Makes a thread that is limited to one CPU call `sched_yield` after a few microseconds of unsuccessful polling,
/// because the peer may need that CPU. While no other thread uses the CPU, it yields less often.
#[derive(Debug, Default)]
pub(crate) struct SharedCpuBackoff {
    /// Number of unsuccessful polls since the last successful one.
    unsuccessful: u32,
    /// Number of polls until the next check of the CPU set.
    until_check: u32,
    /// Value of the caller's counter of polls at the last call.
    polls: u32,
    /// Whether the thread was limited to one CPU at the last check.
    is_on_one_cpu: bool,
    /// Whether other threads are assumed to use that CPU.
    shares_cpu: bool,
    /// Number of yields since the last one that has let another thread run.
    short_yields: u32,
    /// Whether the thread has yielded since the last check.
    has_yielded: bool,
}

impl SharedCpuBackoff {
    /// Number of unsuccessful polls before a yield. They take a few microseconds, enough for a peer on another CPU to
    /// respond.
    const YIELD_AFTER: u32 = 64;
    /// Number of unsuccessful polls between yields. A program may poll several EVDs, of which one never has an event, or
    /// memory into which the peer writes. If it yielded in each poll, its own work would be slower.
    const YIELD_INTERVAL: u32 = 16;
    /// Number of unsuccessful polls between yields while no other thread uses the CPU.
    const ALONE_INTERVAL: u32 = LOCKED_POLL_INTERVAL;
    /// Number of successive short yields after which the thread is assumed to have the CPU alone. The scheduler does not
    /// run the other thread in each yield.
    const SHORT_YIELDS: u32 = 8;
    /// Number of polls between checks of the CPU set. A check is a system call, and the set may change at any time.
    const CHECK_INTERVAL: u32 = 1 << 12;

    /// Counts one unsuccessful poll, or all polls since the last call if the caller passes its own counter of polls.
    /// The first unsuccessful poll after a successful one counts as one, because the polls before it were successful,
    /// or belong to a wait that was. Returns true if the caller should yield.
    #[inline]
    pub(crate) fn should_yield(&mut self, polls: Option<u32>) -> bool {
        let polls = polls.unwrap_or(self.polls.wrapping_add(1));
        let new = polls.wrapping_sub(self.polls).clamp(1, Self::CHECK_INTERVAL);
        self.polls = polls;
        self.unsuccessful = if self.unsuccessful == 0 { 1 } else { self.unsuccessful.saturating_add(new) };
        if self.until_check <= new {
            self.until_check = Self::CHECK_INTERVAL;
            self.check_cpu_set();
        } else {
            self.until_check -= new;
        }
        let (first, interval) = if self.shares_cpu {
            (Self::YIELD_AFTER, Self::YIELD_INTERVAL)
        } else {
            (Self::ALONE_INTERVAL, Self::ALONE_INTERVAL)
        };
        let must_yield = self.is_on_one_cpu && self.unsuccessful >= first;
        if must_yield {
            self.unsuccessful = first - interval;
        }
        must_yield
    }

    /// At first a thread that is limited to one CPU is assumed to share it. It has the CPU alone if it did not have to
    /// yield since the last check.
    #[cold]
    fn check_cpu_set(&mut self) {
        let was_on_one_cpu = std::mem::replace(&mut self.is_on_one_cpu, is_bound_to_one_cpu());
        if !was_on_one_cpu {
            (self.shares_cpu, self.short_yields) = (self.is_on_one_cpu, 0);
        }
        self.shares_cpu &= self.is_on_one_cpu && (self.has_yielded || !was_on_one_cpu);
        self.has_yielded = false;
    }

    /// Records a yield and the result of [`yield_cpu`]. Returns true if the thread is now assumed to share its CPU.
    pub(crate) fn record_yield(&mut self, has_another_run: bool) -> bool {
        self.short_yields = if has_another_run { 0 } else { self.short_yields.saturating_add(1) };
        self.has_yielded = true;
        self.shares_cpu = self.is_on_one_cpu && self.short_yields < Self::SHORT_YIELDS;
        self.shares_cpu
    }

    /// Whether the thread is limited to a CPU that other threads are assumed to use.
    #[inline(always)]
    pub(crate) fn shares_cpu(&self) -> bool {
        self.shares_cpu
    }

    /// Records that a poll was successful.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.unsuccessful = 0;
    }
}

/// Whether the calling thread may run on one CPU only.
#[cold]
fn is_bound_to_one_cpu() -> bool {
    // Loom models have no CPUs.
    cfg!(not(loom)) && rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1)
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    fn first_cpu(all: &CpuSet) -> CpuSet {
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|n| all.is_set(*n)).unwrap());
        one
    }

    /// Limits the calling thread to the first CPU that it may use. Only such a thread yields.
    pub(crate) fn use_one_cpu() {
        sched_setaffinity(None, &first_cpu(&sched_getaffinity(None).unwrap())).unwrap();
    }

    #[test]
    fn unsuccessful_polling_yields_the_only_cpu() {
        let polls = |cpus: &CpuSet| {
            sched_setaffinity(None, cpus).unwrap();
            let mut backoff = SharedCpuBackoff::default();
            let unsuccessful =
                (0..4 * SharedCpuBackoff::YIELD_AFTER).filter(|_| backoff.should_yield(None)).count() as u32;
            backoff.reset();
            let yields_again = (1..SharedCpuBackoff::YIELD_AFTER).any(|_| backoff.should_yield(None));
            backoff.reset();
            (unsuccessful, yields_again || backoff.should_yield(Some(1000)))
        };
        // The CPU affinity is set in a thread of this test, so that other tests are not affected.
        std::thread::spawn(move || {
            let all = sched_getaffinity(None).unwrap();
            assert_eq!(
                polls(&first_cpu(&all)),
                (1 + 3 * SharedCpuBackoff::YIELD_AFTER / SharedCpuBackoff::YIELD_INTERVAL, false),
                "does not yield in each poll, nor directly after a successful one"
            );
            if all.count() > 1 {
                assert_eq!(polls(&all), (0, false));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn thread_that_has_a_cpu_alone_yields_seldom() {
        let backoff = || {
            use_one_cpu();
            let mut backoff = SharedCpuBackoff::default();
            let mut yields = |polls: u32| (0..polls).filter(|_| backoff.should_yield(None)).count();
            let (unknown, alone) = (yields(4096), yields(4095));
            assert!(backoff.record_yield(true), "another thread has used the CPU");
            let mut yields = |polls: u32| (0..polls).filter(|_| backoff.should_yield(None)).count();
            let shared = yields(512);
            let short_yields = (1..20).find(|_| !backoff.record_yield(false));
            assert_eq!(short_yields, Some(8), "no other thread has run for a while");
            (unknown, alone, shared)
        };
        let (unknown, alone, shared) = std::thread::scope(|scope| scope.spawn(backoff).join().unwrap());
        assert!(unknown > 200 && shared > 25, "every 16 polls: {unknown}, {shared}");
        assert!((2..6).contains(&alone), "every 1,024 polls: {alone}");
    }

    #[test]
    fn yield_reports_that_another_thread_has_used_the_cpu() {
        let is_done = AtomicBool::new(false);
        let yields = || {
            use_one_cpu();
            let end = Instant::now() + Duration::from_secs(20);
            let mut has_run = false;
            while !has_run && Instant::now() < end {
                has_run = yield_cpu();
            }
            is_done.store(true, Ordering::Relaxed);
            assert!(has_run, "a yield lets the other thread run");
        };
        let runs = || {
            use_one_cpu();
            while !is_done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(runs);
            scope.spawn(yields).join().unwrap();
        });
    }
}
