//! Detects connections whose oldest send does not complete for a long time, usually because the peer has posted no
//! receive. Each such send is logged once.
//!
//! The engine checks its connections at intervals, and passes the waiting sends and the time to [`Stalls`].
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A send that has waited for this time is overdue. Traced requests have the same limit (`dapl::stats::trace`).
pub const OVERDUE: Duration = Duration::from_secs(10);

/// A send that has waited for at least [`OVERDUE`].
#[derive(Clone, Copy, Debug)]
pub struct OverdueSend {
    /// Handle of the EP.
    pub ep: usize,
    pub age: Duration,
    pub cause: WaitCause,
}

/// Why a send has not completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitCause {
    /// The peer has posted no receive.
    NoReceive,
    /// The device does not report the cause: the peer has posted no receive, or does not acknowledge the send.
    Unknown,
}

impl OverdueSend {
    #[cold]
    pub fn log(&self) {
        log::warn!("{self}");
    }
}

impl fmt::Display for OverdueSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ep, seconds) = (self.ep, self.age.as_secs());
        match self.cause {
            WaitCause::NoReceive => write!(
                f,
                "ep {ep:#x}: a send has waited {seconds} s for the peer to post a receive; the peer must post one \
                 (DAPL_DBG_IO_TRC shows the posts)"
            ),
            WaitCause::Unknown => write!(
                f,
                "ep {ep:#x}: a send has not completed for {seconds} s: the peer has posted no receive, or does not \
                 acknowledge the send; check the peer (DAPL_DBG_IO_TRC shows the posts)"
            ),
        }
    }
}

/// The oldest waiting send of each connection. `K` identifies a connection.
pub struct Stalls<K> {
    seen: HashMap<K, Stall>,
}

impl<K> Default for Stalls<K> {
    fn default() -> Self {
        Stalls { seen: HashMap::new() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Number of the send in the send order of its connection.
    send: u64,
    since: Instant,
    is_reported: bool,
}

impl<K: Copy + Eq + Hash> Stalls<K> {
    /// Returns the connections whose oldest send is overdue and was not reported yet, each with the time since the send
    /// was first passed to this function.
    ///
    /// `waiting` contains the id of each connection with a waiting send, and the number of its oldest send.
    pub fn find_overdue(&mut self, waiting: &[(K, u64)], now: Instant) -> Vec<(K, Duration)> {
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
        let mut check =
            |waiting: &[(u32, u64)], second| stalls.find_overdue(waiting, begin + Duration::from_secs(second));
        assert_eq!(check(&[(1, 7), (2, 1)], 0), []);
        assert_eq!(check(&[(1, 7), (2, 2)], 5), []);
        assert_eq!(check(&[(1, 7), (2, 3)], 10), [(1, Duration::from_secs(10))], "connection 2 has made progress");
        assert_eq!(check(&[(1, 7)], 15), [], "the stall was already reported");
        assert_eq!(check(&[], 20), []);
        assert_eq!(check(&[(1, 7)], 25), [], "a new connection with the same id has a new stall");
        assert_eq!(check(&[(1, 7)], 40), [(1, Duration::from_secs(15))]);
    }
}
