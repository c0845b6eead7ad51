//! The passive side of connection set-up: requests of peers, until the connection is established or the request ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnectionEvent, RequestInfo};
use dapl::runtime::handle::ObjectId;

use super::action::{AgreedConnection, CmAction, LocalConnection, QpCaps, offer, send};
use super::secrets::OsRandom;
use super::unreadable::UnreadableRequests;
use crate::device::{self, Device};
use crate::net::errors::DeliveryError;
use crate::net::send::SendBatch;
use crate::proto::Nanos;
use crate::proto::setup::Setup;
use crate::proto::setup::accept::{Acceptor, ExpiredAttempt, PacketResult, RequestId};
use crate::proto::setup::packets::RejectReason;
use crate::proto::wire;

/// Requests of peers, and unconfirmed accepts.
pub(super) struct PassiveSide {
    acceptor: Acceptor,
    /// Accepts that the peer has not confirmed yet.
    accepted: HashMap<RequestId, AgreedConnection>,
    unreadable: UnreadableRequests,
    /// Reused by all calls to avoid allocations.
    batch: SendBatch,
}

impl PassiveSide {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        PassiveSide {
            acceptor: Acceptor::new(setup, device::now(), &mut OsRandom),
            accepted: HashMap::new(),
            unreadable: UnreadableRequests::default(),
            batch: SendBatch::default(),
        }
    }

    /// Returns the number of received requests and withdrawals that are damaged, or come from a host whose setting
    /// `key` differs.
    pub(super) fn unreadable(&self) -> u64 {
        self.acceptor.counts.unreadable
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.acceptor.deadline()
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.acceptor.accepted(number).is_some()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.accepted.values().map(|accept| accept.local.number).collect()
    }

    /// Handles a request packet. `listener` is this process's listener on the qualifier of the request, if there is
    /// one.
    pub(super) fn handle_request(
        &mut self,
        device: &Device,
        now: Nanos,
        from: SocketAddr,
        packet: &[u8],
        listener: Option<ObjectId>,
    ) -> Option<CmAction> {
        match self.acceptor.receive(now, packet, from, listener.is_some(), &mut OsRandom, self.batch.header_buffer()) {
            PacketResult::Nothing => None,
            PacketResult::Unreadable => {
                self.unreadable.log(device, now, from, packet);
                None
            }
            PacketResult::Reply => {
                send(&mut self.batch, &device.socket, from);
                None
            }
            PacketResult::Requested(id) => {
                send(&mut self.batch, &device.socket, from);
                let request = self.acceptor.request(id)?;
                let private_data = request.private_data.to_vec();
                let info = RequestInfo { peer: request.from, reported_len: private_data.len(), private_data };
                Some(CmAction::Request(listener?, id, info))
            }
            PacketResult::Withdrawn(id) => self.failed(id),
        }
    }

    /// Removes a failed accept: the peer has withdrawn its request, does not know the accept, has closed its port, or
    /// has not confirmed the accept in time. Returns `None` if the consumer had not accepted the request.
    fn failed(&mut self, id: RequestId) -> Option<CmAction> {
        let accept = self.accepted.remove(&id)?;
        Some(CmAction::End(accept.local, ConnectionEvent::AcceptFailed, Vec::new()))
    }

    /// Handles an ICMP "port unreachable" message. An accept ends when such messages have quoted two of its
    /// transmissions.
    pub(super) fn port_closed(&mut self, now: Nanos, error: &DeliveryError) -> Option<CmAction> {
        match self.acceptor.port_closed(now, error.to, &error.quote) {
            PacketResult::Withdrawn(id) => self.failed(id),
            _ => None,
        }
    }

    /// Handles a packet with the number of an accepted connection. A Reset of a client that does not know the
    /// connection fails the accept. Any other packet with the connection's token confirms it, if it is authentic or the
    /// adapter has no key.
    pub(super) fn receive(&mut self, now: Nanos, number: u32, from: SocketAddr, packet: Vec<u8>) -> Option<CmAction> {
        if let PacketResult::Withdrawn(id) = self.acceptor.reset(now, &packet) {
            return self.failed(id);
        }
        let (head, _) = wire::head(&packet)?;
        let seal = &self.accepted.get(&self.acceptor.accepted(number)?)?.agreed.seal;
        if seal.as_ref().is_some_and(|seal| !seal.authenticates(&packet)) {
            return None;
        }
        // A Fin or Reset may overtake the confirmation. It also proves that the connection is established at the peer.
        let id = self.acceptor.confirmed(now, number, head.token.get())?;
        Some(CmAction::Establish(self.accepted.remove(&id)?, vec![(from, packet)]))
    }

    /// Sends the packets that are due. If an accept has failed, stops and returns the action for it. The caller repeats
    /// the call until it returns `None`.
    pub(super) fn poll(&mut self, device: &Device, now: Nanos) -> Option<CmAction> {
        while let Some(due) = self.acceptor.poll(now, self.batch.header_buffer()) {
            match due {
                ExpiredAttempt::Send(to) => send(&mut self.batch, &device.socket, to),
                ExpiredAttempt::Failed(id) => {
                    let action = self.failed(id);
                    if action.is_some() {
                        return action;
                    }
                }
            }
        }
        None
    }

    /// Accepts a request. Returns false if the peer has withdrawn it, or has stopped retransmitting it.
    pub(super) fn accept(
        &mut self,
        device: &Device,
        id: RequestId,
        private_data: &[u8],
        caps: QpCaps,
        local: LocalConnection,
    ) -> bool {
        let from = self.acceptor.request(id).map_or(device.address(), |request| request.from);
        let own_offer = offer(device, local.number, caps, from);
        let agreed = self.acceptor.accept(device::now(), id, &own_offer, private_data, &mut OsRandom);
        let Some(agreed) = agreed else { return false };
        self.accepted.insert(id, AgreedConnection { local, agreed, private_data: Vec::new() });
        true
    }

    pub(super) fn reject(&mut self, id: RequestId, reason: RejectReason, private_data: &[u8]) {
        self.acceptor.reject(device::now(), id, reason, private_data, &mut OsRandom);
    }

    /// Cancels an unconfirmed accept, and notifies the peer. Returns false if there is no such accept.
    pub(super) fn withdraw(&mut self, device: &Device, number: u32) -> bool {
        let Some(id) = self.acceptor.accepted(number) else { return false };
        self.accepted.remove(&id);
        self.reject(id, RejectReason::Refused, &[]);
        // Sends the Reject without `poll`, which might return the failure of another accept. Only the engine reports
        // failures.
        if let Some(to) = self.acceptor.take_reject(id, self.batch.header_buffer()) {
            send(&mut self.batch, &device.socket, to);
        }
        true
    }
}
