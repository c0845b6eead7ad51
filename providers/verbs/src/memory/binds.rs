//! The bindings of a memory window: which device windows and registrations must be kept alive.
//!
//! A binding is in effect until the next bind is complete. After a bind that fails or is flushed, the window is
//! unbound. The device would keep the old binding in this case, so the device window is replaced. The old device window
//! is dropped when no bind in flight uses it. A device window that has used all its keys is replaced too, and dropped
//! when the binding of its last key ends.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use dapl::provider::KeptObject;

/// Number of keys of a device window before the first one repeats: drivers change only the low eight bits.
const KEYS: u32 = 255;

/// The state of one memory window.
pub(crate) struct WindowBinds<M> {
    /// The device window for the next bind; `None` after a bind that failed or was flushed.
    mw: Option<Arc<M>>,
    /// Number of keys that `mw` has used.
    keys_used: u32,
    last_key: u32,
    /// Number of the last posted bind or unbind. They are numbered in the order of their posts.
    last_posted: u64,
    /// Highest number of a complete or flushed bind or unbind.
    last_completed: u64,
    /// Whether the last post was a bind, and it has not failed or been flushed.
    pub(crate) is_bound: bool,
    /// Binds and unbinds in flight, with their numbers.
    in_flight: VecDeque<(u64, BoundObjects<M>)>,
    /// The bindings that may be in effect. More than one only if binds on several connections have completed out of
    /// order: then it is not known which one the device has executed last.
    in_effect: Vec<BoundObjects<M>>,
}

/// The objects that a bind uses: the device window, and the registration (`None` for an unbind).
pub(crate) struct BoundObjects<M> {
    _mw: Arc<M>,
    _kept: Option<KeptObject>,
}

impl<M> WindowBinds<M> {
    /// Creates an unbound window with a new device window, which has this key.
    pub(crate) fn new(key: u32, mw: M) -> Self {
        WindowBinds {
            mw: Some(Arc::new(mw)),
            keys_used: 0,
            last_key: key,
            last_posted: 0,
            last_completed: 0,
            is_bound: false,
            in_flight: VecDeque::new(),
            in_effect: Vec::new(),
        }
    }

    /// Returns the device window for the next bind. `None`: a new one is needed.
    pub(crate) fn current(&self) -> Option<&Arc<M>> {
        self.mw.as_ref().filter(|_| self.keys_used < KEYS)
    }

    /// Sets a new device window for later binds. The binding of the previous one stays in effect until the next bind is
    /// complete.
    pub(crate) fn set_window(&mut self, mw: M) -> Arc<M> {
        let mw = Arc::new(mw);
        (self.mw, self.keys_used) = (Some(mw.clone()), 0);
        mw
    }

    /// Records a bind, or an unbind if `kept` is `None`, that was posted to the device. Returns its number.
    pub(crate) fn record_posted(&mut self, mw: Arc<M>, key: u32, kept: Option<KeptObject>) -> u64 {
        self.keys_used += 1;
        self.last_key = key;
        self.last_posted += 1;
        self.is_bound = kept.is_some();
        self.in_flight.push_back((self.last_posted, BoundObjects { _mw: mw, _kept: kept }));
        self.last_posted
    }

    /// Records that a bind or unbind is complete. `is_done`: it has taken effect. Returns objects to be dropped without
    /// the window's lock.
    #[must_use]
    pub(crate) fn complete(&mut self, number: u64, is_done: bool) -> Vec<BoundObjects<M>> {
        // `close` has removed all binds in flight of a dropped window.
        let Some(index) = self.in_flight.iter().position(|(other, _)| *other == number) else { return Vec::new() };
        let objects = self.in_flight.remove(index).map(|(_, objects)| objects);
        let is_late = number < self.last_completed;
        self.last_completed = self.last_completed.max(number);
        match (is_done, is_late) {
            (true, true) => {
                self.in_effect.extend(objects);
                Vec::new()
            }
            (true, false) => std::mem::replace(&mut self.in_effect, objects.into_iter().collect()),
            (false, true) => objects.into_iter().collect(),
            (false, false) => {
                let mut old = self.clear_bindings(number);
                old.extend(objects);
                old
            }
        }
    }

    /// Records a bind that is flushed without being posted to the device. Returns a key that grants no access, and
    /// objects to be dropped without the window's lock.
    #[must_use]
    pub(crate) fn record_flushed(&mut self) -> (u32, Vec<BoundObjects<M>>) {
        self.last_posted += 1;
        self.last_completed = self.last_posted;
        self.last_key = (self.last_key & !0xFF) | (self.last_key.wrapping_add(1) & 0xFF);
        (self.last_key, self.clear_bindings(self.last_posted))
    }

    /// Closes the window; binds may still be in flight. Returns all objects, to be dropped without the window's lock.
    #[must_use]
    pub(crate) fn close(&mut self) -> Vec<BoundObjects<M>> {
        self.is_bound = false;
        self.mw = None;
        self.in_effect.extend(self.in_flight.drain(..).map(|(_, objects)| objects));
        std::mem::take(&mut self.in_effect)
    }

    /// Removes and returns the bindings in effect, because the bind `number` has failed. The window stays bound if a
    /// later bind was posted.
    fn clear_bindings(&mut self, number: u64) -> Vec<BoundObjects<M>> {
        self.is_bound &= number != self.last_posted;
        self.mw = None;
        std::mem::take(&mut self.in_effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    /// A memory window with fake device windows, whose references are counted.
    struct Scene {
        binds: WindowBinds<()>,
        windows: Vec<Weak<()>>,
        kept: Arc<()>,
        key: u32,
    }

    impl Scene {
        fn new() -> Self {
            let binds = WindowBinds::new(0x1210, ());
            let windows = vec![Arc::downgrade(binds.current().unwrap())];
            Scene { binds, windows, kept: Arc::new(()), key: 0x1210 }
        }

        /// Posts a bind, or an unbind, as `SharedMw::begin` does.
        fn post(&mut self, is_bind: bool) -> u64 {
            let mw = match self.binds.current() {
                Some(mw) => mw.clone(),
                None => {
                    let mw = self.binds.set_window(());
                    self.windows.push(Arc::downgrade(&mw));
                    self.key = 0x100 * (self.windows.len() as u32 + 0x12);
                    mw
                }
            };
            self.key = (self.key & !0xFF) | ((self.key + 1) & 0xFF);
            let kept = is_bind.then(|| self.kept.clone() as KeptObject);
            self.binds.record_posted(mw, self.key, kept)
        }

        fn complete(&mut self, number: u64, is_done: bool) {
            drop(self.binds.complete(number, is_done));
        }

        /// Returns the number of references to the registration, and the number of device windows that exist.
        fn counts(&self) -> (usize, usize) {
            let alive = self.windows.iter().filter(|window| window.strong_count() > 0).count();
            (Arc::strong_count(&self.kept) - 1, alive)
        }
    }

    #[test]
    fn window_keeps_its_binding_until_the_next_bind_completes() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let second = scene.post(true);
        assert_eq!((scene.binds.is_bound, scene.counts()), (true, (2, 1)));
        scene.complete(second, true);
        assert_eq!((scene.binds.is_bound, scene.counts()), (true, (1, 1)));
        let third = scene.post(false);
        assert_eq!(
            (scene.binds.is_bound, scene.counts()),
            (false, (1, 1)),
            "the binding ends when the unbind is complete"
        );
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
            assert_eq!((scene.binds.is_bound, scene.counts()), (false, (0, 0)), "the device window is dropped too");
        }
        let next = scene.post(true);
        scene.complete(next, true);
        assert_eq!((scene.binds.is_bound, scene.counts()), (true, (1, 1)));
    }

    #[test]
    fn flushed_bind_leaves_nothing_bound() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let (key, old) = scene.binds.record_flushed();
        drop(old);
        assert_eq!((key, scene.binds.is_bound, scene.counts()), (0x1212, false, (0, 0)));
        assert_eq!(scene.binds.record_flushed().0, 0x1213, "another key each time");
    }

    #[test]
    fn failed_bind_keeps_the_objects_of_earlier_binds_in_flight() {
        let mut scene = Scene::new();
        let [first, second] = [scene.post(true), scene.post(true)];
        scene.complete(second, false);
        assert_eq!((scene.binds.is_bound, scene.counts()), (false, (1, 1)), "the first bind is in flight");
        scene.complete(first, true);
        assert_eq!(scene.counts(), (1, 1), "the first bind may be in effect");
        let third = scene.post(false);
        scene.complete(third, true);
        assert_eq!(scene.counts(), (0, 1));
    }

    #[test]
    fn binds_completing_out_of_order_keep_both_registrations() {
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
        assert_eq!((scene.binds.is_bound, scene.counts()), (true, (1, 1)), "the later bind is in effect");
    }

    #[test]
    fn first_1000_keys_of_a_window_do_not_repeat() {
        let mut scene = Scene::new();
        let mut keys = std::collections::HashSet::new();
        for count in 1..=1000 {
            let number = scene.post(true);
            assert!(keys.insert(scene.key), "{:#x}", scene.key);
            let windows = 1 + usize::from(count % KEYS == 1 && count > 1);
            assert_eq!(scene.counts().1, windows, "the previous device window exists until the bind is complete");
            scene.complete(number, true);
            assert_eq!(scene.counts(), (1, 1));
        }
    }

    #[test]
    fn close_releases_bindings_in_effect_and_in_flight() {
        let mut scene = Scene::new();
        let first = scene.post(true);
        scene.complete(first, true);
        let second = scene.post(true);
        drop(scene.binds.close());
        assert_eq!((scene.binds.is_bound, scene.counts()), (false, (0, 0)));
        scene.complete(second, true);
        assert_eq!(scene.counts(), (0, 0));
    }
}
