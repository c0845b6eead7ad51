//! A process of the simulation: its connection attempts, its established connections, and their shared receive queue.
//!
//! A `Peer` calls the state machines of `proto` in the same way as `cm` and the queue pairs, but without sockets. `run`
//! decides the actions of its consumers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use dapl::provider::ConnectionEvent;

use super::established::SimConnection;
use super::network::Datagram;
use super::oracle::Pool;
use super::random::TestRandom;
use super::scenario::PeerPlan;
use crate::proto::ids::Ids;
use crate::proto::seal::Psk;
use crate::proto::setup::accept::{Acceptor, ExpiredAttempt, PacketResult, RequestId};
use crate::proto::setup::connect::{ConnectOutcome, Connector, refuse_unmatched};
use crate::proto::setup::packets::{self, RejectReason};
use crate::proto::setup::{HandshakeResult, Offer, Setup, SetupConfig};
use crate::proto::wire::{self, Kind};
use crate::proto::{Nanos, SECONDS};

/// The well-known port of all peers.
const WELL_KNOWN: u16 = 17471;

/// An event of connection set-up. The first field is the index of the connection in the scenario.
#[derive(Debug)]
pub(super) enum SetupEvent {
    /// A request has arrived at the server.
    Requested(usize, RequestId),
    /// The connection with this number is established at this peer. At the server, the datagram is the packet that
    /// confirmed the accept.
    Established(usize, u32, Box<HandshakeResult>, Option<Datagram>),
    /// The client's attempt has failed.
    Failed(usize, &'static str),
    /// The server's accept has failed: the client has not confirmed it in time, has withdrawn its request, or does not
    /// know it.
    AcceptFailed(usize),
}

pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) plan: PeerPlan,
    pub(super) dice: TestRandom,
    setup: Arc<Setup>,
    pub(super) acceptor: Acceptor,
    pub(super) ids: Ids,
    pub(super) connectors: BTreeMap<u32, (Connector, usize)>,
    accepted: BTreeMap<u32, (RequestId, usize, HandshakeResult)>,
    pub(super) connections: BTreeMap<u32, SimConnection>,
    pub(super) pool: Rc<RefCell<Pool>>,
    pub(super) events: Vec<SetupEvent>,
    /// Datagrams to send.
    pub(super) out: Vec<(SocketAddr, Vec<u8>)>,
}

pub(super) fn address(at: usize, port: u16) -> SocketAddr {
    ([10, 0, 0, at as u8 + 1], port).into()
}

impl Peer {
    pub(super) fn new(at: usize, life: u64, plan: &PeerPlan, sealed: bool, seed: u64, now: Nanos) -> Peer {
        let mut dice = TestRandom::new(seed ^ ((at as u64 + 1) << 32) ^ (life << 48));
        let psk = sealed.then(|| Psk::new(b"0123456789abcdef-secret").expect("the secret has the minimum length"));
        let unverified = if plan.cookies { 0 } else { SetupConfig::default().unverified };
        let config = SetupConfig { unverified, ..SetupConfig::default() };
        let setup = Arc::new(Setup::new(config, psk));
        Peer {
            address: address(at, 1000),
            plan: plan.clone(),
            acceptor: Acceptor::new(setup.clone(), now, &mut dice),
            setup,
            dice,
            ids: Ids::new(64, 2 * SECONDS),
            connectors: BTreeMap::new(),
            accepted: BTreeMap::new(),
            connections: BTreeMap::new(),
            pool: Rc::default(),
            events: Vec::new(),
            out: Vec::new(),
        }
    }

    fn offer(&mut self, number: u32, wanted: &Offer) -> Offer {
        let Offer { conn, token, first_psn, random, .. } = Offer::new(number, &mut self.dice);
        let first_psn = if wanted.first_psn == 0 { first_psn } else { wanted.first_psn };
        let (window_kib, mtu) = (self.plan.window_kib, self.plan.mtu);
        Offer { conn, token, first_psn, random, window_kib: window_kib.into(), mtu: mtu.into(), ..*wanted }
    }

    /// Starts the client's request for connection `link`.
    pub(super) fn connect(&mut self, now: Nanos, link: usize, server: usize, wanted: &Offer) {
        let number = self.ids.take(now).expect("a connection number is free");
        let ours = self.offer(number, wanted);
        let private = [link as u8; 16];
        let server = address(server, WELL_KNOWN);
        let connector = Connector::new(self.setup.clone(), server, link as u64, ours, &private, now);
        self.connectors.insert(number, (connector, link));
    }

    /// Withdraws the client's request. Returns whether it was still pending.
    pub(super) fn withdraw(&mut self, now: Nanos, link: usize) -> bool {
        let Some(number) = self.connectors.iter().find(|(_, (_, of))| *of == link).map(|(number, _)| *number) else {
            return false;
        };
        if let Some((mut connector, _)) = self.connectors.remove(&number) {
            let mut packet = Vec::new();
            let to = connector.withdraw(&mut self.dice, &mut packet);
            self.out.push((to, packet));
        }
        self.ids.free(number, now);
        true
    }

    /// Accepts a request with the offer `wanted`, or rejects it if `wanted` is `None`. Returns whether it was accepted.
    pub(super) fn decide(&mut self, now: Nanos, link: usize, id: RequestId, wanted: Option<&Offer>) -> bool {
        let Some(wanted) = wanted else {
            self.acceptor.reject(now, id, RejectReason::Refused, &[], &mut self.dice);
            return false;
        };
        let number = self.ids.take(now).expect("a connection number is free");
        let ours = self.offer(number, wanted);
        match self.acceptor.accept(now, id, &ours, &[link as u8; 3], &mut self.dice) {
            Some(agreed) => {
                self.accepted.insert(number, (id, link, agreed));
                true
            }
            None => {
                self.ids.free(number, now);
                false
            }
        }
    }

    /// Withdraws the unconfirmed accepts of a connection after one accept was confirmed.
    fn withdraw_other_accepts(&mut self, now: Nanos, link: usize) {
        let others: Vec<u32> =
            self.accepted.iter().filter(|(_, (_, of, _))| *of == link).map(|(number, _)| *number).collect();
        for number in others {
            if let Some((id, ..)) = self.accepted.remove(&number) {
                self.acceptor.reject(now, id, RejectReason::Refused, &[], &mut self.dice);
                self.ids.free(number, now);
            }
        }
    }

    pub(super) fn receive(&mut self, now: Nanos, mut datagram: Datagram) {
        if datagram.to.port() == WELL_KNOWN {
            return self.requested(now, &datagram);
        }
        let Some((head, _)) = wire::head(&datagram.bytes).filter(|_| datagram.to == self.address) else { return };
        if packets::request_head(&datagram.bytes).is_some() {
            return self.requested(now, &datagram);
        }
        let Some(kind) = head.kind() else { return };
        let number = head.conn.get();
        if let Some(connection) = self.connections.get_mut(&number) {
            return connection.receive(now, &mut datagram);
        }
        if let Some((connector, link)) = self.connectors.get_mut(&number) {
            let link = *link;
            let outcome = connector.receive(now, &datagram.bytes, datagram.from, &mut self.dice);
            return self.opened(now, number, link, outcome);
        }
        if self.accepted.contains_key(&number) {
            return self.maybe_confirmed(now, number, datagram);
        }
        let mut packet = Vec::new();
        if kind == Kind::Accept && refuse_unmatched(&self.setup, &datagram.bytes, &mut self.dice, &mut packet) {
            self.out.push((datagram.from, packet));
        }
    }

    fn opened(&mut self, now: Nanos, number: u32, link: usize, outcome: Option<ConnectOutcome>) {
        let event = match outcome {
            None => return,
            Some(ConnectOutcome::Established { agreed, private_data }) => {
                assert_eq!(private_data, [link as u8; 3]);
                SetupEvent::Established(link, number, Box::new(agreed), None)
            }
            Some(ConnectOutcome::Ended(ConnectionEvent::PeerRejected, data, _)) if data.is_empty() => {
                SetupEvent::Failed(link, "rejected by the consumer")
            }
            Some(ConnectOutcome::Ended(ConnectionEvent::Unreachable, ..)) => SetupEvent::Failed(link, "unreachable"),
            Some(other) => panic!("the simulated peers cause no outcome such as {other:?}"),
        };
        self.connectors.remove(&number);
        if matches!(event, SetupEvent::Failed(..)) {
            self.ids.free(number, now);
        }
        self.events.push(event);
    }

    fn requested(&mut self, now: Nanos, datagram: &Datagram) {
        if packets::request_head(&datagram.bytes).is_none() {
            return;
        }
        let mut packet = Vec::new();
        match self.acceptor.receive(now, &datagram.bytes, datagram.from, true, &mut self.dice, &mut packet) {
            PacketResult::Nothing | PacketResult::Unreadable => {}
            PacketResult::Reply => self.out.push((datagram.from, packet)),
            PacketResult::Requested(id) => {
                self.out.push((datagram.from, packet));
                let request = self.acceptor.request(id).expect("the reported request is pending");
                let link = request.qual as usize;
                assert_eq!((request.from, request.private_data), (datagram.from, &[link as u8; 16][..]));
                self.events.push(SetupEvent::Requested(link, id));
            }
            PacketResult::Withdrawn(id) => self.request_failed(now, id),
        }
    }

    fn request_failed(&mut self, now: Nanos, id: RequestId) {
        let found = self.accepted.iter().find(|(_, (of, ..))| *of == id).map(|(number, _)| *number);
        if let Some(number) = found
            && let Some((_, link, _)) = self.accepted.remove(&number)
        {
            self.ids.free(number, now);
            // If the client's address changed, it has sent requests from two addresses, and another accept may be
            // pending.
            if !self.accepted.values().any(|(_, of, _)| *of == link) {
                self.events.push(SetupEvent::AcceptFailed(link));
            }
        }
    }

    fn maybe_confirmed(&mut self, now: Nanos, number: u32, mut datagram: Datagram) {
        if let PacketResult::Withdrawn(id) = self.acceptor.reset(now, &datagram.bytes) {
            return self.request_failed(now, id);
        }
        let Some((.., agreed)) = self.accepted.get_mut(&number) else { return };
        let opened = match &mut agreed.seal {
            None => wire::head(&datagram.bytes),
            Some(seal) => seal.open(&mut datagram.bytes),
        };
        if let Some(token) = opened.map(|(head, _)| head.token.get())
            && self.acceptor.confirmed(now, number, token).is_some()
            && let Some((_, link, agreed)) = self.accepted.remove(&number)
        {
            self.withdraw_other_accepts(now, link);
            self.events.push(SetupEvent::Established(link, number, Box::new(agreed), Some(datagram)));
        }
    }

    /// Handles expired deadlines of attempts and connections, and sends due handshake packets.
    pub(super) fn on_time(&mut self, now: Nanos) {
        for number in self.connectors.keys().copied().collect::<Vec<_>>() {
            let Some((connector, link)) = self.connectors.get_mut(&number) else { continue };
            let link = *link;
            let outcome = connector.on_time(now);
            let mut packet = Vec::new();
            if let Some(to) = connector.transmit(now, &mut self.dice, &mut packet) {
                self.out.push((to, packet));
            }
            self.opened(now, number, link, outcome);
        }
        let mut packet = Vec::new();
        while let Some(due) = self.acceptor.poll(now, &mut packet) {
            match due {
                ExpiredAttempt::Send(to) => self.out.push((to, std::mem::take(&mut packet))),
                ExpiredAttempt::Failed(id) => self.request_failed(now, id),
            }
        }
        self.serve_connections(now);
    }

    fn serve_connections(&mut self, now: Nanos) {
        let has_new_recvs = std::mem::take(&mut self.pool.borrow_mut().has_new);
        for connection in self.connections.values_mut() {
            if has_new_recvs && connection.host.pool.is_some() {
                connection.conn.check_credits(&mut connection.host);
            }
            if connection.conn.deadline().is_some_and(|at| at <= now) {
                connection.conn.on_time(now, &mut connection.host);
                connection.record_event();
            }
        }
    }

    /// Removes connections that can be freed.
    pub(super) fn remove_closed(&mut self, now: Nanos) {
        let over: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.conn.can_be_freed())
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.connections.remove(&number);
            self.ids.free(number, now);
        }
    }

    /// Returns the earliest deadline of all attempts and connections.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let connectors = self.connectors.values().filter_map(|(connector, _)| connector.deadline());
        let connections = self.connections.values().filter_map(SimConnection::deadline);
        connectors.chain(connections).chain(self.acceptor.deadline()).min()
    }

    /// Whether the process has no attempt and no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
            && self.connectors.is_empty()
            && self.accepted.is_empty()
            && self.acceptor.deadline().is_none()
    }
}
