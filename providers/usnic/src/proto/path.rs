//! How large a datagram the path carries: packetisation-layer MTU search, in the spirit of RFC 8899.
//!
//! Sizes are bytes of datagram payload; what IP and UDP add is told once. The socket sets do-not-fragment. Padded probes go
//! out beside the data, and no probe's loss is congestion. The connection says which sizes were acknowledged and which were
//! lost; here is decided what is safe. Two things end a size: the local host refuses it, or a black hole. That one is proved
//! by pairs of probes, large and small, of which only small ones come back: plain loss, however bad, spares a large one.

use super::{MILLIS, Nanos, SECONDS};

/// Headers of IPv4 (without options) and UDP.
pub(crate) const HEADERS_V4: usize = 20 + 8;
/// Headers of IPv6 and UDP.
pub(crate) const HEADERS_V6: usize = 40 + 8;
/// IP packet that nearly every path carries: where the search starts.
pub(crate) const BASE: usize = 1200;
/// Nothing is believed that says a path carries less IP packet than this (RFC 791: every host takes 576).
const LEAST: usize = 576;

/// IP packets that paths carry as a rule: IPv6's least, tunnels, PPPoE, Ethernet, jumbo frames.
const COMMON: [usize; 9] = [1280, 1380, 1420, 1450, 1492, 1500, 4352, 8900, 9000];
/// The search is over when less than this is to be won.
const ENOUGH: usize = 16;
/// Probes of a size before it counts as too large.
const TRIES: u32 = 3;
/// Wait for the answer to the first probe of a size; doubles. An answer that comes later still counts.
const PATIENCE: Nanos = 200 * MILLIS;
/// The path may have changed for the better: search again.
const RAISE: Nanos = 600 * SECONDS;

/// Large packets lost in a row, none of them arriving between, before pairs are sent. Under 20 % random loss a run of this
/// length begins once in 20,000 packets; it costs the pairs and nothing else.
const SUSPICIOUS: u32 = 6;
/// Small probes that must come back, and no large one of as many, before it is a black hole: 20 % random loss does that
/// once in 2^12 ln 5 ~ 10^8 suspicions.
const PAIRS: u32 = 12;
/// Between pairs, so that one burst of loss does not take them all.
const BETWEEN: Nanos = 20 * MILLIS;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Search {
    /// A size is to be probed at once.
    Due { size: usize, tries: u32 },
    /// Its probe is under way until then.
    Waits { size: usize, tries: u32, until: Nanos },
    /// Nothing more to find before then.
    Over { again: Option<Nanos> },
}

/// Pairs of probes under suspicion.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pairs {
    /// Small ones that came back.
    small: u32,
    /// The next pair leaves then.
    next: Nanos,
    /// Of the present pair the large one has left.
    half: bool,
    /// Pairs sent since a small one came back.
    unanswered: u32,
}

#[derive(Debug)]
pub(crate) struct Path {
    headers: usize,
    start: usize,
    /// What the interface carries, as far as told; comes back when the search starts again.
    configured: usize,
    ceiling: usize,
    mtu: usize,
    /// The least size that failed in this search.
    fails: usize,
    /// The largest size probed in this search.
    probed: usize,
    search: Search,
    /// Large packets lost since one arrived.
    vanished: u32,
    pairs: Option<Pairs>,
    black_holes: u32,
}

/// Bytes of datagram that fit an IP packet of this size, with these headers; nothing wraps for absurd ones.
pub(crate) fn payload(ip_packet: usize, headers: usize) -> usize {
    ip_packet.min(usize::from(u16::MAX)).saturating_sub(headers)
}

impl Path {
    /// `start` is taken for safe at once (on loopback the interface's MTU); nothing above `ceiling` is ever tried. Both in
    /// bytes of datagram; `headers` is what IP and UDP add to them.
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
            pairs: None,
            black_holes: 0,
        };
        path.look_on(0);
        path
    }

    /// Bytes of datagram that the path carries, as far as is known.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Times that a black hole was found.
    #[cfg(test)]
    pub(crate) fn black_holes(&self) -> u32 {
        self.black_holes
    }

    /// A probe to send now, padded to so many bytes; ask until there is none, whenever something is sent and after
    /// `on_time`.
    pub(crate) fn next_probe(&mut self, now: Nanos) -> Option<usize> {
        if let Some(pairs) = self.pairs.as_mut().filter(|pairs| pairs.next <= now && pairs.small < PAIRS) {
            pairs.half = !pairs.half;
            if pairs.half {
                return Some(self.mtu);
            }
            // An outage takes the small ones too: no evidence, and no reason to go on so fast.
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

    /// `next_probe` has one.
    pub(crate) fn wants_probe(&self, now: Nanos) -> bool {
        let pairs = self.pairs.is_some_and(|pairs| pairs.next <= now && pairs.small < PAIRS);
        pairs || matches!(self.search, Search::Due { .. })
    }

    /// A probe of so many bytes was answered. A size that was never probed is a lie or a ghost, and changes nothing.
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

    /// A packet with data, of so many bytes, was acknowledged.
    pub(crate) fn arrived(&mut self, size: usize) {
        if size.saturating_add(ENOUGH) >= self.mtu {
            self.vanished = 0;
            self.pairs = None;
        }
    }

    /// A packet with data, of so many bytes, was found lost, or is sent again because a probe timeout passed.
    pub(crate) fn lost(&mut self, now: Nanos, size: usize) {
        if size <= self.start || self.mtu <= self.start {
            return;
        }
        self.vanished = self.vanished.saturating_add(1);
        if self.vanished >= SUSPICIOUS && self.pairs.is_none() {
            self.pairs = Some(Pairs { small: 0, next: now, half: false, unanswered: 0 });
        }
    }

    /// The local host sends nothing larger than this (EMSGSIZE: the size it refused, less one, or what it says the path
    /// carries).
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

    /// When `on_time` has something to do.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let search = match self.search {
            Search::Due { .. } => None,
            Search::Waits { until, .. } => Some(until),
            Search::Over { again } => again,
        };
        let pairs = self.pairs.map(|pairs| pairs.next);
        [search, pairs].into_iter().flatten().min()
    }

    /// Gives up what was not answered in time.
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

    /// A black hole: back to the size that was safe when the connection began, and search again below the one that vanishes.
    fn fall(&mut self, now: Nanos) {
        self.black_holes = self.black_holes.saturating_add(1);
        self.fails = self.mtu;
        self.mtu = self.start.min(self.ceiling);
        self.arrived(self.mtu);
        self.look_on(now);
    }

    /// The next size to try, or the end of the search.
    fn look_on(&mut self, now: Nanos) {
        self.search = match self.candidate() {
            Some(size) => Search::Due { size, tries: 0 },
            None if self.mtu < self.configured => Search::Over { again: Some(now.saturating_add(RAISE)) },
            None => Search::Over { again: None },
        };
    }

    /// The ceiling first, for it is right as a rule; then common sizes upwards, then halving.
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
mod tests {
    use super::*;

    const V4: usize = HEADERS_V4;

    /// What happens to what is sent on a path that carries this size.
    struct Net {
        carries: usize,
        /// Part of packets that vanish besides, and what decides.
        loss: f64,
        state: u64,
        now: Nanos,
    }

    impl Net {
        fn new(carries: usize) -> Self {
            Net { carries, loss: 0.0, state: 1, now: 0 }
        }

        fn takes(&mut self, size: usize) -> bool {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            size <= self.carries && (self.state >> 33) as f64 / (1u64 << 31) as f64 >= self.loss
        }

        /// Sends all probes that are due and answers those that arrive.
        fn probes(&mut self, path: &mut Path) -> Vec<usize> {
            let mut sent = Vec::new();
            while let Some(size) = path.next_probe(self.now) {
                sent.push(size);
                if self.takes(size) {
                    path.acked(self.now, size);
                }
            }
            sent
        }

        /// Lets time pass, from deadline to deadline.
        fn until(&mut self, path: &mut Path, end: Nanos) -> Vec<usize> {
            let mut sent = self.probes(path);
            while let Some(at) = path.deadline().filter(|at| *at <= end) {
                self.now = self.now.max(at);
                path.on_time(self.now);
                sent.extend(self.probes(path));
            }
            self.now = end;
            sent
        }
    }

    fn path(ceiling: usize) -> Path {
        Path::new(payload(BASE, V4), payload(ceiling, V4), V4)
    }

    #[test]
    fn headers_leave_exactly_what_fits() {
        assert_eq!((payload(1500, HEADERS_V4), payload(1500, HEADERS_V6)), (1472, 1452));
        assert_eq!((payload(1200, HEADERS_V4), payload(1200, HEADERS_V6)), (1172, 1152));
        assert_eq!(payload(65_535, HEADERS_V4), 65_507, "the largest datagram of IPv4");
        assert_eq!(payload(65_536, HEADERS_V4), 65_507, "loopback's MTU is one more than a packet's length can say");
        assert_eq!((payload(28, V4), payload(27, V4), payload(0, V4)), (0, 0, 0));
        assert_eq!(payload(usize::MAX, HEADERS_V6), 65_487);
    }

    #[test]
    fn the_ceiling_is_found_with_one_probe_and_never_exceeded() {
        for ceiling in [1280, 1500, 9000, 65_536] {
            let (mut path, mut net) = (path(ceiling), Net::new(usize::MAX));
            assert_eq!(net.until(&mut path, 60 * SECONDS), [payload(ceiling, V4)]);
            assert_eq!((path.mtu(), path.deadline()), (payload(ceiling, V4), None));
        }
    }

    #[test]
    fn what_the_path_carries_is_found_within_a_few_bytes() {
        for carries in [1172, 1173, 1252, 1392, 1422, 1464, 1471, 1472, 1473, 2000, 4324, 8871, 8971] {
            let (mut path, mut net) = (path(9000), Net::new(carries));
            let sent = net.until(&mut path, 60 * SECONDS);
            assert!(path.mtu() <= carries && path.mtu() + ENOUGH >= carries, "{carries}: {}", path.mtu());
            assert!(sent.len() <= 3 * 16, "{carries}: {} probes", sent.len());
            for size in &sent {
                let tries = sent.iter().filter(|other| *other == size).count();
                assert_eq!(tries, if *size <= carries { 1 } else { TRIES as usize }, "{size} on {carries}");
            }
        }
        let (mut path, mut net) = (path(9000), Net::new(1472));
        net.until(&mut path, 60 * SECONDS);
        assert_eq!(path.mtu(), 1472, "a common size is found exactly");
    }

    #[test]
    fn one_lost_probe_is_not_the_end_of_a_size() {
        let mut path = path(1500);
        assert_eq!(path.next_probe(0), Some(1472));
        assert_eq!(path.next_probe(0), None, "one at a time");
        path.on_time(PATIENCE);
        assert_eq!(path.next_probe(PATIENCE), Some(1472));
        path.acked(PATIENCE + 1, 1472);
        assert_eq!(path.mtu(), 1472);
    }

    #[test]
    fn an_answer_that_comes_late_counts_and_a_lie_does_not() {
        let (mut late, mut net) = (path(1500), Net::new(1172));
        net.until(&mut late, 5 * SECONDS);
        assert_eq!(late.mtu(), 1172);
        late.acked(net.now, 1472);
        assert_eq!(late.mtu(), 1472);
        let mut lied = path(9000);
        for size in [0, 1172, 1300, 8973, 65_507, usize::MAX] {
            lied.acked(0, size);
        }
        assert_eq!(lied.mtu(), 1172);
    }

    #[test]
    fn after_ten_minutes_a_path_may_have_grown() {
        let (mut path, mut net) = (path(1500), Net::new(1400));
        net.until(&mut path, 60 * SECONDS);
        assert!(path.mtu() <= 1400);
        net.carries = 1472;
        assert!(net.until(&mut path, 500 * SECONDS).is_empty());
        net.until(&mut path, 700 * SECONDS);
        assert_eq!(path.mtu(), 1472);
    }

    #[test]
    fn what_the_host_refuses_is_the_ceiling_until_the_next_search() {
        let (mut path, mut net) = (path(9000), Net::new(usize::MAX));
        let size = path.next_probe(0).unwrap();
        path.limit(0, size - 1);
        assert_eq!(path.next_probe(0), Some(size - 1), "the search goes on below at once");
        path.limit(0, 1472);
        net.until(&mut path, SECONDS);
        assert_eq!(path.mtu(), 1472);
        path.limit(SECONDS, 1400);
        assert_eq!(path.mtu(), 1400, "and lowers what was proved");
        path.limit(SECONDS, 0);
        assert_eq!(path.mtu(), payload(LEAST, V4), "nobody makes it useless");
        net.until(&mut path, 700 * SECONDS);
        assert_eq!(path.mtu(), payload(9000, V4));
    }

    #[test]
    fn a_black_hole_is_found_and_climbed_out_of() {
        for carries in [1172, 1200, 1300, 1422] {
            let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
            net.until(&mut path, SECONDS);
            net.carries = carries;
            for _ in 0..SUSPICIOUS {
                assert_eq!(net.probes(&mut path), [] as [usize; 0], "nothing is suspected yet");
                path.lost(net.now, 1472);
            }
            let found = net.now + SECONDS;
            net.until(&mut path, found);
            assert_eq!(path.black_holes(), 1);
            assert!(path.mtu() <= carries);
            net.until(&mut path, found + 30 * SECONDS);
            assert!(path.mtu() <= carries && path.mtu() + ENOUGH >= carries, "{carries}: {}", path.mtu());
        }
    }

    #[test]
    fn an_outage_is_no_black_hole_and_is_not_flooded() {
        let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
        net.until(&mut path, SECONDS);
        net.carries = 0;
        (0..1000).for_each(|_| path.lost(net.now, 1472));
        let sent = net.until(&mut path, 61 * SECONDS);
        assert_eq!((path.black_holes(), path.mtu()), (0, 1472));
        assert!(sent.len() < 200, "{} probes", sent.len());
        net.carries = usize::MAX;
        net.until(&mut path, 70 * SECONDS);
        assert_eq!((path.black_holes(), path.mtu(), path.deadline()), (0, 1472, None));
    }

    #[test]
    fn plain_loss_is_no_black_hole() {
        for (loss, train) in [(0.2, 1), (0.2, 44), (0.5, 1)] {
            let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
            net.until(&mut path, SECONDS);
            net.loss = loss;
            let mut suspected = 0;
            for _ in 0..1_000_000 / train {
                let arrives = net.takes(1472);
                for _ in 0..train {
                    if arrives {
                        path.arrived(1472);
                    } else {
                        path.lost(net.now, 1472);
                    }
                }
                suspected += u32::from(path.pairs.is_some());
                let next = net.now + 100_000;
                net.until(&mut path, next);
            }
            assert!(suspected > 0, "{loss}: loss enough to test something");
            assert_eq!((path.black_holes(), path.mtu()), (0, 1472), "{loss} in trains of {train}");
        }
    }

    #[test]
    fn small_packets_and_the_first_size_raise_no_suspicion() {
        let mut path = Path::new(65_507, 65_507, V4);
        (0..100).for_each(|_| path.lost(0, 65_507));
        assert_eq!((path.next_probe(0), path.deadline()), (None, None));
        let (mut path, mut net) = (self::path(1500), Net::new(usize::MAX));
        net.until(&mut path, SECONDS);
        (0..100).for_each(|_| path.lost(net.now, 1172));
        assert_eq!((path.next_probe(net.now), path.deadline()), (None, None));
    }

    #[test]
    fn absurd_sizes_and_times_do_no_harm() {
        for (start, ceiling) in [(0, 0), (usize::MAX, usize::MAX), (2000, 1000), (1, usize::MAX)] {
            let mut path = Path::new(start, ceiling, usize::MAX / 2);
            assert!(path.mtu() >= 1);
            path.next_probe(Nanos::MAX);
            path.on_time(Nanos::MAX);
            path.limit(Nanos::MAX, 0);
            (0..20).for_each(|_| path.lost(Nanos::MAX, usize::MAX));
            path.next_probe(Nanos::MAX);
            path.acked(Nanos::MAX, usize::MAX);
            path.arrived(usize::MAX);
            assert!(path.mtu() >= 1);
        }
    }
}
