//! A link: the areas of one connection, this side's and the peer's, and the control line that each side writes.
//!
//! Each side writes only its own area, which the peer maps read-only; the RMA buffer is written by both. On the control line
//! a side says how far it has read, whether it sleeps, which registration it is copying with, and that it has gone.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use dapl::error::Result;
use dapl::provider::ConnId;
use dapl::sync::{AtomicU64, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::loans::Loans;
use crate::map::{Looked, Map, Ticker};
use crate::proto::handshake::Geometry;
use crate::proto::message::Note;
use crate::proto::reassembly::Route;
use crate::regions::PeerRegions;
use crate::ring::Place;
use crate::wake::{Delivery, tell};
use crate::wish::Wishes;

pub(crate) use crate::wish::{WANT_PROGRESS, WANT_REQUESTS, offer_barrier};

// Offsets in an area; lines written for different readers lie 128 bytes apart (adjacent-line prefetch).
const WANT: usize = 128;
const TAKEN_REQUESTS: usize = 256;
const TAKEN_RESPONSES: usize = 264;
const BUSY: usize = 384;
const GONE: usize = 512;

/// A peer's end point: shared by all connections to it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) path: PathBuf,
    /// As the kernel reported it; 0 when it is not visible here.
    pub(crate) pid: i32,
    pub(crate) fifo: OwnedFd,
    pub(crate) regions: Arc<PeerRegions>,
    /// Cross-memory copy was seen to work, and has not been refused since.
    pub(crate) cma: AtomicBool,
    /// KNEM's device comes first, or alone, and has not refused since.
    pub(crate) knem: AtomicBool,
    /// What of its shared memory is mapped here; `None`: nothing is to be.
    pub(crate) loans: Option<Loans>,
    /// Becomes readable when the process dies. Without it there is no cross-memory copy.
    pub(crate) watch: Option<Arc<PidWatch>>,
    /// When that was asked about last.
    pub(crate) looked: Looked,
}

impl Peer {
    /// Is its process id still its own? The engine hears of a death at once, but it may be kept from that for long, by the
    /// consumer or a signal, and then another process may have the number. So a copy asks, the first one of a tick: in so
    /// short a time the numbers do not come round.
    #[inline]
    pub(crate) fn lives(&self, ticker: &Ticker) -> bool {
        self.looked.is_still(ticker, || self.watch.as_ref().is_some_and(|watch| !watch.is_dead()))
    }
}

/// A process whose death the engine hears of at once.
#[derive(Debug)]
pub(crate) struct PidWatch {
    pub(crate) fd: OwnedFd,
}

impl PidWatch {
    /// Has it died? Its id may be another's then.
    pub(crate) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    }
}

/// The peer's half of a link.
#[derive(Debug)]
pub(crate) struct Theirs {
    pub(crate) area: Arc<Map>,
    pub(crate) rma: Arc<Map>,
    pub(crate) geometry: Geometry,
    /// By which the peer knows the connection: what our FIFO words name.
    pub(crate) id: u32,
    pub(crate) pd: u32,
    /// What its packets carry.
    pub(crate) generation: u16,
    /// Reads of ours that it takes at a time.
    pub(crate) reads: u32,
    /// Both sides arm with a barrier on all processors, so publishing needs none.
    pub(crate) light: bool,
    pub(crate) peer: Arc<Peer>,
}

/// The areas of one connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// By which this side knows the connection.
    pub(crate) id: u32,
    pub(crate) conn: ConnId,
    pub(crate) area: Arc<Map>,
    pub(crate) rma: Arc<Map>,
    pub(crate) geometry: Geometry,
    /// What our packets carry.
    generation: OnceLock<u16>,
    theirs: OnceLock<Theirs>,
    wishes: Wishes,
}

impl Link {
    /// This side's half, and the descriptors that the peer gets.
    pub(crate) fn create(id: u32, conn: ConnId, geometry: Geometry) -> Result<(Link, [OwnedFd; 2])> {
        let (area, area_fd) = Map::create("dapl-sm-rings", geometry.area_len(), true)?;
        let (rma, rma_fd) = Map::create("dapl-sm-rma", geometry.rma as usize, false)?;
        let link = Link {
            id,
            conn,
            area: Arc::new(area),
            rma: Arc::new(rma),
            geometry,
            generation: OnceLock::new(),
            theirs: OnceLock::new(),
            wishes: Wishes::default(),
        };
        Ok((link, [area_fd, rma_fd]))
    }

    /// Joins the peer's half; once.
    pub(crate) fn join(&self, theirs: Theirs) {
        let _ = self.theirs.set(theirs);
    }

    pub(crate) fn theirs(&self) -> Option<&Theirs> {
        self.theirs.get()
    }

    /// Says what our packets carry; once, before the peer hears of it.
    pub(crate) fn be_of(&self, generation: u16) {
        let _ = self.generation.set(generation);
    }

    /// The way of what we send.
    pub(crate) fn route_out(&self) -> Option<Route> {
        let generation = *self.generation.get()?;
        self.theirs().map(|t| Route { generation, source: self.id, destination: t.id })
    }

    /// The way of what the peer sends.
    pub(crate) fn route_in(&self) -> Option<Route> {
        self.theirs().map(|t| Route { generation: t.generation, source: t.id, destination: self.id })
    }

    pub(crate) fn requests(geometry: &Geometry) -> Place {
        Place { offset: geometry.requests_at(), slots: geometry.requests }
    }

    pub(crate) fn responses(geometry: &Geometry) -> Place {
        Place { offset: geometry.responses_at(), slots: geometry.responses }
    }

    /// Says how many of the peer's requests were taken.
    pub(crate) fn tell_taken(&self, requests: u64) {
        // Release: the buffers of those requests were read before they are given back.
        self.area.word(TAKEN_REQUESTS).store(requests, Ordering::Release);
    }

    pub(crate) fn tell_taken_responses(&self, responses: u64) {
        self.area.word(TAKEN_RESPONSES).store(responses, Ordering::Release);
    }

    /// How many of our requests the peer says it took; 0 before it has joined.
    pub(crate) fn taken(&self) -> u64 {
        self.theirs().map_or(0, |t| t.area.word(TAKEN_REQUESTS).load(Ordering::Acquire))
    }

    pub(crate) fn taken_responses(&self) -> u64 {
        self.theirs().map_or(0, |t| t.area.word(TAKEN_RESPONSES).load(Ordering::Acquire))
    }

    /// What the peer has done so far: how many requests and answers of its we took, and how many of ours it took.
    pub(crate) fn deeds(&self) -> u64 {
        let ours = [TAKEN_REQUESTS, TAKEN_RESPONSES].map(|at| self.area.word(at).load(Ordering::Relaxed));
        [ours[0], ours[1], self.taken(), self.taken_responses()].into_iter().fold(0, u64::wrapping_add)
    }

    /// The word where the owner of memory sees that we copy with one of its keys.
    pub(crate) fn busy(&self) -> &AtomicU64 {
        self.area.word(BUSY)
    }

    /// Is the peer copying with this key of ours?
    pub(crate) fn peer_copies_with(&self, key: u32) -> bool {
        self.theirs().is_some_and(|t| t.area.word(BUSY).load(Ordering::Acquire) == u64::from(key))
    }

    /// Asks to be woken; look once more afterwards, before sleeping.
    pub(crate) fn arm(&self, want: u64) {
        self.wishes.wish(self.area.word(WANT), want, self.theirs().is_some_and(|t| t.light));
    }

    /// Is this wish on the line already?
    pub(crate) fn wants(&self, want: u64) -> bool {
        Wishes::wants(self.area.word(WANT), want)
    }

    /// No more words, please: somebody polls.
    pub(crate) fn disarm(&self) {
        self.wishes.withdraw(self.area.word(WANT));
    }

    /// After publishing something for the peer: one FIFO word if it sleeps. A polling peer costs no system call (SM-15).
    pub(crate) fn poke(&self, want: u64) -> Delivery {
        match self.theirs() {
            Some(t) if self.wishes.answers(t.area.word(WANT), want, t.light) => tell(&t.peer.fifo, Note::Wake(t.id)),
            _ => Delivery::Sent,
        }
    }

    /// The mark by which the peer knows that this side ended a connection that stood.
    pub(crate) fn mark_over(&self) {
        self.area.word(GONE).store(1, Ordering::Release);
    }

    /// Ends the connection for the peer: the mark, and a word that makes it look.
    pub(crate) fn reset(&self) {
        self.mark_over();
        if let Some(theirs) = self.theirs() {
            tell(&theirs.peer.fifo, Note::Reset(theirs.id));
        }
    }

    /// Has the peer ended it? A forged word in the FIFO does not make it so.
    pub(crate) fn is_reset(&self) -> bool {
        self.theirs().is_some_and(|t| t.area.word(GONE).load(Ordering::Acquire) != 0)
    }

    /// A sign of life (CM-5).
    pub(crate) fn alive(&self) -> Delivery {
        self.theirs().map_or(Delivery::Sent, |t| tell(&t.peer.fifo, Note::Alive(t.id)))
    }
}
