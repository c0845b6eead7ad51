//! The table of attempts and connections of an IA: ids, deadlines, known peers and watched processes.
//!
//! `setup` and the engine share it under one lock.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dapl::provider::PeerAddress;
use parking_lot::Mutex;

use crate::cq::PolledConnection;
use crate::proto::machine::Machine;
use crate::qp::link::{ConnectionMemory, Copier, Peer, PeerSide, PidWatch};

/// A queue pair, as its attempts and the engine see it. A trait of the lower layer, because attempts report to the
/// queue pair while the queue pair starts and ends attempts.
pub(crate) trait Conn: PolledConnection {
    /// Its protection domain.
    fn pd(&self) -> u32;
    /// Maximum number of outstanding reads of the peer.
    fn max_reads_in(&self) -> u32;
    /// Handle of its EP, for the log.
    fn ep(&self) -> usize;
    /// Number of its oldest request, if that is a send which waits for a receive of the peer.
    fn waiting_send(&self) -> Option<u64>;
    /// Called when an attempt begins.
    fn begin(&self, link: Arc<ConnectionMemory>);
    /// Ends the connection (or only `which`) on this side: all posted work is flushed, and later posts are flushed at
    /// once. Returns the link, if there was one.
    fn break_off(&self, which: Option<&Arc<ConnectionMemory>>) -> Option<Arc<ConnectionMemory>>;
    /// Starts data transfer, after the connection was reported.
    fn open(&self, link: &Arc<ConnectionMemory>);
    /// Called when the peer has ended the connection: takes the messages that it sent before, then flushes all work.
    /// Returns `None` if this side had ended the connection already; otherwise whether a fault ended it.
    fn peer_left(&self, link: &Arc<ConnectionMemory>) -> Option<bool>;
}

/// Maximum number of undecided and lingering requests, which limits the state that peers can create.
const MAX_ATTEMPTS: usize = 65_000;

/// An attempt or connection.
pub(crate) struct Attempt {
    pub(crate) machine: Machine,
    pub(crate) conn: Option<Weak<dyn Conn>>,
    pub(crate) link: Option<Arc<ConnectionMemory>>,
    /// Active side: address and qualifier of the listener.
    pub(crate) listener: Option<(PeerAddress, u64)>,
    /// End point of the peer; empty until it is found.
    pub(crate) peer: PathBuf,
    /// Process id of the peer, as reported by the kernel.
    pub(crate) pid: i32,
    pub(crate) watch: Option<Arc<PidWatch>>,
    /// Passive side: the requester's half of the link, until the consumer accepts.
    pub(crate) theirs: Option<PeerSide>,
    /// Descriptors of this side's areas, sent with the request or reply.
    pub(crate) fds: Vec<OwnedFd>,
    /// The deadline under which the attempt is listed.
    pub(crate) due: Option<Instant>,
}

/// Tokens of requests that have ended, so that a duplicate that arrives after the end of its connection is not mistaken
/// for a new request.
#[derive(Default)]
pub(crate) struct RequestHistory {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl RequestHistory {
    /// Number of remembered requests. Duplicates wait in a short socket queue, so far fewer would suffice.
    const MOST: usize = 4096;

    pub(crate) fn remember(&mut self, token: u64) {
        if !self.known.insert(token) {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn knows(&self, token: u64) -> bool {
        self.known.contains(&token)
    }
}

/// Peers of connections that this side has ended. Until a peer has noticed the end, it may copy with keys that are
/// still valid, so a deregistration waits for these peers too.
#[derive(Default)]
pub(crate) struct EndedPeers {
    /// Each with the time at which the peer was first seen to have ended the connection and to copy nothing.
    peers: VecDeque<(Copier, Option<Instant>)>,
}

impl EndedPeers {
    /// Maximum number of entries. Peers notice an end within milliseconds.
    const MOST: usize = 4096;
    /// A peer marks the end a moment before its threads stop copying.
    const LINGER: Duration = Duration::from_millis(100);

    fn push(&mut self, peer: Copier, now: Instant) {
        while self.peers.len() >= Self::MOST || self.peers.front_mut().is_some_and(|first| Self::is_over(first, now)) {
            self.peers.pop_front();
        }
        self.peers.push_back((peer, None));
    }

    fn is_over((peer, idle): &mut (Copier, Option<Instant>), now: Instant) -> bool {
        *idle = if peer.is_idle() { idle.or(Some(now)) } else { None };
        idle.is_some_and(|since| now.saturating_duration_since(since) >= Self::LINGER)
    }

    /// Removes the peers that no longer copy.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.peers.retain_mut(|entry| !Self::is_over(entry, now) && !entry.0.is_dead());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}

/// All attempts and connections of an IA.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    inner: Mutex<Attempts>,
}

/// Its entries.
#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) by_id: HashMap<u32, Attempt>,
    pub(crate) by_peer: HashMap<(PathBuf, u64), u32>,
    pub(crate) deadlines: BTreeSet<(Instant, u32)>,
    pub(crate) peers: HashMap<(PathBuf, u64), Weak<Peer>>,
    watches: HashMap<i32, Weak<PidWatch>>,
    /// Processes that the engine has to add to its epoll set.
    pub(crate) new_watches: Vec<(i32, Arc<PidWatch>)>,
    /// Requests that were answered and have ended.
    pub(crate) history: RequestHistory,
    /// Requests that were rejected because there was no listener. A duplicate may arrive after the listener has
    /// started.
    pub(crate) turned_away: RequestHistory,
    pub(crate) ended: EndedPeers,
    used: u16,
    free: VecDeque<u32>,
    /// Generation of the last attempt; each attempt has its own (CM-3).
    generation: u16,
}

impl Attempts {
    /// Allocates an id: table index and generation, so that a late FIFO word matches no connection.
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

    /// The generation of a new attempt, which every packet of it carries.
    pub(crate) fn new_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Attempt> {
        let attempt = self.by_id.remove(&id)?;
        if let Some(due) = attempt.due {
            self.deadlines.remove(&(due, id));
        }
        let key = (attempt.peer.clone(), attempt.machine.token());
        if self.by_peer.get(&key) == Some(&id) {
            self.by_peer.remove(&key);
            self.history.remember(attempt.machine.token());
        }
        self.free.push_back(id);
        if let Some(peer) = attempt.link.as_ref().and_then(|link| link.copier()) {
            self.ended.push(peer, Instant::now());
        }
        Some(attempt)
    }

    /// Lists an attempt under the deadline of its state machine.
    pub(crate) fn list_due(&mut self, id: u32) {
        let Some(attempt) = self.by_id.get_mut(&id).filter(|attempt| attempt.due != attempt.machine.due()) else {
            return;
        };
        if let Some(old) = attempt.due.take() {
            self.deadlines.remove(&(old, id));
        }
        attempt.due = attempt.machine.due();
        self.deadlines.extend(attempt.due.map(|due| (due, id)));
    }

    pub(crate) fn watch(&mut self, pid: i32) -> Option<Arc<PidWatch>> {
        // If a watched process has died, its id may have been reused.
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

    /// Attempts whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<u32> {
        self.lock().deadlines.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| *id).collect()
    }

    /// The earliest deadline.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.lock().deadlines.first().map(|(due, _)| *due)
    }

    /// Returns a function that says whether a peer is copying with a key. It reads the list of connections once, at the
    /// first call.
    pub(crate) fn announced(&self) -> impl Fn(u32) -> bool + '_ {
        let copiers = std::cell::OnceCell::new();
        move |key| copiers.get_or_init(|| self.copiers()).iter().any(|peer| peer.copies_with(key))
    }

    /// The peers that may copy with keys of this side.
    fn copiers(&self) -> Vec<Copier> {
        let table = self.lock();
        let links = table.by_id.values().filter_map(|attempt| attempt.link.as_ref()?.copier());
        links.chain(table.ended.peers.iter().map(|(peer, _)| peer.clone())).collect()
    }

    /// Every established connection of this IA.
    pub(crate) fn links(&self) -> Vec<Arc<ConnectionMemory>> {
        self.lock().by_id.values().filter_map(|a| a.link.clone()).collect()
    }
}

impl Attempt {
    /// The queue pair, if it still exists.
    pub(crate) fn conn(&self) -> Option<Arc<dyn Conn>> {
        self.conn.as_ref()?.upgrade()
    }

    /// Whether the peer was this process and has died. Another process may have its id by now.
    pub(crate) fn has_died(&self, pid: i32) -> bool {
        let peer = self.link.as_ref().and_then(|link| link.theirs()).map(|theirs| &theirs.peer);
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
