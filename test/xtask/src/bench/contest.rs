//! A contest: a figure of this project, and the figures of its peers if there are any. A target limits the ratio or,
//! without peers, the figure. The benches `sm` and `usnic` each have a list of contests.
#![forbid(unsafe_code)]

use super::median;
use super::network::{BenchNetwork, NetworkKind};
use super::ours::Perf;
use super::side::{Effort, FigureUnit, Side};
use crate::Result;

/// One contest, not yet measured.
pub(super) struct Contest {
    /// Name in tables and on the command line, such as S1.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) shown: FigureUnit,
    /// Target: bound for the ratio of this project's figure to the peer's, or for the figure itself if there is no
    /// peer.
    pub(super) must: Option<f64>,
    /// Stretch target: a stricter bound than the target.
    pub(super) stretch: Option<f64>,
    pub(super) ours: Side,
    /// Peers; in each round the best peer counts.
    pub(super) peers: Vec<Side>,
    pub(super) network_kind: NetworkKind,
}

/// A contest with the samples of each round.
pub(super) struct Measured {
    pub(super) contest: Contest,
    pub(super) ours: Vec<f64>,
    pub(super) peers: Vec<Vec<f64>>,
}

impl Contest {
    /// Measures all programs in alternation.
    pub(super) fn measure(self, perf: &Perf, effort: Effort) -> Result<Measured> {
        let failed = |reason| format!("{}: {reason}", self.id);
        let network = BenchNetwork::set_up(self.network_kind).map_err(failed)?;
        let (mut ours, mut peers) = (Vec::new(), vec![Vec::new(); self.peers.len()]);
        for round in 1..=effort.rounds {
            let unit = self.shown.unit();
            let figure = self.ours.measure(perf, &network, self.shown).map_err(failed)?;
            let mut line = format!("{} {} round {round}: ours {figure:.3} {unit}", self.id, self.title);
            ours.push(figure);
            for (peer, samples) in self.peers.iter().zip(&mut peers) {
                let figure = peer.measure(perf, &network, self.shown).map_err(failed)?;
                line += &format!(", peer {figure:.3} {unit}");
                samples.push(figure);
            }
            eprintln!("{line}");
        }
        Ok(Measured { contest: self, ours, peers })
    }

    /// Formats a bound: a ratio such as `<= 1.5x`, or a figure such as `< 100 ms` if there is no peer.
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

    /// Median of the best peer of each round; `None` without a peer.
    pub(super) fn peer(&self) -> Option<f64> {
        let (first, others) = self.peers.split_first()?;
        let best = first.iter().enumerate().map(|(round, sample)| {
            others.iter().fold(*sample, |best, samples| self.contest.better(best, samples[round]))
        });
        Some(median(&best.collect::<Vec<_>>()))
    }

    /// Returns the value that the bounds limit: the ratio to the peer, or this project's figure if there is no peer.
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
    use crate::bench::ours::PerfArguments;
    use crate::bench::peers::Ucx;

    fn contest(shown: FigureUnit, peers: usize) -> Contest {
        let (ours, peer) = (Side::Ours(PerfArguments::new("lat", 8, 1)), Side::Ucx(Ucx::new("tag_lat", 8, 1)));
        let (must, stretch, network_kind) = (Some(1.0), None, NetworkKind::Loopback);
        Contest { id: "X1", title: "a figure", shown, must, stretch, ours, peers: vec![peer; peers], network_kind }
    }

    #[test]
    fn figure_is_compared_with_the_better_peer_of_each_round() {
        let peers = vec![vec![4.0, 8.0, 9.0], vec![5.0, 7.0, 1.0]];
        let measured = Measured { contest: contest(FigureUnit::Bandwidth, 2), ours: vec![6.0, 4.0, 5.0], peers };
        assert_eq!(measured.peer(), Some(8.0));
        assert_eq!(measured.figure(), 0.625);
        assert!(measured.meets(0.6) && !measured.meets(0.7));
        let slow = Measured { contest: contest(FigureUnit::Microseconds, 1), ours: vec![3.0], peers: vec![vec![2.0]] };
        assert!(slow.meets(1.5) && !slow.meets(1.4));
    }

    #[test]
    fn figure_without_a_peer_is_the_median_of_the_own_samples() {
        let measured =
            Measured { contest: contest(FigureUnit::Percent, 0), ours: vec![0.2, 5.0, 0.1], peers: Vec::new() };
        assert_eq!((measured.peer(), measured.figure()), (None, 0.2));
        assert!(measured.meets(1.0) && !measured.meets(0.2));
        assert_eq!(measured.contest.bound(1.0), "< 1 %");
        assert_eq!(contest(FigureUnit::Microseconds, 1).bound(1.5), "<= 1.5x");
        assert_eq!(contest(FigureUnit::Bandwidth, 1).bound(0.7), ">= 0.7x");
    }
}
