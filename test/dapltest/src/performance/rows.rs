//! Results of a performance test: a table for people with one row per size, and the same data as JSON.
#![forbid(unsafe_code)]

use std::time::Duration;

use serde_json::{Value, json};

use super::connects::Connects;
use super::window::Measured;
use crate::amounts::Extent;
use crate::common::Common;
use crate::report::Report;
use crate::wire::{Figures, Performance};

/// Figures of both sides for one size.
pub(super) struct Row {
    /// Bytes per operation; `None` for connects.
    pub(super) bytes: Option<u64>,
    pub(super) client: Measured,
    pub(super) server: Figures,
}

/// Prints the rows of a run, and collects them as JSON.
pub(super) struct ResultTable {
    rows: Vec<Value>,
    /// Whether the rates of both sides are added.
    is_bidirectional: bool,
}

impl ResultTable {
    /// Creates the table for transfers. `first` is the test of the first size, `pipeline` the number of operations in
    /// flight.
    pub(super) fn of_transfers(report: &mut Report, first: &Performance, pipeline: u32, common: &Common) -> Self {
        let operation = &first.operation;
        let directions = if first.is_bidirectional { ", both directions at once" } else { "" };
        report.line(format!(
            "performance test on {}: {} in {} segment{}, {}, {pipeline} in flight, {}{}{directions}",
            common.device,
            operation.transfer.word(),
            operation.segments,
            if operation.segments == 1 { "" } else { "s" },
            first.extent,
            mode(first.polls),
            warm_up(first.warm_up),
        ));
        report.put("operation", json!(operation.transfer.word()));
        report.put("segments", json!(operation.segments));
        report.put("pipeline", json!(pipeline));
        report.put("bidirectional", json!(first.is_bidirectional));
        ResultTable::new(report, (first.extent, first.warm_up, first.polls), "operations/s", first.is_bidirectional)
    }

    /// Creates the table for connects.
    pub(super) fn of_connects(report: &mut Report, test: &Connects, common: &Common) -> Self {
        report.line(format!(
            "performance test on {}: connects, {}, one at a time, {}{}",
            common.device,
            test.extent,
            mode(test.polls),
            warm_up(test.warm_up)
        ));
        report.put("operation", json!("connect"));
        ResultTable::new(report, (test.extent, test.warm_up, test.polls), "connects/s", false)
    }

    fn new(
        report: &mut Report,
        (extent, warm_up, polls): (Extent, u32, bool),
        rate: &str,
        is_bidirectional: bool,
    ) -> Self {
        match extent {
            Extent::Operations(count) => report.put("iterations", json!(count)),
            Extent::Time(time) => report.put("duration_s", json!(time.as_secs_f64())),
        }
        report.put("warm_up", json!(warm_up));
        report.put("mode", json!(mode(polls)));
        report.line("latency in us; CPU: user + system time in % of one processor");
        report.line(format!(
            "{:>10} {rate:>12} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}  {:>11}  {:>11}",
            "bytes", "MB/s", "mean", "p50", "p99", "p99.9", "max", "client CPU", "server CPU"
        ));
        ResultTable { rows: Vec::new(), is_bidirectional }
    }

    /// Prints a row immediately, and stores it for the JSON output.
    pub(super) fn add(&mut self, report: &mut Report, row: Row) {
        let own = row.client.figures;
        let rate = rate(own) + if self.is_bidirectional { rate(row.server) } else { 0.0 };
        let bandwidth = row.bytes.map(|bytes| rate * bytes as f64 / 1e6);
        let latency = row.client.latency.shares().map(|(_, value)| format!("{value:>9.2}")).join(" ");
        report.line(format!(
            "{:>10} {rate:>12.0} {:>10} {latency}  {:>11}  {:>11}",
            row.bytes.map_or("-".to_owned(), |bytes| bytes.to_string()),
            bandwidth.map_or("-".to_owned(), |bandwidth| format!("{bandwidth:.2}")),
            cpu_words(own),
            cpu_words(row.server)
        ));
        let server_rate = self.is_bidirectional.then(|| self::rate(row.server));
        self.rows.push(json!({
            "bytes": row.bytes,
            "operations": own.operations,
            "seconds": own.time.as_secs_f64(),
            "operations_per_s": rate,
            "server_operations_per_s": server_rate,
            "mb_per_s": bandwidth,
            "operation_us": row.client.latency.json(),
            "client_cpu": cpu_json(own),
            "server_cpu": cpu_json(row.server),
        }));
    }

    /// Adds all rows to the JSON output.
    pub(super) fn finish(self, report: &mut Report) {
        report.put("results", Value::Array(self.rows));
    }
}

fn mode(polls: bool) -> &'static str {
    if polls { "polling" } else { "blocking" }
}

fn warm_up(count: u32) -> String {
    if count == 0 { String::new() } else { format!(", after {count} to warm up") }
}

/// Returns the operations per second.
fn rate(figures: Figures) -> f64 {
    figures.operations as f64 / seconds(figures.time)
}

/// Returns the time in seconds, at least 1 ns. A peer may report a time of zero, and rates are divided by the result.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().max(1e-9)
}

/// User and system time in percent of one processor.
fn percent(figures: Figures) -> [f64; 2] {
    [figures.cpu.user, figures.cpu.system].map(|time| time.as_secs_f64() / seconds(figures.time) * 100.0)
}

fn cpu_words(figures: Figures) -> String {
    let [user, system] = percent(figures);
    format!("{user:.0} + {system:.0}")
}

fn cpu_json(figures: Figures) -> Value {
    let [user, system] = percent(figures);
    json!({
        "user_s": figures.cpu.user.as_secs_f64(),
        "system_s": figures.cpu.system.as_secs_f64(),
        "user_percent": user,
        "system_percent": system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTime;

    fn figures(operations: u64, seconds: u64, user: u64) -> Figures {
        let cpu = CpuTime { user: Duration::from_millis(user), system: Duration::from_millis(20) };
        Figures { operations, time: Duration::from_secs(seconds), cpu }
    }

    #[test]
    fn processor_time_is_a_share_of_the_measured_time() {
        assert_eq!(cpu_words(figures(1, 2, 1000)), "50 + 1");
        assert!(rate(figures(7, 0, 0)).is_finite(), "the rate for a time of zero is not finite");
    }

    #[test]
    fn the_rates_of_both_directions_are_added() {
        let common = crate::common::Common::of_test(true);
        for (is_bidirectional, expected) in [(false, 100.0), (true, 150.0)] {
            let mut table = ResultTable { rows: Vec::new(), is_bidirectional };
            let client = Measured { figures: figures(200, 2, 1), latency: crate::report::Latency::default() };
            let row = Row { bytes: Some(1_000_000), client, server: figures(100, 2, 1) };
            table.add(&mut Report::new("performance", &common), row);
            assert_eq!(
                (&table.rows[0]["operations_per_s"], &table.rows[0]["mb_per_s"]),
                (&json!(expected), &json!(expected))
            );
        }
    }
}
