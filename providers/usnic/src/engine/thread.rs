//! The engine: one thread per open IA that sees to the set-ups and the clock, and to the data while no consumer polls.
//!
//! It alone calls upwards, and holds no lock when it does. It sleeps without a time-out while there is nothing to watch: an
//! idle process uses no CPU. After work it stays awake in short sleeps for a while, so that a post that comes then need not wake
//! it. While a consumer polls it naps, without watching the data sockets; naps get longer while the polling goes on. If data
//! have waited for the end of a nap, because the consumer has stopped polling without a word, it watches the sockets for a
//! while whoever polls. It never spins.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cm::Cm;
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::engine::polling::{self, State};
use crate::engine::progress::Progress;
use crate::net::errors::{self, Hint};
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

/// After work it looks around so often, for so long.
const WARM: (Nanos, Nanos) = (MILLIS, 8 * MILLIS);
/// The first nap while a consumer polls; each further one is twice as long, to [`polling::NAP`].
const FIRST_NAP: Nanos = 100 * MICROS;
/// After a nap that let data wait it does not nap for so long: a consumer that computes between its polls loses at most 0.1 % to
/// first naps.
const NO_NAPS: Nanos = 100 * MILLIS;
/// The shortest sleep: the kernel's timers may be 50 us late.
const SHORTEST: Nanos = 5 * MICROS;
/// Passes, one after the other, before it sees to other jobs.
const PASSES: usize = 64;

/// The engine's thread.
pub(crate) struct Engine {
    device: Arc<Device>,
    progress: Arc<Progress>,
    cm: Arc<Cm>,
    /// The nap under way, if somebody polls.
    nap: Option<Nap>,
    /// It does not nap before this.
    watches_until: Nanos,
    worked_at: Nanos,
    /// Requests may be there.
    has_requests: bool,
    stop: bool,
}

/// A sleep in which data do not wake it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Nap {
    until: Nanos,
    length: Nanos,
}

impl Nap {
    fn first(now: Nanos) -> Self {
        Nap { until: now + FIRST_NAP, length: FIRST_NAP }
    }

    /// The nap after this one, or this one if it is not over.
    fn next(self, now: Nanos) -> Self {
        let length = (self.length * 2).min(polling::NAP);
        if now < self.until { self } else { Nap { until: now + length, length } }
    }
}

/// What it sleeps by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Sleep {
    until: Nanos,
    /// Data wake it.
    listens: bool,
}

impl Engine {
    pub(crate) fn new(device: Arc<Device>, progress: Arc<Progress>, cm: Arc<Cm>) -> Self {
        Engine { device, progress, cm, nap: None, watches_until: 0, worked_at: 0, has_requests: true, stop: false }
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
        self.cm.attend(std::mem::take(&mut self.has_requests));
        let now = device::now();
        let state = self.device.polling.state(now);
        self.nap = match (self.nap, state) {
            (Some(nap), State::Polled) => Some(nap.next(now)),
            (None, State::Polled) if now >= self.watches_until => Some(Nap::first(now)),
            (nap, State::Abandoned) => {
                self.device.polling.take_over(now);
                if nap.is_some() {
                    self.look_for_late_data(now);
                }
                None
            }
            _ => None,
        };
        self.nap.is_none() && self.make_progress()
    }

    /// The first pass after a nap, if the consumer has stopped polling without saying so.
    fn look_for_late_data(&mut self, now: Nanos) {
        if self.progress.takes_packets(now) {
            self.device.note_late();
            self.watches_until = now + NO_NAPS;
        }
    }

    /// True: there was something to do.
    fn make_progress(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..PASSES {
            // A consumer that polls just now has the lock for one pass.
            if !self.progress.make_pass(device::now()) {
                break;
            }
            worked = true;
            self.do_jobs();
        }
        worked
    }

    /// How to sleep.
    fn plan(&self, now: Nanos) -> Sleep {
        let cm = self.cm.deadline();
        if let Some(Nap { until, .. }) = self.nap {
            return Sleep { until: cm.map_or(until, |due| due.min(until)), listens: false };
        }
        let next = self.progress.next();
        let warm = (now < self.worked_at + WARM.1).then_some(now + WARM.0);
        let until = [cm, next, warm].into_iter().flatten().min();
        Sleep { until: until.unwrap_or(Nanos::MAX), listens: true }
    }

    fn sleep(&mut self, Sleep { until, listens }: Sleep) {
        let device = &self.device;
        // First it is said, then looked once more: what comes after that sees it and queues a job.
        device.polling.sleeps(until, listens);
        let cm = self.cm.deadline().is_some_and(|due| due < until);
        // What posts have left is for who polls, or would keep the engine awake on a poller's own processor.
        let fresh = listens && device.has_fresh();
        let has_stopped = !listens && !device.polling.is_polled(device::now());
        let has_changed = !device.jobs.prepare_sleep() || cm || fresh || has_stopped;
        let left = until.saturating_sub(device::now());
        let left = if has_changed || left < SHORTEST { 0 } else { left };
        let timeout = Timespec { tv_sec: (left / SECONDS) as i64, tv_nsec: (left % SECONDS) as i64 };
        let timeout = (until != Nanos::MAX || has_changed).then_some(timeout);
        let look = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = [look(device.jobs.as_fd()), look(self.cm.request_sockets.as_fd()), look(device.socket.as_fd())];
        // Data are last: they wake nobody while somebody polls for them.
        let count = if listens { 3 } else { 2 };
        // Interrupted, or out of memory: it looks around, and tries again.
        let _ = rustix::event::poll(&mut fds[..count], timeout.as_ref());
        self.has_requests = !fds[1].revents().is_empty();
        let has_errors = fds[..count].iter().any(|fd| fd.revents().contains(PollFlags::ERR));
        device.polling.wakes();
        device.jobs.set_awake();
        if has_errors || device.socket.has_errors() {
            self.take_errors();
        }
    }

    /// Reads the error queue of the data socket, and notifies the connections whose packets did not arrive.
    #[cold]
    fn take_errors(&self) {
        let (device, now) = (&self.device, device::now());
        let mut closed = Vec::new();
        errors::read(&device.socket, |missed| {
            for place in device.table.all().into_iter().filter(|place| place.is_open()) {
                if place.pair.sends_to(missed.to) {
                    let outlook = place.pair.did_not_arrive(now, place.number, &missed);
                    device.wants(place.number, &place.plan, &outlook);
                }
            }
            if missed.hint == Hint::PortClosed {
                closed.push(missed);
            }
        });
        closed.iter().for_each(|missed| self.cm.port_closed(missed));
    }

    fn do_jobs(&mut self) {
        for job in self.device.jobs.take_all() {
            match job {
                Job::Notify(queue) => queue.notify(),
                Job::ManyRecvs(ep) => self.cm.sink.many_recvs(ep),
                Job::Event(conn, event) => self.cm.sink.event(conn, event, &[]),
                // All of these are seen to anyway, once it is awake.
                Job::Cm | Job::Look => {}
                Job::Stop => self.stop = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_get_longer_while_somebody_polls() {
        let first = Nap::first(7);
        assert_eq!((first.until, first.next(first.until - 1)), (7 + FIRST_NAP, first), "it is not over");
        let second = first.next(first.until);
        assert_eq!(second, Nap { until: first.until + 2 * FIRST_NAP, length: 2 * FIRST_NAP });
        let longest = (0..20).fold(second, |nap, _| nap.next(nap.until));
        assert_eq!(longest.length, polling::NAP);
    }
}
