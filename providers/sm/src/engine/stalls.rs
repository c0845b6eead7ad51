//! Detects sends that wait too long for a receive of the peer. Each such stall of a connection is reported once.
//!
//! The engine checks all connections when it sends heartbeats. The functions of this module take the waiting sends and
//! the time as parameters.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dapl_software::overdue::OVERDUE;

/// The oldest waiting send of each connection, by connection id.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    seen: HashMap<u32, Stall>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Number of the send in the send order of its connection.
    send: u64,
    since: Instant,
    is_reported: bool,
}

impl Stalls {
    /// Checks all connections that have a waiting send. `waiting` contains the id of each connection and the number of
    /// its oldest send. Returns the overdue sends that were not reported yet, with the time since each was first seen.
    pub(super) fn find_overdue(&mut self, waiting: &[(u32, u64)], now: Instant) -> Vec<(u32, Duration)> {
        let mut overdue = Vec::new();
        let before = std::mem::take(&mut self.seen);
        for &(id, send) in waiting {
            let known = before.get(&id).filter(|stall| stall.send == send).copied();
            let mut stall = known.unwrap_or(Stall { send, since: now, is_reported: false });
            let age = now.saturating_duration_since(stall.since);
            if age >= OVERDUE && !stall.is_reported {
                stall.is_reported = true;
                overdue.push((id, age));
            }
            self.seen.insert(id, stall);
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stall_is_reported_once() {
        let mut stalls = Stalls::default();
        let begin = Instant::now();
        let mut look =
            |waiting: &[(u32, u64)], second| stalls.find_overdue(waiting, begin + Duration::from_secs(second));
        assert_eq!(look(&[(1, 7), (2, 1)], 0), []);
        assert_eq!(look(&[(1, 7), (2, 2)], 5), []);
        assert_eq!(look(&[(1, 7), (2, 3)], 10), [(1, Duration::from_secs(10))], "connection 2 has made progress");
        assert_eq!(look(&[(1, 7)], 15), [], "the stall was already reported");
        assert_eq!(look(&[], 20), []);
        assert_eq!(look(&[(1, 7)], 25), [], "a new connection with the same id has a new stall");
        assert_eq!(look(&[(1, 7)], 40), [(1, Duration::from_secs(15))]);
    }
}
