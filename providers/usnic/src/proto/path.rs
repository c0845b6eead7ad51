//! Path MTU search (packetisation layer path MTU discovery, based on RFC 8899).
//!
//! Sizes are bytes of datagram payload. The socket sets do-not-fragment. Padded probes are sent in addition to data,
//! and the loss of a probe is no congestion signal. The connection reports which sizes were acked and lost.
//!
//! The MTU decreases if the local host or an ICMP message reports a smaller one, or if a black hole is detected. To
//! detect a black hole, the sender sends pairs of a large and a small probe. In a black hole, only the small probes are
//! acked. Random loss would not affect all large probes. After two acked small probes, or if probe timeouts have caused
//! the suspicion, packets have the initial size until the black hole is proved or a large packet is acked. So data is
//! not delayed.

use super::{MILLIS, Nanos, SECONDS};

/// Bytes of the IPv4 header (without options) and the UDP header.
pub(crate) const HEADERS_V4: usize = 20 + 8;
/// Bytes of the IPv6 header and the UDP header.
pub(crate) const HEADERS_V6: usize = 40 + 8;
/// IP packet size in bytes that nearly every path carries. The search starts with this size.
pub(crate) const BASE: usize = 1200;
/// Minimum IP packet size in bytes after a report of a smaller MTU (RFC 791: every host accepts 576 bytes).
const MIN_IP_PACKET: usize = 576;

/// Common MTUs: minimum of IPv6, tunnels, PPPoE, Ethernet, jumbo frames.
const COMMON_MTUS: [usize; 9] = [1280, 1380, 1420, 1450, 1492, 1500, 4352, 8900, 9000];
/// The search ends if the possible gain is less than this number of bytes.
const SEARCH_PRECISION: usize = 16;
/// Number of lost probes of a size after which the size counts as too large.
const MAX_PROBES: u32 = 3;
/// Timeout of the first probe of a size, in nanoseconds. The timeout doubles for each further probe. A late ack of a
/// probe still counts.
const PROBE_TIMEOUT: Nanos = 200 * MILLIS;
/// Time after which a finished search is repeated, in nanoseconds, because the path MTU may have increased.
const RAISE_INTERVAL: Nanos = 600 * SECONDS;

/// Number of consecutive losses of large packets after which a black hole is suspected and pairs of probes are sent.
/// With 20 % random loss, this occurs once in 20,000 packets, and only costs the probes.
const SUSPICIOUS_LOSSES: u32 = 6;
/// Number of consecutive probe timeouts of large packets after which a black hole is suspected. It is smaller than
/// [`SUSPICIOUS_LOSSES`], because each probe timeout is twice as long as the previous one.
const SUSPICIOUS_TIMEOUTS: u32 = 2;
/// Packets have the initial size after this number of acked small probes without an acked large one. One is not enough,
/// because the loss of a single probe is frequent.
const SMALL_SIZE_AFTER_PAIRS: u32 = 2;
/// Number of acked small probes, without an acked large one, that proves a black hole. With 20 % random loss, a false
/// detection occurs once in 5^12 ~ 2 * 10^8 suspicions.
const PROOF_PAIRS: u32 = 12;
/// Interval between pairs of probes, in nanoseconds. It is longer than most bursts of loss, so that a burst does not
/// affect all pairs.
const PAIR_INTERVAL: Nanos = 20 * MILLIS;

#[derive(Clone, Copy, Debug, PartialEq)]
enum MtuSearch {
    /// A probe of this size is due.
    Due { size: usize, tries: u32 },
    /// A probe of this size is in flight. It times out at `until`.
    Waits { size: usize, tries: u32, until: Nanos },
    /// The search has finished. It restarts at `again`.
    Finished { again: Option<Nanos> },
}

/// Pairs of probes that are sent while a black hole is suspected.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BlackHoleProbes {
    /// Number of acked small probes.
    small: u32,
    /// Time of the next pair.
    next: Nanos,
    /// Whether the large probe of the current pair was sent, so that the small one is next.
    half: bool,
    /// Number of pairs sent since a small probe was acked.
    unanswered: u32,
}

#[derive(Debug)]
pub(crate) struct PathMtu {
    headers: usize,
    start: usize,
    /// The ceiling given to `new`. A restarted search uses it again.
    configured: usize,
    ceiling: usize,
    /// The path MTU found so far, as datagram payload in bytes.
    pub(crate) mtu: usize,
    /// The smallest size that has failed in this search.
    fails: usize,
    /// The largest size of all probes so far. An ack of a larger probe is invalid.
    probed: usize,
    search: MtuSearch,
    /// Number of large packets that were lost since the last ack of a large packet.
    lost_large: u32,
    /// Number of probe timeouts of large packets since the last ack of a large packet.
    large_timeouts: u32,
    pairs: Option<BlackHoleProbes>,
    black_holes: u32,
}

/// Returns the datagram payload in bytes of an IP packet of `ip_packet` bytes with `headers` bytes of IP and UDP
/// headers, or 0 if the packet is too small.
pub(crate) fn payload(ip_packet: usize, headers: usize) -> usize {
    ip_packet.min(usize::from(u16::MAX)).saturating_sub(headers)
}

impl PathMtu {
    /// Starts a search between `start`, a size that needs no probe, and `ceiling`. Both are bytes of datagram payload.
    /// `headers` is the size of the IP and UDP headers.
    pub(crate) fn new(start: usize, ceiling: usize, headers: usize) -> Self {
        let ceiling = ceiling.min(payload(usize::MAX, headers)).max(1);
        let start = start.clamp(1, ceiling);
        let mut path = PathMtu {
            headers,
            start,
            configured: ceiling,
            ceiling,
            mtu: start,
            fails: usize::MAX,
            probed: start,
            search: MtuSearch::Finished { again: None },
            lost_large: 0,
            large_timeouts: 0,
            pairs: None,
            black_holes: 0,
        };
        path.choose_next(0);
        path
    }

    /// Returns the datagram payload in bytes to use now: `mtu`, or the initial size if a black hole is suspected and
    /// small probes were acked or probe timeouts have occurred.
    pub(crate) fn size(&self) -> usize {
        let doubts = self
            .pairs
            .is_some_and(|pairs| pairs.small >= SMALL_SIZE_AFTER_PAIRS || self.large_timeouts >= SUSPICIOUS_TIMEOUTS);
        if doubts { self.start.min(self.mtu) } else { self.mtu }
    }

    /// Returns the number of black holes that were detected.
    #[cfg(test)]
    pub(crate) fn black_holes(&self) -> u32 {
        self.black_holes
    }

    /// Returns the size of the probe to send now. The caller repeats the call until it returns `None`.
    pub(crate) fn next_probe(&mut self, now: Nanos) -> Option<usize> {
        if let Some(pairs) = self.pairs.as_mut().filter(|pairs| pairs.next <= now && pairs.small < PROOF_PAIRS) {
            pairs.half = !pairs.half;
            if pairs.half {
                return Some(self.mtu);
            }
            // If small probes are also lost, the cause is an outage, not a black hole. So the interval between pairs
            // increases.
            pairs.unanswered = pairs.unanswered.saturating_add(1);
            pairs.next = now.saturating_add(PAIR_INTERVAL << pairs.unanswered.saturating_sub(1).min(6));
            return Some(self.start);
        }
        let MtuSearch::Due { size, tries } = self.search else { return None };
        let until = now.saturating_add(PROBE_TIMEOUT << tries);
        self.search = MtuSearch::Waits { size, tries, until };
        self.probed = self.probed.max(size);
        Some(size)
    }

    /// Whether `next_probe` would return a probe.
    pub(crate) fn wants_probe(&self, now: Nanos) -> bool {
        let pairs = self.pairs.is_some_and(|pairs| pairs.next <= now && pairs.small < PROOF_PAIRS);
        pairs || matches!(self.search, MtuSearch::Due { .. })
    }

    /// Records the ack of a probe of this size. The path MTU does not change if no such probe was sent.
    pub(crate) fn acked(&mut self, now: Nanos, size: usize) {
        if let Some(pairs) = self.pairs.as_mut().filter(|_| size == self.start) {
            pairs.small += 1;
            pairs.unanswered = 0;
        }
        self.record_acked(size);
        if size <= self.mtu || size > self.probed.min(self.ceiling) {
            return;
        }
        self.mtu = size;
        if size >= self.fails {
            self.fails = usize::MAX;
        }
        self.choose_next(now);
    }

    /// Records that a packet of this size arrived. If the size is about the path MTU, there is no black hole, so the
    /// suspicion and the counts of large packets are cleared.
    pub(crate) fn record_acked(&mut self, size: usize) {
        if size.saturating_add(SEARCH_PRECISION) >= self.mtu {
            self.lost_large = 0;
            self.large_timeouts = 0;
            self.pairs = None;
        }
    }

    /// Records that a data packet of this size was declared lost, or was retransmitted after a probe timeout.
    pub(crate) fn lost(&mut self, now: Nanos, size: usize) {
        if self.is_large(size) {
            self.lost_large = self.lost_large.saturating_add(1);
            self.suspect_black_hole(now);
        }
    }

    /// Records a probe timeout while the oldest packet in flight has this size.
    pub(crate) fn timed_out(&mut self, now: Nanos, size: usize) {
        if self.is_large(size) {
            self.large_timeouts = self.large_timeouts.saturating_add(1);
            self.suspect_black_hole(now);
        }
    }

    fn is_large(&self, size: usize) -> bool {
        size > self.start && self.mtu > self.start
    }

    fn suspect_black_hole(&mut self, now: Nanos) {
        if (self.lost_large >= SUSPICIOUS_LOSSES || self.large_timeouts >= SUSPICIOUS_TIMEOUTS) && self.pairs.is_none()
        {
            self.pairs = Some(BlackHoleProbes { small: 0, next: now, half: false, unanswered: 0 });
        }
    }

    /// Records a report that datagrams larger than `ceiling` do not fit: EMSGSIZE of this host, or an ICMP message.
    pub(crate) fn limit(&mut self, now: Nanos, ceiling: usize) {
        let ceiling = ceiling.max(payload(MIN_IP_PACKET, self.headers)).max(1);
        if ceiling >= self.ceiling {
            return;
        }
        self.ceiling = ceiling;
        self.mtu = self.mtu.min(ceiling);
        self.record_acked(self.mtu);
        self.choose_next(now);
    }

    /// Returns the time at which `on_time` must be called.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let search = match self.search {
            MtuSearch::Due { .. } => None,
            MtuSearch::Waits { until, .. } => Some(until),
            MtuSearch::Finished { again } => again,
        };
        let pairs = self.pairs.map(|pairs| pairs.next);
        [search, pairs].into_iter().flatten().min()
    }

    /// Handles timeouts of probes and a detected black hole, and restarts a finished search when that is due.
    pub(crate) fn on_time(&mut self, now: Nanos) {
        if self.pairs.is_some_and(|pairs| pairs.small >= PROOF_PAIRS && pairs.next <= now) {
            self.restart_after_black_hole(now);
        }
        match self.search {
            MtuSearch::Waits { size, tries, until } if until <= now && tries + 1 < MAX_PROBES => {
                self.search = MtuSearch::Due { size, tries: tries + 1 };
            }
            MtuSearch::Waits { size, until, .. } if until <= now => {
                self.fails = self.fails.min(size);
                self.choose_next(now);
            }
            MtuSearch::Finished { again: Some(at) } if at <= now => {
                self.ceiling = self.configured;
                self.fails = usize::MAX;
                self.choose_next(now);
            }
            _ => {}
        }
    }

    /// Returns to the initial size, and restarts the search below the size that has failed.
    fn restart_after_black_hole(&mut self, now: Nanos) {
        self.black_holes = self.black_holes.saturating_add(1);
        self.fails = self.mtu;
        self.mtu = self.start.min(self.ceiling);
        self.record_acked(self.mtu);
        self.choose_next(now);
    }

    /// Chooses the next size to probe, or ends the search.
    fn choose_next(&mut self, now: Nanos) {
        self.search = match self.candidate() {
            Some(size) => MtuSearch::Due { size, tries: 0 },
            None if self.mtu < self.configured => {
                MtuSearch::Finished { again: Some(now.saturating_add(RAISE_INTERVAL)) }
            }
            None => MtuSearch::Finished { again: None },
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
        let common = COMMON_MTUS.into_iter().map(|size| payload(size, self.headers));
        let halved =
            || Some(self.mtu + (self.fails - self.mtu) / 2).filter(|_| self.fails - self.mtu > SEARCH_PRECISION);
        common.into_iter().find(|size| *size > self.mtu && *size <= upper).or_else(halved)
    }
}

#[cfg(test)]
mod tests;
