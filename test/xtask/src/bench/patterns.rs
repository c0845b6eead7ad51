//! Patterns of EVD use in larger programs: a separate EVD for requests, a CNO or a thread that waits, several endpoints
//! on one EVD or with one thread each. Two EVDs are compared with one, a wait on a CNO with a wait on its EVD, and most
//! patterns with the ping-pong of the peers. Works for any provider.
#![forbid(unsafe_code)]

use super::contest::Contest;
use super::network::NetworkKind;
use super::ours::PerfArguments;
use super::pair::Cores;
use super::side::{Effort, FigureUnit, Side};

/// Name of these contests on the command line.
pub(super) const ID: &str = "evds";

const SIZES: [u32; 4] = [64, 1 << 10, 4 << 10, 64 << 10];

/// A pattern with two EVDs, compared with a process that polls or waits on one EVD.
struct Pattern {
    /// Titles, one per entry of [`SIZES`].
    titles: [&'static str; 4],
    options: &'static [&'static str],
    /// Program options of the comparison: none to poll one EVD, `-w` to wait on it.
    one: &'static [&'static str],
}

macro_rules! titles {
    ($pattern:literal) => {
        [
            concat!("64 B: ", $pattern),
            concat!("1 KiB: ", $pattern),
            concat!("4 KiB: ", $pattern),
            concat!("64 KiB: ", $pattern),
        ]
    };
}

const PATTERNS: [Pattern; 4] = [
    Pattern { titles: titles!("2 EVDs polled, beside 1"), options: &["-2"], one: &[] },
    Pattern { titles: titles!("waits on 2 EVDs, beside 1"), options: &["-w", "-2"], one: &["-w"] },
    Pattern { titles: titles!("CNO over 2 EVDs, beside 1 EVD"), options: &["-C", "-2"], one: &["-w"] },
    Pattern { titles: titles!("thread per EVD, waiting, beside 1"), options: &["-w", "-T"], one: &["-w"] },
];

fn pingpong(effort: Effort, mode: &'static str, size: u32, options: &[&str]) -> Side {
    let ask = PerfArguments::new(mode, size, effort.count(1_000)).with(options);
    Side::Timed { ask, seconds: effort.seconds(0.5) }
}

fn contest(title: &'static str, must: Option<f64>, ours: Side, peers: Vec<Side>) -> Contest {
    let (shown, network_kind) = (FigureUnit::Microseconds, NetworkKind::Loopback);
    Contest { id: ID, title, shown, must, stretch: None, ours, peers, network_kind }
}

/// Compares waits on a CNO with waits on its EVD. Polling: each process has a processor, so a message arrives while its
/// receiver still polls. Asleep: both processes share a processor, so the receiver sleeps until the message arrives.
fn cno_waits(effort: Effort) -> [Contest; 2] {
    let side = |options: &[&str], cores| {
        let ask = PerfArguments { cores, ..PerfArguments::new("reap", 8, effort.count(1_000)).with(options) };
        Side::Timed { ask, seconds: effort.seconds(0.5) }
    };
    let beside = |title, cores| contest(title, Some(1.5), side(&["-C"], cores), vec![side(&["-w"], cores)]);
    [
        beside("8 B: CNO wait polling, beside EVD", Cores::Apart),
        beside("8 B: CNO wait asleep, beside EVD", Cores::Together),
    ]
}

/// Returns the contests of three kinds. In the first, a pattern with two EVDs may take at most 1.1 times as long as
/// polling or waiting on one EVD. In the second, a wait on a CNO may take at most 1.5 times as long as a wait on its
/// EVD. In the third, three patterns of the first kind and three with several EPs are compared with the ping-pong of
/// the peers, all with 64 bytes and without a target.
pub(super) fn contests(effort: Effort, polling: &[Side], asleep: &[Side]) -> Vec<Contest> {
    let both = |(size, title): (&u32, &&'static str), pattern: &Pattern| {
        let ours = pingpong(effort, "reap", *size, pattern.options);
        contest(title, Some(1.1), ours, vec![pingpong(effort, "reap", *size, pattern.one)])
    };
    let beside_one =
        PATTERNS.iter().flat_map(|pattern| SIZES.iter().zip(&pattern.titles).map(move |of| both(of, pattern)));
    let ours = |mode, options| pingpong(effort, mode, 64, options);
    let beside = |title, ours, peers: &[Side]| contest(title, None, ours, peers.to_vec());
    let beside_peers = [
        beside("64 B: 2 EVDs polled", ours("reap", &["-2"]), polling),
        beside("64 B: waits on 2 EVDs", ours("reap", &["-w", "-2"]), asleep),
        beside("64 B: CNO over 2 EVDs", ours("reap", &["-C", "-2"]), asleep),
        beside("64 B: 4 EPs in turn on 1 EVD", ours("robin", &["-c", "4"]), polling),
        beside("64 B: 2 EPs, polling thread each", ours("threads", &["-c", "2"]), polling),
        beside("64 B: 2 EPs, waiting thread each", ours("threads", &["-w", "-c", "2"]), asleep),
    ];
    beside_one.chain(cno_waits(effort)).chain(beside_peers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contests_contain_every_pattern_at_every_size() {
        let lines: Vec<_> = contests(Effort::FULL, &[], &[]).iter().map(|contest| contest.ours.line()).collect();
        for pattern in &PATTERNS {
            for size in SIZES {
                let options = pattern.options.join(" ");
                assert!(
                    lines.iter().any(|line| line.starts_with(&format!("perf {options} reap {size} "))),
                    "{lines:?}"
                );
            }
        }
    }
}
