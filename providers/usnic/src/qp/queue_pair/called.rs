//! A queue pair as others call it: the device, of whose passes it is a part; the sums of counters; the shared receive queue.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use dapl::provider::ConnId;

use super::{Core, Stage};
use crate::counters;
use crate::device;
use crate::net::errors::Missed;
use crate::net::receive::Packets;
use crate::proto::Nanos;
use crate::proto::counters::Counters;
use crate::proto::schedule::{Outlook, Turn};
use crate::qp::closing;
use crate::qp::host::Nobody;
use crate::qp::pair::{Opened, Pair};
use crate::qp::transport::Line;
use crate::srq::SrqWaiter;

impl Pair for Core {
    fn shut(&self) {
        self.abort();
    }

    fn connecting(&self, number: u32, _: ConnId) {
        let mut inner = self.inner.lock();
        (inner.stage, inner.drains) = (Stage::Connecting(number), false);
    }

    /// What was posted before goes into the connection, in its order.
    fn open(&self, now: Nanos, opened: Opened) -> Option<Outlook> {
        let mut inner = self.inner.lock();
        if inner.stage != Stage::Connecting(opened.number) {
            drop(inner);
            closing::turn_away(&self.device, &self.config, &self.world, opened, now);
            return None;
        }
        let mut line = Line::new(&self.config, opened, now);
        for recv in inner.recvs.drain(..) {
            let length = recv.segments.total();
            line.link.post_recv(now, recv, length, &mut &self.world);
        }
        for post in inner.requests.drain(..) {
            line.link.post(now, post, &mut &self.world);
        }
        if std::mem::take(&mut inner.drains) {
            line.link.drain(now);
        }
        inner.stage = Stage::Connected;
        inner.line = Some(line);
        Some(self.settle(&mut inner, now))
    }

    fn receive(&self, now: Nanos, number: u32, from: SocketAddr, packets: Packets<'_>) -> Outlook {
        let mut inner = self.inner.lock();
        let Some(line) = inner.line(number) else { return Outlook::default() };
        line.receive(now, from, packets, &mut &self.world);
        self.settle(&mut inner, now)
    }

    fn transmit(&self, now: Nanos, number: u32, _: Turn) -> Outlook {
        let mut inner = self.inner.lock();
        let Some(line) = inner.line(number) else { return Outlook::default() };
        line.transmit(now, &mut &self.world, &self.world);
        self.settle(&mut inner, now)
    }

    fn on_time(&self, now: Nanos, number: u32) -> Outlook {
        let mut inner = self.inner.lock();
        let Some(line) = inner.line(number) else { return Outlook::default() };
        line.link.on_time(now, &mut &self.world);
        self.settle(&mut inner, now)
    }

    fn sends_to(&self, peer: SocketAddr) -> bool {
        self.inner.lock().line.as_ref().is_some_and(|line| line.sends_to(peer))
    }

    fn did_not_arrive(&self, now: Nanos, number: u32, missed: &Missed) -> Outlook {
        let mut inner = self.inner.lock();
        let Some(line) = inner.line(number) else { return Outlook::default() };
        line.hint(now, missed);
        self.settle(&mut inner, now)
    }

    fn end(&self, number: u32) -> bool {
        let mut inner = self.inner.lock();
        let is_it = inner.stage == Stage::Connecting(number) || inner.line(number).is_some();
        if is_it {
            self.finish(&mut inner, device::now());
        }
        is_it
    }
}

impl Core {
    /// What its connection has counted so far.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.inner.lock().line.as_ref().map(|line| line.link.counters())
    }

    /// The process exits: acknowledges what was received and resets the connection, if its lock is free soon.
    pub(crate) fn exit(&self) {
        let Some(mut inner) = self.inner.try_lock_for(counters::GRACE) else { return };
        if let Some(line) = &mut inner.line {
            let now = device::now();
            line.link.tell_all(now, &mut Nobody);
            line.transmit(now, &mut Nobody, &self.world);
            line.link.abort(now, &mut Nobody);
            line.transmit(now, &mut Nobody, &self.world);
        }
    }
}

impl SrqWaiter for Core {
    fn receive_came(&self) -> bool {
        let mut inner = self.inner.lock();
        let Some(line) = &mut inner.line else { return false };
        let now = device::now();
        let is_told = line.link.look_at_credits(&mut &self.world);
        line.transmit(now, &mut &self.world, &self.world);
        self.leave_to_device(inner, now);
        is_told
    }
}
