//! The table of connection attempts and connections of an IA: ids, deadlines, known peers, watched processes, tokens of
//! earlier requests, and peers of ended connections that may still copy.
//!
//! One lock guards the table. Calls of dapl and the engine acquire it.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::PeerAddress;
use parking_lot::Mutex;

use crate::cq::PolledConnection;
use crate::proto::machine::ConnectionMachine;
use crate::qp::link::{ConnectionMemory, CopyingPeer, PeerEndpoint, PeerSide, PidWatch};

/// The functions of a queue pair that connection attempts and the engine call. A trait, because `qp` imports this
/// module.
pub(crate) trait ConnectionHandler: PolledConnection {
    /// Protection domain of the queue pair.
    fn pd(&self) -> u32;
    /// Maximum number of outstanding RDMA reads that the peer may send.
    fn max_reads_in(&self) -> u32;
    /// Handle of the queue pair's EP, for log messages.
    fn ep(&self) -> usize;
    /// Number of the oldest outstanding request, if it is a send that the peer has not consumed.
    fn waiting_send(&self) -> Option<u64>;
    /// Stores the memory of a new connection attempt.
    fn begin(&self, link: Arc<ConnectionMemory>);
    /// Ends the connection locally. Does nothing if `which` is given and is not the current connection. Flushes all
    /// posted work; later posts are flushed immediately. Returns the memory of the ended connection.
    fn end_locally(&self, which: Option<&Arc<ConnectionMemory>>) -> Option<Arc<ConnectionMemory>>;
    /// Starts data transfer. Called after ESTABLISHED was reported.
    fn open(&self, link: &Arc<ConnectionMemory>);
    /// Called when the connection or attempt has ended, but not by the consumer. For example, the peer has rejected or
    /// ended it, has exited or was given up. Receives the messages that the peer had sent, then flushes all work.
    /// Returns `None` if the connection was already ended locally; otherwise whether a pass had found a
    /// `ConnectionFault`, such as invalid data of the peer.
    fn peer_ended(&self, link: &Arc<ConnectionMemory>) -> Option<bool>;
}

/// Maximum number of entries of the table. It limits the state that requests of peers can create.
const MAX_ATTEMPTS: usize = 65_000;

/// A connection attempt or connection.
pub(crate) struct Attempt {
    pub(crate) machine: ConnectionMachine,
    pub(crate) conn: Option<Weak<dyn ConnectionHandler>>,
    pub(crate) link: Option<Arc<ConnectionMemory>>,
    /// Address and qualifier of the listener; `None` if the peer is the active side.
    pub(crate) listener: Option<(PeerAddress, u64)>,
    /// Path of the peer's end point; empty until the end point is found.
    pub(crate) peer: PathBuf,
    /// Process id of the peer, as reported by the kernel; 0 if it is not known.
    pub(crate) pid: i32,
    pub(crate) watch: Option<Arc<PidWatch>>,
    /// Mapped memory of the client, from its request until the consumer decides; `None` on the active side.
    pub(crate) peer_side: Option<PeerSide>,
    /// Descriptors of the local shared-memory segments, which each request or accepting reply contains.
    pub(crate) fds: Vec<OwnedFd>,
    /// Deadline of this attempt in `Attempts::deadlines`.
    pub(crate) due: Option<Instant>,
}

/// Tokens of requests that peers have sent. A duplicate of a request may arrive after its rejection or after the end of
/// its connection, and must not be treated as a new request.
#[derive(Default)]
pub(crate) struct RequestHistory {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl RequestHistory {
    /// Maximum number of stored tokens; the oldest is dropped. Duplicates of a request wait only in the socket queue,
    /// which is much shorter.
    const MAX_TOKENS: usize = 4096;

    pub(crate) fn remember(&mut self, token: u64) {
        if !self.known.insert(token) {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > Self::MAX_TOKENS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn knows(&self, token: u64) -> bool {
        self.known.contains(&token)
    }
}

/// Peers of ended connections. Until a peer has noticed the end, it may still copy to or from local memory, so a
/// deregistration also waits for the copies of these peers.
#[derive(Default)]
pub(crate) struct EndedPeers {
    /// Each peer, and since when it is idle ([`CopyingPeer::is_idle`]); `None` while it may still copy.
    peers: VecDeque<(CopyingPeer, Option<Instant>)>,
}

impl EndedPeers {
    /// Maximum number of peers in the queue; another one replaces the oldest. The limit is rarely reached, because a
    /// peer notices the end of its connection within milliseconds.
    const MAX_PEERS: usize = 4096;
    /// A peer that was idle for this time counts as stopped. A peer is idle if it has marked the end of the connection
    /// and announces no copy.
    const STOP_TIME: Duration = Duration::from_millis(100);

    fn push(&mut self, peer: CopyingPeer, now: Instant) {
        while self.peers.len() >= Self::MAX_PEERS
            || self.peers.front_mut().is_some_and(|first| Self::has_stopped_copying(first, now))
        {
            self.peers.pop_front();
        }
        self.peers.push_back((peer, None));
    }

    fn has_stopped_copying((peer, idle): &mut (CopyingPeer, Option<Instant>), now: Instant) -> bool {
        *idle = if peer.is_idle() { idle.or(Some(now)) } else { None };
        idle.is_some_and(|since| now.saturating_duration_since(since) >= Self::STOP_TIME)
    }

    /// Removes the peers that have stopped copying, and those whose process has exited.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.peers.retain_mut(|entry| !Self::has_stopped_copying(entry, now) && !entry.0.is_dead());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}

/// The connection attempts and connections of an IA, behind one lock.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    inner: Mutex<Attempts>,
}

/// The content of [`ConnectionTable`].
#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) by_id: HashMap<u32, Attempt>,
    pub(crate) by_peer: HashMap<(PathBuf, u64), u32>,
    pub(crate) deadlines: BTreeSet<(Instant, u32)>,
    pub(crate) peers: HashMap<(PathBuf, u64), Weak<PeerEndpoint>>,
    watches: HashMap<i32, Weak<PidWatch>>,
    /// Processes that the engine must add to its epoll set.
    pub(crate) new_watches: Vec<(i32, Arc<PidWatch>)>,
    /// Tokens of received requests whose attempt or connection has ended.
    pub(crate) history: RequestHistory,
    /// Tokens of requests that were rejected because there was no listener. A duplicate that arrives after a listener
    /// was created is rejected too.
    pub(crate) turned_away: RequestHistory,
    pub(crate) ended: EndedPeers,
    used: u16,
    free: VecDeque<u32>,
    /// Generation of the last attempt; incremented for each attempt (CM-3).
    generation: u16,
}

impl Attempts {
    /// Allocates an id: 16 bits of index and 8 bits that change with each use of the index, so that a late FIFO word
    /// matches no connection. `None`: the table is full.
    pub(crate) fn new_id(&mut self) -> Option<u32> {
        if self.by_id.len() >= MAX_ATTEMPTS {
            return None;
        }
        if self.free.len() < 64 && self.used < u16::MAX {
            self.used += 1;
            return Some(u32::from(self.used));
        }
        let id = self.free.pop_front()?;
        Some((id & 0xFFFF) | (id.wrapping_add(1 << 16) & 0xFF_0000))
    }

    /// Returns the generation of a new attempt. The data headers of its fragments contain it.
    pub(crate) fn new_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Attempt> {
        let attempt = self.by_id.remove(&id)?;
        if let Some(due) = attempt.due {
            self.deadlines.remove(&(due, id));
        }
        let key = (attempt.peer.clone(), attempt.machine.token);
        if self.by_peer.get(&key) == Some(&id) {
            self.by_peer.remove(&key);
            self.history.remember(attempt.machine.token);
        }
        self.free.push_back(id);
        if let Some(peer) = attempt.link.as_ref().and_then(|link| link.copier()) {
            self.ended.push(peer, Instant::now());
        }
        Some(attempt)
    }

    /// Updates `deadlines` with the current deadline of an attempt's state machine.
    pub(crate) fn list_due(&mut self, id: u32) {
        let Some(attempt) = self.by_id.get_mut(&id).filter(|attempt| attempt.due != attempt.machine.due) else {
            return;
        };
        if let Some(old) = attempt.due.take() {
            self.deadlines.remove(&(old, id));
        }
        attempt.due = attempt.machine.due;
        self.deadlines.extend(attempt.due.map(|due| (due, id)));
    }

    pub(crate) fn watch(&mut self, pid: i32) -> Option<Arc<PidWatch>> {
        // If a watched process has exited, `pid` may belong to another process.
        if let Some(watch) = self.watches.get(&pid).and_then(Weak::upgrade).filter(|watch| !watch.is_dead()) {
            return Some(watch);
        }
        let pid_handle = rustix::process::Pid::from_raw(pid)?;
        let fd = rustix::process::pidfd_open(pid_handle, rustix::process::PidfdFlags::empty()).ok()?;
        let watch = Arc::new(PidWatch { fd });
        self.watches.retain(|_, known| known.strong_count() > 0);
        self.watches.insert(pid, Arc::downgrade(&watch));
        self.new_watches.push((pid, watch.clone()));
        Some(watch)
    }
}

impl ConnectionTable {
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, Attempts> {
        self.inner.lock()
    }

    /// Returns the ids of the attempts whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<u32> {
        self.lock().deadlines.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| *id).collect()
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.lock().deadlines.first().map(|(due, _)| *due)
    }

    /// Whether a peer announces a copy with this local key.
    pub(crate) fn announces_copy(&self, key: u32) -> bool {
        let table = self.lock();
        let mut connected = table.by_id.values().filter_map(|attempt| attempt.link.as_ref()?.peer_side());
        connected.any(|peer| peer.copies_with(key)) || table.ended.peers.iter().any(|(peer, _)| peer.copies_with(key))
    }

    /// Returns the memory of all connections, and of the attempts for which it is already created.
    pub(crate) fn links(&self) -> Vec<Arc<ConnectionMemory>> {
        self.lock().by_id.values().filter_map(|a| a.link.clone()).collect()
    }
}

impl Attempt {
    /// Returns the queue pair, if the attempt has one and the consumer has not freed it.
    pub(crate) fn conn(&self) -> Option<Arc<dyn ConnectionHandler>> {
        self.conn.as_ref()?.upgrade()
    }

    /// Whether process `pid` was the peer and has exited. A peer without a pidfd counts as exited. The id may already
    /// belong to another process.
    pub(crate) fn has_died(&self, pid: i32) -> bool {
        let peer = self.link.as_ref().and_then(|link| link.peer_side()).map(|peer_side| &peer_side.peer);
        let (its, watch) = peer.map_or((self.pid, &self.watch), |peer| (peer.pid, &peer.watch));
        its == pid && watch.as_ref().is_none_or(|watch| watch.is_dead())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_increase_with_every_attempt_and_wrap() {
        let mut attempts = Attempts { generation: u16::MAX - 1, ..Attempts::default() };
        assert_eq!([(); 3].map(|()| attempts.new_generation()), [u16::MAX, 0, 1]);
    }
}
