//! Path MTU search (packetisation layer path MTU discovery, based on RFC 8899).
//!
//! Sizes are bytes of datagram payload. The socket sets do-not-fragment. Padded probes are sent in addition to data,
//! and the loss of a probe is not congestion. The connection reports which sizes were acked and lost. A size is
//! abandoned when the local host refuses it or a black hole is detected. A black hole is detected by pairs of probes, a
//! large and a small one, of which only the small ones are answered; random loss would spare some large ones. While a
//! black hole is suspected, packets have the initial size, so that data need not wait.

use super::{MILLIS, Nanos, SECONDS};

/// Headers of IPv4 (without options) and UDP.
pub(crate) const HEADERS_V4: usize = 20 + 8;
/// Headers of IPv6 and UDP.
pub(crate) const HEADERS_V6: usize = 40 + 8;
/// IP packet size that nearly every path carries: the start of the search.
pub(crate) const BASE: usize = 1200;
/// Smallest IP packet size that a report of a smaller MTU may claim (RFC 791: every host accepts 576).
const LEAST: usize = 576;

/// Common MTUs: minimum of IPv6, tunnels, PPPoE, Ethernet, jumbo frames.
const COMMON: [usize; 9] = [1280, 1380, 1420, 1450, 1492, 1500, 4352, 8900, 9000];
/// The search ends when the possible gain is less than this.
const ENOUGH: usize = 16;
/// Number of probes of a size before it counts as too large.
const TRIES: u32 = 3;
/// Timeout of the first probe of a size, doubled for each further one. A later answer still counts.
const PATIENCE: Nanos = 200 * MILLIS;
/// Time after which the search is repeated, because the path's MTU may have grown.
const RAISE: Nanos = 600 * SECONDS;

/// Number of consecutive large packets lost, without one that arrived, before pairs are sent. With 20 % random loss a
/// run of this length begins once in 20,000 packets; it only costs the pairs.
const SUSPICIOUS: u32 = 6;
/// Number of consecutive probe timeouts of large packets that has the same effect: no ack arrived at all, and each wait
/// is twice as long.
const SILENCES: u32 = 2;
/// Number of answered small probes, without an answered large one, after which packets have the small size. One loss in
/// a pair is not rare.
const DOUBTS: u32 = 2;
/// Number of answered small probes, with none of as many large ones, that proves a black hole: 20 % random loss does
/// that once in 2^12 ln 5 ~ 10^8 suspicions.
const PAIRS: u32 = 12;
/// Interval between pairs, so that a burst of loss does not hit all of them.
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

/// Pairs of probes while a black hole is suspected.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pairs {
    /// Small probes that were answered.
    small: u32,
    /// Time of the next pair.
    next: Nanos,
    /// Whether the large probe of the current pair was sent.
    half: bool,
    /// Pairs sent since a small probe was answered.
    unanswered: u32,
}

#[derive(Debug)]
pub(crate) struct Path {
    headers: usize,
    start: usize,
    /// The interface's MTU; used again when the search restarts.
    configured: usize,
    ceiling: usize,
    mtu: usize,
    /// The smallest size that failed in this search.
    fails: usize,
    /// The largest size probed in this search.
    probed: usize,
    search: Search,
    /// Large packets lost since the last one that arrived.
    vanished: u32,
    /// Probe timeouts of large packets since then.
    silences: u32,
    pairs: Option<Pairs>,
    black_holes: u32,
}

/// Payload of a datagram in an IP packet of this size with these headers; 0 if it is too small.
pub(crate) fn payload(ip_packet: usize, headers: usize) -> usize {
    ip_packet.min(usize::from(u16::MAX)).saturating_sub(headers)
}

impl Path {
    /// `start` is considered safe (on loopback: the interface's MTU); no size above `ceiling` is tried. Both are bytes
    /// of datagram payload; `headers` is the size of the IP and UDP headers.
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

    /// Datagram payload in bytes that the path is known to carry.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Datagram payload in bytes to use now: `mtu`, or the initial size while a black hole is suspected.
    pub(crate) fn size(&self) -> usize {
        let doubts = self.pairs.is_some_and(|pairs| pairs.small >= DOUBTS || self.silences >= SILENCES);
        if doubts { self.start.min(self.mtu) } else { self.mtu }
    }

    /// Number of black holes detected.
    #[cfg(test)]
    pub(crate) fn black_holes(&self) -> u32 {
        self.black_holes
    }

    /// Size of a probe to send now. Call until `None`, after each transmission and after `on_time`.
    pub(crate) fn next_probe(&mut self, now: Nanos) -> Option<usize> {
        if let Some(pairs) = self.pairs.as_mut().filter(|pairs| pairs.next <= now && pairs.small < PAIRS) {
            pairs.half = !pairs.half;
            if pairs.half {
                return Some(self.mtu);
            }
            // In an outage small probes are lost too: no evidence of a black hole, and no reason to probe at this pace.
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

    /// Whether `next_probe` has a probe.
    pub(crate) fn wants_probe(&self, now: Nanos) -> bool {
        let pairs = self.pairs.is_some_and(|pairs| pairs.next <= now && pairs.small < PAIRS);
        pairs || matches!(self.search, Search::Due { .. })
    }

    /// Records that a probe of this size was answered. A size that was never probed is ignored.
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

    /// Records that a data packet of this size was declared lost, or is retransmitted after a probe timeout.
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

    /// Records that the local host refuses datagrams larger than `ceiling` (EMSGSIZE: the refused size less one, or the
    /// MTU that it reports).
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

    /// Time of the next `on_time`.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let search = match self.search {
            Search::Due { .. } => None,
            Search::Waits { until, .. } => Some(until),
            Search::Over { again } => again,
        };
        let pairs = self.pairs.map(|pairs| pairs.next);
        [search, pairs].into_iter().flatten().min()
    }

    /// Handles probes that were not answered in time.
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

    /// Returns the next size to probe: first the ceiling, since most paths carry it; then common sizes in ascending
    /// order; then by bisection.
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
