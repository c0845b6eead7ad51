//! May a packet leave now? The congestion window, the peer's window and the pacer, behind one question.
//!
//! Also knows how large packets are to be: the search for the path's MTU is here. Counts bytes of datagrams.

use super::words::Config;
use crate::proto::congestion::{Congestion, Controller, Loss, Sample};
use crate::proto::flight::{Acked, Flight, Lost};
use crate::proto::pacer::Pacer;
use crate::proto::path::Path;
use crate::proto::setup::Terms;
use crate::proto::wire::{CHUNK, FRAGMENT, PIECE};
use crate::proto::{Nanos, checked};

pub(super) struct Lane {
    congestion: Congestion,
    pacer: Pacer,
    pub(super) path: Path,
    /// Bytes that the peer's socket has room for.
    peer_window: u64,
    /// What a CRC and a seal add to every datagram.
    pub(super) extra: usize,
    /// Bytes sent since an ack was asked for.
    unasked: u64,
    /// Neither the window nor a rate in its place was what held us back.
    pub(super) is_idle: bool,
    /// The MTU that the controller knows.
    known: usize,
}

impl Lane {
    pub(super) fn new(config: &Config, terms: &Terms) -> Self {
        let ceiling = terms.mtu_ceiling.max(CHUNK + 1 + terms.overhead + checked::LEN);
        let path = Path::new(config.mtu_start.min(ceiling), ceiling, config.ip_headers);
        let mut lane = Lane {
            congestion: Congestion::new(config.congestion, path.mtu() as u64, config.target_delay),
            pacer: Pacer::default(),
            known: path.mtu(),
            path,
            peer_window: 0,
            extra: terms.overhead + if terms.checked { checked::LEN } else { 0 },
            unasked: 0,
            is_idle: true,
        };
        lane.peer_window(terms.peer_window_kib);
        lane
    }

    /// The peer says so in every ack.
    pub(super) fn peer_window(&mut self, kib: u16) {
        self.peer_window = u64::from(kib) << 10;
    }

    /// Payload at most of a whole message, and of a part of one.
    pub(super) fn payloads(&self) -> (u32, u32) {
        (self.within(FRAGMENT), self.within(CHUNK).max(1))
    }

    /// Payload at most of a piece of a packet.
    pub(super) fn piece(&self) -> u32 {
        self.within(PIECE).max(1)
    }

    /// What fits behind a header.
    fn within(&self, header: usize) -> u32 {
        u32::try_from(self.path.size().saturating_sub(self.extra + header)).unwrap_or(u32::MAX)
    }

    pub(super) fn window(&self) -> u64 {
        self.congestion.window().min(self.peer_window)
    }

    pub(super) fn rate(&self) -> u64 {
        self.congestion.rate().unwrap_or(0)
    }

    /// May so many bytes leave, when so many are in flight? One packet always may, if there is none.
    pub(super) fn admits(&mut self, now: Nanos, bytes: u64, in_flight: u64) -> bool {
        if in_flight > 0 && in_flight + bytes > self.window() {
            self.is_idle = false;
            return false;
        }
        let is_due = self.pacer.ready(now, bytes).is_ok();
        if !is_due && self.congestion.goes_by_rate() {
            self.is_idle = false;
        }
        is_due
    }

    /// Are packets to leave one by one?
    pub(super) fn goes_apart(&self) -> bool {
        self.congestion.goes_by_rate()
    }

    /// When so many bytes may leave, as far as is known now; the beginning of time if at once.
    pub(super) fn admits_at(&self, now: Nanos, bytes: u64, in_flight: u64) -> Option<Nanos> {
        let is_open = in_flight == 0 || in_flight + bytes <= self.window();
        is_open.then(|| self.pacer.ready(now, bytes).err().unwrap_or(0))
    }

    /// A packet of so many bytes left; `in_flight` counts it.
    pub(super) fn sent(&mut self, now: Nanos, bytes: u64, in_flight: u64) {
        self.congestion.sent(now, bytes, in_flight);
        self.pacer.spent(now, bytes, self.congestion.rate());
    }

    /// Is this packet to ask for an ack? Four times in a window, so that it never runs dry for want of one.
    pub(super) fn asks(&mut self, bytes: u64) -> bool {
        self.unasked += bytes;
        let asks = self.unasked >= self.window() / 4;
        if asks {
            self.unasked = 0;
        }
        asks
    }

    /// An ack came. `largest`: bytes of the largest packet that it is of.
    pub(super) fn acked<T: Copy>(&mut self, now: Nanos, acked: &Acked, flight: &Flight<T>, largest: usize) {
        if acked.packets > 0 {
            self.path.arrived(largest);
            let rtt = flight.rtt();
            self.congestion.acked(&Sample {
                now,
                bytes: acked.bytes,
                rtt: acked.rtt,
                min_rtt: rtt.minimum().unwrap_or(0),
                srtt: rtt.smoothed().unwrap_or(0),
                in_flight: flight.bytes(),
                app_limited: self.is_idle,
            });
        }
        self.lost(now, &acked.lost, flight.bytes());
    }

    /// Packets were found lost.
    pub(super) fn lost(&mut self, now: Nanos, lost: &Lost, in_flight: u64) {
        if lost.packets > 0 {
            self.congestion.lost(&Loss { now, bytes: lost.bytes, in_flight, first_sent: lost.first_sent });
        }
    }

    /// A queue of this host was full.
    pub(super) fn overflowed(&mut self, now: Nanos) {
        self.congestion.overflowed(now);
    }

    pub(super) fn timed_out(&mut self, now: Nanos) {
        self.congestion.timed_out(now);
    }

    /// The peer has moved: nothing that was learnt is true of the new path.
    pub(super) fn moved(&mut self, config: &Config, terms: &Terms) {
        let peer_window = self.peer_window;
        *self = Lane { peer_window, ..Lane::new(config, terms) };
    }

    /// The path may have turned out larger or smaller.
    pub(super) fn measure(&mut self) {
        if self.path.mtu() != self.known {
            self.known = self.path.mtu();
            self.congestion.resize(self.known as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MILLIS;
    use crate::proto::congestion::Delay;
    use crate::proto::setup::tests::terms;

    const PACKET: u64 = 1_000;

    #[test]
    fn who_waits_for_a_rate_in_place_of_a_window_does_not_want_for_work() {
        let mut lane = Lane::new(&Config::default(), &terms());
        let waits = |lane: &mut Lane| {
            lane.is_idle = true;
            while lane.admits(1, PACKET, 0) {
                lane.sent(1, PACKET, 0);
            }
            !lane.is_idle
        };
        lane.congestion = Congestion::Delay(Delay::behind_a_policer(PACKET, 1e6));
        assert!(waits(&mut lane), "it has more to send, and the rate would grow");
        lane.is_idle = true;
        assert!(lane.admits(MILLIS * 100, PACKET, 0) && lane.is_idle);
    }
}
