//! Counts of half-open connection attempts, in total and by source prefix.
//!
//! Attempts are counted by prefix (/24 for IPv4, /64 for IPv6), because one host may use all addresses of a prefix.
//! Only prefixes with an attempt have an entry.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttemptCount {
    pub(super) all: usize,
    /// Number of attempts from unverified sources.
    pub(super) unverified: usize,
}

/// Counters since the IA was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct HalfOpenCounts {
    pub(crate) requests: u64,
    /// Requests and withdrawals that are damaged, or come from a host whose setting `key` differs.
    pub(crate) unreadable: u64,
    pub(crate) cookies: u64,
    /// Requests that got a cookie because the limit of attempts was reached.
    pub(crate) limit_reached: u64,
}

/// Numbers of half-open attempts, in total and by prefix.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    pub(super) total: AttemptCount,
    prefixes: BTreeMap<(bool, [u8; 8]), AttemptCount>,
}

impl HalfOpen {
    pub(super) fn of_prefix(&self, from: SocketAddr) -> AttemptCount {
        self.prefixes.get(&prefix(from)).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, from: SocketAddr, is_verified: bool) {
        self.update_counts(from, 1, isize::from(!is_verified));
    }

    /// Records that the source of an attempt has been verified.
    pub(super) fn verified(&mut self, from: SocketAddr) {
        self.update_counts(from, 0, -1);
    }

    pub(super) fn remove(&mut self, from: SocketAddr, is_verified: bool) {
        self.update_counts(from, -1, -isize::from(!is_verified));
    }

    fn update_counts(&mut self, from: SocketAddr, all: isize, unverified: isize) {
        for count in [&mut self.total, self.prefixes.entry(prefix(from)).or_default()] {
            count.all = count.all.wrapping_add_signed(all);
            count.unverified = count.unverified.wrapping_add_signed(unverified);
        }
        if self.of_prefix(from).all == 0 {
            self.prefixes.remove(&prefix(from));
        }
    }
}

fn prefix(from: SocketAddr) -> (bool, [u8; 8]) {
    let mut prefix = [0; 8];
    match from.ip().to_canonical() {
        IpAddr::V4(ip) => prefix[..3].copy_from_slice(&ip.octets()[..3]),
        IpAddr::V6(ip) => prefix.copy_from_slice(&ip.octets()[..8]),
    }
    (from.ip().to_canonical().is_ipv4(), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("the literal is a valid address")
    }

    #[test]
    fn attempts_are_counted_by_network_prefix() {
        let mut half_open = HalfOpen::default();
        for from in ["10.0.0.1:1", "10.0.0.2:2", "[::ffff:10.0.0.3]:3", "10.0.1.1:1", "[2001:db8::1]:1"] {
            half_open.add(at(from), false);
        }
        half_open.add(at("[2001:db8::ffff:0:0:1]:1"), true);
        assert_eq!((half_open.total.all, half_open.total.unverified), (6, 5));
        assert_eq!((half_open.of_prefix(at("10.0.0.9:9")).all, half_open.of_prefix(at("10.0.2.1:1")).all), (3, 0));
        let six = at("[2001:db8::2]:2");
        assert_eq!((half_open.of_prefix(six).all, half_open.of_prefix(six).unverified), (2, 1));
        assert_eq!(half_open.of_prefix(at("[2001:db8:0:1::1]:1")).all, 0);
        assert_eq!(
            half_open.of_prefix(at("[a00::]:1")).all,
            0,
            "an IPv6 prefix with the bytes of an IPv4 prefix is counted separately"
        );
    }

    #[test]
    fn half_open_counts_are_zero_after_all_attempts_are_removed() {
        let mut half_open = HalfOpen::default();
        half_open.add(at("10.0.0.1:1"), false);
        half_open.add(at("10.0.0.1:2"), true);
        half_open.verified(at("10.0.0.1:1"));
        assert_eq!((half_open.total.unverified, half_open.of_prefix(at("10.0.0.1:1")).unverified), (0, 0));
        half_open.remove(at("10.0.0.1:1"), true);
        assert_eq!((half_open.total.all, half_open.prefixes.len()), (1, 1));
        half_open.remove(at("10.0.0.1:2"), true);
        assert_eq!((half_open.total.all, half_open.total.unverified, half_open.prefixes.len()), (0, 0, 0));
    }
}
