//! Tests of the search for the path MTU, and of the detection of black holes.

use super::*;

const V4: usize = HEADERS_V4;

/// A path that carries datagrams with a payload of up to `carries` bytes.
struct Net {
    carries: usize,
    /// Rate of random loss, and the state of the random generator.
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

    /// Sends all probes that are due, and acks those that arrive. Returns the sizes of all sent probes.
    fn probes(&mut self, path: &mut PathMtu) -> Vec<usize> {
        let mut sent = Vec::new();
        while let Some(size) = path.next_probe(self.now) {
            sent.push(size);
            if self.takes(size) {
                path.acked(self.now, size);
            }
        }
        sent
    }

    /// Advances the time from deadline to deadline until `end`, and returns the sizes of the probes.
    fn until(&mut self, path: &mut PathMtu, end: Nanos) -> Vec<usize> {
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

fn path(ceiling: usize) -> PathMtu {
    PathMtu::new(payload(BASE, V4), payload(ceiling, V4), V4)
}

#[test]
fn payload_and_headers_fill_the_mtu() {
    assert_eq!((payload(1500, HEADERS_V4), payload(1500, HEADERS_V6)), (1472, 1452));
    assert_eq!((payload(1200, HEADERS_V4), payload(1200, HEADERS_V6)), (1172, 1152));
    assert_eq!(payload(65_535, HEADERS_V4), 65_507, "the largest datagram of IPv4");
    assert_eq!(payload(65_536, HEADERS_V4), 65_507, "the loopback MTU of 65536 exceeds the length field by one");
    assert_eq!((payload(28, V4), payload(27, V4), payload(0, V4)), (0, 0, 0));
    assert_eq!(payload(usize::MAX, HEADERS_V6), 65_487);
}

#[test]
fn path_mtu_equal_to_the_ceiling_is_found_with_one_probe() {
    for ceiling in [1280, 1500, 9000, 65_536] {
        let (mut path, mut net) = (path(ceiling), Net::new(usize::MAX));
        assert_eq!(net.until(&mut path, 60 * SECONDS), [payload(ceiling, V4)]);
        assert_eq!((path.mtu, path.deadline()), (payload(ceiling, V4), None));
    }
}

#[test]
fn path_mtu_is_found_within_a_few_bytes() {
    for carries in [1172, 1173, 1252, 1392, 1422, 1464, 1471, 1472, 1473, 2000, 4324, 8871, 8971] {
        let (mut path, mut net) = (path(9000), Net::new(carries));
        let sent = net.until(&mut path, 60 * SECONDS);
        assert!(
            path.mtu <= carries && path.mtu + SEARCH_PRECISION >= carries,
            "the path carries {carries} bytes, but the MTU is {}",
            path.mtu
        );
        assert!(
            sent.len() <= 3 * 16,
            "the path carries {carries} bytes, and the search sent {} probes, more than 48",
            sent.len()
        );
        for size in &sent {
            let tries = sent.iter().filter(|other| *other == size).count();
            assert_eq!(
                tries,
                if *size <= carries { 1 } else { MAX_PROBES as usize },
                "wrong number of probes of {size} bytes on a path of {carries} bytes"
            );
        }
    }
    let (mut path, mut net) = (path(9000), Net::new(1472));
    net.until(&mut path, 60 * SECONDS);
    assert_eq!(path.mtu, 1472, "a common size is found exactly");
}

#[test]
fn one_lost_probe_does_not_rule_out_a_size() {
    let mut path = path(1500);
    assert_eq!(path.next_probe(0), Some(1472));
    assert_eq!(path.next_probe(0), None, "only one probe is outstanding");
    path.on_time(PROBE_TIMEOUT);
    assert_eq!(path.next_probe(PROBE_TIMEOUT), Some(1472));
    path.acked(PROBE_TIMEOUT + 1, 1472);
    assert_eq!(path.mtu, 1472);
}

#[test]
fn late_probe_ack_is_accepted_and_an_invalid_one_is_not() {
    let (mut late, mut net) = (path(1500), Net::new(1172));
    net.until(&mut late, 5 * SECONDS);
    assert_eq!(late.mtu, 1172);
    late.acked(net.now, 1472);
    assert_eq!(late.mtu, 1472);
    let mut lied = path(9000);
    for size in [0, 1172, 1300, 8973, 65_507, usize::MAX] {
        lied.acked(0, size);
    }
    assert_eq!(lied.mtu, 1172);
}

#[test]
fn path_mtu_search_is_repeated_after_ten_minutes() {
    let (mut path, mut net) = (path(1500), Net::new(1400));
    net.until(&mut path, 60 * SECONDS);
    assert!(path.mtu <= 1400);
    net.carries = 1472;
    assert!(net.until(&mut path, 500 * SECONDS).is_empty());
    net.until(&mut path, 700 * SECONDS);
    assert_eq!(path.mtu, 1472);
}

#[test]
fn probe_size_rejected_by_the_host_limits_the_path_mtu() {
    let (mut path, mut net) = (path(9000), Net::new(usize::MAX));
    let size = path.next_probe(0).unwrap();
    path.limit(0, size - 1);
    assert_eq!(path.next_probe(0), Some(size - 1), "the search continues immediately below the rejected size");
    path.limit(0, 1472);
    net.until(&mut path, SECONDS);
    assert_eq!(path.mtu, 1472);
    path.limit(SECONDS, 1400);
    assert_eq!(path.mtu, 1400, "a limit below the confirmed size lowers it");
    path.limit(SECONDS, 0);
    assert_eq!(path.mtu, payload(MIN_IP_PACKET, V4), "the MTU never goes below the minimum packet of IP");
    net.until(&mut path, 700 * SECONDS);
    assert_eq!(path.mtu, payload(9000, V4));
}

#[test]
fn black_hole_is_detected_and_path_mtu_search_restarts() {
    for carries in [1172, 1200, 1300, 1422] {
        let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
        net.until(&mut path, SECONDS);
        net.carries = carries;
        for _ in 0..SUSPICIOUS_LOSSES {
            assert_eq!(net.probes(&mut path), [] as [usize; 0], "no black hole is suspected yet");
            path.lost(net.now, 1472);
        }
        let found = net.now + SECONDS;
        net.until(&mut path, found);
        assert_eq!(path.black_holes(), 1);
        assert!(path.mtu <= carries);
        net.until(&mut path, found + 30 * SECONDS);
        assert!(
            path.mtu <= carries && path.mtu + SEARCH_PRECISION >= carries,
            "the path carries {carries} bytes, but the MTU is {}",
            path.mtu
        );
    }
}

#[test]
fn packets_are_small_while_a_black_hole_is_suspected() {
    let large = |path: &mut PathMtu| {
        let mut net = Net::new(usize::MAX);
        net.until(path, SECONDS);
        assert_eq!((path.mtu, path.size()), (1472, 1472));
        net
    };
    // Two consecutive probe timeouts of large packets start the probes for a black hole.
    let (mut silent, mut quiet) = (path(1500), path(1500));
    let net = large(&mut silent);
    silent.timed_out(net.now, 1172);
    silent.timed_out(net.now, 1472);
    assert_eq!(silent.size(), 1472, "timeouts of small packets do not count, and one is not enough");
    silent.timed_out(net.now, 1472);
    assert_eq!((silent.mtu, silent.size()), (1472, 1172));
    silent.acked(net.now, 1472);
    assert_eq!((silent.size(), silent.deadline()), (1472, None), "an acked large packet ends the suspicion");
    silent.timed_out(net.now, 1472);
    assert_eq!(silent.size(), 1472, "the timeouts were not consecutive");
    // Losses of large packets alone do not prove a black hole. Lost large probes prove it if small probes are acked.
    let mut net = large(&mut quiet);
    net.carries = 1172;
    (0..SUSPICIOUS_LOSSES).for_each(|_| quiet.lost(net.now, 1472));
    assert_eq!(quiet.size(), 1472);
    let soon = net.now + PAIR_INTERVAL;
    net.until(&mut quiet, soon);
    assert_eq!((quiet.mtu, quiet.size(), quiet.black_holes()), (1472, 1172, 0));
}

#[test]
fn outage_is_no_black_hole_and_gets_few_probes() {
    let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
    net.until(&mut path, SECONDS);
    net.carries = 0;
    (0..1000).for_each(|_| path.lost(net.now, 1472));
    let sent = net.until(&mut path, 61 * SECONDS);
    assert_eq!((path.black_holes(), path.mtu), (0, 1472));
    assert_eq!(path.size(), 1472, "the size stays large if small packets are not acked either");
    assert!(sent.len() < 200, "{} probes were sent, more than 200", sent.len());
    net.carries = usize::MAX;
    net.until(&mut path, 70 * SECONDS);
    assert_eq!((path.black_holes(), path.mtu, path.deadline()), (0, 1472, None));
}

#[test]
fn random_loss_is_no_black_hole() {
    for (loss, train) in [(0.2, 1), (0.2, 44), (0.5, 1)] {
        let (mut path, mut net) = (path(1500), Net::new(usize::MAX));
        net.until(&mut path, SECONDS);
        net.loss = loss;
        let mut suspected = 0;
        for _ in 0..1_000_000 / train {
            let arrives = net.takes(1472);
            for _ in 0..train {
                if arrives {
                    path.record_acked(1472);
                } else {
                    path.lost(net.now, 1472);
                }
            }
            suspected += u32::from(path.pairs.is_some());
            let next = net.now + 100_000;
            net.until(&mut path, next);
        }
        assert!(suspected > 0, "loss of {loss} never raised a suspicion, so the test shows nothing");
        assert_eq!(
            (path.black_holes(), path.mtu),
            (0, 1472),
            "loss of {loss} in trains of {train} packets is no black hole"
        );
    }
}

#[test]
fn losses_of_small_packets_do_not_start_black_hole_probes() {
    let mut path = PathMtu::new(65_507, 65_507, V4);
    (0..100).for_each(|_| path.lost(0, 65_507));
    assert_eq!((path.next_probe(0), path.deadline()), (None, None));
    let (mut path, mut net) = (self::path(1500), Net::new(usize::MAX));
    net.until(&mut path, SECONDS);
    (0..100).for_each(|_| path.lost(net.now, 1172));
    assert_eq!((path.next_probe(net.now), path.deadline()), (None, None));
}

#[test]
fn extreme_sizes_and_times_cause_no_overflow() {
    for (start, ceiling) in [(0, 0), (usize::MAX, usize::MAX), (2000, 1000), (1, usize::MAX)] {
        let mut path = PathMtu::new(start, ceiling, usize::MAX / 2);
        assert!(path.mtu >= 1);
        path.next_probe(Nanos::MAX);
        path.on_time(Nanos::MAX);
        path.limit(Nanos::MAX, 0);
        (0..20).for_each(|_| path.lost(Nanos::MAX, usize::MAX));
        path.next_probe(Nanos::MAX);
        path.acked(Nanos::MAX, usize::MAX);
        path.record_acked(usize::MAX);
        assert!(path.mtu >= 1);
    }
}
