//! What remains of a connection when its queue pair is done with it: late packets are answered until its peer knows the end.
//!
//! All of its work is flushed, so nothing here touches memory or completes. The device forgets it when it is over.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::ConnId;
use parking_lot::Mutex;

use crate::device::Device;
use crate::net::errors::Missed;
use crate::net::receive::Packets;
use crate::proto::Nanos;
use crate::proto::conn::Config;
use crate::proto::schedule::{Outlook, Turn};
use crate::qp::host::{Nobody, World};
use crate::qp::pair::{Opened, Pair};
use crate::qp::transport::Line;

/// A connection that has ended here.
pub(crate) struct Remains {
    device: std::sync::Weak<Device>,
    world: World,
    line: Mutex<Line>,
}

impl Remains {
    /// The device has it from now on, unless nothing more needs an answer.
    pub(crate) fn leave(device: &Arc<Device>, world: &World, line: Line, now: Nanos) {
        let number = line.number;
        if line.link.is_over() {
            return device.forget(number);
        }
        let outlook = line.outlook(now);
        let remains = Remains { device: Arc::downgrade(device), world: world.bare(), line: Mutex::new(line) };
        device.hand_on(number, Arc::new(remains), &outlook);
    }

    /// Does something with the line, if it is this one, and says what it wants next.
    fn with(&self, now: Nanos, number: u32, work: impl FnOnce(&mut Line)) -> Outlook {
        let mut line = self.line.lock();
        if line.number != number {
            return Outlook::default();
        }
        work(&mut line);
        if !line.link.is_over() {
            return line.outlook(now);
        }
        drop(line);
        if let Some(device) = self.device.upgrade() {
            device.forget(number);
        }
        Outlook::default()
    }
}

/// The consumer ended a connection between hearing that it stands and its opening: the peer hears that it stood, and has ended.
#[cold]
pub(crate) fn turn_away(device: &Arc<Device>, config: &Config, world: &World, opened: Opened, now: Nanos) {
    let mut line = Line::new(config, opened, now);
    line.link.abort(now, &mut Nobody);
    line.transmit(now, &mut Nobody, world);
    Remains::leave(device, world, line, now);
}

impl Pair for Remains {
    /// The peer was told.
    fn shut(&self) {}

    fn connecting(&self, _: u32, _: ConnId) {}

    fn open(&self, _: Nanos, _: Opened) -> Option<Outlook> {
        None
    }

    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> Outlook {
        self.with(now, number, |line| line.receive(now, from, packets, &mut Nobody))
    }

    fn transmit(&self, now: Nanos, number: u32, _: Turn) -> Outlook {
        self.with(now, number, |line| _ = line.transmit(now, &mut Nobody, &self.world))
    }

    fn on_time(&self, now: Nanos, number: u32) -> Outlook {
        self.with(now, number, |line| line.link.on_time(now, &mut Nobody))
    }

    fn sends_to(&self, peer: SocketAddr) -> bool {
        self.line.lock().sends_to(peer)
    }

    fn did_not_arrive(&self, now: Nanos, number: u32, missed: &Missed) -> Outlook {
        self.with(now, number, |line| line.hint(now, missed))
    }

    fn end(&self, _: u32) -> bool {
        false
    }
}
