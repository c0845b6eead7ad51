//! The network between the peers: applies the faults of the scenario to datagrams, and delivers them after the latency.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::random::TestRandom;
use super::scenario::{Fault, FaultKind, Scenario};
use crate::proto::Nanos;

/// Maximum number of packets per direction that are stored for replays.
const REMEMBERED: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// Whether the network has corrupted the datagram.
    pub(super) garbled: bool,
}

pub(super) struct Network {
    dice: TestRandom,
    faults: Vec<Fault>,
    latency: Nanos,
    wire: BTreeMap<(Nanos, u64), Datagram>,
    count: u64,
    old: BTreeMap<(usize, usize), VecDeque<Datagram>>,
    /// Whether to print each packet, and how the network has changed or dropped it.
    pub(super) traced: bool,
}

/// Returns the index of the peer with this address. The last byte of the IPv4 address is the index plus one.
pub(super) fn peer_of(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(v4) => usize::from(v4.ip().octets()[3]) - 1,
        SocketAddr::V6(_) => usize::MAX,
    }
}

impl Network {
    pub(super) fn new(scenario: &Scenario) -> Network {
        Network {
            dice: TestRandom::new(scenario.seed ^ 0x6E65_7477_6F72_6B00),
            faults: scenario.faults.clone(),
            latency: scenario.latency,
            wire: BTreeMap::new(),
            count: 0,
            old: BTreeMap::new(),
            traced: false,
        }
    }

    /// Sends a datagram: applies the faults of its path, and delivers it after the latency unless a fault drops it.
    pub(super) fn carry(&mut self, now: Nanos, datagram: Datagram) {
        let way = (peer_of(datagram.from), peer_of(datagram.to));
        let faults: Vec<FaultKind> = self
            .faults
            .iter()
            .filter(|fault| fault.way == way && (fault.from..fault.until).contains(&now))
            .map(|fault| fault.kind)
            .collect();
        for kind in &faults {
            let passes = |kind: &FaultKind| !matches!(kind, FaultKind::DropLarge(size) if datagram.bytes.len() > *size);
            if let FaultKind::Replay(often) = *kind
                && faults.iter().all(passes)
            {
                self.bring_back(now, way, often, &datagram);
            }
        }
        self.pass(now, datagram, &faults);
    }

    /// Delivers a stored packet again, with a probability of `often` / 1000, and stores `fresh` for later replays.
    fn bring_back(&mut self, now: Nanos, way: (usize, usize), often: u64, fresh: &Datagram) {
        let old = self.old.entry(way).or_default();
        if self.dice.hits(often) && !old.is_empty() {
            let again = old[self.dice.below(old.len() as u64) as usize].clone();
            self.put(now + self.latency, again);
        }
        let old = self.old.entry(way).or_default();
        old.push_back(fresh.clone());
        if old.len() > REMEMBERED {
            old.pop_front();
        }
    }

    fn pass(&mut self, now: Nanos, mut datagram: Datagram, faults: &[FaultKind]) {
        let mut at = now + self.latency;
        for kind in faults {
            match *kind {
                FaultKind::Drop(often) if self.dice.hits(often) => return self.log(now, &datagram, "lost"),
                FaultKind::Outage => return self.log(now, &datagram, "outage"),
                FaultKind::DropLarge(size) if datagram.bytes.len() > size => {
                    return self.log(now, &datagram, "too large");
                }
                FaultKind::Duplicate(often) if self.dice.hits(often) => {
                    let later = at + self.dice.below(10 * self.latency);
                    self.put(later, datagram.clone());
                }
                FaultKind::DelaySome(often, late) if self.dice.hits(often) => at += self.dice.below(late),
                FaultKind::DelayAll(late) => at += late,
                FaultKind::Corrupt(often) if self.dice.hits(often) => {
                    let before = datagram.bytes.clone();
                    for _ in 0..=self.dice.below(3) {
                        let place = self.dice.below(datagram.bytes.len() as u64) as usize;
                        datagram.bytes[place] ^= 1 << self.dice.below(8);
                    }
                    // The same bit may have been flipped twice.
                    datagram.garbled = datagram.bytes != before;
                }
                _ => {}
            }
        }
        self.log(now, &datagram, if datagram.garbled { "garbled" } else { "" });
        self.put(at, datagram);
    }

    fn put(&mut self, at: Nanos, datagram: Datagram) {
        self.count += 1;
        self.wire.insert((at, self.count), datagram);
    }

    fn log(&self, now: Nanos, datagram: &Datagram, what: &str) {
        if self.traced {
            let (from, to) = (peer_of(datagram.from), peer_of(datagram.to));
            println!("{now:>12} {from} -> {to} {} {what}", super::reports::packet(&datagram.bytes));
        }
    }

    /// Returns the time at which the next datagram arrives.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.wire.keys().next().map(|(at, _)| *at)
    }

    /// Removes and returns the first datagram that has arrived.
    pub(super) fn arrived(&mut self, now: Nanos) -> Option<Datagram> {
        self.wire.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
