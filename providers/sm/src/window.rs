//! Memory windows: what each is bound to, and the binds and unbinds that wait for their turn in a sending half.
//!
//! A bind takes its key when it is posted, and opens it when its turn comes; then the old key is dead already, and copies
//! under way by it are over. Binds of one window may wait in several connections: a later one that had its turn first makes
//! an earlier one void. Whatever keeps a registration lies here, and is let go without the window's lock. Nothing here
//! blocks a turn; only the end of a window, or of a bind that will have no turn, waits as a deregistration does.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dapl::error::Result;
use dapl::provider::{Access, Keep, Region, Status};
use parking_lot::Mutex;

use crate::book::Book;
use crate::regions::{Regions, Wish};

/// A peer that is stopped in the middle of a copy, or lies about one, holds a turn up no longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A window.
pub(crate) struct Window {
    regions: Arc<Regions>,
    book: Arc<Book>,
    pd: u32,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Moves are numbered as they are posted; the last that was, and the last that had its turn or lost it.
    posted: u64,
    turned: u64,
    /// The last that was posted is a bind that can still come true.
    bound: bool,
    /// Binds that have not had their turn.
    waiting: VecDeque<(u64, Grant)>,
    open: Option<Open>,
    closed: bool,
}

/// What a bind asks for.
struct Grant {
    key: u32,
    /// The registration below it.
    source: u32,
    region: Region,
    access: Access,
    _keep: Keep,
}

/// What is open now.
struct Open {
    grant: Grant,
    /// The key is dead, since then; copies by it may be under way.
    killed: Option<Instant>,
}

/// A bind as `Window::accept` takes it: the key of the registration, and the rest of the provider's `Bind`.
pub(crate) struct Wanted {
    pub(crate) source: u32,
    pub(crate) region: Region,
    pub(crate) access: Access,
    pub(crate) keep: Keep,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("pd", &self.pd).finish_non_exhaustive()
    }
}

impl Window {
    pub(crate) fn new(regions: Arc<Regions>, book: Arc<Book>, pd: u32) -> Self {
        Window { regions, book, pd, inner: Mutex::default() }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.inner.lock().bound
    }

    /// Takes a bind or unbind in: its number, and its key (0 for an unbind).
    pub(crate) fn accept(&self, wanted: Option<Wanted>) -> Result<(u64, u32)> {
        let mut inner = self.inner.lock();
        let mut key = 0;
        let number = inner.posted + 1;
        inner.bound = if let Some(Wanted { source, region, access, keep }) = wanted {
            key = self.regions.reserve()?;
            inner.waiting.push_back((number, Grant { key, source, region, access, _keep: keep }));
            true
        } else {
            false
        };
        inner.posted = number;
        Ok((number, key))
    }

    /// The turn of a move, in a connection of this protection domain. False: copies by the old key are under way, look again.
    pub(crate) fn turn(&self, number: u64, pd: u32) -> std::result::Result<bool, Status> {
        let mut inner = self.inner.lock();
        if number <= inner.turned || inner.closed {
            let void = inner.withdraw(number);
            drop(inner);
            self.forget(void);
            return Ok(true);
        }
        if let Some(open) = &mut inner.open
            && !self.is_over(open)
        {
            return Ok(false);
        }
        let old = inner.open.take();
        inner.turned = number;
        let new = inner.withdraw(number);
        let outcome = match new {
            Some(grant) if !self.is_sound(&grant, pd) => {
                inner.bound &= inner.posted != number;
                Err(grant)
            }
            Some(grant) => {
                self.regions.open(grant.key, grant.region, grant.access, self.pd);
                inner.open = Some(Open { grant, killed: None });
                Ok(true)
            }
            None => Ok(true),
        };
        drop(inner);
        self.forget(old.map(|open| open.grant));
        outcome.map_err(|grant| {
            self.forget(Some(grant));
            Status::BindFailed
        })
    }

    /// A move was flushed, whether it had had its turn or not: nothing is bound, unless by a later one.
    pub(crate) fn give_up(&self, number: u64) {
        let mut inner = self.inner.lock();
        let mine = inner.withdraw(number);
        let old = if number >= inner.turned { inner.open.take() } else { None };
        inner.turned = inner.turned.max(number);
        inner.bound &= inner.posted != number;
        drop(inner);
        self.forget(mine);
        self.end(old);
    }

    /// The window is no more, at once.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.bound = false;
        let (waiting, open) = (std::mem::take(&mut inner.waiting), inner.open.take());
        drop(inner);
        waiting.into_iter().for_each(|(_, grant)| self.forget(Some(grant)));
        self.end(open);
    }

    /// Kills the key, once, and says whether all copies by it are over.
    fn is_over(&self, open: &mut Open) -> bool {
        let key = open.grant.key;
        let killed = *open.killed.get_or_insert_with(|| {
            self.regions.kill(key);
            Instant::now()
        });
        !self.regions.is_held(key) && (!self.is_announced(key) || killed.elapsed() > PATIENCE)
    }

    fn is_announced(&self, key: u32) -> bool {
        self.book.links().iter().any(|link| link.peer_copies_with(key))
    }

    /// May this be bound? The layer above has seen to it; but nobody has to believe that.
    fn is_sound(&self, grant: &Grant, pd: u32) -> bool {
        let wish = if grant.access.remote_write { Wish::LocalWrite } else { Wish::LocalRead };
        pd == self.pd && self.regions.allows(grant.source, pd, grant.region, wish)
    }

    /// Ends what is open, and waits for the copies.
    fn end(&self, open: Option<Open>) {
        let Some(Open { grant, .. }) = open else { return };
        let links = std::cell::OnceCell::new();
        self.regions.remove(grant.key, |key| {
            links.get_or_init(|| self.book.links()).iter().any(|link| link.peer_copies_with(key))
        });
    }

    /// A key that opens nothing goes back, and the registration is let go.
    fn forget(&self, grant: Option<Grant>) {
        if let Some(grant) = grant {
            self.regions.give_back(grant.key);
        }
    }
}

impl Inner {
    /// Takes a bind out of those that wait.
    fn withdraw(&mut self, number: u64) -> Option<Grant> {
        let place = self.waiting.iter().position(|(waits, _)| *waits == number)?;
        self.waiting.remove(place).map(|(_, grant)| grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: u32 = 3;
    const READ: Access = Access { local_write: false, remote_read: true, remote_write: false };

    /// Memory that is there.
    fn whole() -> Region {
        static MEMORY: [u8; 104] = [0; 104];
        Region { address: MEMORY.as_ptr() as u64, length: 100 }
    }

    /// A window, its table, and the key of a registration.
    fn window() -> (Window, Arc<Regions>, u32) {
        let regions = Arc::new(Regions::new(1).unwrap());
        let source = regions.add(whole(), Access::default(), PD).unwrap();
        (Window::new(regions.clone(), Arc::default(), PD), regions, source)
    }

    fn wanted(source: u32, keep: &Arc<()>) -> Option<Wanted> {
        Some(Wanted { source, region: whole(), access: READ, keep: keep.clone() })
    }

    fn keeps(keep: &Arc<()>) -> usize {
        Arc::strong_count(keep) - 1
    }

    #[test]
    fn a_key_opens_at_its_turn_and_dies_at_the_next() {
        let (window, regions, source) = window();
        let keep = Arc::new(());
        let reads = |key| regions.allows(key, PD, whole(), Wish::RemoteRead);
        let (first, one) = window.accept(wanted(source, &keep)).unwrap();
        assert!(window.is_bound() && !reads(one) && keeps(&keep) == 1);
        assert_eq!(window.turn(first, PD), Ok(true));
        let (second, two) = window.accept(wanted(source, &keep)).unwrap();
        assert!(reads(one) && !reads(two) && keeps(&keep) == 2);
        let hold = regions.hold(one, PD, whole().address, 1, Wish::RemoteRead).unwrap();
        assert_eq!(window.turn(second, PD), Ok(false), "a copy is under way");
        assert!(!reads(one) && !reads(two) && keeps(&keep) == 2);
        drop(hold);
        assert_eq!(window.turn(second, PD), Ok(true));
        assert!(!reads(one) && reads(two) && keeps(&keep) == 1);
        let (third, none) = window.accept(None).unwrap();
        assert!(!window.is_bound() && none == 0 && reads(two), "until it has its turn");
        assert_eq!(window.turn(third, PD), Ok(true));
        assert!(!reads(two) && keeps(&keep) == 0);
    }

    #[test]
    fn what_is_flushed_leaves_nothing_bound_and_lets_go_once() {
        let (window, regions, source) = window();
        let keep = Arc::new(());
        let (first, one) = window.accept(wanted(source, &keep)).unwrap();
        window.turn(first, PD).unwrap();
        let (second, _) = window.accept(wanted(source, &keep)).unwrap();
        window.give_up(second);
        assert!(!window.is_bound() && keeps(&keep) == 0);
        assert!(!regions.allows(one, PD, whole(), Wish::RemoteRead));
        window.give_up(second);

        let (third, three) = window.accept(wanted(source, &keep)).unwrap();
        window.turn(third, PD).unwrap();
        window.give_up(third);
        assert!(!window.is_bound() && keeps(&keep) == 0, "after its turn too");
        assert!(!regions.allows(three, PD, whole(), Wish::RemoteRead));
    }

    #[test]
    fn a_later_move_makes_an_earlier_one_void() {
        let (window, regions, source) = window();
        let keep = Arc::new(());
        let (first, one) = window.accept(wanted(source, &keep)).unwrap();
        let (second, two) = window.accept(wanted(source, &keep)).unwrap();
        window.turn(second, PD).unwrap();
        assert_eq!((window.turn(first, PD), keeps(&keep)), (Ok(true), 1));
        window.give_up(first);
        assert!(window.is_bound() && regions.allows(two, PD, whole(), Wish::RemoteRead));
        assert!(!regions.allows(one, PD, whole(), Wish::RemoteRead));
    }

    #[test]
    fn a_window_that_closes_takes_all_along() {
        let (window, regions, source) = window();
        let keep = Arc::new(());
        let (first, one) = window.accept(wanted(source, &keep)).unwrap();
        window.turn(first, PD).unwrap();
        let (second, two) = window.accept(wanted(source, &keep)).unwrap();
        window.close();
        assert_eq!((keeps(&keep), window.turn(second, PD)), (0, Ok(true)));
        for key in [one, two] {
            assert!(!regions.allows(key, PD, whole(), Wish::RemoteRead));
        }
    }

    #[test]
    fn what_cannot_be_granted_fails_at_its_turn() {
        let (window, regions, source) = window();
        let keep = Arc::new(());
        let (first, one) = window.accept(wanted(source, &keep)).unwrap();
        window.turn(first, PD).unwrap();
        let write = Access { remote_write: true, ..READ };
        let beyond = Region { length: 101, ..whole() };
        let cases = [
            ("a stale registration", source ^ 1, whole(), READ, PD),
            ("outside", source, beyond, READ, PD),
            ("no right to write", source, whole(), write, PD),
            ("another domain", source, whole(), READ, PD + 1),
            ("a window", one, whole(), READ, PD),
        ];
        for (what, source, region, access, pd) in cases {
            let wanted = Wanted { source, region, access, keep: keep.clone() };
            let (number, key) = window.accept(Some(wanted)).unwrap();
            assert_eq!(window.turn(number, pd), Err(Status::BindFailed), "{what}");
            assert!(!window.is_bound() && keeps(&keep) == 0, "{what}");
            assert!(!regions.allows(key, PD, region, Wish::RemoteRead));
        }
    }
}
