//! One pass over the device: what has come goes to its queue pairs, who is due is looked at, who is ready sends (US-3, US-4).
//!
//! Whoever holds this makes the progress of the whole device: a consumer that polls, or the engine. Queue pairs are called with
//! this lock held and no other; they take theirs. Set-up packets are only put by for the engine.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use crate::device::Device;
use crate::net::receive::{Inbox, Packets};
use crate::proto::Nanos;
use crate::proto::ids;
use crate::proto::schedule::{Deadlines, Outlook, Schedule};
use crate::proto::wire::{self, Kind};
use crate::qp::table::Place;

/// Calls for what has come, in one pass: then it is others' turn.
const CALLS: usize = 8;

/// What a pass works with.
#[derive(Debug)]
pub(crate) struct Progress {
    inbox: Inbox,
    lines: Lines,
    /// Calls that brought packets.
    arrivals: u64,
    /// Kept for its memory.
    fresh: Vec<(u32, Outlook)>,
}

/// Who has a turn, and who is due when.
#[derive(Debug, Default)]
struct Lines {
    schedule: Schedule,
    deadlines: Deadlines,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Progress { inbox: Inbox::new(), lines: Lines::default(), arrivals: 0, fresh: Vec::new() }
    }

    /// True: something has moved, and there may be more.
    pub(crate) fn pass(&mut self, device: &Device, now: Nanos) -> bool {
        self.hear(device);
        let mut moved = self.receive(device, now);
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

    /// Grows whenever a pass takes packets from a socket.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// What connections want that were touched by others.
    fn hear(&mut self, device: &Device) {
        if !device.take_fresh(&mut self.fresh) {
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for (number, outlook) in fresh.drain(..) {
            if let Some(place) = device.table.find(number) {
                // What is said from now on is heard the next time.
                place.plan.is_met();
                self.lines.note(&place, &outlook);
            }
        }
        self.fresh = fresh;
    }

    /// True: something came.
    fn receive(&mut self, device: &Device, now: Nanos) -> bool {
        let mut moved = false;
        for _ in 0..CALLS {
            match self.inbox.receive(&device.socket) {
                Ok(0) => break,
                Ok(_) => {
                    moved = true;
                    self.arrivals += 1;
                }
                // What befell an earlier packet; the next call takes what has come.
                Err(_) => continue,
            }
            let Progress { inbox, lines, .. } = self;
            device.places(true);
            inbox.trains().for_each(|(from, train)| lines.sort(device, now, from, train));
            device.places(false);
            if !self.inbox.was_full() {
                break;
            }
        }
        moved
    }

    /// True: somebody had a turn.
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

    /// When the next connection is due, after what others have said; 0: at once.
    pub(crate) fn next(&mut self, device: &Device) -> Option<Nanos> {
        self.hear(device);
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
