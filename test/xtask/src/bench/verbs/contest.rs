//! The operations of the verbs bench and their measurement: all programs run in alternation, and runs of two lengths
//! give the processor time per operation.
#![forbid(unsafe_code)]

use super::sides::{Sample, Side, Sides};
use crate::Result;
use crate::bench::median;
use crate::bench::side::CommandLines;
use crate::guest::Guest;

/// When a polling program yields the processor that it shares with its peer.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum YieldPolicy {
    /// Never yields: both programs sleep while they wait for each other.
    Never,
    /// Yields when a poll finds no completion.
    Empty,
    /// Also yields after each completion, because the program then polls memory.
    After,
}

/// Unit in which an operation's time is shown.
#[derive(Clone, Copy)]
pub(super) enum FigureUnit {
    Microseconds,
    PerSecond,
    Bandwidth,
}

impl FigureUnit {
    pub(super) fn unit(self) -> &'static str {
        match self {
            FigureUnit::Microseconds => "us",
            FigureUnit::PerSecond => "/s",
            FigureUnit::Bandwidth => "MB/s",
        }
    }

    /// Converts the time `usec` of an operation with `size` bytes to this unit.
    pub(super) fn figure(self, size: u32, usec: f64) -> f64 {
        match self {
            FigureUnit::Microseconds => usec,
            FigureUnit::PerSecond => 1e6 / usec,
            FigureUnit::Bandwidth => f64::from(size) / usec,
        }
    }
}

/// One operation, with the arguments for each program.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) shown: FigureUnit,
    /// Arguments for `verbs_bench`.
    pub(super) what: &'static str,
    /// Size in bytes; 0: the operation has none.
    pub(super) size: u32,
    /// Operations in flight; 0 if the operation has no depth.
    pub(super) depth: u32,
    pub(super) count: u32,
    /// perftest's program and options except size, depth and count. Empty if perftest lacks the operation.
    pub(super) perftest: &'static [&'static str],
    /// Name of the operation in dapltest's performance test. Empty if dapltest lacks the operation.
    pub(super) dapltest: &'static str,
    pub(super) turns: YieldPolicy,
}

/// perftest's programs for writes and reads. `-Q 1` signals every request, `-N` reports the average instead of the
/// peak, and `-o 16` uses as many outstanding reads as this project.
const WRITE: &[&str] = &["ib_write_bw", "-Q", "1", "-N"];
const READ: &[&str] = &["ib_read_bw", "-Q", "1", "-N", "-o", "16"];

/// All measured operations.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        perftest: &["ib_send_lat"],
        turns: YieldPolicy::Empty,
        ..pingpong("V1", "64 B messages, there and back", "send")
    },
    Operation {
        perftest: &["ib_write_lat"],
        turns: YieldPolicy::After,
        ..pingpong("V2", "64 B writes, there and back", "memory")
    },
    Operation { perftest: &["ib_send_lat", "-e"], ..pingpong("V3", "64 B messages, asleep between", "wait") },
    Operation { shown: FigureUnit::PerSecond, depth: 1, ..stream("V4", "64 B writes, 1 at a time", "write", 64) },
    Operation { shown: FigureUnit::PerSecond, depth: 64, ..stream("V5", "64 B writes, 64 at a time", "write", 64) },
    Operation { count: 300, ..stream("V6", "64 KiB writes", "write", 65_536) },
    Operation { count: 300, perftest: READ, dapltest: "RR", ..stream("V7", "64 KiB reads", "read", 65_536) },
    Operation { count: 100, ..connects("V8", "connects, 1 at a time", 1) },
    Operation { count: 256, ..connects("V9", "connects, 64 at a time", 64) },
    Operation { turns: YieldPolicy::Empty, ..pattern("V10", "64 B messages, 1 EVD polled", "one") },
    pattern("V11", "64 B messages, 1 EVD, asleep", "one-wait"),
    pattern("V12", "64 B messages, CNO over 2 EVDs", "cno"),
    Operation { turns: YieldPolicy::Empty, ..pattern("V13", "64 B messages, 4 EPs on 1 EVD", "robin") },
    pattern("V14", "64 B messages, 2 EPs, 2 threads", "threads"),
];

pub(super) const fn pingpong(id: &'static str, title: &'static str, what: &'static str) -> Operation {
    Operation { shown: FigureUnit::Microseconds, count: 3_000, depth: 0, dapltest: "", ..stream(id, title, what, 64) }
}

/// Ping-pong with the EVD use of larger programs, which neither perftest nor `dapltest` offers.
pub(super) const fn pattern(id: &'static str, title: &'static str, what: &'static str) -> Operation {
    Operation { perftest: &[], ..pingpong(id, title, what) }
}

pub(super) const fn stream(id: &'static str, title: &'static str, what: &'static str, size: u32) -> Operation {
    let (shown, turns) = (FigureUnit::Bandwidth, YieldPolicy::Never);
    Operation { id, title, shown, what, size, depth: 64, count: 5_000, perftest: WRITE, dapltest: "RW", turns }
}

pub(super) const fn connects(id: &'static str, title: &'static str, depth: u32) -> Operation {
    Operation { shown: FigureUnit::PerSecond, depth, perftest: &[], dapltest: "", ..stream(id, title, "connect", 0) }
}

/// Figures of one side for one operation.
pub(super) struct Figures {
    /// Microseconds per operation by the guest's clock, one sample per run.
    pub(super) samples: Vec<f64>,
    /// Command lines of server and client.
    pub(super) ends: CommandLines,
    /// Processor time per operation in microseconds: server and client.
    pub(super) processor: Option<(f64, f64)>,
}

impl Figures {
    pub(super) fn usec(&self) -> f64 {
        median(&self.samples)
    }
}

/// An operation and the figures of each program that supports it.
pub(super) struct Measured {
    pub(super) operation: &'static Operation,
    pub(super) figures: Vec<(Side, Figures)>,
}

impl Measured {
    /// Measures the programs that support the operation, in alternation.
    pub(super) fn take(operation: &'static Operation, sides: &Sides, guest: &mut Guest, rounds: usize) -> Result<Self> {
        let able: Vec<Side> = Side::ALL.into_iter().filter(|side| side.can(operation)).collect();
        let failed = |side: Side, reason| format!("{} by {}: {reason}", operation.id, side.name());
        let mut runs: Vec<(Side, Vec<Sample>)> = able.iter().map(|side| (*side, Vec::new())).collect();
        for round in 1..=rounds {
            let mut line = format!("{} round {round}:", operation.id);
            for (side, samples) in &mut runs {
                let sample = sides.run(*side, operation, operation.count, guest);
                let sample = sample.map_err(|reason| failed(*side, reason))?;
                line += &format!(" {} {:.3} us", side.name(), sample.usec);
                samples.push(sample);
            }
            eprintln!("{line}");
        }
        // Starting and connecting take much longer than an operation. The difference to a short run excludes both.
        let few = operation.count / 10;
        let mut figures = Vec::new();
        for (side, samples) in runs {
            let processor = match samples[0].processor {
                // A program that polls memory occupies the only processor for its whole time slice, so its processor
                // time is meaningless.
                _ if operation.turns == YieldPolicy::After => None,
                None => None,
                Some(_) => {
                    let short = sides.run(side, operation, few, guest).map_err(|reason| failed(side, reason))?;
                    short.processor.map(|short| per_operation(&samples, short, operation.count - few))
                }
            };
            let samples = samples.iter().map(|sample| sample.usec).collect();
            figures.push((side, Figures { samples, ends: sides.ends(side, operation), processor }));
        }
        Ok(Measured { operation, figures })
    }

    pub(super) fn of(&self, side: Side) -> Option<&Figures> {
        self.figures.iter().find(|(one, _)| *one == side).map(|(_, figures)| figures)
    }

    /// Ratio of this project's time to that of another side.
    pub(super) fn ratio(&self, to: Side) -> Option<f64> {
        Some(self.of(Side::Ours)?.usec() / self.of(to)?.usec())
    }
}

fn per_operation(samples: &[Sample], short: (f64, f64), more: u32) -> (f64, f64) {
    let (servers, clients): (Vec<f64>, Vec<f64>) = samples.iter().filter_map(|sample| sample.processor).unzip();
    ((median(&servers) - short.0) / f64::from(more), (median(&clients) - short.1) / f64::from(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_up_cost_is_subtracted_from_the_cost_per_operation() {
        let samples = [1_100.0, 1_120.0, 1_090.0].map(|server| Sample { usec: 0.0, processor: Some((server, 300.0)) });
        assert_eq!(per_operation(&samples, (200.0, 300.0), 90), (10.0, 0.0));
    }
}
