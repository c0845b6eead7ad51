//! Handles that are good, stale, foreign or garbage.

use std::sync::atomic::AtomicUsize;

use super::*;

struct Pear(Arc<AtomicUsize>);
struct Plum;

impl Object for Pear {
    const KIND: Kind = Kind::Pz;
}
impl Object for Plum {
    const KIND: Kind = Kind::Lmr;
}
impl Drop for Pear {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn pear(drops: &Arc<AtomicUsize>) -> (ObjectId, *mut c_void) {
    let made = create(std::ptr::null(), |_| Ok(Pear(drops.clone()))).unwrap();
    (made.id(), made.publish())
}

#[test]
fn garbage_is_refused() {
    let drops = Arc::default();
    let (_, live) = pear(&drops);
    let inside = live as usize;
    for garbage in [0, 1, 2, 3, 7, 64, usize::MAX, inside + 1, inside + 8, inside + 63, &raw const drops as usize] {
        assert!(from_handle::<Pear>(garbage as *mut c_void, Handle::Pz).is_err(), "{garbage:#x}");
    }
    assert_eq!(from_handle::<Plum>(live, Handle::Lmr).err(), Some(Error::InvalidHandle(Handle::Lmr)), "another kind");
    assert!(from_handle::<Pear>(live, Handle::Pz).is_ok());
}

#[test]
fn an_object_goes_with_its_last_user_and_its_handle_stays_dead() {
    let drops = Arc::default();
    let (id, handle) = pear(&drops);
    let user = from_handle::<Pear>(handle, Handle::Pz).unwrap();
    assert!(destroy(id));
    assert!(!destroy(id), "freed twice");
    assert!(from_handle::<Pear>(handle, Handle::Pz).is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(user);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(from_id::<Pear>(id).is_none());
}

#[test]
fn what_was_never_published_never_had_a_handle() {
    let drops: Arc<AtomicUsize> = Arc::default();
    let made = create(std::ptr::null(), |_| Ok(Pear(drops.clone()))).unwrap();
    let handle = made.id().handle as *mut c_void;
    assert!(from_handle::<Pear>(handle, Handle::Pz).is_err());
    drop(made);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_free_race_has_one_winner() {
    let drops: Arc<AtomicUsize> = Arc::default();
    for _ in 0..200 {
        let (id, handle) = pear(&drops);
        let address = handle as usize;
        let won: usize = std::thread::scope(|scope| {
            let user = scope.spawn(move || drop(from_handle::<Pear>(address as *mut c_void, Handle::Pz)));
            let others: Vec<_> = (0..2).map(|_| scope.spawn(move || usize::from(destroy(id)))).collect();
            user.join().unwrap();
            others.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
    assert_eq!(drops.load(Ordering::SeqCst), 200);
}
