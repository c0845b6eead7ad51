//! The queue pairs of an IA, to be asked what they have counted, and to be ended all at once.
//!
//! What a connection has counted is added up when it ends, so that nothing is lost with its queue pair. Decides nothing.
#![forbid(unsafe_code)]

use std::sync::Weak;

use parking_lot::Mutex;

use crate::proto::counters::Counters;

/// Counts of connections by name, in the order of [`NAMES`].
pub(crate) type Counts = [u64; NAMES.len()];

/// What is counted.
pub(crate) const NAMES: [&str; 28] = [
    "sent",
    "sent bytes",
    "resent after a gap",
    "resent after a timeout",
    "resent as a probe",
    "lost",
    "not lost after all",
    "received",
    "received bytes",
    "duplicates",
    "out of window",
    "gaps",
    "delivered at once",
    "malformed",
    "corrupt",
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
        of.lost,
        of.spurious,
        of.received,
        of.received_bytes,
        of.duplicates,
        of.outside,
        of.gaps,
        of.fast,
        of.malformed,
        of.corrupt,
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

/// A queue pair.
pub(crate) trait Counted: Send + Sync {
    /// What its connection has counted so far.
    fn counters(&self) -> Option<Counters>;
    /// Ends whatever there is.
    fn end_all(&self);
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
        let counters = Counters { sent_bytes: 1, corrupt: 2, no_receive: 3, timeouts: 4, ..Counters::default() };
        let named: Vec<_> = NAMES.into_iter().zip(counts(&counters)).filter(|(_, count)| *count > 0).collect();
        assert_eq!(named, [("sent bytes", 1), ("corrupt", 2), ("without a receive", 3), ("timeouts", 4)]);
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
