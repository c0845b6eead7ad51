//! The engine: one thread per IA that waits for descriptors, deadlines and jobs, and calls their handlers.
//!
//! All reports to the object layer are made here, without locks. Only the wait for all sources blocks.
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

/// Maximum number of events fetched from the kernel at a time.
const BATCH: usize = 32;
/// Key of the wake-up eventfd; sources count from 1.
const WAKE_UP: u64 = 0;

/// Handler of a descriptor or a deadline.
pub(crate) trait Source: Send + Sync {
    /// Called when the descriptor is readable or writable, or was closed by the peer; the handler checks which.
    fn ready(&self) {}
    /// Called when a requested deadline has passed.
    fn expired(&self, what: u64) {
        let _ = what;
    }
}

/// Events awaited on a descriptor, level-triggered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Interface of the engine for other modules.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    wake_up: OwnedFd,
    /// Whether the eventfd was written and has not been read.
    is_signalled: AtomicBool,
    stopping: AtomicBool,
    jobs: Mutex<VecDeque<Job>>,
    sources: Mutex<HashMap<u64, Weak<dyn Source>>>,
    keys: AtomicU64,
    alarms: Mutex<BinaryHeap<Reverse<Alarm>>>,
    thread: Mutex<Option<ThreadId>>,
}

struct Alarm {
    at: Instant,
    number: u64,
    source: Weak<dyn Source>,
    what: u64,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A watched descriptor. Drop this before the descriptor is closed.
pub(crate) struct Watch {
    reactor: Arc<Reactor>,
    key: u64,
}

impl Watch {
    /// Changes the awaited events.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.key);
        Ok(epoll::modify(&self.reactor.epoll, fd, data, interest.flags())?)
    }

    /// Stops watching, while the descriptor is still open.
    pub(crate) fn end(self, fd: BorrowedFd<'_>) {
        // Fails for a descriptor that is no longer watched, which is harmless.
        let _ = epoll::delete(&self.reactor.epoll, fd);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A closed descriptor leaves the epoll set automatically.
        self.reactor.sources.lock().remove(&self.key);
    }
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake_up, epoll::EventData::new_u64(WAKE_UP), epoll::EventFlags::IN)?;
        Ok(Arc::new(Reactor {
            epoll,
            wake_up,
            is_signalled: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            jobs: Mutex::default(),
            sources: Mutex::default(),
            keys: AtomicU64::new(WAKE_UP + 1),
            alarms: Mutex::default(),
            thread: Mutex::new(None),
        }))
    }

    /// Calls `source` when its descriptor has events.
    pub(crate) fn watch(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        interest: Interest,
        source: Weak<dyn Source>,
    ) -> io::Result<Watch> {
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        self.sources.lock().insert(key, source);
        let watch = Watch { reactor: self.clone(), key };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), interest.flags())?;
        Ok(watch)
    }

    /// Calls `source` with `what` after the delay. The call cannot be cancelled; `what` lets the handler ignore an
    /// outdated call.
    pub(crate) fn after(&self, delay: Duration, source: Weak<dyn Source>, what: u64) {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let alarm = Alarm { at: Instant::now() + delay, number, source, what };
        let is_first = {
            let mut alarms = self.alarms.lock();
            alarms.push(Reverse(alarm));
            alarms.peek().is_some_and(|Reverse(first)| first.number == number)
        };
        if is_first && !self.is_here() {
            self.ring();
        }
    }

    /// Runs a job on the engine's thread, in the order of these calls.
    pub(crate) fn soon(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.lock().push_back(Box::new(job));
        if !self.is_here() {
            self.ring();
        }
    }

    /// Whether this is the engine's thread.
    pub(crate) fn is_here(&self) -> bool {
        *self.thread.lock() == Some(thread::current())
    }

    /// Ends the loop. Jobs that wait are dropped.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is at its maximum; then the engine is woken anyway.
            let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
        }
    }

    /// The thread's body.
    pub(crate) fn run(&self) {
        *self.thread.lock() = Some(thread::current());
        while !self.stopping.load(Ordering::Acquire) {
            self.work();
            self.wait();
        }
        let dropped = std::mem::take(&mut *self.jobs.lock());
        drop(dropped);
        self.alarms.lock().clear();
    }

    /// Runs the queued jobs, but not jobs that they add, so that descriptors are served in between.
    fn work(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        jobs.into_iter().for_each(|job| job());
        let now = Instant::now();
        while let Some(alarm) = self.due(now) {
            if let Some(source) = alarm.source.upgrade() {
                source.expired(alarm.what);
            }
        }
    }

    fn due(&self, now: Instant) -> Option<Alarm> {
        let mut alarms = self.alarms.lock();
        let is_due = alarms.peek().is_some_and(|Reverse(first)| first.at <= now);
        if is_due { alarms.pop().map(|Reverse(alarm)| alarm) } else { None }
    }

    fn wait(&self) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        let time = self.patience().map(|time| Timespec {
            tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let ready = match epoll::wait(&self.epoll, &mut events, time.as_ref()) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return,
            Err(error) => {
                log::error!("the engine cannot wait: {error}");
                // An unexpected error must not make the thread loop without pause.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
        };
        for event in ready {
            match event.data.u64() {
                WAKE_UP => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_up, &mut count);
                    // Cleared after the read and before the jobs are taken: a thread that adds a job from now on writes
                    // to the eventfd again.
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

    /// Time until the next deadline; `None` without one.
    fn patience(&self) -> Option<Duration> {
        if self.stopping.load(Ordering::Acquire) || !self.jobs.lock().is_empty() {
            return Some(Duration::ZERO);
        }
        let alarms = self.alarms.lock();
        alarms.peek().map(|Reverse(first)| first.at.saturating_duration_since(Instant::now()))
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
