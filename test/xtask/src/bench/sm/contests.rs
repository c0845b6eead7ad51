//! The promises: what is measured for each, beside whom, and how far from it we may be.
#![forbid(unsafe_code)]

use super::side::{Effort, Shown, Side, depth};
use crate::Result;
use crate::bench::median;
use crate::bench::ours::{Ask, Perf};
use crate::bench::pair::Cores;
use crate::bench::peers::{Fabric, Ucx};

/// One promise.
pub(super) struct Contest {
    /// The name it has in the list of promises.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) shown: Shown,
    /// Our figure over the peer's, or our figure where there is no peer: what is promised, and what is hoped for.
    pub(super) must: f64,
    pub(super) stretch: Option<f64>,
    pub(super) ours: Ask,
    /// The best of each round counts.
    pub(super) peers: Vec<Side>,
    /// Each side does as much as it can in about this time, in microseconds: they are too far apart for one number.
    pub(super) lasts: Option<f64>,
}

/// A contest with its samples, round by round.
pub(super) struct Measured {
    pub(super) contest: Contest,
    pub(super) ours: Vec<f64>,
    pub(super) peers: Vec<Vec<f64>>,
}

/// All of them, S1 to S9.
pub(super) fn contests(effort: Effort) -> Vec<Contest> {
    [pingpongs(effort), streams(effort), absolutes(effort)].into_iter().flatten().collect()
}

fn pingpongs(effort: Effort) -> Vec<Contest> {
    let many = effort.count(1_000_000);
    let ucx = |size, count| Ucx::new("tag_lat", size, count);
    let pingpong = |id, title, size, count, peer, (must, stretch)| Contest {
        id,
        title,
        shown: Shown::Microseconds,
        must,
        stretch: Some(stretch),
        ours: Ask::new("lat", size, count),
        peers: vec![peer],
        lasts: None,
    };
    let fabric = Fabric { provider: "shm", size: 64, count: effort.count(200_000) };
    let (long, asleep, crowded) = (effort.count(300_000), effort.count(50_000), effort.count(200));
    let sleeping = Ucx { sleeps: true, ..ucx(8, asleep) };
    let together = Ucx { cores: Cores::Together, ..ucx(8, crowded) };
    let eight = pingpong("S1", "8 B ping-pong, polling", 8, many, Side::Ucx(ucx(8, many)), (1.5, 1.1));
    let sixty_four = pingpong("S2", "64 B ping-pong, polling", 64, many, Side::Fabric(fabric), (0.3, 0.2));
    let page = pingpong("S4", "4 KiB ping-pong, polling", 4096, long, Side::Ucx(ucx(4096, long)), (1.3, 1.0));
    let mut one = pingpong("S7", "8 B ping-pong, one processor", 8, crowded, Side::Ucx(together), (0.01, 0.001));
    one.ours.cores = Cores::Together;
    one.lasts = Some(500_000.0);
    let mut wait = pingpong("S8", "8 B ping-pong, asleep between", 8, asleep, Side::Ucx(sleeping), (1.5, 1.0));
    wait.ours = wait.ours.with(&["-w"]);
    vec![eight, sixty_four, page, one, wait]
}

fn streams(effort: Effort) -> Vec<Contest> {
    let stream = |id, title, shown, ours, peers, (must, stretch)| {
        let stretch = Some(stretch);
        Contest { id, title, shown, must, stretch, ours, peers, lasts: None }
    };
    let many = effort.count(5_000_000);
    let bytes = |id, title, mode, size: u32, options: &[&str], peers, targets| {
        let ask = Ask::new(mode, size, bytes_count(effort, size)).with(&["-d", &depth(size).to_string()]).with(options);
        stream(id, title, Shown::Bandwidth, ask, peers, targets)
    };
    // Shared memory alone, and UCX's own choice.
    let both = |size| {
        let told = Ucx::new("tag_bw", size, bytes_count(effort, size));
        vec![Side::Ucx(told.clone()), Side::Ucx(Ucx { transports: None, ..told })]
    };
    const MIB: u32 = 1 << 20;
    let put = Side::Ucx(Ucx::new("ucp_put_bw", MIB, bytes_count(effort, MIB)));
    let eight = vec![Side::Ucx(Ucx::new("tag_bw", 8, many))];
    vec![
        stream("S3", "8 B message rate", Shown::Rate, Ask::new("rate", 8, many), eight, (0.7, 1.2)),
        bytes("S5", "64 KiB messages, heap", "rate", 65_536, &[], both(65_536), (1.0, 1.8)),
        bytes("S5", "1 MiB messages, heap", "rate", MIB, &[], both(MIB), (1.0, 1.8)),
        bytes("S6", "1 MiB RDMA writes, shared", "write", MIB, &["-m"], vec![put], (0.7, 1.0)),
    ]
}

/// Eight gigabytes of messages of a size.
fn bytes_count(effort: Effort, size: u32) -> u32 {
    effort.count((8u64 << 30).div_euclid(u64::from(size)) as u32)
}

fn absolutes(effort: Effort) -> Vec<Contest> {
    let absolute = |title, shown, must, stretch, ours| Contest {
        id: "S9",
        title,
        shown,
        must,
        stretch,
        ours,
        peers: Vec::new(),
        lasts: None,
    };
    let seconds = if effort.rounds > 1 { 5 } else { 1 };
    vec![
        absolute("processor time of an idle waiter", Shown::Percent, 1.0, None, Ask::new("idle", 8, seconds)),
        absolute("SIGKILL to disconnect event", Shown::Milliseconds, 100.0, Some(10.0), Ask::new("death", 8, 300)),
    ]
}

impl Contest {
    /// Has it done by all sides in turns.
    pub(super) fn measure(mut self, perf: &Perf, effort: Effort) -> Result<Measured> {
        let failed = |reason| format!("{}: {reason}", self.id);
        if let Some(lasts) = self.lasts {
            // A few, to see how long they take.
            let ask = Ask { count: 100, ..self.ours.clone() };
            let once = Side::Ours(ask).measure(perf, self.shown).map_err(failed)?;
            self.ours.count = effort.count((lasts / (2.0 * once)).clamp(100.0, 200_000.0) as u32);
        }
        let (mut ours, mut peers) = (Vec::new(), vec![Vec::new(); self.peers.len()]);
        for round in 1..=effort.rounds {
            let unit = self.shown.unit();
            let figure = Side::Ours(self.ours.clone()).measure(perf, self.shown).map_err(failed)?;
            let mut line = format!("{} {} round {round}: ours {figure:.3} {unit}", self.id, self.title);
            ours.push(figure);
            for (peer, samples) in self.peers.iter().zip(&mut peers) {
                let figure = peer.measure(perf, self.shown).map_err(failed)?;
                line += &format!(", peer {figure:.3} {unit}");
                samples.push(figure);
            }
            eprintln!("{line}");
        }
        Ok(Measured { contest: self, ours, peers })
    }

    /// What a promise or a hope says.
    pub(super) fn bound(&self, value: f64) -> String {
        let is_less = self.shown.less_is_better();
        match (self.peers.is_empty(), is_less) {
            (false, true) => format!("<= {value}x"),
            (false, false) => format!(">= {value}x"),
            (true, true) => format!("< {value} {}", self.shown.unit()),
            (true, false) => format!("> {value} {}", self.shown.unit()),
        }
    }

    fn better(&self, one: f64, other: f64) -> f64 {
        if self.shown.less_is_better() { one.min(other) } else { one.max(other) }
    }
}

impl Measured {
    pub(super) fn ours(&self) -> f64 {
        median(&self.ours)
    }

    /// The median of the best of each round; `None`: nobody was beside us.
    pub(super) fn peer(&self) -> Option<f64> {
        let (first, others) = self.peers.split_first()?;
        let best = first.iter().enumerate().map(|(round, sample)| {
            others.iter().fold(*sample, |best, samples| self.contest.better(best, samples[round]))
        });
        Some(median(&best.collect::<Vec<_>>()))
    }

    /// What the promise is about.
    pub(super) fn figure(&self) -> f64 {
        self.ours() / self.peer().unwrap_or(1.0)
    }

    pub(super) fn meets(&self, bound: f64) -> bool {
        match (self.contest.peers.is_empty(), self.contest.shown.less_is_better()) {
            (false, true) => self.figure() <= bound,
            (false, false) => self.figure() >= bound,
            (true, true) => self.figure() < bound,
            (true, false) => self.figure() > bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str) -> Contest {
        contests(Effort::FULL).into_iter().find(|contest| contest.id == id).unwrap()
    }

    #[test]
    fn the_better_peer_of_each_round_counts() {
        let peers = vec![vec![4.0, 8.0, 9.0], vec![5.0, 7.0, 1.0]];
        let measured = Measured { contest: named("S5"), ours: vec![6.0, 4.0, 5.0], peers };
        assert_eq!(measured.peer(), Some(8.0));
        assert_eq!(measured.figure(), 0.625);
        assert!(measured.meets(0.6) && !measured.meets(0.7));
        let slow = Measured { contest: named("S1"), ours: vec![3.0], peers: vec![vec![2.0]] };
        assert!(slow.meets(1.5) && !slow.meets(1.4));
    }

    #[test]
    fn without_a_peer_the_figure_is_ours() {
        let measured = Measured { contest: named("S9"), ours: vec![0.2, 5.0, 0.1], peers: Vec::new() };
        assert_eq!((measured.peer(), measured.figure()), (None, 0.2));
        assert!(measured.meets(1.0) && !measured.meets(0.2));
        assert_eq!(measured.contest.bound(1.0), "< 1 %");
        assert_eq!([named("S1").bound(1.5), named("S6").bound(0.7)], ["<= 1.5x", ">= 0.7x"]);
    }
}
