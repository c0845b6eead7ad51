//! Changes per second since the previous sample.
//!
//! A counter that has decreased belongs to a new process or object with the same identity; it has no rate. This module
//! does no I/O.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Duration;

use dat_counters::reader::PublishedProcess;
use dat_counters::text::{Adapter, Count, Endpoint};

use super::Sample;

/// Identity of an adapter or endpoint: process id and socket number, handle of the adapter, and handle of the endpoint
/// or an empty text.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct CounterId {
    process: (u32, u32),
    adapter: String,
    ep: String,
}

impl CounterId {
    pub(super) fn of_adapter(found: &PublishedProcess, adapter: &Adapter) -> Self {
        CounterId { process: (found.pid, found.number), adapter: adapter.handle.clone(), ep: String::new() }
    }

    pub(super) fn of_ep(&self, ep: &Endpoint) -> Self {
        CounterId { ep: ep.handle.clone(), ..self.clone() }
    }
}

/// Values of counters by name, for each identity.
type Sums = HashMap<CounterId, HashMap<String, u64>>;

/// The counters of two consecutive samples.
#[derive(Debug, Default)]
pub(super) struct Rates {
    before: Sums,
    now: Sums,
    /// Time of the sample `now`.
    when: Option<std::time::Instant>,
    /// Time between the two samples.
    passed: Option<Duration>,
}

impl Rates {
    /// Adds a sample, which becomes `now`.
    pub(super) fn next(&mut self, sample: &Sample) {
        self.passed = self.when.map(|before| sample.when.saturating_duration_since(before));
        self.when = Some(sample.when);
        self.before = std::mem::take(&mut self.now);
        for (found, process) in sample.readable() {
            for adapter in &process.adapters {
                let id = CounterId::of_adapter(found, adapter);
                adapter.eps.iter().for_each(|ep| self.note(id.of_ep(ep), &ep.counts));
                self.note(id, &adapter.counts);
            }
        }
    }

    fn note(&mut self, id: CounterId, counts: &[Count]) {
        let sums = counts.iter().filter(|count| !count.is_level).map(|count| (count.name.clone(), count.value));
        self.now.entry(id).or_default().extend(sums);
    }

    /// Increase of a counter per second. `None` without a previous sample or if no time has passed since, for a level,
    /// for a counter that the previous sample lacks, and for a counter that has decreased.
    pub(super) fn of(&self, id: &CounterId, count: &Count) -> Option<f64> {
        let passed = self.passed.filter(|passed| !passed.is_zero())?;
        let before = self.before.get(id)?.get(&count.name).filter(|_| !count.is_level)?;
        Some(count.value.checked_sub(*before)? as f64 / passed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{count, sample_at};
    use super::*;

    #[test]
    fn sums_have_rates_and_levels_have_none() {
        let first = sample_at(0, 7, &[count("sent", 100), Count { is_level: true, ..count("window", 5) }]);
        let second = sample_at(2, 7, &[count("sent", 150), Count { is_level: true, ..count("window", 9) }]);
        let mut rates = Rates::default();
        let rate = |rates: &Rates, sample: &Sample, at: usize| {
            let (found, process) = sample.readable().next().unwrap();
            let adapter = &process.adapters[0];
            rates.of(&CounterId::of_adapter(found, adapter), &adapter.counts[at])
        };
        rates.next(&first);
        assert_eq!(rate(&rates, &first, 0), None, "there is no earlier sample");
        rates.next(&second);
        assert_eq!((rate(&rates, &second, 0), rate(&rates, &second, 1)), (Some(25.0), None));
    }

    #[test]
    fn shrunken_and_new_counters_have_no_rate() {
        let mut rates = Rates::default();
        rates.next(&sample_at(0, 7, &[count("sent", 100)]));
        let smaller = sample_at(1, 7, &[count("sent", 99), count("lost", 3)]);
        rates.next(&smaller);
        let (found, process) = smaller.readable().next().unwrap();
        let id = CounterId::of_adapter(found, &process.adapters[0]);
        assert!(process.adapters[0].counts.iter().all(|count| rates.of(&id, count).is_none()));
        let other = sample_at(2, 8, &[count("sent", 200)]);
        rates.next(&other);
        let (found, process) = other.readable().next().unwrap();
        assert_eq!(rates.of(&CounterId::of_adapter(found, &process.adapters[0]), &count("sent", 200)), None);
        // Two samples at the same time have no rate.
        rates.next(&sample_at(2, 8, &[count("sent", 300)]));
        assert_eq!(rates.of(&CounterId::of_adapter(found, &process.adapters[0]), &count("sent", 300)), None);
    }
}
