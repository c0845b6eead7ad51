//! The queue pairs of an IA, to be asked what they have counted, and to be ended all at once.
//!
//! What a connection has counted is added up when it ends, so that nothing is lost with its queue pair. Decides nothing.
#![forbid(unsafe_code)]

use std::sync::Weak;
use std::time::Duration;

use dapl::provider::Count;
use dapl::runtime::handle::ObjectId;
use parking_lot::Mutex;

use crate::proto::counters::Counters;

/// Counts of connections by name, in the order of [`NAMES`].
pub(crate) type Counts = [u64; NAMES.len()];

/// So long a lock is waited for when the process exits: some thread may hold it for ever.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// What is counted.
pub(crate) const NAMES: [&str; 28] = [
    "sent",
    "sent bytes",
    "resent after a gap",
    "resent after a timeout",
    "resent as a probe",
    "left in pieces",
    "lost",
    "not lost after all",
    "received",
    "received bytes",
    "duplicates",
    "out of window",
    "gaps",
    "delivered at once",
    "malformed",
    "acks sent",
    "acks carried",
    "acks received",
    "false acks",
    "asked for a receive",
    "without a receive",
    "taken back",
    "mtu probes",
    "keepalives",
    "challenges",
    "refusals sent",
    "refusals received",
    "timeouts",
];

/// As [`NAMES`] has them; how a connection stands is not counted.
pub(crate) fn counts(of: &Counters) -> Counts {
    [
        of.sent,
        of.sent_bytes,
        of.resent_gap,
        of.resent_timeout,
        of.resent_probe,
        of.torn,
        of.lost,
        of.spurious,
        of.received,
        of.received_bytes,
        of.duplicates,
        of.outside,
        of.gaps,
        of.fast,
        of.malformed,
        of.acks_sent,
        of.acks_carried,
        of.acks_received,
        of.acks_false,
        of.credit_probes,
        of.no_receive,
        of.taken_back,
        of.mtu_probes,
        of.keepalives,
        of.challenges,
        of.refusals_sent,
        of.refusals_received,
        of.timeouts,
    ]
}

/// The same with names and units, as they are shown.
pub(crate) fn named(counts: Counts) -> impl Iterator<Item = Count> {
    NAMES.into_iter().zip(counts).map(|(name, value)| Count { name, unit: unit(name), value, is_level: false })
}

fn unit(name: &str) -> &'static str {
    if name.ends_with("bytes") { "bytes" } else { "" }
}

/// All of one connection: what it has counted, and how it stands.
pub(crate) fn of_connection(of: &Counters) -> Vec<Count> {
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
        let seen = of_connection(of).into_iter().filter(|count| count.value > 0);
        let text: Vec<_> = seen.map(|Count { name, unit, value, .. }| format!("{name} {value} {unit}")).collect();
        log::debug!(target: TARGET, "connection of ep {:#x} is over: {}", ep.handle, text.join(", "));
    }
}

/// A queue pair.
pub(crate) trait Counted: Send + Sync {
    /// What its connection has counted so far.
    fn counters(&self) -> Option<Counters>;
    /// Ends whatever there is.
    fn end_all(&self);
    /// The process exits: tells the peer, if that can be done soon.
    fn farewell(&self);
}

/// All of an IA.
#[derive(Default)]
pub(crate) struct Tally {
    pairs: Mutex<Vec<Weak<dyn Counted>>>,
    past: Mutex<Counts>,
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tally").field("past", &self.past).finish_non_exhaustive()
    }
}

impl Tally {
    /// One more. Those that are gone make room before the list grows.
    pub(crate) fn add(&self, pair: Weak<dyn Counted>) {
        let mut pairs = self.pairs.lock();
        if pairs.len() == pairs.capacity() {
            pairs.retain(|known| known.strong_count() > 0);
        }
        pairs.push(pair);
    }

    /// A connection is over.
    pub(crate) fn is_over(&self, counters: &Counters) {
        add(&mut self.past.lock(), &counts(counters));
    }

    /// Of all connections, past and present.
    pub(crate) fn sum(&self) -> Counts {
        let mut sum = *self.past.lock();
        let present = self.present();
        let counted = present.iter().filter_map(|pair| pair.counters());
        counted.for_each(|counters| add(&mut sum, &counts(&counters)));
        sum
    }

    /// Ends all that are connected.
    pub(crate) fn end_all(&self) {
        self.present().iter().for_each(|pair| pair.end_all());
    }

    /// The process exits.
    pub(crate) fn farewell(&self) {
        let Some(pairs) = self.pairs.try_lock_for(GRACE) else { return };
        let present: Vec<_> = pairs.iter().filter_map(Weak::upgrade).collect();
        drop(pairs);
        present.iter().for_each(|pair| pair.farewell());
    }

    fn present(&self) -> Vec<std::sync::Arc<dyn Counted>> {
        self.pairs.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

fn add(sum: &mut Counts, more: &Counts) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Sent(u64);

    impl Counted for Sent {
        fn counters(&self) -> Option<Counters> {
            (self.0 > 0).then(|| Counters { sent: self.0, timeouts: 1, ..Counters::default() })
        }

        fn end_all(&self) {}

        fn farewell(&self) {}
    }

    #[test]
    fn sums_are_of_past_and_present() {
        let tally = Tally::default();
        let pairs: Vec<Arc<dyn Counted>> = vec![Arc::new(Sent(3)), Arc::new(Sent(4)), Arc::new(Sent(0))];
        pairs.iter().for_each(|pair| tally.add(Arc::downgrade(pair)));
        tally.is_over(&Counters { sent: 10, ..Counters::default() });
        let named = |sum: Counts| -> Vec<_> { NAMES.into_iter().zip(sum).filter(|(_, count)| *count > 0).collect() };
        assert_eq!(named(tally.sum()), [("sent", 17), ("timeouts", 2)]);
        drop(pairs);
        assert_eq!(named(tally.sum()), [("sent", 10)]);
    }

    #[test]
    fn names_stand_where_their_counts_do() {
        let counters = Counters { sent_bytes: 1, malformed: 2, no_receive: 3, timeouts: 4, ..Counters::default() };
        let named: Vec<_> = NAMES.into_iter().zip(counts(&counters)).filter(|(_, count)| *count > 0).collect();
        assert_eq!(named, [("sent bytes", 1), ("malformed", 2), ("without a receive", 3), ("timeouts", 4)]);
    }

    #[test]
    fn a_connection_shows_what_it_counts_and_how_it_stands() {
        let counters = Counters { sent: 5, received_bytes: 6, rtt: 7, mtu: 1472, window: 8, ..Counters::default() };
        let shown = of_connection(&counters);
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
        let tally = Tally::default();
        for _ in 0..1000 {
            let pair: Arc<dyn Counted> = Arc::new(Sent(1));
            tally.add(Arc::downgrade(&pair));
        }
        assert!(tally.pairs.lock().capacity() < 64);
    }
}
