//! One side of an established connection of the simulation. It checks each packet that this side sends.
//!
//! Acks must cover only packets that have arrived. Data packets must be within the window of `WINDOW` packets from the
//! first packet that the peer has not acked. Neither is checked if packets may be corrupted without authentication.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use dapl::provider::Status;

use super::network::Datagram;
use super::oracle::OracleHost;
use super::scenario::EndpointPlan;
use crate::proto::conn::{Conn, ConnConfig, OutgoingPacket, Payload};
use crate::proto::psn::Psn;
use crate::proto::seal::{self, Seal};
use crate::proto::setup::{ConnectionTerms, HandshakeResult};
use crate::proto::wire::{self, Data, Kind, PacketHeader};
use crate::proto::{MILLIS, Nanos, WINDOW};

pub(super) struct SimConnection {
    pub(super) link: usize,
    pub(super) conn: Conn<OracleHost>,
    pub(super) host: OracleHost,
    pub(super) terms: ConnectionTerms,
    seal: Option<Box<Seal>>,
    pub(super) burst: usize,
    /// PSNs that have arrived: all before `all_before`, and the PSNs in `more`. Both are relative to the peer's first
    /// PSN.
    all_before: u32,
    more: BTreeSet<u32>,
    /// For each re-fragmented packet, by its relative PSN: whether each of its bytes has arrived.
    pieces: BTreeMap<u32, Vec<bool>>,
    /// The peer has acked all packets before this PSN, which is relative to this side's first PSN.
    acked: u32,
    loose: bool,
}

/// Returns the configuration of a connection for one side.
pub(super) fn config(plan: &EndpointPlan, window_kib: u16) -> ConnConfig {
    ConnConfig {
        max_requests: plan.max_requests,
        max_recvs: plan.max_recvs,
        shared: plan.shared,
        window: plan.window,
        window_kib,
        command_depth: plan.depth,
        data_depth: plan.depth.max(2),
        keepalive: plan.keepalive,
        linger: 500 * MILLIS,
        mtu_start: plan.mtu_start,
        congestion: plan.congestion,
        ..ConnConfig::default()
    }
}

impl SimConnection {
    pub(super) fn new(
        link: usize,
        agreed: HandshakeResult,
        config: &ConnConfig,
        host: OracleHost,
        burst: usize,
        now: Nanos,
    ) -> SimConnection {
        let terms = agreed.terms;
        let loose = host.oracle.borrow().loose;
        SimConnection {
            link,
            conn: Conn::new(config, terms, now),
            terms,
            seal: agreed.seal,
            burst,
            all_before: 0,
            more: BTreeSet::new(),
            pieces: BTreeMap::new(),
            acked: 0,
            loose,
            host,
        }
    }

    pub(super) fn receive(&mut self, now: Nanos, datagram: &mut Datagram) {
        let Datagram { from, garbled, .. } = *datagram;
        let opened = match &mut self.seal {
            Some(seal) => seal.open(&mut datagram.bytes),
            None => wire::head(&datagram.bytes),
        };
        if let Some((head, body)) = opened.map(|(head, body)| (head, body.to_vec())) {
            self.receive_opened(now, from, &head, &body, garbled);
        }
    }

    /// Handles the packet that confirmed the accept. `Peer` has already decrypted it.
    pub(super) fn receive_first(&mut self, now: Nanos, datagram: &Datagram) {
        let Some((head, body)) = wire::head(&datagram.bytes) else { return };
        let seal = if self.seal.is_some() { seal::OVERHEAD } else { 0 };
        self.receive_opened(now, datagram.from, &head, &body[..body.len() - seal], datagram.garbled);
    }

    fn receive_opened(&mut self, now: Nanos, from: SocketAddr, head: &PacketHeader, body: &[u8], garbled: bool) {
        if head.token.get() != self.terms.our_token {
            return;
        }
        if !garbled {
            self.record_arrival(head, body);
        }
        self.conn.receive(now, head, body, from, &mut self.host);
        self.record_event();
    }

    fn record_arrival(&mut self, head: &PacketHeader, body: &[u8]) {
        let next = match head.kind() {
            Some(kind @ (Kind::Fragment | Kind::Chunk | Kind::Piece)) => {
                let Some(data) = wire::data(kind, body) else { return };
                let at = data.carried.psn.get().wrapping_sub(self.terms.peer_first_psn.0);
                if at >= self.all_before && self.record_piece(at, &data) {
                    self.more.insert(at);
                }
                while self.more.remove(&self.all_before) {
                    self.all_before += 1;
                }
                data.carried.ack.next.get()
            }
            Some(Kind::Ack) => wire::ack(body).map_or(self.terms.first_psn.0, |(ack, ..)| ack.next.get()),
            _ => return,
        };
        self.acked = self.acked.max(next.wrapping_sub(self.terms.first_psn.0));
    }

    /// Records the bytes of a data packet with relative PSN `at`. Returns whether the packet is complete: a piece of a
    /// re-fragmented packet completes it only when all bytes of that packet have arrived.
    fn record_piece(&mut self, at: u32, data: &Data<'_>) -> bool {
        let Some(extent) = data.extent else { return true };
        let have = self.pieces.entry(at).or_insert_with(|| vec![false; extent.length() as usize]);
        let start = (data.offset - extent.start.get()) as usize;
        have[start..start + data.payload.len()].fill(true);
        have.iter().all(|here| *here)
    }

    /// Passes a pending event of the connection to the oracle.
    pub(super) fn record_event(&mut self) {
        if let Some(event) = self.conn.take_event() {
            self.host.oracle.borrow_mut().sides[self.host.side].events.push(event);
        }
    }

    /// Returns the next packet to send, and its destination.
    pub(super) fn transmit(&mut self, now: Nanos) -> Option<(SocketAddr, Vec<u8>)> {
        let mut bytes = Vec::new();
        while self.conn.pending_work(now).needs_service() {
            bytes.clear();
            let out = self.conn.transmit(now, &mut bytes, &mut self.host)?;
            assert_eq!(out.header, bytes.len());
            self.check_outgoing(&bytes);
            let to = out.to.unwrap_or(self.conn.peer());
            if let Some(bytes) = self.gather(out, std::mem::take(&mut bytes)) {
                return self.finish(bytes).map(|bytes| (to, bytes));
            }
        }
        None
    }

    fn gather(&mut self, out: OutgoingPacket, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let oracle = self.host.oracle.clone();
        let oracle = oracle.borrow();
        let payload = match out.payload {
            Payload::None => Some(&[][..]),
            Payload::Padding(length) => {
                bytes.resize(bytes.len() + length as usize, 0);
                Some(&[][..])
            }
            Payload::Request { slot, offset, length } => {
                let request = self.conn.request(slot).expect("the slot belongs to an active request");
                oracle.source(self.host.side, request, offset, length)
            }
            Payload::Remote { key, address, length, .. } => oracle.remote(self.host.side, key, address, length),
        };
        let Some(payload) = payload else {
            drop(oracle);
            self.conn.source_unreadable(out.payload, out.resend, Status::LocalProtection, &mut self.host);
            return None;
        };
        bytes.extend_from_slice(payload);
        assert!(bytes.len() <= self.terms.mtu_ceiling, "a packet must not be larger than the agreed MTU");
        Some(bytes)
    }

    fn finish(&mut self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.seal.as_mut().is_none_or(|seal| seal.seal(&mut bytes, 0)).then_some(bytes)
    }

    /// Panics if the PSN or the acks of an outgoing packet are wrong (see the module).
    fn check_outgoing(&self, bytes: &[u8]) {
        let Some((head, body)) = wire::head(bytes).filter(|_| !self.loose) else { return };
        assert_eq!((head.conn.get(), head.token.get()), (self.terms.peer_conn, self.terms.peer_token));
        let (first, ours) = (self.terms.peer_first_psn, self.terms.first_psn);
        let next = match head.kind() {
            Some(Kind::Fragment | Kind::Chunk | Kind::Piece) => {
                let psn = u32::from_be_bytes(body[..4].try_into().expect("the slice has four bytes"));
                let at = psn.wrapping_sub(ours.0);
                assert!(
                    at < self.acked.saturating_add(WINDOW),
                    "packet {at} is beyond the window, which begins at {}",
                    self.acked
                );
                u32::from_be_bytes(body[4..8].try_into().expect("the slice has four bytes"))
            }
            Some(Kind::Ack) => {
                let (ack, _, ranges) = wire::ack(body).expect("an ack packet that this connection encoded is valid");
                for range in ranges {
                    let mut at = Psn(range.first.get());
                    while at != Psn(range.end.get()) {
                        let place = at.0.wrapping_sub(first.0);
                        assert!(
                            place < self.all_before || self.more.contains(&place),
                            "packet {place} is acked, but has not arrived"
                        );
                        at = at.plus(1);
                    }
                }
                ack.next.get()
            }
            _ => return,
        };
        let next = next.wrapping_sub(first.0);
        assert!(
            next <= self.all_before,
            "the ack covers packets before {next}, but only those before {} were received",
            self.all_before
        );
    }

    /// Returns the time of the connection's next action.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.conn.deadline()
    }
}
