//! Clients and a server on a virtual network that drops, duplicates, delays, reorders and damages packets at random.
//!
//! The test scripts the decisions of the server's consumer. Established connections send only confirmations and acks.
//! The network checks the amplification limit: an unverified source never gets more than three times the bytes that it
//! has sent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::super::accept::{Acceptor, ExpiredAttempt, PacketResult, RequestId};
use super::super::connect::{Confirming, ConnectOutcome, Connector, refuse_unmatched};
use super::super::packets::{self, RejectReason};
use super::*;
use crate::proto::wire::{self, Kind, PacketHeader};
use zerocopy::IntoBytes;

pub(crate) const WELL_KNOWN: u16 = 17471;
pub(crate) const QUAL: u64 = 77;

/// Address of client `index`.
pub(crate) fn client_at(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, (index / 200) as u8, (index % 200 + 1) as u8)), 4000)
}

/// Returns the server's address with `port`, which is the well-known port or the port of its connections.
pub(crate) fn server_at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), port)
}

/// Faults of the network, in percent of packets, and its maximum delay in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) twice: u64,
    pub(crate) delay: Nanos,
    pub(crate) damage: u64,
}

/// The scripted reply of the consumer to a request, with its delay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConsumerReply {
    Accept(Nanos),
    Reject(Nanos),
    HandOff(u64),
    Never,
}

/// A client and its connection attempt.
pub(crate) struct Client {
    pub(crate) at: SocketAddr,
    pub(crate) connector: Connector,
    pub(crate) own_offer: (u32, u64),
    pub(crate) confirming: Option<Confirming>,
    pub(crate) agreed: Option<HandshakeResult>,
    pub(crate) outcome: Option<String>,
    pub(crate) private: Vec<u8>,
}

pub(crate) struct Accepted {
    pub(crate) agreed: HandshakeResult,
    pub(crate) id: RequestId,
    pub(crate) established: bool,
}

pub(crate) struct SetupSim {
    pub(crate) now: Nanos,
    pub(crate) dice: TestRandom,
    pub(crate) faults: Faults,
    pub(crate) setup: Arc<Setup>,
    pub(crate) clients: Vec<Client>,
    pub(crate) acceptor: Acceptor,
    pub(crate) conns: BTreeMap<u32, Accepted>,
    pub(crate) reply: fn(u64) -> ConsumerReply,
    /// Whether the well-known port is closed.
    pub(crate) is_unreachable: bool,
    /// Planned replies of the consumer, with their times.
    plans: Vec<(Nanos, RequestId, ConsumerReply)>,
    pub(crate) asked: Vec<RequestId>,
    pub(crate) left: Vec<RequestId>,
    /// Packets in flight: arrival time, source, destination, bytes.
    pub(crate) in_flight: Vec<(Nanos, SocketAddr, SocketAddr, Vec<u8>)>,
    /// All packets ever sent.
    pub(crate) log: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Selects packets that are dropped in addition to random loss.
    pub(crate) drops: fn(&PacketHeader, u64) -> bool,
    sent: BTreeMap<u8, u64>,
    /// For each source address: bytes received from it, bytes sent to it, and whether it is verified.
    pub(crate) bytes: BTreeMap<SocketAddr, (u64, u64, bool)>,
    next_conn: u32,
}

impl SetupSim {
    pub(crate) fn new(seed: u64, config: SetupConfig, secret: Option<&str>) -> SetupSim {
        let mut dice = TestRandom::new(seed);
        let setup = Arc::new(Setup::new(config, secret.and_then(|secret| Psk::new(secret.as_bytes()))));
        let acceptor = Acceptor::new(setup.clone(), 0, &mut dice);
        SetupSim {
            now: 0,
            dice,
            faults: Faults { delay: MILLIS, ..Faults::default() },
            setup,
            clients: Vec::new(),
            acceptor,
            conns: BTreeMap::new(),
            reply: |_| ConsumerReply::Accept(0),
            is_unreachable: false,
            plans: Vec::new(),
            asked: Vec::new(),
            left: Vec::new(),
            in_flight: Vec::new(),
            log: Vec::new(),
            drops: |_, _| false,
            sent: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next_conn: 1,
        }
    }

    /// Starts another client, which has the same key as the server.
    pub(crate) fn client(&mut self) -> usize {
        self.client_with(self.setup.clone(), QUAL)
    }

    pub(crate) fn client_with(&mut self, setup: Arc<Setup>, qual: u64) -> usize {
        let index = self.clients.len();
        self.next_conn += 1;
        let offer =
            Offer { ord: 4.into(), ird: 2.into(), mtu: 1500.into(), ..Offer::new(self.next_conn, &mut self.dice) };
        let (server, private) = (server_at(WELL_KNOWN), vec![index as u8; index * 7 % (MAX_PRIVATE + 1)]);
        let connector = Connector::new(setup, server, qual, offer, &private, self.now);
        self.clients.push(Client {
            at: client_at(index),
            connector,
            own_offer: (offer.conn.get(), offer.token.get()),
            confirming: None,
            agreed: None,
            outcome: None,
            private,
        });
        index
    }

    /// Restarts the server, which loses its state.
    pub(crate) fn restart_server(&mut self) {
        self.acceptor = Acceptor::new(self.setup.clone(), self.now, &mut self.dice);
        self.conns.clear();
        self.plans.clear();
    }

    pub(crate) fn send(&mut self, from: SocketAddr, to: SocketAddr, packet: Vec<u8>) {
        self.log.push((from, to, packet.clone()));
        self.account(from, to, packet.len() as u64, true);
        let (head, _) = wire::head(&packet).expect("the packet has a complete header");
        let count = self.sent.entry(head.kind).or_default();
        *count += 1;
        if (self.drops)(&head, *count) || self.dice.below(100) < self.faults.loss {
            return;
        }
        for _ in 0..if self.dice.below(100) < self.faults.twice { 2 } else { 1 } {
            let mut packet = packet.clone();
            if self.dice.below(100) < self.faults.damage {
                let bit = self.dice.below(packet.len() as u64 * 8) as usize;
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            let at = self.now + 1 + self.dice.below(self.faults.delay.max(1));
            self.in_flight.push((at, from, to, packet));
        }
    }

    fn account(&mut self, from: SocketAddr, to: SocketAddr, length: u64, leaves: bool) {
        if to.ip() == server_at(0).ip() && !leaves {
            self.bytes.entry(from).or_default().0 += length;
        } else if from.ip() == server_at(0).ip() && leaves {
            let (received, sent, is_verified) = self.bytes.entry(to).or_default();
            *sent += length;
            assert!(
                *is_verified || *sent <= 3 * *received,
                "{sent} bytes were sent to {to}, which is unverified and sent {received} bytes"
            );
        }
    }

    /// Runs until `end`, or until no event occurs before `end`.
    pub(crate) fn run(&mut self, end: Nanos) {
        loop {
            self.act();
            let deadlines = self.clients.iter().flat_map(|client| {
                let confirming = client.confirming.and_then(|it| it.deadline());
                client.connector.deadline().into_iter().chain(confirming)
            });
            let plans = self.plans.iter().map(|(at, ..)| *at);
            let in_flight = self.in_flight.iter().map(|(at, ..)| *at);
            let next = deadlines.chain(plans).chain(in_flight).chain(self.acceptor.deadline()).min();
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Processes all packets and deadlines that are due now.
    fn act(&mut self) {
        let now = self.now;
        let (arrived, in_flight) = std::mem::take(&mut self.in_flight).into_iter().partition(|(at, ..)| *at <= now);
        self.in_flight = in_flight;
        let mut arrived: Vec<_> = arrived;
        arrived.sort_by_key(|(at, ..)| *at);
        for (_, from, to, packet) in arrived {
            if to.ip() == server_at(0).ip() {
                self.account(from, to, packet.len() as u64, false);
                self.at_server(from, to, packet);
            } else {
                self.at_client(from, to, packet);
            }
        }
        self.consumer();
        let mut out = Vec::new();
        while let Some(due) = self.acceptor.poll(now, &mut out) {
            match due {
                ExpiredAttempt::Send(to) => self.send(server_at(5000), to, std::mem::take(&mut out)),
                ExpiredAttempt::Failed(id) => self.left.push(id),
            }
        }
        for index in 0..self.clients.len() {
            self.client_time(index);
        }
    }

    fn client_time(&mut self, index: usize) {
        let (now, mut out) = (self.now, Vec::new());
        let client = &mut self.clients[index];
        if let Some(outcome) = client.connector.on_time(now) {
            client.outcome = Some(name(&outcome));
        }
        let at = client.at;
        if let Some(to) = client.connector.transmit(now, &mut self.dice, &mut out) {
            self.send(at, to, std::mem::take(&mut out));
        }
        let client = &mut self.clients[index];
        if let (Some(confirming), Some(agreed)) = (&mut client.confirming, &mut client.agreed)
            && confirming.transmit(now, &agreed.terms, &mut out)
        {
            let to = agreed.terms.peer;
            seal(agreed, &mut out);
            self.send(at, to, out);
        }
    }

    fn at_client(&mut self, from: SocketAddr, to: SocketAddr, mut packet: Vec<u8>) {
        let Some((head, _)) = wire::head(&packet) else { return };
        let mut out = Vec::new();
        let of = |client: &&mut Client| client.at == to && client.own_offer == (head.conn.get(), head.token.get());
        let Some(client) = self.clients.iter_mut().find(of) else {
            if refuse_unmatched(&self.setup, &packet, &mut self.dice, &mut out) {
                self.send(to, from, out);
            }
            return;
        };
        if let Some(agreed) = &mut client.agreed {
            // As in `Conn`, a repeated accept causes an ack and does not stop the confirmation. With a key, the
            // connection ignores it.
            if !opens(agreed, &mut packet) {
                return;
            }
            if head.kind() == Some(Kind::Accept) {
                out.extend_from_slice(packets::head(Kind::Ack, &agreed.terms).as_bytes());
                seal(agreed, &mut out);
                self.send(to, from, out);
            } else if head.kind() != Some(Kind::Cookie) {
                client.confirming.as_mut().expect("the client is established").record_packet();
            }
            return;
        }
        match client.connector.receive(self.now, &packet, from, &mut self.dice) {
            Some(ConnectOutcome::Established { agreed, private_data }) => {
                client.outcome = Some(format!("Established {private_data:?}"));
                let SetupConfig { first_repeat, last_repeat, give_up, .. } = self.setup.config;
                client.confirming = Some(Confirming::new(self.now, first_repeat, last_repeat, self.now + give_up));
                client.agreed = Some(agreed);
            }
            Some(outcome) => client.outcome = Some(name(&outcome)),
            None => {}
        }
    }

    fn at_server(&mut self, from: SocketAddr, to: SocketAddr, mut packet: Vec<u8>) {
        let (now, mut out) = (self.now, Vec::new());
        if let Some(request_head) =
            packets::request_head(&packet).filter(|_| to.port() != WELL_KNOWN || !self.is_unreachable)
        {
            let listens = (QUAL..QUAL + 10).contains(&request_head.qual());
            match self.acceptor.receive(now, &packet, from, listens, &mut self.dice, &mut out) {
                PacketResult::Nothing | PacketResult::Unreadable => {}
                PacketResult::Reply => {}
                PacketResult::Requested(id) => self.is_requested(id),
                PacketResult::Withdrawn(id) => self.left.push(id),
            }
            if !out.is_empty() {
                self.send(server_at(5000), from, out);
            }
            return;
        }
        let Some((head, _)) = wire::head(&packet) else { return };
        let Some(conn) = self.conns.get_mut(&head.conn.get()) else { return };
        if head.token.get() != conn.agreed.terms.our_token {
            return;
        }
        if !opens(&mut conn.agreed, &mut packet.clone()) || head.kind() == Some(Kind::Reset) {
            if let PacketResult::Withdrawn(id) = self.acceptor.reset(now, &packet) {
                self.left.push(id);
            }
            return;
        }
        if let Some(id) = self.acceptor.confirmed(now, head.conn.get(), head.token.get()) {
            assert_eq!(id, conn.id);
            conn.established = true;
        }
        if conn.established {
            self.bytes.entry(from).or_default().2 |= from == conn.agreed.terms.peer;
            packet.clear();
            packet.extend_from_slice(packets::head(Kind::Ack, &conn.agreed.terms).as_bytes());
            seal(&mut conn.agreed, &mut packet);
            self.send(server_at(5000), from, packet);
        }
    }

    fn is_requested(&mut self, id: RequestId) {
        self.asked.push(id);
        let request = self.acceptor.request(id).expect("the request has just arrived");
        let client = self.clients.iter().find(|client| client.at == request.from);
        assert!(
            client.is_none_or(|client| client.private == request.private_data),
            "the request has the private data of its client"
        );
        let reply = (self.reply)(request.qual);
        let at = match reply {
            ConsumerReply::Accept(after) | ConsumerReply::Reject(after) => self.now + after,
            _ => self.now,
        };
        self.plans.push((at, id, reply));
    }

    fn consumer(&mut self) {
        let now = self.now;
        let (due, plans): (Vec<_>, _) = std::mem::take(&mut self.plans).into_iter().partition(|(at, ..)| *at <= now);
        self.plans = plans;
        for (_, id, reply) in due {
            match reply {
                ConsumerReply::Accept(_) => self.accept(id),
                ConsumerReply::Reject(_) => self.acceptor.reject(now, id, RejectReason::Refused, &[], &mut self.dice),
                ConsumerReply::HandOff(qual) => {
                    self.acceptor.reject(now, id, RejectReason::HandedOff(qual), &[], &mut self.dice)
                }
                ConsumerReply::Never => {}
            }
        }
    }

    fn accept(&mut self, id: RequestId) {
        self.next_conn += 1;
        let offer =
            Offer { ord: 1.into(), ird: 3.into(), mtu: 9000.into(), ..Offer::new(self.next_conn, &mut self.dice) };
        match self.acceptor.accept(self.now, id, &offer, b"welcome", &mut self.dice) {
            Some(agreed) => {
                self.conns.insert(offer.conn.get(), Accepted { agreed, id, established: false });
            }
            None => assert!(self.left.contains(&id), "an accept fails only if the client has withdrawn its request"),
        }
    }

    /// Checks that both hosts have agreed on the same parameters.
    pub(crate) fn check(&self) {
        for client in &self.clients {
            let Some(own_offer) = client.agreed.as_ref().map(|agreed| agreed.terms) else { continue };
            let Some(conn) = self.conns.get(&own_offer.peer_conn) else { continue };
            let peer_offer = conn.agreed.terms;
            assert_eq!((own_offer.our_conn, own_offer.our_token), (peer_offer.peer_conn, peer_offer.peer_token));
            assert_eq!((own_offer.peer_conn, own_offer.peer_token), (peer_offer.our_conn, peer_offer.our_token));
            assert_eq!(
                (own_offer.first_psn, own_offer.peer_first_psn),
                (peer_offer.peer_first_psn, peer_offer.first_psn)
            );
            assert_eq!((own_offer.ord, own_offer.ird, peer_offer.ord, peer_offer.ird), (3, 1, 1, 3));
            assert_eq!((own_offer.mtu_ceiling, peer_offer.mtu_ceiling), (1500, 1500));
            assert_eq!(own_offer.overhead, peer_offer.overhead);
            assert_eq!(
                (peer_offer.peer, own_offer.peer, own_offer.active, peer_offer.active),
                (client.at, server_at(5000), true, false)
            );
            assert_eq!(client.outcome.as_deref(), Some(format!("Established {:?}", b"welcome").as_str()));
        }
    }
}

/// Seals an outgoing packet as a connection does.
fn seal(agreed: &mut HandshakeResult, packet: &mut Vec<u8>) {
    if let Some(seal) = &mut agreed.seal {
        assert!(seal.seal(packet, 0));
    }
}

/// Opens an incoming packet as a connection does.
fn opens(agreed: &mut HandshakeResult, packet: &mut [u8]) -> bool {
    agreed.seal.as_mut().is_none_or(|seal| seal.open(packet).is_some())
}

fn name(outcome: &ConnectOutcome) -> String {
    match outcome {
        ConnectOutcome::Ended(event, data, _) if !data.is_empty() => format!("{event:?} with {} bytes", data.len()),
        ConnectOutcome::Ended(event, _, Some(reason)) => format!("{event:?}({reason:?})"),
        ConnectOutcome::Ended(event, _, None) => format!("{event:?}"),
        ConnectOutcome::Established { .. } => "Established".to_string(),
    }
}
