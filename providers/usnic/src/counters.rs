//! The queue pairs of an IA, to be asked what they have counted, and to be ended all at once.
//!
//! What a connection has counted is added up when it ends, so that nothing is lost with its queue pair. Decides nothing.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::Duration;

use dapl::provider::Count;
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use crate::proto::counters::Counters;

/// Counts of connections, in the order of [`COUNTERS`].
pub(crate) type Counts = [u64; COUNTERS.len()];

/// How long a process that exits waits for a lock: its holder may be a thread that has stopped.
pub(crate) const EXIT_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// A name that is shown, and where its count is found.
type Row = (&'static str, fn(&Counters) -> u64);

/// What is counted.
const COUNTERS: [Row; 28] = [
    ("sent", |of| of.sent),
    ("sent bytes", |of| of.sent_bytes),
    ("resent after a gap", |of| of.resent_gap),
    ("resent after a timeout", |of| of.resent_timeout),
    ("resent as a probe", |of| of.resent_probe),
    ("left in pieces", |of| of.torn),
    ("lost", |of| of.lost),
    ("not lost after all", |of| of.spurious),
    ("received", |of| of.received),
    ("received bytes", |of| of.received_bytes),
    ("duplicates", |of| of.duplicates),
    ("out of window", |of| of.outside),
    ("gaps", |of| of.gaps),
    ("delivered at once", |of| of.fast),
    ("malformed", |of| of.malformed),
    ("acks sent", |of| of.acks_sent),
    ("acks carried", |of| of.acks_carried),
    ("acks received", |of| of.acks_received),
    ("false acks", |of| of.acks_false),
    ("asked for a receive", |of| of.credit_probes),
    ("without a receive", |of| of.no_receive),
    ("taken back", |of| of.taken_back),
    ("mtu probes", |of| of.mtu_probes),
    ("keepalives", |of| of.keepalives),
    ("challenges", |of| of.challenges),
    ("refusals sent", |of| of.refusals_sent),
    ("refusals received", |of| of.refusals_received),
    ("timeouts", |of| of.timeouts),
];

/// The counts of one connection, in the order of [`COUNTERS`].
fn counts(of: &Counters) -> Counts {
    COUNTERS.map(|(_, count)| count(of))
}

/// The same with names and units, as they are shown.
pub(crate) fn named(counts: Counts) -> impl Iterator<Item = Count> {
    COUNTERS.into_iter().zip(counts).map(|((name, _), value)| Count { name, unit: unit(name), value, is_level: false })
}

fn unit(name: &str) -> &'static str {
    if name.ends_with("bytes") { "bytes" } else { "" }
}

/// All of one connection: what it has counted, and how it stands.
pub(crate) fn connection_counts(of: &Counters) -> Vec<Count> {
    let standing = [
        ("window", "bytes", of.window),
        ("in flight", "bytes", of.in_flight),
        ("rate", "bytes/s", of.rate),
        ("round trip", "ns", of.rtt),
        ("path mtu", "bytes", of.mtu as u64),
    ];
    named(counts(of)).chain(standing.map(|(name, unit, value)| Count { name, unit, value, is_level: true })).collect()
}

/// Tells the log, if anybody listens there, what a connection that is over has counted.
pub(crate) fn log(ep: ObjectId, of: &Counters) {
    // The bit of `DAPL_DBG_TYPE` for connections, which goes by the last part of this.
    const TARGET: &str = "daplusnic::cm";
    if log::log_enabled!(target: TARGET, log::Level::Debug) {
        let seen = connection_counts(of).into_iter().filter(|count| count.value > 0);
        let text: Vec<_> = seen.map(|Count { name, unit, value, .. }| format!("{name} {value} {unit}")).collect();
        log::debug!(target: TARGET, "connection of ep {:#x} is over: {}", ep.handle, text.join(", "));
    }
}

/// The queue pairs of an IA, each a `Q`, and what their past connections have counted.
pub(crate) struct IaCounters<Q> {
    pairs: Mutex<Vec<Weak<Q>>>,
    past: Mutex<Counts>,
}

impl<Q> Default for IaCounters<Q> {
    fn default() -> Self {
        IaCounters { pairs: Mutex::default(), past: Mutex::default() }
    }
}

impl<Q> IaCounters<Q> {
    /// Adds a queue pair. Those that are gone are removed before the list grows.
    pub(crate) fn add(&self, pair: Weak<Q>) {
        let mut pairs = self.pairs.lock();
        if pairs.len() == pairs.capacity() {
            pairs.retain(|known| known.strong_count() > 0);
        }
        pairs.push(pair);
    }

    /// A connection is over.
    pub(crate) fn add_past(&self, counters: &Counters) {
        add(&mut self.past.lock(), &counts(counters));
    }

    /// The counts of all connections, past and present; `of` gives those of a queue pair that has one.
    pub(crate) fn sum(&self, of: impl Fn(&Q) -> Option<Counters>) -> Counts {
        let mut sum = *self.past.lock();
        let counted = self.live();
        counted.iter().filter_map(|pair| of(pair)).for_each(|counters| add(&mut sum, &counts(&counters)));
        sum
    }

    pub(crate) fn live(&self) -> Vec<Arc<Q>> {
        self.pairs.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The same for a process that exits; none where another thread keeps the lock for longer than [`EXIT_LOCK_TIMEOUT`].
    pub(crate) fn try_live(&self) -> Vec<Arc<Q>> {
        let pairs = self.pairs.try_lock_for(EXIT_LOCK_TIMEOUT);
        pairs.map_or_else(Vec::new, |pairs| pairs.iter().filter_map(Weak::upgrade).collect())
    }
}

fn add(sum: &mut Counts, more: &Counts) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of a queue pair that has sent this many packets.
    fn sent(count: &u64) -> Option<Counters> {
        (*count > 0).then(|| Counters { sent: *count, timeouts: 1, ..Counters::default() })
    }

    #[test]
    fn sums_are_of_past_and_present() {
        let counters = IaCounters::default();
        let pairs = [3, 4, 0].map(Arc::new);
        pairs.iter().for_each(|pair| counters.add(Arc::downgrade(pair)));
        counters.add_past(&Counters { sent: 10, ..Counters::default() });
        let named = |sum: Counts| -> Vec<_> {
            COUNTERS.map(|(name, _)| name).into_iter().zip(sum).filter(|(_, count)| *count > 0).collect()
        };
        assert_eq!(named(counters.sum(sent)), [("sent", 17), ("timeouts", 2)]);
        drop(pairs);
        assert_eq!(named(counters.sum(sent)), [("sent", 10)]);
    }

    #[test]
    fn names_stand_where_their_counts_do() {
        let counters = Counters { sent_bytes: 1, malformed: 2, no_receive: 3, timeouts: 4, ..Counters::default() };
        let named: Vec<_> =
            COUNTERS.map(|(name, _)| name).into_iter().zip(counts(&counters)).filter(|(_, count)| *count > 0).collect();
        assert_eq!(named, [("sent bytes", 1), ("malformed", 2), ("without a receive", 3), ("timeouts", 4)]);
    }

    #[test]
    fn a_connection_shows_what_it_counts_and_how_it_stands() {
        let counters = Counters { sent: 5, received_bytes: 6, rtt: 7, mtu: 1472, window: 8, ..Counters::default() };
        let shown = connection_counts(&counters);
        let seen: Vec<_> =
            shown.iter().filter(|count| count.value > 0).map(|it| (it.name, it.unit, it.value)).collect();
        let counted = [("sent", "", 5), ("received bytes", "bytes", 6)];
        assert_eq!(shown.iter().filter(|count| count.is_level).count(), 5, "how it stands");
        let stands = [("window", "bytes", 8), ("round trip", "ns", 7), ("path mtu", "bytes", 1472)];
        assert_eq!(seen, [counted.as_slice(), &stands].concat());
        assert!(shown.len() <= 48, "there is so much room in an EP's list");
    }

    #[test]
    fn those_that_are_gone_take_no_room() {
        let counters = IaCounters::default();
        for _ in 0..1000 {
            let pair = Arc::new(1u64);
            counters.add(Arc::downgrade(&pair));
        }
        assert!(counters.pairs.lock().capacity() < 64);
    }
}
