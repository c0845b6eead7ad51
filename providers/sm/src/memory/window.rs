//! Memory windows, whose keys are entries of sm's table of registrations.
#![forbid(unsafe_code)]

use crate::memory::regions::RegionTable;

/// A memory window of this provider.
pub(crate) type MwCore = dapl_software::memory::window::WindowCore<RegionTable>;

/// The bound windows of an adapter, by key. A send with invalidate finds its window here.
pub(crate) type Windows = dapl_software::memory::window::WindowDirectory<RegionTable>;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dapl::provider::{Access, Bind, MemoryRegion, Region, Status};
    use dapl_software::memory::rights::{AccessRight, PeerIds};
    use dapl_software::memory::window::{QpDomain, WindowScope};

    use crate::memory::regions::Regions;

    use super::*;

    const PD: u32 = 3;
    const READ: Access =
        Access { local_write: false, remote_read: true, remote_write: false, remote_atomic: false, zero_based: false };

    /// Returns 100 bytes of mapped memory.
    fn whole() -> Region {
        static MEMORY: [u8; 104] = [0; 104];
        Region { address: MEMORY.as_ptr() as u64, length: 100 }
    }

    /// Returns a window, its table, and the key of a registration.
    fn window() -> (Arc<MwCore>, Arc<Regions>, Source) {
        let regions = Arc::new(Regions::new(RegionTable::new(None, |_| false).unwrap(), 1));
        let source = Source(regions.add(whole(), Access::default(), PD).unwrap());
        (Arc::new(MwCore::new(regions.clone(), Arc::default(), PD, WindowScope::Pd)), regions, source)
    }

    /// A registration with this key.
    struct Source(u32);

    impl MemoryRegion for Source {
        fn local_key(&self) -> u32 {
            self.0
        }

        fn remote_key(&self) -> u32 {
            0
        }
    }

    fn wanted<'a>(mr: &'a Source, kept: &Arc<()>) -> Option<Bind<'a, Source>> {
        Some(Bind { mr, region: whole(), access: READ, kept: kept.clone() })
    }

    fn keeps(kept: &Arc<()>) -> usize {
        Arc::strong_count(kept) - 1
    }

    #[test]
    fn window_key_is_valid_from_its_bind_to_the_next() {
        let (window, regions, source) = window();
        let kept = Arc::new(());
        let reads = |key| regions.allows(key, PD, whole(), AccessRight::RemoteRead);
        let (first, one) = window.post(wanted(&source, &kept)).unwrap();
        assert!(window.is_bound() && !reads(one) && keeps(&kept) == 1);
        assert_eq!(window.execute(first, PD, &QpDomain::default()), Ok(true));
        let (second, two) = window.post(wanted(&source, &kept)).unwrap();
        assert!(reads(one) && !reads(two) && keeps(&kept) == 2);
        let hold = regions.acquire(one, PD, Region { length: 1, ..whole() }, AccessRight::RemoteRead).unwrap();
        assert_eq!(window.execute(second, PD, &QpDomain::default()), Ok(false), "a copy is in progress");
        assert!(!reads(one) && !reads(two) && keeps(&kept) == 2);
        drop(hold);
        assert_eq!(window.execute(second, PD, &QpDomain::default()), Ok(true));
        assert!(!reads(one) && reads(two) && keeps(&kept) == 1);
        let (third, none) = window.post(None::<Bind<'_, Source>>).unwrap();
        assert!(!window.is_bound() && none == 0 && reads(two), "until the bind starts");
        assert_eq!(window.execute(third, PD, &QpDomain::default()), Ok(true));
        assert!(!reads(two) && keeps(&kept) == 0);
    }

    #[test]
    fn flushed_bind_leaves_window_unbound_and_releases_once() {
        let (window, regions, source) = window();
        let kept = Arc::new(());
        let (first, one) = window.post(wanted(&source, &kept)).unwrap();
        window.execute(first, PD, &QpDomain::default()).unwrap();
        let (second, _) = window.post(wanted(&source, &kept)).unwrap();
        window.flush(second);
        assert!(!window.is_bound() && keeps(&kept) == 0);
        assert!(!regions.allows(one, PD, whole(), AccessRight::RemoteRead));
        window.flush(second);

        let (third, three) = window.post(wanted(&source, &kept)).unwrap();
        window.execute(third, PD, &QpDomain::default()).unwrap();
        window.flush(third);
        assert!(!window.is_bound() && keeps(&kept) == 0, "a flush after the execution unbinds the window");
        assert!(!regions.allows(three, PD, whole(), AccessRight::RemoteRead));
    }

    #[test]
    fn later_window_bind_supersedes_an_earlier_one() {
        let (window, regions, source) = window();
        let kept = Arc::new(());
        let (first, one) = window.post(wanted(&source, &kept)).unwrap();
        let (second, two) = window.post(wanted(&source, &kept)).unwrap();
        window.execute(second, PD, &QpDomain::default()).unwrap();
        assert_eq!((window.execute(first, PD, &QpDomain::default()), keeps(&kept)), (Ok(true), 1));
        window.flush(first);
        assert!(window.is_bound() && regions.allows(two, PD, whole(), AccessRight::RemoteRead));
        assert!(!regions.allows(one, PD, whole(), AccessRight::RemoteRead));
    }

    #[test]
    fn dropped_window_revokes_all_keys() {
        let (window, regions, source) = window();
        let kept = Arc::new(());
        let (first, one) = window.post(wanted(&source, &kept)).unwrap();
        window.execute(first, PD, &QpDomain::default()).unwrap();
        let (second, two) = window.post(wanted(&source, &kept)).unwrap();
        window.close();
        assert_eq!((keeps(&kept), window.execute(second, PD, &QpDomain::default())), (0, Ok(true)));
        for key in [one, two] {
            assert!(!regions.allows(key, PD, whole(), AccessRight::RemoteRead));
        }
    }

    #[test]
    fn invalid_bind_fails_and_leaves_the_window_unbound() {
        let (window, regions, source) = window();
        let kept = Arc::new(());
        let (first, one) = window.post(wanted(&source, &kept)).unwrap();
        window.execute(first, PD, &QpDomain::default()).unwrap();
        let write = Access { remote_write: true, ..READ };
        let beyond = Region { length: 101, ..whole() };
        let cases = [
            ("a stale registration", source.0 ^ 1, whole(), READ, PD),
            ("outside", source.0, beyond, READ, PD),
            ("no right to write", source.0, whole(), write, PD),
            ("another domain", source.0, whole(), READ, PD + 1),
            ("a window", one, whole(), READ, PD),
        ];
        for (what, source, region, access, pd) in cases {
            let wanted = Bind { mr: &Source(source), region, access, kept: kept.clone() };
            let (number, key) = window.post(Some(wanted)).unwrap();
            assert_eq!(window.execute(number, pd, &QpDomain::default()), Err(Status::BindFailed), "{what}");
            assert!(!window.is_bound() && keeps(&kept) == 0, "{what}");
            assert!(!regions.allows(key, PD, region, AccessRight::RemoteRead));
        }
    }

    #[test]
    fn qp_window_grants_access_only_to_the_qp_of_its_bind() {
        let regions = Arc::new(Regions::new(RegionTable::new(None, |_| false).unwrap(), 1));
        let windows: Arc<Windows> = Arc::default();
        let source = Source(regions.add(whole(), Access::default(), PD).unwrap());
        let window = Arc::new(MwCore::new(regions.clone(), windows.clone(), PD, WindowScope::Qp));
        let (one, other, kept) = (QpDomain::default(), QpDomain::default(), Arc::new(()));
        let reads = |key, qp: &QpDomain| {
            let (ids, range) = (PeerIds { pd: PD, qp: qp.number() }, Region { length: 8, ..whole() });
            regions.acquire_for_peer(key, ids, range, AccessRight::RemoteRead).is_ok()
        };
        let (first, key) = window.post(wanted(&source, &kept)).unwrap();
        assert_eq!(window.execute(first, PD, &one), Ok(true));
        assert!(reads(key, &one) && !reads(key, &other));
        let (second, key) = window.post(wanted(&source, &kept)).unwrap();
        assert_eq!(window.execute(second, PD, &other), Ok(true));
        assert!(reads(key, &other) && !reads(key, &one), "the key is bound on the other queue pair");
        assert_eq!(windows.invalidate(key, PD, &one), Err(Status::RemoteAccess));
        assert!(windows.holds(key, PD, &other) && !windows.holds(key, PD, &one));
        assert_eq!((windows.invalidate(key, PD, &other), window.is_bound()), (Ok(true), false));
        assert!(!reads(key, &other) && keeps(&kept) == 0);
    }
}
