//! The shared memory of a connection: an area and an RMA buffer of each process.
//!
//! An area consists of a control page of 4,096 bytes, the rings and the message buffer. Each process writes only its
//! own area, which the peer maps read-only. Both processes write both RMA buffers. The control page publishes the
//! numbers of consumed slots, the wake-up flags, the keys of copies in progress, copy jobs (`delegation`), claims of
//! eager writes (`eager_claims`), staging copies, the recall of rendezvous offers, a refused access of this process,
//! and the end of the connection. It also publishes whether this process can copy by cross-memory attach, and whether
//! it supports extension operations and eager writes.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use dapl::error::Result;
use dapl::provider::{ConnId, Remote};
use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::sync::{AtomicU64, Ordering, fence};
use dapl_software::memory::rights::AccessRight;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::delegation::CopyDelegation;
use crate::eager_claims::EagerClaims;
use crate::engine::wake::{WakeResult, write_word};
use crate::engine::wake_flags::WakeFlags;
use crate::memory::imports::Imports;
use crate::memory::map::{EngineTicks, LastCheck, SharedMapping};
use crate::memory::regions::{AccessTarget, PeerRegions};
use crate::proto::handshake::Geometry;
use crate::proto::message::FifoWord;
use crate::proto::reassembly::Route;

pub(crate) use crate::engine::wake_flags::{WAKE_ON_PROGRESS, WAKE_ON_REQUESTS, register_membarrier};

// Offsets of words in an area. Groups of words that serve different purposes are 128 bytes apart, because CPUs prefetch
// the adjacent cache line.
pub(crate) const WAKE_FLAGS_OFFSET: usize = 128;
const CONSUMED_REQUESTS: usize = 256;
const CONSUMED_RESPONSES: usize = 264;
const ANNOUNCEMENT: usize = 384;
const FETCH_ANNOUNCEMENT: usize = 392;
const ENDED: usize = 512;
const CAN_COPY: usize = 640;
const RECALLED: usize = 648;
// The module `delegation` uses offsets 768 to 1023, `eager_claims` 1280 to 1311 and 1408 to 1415.
const STAGED: usize = 1024;
/// Offset of the word with the bits of the features that this process supports. It is written once. Versions of this
/// library without extension operations leave it 0.
const CAPABILITIES: usize = 1152;
/// Offset of the description of a local operation that the peer's table of registrations does not permit: key and kind,
/// address, length. It is written before the connection ends for this reason. If this process copies the data itself,
/// only this process checks the access, so without the description the peer could not log the reason.
const REFUSED: usize = 1160;
/// Feature bit of [`CAPABILITIES`]: ring words for immediate data, invalidation and atomic operations.
const EXTENSIONS: u64 = 1;
/// Feature bit of [`CAPABILITIES`]: eager writes.
const EAGER_WRITES: u64 = 2;

/// Access rights that the kinds of operation in [`REFUSED`] need. The first right belongs to kind 1.
const REFUSED_RIGHTS: [AccessRight; 3] = [AccessRight::RemoteWrite, AccessRight::RemoteRead, AccessRight::RemoteAtomic];

/// The peer's end point. All connections to it share this state.
pub(crate) struct PeerEndpoint {
    pub(crate) path: PathBuf,
    /// Process id reported by the kernel; 0 if the process is not visible in this pid namespace.
    pub(crate) pid: i32,
    pub(crate) fifo: OwnedFd,
    pub(crate) regions: Arc<PeerRegions>,
    /// Whether cross-memory attach is used: `cma::probe` has succeeded, and the kernel has denied no copy since.
    pub(crate) cma: AtomicBool,
    /// Whether the KNEM device is used instead of cross-memory attach, for memory that the peer has declared to it.
    /// Cleared when the device denies a copy.
    pub(crate) knem: AtomicBool,
    /// Mappings of the peer's shared memory; `None`: mappings are disabled.
    pub(crate) imports: Option<Imports>,
    /// Minimum message length in bytes at which one copy by the kernel is faster than two copies through a buffer.
    pub(crate) offer_from: u64,
    /// A descriptor that becomes readable when the process exits. Without it, the kernel copy methods are not used.
    pub(crate) watch: Option<Arc<PidWatch>>,
    /// The engine tick in which the process was last found alive.
    pub(crate) last_check: LastCheck,
    /// For tests: number of further copies by the kernel that succeed; `u32::MAX`: no limit.
    #[cfg(test)]
    pub(crate) allowed: std::sync::atomic::AtomicU32,
}

impl PeerEndpoint {
    /// Whether the process id still belongs to this peer. The engine may notice an exit late, and another process may
    /// get the id meanwhile. So the first copy in each engine tick checks the watch. The kernel does not reuse an id
    /// within a tick.
    #[inline]
    pub(crate) fn is_alive(&self, ticker: &EngineTicks) -> bool {
        self.last_check.is_valid_or(ticker, || self.watch.as_ref().is_some_and(|watch| !watch.is_dead()))
    }

    /// Value of `allowed` with which the sender claims no jobs of the receiver.
    #[cfg(test)]
    pub(crate) const LAZY: u32 = u32::MAX - 1;

    /// Counts a copy by the kernel. Returns whether it must fail as if the kernel had denied it.
    #[cfg(test)]
    pub(crate) fn is_denied(&self) -> bool {
        use std::sync::atomic::Ordering::SeqCst;
        let less = |left: u32| Some(if left == u32::MAX { left } else { left.saturating_sub(1) });
        self.allowed.fetch_update(SeqCst, SeqCst, less) == Ok(0)
    }
}

/// A pidfd of a peer process. The engine waits for it in its epoll set.
pub(crate) struct PidWatch {
    pub(crate) fd: OwnedFd,
}

impl PidWatch {
    /// Whether the process has exited. Its id may already belong to another process.
    pub(crate) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    }
}

/// A peer that may copy from and to local memory, until it has noticed the end of the connection.
#[derive(Clone)]
pub(crate) struct CopyingPeer {
    area: Arc<SharedMapping>,
    watch: Arc<PidWatch>,
}

/// Whether the peer with this control page announces a copy with this key, and its process exists.
fn announces_copy(area: &SharedMapping, key: u32, watch: &PidWatch) -> bool {
    let is_named = |word| area.word(word).load(Ordering::Acquire) == u64::from(key);
    (is_named(ANNOUNCEMENT) || is_named(FETCH_ANNOUNCEMENT)) && !watch.is_dead()
}

impl CopyingPeer {
    /// Whether the peer announces a copy with this key, and its process exists.
    pub(crate) fn copies_with(&self, key: u32) -> bool {
        announces_copy(&self.area, key, &self.watch)
    }

    /// Whether the peer has marked the end of the connection, and announces no copy.
    pub(crate) fn is_idle(&self) -> bool {
        let is_zero = |word| self.area.word(word).load(Ordering::Acquire) == 0;
        !is_zero(ENDED) && is_zero(ANNOUNCEMENT) && is_zero(FETCH_ANNOUNCEMENT)
    }

    /// Whether the peer's process has exited.
    pub(crate) fn is_dead(&self) -> bool {
        self.watch.is_dead()
    }
}

/// The peer's segments and parameters of a connection.
pub(crate) struct PeerSide {
    pub(crate) area: Arc<SharedMapping>,
    pub(crate) rma: Arc<SharedMapping>,
    pub(crate) geometry: Geometry,
    /// The connection's id at the peer. FIFO words to the peer contain it.
    pub(crate) id: u32,
    pub(crate) pd: u32,
    /// Generation that the data headers of the peer's fragments contain.
    pub(crate) generation: u16,
    /// Maximum number of outstanding RDMA reads that the peer accepts.
    pub(crate) reads: u32,
    /// Whether both processes execute `membarrier` when they set wake-up flags, so that publishing needs no fence.
    pub(crate) membarrier: bool,
    pub(crate) peer: Arc<PeerEndpoint>,
}

impl PeerSide {
    /// Whether the peer announces a copy with this key, and its process exists; false if the process cannot be watched.
    pub(crate) fn copies_with(&self, key: u32) -> bool {
        self.peer.watch.as_ref().is_some_and(|watch| announces_copy(&self.area, key, watch))
    }

    /// Returns the target of an access to the peer's memory.
    #[inline(always)]
    pub(crate) fn target(&self, Remote { key, address }: Remote, length: u64, right: AccessRight) -> AccessTarget {
        AccessTarget { key, pd: self.pd, address, length, right }
    }
}

/// The shared memory of one connection.
pub(crate) struct ConnectionMemory {
    /// The connection's id at this process.
    pub(crate) id: u32,
    pub(crate) conn: ConnId,
    pub(crate) area: Arc<SharedMapping>,
    pub(crate) rma: Arc<SharedMapping>,
    pub(crate) geometry: Geometry,
    /// Generation that the data headers of this process's fragments contain.
    generation: OnceLock<u16>,
    peer_side: OnceLock<PeerSide>,
    /// Set after `peer_side` was set. ThreadSanitizer needs this flag, because it cannot see the memory ordering of
    /// `OnceLock` in the standard library.
    #[cfg(tsan)]
    joined: std::sync::atomic::AtomicBool,
    wake_flags: WakeFlags,
}

impl ConnectionMemory {
    /// Creates the local segments. Also returns their descriptors, for the peer.
    pub(crate) fn create(id: u32, conn: ConnId, geometry: Geometry) -> Result<(ConnectionMemory, [OwnedFd; 2])> {
        let (area, area_fd) = SharedMapping::create("dapl-sm-rings", geometry.area_len(), true)?;
        let (rma, rma_fd) = SharedMapping::create("dapl-sm-rma", geometry.rma_len(), false)?;
        area.word(CAPABILITIES).store(EXTENSIONS | EAGER_WRITES, Ordering::Relaxed);
        let link = ConnectionMemory {
            id,
            conn,
            area: Arc::new(area),
            rma: Arc::new(rma),
            geometry,
            generation: OnceLock::new(),
            peer_side: OnceLock::new(),
            #[cfg(tsan)]
            joined: Default::default(),
            wake_flags: WakeFlags::default(),
        };
        link.wake_flags.preset(link.area.word(WAKE_FLAGS_OFFSET));
        Ok((link, [area_fd, rma_fd]))
    }

    /// Attaches the peer's segments, and publishes whether this process can copy by cross-memory attach. Called once.
    pub(crate) fn join(&self, peer_side: PeerSide) {
        self.publish_can_copy(peer_side.peer.cma.load(std::sync::atomic::Ordering::Relaxed));
        let _ = self.peer_side.set(peer_side);
        #[cfg(tsan)]
        self.joined.store(true, Ordering::Release);
    }

    /// Publishes whether this process can copy from and to the peer's memory by cross-memory attach.
    pub(crate) fn publish_can_copy(&self, reaches: bool) {
        self.area.word(CAN_COPY).store(u64::from(reaches), Ordering::Relaxed);
    }

    /// Whether the peer has published that it can copy from and to local memory. If so, long sends may be rendezvous
    /// offers.
    pub(crate) fn peer_can_copy(&self) -> bool {
        self.peer_side().is_some_and(|t| t.area.word(CAN_COPY).load(Ordering::Relaxed) == 1)
    }

    /// Whether the peer supports the ring words of extension operations.
    pub(crate) fn has_extensions(&self) -> bool {
        self.has_capability(EXTENSIONS)
    }

    /// Whether writes to the peer may be eager. Both processes must execute `membarrier`, because a claim has no fence.
    pub(crate) fn has_eager_writes(&self) -> bool {
        self.has_capability(EAGER_WRITES) && self.peer_side().is_some_and(|t| t.membarrier)
    }

    fn has_capability(&self, feature: u64) -> bool {
        self.peer_side().is_some_and(|t| t.area.word(CAPABILITIES).load(Ordering::Relaxed) & feature != 0)
    }

    /// Recalls the local rendezvous offers. Called before they are flushed, because the consumer may then reuse their
    /// memory. The receiver completes no recalled offer.
    pub(crate) fn recall(&self) {
        self.area.word(RECALLED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the peer has recalled its rendezvous offers. The receiver checks this after the last copy of an offer.
    pub(crate) fn is_recalled(&self) -> bool {
        // Pairs with the fence in `recall`: either the copied bytes are the offered bytes, or this process sees the
        // recall.
        fence(Ordering::SeqCst);
        self.peer_side().is_none_or(|t| t.area.word(RECALLED).load(Ordering::Relaxed) != 0)
    }

    /// Publishes a staging copy: the word contains its number and its length in bytes.
    pub(crate) fn publish_staged(&self, word: u64) {
        // Release, for the Acquire in `staged`: a receiver that sees the word also sees the bytes.
        self.area.word(STAGED).store(word, Ordering::Release);
    }

    /// Returns the peer's last published staging copy: its number and its length in bytes, in one word.
    pub(crate) fn staged(&self) -> u64 {
        self.peer_side().map_or(0, |t| t.area.word(STAGED).load(Ordering::Acquire))
    }

    /// Returns the words of copy jobs for long sends. `None` before the peer's segments are attached.
    pub(crate) fn copy_delegation(&self) -> Option<CopyDelegation<'_>> {
        Some(CopyDelegation { local: &self.area, peer: &self.peer_side()?.area })
    }

    /// Returns the words of claims of eager writes. `None` before the peer's segments are attached.
    #[inline(always)]
    pub(crate) fn eager_claims(&self) -> Option<EagerClaims<'_>> {
        Some(EagerClaims { local: &self.area, peer: &self.peer_side()?.area })
    }

    /// Process id of the peer, for log messages; 0: not attached yet, or not visible in this pid namespace.
    pub(crate) fn peer_pid(&self) -> i32 {
        self.peer_side().map_or(0, |side| side.peer.pid)
    }

    /// Returns the peer's segments and parameters, if they are attached.
    #[inline(always)]
    pub(crate) fn peer_side(&self) -> Option<&PeerSide> {
        #[cfg(tsan)]
        if !self.joined.load(Ordering::Acquire) {
            return None;
        }
        self.peer_side.get()
    }

    /// Sets the generation for the data headers of local fragments. Called once, before the connection is established.
    pub(crate) fn set_generation(&self, generation: u16) {
        let _ = self.generation.set(generation);
    }

    /// Returns the generation and the ids for the data headers of fragments to the peer.
    pub(crate) fn route_out(&self) -> Option<Route> {
        let generation = *self.generation.get()?;
        self.peer_side().map(|t| Route { generation, source: self.id, destination: t.id })
    }

    /// Returns the generation and the ids that the data headers of fragments from the peer must contain.
    pub(crate) fn route_in(&self) -> Option<Route> {
        self.peer_side().map(|t| Route { generation: t.generation, source: t.id, destination: self.id })
    }

    /// Publishes the number of the peer's requests that this process has consumed.
    pub(crate) fn publish_consumed(&self, requests: u64) {
        // Release: the peer may then overwrite the buffers of these requests, so all reads of them come before the
        // store.
        self.area.word(CONSUMED_REQUESTS).store(requests, Ordering::Release);
    }

    pub(crate) fn publish_consumed_responses(&self, responses: u64) {
        self.area.word(CONSUMED_RESPONSES).store(responses, Ordering::Release);
    }

    /// Number of local requests that the peer has consumed; 0 before the peer's segments are attached.
    pub(crate) fn consumed_requests(&self) -> u64 {
        self.peer_side().map_or(0, |t| t.area.word(CONSUMED_REQUESTS).load(Ordering::Acquire))
    }

    /// Makes dequeues watch the number of local requests that the peer has consumed.
    pub(crate) fn watch_consumed(&self, watch: &RingWatch) {
        self.peer_side().into_iter().for_each(|t| t.area.watch_consumed(CONSUMED_REQUESTS, watch));
    }

    pub(crate) fn consumed_responses(&self) -> u64 {
        self.peer_side().map_or(0, |t| t.area.word(CONSUMED_RESPONSES).load(Ordering::Acquire))
    }

    /// Sum of all progress counters: ring entries of the peer that this process has consumed, and entries of this
    /// process that the peer has consumed.
    pub(crate) fn progress(&self) -> u64 {
        let consumed = [CONSUMED_REQUESTS, CONSUMED_RESPONSES].map(|at| self.area.word(at).load(Ordering::Relaxed));
        [consumed[0], consumed[1], self.consumed_requests(), self.consumed_responses()]
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// The word in which the local send direction announces the peer's key with which it is copying; 0: no copy.
    pub(crate) fn announcement(&self) -> &AtomicU64 {
        self.area.word(ANNOUNCEMENT)
    }

    /// The word in which the local receive direction announces the peer's key with which it is copying; 0: no copy.
    pub(crate) fn fetch_announcement(&self) -> &AtomicU64 {
        self.area.word(FETCH_ANNOUNCEMENT)
    }

    /// Returns the peer as a process that may copy from and to local memory. `None`: the peer's segments are not
    /// attached, or its process cannot be watched.
    pub(crate) fn copier(&self) -> Option<CopyingPeer> {
        let peer_side = self.peer_side()?;
        Some(CopyingPeer { area: peer_side.area.clone(), watch: peer_side.peer.watch.clone()? })
    }

    /// Sets local wake-up flags. The caller must poll once more before it sleeps.
    pub(crate) fn set_wake_flags(&self, want: u64) {
        self.wake_flags.set(self.area.word(WAKE_FLAGS_OFFSET), want, self.peer_side().is_some_and(|t| t.membarrier));
    }

    /// Whether the local wake-up flags are unchanged since `create`.
    pub(crate) fn is_preset(&self) -> bool {
        WakeFlags::is_preset(self.area.word(WAKE_FLAGS_OFFSET))
    }

    /// Whether all local wake-up flags in `want` are set.
    pub(crate) fn has_wake_flags(&self, want: u64) -> bool {
        WakeFlags::are_set(self.area.word(WAKE_FLAGS_OFFSET), want)
    }

    /// Clears the local wake-up flags, because a thread polls.
    pub(crate) fn clear_wake_flags(&self) {
        self.wake_flags.clear(self.area.word(WAKE_FLAGS_OFFSET));
    }

    /// Called after publishing: sends a FIFO word if one of the peer's wake-up flags in `want` is set, unless a word
    /// was sent since the peer has set them. If the peer polls, no flag is set and no system call is made (SM-15).
    #[inline(always)]
    pub(crate) fn wake_if_flagged(&self, want: u64) -> WakeResult {
        match self.peer_side() {
            Some(t) if self.wake_flags.must_wake(t.area.word(WAKE_FLAGS_OFFSET), want, t.membarrier) => wake(t),
            _ => WakeResult::Sent,
        }
    }

    /// Describes on the control page a local operation that the peer's table of registrations does not permit, so that
    /// the peer can log it.
    pub(crate) fn publish_refused(&self, target: &AccessTarget) {
        let AccessTarget { key, address, length, right, .. } = *target;
        let kind = REFUSED_RIGHTS.iter().position(|known| *known == right).map_or(0, |index| index as u64 + 1);
        for (n, word) in [kind << 32 | u64::from(key), address, length].into_iter().enumerate() {
            self.area.word(REFUSED + 8 * n).store(word, Ordering::Relaxed);
        }
    }

    /// If the peer has ended the connection because the local table of registrations grants no access to one of its
    /// operations, returns this operation as the peer has described it. `pd`: the local protection domain.
    pub(crate) fn access_refused_to_peer(&self, pd: u32) -> Option<AccessTarget> {
        let peer_side = self.peer_side().filter(|_| self.is_reset())?;
        let [first, address, length] = [0, 8, 16].map(|at| peer_side.area.word(REFUSED + at).load(Ordering::Relaxed));
        let kind = usize::try_from(first >> 32).ok()?.checked_sub(1)?;
        let right = *REFUSED_RIGHTS.get(kind)?;
        Some(AccessTarget { key: first as u32, pd, address, length, right })
    }

    /// Marks the end of the connection on the local control page.
    pub(crate) fn mark_ended(&self) {
        self.area.word(ENDED).store(1, Ordering::Release);
    }

    /// Ends the connection at the peer: marks the end on the local control page, and wakes the peer's engine.
    pub(crate) fn reset(&self) {
        self.mark_ended();
        if let Some(peer_side) = self.peer_side() {
            write_word(&peer_side.peer.fifo, FifoWord::Reset(peer_side.id));
        }
    }

    /// Whether the peer has marked the end of the connection on its control page. Only the peer can write this mark,
    /// whereas other processes of the user can forge FIFO words.
    pub(crate) fn is_reset(&self) -> bool {
        self.peer_side().is_some_and(|t| t.area.word(ENDED).load(Ordering::Acquire) != 0)
    }

    /// Sends a heartbeat to the peer (CM-5). `Dead`: the peer's FIFO has no reader.
    pub(crate) fn send_heartbeat(&self) -> WakeResult {
        self.peer_side().map_or(WakeResult::Sent, |t| write_word(&t.peer.fifo, FifoWord::Alive(t.id)))
    }
}

/// Wakes the peer's engine by a FIFO word.
#[cold]
fn wake(peer_side: &PeerSide) -> WakeResult {
    write_word(&peer_side.peer.fifo, FifoWord::Wake(peer_side.id))
}
