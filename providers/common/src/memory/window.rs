//! Memory windows of a provider that is made in software: what each is bound to, and the binds and unbinds that wait for their
//! turn in a connection's queue.
//!
//! A bind takes its key when it is posted, and opens it when its turn comes; then the old key is dead already, and copies
//! under way by it are over. Binds of one window may wait in several connections: a later one that had its turn first makes
//! an earlier one void. Whatever keeps a registration lies here, and is let go without the window's lock. Nothing here
//! blocks a turn; only the end of a window, or of a bind that will have no turn, waits as a deregistration does.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dapl::error::Result;
use dapl::provider::{Access, KeptObject, Region, Status};

/// A peer that is stopped in the middle of a copy, or lies about one, holds a turn up no longer.
const PEER_COPY_TIMEOUT: Duration = Duration::from_secs(1);

/// The provider's table of keys, as a window uses it.
pub trait WindowKeys: Send + Sync {
    /// A key that opens nothing yet.
    fn reserve(&self) -> Result<u32>;
    /// Makes a reserved key open a region to peers, not to local segments.
    fn open(&self, key: u32, region: Region, access: Access, pd: u32);
    /// From now on the key opens nothing; copies may still be under way.
    fn revoke(&self, key: u32);
    /// Is a copy with this key under way in this process?
    fn is_in_use(&self, key: u32) -> bool;
    /// Does a peer say that it is copying with this key?
    fn is_in_use_by_peer(&self, key: u32) -> bool;
    /// Kills the key, waits for the copies, and gives it back.
    fn remove(&self, key: u32);
    /// A key that opens nothing is of no more use.
    fn release_key(&self, key: u32);
    /// Is the region within the registration `source` of this domain, and may this process write it, if `write`?
    fn covers(&self, source: u32, pd: u32, region: Region, write: bool) -> bool;
}

/// A window.
pub struct WindowCore<K> {
    keys: Arc<K>,
    pd: u32,
    state: Mutex<WindowState>,
}

#[derive(Default)]
struct WindowState {
    /// Moves are numbered as they are posted; the last that was, and the last that had its turn or lost it.
    posted: u64,
    executed: u64,
    /// The last that was posted is a bind that can still come true.
    bound: bool,
    /// Binds that have not had their turn.
    waiting: VecDeque<(u64, BindGrant)>,
    open: Option<ActiveBind>,
    closed: bool,
}

/// What a bind asks for.
struct BindGrant {
    key: u32,
    /// The registration below it.
    source: u32,
    region: Region,
    access: Access,
    _kept: KeptObject,
}

/// What is open now.
struct ActiveBind {
    grant: BindGrant,
    /// The key is dead, since then; copies by it may be under way.
    killed: Option<Instant>,
}

/// A bind as `WindowCore::post` takes it: the key of the registration, and the rest of the provider's `Bind`.
#[allow(missing_docs, reason = "the names are those of `Bind`")]
pub struct BindRequest {
    /// Key of the registration.
    pub source: u32,
    pub region: Region,
    pub access: Access,
    pub kept: KeptObject,
}

impl<K> std::fmt::Debug for WindowCore<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WindowCore").field("pd", &self.pd).finish_non_exhaustive()
    }
}

impl<K: WindowKeys> WindowCore<K> {
    /// One that is not bound.
    pub fn new(keys: Arc<K>, pd: u32) -> Self {
        WindowCore { keys, pd, state: Mutex::default() }
    }

    /// A bind was accepted, and can still come true or has.
    pub fn is_bound(&self) -> bool {
        self.state.lock().bound
    }

    /// Takes a bind or unbind in: its number, and its key (0 for an unbind).
    pub fn post(&self, wanted: Option<BindRequest>) -> Result<(u64, u32)> {
        let mut state = self.state.lock();
        let mut key = 0;
        let number = state.posted + 1;
        state.bound = if let Some(BindRequest { source, region, access, kept }) = wanted {
            key = self.keys.reserve()?;
            state.waiting.push_back((number, BindGrant { key, source, region, access, _kept: kept }));
            true
        } else {
            false
        };
        state.posted = number;
        Ok((number, key))
    }

    /// The turn of a move, in a connection of this protection domain. False: copies by the old key are under way, look again.
    pub fn execute(&self, number: u64, pd: u32) -> std::result::Result<bool, Status> {
        let mut state = self.state.lock();
        if number <= state.executed || state.closed {
            let void = state.withdraw(number);
            drop(state);
            self.return_key(void);
            return Ok(true);
        }
        if let Some(open) = &mut state.open
            && !self.is_revoked(open)
        {
            return Ok(false);
        }
        let old = state.open.take();
        state.executed = number;
        let new = state.withdraw(number);
        let outcome = match new {
            Some(grant) if !self.is_valid(&grant, pd) => {
                state.bound &= state.posted != number;
                Err(grant)
            }
            Some(grant) => {
                self.keys.open(grant.key, grant.region, grant.access, self.pd);
                state.open = Some(ActiveBind { grant, killed: None });
                Ok(true)
            }
            None => Ok(true),
        };
        drop(state);
        self.return_key(old.map(|open| open.grant));
        outcome.map_err(|grant| {
            self.return_key(Some(grant));
            Status::BindFailed
        })
    }

    /// A move was flushed, whether it had had its turn or not: nothing is bound, unless by a later one.
    pub fn flush(&self, number: u64) {
        let mut state = self.state.lock();
        let mine = state.withdraw(number);
        let old = if number >= state.executed { state.open.take() } else { None };
        state.executed = state.executed.max(number);
        state.bound &= state.posted != number;
        drop(state);
        self.return_key(mine);
        self.revoke_and_wait(old);
    }

    /// The window is no more, at once.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.bound = false;
        let (waiting, open) = (std::mem::take(&mut state.waiting), state.open.take());
        drop(state);
        waiting.into_iter().for_each(|(_, grant)| self.return_key(Some(grant)));
        self.revoke_and_wait(open);
    }

    /// Kills the key, once, and says whether all copies by it are over.
    fn is_revoked(&self, open: &mut ActiveBind) -> bool {
        let key = open.grant.key;
        let killed = *open.killed.get_or_insert_with(|| {
            self.keys.revoke(key);
            Instant::now()
        });
        !self.keys.is_in_use(key) && (!self.keys.is_in_use_by_peer(key) || killed.elapsed() > PEER_COPY_TIMEOUT)
    }

    /// May this be bound? The layer above has seen to it; but nobody has to believe that.
    fn is_valid(&self, grant: &BindGrant, pd: u32) -> bool {
        pd == self.pd && self.keys.covers(grant.source, pd, grant.region, grant.access.remote_write)
    }

    /// Ends what is open, and waits for the copies.
    fn revoke_and_wait(&self, open: Option<ActiveBind>) {
        if let Some(ActiveBind { grant, .. }) = open {
            self.keys.remove(grant.key);
        }
    }

    /// A key that opens nothing goes back, and the registration is let go.
    fn return_key(&self, grant: Option<BindGrant>) {
        if let Some(grant) = grant {
            self.keys.release_key(grant.key);
        }
    }
}

impl WindowState {
    /// Takes a bind out of those that wait.
    fn withdraw(&mut self, number: u64) -> Option<BindGrant> {
        let place = self.waiting.iter().position(|(waits, _)| *waits == number)?;
        self.waiting.remove(place).map(|(_, grant)| grant)
    }
}
