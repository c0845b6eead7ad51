//! Allocates the connection numbers of an IA. A number consists of an index into the connection table and a generation.
//!
//! A freed index is quarantined, so that late packets of the old connection do not match a new connection. The token in
//! each packet is a second protection against such a match.

use std::collections::VecDeque;

use crate::proto::Nanos;

/// Number of bits of the index. The other bits are the generation of the index. It starts at 1, so no connection number
/// is 0.
const INDEX_BITS: u32 = 20;

/// Maximum number of connections.
pub(crate) const MAX: usize = 1 << INDEX_BITS;

/// Returns the table index of a connection number.
pub(crate) fn index(conn: u32) -> usize {
    conn as usize & (MAX - 1)
}

/// The connection numbers of an IA.
#[derive(Debug)]
pub(crate) struct Ids {
    max: usize,
    /// Time in nanoseconds for which a freed index is quarantined.
    quarantine: Nanos,
    /// For each index that was ever used: its generation, and whether it is in use.
    slots: Vec<(u32, bool)>,
    /// Quarantined indexes with the time at which each was freed, oldest first.
    quarantined: VecDeque<(Nanos, usize)>,
}

impl Ids {
    /// Creates an allocator for at most `max` connections. A freed index is quarantined for `quarantine` nanoseconds.
    pub(crate) fn new(max: usize, quarantine: Nanos) -> Ids {
        Ids { max: max.min(MAX), quarantine, slots: Vec::new(), quarantined: VecDeque::new() }
    }

    /// Allocates a number. Takes an index whose quarantine has ended, else one that was never used, else the index that
    /// was freed first. Returns `None` if all indexes are in use.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<u32> {
        let has_expired = |&(since, _): &(Nanos, usize)| now.saturating_sub(since) >= self.quarantine;
        let index = if self.slots.len() < self.max && !self.quarantined.front().is_some_and(has_expired) {
            self.slots.push((0, false));
            self.slots.len() - 1
        } else {
            self.quarantined.pop_front()?.1
        };
        let (generation, taken) = &mut self.slots[index];
        *generation = *generation % (u32::MAX >> INDEX_BITS) + 1;
        *taken = true;
        Some(*generation << INDEX_BITS | index as u32)
    }

    /// Whether the number is in use.
    pub(crate) fn is_live(&self, conn: u32) -> bool {
        self.slots.get(index(conn)) == Some(&(conn >> INDEX_BITS, true))
    }

    /// Frees a number. Has no effect if it is not in use.
    pub(crate) fn free(&mut self, conn: u32, now: Nanos) {
        if self.is_live(conn) {
            self.slots[index(conn)].1 = false;
            self.quarantined.push_back((now, index(conn)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn freed_connection_number_is_quarantined() {
        let mut ids = Ids::new(3, 100);
        let first = ids.take(0).expect("a connection number is free");
        ids.free(first, 10);
        let second = ids.take(50).expect("a connection number is free");
        assert_ne!(index(second), index(first), "a freed number is not reused during its quarantine");
        let third = ids.take(110).expect("a connection number is free");
        assert_eq!(index(third), index(first), "a freed number is reused after its quarantine");
        assert_ne!(third, first);
        assert!(ids.is_live(third) && !ids.is_live(first));
        ids.free(first, 110);
        assert!(ids.is_live(third), "freeing a number of an earlier generation has no effect");
    }

    #[test]
    fn connection_numbers_are_bounded_and_the_oldest_freed_is_reused() {
        let mut ids = Ids::new(2, 100);
        let (a, b) =
            (ids.take(0).expect("a connection number is free"), ids.take(0).expect("a connection number is free"));
        assert_eq!(ids.take(0), None);
        ids.free(b, 1);
        ids.free(a, 2);
        assert_eq!(ids.take(3).map(index), Some(index(b)));
        assert_eq!(ids.take(3).map(index), Some(index(a)));
        assert_eq!(ids.take(3), None);
    }

    #[test]
    fn generations_wrap_and_skip_zero() {
        let mut ids = Ids::new(1, 0);
        let mut seen = HashSet::new();
        for _ in 0..(1 << (32 - INDEX_BITS)) - 1 {
            let conn = ids.take(0).expect("a connection number is free");
            assert!(conn != 0 && seen.insert(conn), "each number is nonzero and new");
            ids.free(conn, 0);
        }
        assert!(
            !seen.insert(ids.take(0).expect("a connection number is free")),
            "after all generations, the first number is used again"
        );
    }

    #[test]
    fn unknown_connection_numbers_are_not_live() {
        let mut ids = Ids::new(4, 0);
        let conn = ids.take(0).expect("a connection number is free");
        for other in [0, conn + 1, conn | 1 << 31, u32::MAX] {
            assert!(!ids.is_live(other));
            ids.free(other, 0);
        }
        assert!(ids.is_live(conn));
    }

    proptest! {
        #[test]
        fn live_connections_have_different_numbers(steps in prop::collection::vec(any::<Option<u8>>(), 0..200)) {
            let mut ids = Ids::new(8, 5);
            let mut live: Vec<u32> = Vec::new();
            for (now, step) in steps.into_iter().enumerate() {
                match step {
                    Some(which) if !live.is_empty() => {
                        let conn = live.swap_remove(usize::from(which) % live.len());
                        ids.free(conn, now as Nanos);
                        prop_assert!(!ids.is_live(conn));
                    }
                    _ => match ids.take(now as Nanos) {
                        Some(conn) => {
                            prop_assert!(live.iter().all(|other| index(*other) != index(conn)));
                            live.push(conn);
                        }
                        None => prop_assert_eq!(live.len(), 8),
                    },
                }
                prop_assert!(live.iter().all(|conn| ids.is_live(*conn)));
            }
        }
    }
}
