//! The send path decides when a packet may be sent, and its maximum size. It combines the congestion window, the peer's
//! receive window, the pacer and the search for the path MTU. Sizes are bytes of datagrams.

use super::types::ConnConfig;
use crate::proto::Nanos;
use crate::proto::congestion::{AckEvent, Congestion, Controller, LossEvent, SentPacket};
use crate::proto::flight::{AckResult, LostPackets, UnackedPackets};
use crate::proto::pacer::Pacer;
use crate::proto::path::PathMtu;
use crate::proto::setup::ConnectionTerms;
use crate::proto::wire::{CHUNK, FRAGMENT, PIECE};

/// Number of probe timeouts that establish persistent congestion: kPersistentCongestionThreshold (RFC 9002, 7.6.1).
const PERSISTENT_CONGESTION_THRESHOLD: Nanos = 3;

pub(super) struct SendPath {
    congestion: Congestion,
    pacer: Pacer,
    pub(super) path: PathMtu,
    /// Size of the peer's socket receive buffer in bytes.
    peer_window: u64,
    /// Number of bytes that encryption adds to each datagram.
    pub(super) extra: usize,
    /// Number of bytes sent since the last request for an ack.
    bytes_since_ack_request: u64,
    /// Whether the congestion window limited sending since the last ack.
    is_cwnd_limited: bool,
    /// Send time of the newest packet that was acked.
    newest_acked: Nanos,
    /// The path MTU that the congestion controller uses.
    reported_mtu: usize,
}

impl SendPath {
    pub(super) fn new(config: &ConnConfig, terms: &ConnectionTerms) -> Self {
        let ceiling = terms.mtu_ceiling.max(CHUNK + 1 + terms.overhead);
        let path = PathMtu::new(config.mtu_start.min(ceiling), ceiling, config.ip_headers);
        let peer_window = u64::from(terms.peer_window_kib) << 10;
        let first_psn = terms.first_psn.0.into();
        SendPath {
            congestion: Congestion::new(config.congestion, path.mtu as u64, peer_window, first_psn),
            pacer: Pacer::default(),
            reported_mtu: path.mtu,
            path,
            peer_window,
            extra: terms.overhead,
            bytes_since_ack_request: 0,
            is_cwnd_limited: false,
            newest_acked: 0,
        }
    }

    /// Returns the maximum payload of a fragment and of a chunk.
    pub(super) fn payloads(&self) -> (u32, u32) {
        (self.payload_after_header(FRAGMENT), self.payload_after_header(CHUNK).max(1))
    }

    /// Returns the maximum payload of a piece of a re-fragmented packet.
    pub(super) fn piece(&self) -> u32 {
        self.payload_after_header(PIECE).max(1)
    }

    /// Returns the number of payload bytes that fit after a header of this length.
    fn payload_after_header(&self, header: usize) -> u32 {
        u32::try_from(self.path.size().saturating_sub(self.extra + header)).unwrap_or(u32::MAX)
    }

    /// Returns the number of bytes that may be in flight, by congestion control and the peer's receive window.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        self.congestion.cwnd().min(self.peer_window)
    }

    /// Returns the congestion window in bytes.
    pub(super) fn cwnd(&self) -> u64 {
        self.congestion.cwnd()
    }

    /// Returns the pacing rate in bytes per second, or 0 without pacing.
    pub(super) fn rate(&self) -> u64 {
        self.congestion.pacing_rate().unwrap_or(0)
    }

    /// Whether the congestion controller or the pacer must record each packet (`sent`).
    pub(super) fn is_paced(&self) -> bool {
        !matches!(self.congestion, Congestion::Local(_))
    }

    /// Whether `bytes` may be sent while `in_flight` bytes are in flight. If no bytes are in flight, only the pacer can
    /// delay the packet. Records whether the congestion window limits sending.
    pub(super) fn may_send(&mut self, now: Nanos, bytes: u64, in_flight: u64) -> bool {
        self.is_cwnd_limited |= in_flight > 0 && in_flight + bytes > self.congestion.cwnd();
        self.may_send_at(now, bytes, in_flight) == Some(0)
    }

    /// Returns the time at which `bytes` may be sent, or 0 if now. Returns `None` if the window has no space before an
    /// ack.
    pub(super) fn may_send_at(&self, now: Nanos, bytes: u64, in_flight: u64) -> Option<Nanos> {
        let is_open = in_flight == 0 || in_flight + bytes <= self.window();
        is_open.then(|| self.pacer.may_send(now, bytes).err().unwrap_or(0))
    }

    /// Records that a packet of this size was sent.
    #[inline(always)]
    pub(super) fn sent<T: Copy>(&mut self, now: Nanos, bytes: u64, flight: &UnackedPackets<T>) {
        let is_app_limited = flight.delivery.is_app_limited();
        self.congestion.sent(&SentPacket { now, bytes, in_flight: flight.bytes(), is_app_limited });
        self.pacer.record_sent(now, bytes, self.congestion.pacing_rate(), self.reported_mtu as u64);
    }

    /// Whether this packet requests an ack. Four packets per window request one, so that the peer acks before the
    /// window is full.
    pub(super) fn requests_ack(&mut self, bytes: u64) -> bool {
        self.requests_ack_at(bytes, self.window() / 4)
    }

    /// Whether this packet requests an ack, because `quarter` bytes were sent since the last request. `quarter` is a
    /// quarter of the window.
    #[inline(always)]
    pub(super) fn requests_ack_at(&mut self, bytes: u64, quarter: u64) -> bool {
        self.bytes_since_ack_request += bytes;
        let requests_ack = self.bytes_since_ack_request >= quarter;
        if requests_ack {
            self.bytes_since_ack_request = 0;
        }
        requests_ack
    }

    /// Records an ack. `largest` is the size in bytes of the largest acked packet.
    pub(super) fn acked<T: Copy>(&mut self, now: Nanos, acked: &AckResult, flight: &UnackedPackets<T>, largest: usize) {
        self.lost(now, &acked.lost, flight);
        if acked.packets == 0 {
            return;
        }
        self.path.record_acked(largest);
        self.newest_acked = self.newest_acked.max(acked.rate.map_or(0, |rate| rate.send_time));
        self.congestion.acked(&AckEvent {
            now,
            bytes: acked.bytes,
            rtt: acked.rtt,
            srtt: flight.rtt.srtt().unwrap_or(0),
            in_flight: flight.bytes(),
            rate: acked.rate,
            is_cwnd_limited: std::mem::take(&mut self.is_cwnd_limited),
            spurious: acked.spurious,
        });
    }

    /// Records packets that were declared lost.
    pub(super) fn lost<T: Copy>(&mut self, now: Nanos, lost: &LostPackets, flight: &UnackedPackets<T>) {
        if lost.packets == 0 {
            return;
        }
        // Persistent congestion (RFC 9002, 7.6): the lost packets were sent over more than three probe timeouts, and no
        // packet sent after the first of them was acked.
        let duration = flight.rtt.pto(0).saturating_mul(PERSISTENT_CONGESTION_THRESHOLD);
        let is_long = lost.last_sent - lost.first_sent > duration;
        self.congestion.lost(&LossEvent {
            now,
            lost: *lost,
            in_flight: flight.bytes(),
            total_delivered: flight.delivery.total_delivered(),
            is_persistent: is_long && self.newest_acked <= lost.first_sent,
        });
    }

    /// Records that a queue of this host was full.
    pub(super) fn overflowed(&mut self, now: Nanos) {
        self.congestion.overflowed(now);
    }

    /// Passes the path MTU to the congestion controller, if it has changed.
    pub(super) fn measure(&mut self) {
        if self.path.mtu != self.reported_mtu {
            self.reported_mtu = self.path.mtu;
            self.congestion.resize(self.reported_mtu as u64);
        }
    }
}
