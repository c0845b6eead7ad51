//! The transport of an established connection: decrypts received packets and passes them to the protocol, and sends
//! the packets of the protocol with their payload. The protocol decides which packet is sent, and when.
//!
//! The kernel gathers payload from registered memory. The sending thread holds references on the registrations until
//! the send call has returned. Short packets and encrypted packets contain a copy of their payload.
//!
//! The lock of the transport's owner, a queue pair or a closing connection, guards the transport.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use dapl::provider::{ConnId, Segment, Status, Token, Work};
use rustix::net::SocketAddrAny;

use crate::memory::regions::RegistrationGuards;
use crate::net::errors::{DeliveryError, DeliveryErrorKind};
use crate::net::receive::PacketRun;
use crate::net::send::{SendBatch, SendOutcome};
use crate::net::short_packet::ShortPacket;
use crate::net::socket::Socket;
use crate::proto::congestion::Algorithm;
use crate::proto::conn::{AfterShortSend, Conn, ConnCallbacks, ConnConfig, OutgoingPacket, Payload};
use crate::proto::path::{BASE, HEADERS_V4, HEADERS_V6};
use crate::proto::schedule::PendingWork;
use crate::proto::seal::Seal;
use crate::proto::wire::{self, FRAGMENT};
use crate::proto::{MICROS, Nanos};
use crate::qp::context::{QpContext, TransportHost};
use crate::qp::handler::{ConnectionParams, NextService};

/// Time in nanoseconds between attempts to send on a full socket.
const RETRY_FULL: Nanos = 100 * MICROS;
/// Maximum number of memory ranges of a packet: its header, the segments of a request, and a trailer.
const MAX_PARTS: usize = 40;
/// A batch of at least this size in bytes gets no further packet.
const BATCH_TARGET: usize = 60_000;

/// The protocol state of a connection.
pub(crate) type ProtoConn = Conn<QpContext>;

pub(crate) struct Transport {
    pub(crate) number: u32,
    pub(crate) id: ConnId,
    pub(crate) next_service: Arc<NextService>,
    pub(crate) conn: ProtoConn,
    our_token: u64,
    socket: Arc<Socket>,
    seal: Option<Box<Seal>>,
    /// Size in bytes of the IP and UDP headers.
    headers: usize,
    /// Packets that a full socket did not accept, their destination, and the time of the next attempt.
    blocked: Option<(SendBatch, SocketAddr, Nanos)>,
    /// Destination of short packets, also in the kernel's format. Valid while short sends are permitted.
    short_to: (SocketAddr, SocketAddrAny),
}

/// Buffers for building a batch. They belong to a thread, so that idle connections need no buffers.
#[derive(Default)]
struct SendScratch {
    batch: SendBatch,
    guards: RegistrationGuards,
    /// For each packet of the batch, its payload's source, which identifies the request to fail if the source is
    /// unreadable, and whether the packet is a retransmission.
    carried: Vec<(Payload, bool)>,
}

thread_local! {
    static SCRATCH: RefCell<SendScratch> = RefCell::default();
}

impl Transport {
    pub(crate) fn new(config: &ConnConfig, params: ConnectionParams, now: Nanos) -> Self {
        let terms = params.agreed.terms;
        let headers = if terms.peer.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        // Packets to this host cross no network, so there is no path to probe or model.
        let (mtu_start, congestion) = match params.path.is_local {
            true => (params.path.ceiling, Algorithm::Local),
            false => (BASE - headers, config.congestion),
        };
        let config = ConnConfig { mtu_start, congestion, ip_headers: headers, ..config.clone() };
        Transport {
            number: params.number,
            id: params.conn,
            next_service: params.next_service,
            conn: Conn::new(&config, terms, now),
            our_token: terms.our_token,
            socket: params.socket,
            seal: params.agreed.seal,
            headers,
            blocked: None,
            short_to: (terms.peer, SocketAddrAny::from(terms.peer)),
        }
    }

    pub(crate) fn pending_work(&self, now: Nanos) -> PendingWork {
        if let Some((_, _, again)) = self.blocked {
            let ready = again <= now;
            return PendingWork { ready, deadline: (!ready).then_some(again), ..PendingWork::default() };
        }
        let pending_work = self.conn.pending_work(now).most_urgent_only();
        // An expired deadline is omitted if `transmit` will be called: the deadline may be that of an ack that
        // `transmit` sends, and is computed again afterwards. Otherwise the deadline is later than `now`, because a
        // pass handles all deadlines up to `now`, and would not end.
        let needs_service = pending_work.needs_service();
        let deadline = pending_work.deadline.filter(|at| *at > now || !needs_service).map(|at| at.max(now + 1));
        PendingWork { deadline, ..pending_work }
    }

    /// Handles packets with this connection's number, and decrypts them in place. Drops packets with a wrong token, or
    /// with failed authentication, and returns their number.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        packets: PacketRun<'_>,
        host: &mut impl ConnCallbacks<QpContext>,
    ) -> usize {
        let mut unmatched = 0;
        for packet in packets {
            let opened = match &mut self.seal {
                Some(seal) => seal.open(packet),
                None => wire::head(packet),
            };
            match opened.filter(|(head, _)| head.token.get() == self.our_token) {
                Some((head, body)) => self.conn.receive(now, &head, body, from, host),
                None => unmatched += 1,
            }
        }
        unmatched
    }

    /// Handles an ICMP message about a datagram to the peer, or a local error.
    ///
    /// An attacker off the path can forge an ICMP message, but not the quote of a packet of this connection (RFC 5927).
    /// An ICMP message "too large" without such a quote has no effect (RFC 8899, 4.6.1). "Port unreachable" without a
    /// quote only causes a challenge to the peer, and so does any other "unreachable".
    pub(crate) fn on_delivery_error(&mut self, now: Nanos, error: &DeliveryError) {
        let is_quoted = || self.conn.is_quoted(&error.quote, self.seal.is_some());
        match error.kind {
            DeliveryErrorKind::TooLarge(bytes) if error.is_local || is_quoted() => {
                self.conn.too_large(now, (bytes as usize).saturating_sub(self.headers));
            }
            DeliveryErrorKind::TooLarge(_) => {}
            DeliveryErrorKind::PortClosed if is_quoted() => self.conn.port_closed(now),
            DeliveryErrorKind::PortClosed | DeliveryErrorKind::Unreachable => self.conn.on_icmp_error(now),
        }
    }

    /// Sends one batch, unless an earlier batch waits because the socket is full.
    pub(crate) fn transmit(&mut self, now: Nanos, host: &mut impl TransportHost) {
        self.send_until(now, host, |_| false);
    }

    /// Sends one batch, which ends when no request waits to be sent, unless an earlier batch waits because the socket
    /// is full. Then does the work that reception has deferred.
    pub(crate) fn send_now(&mut self, now: Nanos, host: &mut impl TransportHost) {
        self.send_until(now, host, |conn| !conn.has_requests());
        self.conn.process_deferred_receptions(host); // Deferred until here, so that the packet is sent earlier.
    }

    /// Posts a send without flags, or with only SUPPRESS, and sends it as a short packet. Returns `None`, without
    /// effect, if the send must wait or needs another packet format. `most` is the maximum number of outstanding
    /// requests.
    #[inline(always)]
    pub(crate) fn send_short<const SUPPRESS: bool>(
        &mut self,
        now: Nanos,
        segment: &Segment,
        cookie: u64,
        most: u32,
        mut context: &QpContext,
    ) -> Option<AfterShortSend> {
        let mut packet = ShortPacket::<FRAGMENT>::new();
        if !self.conn.permits_short(segment.length) && !self.permit_short(now, segment.length, most) {
            return None;
        }
        if !context.gather_short(segment, &mut packet) {
            return None;
        }
        let (send, request) = self.conn.send_short(now, segment.length as u32)?;
        let token = Token { cookie, ep: context.ep.handle, work: Work::Send, ..Token::default() };
        request.set_plain(segment, token, SUPPRESS);
        let packet = packet.finish(zerocopy::transmute!(self.conn.short_header(send, &context)));
        if !self.socket.send_packet(packet, &self.short_to.1) {
            self.send_in_batch(now, packet, context);
            return Some(AfterShortSend::Anything);
        }
        Some(self.conn.after_short_send(&mut context))
    }

    /// Permits short sends ([`Conn::permit_short`]), unless packets are encrypted or the socket is full.
    #[inline(never)]
    fn permit_short(&mut self, now: Nanos, length: u64, most: u32) -> bool {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let may = self.seal.is_none() && self.blocked.is_none() && self.conn.permit_short(now, length, most);
        let peer = self.conn.peer();
        if self.short_to.0 != peer {
            self.short_to = (peer, SocketAddrAny::from(peer)); // The peer's address has changed.
        }
        may
    }

    /// Sends a short packet as a batch after the direct send call has failed.
    #[cold]
    #[inline(never)]
    fn send_in_batch(&mut self, now: Nanos, packet: &[u8], mut context: &QpContext) {
        self.conn.withdraw_permit();
        let to = self.conn.peer();
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.batch.header_buffer().extend_from_slice(packet);
            scratch.batch.end_packet();
            // The payload was already copied, so no request can fail because of its memory.
            scratch.carried.push((Payload::None, false));
            self.send(scratch, to, now, &mut context);
        });
    }

    fn send_until(&mut self, now: Nanos, host: &mut impl TransportHost, is_enough: impl Fn(&ProtoConn) -> bool) {
        if let Some((mut batch, to, again)) = self.blocked.take() {
            if now < again {
                self.blocked = Some((batch, to, again));
                return;
            }
            // The batch contains copies of the payload, so no request can fail here. Missing acks reveal lost packets.
            let SendOutcome { is_blocked, overflows, .. } = batch.send(&self.socket, to);
            if overflows {
                self.conn.overflowed(now);
            }
            if is_blocked {
                self.blocked = Some((batch, to, now + RETRY_FULL));
                return;
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let to = self.fill(scratch, now, host, is_enough);
            if !scratch.batch.is_empty() {
                self.send(scratch, to, now, host);
            }
            if let Some(context) = host.context() {
                scratch.guards.release(&context.regions);
            }
        })
    }

    /// Fills the batch with packets that may be sent now. Returns the destination of the batch.
    fn fill(
        &mut self,
        scratch: &mut SendScratch,
        now: Nanos,
        host: &mut impl TransportHost,
        is_enough: impl Fn(&ProtoConn) -> bool,
    ) -> SocketAddr {
        let mut batch_to = None;
        while scratch.batch.has_capacity(0, MAX_PARTS) && scratch.batch.bytes() < BATCH_TARGET {
            let Some(outgoing) = self.conn.transmit(now, scratch.batch.header_buffer(), host) else { break };
            let to = outgoing.to.unwrap_or_else(|| self.conn.peer());
            if let Err(status) = self.append_payload(scratch, &outgoing, host.context()) {
                scratch.batch.drop_packet();
                self.conn.source_unreadable(outgoing.payload, outgoing.resend, status, host);
                continue;
            }
            scratch.batch.end_packet();
            scratch.carried.push((outgoing.payload, outgoing.resend));
            // A packet to another address than the peer's ends the batch, because a batch has one destination. No
            // packet to the peer precedes it (`Conn::send_control`).
            if *batch_to.get_or_insert(to) != to || to != self.conn.peer() || is_enough(&self.conn) {
                break;
            }
        }
        batch_to.unwrap_or_else(|| self.conn.peer())
    }

    /// Appends the payload of a packet to its header. If the connection has a key, copies the payload and encrypts the
    /// packet. Fails if the memory of the payload is not accessible.
    fn append_payload(
        &mut self,
        scratch: &mut SendScratch,
        outgoing: &OutgoingPacket,
        context: Option<&QpContext>,
    ) -> Result<(), Status> {
        let SendScratch { batch, guards, .. } = scratch;
        let is_sealed = self.seal.is_some();
        let start = batch.header_buffer().len() - outgoing.header;
        // SAFETY: both callers below have added a reference on the registration of the memory to `guards`, which holds
        // it until the batch is sent. The kernel returns an error for unmapped memory.
        let add = |batch: &mut SendBatch, address: u64, length: u64| unsafe {
            batch.memory(address as *const u8, length as usize)
        };
        match (outgoing.payload, context) {
            (Payload::None, _) => {}
            (Payload::Request { slot, offset, length }, Some(context)) => {
                let Some(request) = self.conn.request(slot) else { return Err(Status::LocalEp) };
                if is_sealed {
                    context.gather(&request.segments, offset.into(), length as usize, batch.header_buffer())?;
                } else {
                    request.segments.slice(offset.into(), length.into()).try_for_each(|segment| {
                        guards.acquire(&context.regions, context.pd, &segment)?;
                        add(batch, segment.address, segment.length);
                        Ok(())
                    })?;
                }
            }
            (Payload::Remote { key, address, length, .. }, Some(context)) => {
                let segment = Segment { key, pad: 0, address, length: length.into() };
                if is_sealed {
                    context.append_readable(&segment, batch.header_buffer())?;
                } else {
                    let address = guards.acquire_for_peer(&context.regions, context.peer_ids(), &segment)?;
                    add(batch, address, segment.length);
                }
            }
            (Payload::Padding(length), _) => batch.padding(length as usize),
            (Payload::Request { .. } | Payload::Remote { .. }, None) => return Err(Status::LocalEp),
        }
        // Encryption fails only if the 64-bit packet counter is used up.
        let is_sent = self.seal.as_mut().is_none_or(|seal| seal.seal(batch.header_buffer(), start));
        if is_sent { Ok(()) } else { Err(Status::Transport) }
    }

    fn send(
        &mut self,
        scratch: &mut SendScratch,
        to: SocketAddr,
        now: Nanos,
        host: &mut impl ConnCallbacks<QpContext>,
    ) {
        let SendOutcome { is_blocked, overflows, too_large, fault, .. } = scratch.batch.send(&self.socket, to);
        if let Some(bytes) = too_large {
            self.conn.too_large(now, bytes.saturating_sub(1));
        }
        if let Some((payload, resend)) = fault.and_then(|packet| scratch.carried.get(packet)) {
            self.conn.source_unreadable(*payload, *resend, Status::LocalProtection, host);
        }
        scratch.carried.clear();
        if overflows {
            self.conn.overflowed(now);
        }
        if is_blocked {
            self.blocked = Some((std::mem::take(&mut scratch.batch), to, now + RETRY_FULL));
        }
    }
}
