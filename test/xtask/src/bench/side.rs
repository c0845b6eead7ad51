//! The programs that the benches `sm` and `usnic` run, of this project and of others, the units of their figures, and
//! the lengths of their runs.
#![forbid(unsafe_code)]

use super::network::{BenchNetwork, NetworkKind};
use super::ours::{Perf, PerfArguments};
use super::pair::Cores;
use super::peers::{Fabric, Sockperf, Ucx, run_iperf};
use crate::Result;
use crate::iperf::{self, Flow};
use crate::json::field;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FigureUnit {
    /// Time of half a round trip, of a message in one direction, or of a registration.
    Microseconds,
    /// Millions of messages per second.
    Rate,
    /// Data in millions of bytes per second.
    Bandwidth,
    /// Processor use in percent of one processor.
    Percent,
    Milliseconds,
    /// Processor time of both sides per KiB of data.
    PerKib,
}

impl FigureUnit {
    pub(super) fn unit(self) -> &'static str {
        match self {
            FigureUnit::Microseconds => "us",
            FigureUnit::Rate => "M/s",
            FigureUnit::Bandwidth => "MB/s",
            FigureUnit::Percent => "%",
            FigureUnit::Milliseconds => "ms",
            FigureUnit::PerKib => "ns/KiB",
        }
    }

    pub(super) fn less_is_better(self) -> bool {
        !matches!(self, FigureUnit::Rate | FigureUnit::Bandwidth)
    }

    /// Name of the field in the output of `perf`.
    fn field(self) -> &'static str {
        match self {
            FigureUnit::Microseconds => "usec",
            FigureUnit::Rate | FigureUnit::Bandwidth => "mps",
            FigureUnit::Percent => "cpu_percent",
            FigureUnit::Milliseconds => "msec",
            FigureUnit::PerKib => "processor_seconds",
        }
    }
}

/// One side of a comparison: a program with its arguments.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Ours(PerfArguments),
    /// A side that runs for about this time; a short first run determines the count.
    Timed {
        ask: PerfArguments,
        seconds: f64,
    },
    Ucx(Ucx),
    Fabric(Fabric),
    Sockperf(Sockperf),
    Iperf {
        flow: Flow,
        seconds: u32,
    },
    /// Two pairs of processes that run concurrently on the same two processors. The bandwidths of the pairs are added,
    /// the latencies averaged.
    TwoPairs(Box<Side>),
}

/// Command lines of server and client.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct CommandLines {
    pub(super) server: String,
    pub(super) client: String,
}

impl CommandLines {
    /// Command lines of `perf` over this adapter.
    pub(super) fn of(ask: &PerfArguments, adapter: &str, network_kind: NetworkKind) -> Self {
        CommandLines::on(ask.cores, ask.ends(adapter, network_kind.host()))
    }

    fn on(cores: Cores, [server, client]: [String; 2]) -> Self {
        let pinned = |processor, line| format!("taskset -c {processor} {line}");
        CommandLines { server: pinned(cores.server(), server), client: pinned(cores.client(), client) }
    }
}

impl Side {
    pub(super) fn program(&self) -> &'static str {
        match self {
            Side::Ours(_) | Side::Timed { .. } => "perf",
            Side::Ucx(_) => "ucx_perftest",
            Side::Fabric(_) => "fi_pingpong",
            Side::Sockperf(_) => "sockperf",
            Side::Iperf { .. } => "iperf3",
            Side::TwoPairs(one) => one.program(),
        }
    }

    /// Command lines of server and client; those of `perf` are for this adapter.
    pub(super) fn ends(&self, adapter: &str, network_kind: NetworkKind) -> CommandLines {
        match self {
            Side::Ours(ask) => CommandLines::of(ask, adapter, network_kind),
            Side::Timed { ask, seconds } => {
                let ends = CommandLines::of(ask, adapter, network_kind);
                let note = format!("(then with the count that takes {seconds} s)");
                CommandLines { server: format!("{} {note}", ends.server), client: format!("{} {note}", ends.client) }
            }
            Side::Ucx(ucx) => CommandLines::on(ucx.cores, ucx.ends()),
            Side::Fabric(fabric) => CommandLines::on(Cores::Apart, fabric.ends()),
            Side::Sockperf(sockperf) => CommandLines::on(Cores::Apart, sockperf.ends()),
            Side::Iperf { flow, seconds } => {
                let client = format!("{} -c {}", iperf::line(*flow, *seconds), network_kind.host());
                CommandLines::on(Cores::Apart, ["iperf3 -s -1".to_owned(), client])
            }
            Side::TwoPairs(one) => {
                let ends = one.ends(adapter, network_kind);
                CommandLines {
                    server: format!("{} (2 at once)", ends.server),
                    client: format!("{} (2 at once)", ends.client),
                }
            }
        }
    }

    pub(super) fn line(&self) -> String {
        match self {
            Side::Ours(ask) => ask.line(),
            Side::Timed { ask, seconds } => format!("{} ({seconds} s)", ask.line()),
            Side::Ucx(ucx) => ucx.line(),
            Side::Fabric(fabric) => fabric.line(),
            Side::Sockperf(sockperf) => sockperf.line(),
            Side::Iperf { flow, seconds } => iperf::line(*flow, *seconds),
            Side::TwoPairs(one) => format!("{} (2 at once)", one.line()),
        }
    }

    /// Runs the programs, and returns their figure in this unit.
    pub(super) fn measure(&self, perf: &Perf, network: &BenchNetwork, shown: FigureUnit) -> Result<f64> {
        let figure = match self {
            Side::Ours(ask) => Some(ours(perf, network, ask, shown)?),
            Side::Timed { ask, seconds } => {
                let once = ours(perf, network, ask, shown)?;
                let count = count_for(*seconds, ask.size, shown, once);
                Some(ours(perf, network, &PerfArguments { count, ..ask.clone() }, shown)?)
            }
            Side::Ucx(ucx) => match shown {
                FigureUnit::Microseconds => Some(ucx.run()?.latency),
                FigureUnit::Rate => Some(ucx.run()?.rate),
                FigureUnit::Bandwidth => Some(ucx.run()?.bandwidth),
                _ => None,
            },
            Side::Fabric(fabric) => match shown {
                FigureUnit::Microseconds => Some(fabric.run()?.latency),
                FigureUnit::Bandwidth => Some(fabric.run()?.bandwidth),
                _ => None,
            },
            Side::Sockperf(sockperf) => match shown {
                FigureUnit::Microseconds if sockperf.test == "ping-pong" => Some(sockperf.run()?),
                FigureUnit::Rate if sockperf.test == "throughput" => Some(sockperf.run()? / 1e6),
                FigureUnit::Bandwidth if sockperf.test == "throughput" => {
                    Some(sockperf.run()? * f64::from(sockperf.size) / 1e6)
                }
                _ => None,
            },
            Side::Iperf { flow, seconds } => match shown {
                FigureUnit::Bandwidth => Some(run_iperf(*flow, *seconds, network)?.megabytes),
                FigureUnit::PerKib => {
                    let output = run_iperf(*flow, *seconds, network)?;
                    Some(output.processor / 100.0 * 1e9 / (output.megabytes * 1e6) * 1024.0)
                }
                _ => None,
            },
            Side::TwoPairs(one) => {
                let [first, second] = one.measure_twice(perf, network, shown)?;
                let sum = first + second;
                Some(if shown.less_is_better() { sum / 2.0 } else { sum })
            }
        };
        figure.ok_or_else(|| format!("{} has no figure in {}", self.line(), shown.unit()))
    }
}

impl Side {
    /// Measures two runs at the same time.
    fn measure_twice(&self, perf: &Perf, network: &BenchNetwork, shown: FigureUnit) -> Result<[f64; 2]> {
        let measure = || self.measure(perf, network, shown);
        std::thread::scope(|scope| {
            let other = scope.spawn(measure);
            let one = measure();
            let other = other.join().map_err(|_| format!("{}: a thread panicked", self.line()))?;
            Ok([one?, other?])
        })
    }
}

fn ours(perf: &Perf, network: &BenchNetwork, ask: &PerfArguments, shown: FigureUnit) -> Result<f64> {
    match shown {
        FigureUnit::Bandwidth => Ok(perf.figure(ask, network, shown.field())? * f64::from(ask.size)),
        FigureUnit::PerKib => {
            let output = perf.both(ask, network)?;
            let (server, client) = (field(&output.server, shown.field()), field(&output.client, shown.field()));
            let kib = field(&output.client, "count").map(|count| count * f64::from(ask.size) / 1024.0);
            let figure = server.zip(client).zip(kib).map(|((server, client), kib)| (server + client) * 1e9 / kib);
            figure.ok_or_else(|| format!("the output of {} lacks a processor time or the count", ask.line()))
        }
        _ => perf.figure(ask, network, shown.field()),
    }
}

/// Number of operations that take `seconds`, estimated from the figure of a short run; 16 to 2,000,000.
fn count_for(seconds: f64, size: u32, shown: FigureUnit, once: f64) -> u32 {
    let count = match shown {
        FigureUnit::Bandwidth => seconds * 1e6 * once / f64::from(size.max(1)),
        FigureUnit::Rate => seconds * 1e6 * once,
        _ => seconds * 1e6 / (2.0 * once),
    };
    count.clamp(16.0, 2_000_000.0) as u32
}

/// Number and length of the runs of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    /// Number of alternating runs of each side of a contest; the median is reported.
    pub(super) rounds: usize,
    /// Number of runs of each point of a curve and of each row of `scale`, which have no targets.
    pub(super) few: usize,
    /// Divisor of counts and durations. A reduced count is at least 20, or the full count if that is less.
    part: u32,
}

impl Effort {
    pub(super) const FULL: Effort = Effort { rounds: super::ROUNDS, few: 3, part: 1 };
    /// A quick run that only checks that everything can be measured.
    pub(super) const QUICK: Effort = Effort { rounds: 1, few: 1, part: 20 };

    /// Reduces a number of operations to this effort.
    pub(super) fn count(self, full: u32) -> u32 {
        (full / self.part).max(full.min(20))
    }

    /// Reduces a duration to this effort.
    pub(super) fn seconds(self, full: f64) -> f64 {
        full / f64::from(self.part)
    }

    /// Reduces a duration to this effort, for programs with a minimum of one second.
    pub(super) fn whole_seconds(self, full: u32) -> u32 {
        if self.rounds > 1 { full } else { 1 }
    }
}

/// Number of outstanding requests for a message size: as many as 16 MiB has messages, but 8 to 512. They hide the
/// latency; more requests would only put more data in flight.
pub(super) fn depth(size: u32) -> u32 {
    const BYTES: u32 = 16 << 20;
    (BYTES / size.max(1)).clamp(8, 512)
}

/// Number of messages of a run: as many as 1 GiB has, but 64 to 1,000,000, so that a run takes a fraction of a second.
pub(super) fn stream_count(size: u32) -> u32 {
    const BYTES: u64 = 1 << 30;
    (BYTES / u64::from(size.max(1))).clamp(64, 1_000_000) as u32
}

/// Number of round trips of a run: as many as 256 MiB has messages, but 100 to 200,000.
pub(super) fn pingpong_count(size: u32) -> u32 {
    const BYTES: u64 = 256 << 20;
    (BYTES / u64::from(size.max(1))).clamp(100, 200_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_counts_stay_within_their_limits() {
        assert_eq!([1, 65_536, 1 << 20, 16 << 20].map(depth), [512, 256, 16, 8]);
        assert_eq!([1, 65_536, 1 << 20, 16 << 20].map(stream_count), [1_000_000, 16_384, 1_024, 64]);
        assert_eq!([1, 65_536, 1 << 20].map(pingpong_count), [200_000, 4_096, 256]);
        assert_eq!([1_000_000, 64, 5].map(|full| Effort::QUICK.count(full)), [50_000, 20, 5]);
        assert_eq!(Effort::FULL.count(64), 64);
        assert_eq!((Effort::QUICK.whole_seconds(3), Effort::FULL.whole_seconds(3)), (1, 3));
    }

    #[test]
    fn server_and_client_are_pinned_and_get_the_host_argument() {
        let wire = NetworkKind::Wire { per_mille: 10 };
        let iperf = Side::Iperf { flow: Flow::Tcp, seconds: 3 }.ends("usnic0", wire);
        assert_eq!(iperf.server, "taskset -c 0 iperf3 -s -1");
        assert_eq!(iperf.client, "taskset -c 1 iperf3 -t 3 -c 192.0.2.1");
        let ask = PerfArguments { cores: Cores::Together, ..PerfArguments::new("lat", 8, 100) };
        let ours = Side::Timed { ask, seconds: 0.5 }.ends("sm0", NetworkKind::Loopback);
        let client = "taskset -c 0 perf -h localhost -P sm0 lat 8 100 (then with the count that takes 0.5 s)";
        assert_eq!(ours.client, client);
        assert!(ours.server.starts_with("taskset -c 0 perf -s -P sm0 lat 8 100 "));
    }

    #[test]
    fn a_short_run_determines_the_count() {
        assert_eq!(count_for(0.5, 8, FigureUnit::Microseconds, 5.0), 50_000);
        // At 100 MB/s with messages of 1 MB, three seconds are 300 messages.
        assert_eq!(count_for(3.0, 1_000_000, FigureUnit::Bandwidth, 100.0), 300);
        assert_eq!(count_for(3.0, 1_000_000, FigureUnit::Bandwidth, 0.001), 16);
    }
}
