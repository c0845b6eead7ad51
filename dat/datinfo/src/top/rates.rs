//! What has changed since the look before, by the second.
//!
//! Pure. A sum that is smaller than it was is of another process, or another object, at the same place: it has no rate then.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Duration;

use dat_counters::reader::Found;
use dat_counters::text::{Adapter, Count, Endpoint};

use super::Look;

/// Where a number stands: its process, the adapter's handle, and the endpoint's, if it is one's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    process: (u32, u32),
    adapter: &'a str,
    ep: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn of_adapter(found: &Found, adapter: &'a Adapter) -> Self {
        Place { process: (found.pid, found.number), adapter: &adapter.handle, ep: "" }
    }

    pub(super) fn of_ep(self, ep: &'a Endpoint) -> Self {
        Place { ep: &ep.handle, ..self }
    }
}

/// Process, adapter, endpoint; and the numbers by name.
type Sums = HashMap<(u32, u32, String, String), HashMap<String, u64>>;

/// Two looks, held against each other.
#[derive(Debug, Default)]
pub(super) struct Rates {
    before: Sums,
    now: Sums,
    /// When `now` was.
    when: Option<std::time::Instant>,
    /// Between the two.
    passed: Option<Duration>,
}

impl Rates {
    /// One look more.
    pub(super) fn next(&mut self, look: &Look) {
        self.passed = self.when.map(|before| look.when.saturating_duration_since(before));
        self.when = Some(look.when);
        self.before = std::mem::take(&mut self.now);
        for (found, process) in look.told() {
            for adapter in &process.adapters {
                let place = Place::of_adapter(found, adapter);
                self.note(place, &adapter.counts);
                adapter.eps.iter().for_each(|ep| self.note(place.of_ep(ep), &ep.counts));
            }
        }
    }

    fn note(&mut self, place: Place<'_>, counts: &[Count]) {
        let sums = counts.iter().filter(|count| !count.is_level).map(|count| (count.name.clone(), count.value));
        self.now.entry(key(place)).or_default().extend(sums);
    }

    /// How fast that grows, in a second. `None`: it is not known, or does not grow but go up and down.
    pub(super) fn of(&self, place: Place<'_>, count: &Count) -> Option<f64> {
        let passed = self.passed.filter(|passed| !passed.is_zero())?;
        let before = self.before.get(&key(place))?.get(&count.name).filter(|_| !count.is_level)?;
        Some(count.value.checked_sub(*before)? as f64 / passed.as_secs_f64())
    }
}

fn key(place: Place<'_>) -> (u32, u32, String, String) {
    (place.process.0, place.process.1, place.adapter.to_owned(), place.ep.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{count, look};
    use super::*;

    #[test]
    fn sums_have_rates_and_levels_have_none() {
        let first = look(0, 7, &[count("sent", 100), Count { is_level: true, ..count("window", 5) }]);
        let second = look(2, 7, &[count("sent", 150), Count { is_level: true, ..count("window", 9) }]);
        let mut rates = Rates::default();
        let rate = |rates: &Rates, look: &Look, at: usize| {
            let (found, process) = look.told().next().unwrap();
            let adapter = &process.adapters[0];
            rates.of(Place::of_adapter(found, adapter), &adapter.counts[at])
        };
        rates.next(&first);
        assert_eq!(rate(&rates, &first, 0), None, "there is no look before the first");
        rates.next(&second);
        assert_eq!((rate(&rates, &second, 0), rate(&rates, &second, 1)), (Some(25.0), None));
    }

    #[test]
    fn what_shrinks_or_was_not_there_has_no_rate() {
        let mut rates = Rates::default();
        rates.next(&look(0, 7, &[count("sent", 100)]));
        let smaller = look(1, 7, &[count("sent", 99), count("lost", 3)]);
        rates.next(&smaller);
        let (found, process) = smaller.told().next().unwrap();
        let place = Place::of_adapter(found, &process.adapters[0]);
        assert!(process.adapters[0].counts.iter().all(|count| rates.of(place, count).is_none()));
        let other = look(2, 8, &[count("sent", 200)]);
        rates.next(&other);
        let (found, process) = other.told().next().unwrap();
        assert_eq!(rates.of(Place::of_adapter(found, &process.adapters[0]), &count("sent", 200)), None);
        // The same moment twice is no time at all.
        rates.next(&look(2, 8, &[count("sent", 300)]));
        assert_eq!(rates.of(Place::of_adapter(found, &process.adapters[0]), &count("sent", 300)), None);
    }
}
