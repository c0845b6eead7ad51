//! Path MTU search (packetisation layer path MTU discovery, based on RFC 8899).
//!
//! Sizes are bytes of datagram payload. The socket sets do-not-fragment. Padded probes are sent in addition to data,
//! and the loss of a probe is not a congestion signal. The connection reports which sizes were acked and lost. A size
//! is abandoned when the local host refuses it or a black hole is detected. A black hole is detected by pairs of a
//! large and a small probe, if only the small probes are answered. Random loss would not hit all large probes. While a
//! black hole is suspected, packets have the initial size, so that data is not delayed.

use super::{MILLIS, Nanos, SECONDS};

/// Bytes of the IPv4 header (without options) and the UDP header.
pub(crate) const HEADERS_V4: usize = 20 + 8;
/// Bytes of the IPv6 header and the UDP header.
pub(crate) const HEADERS_V6: usize = 40 + 8;
/// IP packet size in bytes that nearly every path carries; the search starts with this size.
pub(crate) const BASE: usize = 1200;
/// Smallest IP packet size that is accepted from a report of a smaller MTU (RFC 791: every host accepts 576 bytes).
const LEAST: usize = 576;

/// Common MTUs: minimum of IPv6, tunnels, PPPoE, Ethernet, jumbo frames.
const COMMON: [usize; 9] = [1280, 1380, 1420, 1450, 1492, 1500, 4352, 8900, 9000];
/// The search ends when the possible gain is less than this number of bytes.
const ENOUGH: usize = 16;
/// Number of unanswered probes of a size after which the size counts as too large.
const TRIES: u32 = 3;
/// Timeout of the first probe of a size; it doubles for each further probe. An answer after the timeout still counts.
const PATIENCE: Nanos = 200 * MILLIS;
/// Time after which a finished search is repeated, because the path's MTU may have grown.
const RAISE: Nanos = 600 * SECONDS;

/// Number of consecutive losses of large packets after which pairs of probes are sent. With 20 % random loss such a run
/// begins once in 20,000 packets, and costs only the pairs.
const SUSPICIOUS: u32 = 6;
/// Number of consecutive probe timeouts of large packets after which pairs of probes are sent. It is smaller because no
/// ack arrived at all, and each timeout is twice as long as the previous one.
const SILENCES: u32 = 2;
/// Number of answered small probes, without an answered large probe, after which packets have the initial size. A
/// single loss in a pair is frequent.
const DOUBTS: u32 = 2;
/// Number of answered small probes, without an answered large probe, that proves a black hole. With 20 % random loss a
/// false detection occurs once in 2^12 ln 5 ~ 10^8 suspicions.
const PAIRS: u32 = 12;
/// Interval between pairs of probes, so that a burst of loss does not hit all of them.
const BETWEEN: Nanos = 20 * MILLIS;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Search {
    /// A probe of this size is due.
    Due { size: usize, tries: u32 },
    /// A probe of this size is in flight; it times out at `until`.
    Waits { size: usize, tries: u32, until: Nanos },
    /// The search is finished, and is repeated at `again`.
    Over { again: Option<Nanos> },
}

/// Pairs of probes that are sent while a black hole is suspected.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pairs {
    /// Number of small probes that were answered.
    small: u32,
    /// Time of the next pair.
    next: Nanos,
    /// Whether the large probe of the current pair was sent.
    half: bool,
    /// Number of pairs sent since a small probe was answered.
    unanswered: u32,
}

#[derive(Debug)]
pub(crate) struct Path {
    headers: usize,
    start: usize,
    /// MTU of the interface as datagram payload; the search uses it again when it restarts.
    configured: usize,
    ceiling: usize,
    mtu: usize,
    /// The smallest size that failed in this search.
    fails: usize,
    /// The largest size probed in this search.
    probed: usize,
    search: Search,
    /// Number of large packets lost since a large packet arrived.
    vanished: u32,
    /// Number of probe timeouts of large packets since a large packet arrived.
    silences: u32,
    pairs: Option<Pairs>,
    black_holes: u32,
}

/// Returns the payload in bytes of a datagram in an IP packet of this size with these headers; 0 if the size is too
/// small.
pub(crate) fn payload(ip_packet: usize, headers: usize) -> usize {
    ip_packet.min(usize::from(u16::MAX)).saturating_sub(headers)
}

impl Path {
    /// Starts a search. `start` is used without a probe (on loopback: the interface's MTU); no size above `ceiling` is
    /// tried. Both are bytes of datagram payload; `headers` is the size of the IP and UDP headers.
    pub(crate) fn new(start: usize, ceiling: usize, headers: usize) -> Self {
        let ceiling = ceiling.min(payload(usize::MAX, headers)).max(1);
        let start = start.clamp(1, ceiling);
        let mut path = Path {
            headers,
            start,
            configured: ceiling,
            ceiling,
            mtu: start,
            fails: usize::MAX,
            probed: start,
            search: Search::Over { again: None },
            vanished: 0,
            silences: 0,
            pairs: None,
            black_holes: 0,
        };
        path.look_on(0);
        path
    }

    /// Returns the datagram payload in bytes that the path is known to carry.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the datagram payload in bytes to use now: `mtu`, or the initial size while a black hole is suspected.
    pub(crate) fn size(&self) -> usize {
        let doubts = self.pairs.is_some_and(|pairs| pairs.small >= DOUBTS || self.silences >= SILENCES);
        if doubts { self.start.min(self.mtu) } else { self.mtu }
    }

    /// Number of black holes that were detected.
    #[cfg(test)]
    pub(crate) fn black_holes(&self) -> u32 {
        self.black_holes
    }

    /// Returns the size of a probe to send now. The caller repeats the call until it returns `None`, after each
    /// transmission and after `on_time`.
    pub(crate) fn next_probe(&mut self, now: Nanos) -> Option<usize> {
        if let Some(pairs) = self.pairs.as_mut().filter(|pairs| pairs.next <= now && pairs.small < PAIRS) {
            pairs.half = !pairs.half;
            if pairs.half {
                return Some(self.mtu);
            }
            // An unanswered small probe indicates an outage, not a black hole, so the next pairs are sent less often.
            pairs.unanswered = pairs.unanswered.saturating_add(1);
            pairs.next = now.saturating_add(BETWEEN << pairs.unanswered.saturating_sub(1).min(6));
            return Some(self.start);
        }
        let Search::Due { size, tries } = self.search else { return None };
        let until = now.saturating_add(PATIENCE << tries);
        self.search = Search::Waits { size, tries, until };
        self.probed = self.probed.max(size);
        Some(size)
    }

    /// Whether `next_probe` would return a probe.
    pub(crate) fn wants_probe(&self, now: Nanos) -> bool {
        let pairs = self.pairs.is_some_and(|pairs| pairs.next <= now && pairs.small < PAIRS);
        pairs || matches!(self.search, Search::Due { .. })
    }

    /// Records that a probe of this size was answered. Has no effect if no probe of this size was sent.
    pub(crate) fn acked(&mut self, now: Nanos, size: usize) {
        if let Some(pairs) = self.pairs.as_mut().filter(|_| size == self.start) {
            pairs.small += 1;
            pairs.unanswered = 0;
        }
        self.arrived(size);
        if size <= self.mtu || size > self.probed.min(self.ceiling) {
            return;
        }
        self.mtu = size;
        if size >= self.fails {
            self.fails = usize::MAX;
        }
        self.look_on(now);
    }

    /// Records that a data packet of this size was acked.
    pub(crate) fn arrived(&mut self, size: usize) {
        if size.saturating_add(ENOUGH) >= self.mtu {
            self.vanished = 0;
            self.silences = 0;
            self.pairs = None;
        }
    }

    /// Records that a data packet of this size was declared lost, or was retransmitted after a probe timeout.
    pub(crate) fn lost(&mut self, now: Nanos, size: usize) {
        if self.is_large(size) {
            self.vanished = self.vanished.saturating_add(1);
            self.suspect(now);
        }
    }

    /// Records a probe timeout while the oldest packet in flight has this size.
    pub(crate) fn timed_out(&mut self, now: Nanos, size: usize) {
        if self.is_large(size) {
            self.silences = self.silences.saturating_add(1);
            self.suspect(now);
        }
    }

    fn is_large(&self, size: usize) -> bool {
        size > self.start && self.mtu > self.start
    }

    fn suspect(&mut self, now: Nanos) {
        if (self.vanished >= SUSPICIOUS || self.silences >= SILENCES) && self.pairs.is_none() {
            self.pairs = Some(Pairs { small: 0, next: now, half: false, unanswered: 0 });
        }
    }

    /// Records that the local host refuses datagrams larger than `ceiling` (EMSGSIZE). `ceiling` is the refused size
    /// less one, or the MTU that the host reports.
    pub(crate) fn limit(&mut self, now: Nanos, ceiling: usize) {
        let ceiling = ceiling.max(payload(LEAST, self.headers)).max(1);
        if ceiling >= self.ceiling {
            return;
        }
        self.ceiling = ceiling;
        self.mtu = self.mtu.min(ceiling);
        self.arrived(self.mtu);
        self.look_on(now);
    }

    /// Returns the time of the next `on_time`.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let search = match self.search {
            Search::Due { .. } => None,
            Search::Waits { until, .. } => Some(until),
            Search::Over { again } => again,
        };
        let pairs = self.pairs.map(|pairs| pairs.next);
        [search, pairs].into_iter().flatten().min()
    }

    /// Handles probes whose timeout has passed.
    pub(crate) fn on_time(&mut self, now: Nanos) {
        if self.pairs.is_some_and(|pairs| pairs.small >= PAIRS && pairs.next <= now) {
            self.fall(now);
        }
        match self.search {
            Search::Waits { size, tries, until } if until <= now && tries + 1 < TRIES => {
                self.search = Search::Due { size, tries: tries + 1 };
            }
            Search::Waits { size, until, .. } if until <= now => {
                self.fails = self.fails.min(size);
                self.look_on(now);
            }
            Search::Over { again: Some(at) } if at <= now => {
                self.ceiling = self.configured;
                self.fails = usize::MAX;
                self.look_on(now);
            }
            _ => {}
        }
    }

    /// Handles a black hole: returns to the initial size, and searches again below the size that fails.
    fn fall(&mut self, now: Nanos) {
        self.black_holes = self.black_holes.saturating_add(1);
        self.fails = self.mtu;
        self.mtu = self.start.min(self.ceiling);
        self.arrived(self.mtu);
        self.look_on(now);
    }

    /// Chooses the next size to probe, or ends the search.
    fn look_on(&mut self, now: Nanos) {
        self.search = match self.candidate() {
            Some(size) => Search::Due { size, tries: 0 },
            None if self.mtu < self.configured => Search::Over { again: Some(now.saturating_add(RAISE)) },
            None => Search::Over { again: None },
        };
    }

    /// Returns the next size to probe: first the ceiling, since most paths carry it, then common sizes in ascending
    /// order, then sizes by bisection.
    fn candidate(&self) -> Option<usize> {
        let upper = self.ceiling.min(self.fails - 1);
        if upper <= self.mtu {
            return None;
        }
        if upper == self.ceiling {
            return Some(upper);
        }
        let common = COMMON.into_iter().map(|size| payload(size, self.headers));
        let halved = || Some(self.mtu + (self.fails - self.mtu) / 2).filter(|_| self.fails - self.mtu > ENOUGH);
        common.into_iter().find(|size| *size > self.mtu && *size <= upper).or_else(halved)
    }
}

#[cfg(test)]
mod tests;
