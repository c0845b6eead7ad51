//! Bindings of a memory window: the device windows and registrations that must be kept.
//!
//! Used by `memory` only. A binding is in effect until the next bind is complete. After a bind that fails or is
//! flushed, nothing is bound: since the device would keep the old binding, the device window is dropped together with
//! the last bind in flight that uses it. A device window that has used all its keys is dropped at the end of the
//! binding of its last key.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use dapl::provider::KeptObject;

/// Number of keys of a device window before the first one repeats: drivers count in the low eight bits.
const KEYS: u32 = 255;

/// The state of one memory window.
pub(crate) struct Binds<M> {
    /// The device window for the next bind; `None` after a bind that failed or was flushed.
    mw: Option<Arc<M>>,
    /// Number of keys that the device window has used.
    given: u32,
    last_key: u32,
    /// Number of the last posted bind or unbind, and of the last one known to be complete.
    posted: u64,
    over: u64,
    /// Whether the last posted one is a bind that can still take effect.
    bound: bool,
    flying: VecDeque<(u64, BoundObjects<M>)>,
    /// The bindings in effect. More than one only if binds over several connections have overtaken each other, so that
    /// the last is unknown.
    open: Vec<BoundObjects<M>>,
}

/// Objects of a bind: the device window, and the reference to the registration unless it is an unbind.
pub(crate) struct BoundObjects<M> {
    _mw: Arc<M>,
    _kept: Option<KeptObject>,
}

impl<M> std::fmt::Debug for Binds<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binds { posted, over, bound, .. } = self;
        let mut all = f.debug_struct("Binds");
        all.field("posted", posted).field("over", over).field("bound", bound).finish_non_exhaustive()
    }
}

impl<M> Binds<M> {
    /// Starts with a new device window, which has this key.
    pub(crate) fn new(key: u32, mw: M) -> Self {
        Binds {
            mw: Some(Arc::new(mw)),
            given: 0,
            last_key: key,
            posted: 0,
            over: 0,
            bound: false,
            flying: VecDeque::new(),
            open: Vec::new(),
        }
    }

    /// Whether the last bind was accepted, and has not been undone, failed or been flushed.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound
    }

    /// The device window for the next bind. `None`: a new one is needed.
    pub(crate) fn current(&self) -> Option<&Arc<M>> {
        self.mw.as_ref().filter(|_| self.given < KEYS)
    }

    /// Sets a new device window. The previous one stays bound until the next bind is complete.
    pub(crate) fn renew(&mut self, mw: M) -> Arc<M> {
        let mw = Arc::new(mw);
        (self.mw, self.given) = (Some(mw.clone()), 0);
        mw
    }

    /// Records a bind, or an unbind without `keep`, that the device has accepted. Returns its number.
    pub(crate) fn post(&mut self, mw: Arc<M>, key: u32, kept: Option<KeptObject>) -> u64 {
        self.given += 1;
        self.last_key = key;
        self.posted += 1;
        self.bound = kept.is_some();
        self.flying.push_back((self.posted, BoundObjects { _mw: mw, _kept: kept }));
        self.posted
    }

    /// Records the end of a bind; `is_done`: it took effect. Returns the objects to be dropped.
    #[must_use]
    pub(crate) fn complete(&mut self, number: u64, is_done: bool) -> Vec<BoundObjects<M>> {
        // A dropped window has no bindings.
        let Some(place) = self.flying.iter().position(|(flying, _)| *flying == number) else { return Vec::new() };
        let mine = self.flying.remove(place).map(|(_, open)| open);
        let is_late = number < self.over;
        self.over = self.over.max(number);
        match (is_done, is_late) {
            (true, true) => {
                self.open.extend(mine);
                Vec::new()
            }
            (true, false) => std::mem::replace(&mut self.open, mine.into_iter().collect()),
            (false, true) => mine.into_iter().collect(),
            (false, false) => {
                let mut old = self.nothing(number);
                old.extend(mine);
                old
            }
        }
    }

    /// Records a bind that is flushed without reaching the device. Returns an invalid key, and the objects to drop.
    #[must_use]
    pub(crate) fn lose(&mut self) -> (u32, Vec<BoundObjects<M>>) {
        self.posted += 1;
        self.over = self.posted;
        self.last_key = (self.last_key & !0xFF) | (self.last_key.wrapping_add(1) & 0xFF);
        (self.last_key, self.nothing(self.posted))
    }

    /// Closes the window while binds are in flight. Returns the objects to be dropped.
    #[must_use]
    pub(crate) fn close(&mut self) -> Vec<BoundObjects<M>> {
        self.bound = false;
        self.mw = None;
        self.open.extend(self.flying.drain(..).map(|(_, open)| open));
        std::mem::take(&mut self.open)
    }

    /// Removes the bindings, unless a later bind has replaced them.
    fn nothing(&mut self, number: u64) -> Vec<BoundObjects<M>> {
        self.bound &= number != self.posted;
        self.mw = None;
        std::mem::take(&mut self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    /// A memory window over counted fake device windows.
    struct Scene {
        binds: Binds<()>,
        windows: Vec<Weak<()>>,
        kept: Arc<()>,
        key: u32,
    }

    impl Scene {
        fn new() -> Self {
            let binds = Binds::new(0x1210, ());
            let windows = vec![Arc::downgrade(binds.current().unwrap())];
            Scene { binds, windows, kept: Arc::new(()), key: 0x1210 }
        }

        /// Posts a bind, or an unbind, as `Window::begin` does.
        fn post(&mut self, is_bind: bool) -> u64 {
            let mw = match self.binds.current() {
                Some(mw) => mw.clone(),
                None => {
                    let mw = self.binds.renew(());
                    self.windows.push(Arc::downgrade(&mw));
                    self.key = 0x100 * (self.windows.len() as u32 + 0x12);
                    mw
                }
            };
            self.key = (self.key & !0xFF) | ((self.key + 1) & 0xFF);
            let kept = is_bind.then(|| self.kept.clone() as KeptObject);
            self.binds.post(mw, self.key, kept)
        }

        fn complete(&mut self, number: u64, is_done: bool) {
            drop(self.binds.complete(number, is_done));
        }

        /// Number of registrations kept, and of device windows.
        fn counts(&self) -> (usize, usize) {
            let alive = self.windows.iter().filter(|window| window.strong_count() > 0).count();
            (Arc::strong_count(&self.kept) - 1, alive)
        }
    }

    #[test]
    fn binding_is_kept_until_the_next_completes() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let second = scene.post(true);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (true, (2, 1)));
        scene.complete(second, true);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (true, (1, 1)));
        let third = scene.post(false);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (false, (1, 1)), "unbound when it is complete");
        scene.complete(third, true);
        assert_eq!(scene.counts(), (0, 1));
    }

    #[test]
    fn failed_bind_unbinds_and_releases_once() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        for is_bind in [true, false] {
            let failing = scene.post(is_bind);
            scene.complete(failing, false);
            scene.complete(failing, false);
            assert_eq!((scene.binds.is_bound(), scene.counts()), (false, (0, 0)), "also the device's window is gone");
        }
        let next = scene.post(true);
        scene.complete(next, true);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (true, (1, 1)));
    }

    #[test]
    fn flushed_bind_leaves_nothing_bound() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let (key, old) = scene.binds.lose();
        drop(old);
        assert_eq!((key, scene.binds.is_bound(), scene.counts()), (0x1212, false, (0, 0)));
        assert_eq!(scene.binds.lose().0, 0x1213, "another key each time");
    }

    #[test]
    fn failed_bind_waits_for_earlier_binds() {
        let mut scene = Scene::new();
        let [first, second] = [scene.post(true), scene.post(true)];
        scene.complete(second, false);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (false, (1, 1)), "the device still has the first");
        scene.complete(first, true);
        assert_eq!(scene.counts(), (1, 1), "whether it was in time is unknown");
        let third = scene.post(false);
        scene.complete(third, true);
        assert_eq!(scene.counts(), (0, 1));
    }

    #[test]
    fn binds_that_overtake_each_other_keep_both_registrations() {
        let mut scene = Scene::new();
        let [first, second] = [scene.post(true), scene.post(true)];
        scene.complete(second, true);
        scene.complete(first, true);
        assert_eq!(scene.counts(), (2, 1));
        let third = scene.post(true);
        scene.complete(third, true);
        assert_eq!(scene.counts(), (1, 1));
        let [fourth, fifth] = [scene.post(true), scene.post(true)];
        scene.complete(fifth, true);
        scene.complete(fourth, false);
        assert_eq!((scene.binds.is_bound(), scene.counts()), (true, (1, 1)), "the later one stands");
    }

    #[test]
    fn no_key_comes_twice() {
        let mut scene = Scene::new();
        let mut keys = std::collections::HashSet::new();
        for count in 1..=1000 {
            let number = scene.post(true);
            assert!(keys.insert(scene.key), "{:#x}", scene.key);
            let windows = 1 + usize::from(count % KEYS == 1 && count > 1);
            assert_eq!(scene.counts().1, windows, "the one before stays until the bind is complete");
            scene.complete(number, true);
            assert_eq!(scene.counts(), (1, 1));
        }
    }

    #[test]
    fn a_window_that_closes_takes_all_along() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let second = scene.post(true);
        drop(scene.binds.close());
        assert_eq!((scene.binds.is_bound(), scene.counts()), (false, (0, 0)));
        scene.complete(second, true);
        assert_eq!(scene.counts(), (0, 0));
    }
}
