//! Results of a test as text or JSON, and latency statistics.
#![forbid(unsafe_code)]

use std::io::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::common::Common;
use crate::failure::Failure;
use crate::header::Header;

/// Results of a test.
pub(crate) struct Report {
    is_json: bool,
    fields: Map<String, Value>,
    /// The failures of the test. A failed limit or case does not end the test, so there may be several.
    failures: Vec<String>,
}

impl Report {
    /// Creates an empty report.
    pub(crate) fn new(test: &str, common: &Common) -> Self {
        let mut fields = Map::new();
        fields.insert("test".to_owned(), json!(test));
        fields.insert("adapter".to_owned(), json!(common.device));
        Report { is_json: common.is_json, fields, failures: Vec::new() }
    }

    /// Prints a line of the text output immediately, since a test may take long.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) {
        if !self.is_json {
            // A closed pipe is ignored.
            let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
        }
    }

    /// Prints the header and stores it for the JSON output.
    pub(crate) fn header(&mut self, header: &Header) {
        header.lines().iter().for_each(|line| self.line(line));
        self.put("header", header.json());
    }

    /// Adds a field of the JSON output.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    /// Adds a failure.
    pub(crate) fn fail(&mut self, reason: String) {
        self.failures.push(reason);
    }

    /// Creates the report of a test that failed without results.
    pub(crate) fn of_failure(test: &str, common: &Common, failure: &Failure) -> Self {
        let mut report = Report::new(test, common);
        report.fail(failure.to_string());
        report
    }

    /// Prints the results. Returns whether there were no failures.
    pub(crate) fn publish(mut self) -> bool {
        let is_good = self.failures.is_empty();
        let mut out = std::io::stdout().lock();
        // A closed pipe is ignored.
        let _ = if self.is_json {
            self.put("ok", json!(is_good));
            if !is_good {
                self.put("error", json!(self.failures.join("\n")));
            }
            writeln!(out, "{}", Value::Object(self.fields))
        } else {
            if is_good { writeln!(out, "dapltest: OK") } else { Ok(()) }
        };
        let _ = out.flush();
        for failure in &self.failures {
            eprintln!("dapltest: {failure}");
        }
        is_good
    }
}

/// Maximum recorded latency in nanoseconds; longer latencies count as this value.
const MAX_LATENCY: u64 = 3_600_000_000_000;

/// Latencies of an operation.
pub(crate) struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Latency(Histogram::new_with_max(MAX_LATENCY, 3).expect("a histogram with 3 significant digits can be created"))
    }
}

impl Latency {
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    pub(crate) fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms have the same range");
    }

    /// Mean, percentiles and maximum in microseconds, by name.
    pub(crate) fn shares(&self) -> [(&'static str, f64); 5] {
        let at = |share: f64| self.0.value_at_quantile(share) as f64 / 1000.0;
        [
            ("mean", self.0.mean() / 1000.0),
            ("p50", at(0.5)),
            ("p99", at(0.99)),
            ("p99.9", at(0.999)),
            ("max", self.0.max() as f64 / 1000.0),
        ]
    }

    /// Mean, percentiles and maximum as text.
    pub(crate) fn words(&self) -> String {
        let shares = self.shares().map(|(name, value)| format!("{name} {value:.2}"));
        format!("{} us", shares.join(", "))
    }

    /// Mean, percentiles and maximum as JSON, in microseconds.
    pub(crate) fn json(&self) -> Value {
        let shares = self.shares().into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
        Value::Object(shares.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_match_the_recorded_values() {
        let mut latency = Latency::default();
        (1..=1000).for_each(|micros| latency.record(Duration::from_micros(micros)));
        let mut all = Latency::default();
        all.add(&latency);
        let json = all.json();
        for (name, wanted) in [("p50", 500.0), ("p99", 990.0), ("p99.9", 999.0), ("max", 1000.0), ("mean", 500.5)] {
            let found = json[name].as_f64().unwrap();
            assert!((found - wanted).abs() <= wanted * 0.002, "{name}: {found}");
        }
        assert!(all.words().starts_with("mean 500.") && all.words().ends_with(" us"));
    }

    #[test]
    fn the_shortest_and_the_longest_time_are_recorded() {
        let mut latency = Latency::default();
        latency.record(Duration::ZERO);
        latency.record(Duration::MAX);
        assert_eq!(latency.0.len(), 2);
    }
}
