//! Memory windows: the state of each window, and the binds and unbinds that wait for their turn in a connection's queue.
//!
//! A bind takes its key when it is posted, and activates it when it is executed. By then the old key is revoked, and
//! copies by it have ended. Binds of one window may be queued on several connections: a later one that is executed
//! first makes an earlier one void. The window keeps its registrations alive, and releases them without its lock.
//! Execution never blocks. Only closing a window, or flushing its bind, waits for copies, as deregistration does.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dapl::error::Result;
use dapl::provider::{Access, KeptObject, Region, Status};

use super::rights::Domain;

/// Limit of the wait for copies by a peer. The peer may be stopped in the middle of a copy, or may be malicious.
const PEER_COPY_TIMEOUT: Duration = Duration::from_secs(1);

/// The provider's table of keys, as a window uses it.
pub trait WindowKeys: Send + Sync {
    /// Reserves a key that grants nothing yet.
    fn reserve(&self) -> Result<u32>;
    /// Makes a reserved key grant access to a region, for peers only.
    fn open(&self, key: u32, region: Region, access: Access, domain: Domain);
    /// Revokes the key. Copies that have started may go on.
    fn revoke(&self, key: u32);
    /// Whether a copy with this key is in progress in this process.
    fn is_in_use(&self, key: u32) -> bool;
    /// Whether a peer announces a copy with this key.
    fn is_in_use_by_peer(&self, key: u32) -> bool;
    /// Revokes the key, waits for the copies, and releases it.
    fn remove(&self, key: u32);
    /// Releases a key that grants nothing.
    fn release_key(&self, key: u32);
    /// Whether the region is within the registration `source` of this domain, and, if `write`, whether this process may
    /// write it.
    fn covers(&self, source: u32, pd: u32, region: Region, write: bool) -> bool;
}

/// Number of a queue pair for windows that serve its peer alone. It has none until such a window is bound on it.
#[derive(Debug, Default)]
pub struct QpDomain(AtomicU32);

impl QpDomain {
    /// The number; 0 without one.
    #[inline]
    pub fn number(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// The number, a new one if there was none.
    fn assign(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if self.number() == 0 {
            // Numbers repeat after 2^32 queue pairs with such windows.
            let new = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
            let _ = self.0.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.number()
    }
}

/// Which peers reach the memory of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Those of all queue pairs of its protection domain.
    Pd,
    /// That of the queue pair on which it was bound.
    Qp,
}

/// The windows of an adapter by the keys of their binds in effect, for peers that invalidate a key.
pub struct WindowDirectory<K>(Mutex<HashMap<u32, Weak<WindowCore<K>>>>);

impl<K> Default for WindowDirectory<K> {
    fn default() -> Self {
        WindowDirectory(Mutex::default())
    }
}

impl<K> std::fmt::Debug for WindowDirectory<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WindowDirectory").finish_non_exhaustive()
    }
}

impl<K: WindowKeys> WindowDirectory<K> {
    /// Unbinds the window with this key, for a peer connected to this protection domain and queue pair. Returns false if copies by the key are
    /// in progress: try again.
    ///
    /// Errors: `RemoteAccess` if no bind in effect has the key, or its window serves another domain or queue pair.
    pub fn invalidate(&self, key: u32, pd: u32, qp: &QpDomain) -> std::result::Result<bool, Status> {
        let window = self.0.lock().get(&key).and_then(Weak::upgrade);
        window.ok_or(Status::RemoteAccess)?.invalidate(key, pd, qp)
    }

    /// As `invalidate`, and waits for the copies, as deregistration does. A key of no bind in effect is ignored.
    pub fn invalidate_and_wait(&self, key: u32, pd: u32, qp: &QpDomain) {
        while self.invalidate(key, pd, qp) == Ok(false) {
            std::thread::yield_now();
        }
    }

    /// Whether a bind in effect has this key, of a window that serves this protection domain and queue pair.
    pub fn holds(&self, key: u32, pd: u32, qp: &QpDomain) -> bool {
        let window = self.0.lock().get(&key).and_then(Weak::upgrade);
        window.is_some_and(|window| window.state.lock().serves(key, qp) && window.pd == pd)
    }
}

/// The state of a memory window.
pub struct WindowCore<K> {
    keys: Arc<K>,
    directory: Arc<WindowDirectory<K>>,
    pd: u32,
    scope: Scope,
    state: Mutex<WindowState>,
}

#[derive(Default)]
struct WindowState {
    /// Binds and unbinds are numbered as they are posted: the last one posted, and the last one executed or flushed.
    posted: u64,
    executed: u64,
    /// The last one posted is a bind that was executed or is still queued.
    bound: bool,
    /// Binds that were not executed yet.
    waiting: VecDeque<(u64, BindGrant)>,
    active: Option<ActiveBind>,
    closed: bool,
}

struct BindGrant {
    key: u32,
    /// Key of the registration below the window.
    source: u32,
    region: Region,
    access: Access,
    _kept: KeptObject,
}

struct ActiveBind {
    grant: BindGrant,
    domain: Domain,
    /// When the key was revoked; copies by it may still be in progress.
    revoked: Option<Instant>,
}

/// Parameters of `WindowCore::post`: the key of the registration, and the other fields of the provider's `Bind`.
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
    /// Creates an unbound window.
    pub fn new(keys: Arc<K>, directory: Arc<WindowDirectory<K>>, pd: u32, scope: Scope) -> Self {
        WindowCore { keys, directory, pd, scope, state: Mutex::default() }
    }

    /// Whether the last one posted is a bind that was executed or is still queued.
    pub fn is_bound(&self) -> bool {
        self.state.lock().bound
    }

    /// Posts a bind, or an unbind. Returns its number and its key (0 for an unbind).
    pub fn post(&self, request: Option<BindRequest>) -> Result<(u64, u32)> {
        let mut state = self.state.lock();
        let mut key = 0;
        let number = state.posted + 1;
        state.bound = if let Some(BindRequest { source, region, access, kept }) = request {
            key = self.keys.reserve()?;
            state.waiting.push_back((number, BindGrant { key, source, region, access, _kept: kept }));
            true
        } else {
            false
        };
        state.posted = number;
        Ok((number, key))
    }

    /// Executes a bind or unbind on a connection of this protection domain and queue pair. Returns false if copies by the old
    /// key are in progress: try again.
    pub fn execute(self: &Arc<Self>, number: u64, pd: u32, qp: &QpDomain) -> std::result::Result<bool, Status> {
        let mut state = self.state.lock();
        if number <= state.executed || state.closed {
            let void = state.withdraw(number);
            drop(state);
            self.return_key(void);
            return Ok(true);
        }
        if let Some(active) = &mut state.active
            && !self.is_revoked(active)
        {
            return Ok(false);
        }
        let old = state.active.take();
        state.executed = number;
        let new = state.withdraw(number);
        let outcome = match new {
            Some(grant) if !self.is_valid(&grant, pd) => {
                state.bound &= state.posted != number;
                Err(grant)
            }
            Some(grant) => {
                let domain = match self.scope {
                    Scope::Pd => Domain::Pd(self.pd),
                    Scope::Qp => Domain::Qp(qp.assign()),
                };
                self.keys.open(grant.key, grant.region, grant.access, domain);
                self.directory.0.lock().insert(grant.key, Arc::downgrade(self));
                state.active = Some(ActiveBind { grant, domain, revoked: None });
                Ok(true)
            }
            None => Ok(true),
        };
        drop(state);
        self.return_key(old.map(|active| active.grant));
        outcome.map_err(|grant| {
            self.return_key(Some(grant));
            Status::BindFailed
        })
    }

    /// Flushes a bind or unbind, executed or not. Afterwards the window is not bound, except by a later bind.
    pub fn flush(&self, number: u64) {
        let mut state = self.state.lock();
        let waiting = state.withdraw(number);
        let old = if number >= state.executed { state.active.take() } else { None };
        state.executed = state.executed.max(number);
        state.bound &= state.posted != number;
        drop(state);
        self.return_key(waiting);
        self.revoke_and_wait(old);
    }

    /// Ends the bind in effect, if it has this key: see [`WindowDirectory::invalidate`].
    fn invalidate(&self, key: u32, pd: u32, qp: &QpDomain) -> std::result::Result<bool, Status> {
        let mut state = self.state.lock();
        let is_served = state.serves(key, qp) && self.pd == pd;
        match &mut state.active {
            Some(active) if is_served => {
                if !self.is_revoked(active) {
                    return Ok(false);
                }
            }
            _ => return Err(Status::RemoteAccess),
        }
        let old = state.active.take();
        state.bound &= state.posted != state.executed; // a later bind is still queued
        drop(state);
        self.return_key(old.map(|active| active.grant));
        Ok(true)
    }

    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.bound = false;
        let (waiting, active) = (std::mem::take(&mut state.waiting), state.active.take());
        drop(state);
        waiting.into_iter().for_each(|(_, grant)| self.return_key(Some(grant)));
        self.revoke_and_wait(active);
    }

    /// Revokes the key once, and returns whether all copies by it have ended.
    fn is_revoked(&self, active: &mut ActiveBind) -> bool {
        let key = active.grant.key;
        let revoked = *active.revoked.get_or_insert_with(|| {
            self.keys.revoke(key);
            Instant::now()
        });
        !self.keys.is_in_use(key) && (!self.keys.is_in_use_by_peer(key) || revoked.elapsed() > PEER_COPY_TIMEOUT)
    }

    /// Whether the bind is allowed. The layer above has checked it; this does not rely on it.
    fn is_valid(&self, grant: &BindGrant, pd: u32) -> bool {
        pd == self.pd && self.keys.covers(grant.source, pd, grant.region, grant.access.writes())
    }

    /// Ends the bind in effect, and waits for the copies.
    fn revoke_and_wait(&self, active: Option<ActiveBind>) {
        if let Some(ActiveBind { grant, .. }) = active {
            self.directory.0.lock().remove(&grant.key);
            self.keys.remove(grant.key);
        }
    }

    /// Returns a key that grants nothing, and releases the registration.
    fn return_key(&self, grant: Option<BindGrant>) {
        if let Some(grant) = grant {
            self.directory.0.lock().remove(&grant.key);
            self.keys.release_key(grant.key);
        }
    }
}

impl WindowState {
    /// Whether the bind in effect has this key, and serves this queue pair.
    fn serves(&self, key: u32, qp: &QpDomain) -> bool {
        self.active.as_ref().is_some_and(|active| {
            active.grant.key == key
                && match active.domain {
                    Domain::Pd(_) => true,
                    Domain::Qp(number) => number == qp.number(),
                }
        })
    }

    /// Removes a bind from those that wait.
    fn withdraw(&mut self, number: u64) -> Option<BindGrant> {
        let index = self.waiting.iter().position(|(waiting, _)| *waiting == number)?;
        self.waiting.remove(index).map(|(_, grant)| grant)
    }
}
