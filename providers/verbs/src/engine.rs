//! The engine: one thread per IA that waits for file descriptors, deadlines and jobs, and calls their handlers.
//!
//! Only this thread calls the sinks of the IA, with one exception: the engine of another IA on the same device may
//! report the low watermark of a shared receive queue. No lock is held during such a call. Apart from short pauses, the
//! thread blocks only in `wait`.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl_software::engine::queue::EngineQueue;
use parking_lot::Mutex;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Maximum number of events fetched by one `epoll_wait`.
const BATCH: usize = 32;
/// epoll key of the job queue. Keys of sources start at 1.
const JOBS: u64 = 0;

/// Handler of a descriptor or a deadline.
pub(crate) trait EventHandler: Send + Sync {
    /// Called when the descriptor is readable or writable, or its peer has closed it. The handler finds out which.
    fn ready(&self) {}
    /// Called when a deadline has passed. `tag`: the value passed to [`Engine::schedule`].
    fn expired(&self, tag: u64) {
        let _ = tag;
    }
}

/// Events of a descriptor, level-triggered: it is readable, or its peer has closed it.
pub(crate) const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// As [`READ`]; also: it is writable.
pub(crate) const READ_WRITE: EventFlags = READ.union(EventFlags::OUT);

type Job = Box<dyn FnOnce() + Send>;
/// A scheduled call of `EventHandler::expired`: the handler, and the tag.
type ScheduledCall = (Weak<dyn EventHandler>, u64);

/// The state of an engine, shared with all objects of the IA.
pub(crate) struct Engine {
    epoll: OwnedFd,
    stopping: AtomicBool,
    jobs: EngineQueue<Job>,
    sources: Mutex<HashMap<u64, Weak<dyn EventHandler>>>,
    keys: AtomicU64,
    /// Scheduled calls by time, and then by a number that differs for each.
    deadlines: Mutex<BTreeMap<(Instant, u64), ScheduledCall>>,
}

/// A registered descriptor. [`WatchedDescriptor::end`] must be called, or this object be dropped, before the descriptor
/// is closed.
pub(crate) struct WatchedDescriptor {
    engine: Arc<Engine>,
    key: u64,
}

impl WatchedDescriptor {
    /// Changes the awaited events.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, interest: EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.key);
        Ok(epoll::modify(&self.engine.epoll, fd, data, interest)?)
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
        let jobs = EngineQueue::with_eventfd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &jobs, epoll::EventData::new_u64(JOBS), EventFlags::IN)?;
        Ok(Arc::new(Engine {
            epoll,
            stopping: AtomicBool::new(false),
            jobs,
            sources: Mutex::default(),
            keys: AtomicU64::new(JOBS + 1),
            deadlines: Mutex::default(),
        }))
    }

    /// Registers a descriptor. The engine calls `source.ready()` when the descriptor has events, until the
    /// `WatchedDescriptor` is dropped.
    pub(crate) fn watch(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        interest: EventFlags,
        source: &Weak<impl EventHandler + 'static>,
    ) -> io::Result<WatchedDescriptor> {
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        self.sources.lock().insert(key, source.clone());
        let watch = WatchedDescriptor { engine: self.clone(), key };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), interest)?;
        Ok(watch)
    }

    /// Schedules a call of `source.expired(tag)` after the delay. The call cannot be cancelled. `tag` allows the
    /// handler to recognise an outdated call.
    pub(crate) fn schedule(&self, delay: Duration, source: &Weak<impl EventHandler + 'static>, tag: u64) {
        let key = (Instant::now() + delay, self.keys.fetch_add(1, Ordering::Relaxed));
        let mut deadlines = self.deadlines.lock();
        deadlines.insert(key, (source.clone(), tag));
        let is_first = deadlines.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(deadlines);
        if is_first {
            self.jobs.wake();
        }
    }

    /// Queues a job, which the engine thread runs. Jobs run in the order of the calls.
    pub(crate) fn run_on_engine(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.push(Box::new(job));
    }

    /// Queues a call of `job` with the object, unless it was dropped by then.
    pub(crate) fn call_on_engine<T>(&self, object: &Weak<T>, job: impl FnOnce(&T) + Send + 'static)
    where
        T: Send + Sync + 'static,
    {
        let object = object.clone();
        self.run_on_engine(move || {
            if let Some(object) = object.upgrade() {
                job(&object);
            }
        });
    }

    /// Ends the engine thread. Queued jobs are dropped.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.jobs.wake();
    }

    /// The body of the engine thread.
    pub(crate) fn run(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            self.run_jobs_and_deadlines();
            self.wait();
        }
        self.jobs.close();
        self.deadlines.lock().clear();
    }

    /// Runs the queued jobs, then the handlers of expired deadlines. Jobs that are queued meanwhile run in the next
    /// round, after events of descriptors were handled.
    fn run_jobs_and_deadlines(&self) {
        self.jobs.drain_jobs().into_iter().for_each(|job| job());
        let now = Instant::now();
        while let Some((source, tag)) = self.due(now) {
            if let Some(source) = source.upgrade() {
                source.expired(tag);
            }
        }
    }

    fn due(&self, now: Instant) -> Option<ScheduledCall> {
        let mut deadlines = self.deadlines.lock();
        let first = deadlines.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn wait(&self) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        let time = self.time_to_wait().map(|time| Timespec {
            tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let waited = epoll::wait(&self.epoll, &mut events, time.as_ref());
        self.jobs.set_awake();
        let ready = match waited {
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
            // There is no source for `JOBS`. The next round runs the jobs.
            let source = self.sources.lock().get(&event.data.u64()).and_then(Weak::upgrade);
            if let Some(source) = source {
                source.ready();
            }
        }
    }

    /// Returns the time until the next deadline; `None` if there is no deadline. 0 if jobs are queued or the engine is
    /// to stop.
    fn time_to_wait(&self) -> Option<Duration> {
        if !self.jobs.prepare_sleep() || self.stopping.load(Ordering::Acquire) {
            return Some(Duration::ZERO);
        }
        let deadlines = self.deadlines.lock();
        deadlines.first_key_value().map(|((first, _), _)| first.saturating_duration_since(Instant::now()))
    }
}
