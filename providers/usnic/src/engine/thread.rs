//! The engine: one thread per open IA. It runs connection set-up and timers, and transfers data while no consumer
//! polls. The engine never spins.
//!
//! Only the engine thread calls dapl, and it holds no lock during such a call. While no deadline is set, it sleeps
//! without a timeout, so a process without connections uses no CPU. An idle connection has the deadlines of its
//! keepalive, and every ten minutes that of the search for the path MTU, unless the path carries the largest size. For
//! some milliseconds after work, each sleep lasts at most 1 ms, so that a post rarely needs a system call to wake the
//! engine.
//!
//! While a consumer polls, the engine is in standby: it sleeps without watching the data socket, each time twice as
//! long, up to a limit. If data waited until the end of a standby sleep, because the consumer stopped polling without
//! calling `Polling::stop`, the engine watches the socket for [`WATCH_AFTER_LATE_DATA`].
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cm::Cm;
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::engine::polling::{self, PollState};
use crate::engine::progress::EngineProgress;
use crate::net::errors::{self, DeliveryErrorKind};
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

/// Maximum length of a sleep after work, and the time after work during which this maximum applies.
const ACTIVE: (Nanos, Nanos) = (MILLIS, 8 * MILLIS);
/// Length of the first standby sleep. Each further standby sleep is twice as long, up to [`polling::MAX_STANDBY`].
const FIRST_STANDBY: Nanos = 100 * MICROS;
/// Time without standby sleeps after a standby sleep that delayed data. It is a thousand times [`FIRST_STANDBY`], which
/// limits the delays to 0.1 % of the time if a consumer often computes between its polls.
const WATCH_AFTER_LATE_DATA: Nanos = 100 * MILLIS;
/// The engine skips shorter sleeps, because the kernel's timers may be 50 us late (default timer slack).
const MIN_SLEEP: Nanos = 5 * MICROS;
/// Maximum number of consecutive passes. The engine then processes connection set-up before further passes.
const MAX_PASSES: usize = 64;

pub(crate) struct Engine {
    device: Arc<Device>,
    progress: Arc<EngineProgress>,
    cm: Arc<Cm>,
    /// The current or last standby sleep, or `None` if the engine watches the data socket.
    standby: Option<StandbySleep>,
    /// Time until which the engine watches the data socket even if a consumer polls.
    watches_until: Nanos,
    worked_at: Nanos,
    /// Whether a socket that receives connection requests may be readable.
    has_requests: bool,
    stop: bool,
}

/// A sleep of the engine that arriving datagrams do not end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct StandbySleep {
    until: Nanos,
    length: Nanos,
}

impl StandbySleep {
    fn first(now: Nanos) -> Self {
        StandbySleep { until: now + FIRST_STANDBY, length: FIRST_STANDBY }
    }

    /// Returns the next standby sleep, or this one if it has not ended.
    fn next(self, now: Nanos) -> Self {
        let length = (self.length * 2).min(polling::MAX_STANDBY);
        if now < self.until { self } else { StandbySleep { until: now + length, length } }
    }
}

impl Engine {
    pub(crate) fn new(device: Arc<Device>, progress: Arc<EngineProgress>, cm: Arc<Cm>) -> Self {
        Engine { device, progress, cm, standby: None, watches_until: 0, worked_at: 0, has_requests: true, stop: false }
    }

    /// Runs until the IA is closed.
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
            self.sleep(self.next_wake_up(now));
        }
    }

    /// Executes jobs and connection set-up, and runs passes unless the engine is in standby. Returns true if a pass
    /// found work.
    fn work(&mut self) -> bool {
        self.do_jobs();
        self.cm.process(std::mem::take(&mut self.has_requests));
        let now = device::now();
        let state = self.device.polling.state(now);
        self.standby = match (self.standby, state) {
            (Some(standby), PollState::Polled) => Some(standby.next(now)),
            (None, PollState::Polled) if now >= self.watches_until => Some(StandbySleep::first(now)),
            (standby, PollState::Abandoned) => {
                self.device.polling.take_over(now);
                if standby.is_some() {
                    self.check_late_data(now);
                }
                None
            }
            _ => None,
        };
        self.standby.is_none() && self.make_progress()
    }

    /// Runs the first pass after a standby sleep during which the consumer stopped polling without calling `stop`. If
    /// packets had arrived, counts the delay and prevents standby sleeps for [`WATCH_AFTER_LATE_DATA`].
    fn check_late_data(&mut self, now: Nanos) {
        if self.progress.run_pass_for_packets(now) {
            self.device.count_late();
            self.watches_until = now + WATCH_AFTER_LATE_DATA;
        }
    }

    /// Runs passes until one finds no work, at most [`MAX_PASSES`]. Returns true if there was work.
    fn make_progress(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..MAX_PASSES {
            // A polling consumer can take the lock between two passes.
            if !self.progress.run_pass(device::now()) {
                break;
            }
            worked = true;
            self.do_jobs();
        }
        worked
    }

    /// Returns the time until which the engine sleeps.
    fn next_wake_up(&self, now: Nanos) -> Nanos {
        let cm = self.cm.deadline();
        if let Some(StandbySleep { until, .. }) = self.standby {
            return cm.map_or(until, |due| due.min(until));
        }
        let next = self.progress.next();
        let active = (now < self.worked_at + ACTIVE.1).then_some(now + ACTIVE.0);
        [cm, next, active].into_iter().flatten().min().unwrap_or(Nanos::MAX)
    }

    /// Sleeps until `until`, or until there is work. In standby, an arriving datagram does not end the sleep.
    fn sleep(&mut self, until: Nanos) {
        let (device, watches_socket) = (&self.device, self.standby.is_none());
        // The sleep is published before the last check for work. So a thread that adds work after this check sees that
        // the engine sleeps, and queues a job.
        device.polling.set_sleeping(until, watches_socket);
        let cm = self.cm.deadline().is_some_and(|due| due < until);
        // In standby the polling consumer processes updates. So updates do not keep the engine awake, which may share
        // the consumer's CPU.
        let updates = watches_socket && device.has_updates();
        let has_stopped = !watches_socket && !device.polling.is_polled(device::now());
        let has_changed = !device.jobs.prepare_sleep() || cm || updates || has_stopped;
        let left = until.saturating_sub(device::now());
        let left = if has_changed || left < MIN_SLEEP { 0 } else { left };
        let timeout = Timespec { tv_sec: (left / SECONDS) as i64, tv_nsec: (left % SECONDS) as i64 };
        let timeout = (until != Nanos::MAX || has_changed).then_some(timeout);
        let poll_in = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds =
            [poll_in(device.jobs.as_fd()), poll_in(self.cm.request_sockets.as_fd()), poll_in(device.socket.as_fd())];
        // The data socket is the last descriptor, so a standby sleep leaves it out.
        let count = if watches_socket { 3 } else { 2 };
        // If the call fails (EINTR, ENOMEM), the engine checks for work and polls again.
        let _ = rustix::event::poll(&mut fds[..count], timeout.as_ref());
        self.has_requests = !fds[1].revents().is_empty();
        let has_errors = fds[..count].iter().any(|fd| fd.revents().contains(PollFlags::ERR));
        device.polling.set_awake();
        device.jobs.set_awake();
        if has_errors || device.socket.has_errors() {
            self.take_errors();
        }
    }

    /// Reads the error queue of the data socket. Notifies the established connections that send to the reported
    /// address. If the port there is closed, also notifies the connection manager.
    #[cold]
    fn take_errors(&self) {
        let (device, now) = (&self.device, device::now());
        let mut closed = Vec::new();
        errors::read(&device.socket, |error| {
            for entry in device.table.entries().into_iter().filter(|entry| entry.is_established()) {
                if entry.handler.sends_to(error.to) {
                    let pending_work = entry.handler.on_delivery_error(now, entry.number, &error);
                    device.schedule(entry.number, &entry.next_service, &pending_work);
                }
            }
            if error.kind == DeliveryErrorKind::PortClosed {
                closed.push(error);
            }
        });
        closed.iter().for_each(|error| self.cm.port_closed(error));
    }

    fn do_jobs(&mut self) {
        for job in self.device.jobs.drain_jobs() {
            match job {
                Job::Notify(sink) => _ = sink.upgrade().inspect(|sink| sink.notify()),
                Job::LowSrq(sink) => _ = sink.upgrade().inspect(|sink| sink.low()),
                Job::ManyRecvs(ep) => self.cm.sink.many_recvs(ep),
                Job::Event(conn, event) => self.cm.sink.event(conn, event, &[]),
                Job::Refused(access) => access.log(),
                Job::Overdue(send) => send.log(),
                // This job only ends a sleep. The engine then runs the connection manager and passes.
                Job::Wake => {}
                Job::Stop => self.stop = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standby_sleeps_double_up_to_the_maximum() {
        let first = StandbySleep::first(7);
        assert_eq!(
            (first.until, first.next(first.until - 1)),
            (7 + FIRST_STANDBY, first),
            "the first sleep has not ended"
        );
        let second = first.next(first.until);
        assert_eq!(second, StandbySleep { until: first.until + 2 * FIRST_STANDBY, length: 2 * FIRST_STANDBY });
        let longest = (0..20).fold(second, |standby, _| standby.next(standby.until));
        assert_eq!(longest.length, polling::MAX_STANDBY);
    }
}
