//! Counters of the connections of an IA, and the list of its queue pairs, which the exit handler also uses.
//!
//! When a connection ends, its counters are added to a sum of the IA, because its queue pair may be destroyed.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::Duration;

use dapl::provider::NamedCount;
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use crate::proto::counters::Counters;

/// Counters of connections, in the order of [`Counters::NAMES`].
pub(crate) type CounterValues = [u64; Counters::NAMES.len()];

/// Maximum time for which the exit handler waits for a lock. The thread that holds the lock may never release it.
pub(crate) const EXIT_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// Adds names and units to counters.
pub(crate) fn with_names(counts: CounterValues) -> impl Iterator<Item = NamedCount> {
    Counters::NAMES.iter().zip(counts).map(|(name, value)| NamedCount {
        name,
        unit: unit(name),
        value,
        is_level: false,
    })
}

fn unit(name: &str) -> &'static str {
    if name.ends_with("bytes") { "bytes" } else { "" }
}

/// Returns the counters of one connection, and its current send window, bytes in flight, pacing rate, round-trip time
/// and path MTU.
pub(crate) fn connection_counts(of: &Counters) -> Vec<NamedCount> {
    let levels = [
        ("window", "bytes", of.window),
        ("in flight", "bytes", of.in_flight),
        ("rate", "bytes/s", of.rate),
        ("round trip", "ns", of.rtt),
        ("path mtu", "bytes", of.mtu as u64),
    ];
    with_names(of.values())
        .chain(levels.map(|(name, unit, value)| NamedCount { name, unit, value, is_level: true }))
        .collect()
}

/// Logs the counters of a connection that has ended, if connection messages are enabled (`DAPL_DBG_TYPE`).
pub(crate) fn log(ep: ObjectId, of: &Counters) {
    // The component `cm` selects the connection bit of `DAPL_DBG_TYPE`.
    const TARGET: &str = "daplusnic::cm";
    if log::log_enabled!(target: TARGET, log::Level::Debug) {
        let seen = connection_counts(of).into_iter().filter(|count| count.value > 0);
        let text: Vec<_> = seen.map(|NamedCount { name, unit, value, .. }| format!("{name} {value} {unit}")).collect();
        log::debug!(target: TARGET, "connection of ep {:#x} has ended: {}", ep.handle, text.join(", "));
    }
}

/// The queue pairs (`Q`) of an IA, and the sum of the counters of their ended connections.
pub(crate) struct IaCounters<Q> {
    pairs: Mutex<Vec<Weak<Q>>>,
    past: Mutex<CounterValues>,
}

impl<Q> Default for IaCounters<Q> {
    fn default() -> Self {
        IaCounters { pairs: Mutex::default(), past: Mutex::default() }
    }
}

impl<Q> IaCounters<Q> {
    /// Adds a queue pair to the list. Removes destroyed queue pairs if the list is full.
    pub(crate) fn add(&self, pair: Weak<Q>) {
        let mut pairs = self.pairs.lock();
        if pairs.len() == pairs.capacity() {
            pairs.retain(|known| known.strong_count() > 0);
        }
        pairs.push(pair);
    }

    /// Adds the counters of a connection that has ended.
    pub(crate) fn add_past(&self, counters: &Counters) {
        add(&mut self.past.lock(), &counters.values());
    }

    /// Sums the counters of all connections, ended or not. `of` returns the counters of a queue pair's current
    /// connection.
    pub(crate) fn sum(&self, of: impl Fn(&Q) -> Option<Counters>) -> CounterValues {
        let mut sum = *self.past.lock();
        let counted = self.queue_pairs();
        counted.iter().filter_map(|pair| of(pair)).for_each(|counters| add(&mut sum, &counters.values()));
        sum
    }

    pub(crate) fn queue_pairs(&self) -> Vec<Arc<Q>> {
        self.pairs.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the existing queue pairs, for the exit handler. The list is empty if another thread holds the lock for
    /// longer than [`EXIT_LOCK_TIMEOUT`].
    pub(crate) fn try_queue_pairs(&self) -> Vec<Arc<Q>> {
        let pairs = self.pairs.try_lock_for(EXIT_LOCK_TIMEOUT);
        pairs.map_or_else(Vec::new, |pairs| pairs.iter().filter_map(Weak::upgrade).collect())
    }
}

fn add(sum: &mut CounterValues, more: &CounterValues) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the counters of a fake queue pair that has sent `count` packets.
    fn sent(count: &u64) -> Option<Counters> {
        (*count > 0).then(|| Counters { sent: *count, timeouts: 1, ..Counters::default() })
    }

    #[test]
    fn sum_includes_past_and_present_connections() {
        let counters = IaCounters::default();
        let pairs = [3, 4, 0].map(Arc::new);
        pairs.iter().for_each(|pair| counters.add(Arc::downgrade(pair)));
        counters.add_past(&Counters { sent: 10, ..Counters::default() });
        let named = |sum: CounterValues| -> Vec<_> {
            Counters::NAMES.iter().copied().zip(sum).filter(|(_, count)| *count > 0).collect()
        };
        assert_eq!(named(counters.sum(sent)), [("sent", 17), ("timeouts", 2)]);
        drop(pairs);
        assert_eq!(named(counters.sum(sent)), [("sent", 10)]);
    }

    #[test]
    fn counter_names_match_their_counters() {
        let counters = Counters { sent_bytes: 1, malformed: 2, no_receive: 3, timeouts: 4, ..Counters::default() };
        let named: Vec<_> =
            Counters::NAMES.iter().copied().zip(counters.values()).filter(|(_, count)| *count > 0).collect();
        assert_eq!(named, [("sent bytes", 1), ("malformed", 2), ("receiver not ready", 3), ("timeouts", 4)]);
    }

    #[test]
    fn connection_lists_counters_and_levels() {
        let counters = Counters { sent: 5, received_bytes: 6, rtt: 7, mtu: 1472, window: 8, ..Counters::default() };
        let shown = connection_counts(&counters);
        let seen: Vec<_> =
            shown.iter().filter(|count| count.value > 0).map(|it| (it.name, it.unit, it.value)).collect();
        let counted = [("sent", "", 5), ("received bytes", "bytes", 6)];
        assert_eq!(shown.iter().filter(|count| count.is_level).count(), 5, "the connection has five levels");
        let levels = [("window", "bytes", 8), ("round trip", "ns", 7), ("path mtu", "bytes", 1472)];
        assert_eq!(seen, [counted.as_slice(), &levels].concat());
        assert!(shown.len() <= 48, "an EP lists at most 48 counters");
    }

    #[test]
    fn dropped_queue_pairs_are_removed_from_the_ia_counters() {
        let counters = IaCounters::default();
        for _ in 0..1000 {
            let pair = Arc::new(1u64);
            counters.add(Arc::downgrade(&pair));
        }
        assert!(counters.pairs.lock().capacity() < 64);
    }
}
