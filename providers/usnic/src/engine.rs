//! The engine: one thread per open IA that sees to the set-ups and the clock, and to the data while no consumer polls.
//!
//! It alone calls upwards, and holds no lock when it does. It sleeps without a time-out while there is nothing to watch: an
//! idle process uses no CPU. After work it stays awake in short sleeps for a while, so that a post that comes then need not wake
//! it. It never spins.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use dapl::provider::CmEvent;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::bell::{Job, News};
use crate::device::{self, Device};
use crate::polling::TICK;
use crate::proto::{MILLIS, Nanos, SECONDS};
use crate::setups;

/// After work it looks around so often, for so long.
const WARM: (Nanos, Nanos) = (MILLIS, 8 * MILLIS);
/// Passes, one after the other, before it sees to other jobs.
const PASSES: usize = 64;

/// The engine's thread.
pub(crate) struct Engine {
    device: Arc<Device>,
    /// Polls seen when it last came by.
    polls: u32,
    /// When it comes by next, if somebody polls.
    tick: Option<Nanos>,
    worked_at: Nanos,
    /// Requests may be there.
    doors: bool,
    stop: bool,
}

/// What it sleeps by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Sleep {
    until: Nanos,
    /// Data wake it.
    listens: bool,
}

impl Engine {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Engine { device, polls: 0, tick: None, worked_at: 0, doors: true, stop: false }
    }

    /// Runs until the IA closes.
    pub(crate) fn run(mut self) {
        loop {
            let worked = self.work();
            if self.stop {
                return;
            }
            let now = device::now();
            if worked {
                self.worked_at = now;
            }
            let sleep = self.plan(now);
            self.sleep(sleep);
        }
    }

    /// Does all that is to be done now. True: there was something.
    fn work(&mut self) -> bool {
        self.do_jobs();
        setups::attend(&self.device, std::mem::take(&mut self.doors));
        let now = device::now();
        if self.device.polling.is_polled() {
            self.look_after_pollers(now);
        }
        if self.device.polling.is_polled() {
            return false;
        }
        self.tick = None;
        let mut worked = false;
        for _ in 0..PASSES {
            // A consumer that polls just now has the lock for one pass.
            if !self.device.progress.lock().pass(&self.device, device::now()) {
                break;
            }
            worked = true;
            self.do_jobs();
        }
        worked
    }

    fn look_after_pollers(&mut self, now: Nanos) {
        match self.tick {
            None => {
                // What is counted from now on says whether they go on.
                self.device.polling.take_note(&mut self.polls);
                self.tick = Some(now + TICK);
            }
            Some(tick) if tick <= now => {
                let is_over = self.device.polling.take_over(&mut self.polls);
                self.tick = (!is_over).then_some(now + TICK);
            }
            Some(_) => {}
        }
    }

    /// How to sleep.
    fn plan(&self, now: Nanos) -> Sleep {
        let setups = self.device.setups.lock().deadline();
        if let Some(tick) = self.tick {
            return Sleep { until: setups.map_or(tick, |due| due.min(tick)), listens: false };
        }
        let next = self.device.progress.lock().next(&self.device);
        let warm = (now < self.worked_at + WARM.1).then_some(now + WARM.0);
        let until = [setups, next, warm].into_iter().flatten().min();
        Sleep { until: until.unwrap_or(Nanos::MAX), listens: true }
    }

    fn sleep(&mut self, Sleep { until, listens }: Sleep) {
        let device = &self.device;
        // First it is said, then looked once more: what comes after that sees it and rings the bell.
        device.polling.sleeps(until, listens);
        let setups = device.setups.lock().deadline().is_some_and(|due| due < until);
        // What posts have left is for who polls, or would keep the engine awake on a poller's own processor.
        let fresh = listens && device.has_fresh();
        let has_changed = !device.bell.sleeps() || setups || fresh || device.polling.is_polled() == listens;
        let left = if has_changed { 0 } else { until.saturating_sub(device::now()) };
        let timeout = Timespec { tv_sec: (left / SECONDS) as i64, tv_nsec: (left % SECONDS) as i64 };
        let timeout = (until != Nanos::MAX || has_changed).then_some(timeout);
        let look = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let own = device.own.as_ref().map_or(device.socket.as_fd(), |own| own.as_fd());
        let data = device.socket.as_fd();
        let mut fds = [look(device.bell.as_fd()), look(device.doors.as_fd()), look(data), look(own)];
        // Data are last: they wake nobody while somebody polls for them.
        let count = match (listens, &device.own) {
            (false, _) => 2,
            (true, None) => 3,
            (true, Some(_)) => 4,
        };
        // Interrupted, or out of memory: it looks around, and tries again.
        let _ = rustix::event::poll(&mut fds[..count], timeout.as_ref());
        self.doors = !fds[1].revents().is_empty();
        let has_errors = fds[..count].iter().any(|fd| fd.revents().contains(PollFlags::ERR));
        device.polling.wakes();
        device.bell.wakes();
        if has_errors || device.socket.has_errors() {
            device.heed_errors(&device.socket);
        }
        device.heed_errors_of_own();
    }

    fn do_jobs(&mut self) {
        for job in self.device.bell.answer() {
            match job {
                Job::Notify(queue) => queue.notify(),
                Job::ManyRecvs(ep) => self.device.reports.many_recvs(ep),
                Job::Event(conn, news) => self.device.reports.event(conn, event(news)),
                // All of these are seen to anyway, once it is awake.
                Job::Setups | Job::Look => {}
                Job::Stop => self.stop = true,
            }
        }
    }
}

/// As the layer above has it.
pub(crate) fn event(news: News) -> CmEvent<'static> {
    match news {
        News::PeerRejected => CmEvent::PeerRejected,
        News::Rejected => CmEvent::Rejected,
        News::Unreachable => CmEvent::Unreachable,
        News::AcceptFailed => CmEvent::AcceptFailed,
        News::Disconnected => CmEvent::Disconnected,
        News::Broken => CmEvent::Broken,
    }
}
