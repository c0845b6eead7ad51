//! The connections that the polls of a completion queue make progress on, and the order in which a poll visits them.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::runtime::empty_check::{RingWatch, WATCHES};

use super::writer::CompletionWriter;

/// A poll of more than [`WATCHES`] connections ends when this number of connections after the one of its last
/// completion had no work. The limit is small, because the check of an idle connection costs about 15 instructions.
const QUIET_IN_SEQUENCE: usize = 4;
/// A poll of more than [`WATCHES`] connections that has no completion yet checks its first connection again after this
/// number of connections.
const RECHECK_INTERVAL: usize = 32;

/// The functions of a connection that completion queues call. A trait, because queue pairs also call completion queues,
/// and because the tests of completion queues use a fake connection without a ring.
pub(crate) trait PolledConnection: Send + Sync {
    /// Makes a pass over the connection for a polling thread. Returns whether the connection has ended.
    fn poll(&self, out: &mut CompletionWriter<'_>) -> bool;
    /// Returns the words from which a dequeue finds out, without a lock, whether `poll` would find work.
    fn watch(&self) -> &'static RingWatch;
    fn has_ended(&self) -> bool;
    /// Whether a thread polls the connection, so that its peer sends no wake-ups.
    fn is_polled(&self) -> bool;
    /// Whether the connection has made no progress for about half a second. Called at each tick while the list is long.
    fn was_idle(&self) -> bool;
    /// Clears the wake-up flags, because a thread polls. Has no effect while a completion queue of the connection is
    /// armed.
    fn clear_wake_flags(&self);
    /// Makes progress. If a thread polls, adds the connection to its list. Otherwise continues until no work is left,
    /// and sets the wake-up flags; after many passes, leaves the remaining work to the engine.
    fn serve(&self);
    /// Removes the connection from the lists of its completion queues, and sets its wake-up flags.
    fn stop_polling(&self);
    /// Whether a pass would find progress of the peer, such as a ring entry that can be processed.
    fn has_unread(&self) -> bool;
}

/// A connection in the list of a completion queue.
pub(super) struct ActiveConnection {
    pub(super) conn: Arc<dyn PolledConnection>,
    pub(super) watch: &'static RingWatch,
}

/// The connections that a poll of a completion queue makes progress on.
#[derive(Default)]
pub(super) struct ActiveList {
    pub(super) conns: Vec<ActiveConnection>,
    /// Index of the connection with which the next poll starts, if there are more than [`WATCHES`] connections. May
    /// exceed the length of `conns`.
    next: usize,
}

impl ActiveList {
    /// Polls the connections that have work, until `out` is full. With more than [`WATCHES`] connections, the poll may
    /// end earlier (`poll_in_turn`). Returns whether a polled connection has ended.
    #[inline(always)]
    pub(super) fn poll(&mut self, out: &mut CompletionWriter<'_>) -> bool {
        if self.conns.len() > WATCHES {
            return self.poll_in_turn(out);
        }
        let (mut has_ended, mut served) = (false, 0);
        for ActiveConnection { conn, watch } in &self.conns {
            served += 1;
            if watch.has_no_progress() {
                continue;
            }
            has_ended |= conn.poll(out);
            if out.is_full() {
                break;
            }
        }
        if served < self.conns.len() {
            self.conns.rotate_left(served); // The next poll starts with the connections that were not polled.
        }
        has_ended
    }

    /// Polls the connections in turn, starting after the last one that had a completion. Ends early if `out` has a
    /// completion and the next [`QUIET_IN_SEQUENCE`] connections have no work. So a program that uses its connections
    /// in turn finds each message without a check of all connections.
    #[inline(never)]
    fn poll_in_turn(&mut self, out: &mut CompletionWriter<'_>) -> bool {
        let count = self.conns.len();
        let first = if self.next < count { self.next } else { 0 };
        let (mut has_ended, mut quiet) = (false, 0);
        for n in first..first + count {
            let at = if n < count { n } else { n - count };
            let mut found = at;
            if self.conns[at].watch.has_no_progress() {
                quiet += 1;
                if out.filled > 0 && quiet >= QUIET_IN_SEQUENCE {
                    break;
                }
                // A program that uses its connections in turn now waits for a message on the first connection. The
                // message may arrive during this loop.
                if out.filled > 0 || quiet % RECHECK_INTERVAL != 0 || self.conns[first].watch.has_no_progress() {
                    continue;
                }
                found = first;
            }
            let before = out.filled;
            has_ended |= self.conns[found].conn.poll(out);
            if out.filled > before {
                (quiet, self.next) = (0, found + 1);
            }
            if out.is_full() {
                break;
            }
        }
        has_ended
    }
}
