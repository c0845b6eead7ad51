//! Requests of peers, from their coming until the connection stands.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ConnId, ConnectionEvent, RequestInfo};

use super::secrets::Os;
use super::{Act, Setups, Standing, Wishes};
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::net::errors::Missed;
use crate::proto::Nanos;
use crate::proto::setup::Agreed;
use crate::proto::setup::answering::{Due, Heard, RequestId};
use crate::proto::setup::packets::Reason;
use crate::proto::wire;
use crate::qp::pair::Pair;

/// An accept that is not confirmed yet.
pub(super) struct Accepted {
    id: RequestId,
    conn: ConnId,
    pair: Arc<dyn Pair>,
    agreed: Agreed,
}

/// A connection request, as the layer above has it: answered once; dropped, it is refused.
pub(crate) struct Incoming {
    device: Arc<Device>,
    id: Option<RequestId>,
}

impl Incoming {
    pub(super) fn new(device: Arc<Device>, id: RequestId) -> Self {
        Incoming { device, id: Some(id) }
    }

    fn answer(&mut self, reason: Reason) {
        let Some(id) = self.id.take() else { return };
        let now = device::now();
        let mut setups = self.device.setups.lock();
        setups.answering.reject(now, id, reason, &mut Os);
        drop(setups);
        // What is due is said by the engine, and then again to who asks again.
        self.device.look_at_setups();
    }

    /// Nobody wants to hear of it.
    pub(super) fn refuse(mut self) {
        self.answer(Reason::NoListener);
    }

    /// The consumer's own no.
    pub(crate) fn reject(mut self) {
        self.answer(Reason::Refused);
    }

    /// The requester is told to ask whoever listens on `qual`, of this process or another. The request back: nobody does.
    pub(crate) fn hand_off(mut self, qual: u64) -> std::result::Result<(), Self> {
        if !self.device.has_listener(qual) {
            return Err(self);
        }
        self.answer(Reason::HandedOff(qual));
        Ok(())
    }

    /// Accepts it into an unconnected queue pair, as `connect`. That the requester has left is no error: it is reported.
    pub(crate) fn accept(
        mut self,
        pair: Arc<dyn Pair>,
        private_data: &[u8],
        conn: ConnId,
        wishes: Wishes,
    ) -> Result<u32> {
        let device = self.device.clone();
        let now = device::now();
        // Without a number it is refused, by being dropped.
        let number = device.table.take(now).ok_or(Error::Exhausted(Resource::Memory))?;
        let Some(id) = self.id.take() else { return Err(Error::Internal) };
        pair.connecting(number, conn);
        device.table.put(number, pair.clone());
        let mut setups = device.setups.lock();
        let from = setups.answering.request(id).map_or(device.address(), |request| request.from);
        let ours = setups.offer(&device, number, wishes, from);
        let agreed = setups.answering.accept(now, id, &ours, private_data, &mut Os);
        let Some(agreed) = agreed else {
            drop(setups);
            device.forget(number);
            if pair.end(number) {
                device.jobs.push(Job::Event(conn, ConnectionEvent::AcceptFailed));
            }
            return Ok(number);
        };
        setups.number_of.insert(id, number);
        setups.accepted.insert(number, Accepted { id, conn, pair, agreed });
        drop(setups);
        device.look_at_setups();
        Ok(number)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.answer(Reason::Refused);
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Setups {
    /// A request came, for a qualifier of ours or of nobody's.
    pub(super) fn requested(&mut self, device: &Device, now: Nanos, from: SocketAddr, packet: &[u8]) -> Option<Act> {
        let qual = crate::proto::setup::packets::asking(packet)?.qual();
        let listener = self.listeners.find(qual);
        let out = self.batch.own();
        match self.answering.receive(now, packet, from, listener.is_some(), &mut Os, out) {
            Heard::Nothing => None,
            Heard::Unreadable => {
                self.unreadable.note(device, now, from, packet);
                None
            }
            Heard::Answer => {
                Self::send(&mut self.batch, &device.socket, from);
                None
            }
            Heard::Asked(id) => {
                Self::send(&mut self.batch, &device.socket, from);
                let request = self.answering.request(id)?;
                let private_data = request.private_data.to_vec();
                let info = RequestInfo { peer: request.from, told: private_data.len(), private_data };
                Some(Act::Ask(listener?, id, info))
            }
            Heard::Left(id) => self.failed(id),
        }
    }

    /// The requester has left, or its confirmation did not come.
    fn failed(&mut self, id: RequestId) -> Option<Act> {
        let number = self.number_of.remove(&id)?;
        let Accepted { conn, pair, .. } = self.accepted.remove(&number)?;
        Some(Act::End(number, pair, conn, ConnectionEvent::AcceptFailed))
    }

    /// Nobody has the port that an accept was sent to: one that this ends.
    pub(super) fn requester_gone(&mut self, now: Nanos, missed: &Missed) -> Option<Act> {
        match self.answering.nobody_there(now, missed.to, &missed.quote) {
            Heard::Left(id) => self.failed(id),
            _ => None,
        }
    }

    /// Who sends to a connection that was accepted, and has its token, has the accept.
    pub(super) fn maybe_confirmed(
        &mut self,
        now: Nanos,
        number: u32,
        from: SocketAddr,
        packet: Vec<u8>,
    ) -> Option<Act> {
        if let Heard::Left(id) = self.answering.reset(now, &packet) {
            return self.failed(id);
        }
        let (head, _) = wire::head(&packet)?;
        let seal = &self.accepted.get(&number)?.agreed.seal;
        if seal.as_ref().is_some_and(|seal| !seal.vouches(&packet)) {
            return None;
        }
        // For a requester that has the accept the connection stood, even if its end overtakes its confirmation.
        let id = self.answering.confirmed(now, number, head.token.get())?;
        self.number_of.remove(&id);
        let Accepted { conn, pair, agreed, .. } = self.accepted.remove(&number)?;
        let standing = Standing { number, conn, pair, agreed, private_data: Vec::new() };
        Some(Act::Open(standing, vec![(from, packet)]))
    }

    /// What is due, until something of it is to be heard of.
    pub(super) fn poll_answers(&mut self, device: &Device, now: Nanos) -> Option<Act> {
        while let Some(due) = self.answering.poll(now, self.batch.own()) {
            match due {
                Due::Send(to) => {
                    Self::send(&mut self.batch, &device.socket, to);
                }
                Due::Left(id) => {
                    let act = self.failed(id);
                    if act.is_some() {
                        return act;
                    }
                }
            }
        }
        None
    }

    /// Our consumer does not want what it has accepted. `false`: there is no such number.
    pub(super) fn take_back(&mut self, device: &Device, number: u32) -> bool {
        let Some(Accepted { id, .. }) = self.accepted.remove(&number) else { return false };
        self.number_of.remove(&id);
        let now = device::now();
        self.answering.reject(now, id, Reason::Refused, &mut Os);
        self.poll_answers(device, now);
        true
    }
}
