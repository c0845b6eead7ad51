//! The progress of a device: a pass takes what has come to its queue pairs, gives turns to those that are ready to send, and
//! looks at those with a deadline (US-3, US-4).
//!
//! Passes are made by a consumer that polls, or by the engine. Queue pairs are called with the lock of the pass and no other;
//! they take their own. Set-up packets are left to the engine.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::device::{Device, now};
use crate::engine::jobs::Job;
use crate::net::receive::{Inbox, Packets};
use crate::proto::Nanos;
use crate::proto::ids;
use crate::proto::schedule::{Deadlines, Outlook, Schedule};
use crate::proto::wire::{self, Kind};
use crate::qp::table::Place;

/// Receive calls in one pass.
const CALLS: usize = 8;

/// The passes of a device.
pub(crate) struct Progress {
    device: Arc<Device>,
    pub(crate) pass: Mutex<Pass>,
    /// Bytes that have come are being copied, or their completions are not queued yet.
    pub(crate) is_placing: AtomicBool,
}

/// What a pass works with.
pub(crate) struct Pass {
    inbox: Inbox,
    lines: Lines,
    /// Calls that brought packets.
    arrivals: u64,
    /// Kept for its memory.
    fresh: Vec<(u32, Outlook)>,
}

/// Connections that have a turn, and the deadlines of all.
#[derive(Default)]
struct Lines {
    schedule: Schedule,
    deadlines: Deadlines,
}

impl Progress {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let pass = Pass { inbox: Inbox::new(), lines: Lines::default(), arrivals: 0, fresh: Vec::new() };
        Progress { device, pass: Mutex::new(pass), is_placing: AtomicBool::new(false) }
    }

    /// A consumer polls: makes a pass, unless another thread makes one. `counts`: until this thread sleeps or stops polling, the
    /// engine may leave the data socket to it. True: something has moved.
    pub(crate) fn poll(&self, counts: bool) -> bool {
        let now = now();
        if counts {
            self.device.polling.polls(now);
        }
        let Some(mut pass) = self.pass.try_lock() else {
            // A consumer that has seen bytes in its memory must find their completion, which may not be queued yet.
            if self.is_placing.load(Ordering::SeqCst) {
                drop(self.pass.lock());
            }
            return false;
        };
        pass.make(self, now)
    }

    /// The engine makes a pass. True: something has moved, and there may be more.
    pub(crate) fn make_pass(&self, now: Nanos) -> bool {
        self.pass.lock().make(self, now)
    }

    /// The same. True: packets had come.
    pub(crate) fn takes_packets(&self, now: Nanos) -> bool {
        let mut pass = self.pass.lock();
        let before = pass.arrivals;
        pass.make(self, now);
        pass.arrivals != before
    }

    /// When the next connection is due; 0: at once.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.pass.lock().next(&self.device)
    }

    /// Makes a pass, unless another thread makes one, so that what is complete is seen.
    pub(crate) fn catch_up(&self) {
        let Some(mut pass) = self.pass.try_lock() else { return };
        pass.make(self, now());
        let next = pass.next(&self.device);
        drop(pass);
        // The engine may sleep longer than what was found now waits.
        if !self.device.polling.is_polled(now()) {
            self.hand_to_engine(next);
        }
    }

    /// The calling thread goes to sleep. Unless others poll, the engine watches the socket from now on.
    pub(crate) fn stop_polling(&self) {
        if self.device.polling.stops(now()) {
            // A thread that has the lock may leave something behind.
            let next = self.pass.try_lock().map_or(Some(0), |mut pass| pass.next(&self.device));
            self.hand_to_engine(next);
        }
    }

    fn hand_to_engine(&self, next: Option<Nanos>) {
        if self.device.polling.must_wake_to_take_over(next) {
            self.device.jobs.push(Job::Look);
        }
    }
}

impl Pass {
    fn make(&mut self, progress: &Progress, now: Nanos) -> bool {
        let device = &progress.device;
        self.take_fresh(device);
        let mut moved = self.receive(progress, now);
        while let Some(index) = self.lines.deadlines.due(now) {
            moved = true;
            if let Some(place) = device.table.at(index as usize) {
                place.plan.is_met();
                let outlook = place.pair.on_time(now, place.number);
                self.lines.note(&place, &outlook);
            }
        }
        self.take_turns(device, now) || moved
    }

    /// Notes what connections want that were touched outside a pass.
    fn take_fresh(&mut self, device: &Device) {
        if !device.take_fresh(&mut self.fresh) {
            return;
        }
        for (number, outlook) in self.fresh.drain(..) {
            if let Some(place) = device.table.find(number) {
                // What a connection wants from now on is noted the next time.
                place.plan.is_met();
                self.lines.note(&place, &outlook);
            }
        }
    }

    /// True: something came.
    fn receive(&mut self, progress: &Progress, now: Nanos) -> bool {
        let device = &progress.device;
        let mut moved = false;
        for _ in 0..CALLS {
            match self.inbox.receive(&device.socket) {
                Ok(0) => break,
                Ok(_) => {
                    moved = true;
                    self.arrivals += 1;
                }
                // An error of an earlier packet; the next call takes what has come.
                Err(_) => continue,
            }
            let Pass { inbox, lines, .. } = self;
            progress.is_placing.store(true, Ordering::SeqCst);
            inbox.trains().for_each(|(from, train)| lines.sort(device, now, from, train));
            progress.is_placing.store(false, Ordering::SeqCst);
            if !self.inbox.was_full() {
                break;
            }
        }
        moved
    }

    /// True: a connection had a turn.
    fn take_turns(&mut self, device: &Device, now: Nanos) -> bool {
        let mut moved = false;
        self.lines.schedule.begin();
        while let Some((index, turn)) = self.lines.schedule.next() {
            let Some(place) = device.table.at(index as usize) else { continue };
            let outlook = place.pair.transmit(now, place.number, turn);
            self.lines.note(&place, &outlook);
            moved = true;
        }
        moved
    }

    fn next(&mut self, device: &Device) -> Option<Nanos> {
        self.take_fresh(device);
        if self.lines.schedule.is_busy() { Some(0) } else { self.lines.deadlines.next() }
    }
}

impl Lines {
    fn note(&mut self, place: &Place, outlook: &Outlook) {
        let index = ids::index(place.number) as u32;
        self.schedule.wants(index, outlook);
        if let Some(deadline) = outlook.deadline {
            self.deadlines.plan(index, deadline);
            place.plan.is_late_for(deadline);
        }
    }

    /// A train may be for several connections: those of two hosts may share all that the kernel goes by.
    fn sort(&mut self, device: &Device, now: Nanos, from: SocketAddr, mut train: Packets<'_>) {
        while let Some((whose, packets)) = train.split(whose) {
            let place = match whose {
                Whose::Conn(number) => device.table.find(number),
                Whose::Setup => {
                    device.put_by(from, packets);
                    continue;
                }
                Whose::Nobody => None,
            };
            match place {
                Some(place) if place.is_open() => {
                    let outlook = place.pair.receive(now, place.number, from, packets);
                    self.note(&place, &outlook);
                }
                // Its first packets may overtake the end of the set-up, or be it.
                Some(_) => device.put_by(from, packets),
                None => device.note_strays(packets.count()),
            }
        }
    }
}

/// Whom a packet is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Whose {
    Conn(u32),
    Setup,
    /// It is no packet of ours.
    Nobody,
}

/// By its head, of which nothing else is believed.
fn whose(packet: &[u8]) -> Whose {
    let Some((head, _)) = wire::head(packet) else { return Whose::Nobody };
    match head.kind() {
        Some(Kind::Request | Kind::Cookie | Kind::Accept | Kind::Reject) => Whose::Setup,
        // Of a client that takes its request back.
        Some(Kind::Reset) if head.conn.get() == 0 => Whose::Setup,
        Some(_) => Whose::Conn(head.conn.get()),
        None => Whose::Nobody,
    }
}
