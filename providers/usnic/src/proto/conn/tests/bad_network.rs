//! Tests random sends, writes and reads over networks that drop, duplicate, delay and reorder packets, and over one
//! without faults. The configurations differ in packet size, depths of the channels, number of outstanding reads, and
//! private or shared receives. Each request must complete exactly once, in the order of the posts, with unchanged data.

use dapl::provider::Status;

use super::network::{NetworkConditions, TestRandom};
use super::pair::{ConnPair, Endpoint, PairConfig};
use crate::proto::conn::{ConnConfig, Operation};
use crate::proto::{MICROS, MILLIS};

/// Size in bytes of each of the four parts of an endpoint's memory: source of sends and writes, receives, targets of
/// the peer's writes, targets of reads.
const PART: usize = 1 << 21;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

#[derive(Clone, Copy, Debug)]
struct PostedJob {
    kind: Kind,
    id: u64,
    /// Offset of the local bytes.
    at: usize,
    /// Offset of the bytes in the peer's memory.
    there: usize,
    length: usize,
}

/// Work that one endpoint has posted, and how many bytes of its memory are used.
#[derive(Default)]
struct Load {
    jobs: Vec<PostedJob>,
    recvs: Vec<(u64, usize)>,
    sends: usize,
    used: [usize; 2],
    /// Lengths of the sends, which determine the lengths of the peer's receives.
    lengths: Vec<usize>,
}

fn length(dice: &mut TestRandom, mtu: usize) -> usize {
    let lengths = [0, 1, 64, 767, 768, 769, mtu - 57, mtu - 56, mtu - 55, 2 * mtu, 9 * mtu, 30_000];
    lengths[dice.below(lengths.len() as u64) as usize]
}

struct Run {
    pair: ConnPair,
    loads: [Load; 2],
    mtu: usize,
    shared: bool,
}

impl Run {
    fn new(mut plan: PairConfig, network: NetworkConditions) -> Run {
        plan.memory = 4 * PART;
        let (mtu, shared) = (plan.mtu.min(plan.config.mtu_start), plan.config.shared);
        let mut pair = ConnPair::new(&plan);
        pair.network = network;
        Run { pair, loads: [Load::default(), Load::default()], mtu, shared }
    }

    fn side(place: usize) -> Endpoint {
        [Endpoint::A, Endpoint::B][place]
    }

    fn post(&mut self, place: usize) {
        let side = Run::side(place);
        let length = length(&mut self.pair.dice, self.mtu);
        let at = self.pair.dice.below((PART - length) as u64) as usize;
        let fence = self.pair.dice.below(8) == 0;
        let kind = [Kind::Send, Kind::Send, Kind::Write, Kind::Read][self.pair.dice.below(4) as usize];
        let [ours, theirs] = self.loads.get_disjoint_mut([place, 1 - place]).expect("the two indexes are different");
        let job = match kind {
            Kind::Send => {
                ours.sends += 1;
                ours.lengths.push(length);
                let solicited = self.pair.dice.below(2) == 0;
                let id = match solicited || fence {
                    true => self.pair.post(side, Operation::Send { solicited }, at, length, fence),
                    false => self.pair.send_quickly(side, at, length),
                };
                PostedJob { kind, id, at, there: 0, length }
            }
            Kind::Write => {
                let there = 2 * PART + theirs.used[0];
                theirs.used[0] += length;
                PostedJob { kind, id: self.pair.write(side, at, length, there), at, there, length }
            }
            Kind::Read => {
                let here = 3 * PART + ours.used[1];
                ours.used[1] += length;
                PostedJob { kind, id: self.pair.read(side, here, length, at), at: here, there: at, length }
            }
        };
        ours.jobs.push(job);
    }

    /// Posts a receive for the first send of the peer that has no receive yet.
    fn recv(&mut self, place: usize) {
        let count = self.loads[place].recvs.len();
        let Some(length) = self.loads[1 - place].lengths.get(count).copied() else { return };
        let at = PART + self.loads[place].recvs.iter().map(|(_, length)| length + 8).sum::<usize>();
        let id = match self.shared {
            true => self.pair.share(Run::side(place), at, length),
            false if count.is_multiple_of(2) => self.pair.recv(Run::side(place), at, length),
            false => self.pair.recv_quickly(Run::side(place), at, length),
        };
        self.loads[place].recvs.push((id, length));
    }

    fn work(&mut self, count: usize) {
        for _ in 0..count {
            for place in [0, 1] {
                match self.pair.dice.below(3) {
                    0 => self.recv(place),
                    _ => self.post(place),
                }
            }
            if self.shared {
                self.empty_for_a_while();
            }
            for _ in 0..self.pair.dice.below(6) {
                self.pair.step();
            }
        }
    }

    /// Removes the receives from the shared queues for up to 30 steps, as if other connections had used them.
    fn empty_for_a_while(&mut self) {
        let [a, b] = [Endpoint::A, Endpoint::B].map(|side| std::mem::take(&mut self.pair.end(side).host.shared));
        for _ in 0..self.pair.dice.below(30) {
            self.pair.step();
        }
        (self.pair.a.host.shared, self.pair.b.host.shared) = (a, b);
    }

    fn finish(&mut self) {
        for _ in 0..1_000 {
            self.recv(0);
            self.recv(1);
        }
        let [a, b] = [0, 1].map(|place| (self.loads[place].jobs.len(), self.loads[1 - place].sends));
        self.pair.until("all is done", |pair| {
            let counts = |end: &super::pair::End| (end.host.requests.len(), end.host.recvs.len());
            counts(&pair.a) == a && counts(&pair.b) == b
        });
        self.pair.pass(500 * MILLIS); // Delayed packets arrive during this time.
        for place in [0, 1] {
            self.check(place);
        }
    }

    fn check(&mut self, place: usize) {
        let side = Run::side(place);
        let done: Vec<_> = self.pair.end(side).host.requests.iter().map(|done| (done.id, done.status)).collect();
        let posted: Vec<_> = self.loads[place].jobs.iter().map(|job| (job.id, Status::Success)).collect();
        assert_eq!(done, posted, "each request completes exactly once, in the order of the posts");
        let recvs: Vec<_> = self.pair.end(side).host.recvs.iter().map(|done| (done.id, done.bytes as usize)).collect();
        assert_eq!(recvs, self.loads[place].recvs);
        self.pair.end(side).host.check_untouched();
        let mut into = PART;
        let ours = self.pair.end(side).host.memory.clone();
        let theirs = &self.pair.end(side.other()).host.memory;
        for job in &self.loads[place].jobs {
            let there = match job.kind {
                Kind::Send => {
                    into += job.length + 8;
                    into - job.length - 8
                }
                Kind::Write | Kind::Read => job.there,
            };
            assert!(ours[job.at..][..job.length] == theirs[there..][..job.length], "the bytes of {job:?} differ");
        }
    }
}

fn run(plan: PairConfig, network: NetworkConditions, work: usize) -> Run {
    let mut run = Run::new(plan, network);
    run.work(work);
    run.finish();
    run
}

fn plan(seed: u64) -> PairConfig {
    let config = ConnConfig { window_kib: 512, ..ConnConfig::default() };
    PairConfig { config, seed, psn: [u32::MAX - 40, u32::MAX - 500], number: u32::MAX - 20, ..PairConfig::default() }
}

fn storm(drop: u64) -> NetworkConditions {
    NetworkConditions { drop, double: 20, late: 100, lateness: 500 * MICROS, ..NetworkConditions::default() }
}

#[test]
fn work_completes_over_a_network_without_loss() {
    (0..20).for_each(|seed| {
        let run = run(plan(seed), NetworkConditions::default(), 60);
        let counters = run.pair.a.conn.counters();
        assert_eq!((counters.resent_gap, counters.resent_probe, counters.duplicates), (0, 0, 0));
    });
}

#[test]
fn work_completes_over_a_network_with_loss_duplicates_and_reordering() {
    for seed in 0..60 {
        let run = run(plan(seed), storm([1, 10, 50, 200][seed as usize % 4]), 40);
        let counters = run.pair.a.conn.counters();
        assert!(
            seed % 4 == 0 || counters.resent_gap + counters.resent_probe > 0,
            "a network with loss causes retransmissions"
        );
    }
}

#[test]
fn work_completes_with_tiny_packets() {
    for seed in 0..20 {
        let config = ConnConfig { mtu_start: 100, tiny: 20, ..plan(seed).config };
        run(PairConfig { config, mtu: 100, ..plan(seed) }, storm(20), 20);
    }
}

#[test]
fn work_completes_with_huge_packets() {
    for seed in 0..20 {
        let config = ConnConfig { mtu_start: 9000, ..plan(seed).config };
        run(PairConfig { config, mtu: 60_000, ..plan(seed) }, storm(20), 30);
    }
}

#[test]
fn work_completes_with_one_read_at_a_time() {
    (0..20).for_each(|seed| {
        run(PairConfig { reads: 1, ..plan(seed) }, storm(20), 40);
    });
}

#[test]
fn work_completes_with_shared_receives() {
    let mut withdrawn_sends = 0;
    for seed in 0..60 {
        let config = ConnConfig { shared: true, ..plan(seed).config };
        let run = run(PairConfig { config, ..plan(seed) }, storm([0, 20][seed as usize % 2]), 40);
        withdrawn_sends += run.pair.a.conn.counters().withdrawn_sends;
    }
    assert!(withdrawn_sends > 0, "no send was withdrawn, so the shared receive queue was never empty");
}

#[test]
fn work_completes_with_shallow_command_and_data_channels() {
    for seed in 0..20 {
        let config = ConnConfig { command_depth: 2, data_depth: 3, window: 4, ..plan(seed).config };
        run(PairConfig { config, ..plan(seed) }, storm(20), 30);
    }
}
