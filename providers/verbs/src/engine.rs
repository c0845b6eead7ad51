//! The engine: one thread per IA that waits for file descriptors, deadlines and jobs, and calls their handlers.
//!
//! Only this thread calls the sinks of the IA, with one exception: the engine of another IA on the same device may
//! report the low watermark of a shared receive queue. No lock is held during such a call. Apart from short pauses, the
//! thread blocks only in `wait`.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::runtime::thread::{self, ThreadId};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Maximum number of events fetched by one `epoll_wait`.
const BATCH: usize = 32;
/// epoll key of the wake-up eventfd. Keys of sources start at 1.
const WAKE_UP: u64 = 0;

/// Handler of a descriptor or a deadline.
pub(crate) trait EventHandler: Send + Sync {
    /// Called when the descriptor is readable or writable, or its peer has closed it. The handler finds out which.
    fn ready(&self) {}
    /// Called when a deadline has passed. `tag`: the value passed to [`Engine::schedule`].
    fn expired(&self, tag: u64) {
        let _ = tag;
    }
}

/// Events awaited on a descriptor, level-triggered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AwaitedEvents {
    Read,
    ReadWrite,
}

impl AwaitedEvents {
    fn flags(self) -> epoll::EventFlags {
        match self {
            AwaitedEvents::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            AwaitedEvents::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The state of an engine, shared with all objects of the IA.
pub(crate) struct Engine {
    epoll: OwnedFd,
    wake_up: OwnedFd,
    /// Whether `wake_up` was written and not yet read.
    is_signalled: AtomicBool,
    stopping: AtomicBool,
    jobs: Mutex<VecDeque<Job>>,
    sources: Mutex<HashMap<u64, Weak<dyn EventHandler>>>,
    keys: AtomicU64,
    deadlines: Mutex<BinaryHeap<Reverse<ScheduledDeadline>>>,
    thread: Mutex<Option<ThreadId>>,
}

/// A scheduled call of `EventHandler::expired`. Ordered by time, then by number.
struct ScheduledDeadline {
    at: Instant,
    number: u64,
    source: Weak<dyn EventHandler>,
    tag: u64,
}

impl PartialEq for ScheduledDeadline {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for ScheduledDeadline {}

impl PartialOrd for ScheduledDeadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledDeadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A registered descriptor. [`WatchedDescriptor::end`] must be called, or this object be dropped, before the descriptor
/// is closed.
pub(crate) struct WatchedDescriptor {
    engine: Arc<Engine>,
    key: u64,
}

impl WatchedDescriptor {
    /// Changes the awaited events.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, interest: AwaitedEvents) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.key);
        Ok(epoll::modify(&self.engine.epoll, fd, data, interest.flags())?)
    }

    /// Removes the descriptor, which is still open, from the epoll set.
    pub(crate) fn end(self, fd: BorrowedFd<'_>) {
        // Ignored: it fails only if the descriptor is not in the epoll set.
        let _ = epoll::delete(&self.engine.epoll, fd);
    }
}

impl Drop for WatchedDescriptor {
    fn drop(&mut self) {
        // The kernel removes the descriptor from the epoll set when it is closed.
        self.engine.sources.lock().remove(&self.key);
    }
}

impl Engine {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake_up, epoll::EventData::new_u64(WAKE_UP), epoll::EventFlags::IN)?;
        Ok(Arc::new(Engine {
            epoll,
            wake_up,
            is_signalled: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            jobs: Mutex::default(),
            sources: Mutex::default(),
            keys: AtomicU64::new(WAKE_UP + 1),
            deadlines: Mutex::default(),
            thread: Mutex::new(None),
        }))
    }

    /// Registers a descriptor. The engine calls `source.ready()` when the descriptor has events, until the
    /// `WatchedDescriptor` is dropped.
    pub(crate) fn watch(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        interest: AwaitedEvents,
        source: Weak<dyn EventHandler>,
    ) -> io::Result<WatchedDescriptor> {
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        self.sources.lock().insert(key, source);
        let watch = WatchedDescriptor { engine: self.clone(), key };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), interest.flags())?;
        Ok(watch)
    }

    /// Schedules a call of `source.expired(tag)` after the delay. The call cannot be cancelled. `tag` allows the
    /// handler to recognise an outdated call.
    pub(crate) fn schedule(&self, delay: Duration, source: Weak<dyn EventHandler>, tag: u64) {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let deadline = ScheduledDeadline { at: Instant::now() + delay, number, source, tag };
        let is_first = {
            let mut deadlines = self.deadlines.lock();
            deadlines.push(Reverse(deadline));
            deadlines.peek().is_some_and(|Reverse(first)| first.number == number)
        };
        if is_first && !self.is_engine_thread() {
            self.wake();
        }
    }

    /// Queues a job, which the engine thread runs. Jobs run in the order of the calls.
    pub(crate) fn run_on_engine(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.lock().push_back(Box::new(job));
        if !self.is_engine_thread() {
            self.wake();
        }
    }

    pub(crate) fn is_engine_thread(&self) -> bool {
        *self.thread.lock() == Some(thread::current())
    }

    /// Ends the engine thread. Queued jobs are dropped.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            // Ignored: it fails only if the counter is at its maximum, and then the eventfd is readable.
            let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
        }
    }

    /// The body of the engine thread.
    pub(crate) fn run(&self) {
        *self.thread.lock() = Some(thread::current());
        while !self.stopping.load(Ordering::Acquire) {
            self.run_jobs_and_deadlines();
            self.wait();
        }
        let dropped = std::mem::take(&mut *self.jobs.lock());
        drop(dropped);
        self.deadlines.lock().clear();
    }

    /// Runs the queued jobs, then the handlers of expired deadlines. Jobs that are queued meanwhile run in the next
    /// round, after events of descriptors were handled.
    fn run_jobs_and_deadlines(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        jobs.into_iter().for_each(|job| job());
        let now = Instant::now();
        while let Some(deadline) = self.due(now) {
            if let Some(source) = deadline.source.upgrade() {
                source.expired(deadline.tag);
            }
        }
    }

    fn due(&self, now: Instant) -> Option<ScheduledDeadline> {
        let mut deadlines = self.deadlines.lock();
        let is_due = deadlines.peek().is_some_and(|Reverse(first)| first.at <= now);
        if is_due { deadlines.pop().map(|Reverse(deadline)| deadline) } else { None }
    }

    fn wait(&self) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        let time = self.time_to_wait().map(|time| Timespec {
            tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let ready = match epoll::wait(&self.epoll, &mut events, time.as_ref()) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return,
            Err(error) => {
                log::error!(
                    "the engine thread cannot wait for events (epoll_wait): {error}; it tries again in 10 ms, and until then \
                     connections do not progress"
                );
                // Without a pause, a permanent error would keep the CPU busy.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
        };
        for event in ready {
            match event.data.u64() {
                WAKE_UP => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_up, &mut count);
                    // Cleared after the read and before the jobs are run: a thread that queues a job after this store
                    // writes to the eventfd again.
                    self.is_signalled.store(false, Ordering::Release);
                }
                key => {
                    let source = self.sources.lock().get(&key).and_then(Weak::upgrade);
                    if let Some(source) = source {
                        source.ready();
                    }
                }
            }
        }
    }

    /// Returns the time until the next deadline; `None` if there is no deadline. 0 if jobs are queued or the engine is
    /// to stop.
    fn time_to_wait(&self) -> Option<Duration> {
        if self.stopping.load(Ordering::Acquire) || !self.jobs.lock().is_empty() {
            return Some(Duration::ZERO);
        }
        let deadlines = self.deadlines.lock();
        deadlines.peek().map(|Reverse(first)| first.at.saturating_duration_since(Instant::now()))
    }
}

impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
