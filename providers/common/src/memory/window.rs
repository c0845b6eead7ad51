//! Memory windows: the bind in effect of each window, and its binds and unbinds that are queued on connections.
//!
//! A bind reserves its key when it is posted. Its execution revokes the window's old key, and activates the new key
//! after the copies with the old key have ended. Copies by peers delay this by at most a second. Binds of one window
//! may be queued on several connections. A bind that is executed after a later one of the same window has no effect.
//!
//! The window keeps the registrations of its binds alive, and releases them outside its lock. Execution of a bind or
//! unbind never blocks. The close of a window, the flush of its bind, and [`WindowDirectory::invalidate_and_wait`] wait
//! for copies.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dapl::error::Result;
use dapl::provider::{Access, Bind, KeptObject, MemoryRegion, MemoryWindow, Region, Status};

use super::regions::{RegionStore, Regions};
use super::rights::{AccessRight, Domain};

/// Time limit of the wait for copies by a peer, which may be stopped during a copy, or malicious.
const PEER_COPY_TIMEOUT: Duration = Duration::from_secs(1);

/// The number that identifies a queue pair in the keys of windows that only its peer may use ([`WindowScope::Qp`]). The
/// number is assigned when the first such window is bound.
#[derive(Debug, Default)]
pub struct QpDomain(AtomicU32);

impl QpDomain {
    /// Returns the number, or 0 if none was assigned.
    #[inline]
    pub fn number(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the number, and assigns one if there is none.
    fn assign(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if self.number() == 0 {
            // A number is reused after 2^32 queue pairs on which windows of `WindowScope::Qp` were bound.
            let new = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
            let _ = self.0.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.number()
    }
}

/// Which peers may access the memory of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowScope {
    /// The peers of all queue pairs of the window's protection domain.
    Pd,
    /// Only the peer of the queue pair on which the window was bound.
    Qp,
}

/// The bound windows of an adapter, by the key of the bind in effect. Used when a peer invalidates a key.
pub struct WindowDirectory<S>(Mutex<HashMap<u32, Weak<WindowCore<S>>>>);

impl<S> Default for WindowDirectory<S> {
    fn default() -> Self {
        WindowDirectory(Mutex::default())
    }
}

impl<S: RegionStore> WindowDirectory<S> {
    /// Unbinds the window with this key, on behalf of the peer of the queue pair with this `pd` and `qp`. Returns false
    /// if copies with the key are in progress. The caller then tries again.
    ///
    /// Errors: `RemoteAccess` if no bind in effect has the key, or this peer may not use the window.
    pub fn invalidate(&self, key: u32, pd: u32, qp: &QpDomain) -> std::result::Result<bool, Status> {
        let window = self.0.lock().get(&key).and_then(Weak::upgrade);
        window.ok_or(Status::RemoteAccess)?.invalidate(key, pd, qp)
    }

    /// Same as `invalidate`, but waits for copies in progress, and ignores errors.
    pub fn invalidate_and_wait(&self, key: u32, pd: u32, qp: &QpDomain) {
        while self.invalidate(key, pd, qp) == Ok(false) {
            std::thread::yield_now();
        }
    }

    /// Whether a bind in effect has this key and the peer of this queue pair may use it.
    pub fn holds(&self, key: u32, pd: u32, qp: &QpDomain) -> bool {
        let window = self.0.lock().get(&key).and_then(Weak::upgrade);
        window.is_some_and(|window| window.state.lock().serves(key, qp) && window.pd == pd)
    }
}

/// A memory window, shared by the provider's `Mw` and by queued binds.
pub struct WindowCore<S> {
    regions: Arc<Regions<S>>,
    directory: Arc<WindowDirectory<S>>,
    pd: u32,
    scope: WindowScope,
    state: Mutex<WindowState>,
}

#[derive(Default)]
struct WindowState {
    /// Number of the last bind or unbind that was posted. Binds and unbinds are numbered in the order of their posts.
    posted: u64,
    /// Highest number of a bind or unbind that was executed or flushed.
    executed: u64,
    /// Whether the last posted operation is a bind that is in effect or still queued.
    bound: bool,
    /// Binds that were not executed yet, with their numbers.
    waiting: VecDeque<(u64, BindGrant)>,
    /// The bind in effect.
    active: Option<ActiveBind>,
    closed: bool,
}

struct BindGrant {
    key: u32,
    /// Key of the registration that contains the memory of the window.
    source: u32,
    region: Region,
    access: Access,
    _kept: KeptObject,
}

struct ActiveBind {
    grant: BindGrant,
    domain: Domain,
    /// Time at which the key was revoked. Copies with the key may still be in progress.
    revoked: Option<Instant>,
}

impl<S: RegionStore> WindowCore<S> {
    /// Creates an unbound window.
    pub fn new(regions: Arc<Regions<S>>, directory: Arc<WindowDirectory<S>>, pd: u32, scope: WindowScope) -> Self {
        WindowCore { regions, directory, pd, scope, state: Mutex::default() }
    }

    /// Whether the last posted operation is a bind that is in effect or still queued.
    pub fn is_bound(&self) -> bool {
        self.state.lock().bound
    }

    /// Posts a bind, or an unbind if `bind` is `None`. Returns the number of the operation, and its key (0 for an
    /// unbind).
    pub fn post(&self, bind: Option<Bind<'_, impl MemoryRegion>>) -> Result<(u64, u32)> {
        let mut state = self.state.lock();
        let mut key = 0;
        let number = state.posted + 1;
        state.bound = if let Some(Bind { mr, region, access, kept }) = bind {
            key = self.regions.reserve()?;
            let grant = BindGrant { key, source: mr.local_key(), region, access, _kept: kept };
            state.waiting.push_back((number, grant));
            true
        } else {
            false
        };
        state.posted = number;
        Ok((number, key))
    }

    /// Executes the bind or unbind with this number, which was posted on the queue pair with this `pd` and `qp`.
    /// Returns false if copies with the old key are in progress. The caller then tries again.
    ///
    /// Errors: `BindFailed` if the registration does not cover the region, or the window belongs to another protection
    /// domain than `pd`.
    pub fn execute(self: &Arc<Self>, number: u64, pd: u32, qp: &QpDomain) -> std::result::Result<bool, Status> {
        let mut state = self.state.lock();
        if number <= state.executed || state.closed {
            let superseded = state.withdraw(number);
            drop(state);
            self.release_grant(superseded);
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
                    WindowScope::Pd => Domain::Pd(self.pd),
                    WindowScope::Qp => Domain::Qp(qp.assign()),
                };
                self.regions.activate(grant.key, grant.region, grant.access, domain);
                self.directory.0.lock().insert(grant.key, Arc::downgrade(self));
                state.active = Some(ActiveBind { grant, domain, revoked: None });
                Ok(true)
            }
            None => Ok(true),
        };
        drop(state);
        self.release_grant(old.map(|active| active.grant));
        outcome.map_err(|grant| {
            self.release_grant(Some(grant));
            Status::BindFailed
        })
    }

    /// Ends a bind or unbind that is flushed at the end of its connection, whether it was executed or not. Also ends
    /// the bind in effect if it was posted earlier. Afterwards the window is bound only if a later bind was posted.
    pub fn flush(&self, number: u64) {
        let mut state = self.state.lock();
        let waiting = state.withdraw(number);
        let old = if number >= state.executed { state.active.take() } else { None };
        state.executed = state.executed.max(number);
        state.bound &= state.posted != number;
        drop(state);
        self.release_grant(waiting);
        self.revoke_and_wait(old);
    }

    /// Ends the bind in effect if it has this key, and the peer of this queue pair may use it. Returns false if copies
    /// with the key are in progress.
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
        state.bound &= state.posted != state.executed; // stays bound if a later bind is queued
        drop(state);
        self.release_grant(old.map(|active| active.grant));
        Ok(true)
    }

    /// Ends the bind in effect and all queued binds. Waits for copies in progress.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.bound = false;
        let (waiting, active) = (std::mem::take(&mut state.waiting), state.active.take());
        drop(state);
        waiting.into_iter().for_each(|(_, grant)| self.release_grant(Some(grant)));
        self.revoke_and_wait(active);
    }

    /// Revokes the key at the first call. Returns whether all copies with the key have ended, or the wait for the
    /// peer's copies has timed out.
    fn is_revoked(&self, active: &mut ActiveBind) -> bool {
        let key = active.grant.key;
        let revoked = *active.revoked.get_or_insert_with(|| {
            self.regions.revoke(key);
            Instant::now()
        });
        !self.regions.is_in_use(key)
            && (!self.regions.store.is_in_use_by_peer(key) || revoked.elapsed() > PEER_COPY_TIMEOUT)
    }

    /// Whether the bind is allowed. The object layer has also checked this, but a mistake would give peers access to
    /// other memory.
    fn is_valid(&self, grant: &BindGrant, pd: u32) -> bool {
        // The key `source` must belong to a registration, which a local right shows: windows do not grant it.
        let right = AccessRight::local(grant.access.writes());
        pd == self.pd && self.regions.allows(grant.source, pd, grant.region, right)
    }

    /// Revokes the key of a bind, waits for copies with it, and releases the registration.
    fn revoke_and_wait(&self, active: Option<ActiveBind>) {
        if let Some(ActiveBind { grant, .. }) = active {
            self.directory.0.lock().remove(&grant.key);
            self.regions.remove(grant.key);
        }
    }

    /// Releases the key of a bind, which grants no access, and the registration.
    fn release_grant(&self, grant: Option<BindGrant>) {
        if let Some(grant) = grant {
            self.directory.0.lock().remove(&grant.key);
            self.regions.release_key(grant.key);
        }
    }
}

/// A window of a provider. Dropping it revokes all of its keys.
pub struct Mw<S: RegionStore>(pub Arc<WindowCore<S>>);

impl<S: RegionStore> Mw<S> {
    /// Creates an unbound window.
    pub fn new(regions: &Arc<Regions<S>>, windows: &Arc<WindowDirectory<S>>, pd: u32, scope: WindowScope) -> Self {
        Mw(Arc::new(WindowCore::new(regions.clone(), windows.clone(), pd, scope)))
    }
}

impl<S: RegionStore + 'static> MemoryWindow for Mw<S> {
    fn is_bound(&self) -> bool {
        self.0.is_bound()
    }
}

impl<S: RegionStore> Drop for Mw<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl WindowState {
    /// Whether the bind in effect has this key, and the peer of this queue pair may use it.
    fn serves(&self, key: u32, qp: &QpDomain) -> bool {
        self.active.as_ref().is_some_and(|active| {
            active.grant.key == key
                && match active.domain {
                    Domain::Pd(_) => true,
                    Domain::Qp(number) => number == qp.number(),
                }
        })
    }

    /// Removes and returns a bind that was not executed yet.
    fn withdraw(&mut self, number: u64) -> Option<BindGrant> {
        let index = self.waiting.iter().position(|(waiting, _)| *waiting == number)?;
        self.waiting.remove(index).map(|(_, grant)| grant)
    }
}
