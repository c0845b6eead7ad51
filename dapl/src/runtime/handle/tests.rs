//! Handles that are good, stale, foreign or garbage.

use std::sync::atomic::AtomicUsize;

use super::*;

struct TypeA(Arc<AtomicUsize>);
struct TypeB;

impl Object for TypeA {
    const KIND: Kind = Kind::Pz;
}
impl Object for TypeB {
    const KIND: Kind = Kind::Lmr;
}
impl Drop for TypeA {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn a(drops: &Arc<AtomicUsize>) -> (ObjectId, *mut c_void) {
    let made = create(std::ptr::null(), |_| Ok(TypeA(drops.clone()))).unwrap();
    (made.id(), made.publish())
}

#[test]
fn garbage_is_refused() {
    let drops = Arc::default();
    let (_, live) = a(&drops);
    let inside = live as usize;
    for garbage in [0, 1, 2, 3, 7, 64, usize::MAX, inside + 1, inside + 8, inside + 63, &raw const drops as usize] {
        assert!(from_handle::<TypeA>(garbage as *mut c_void, Handle::Pz).is_err(), "{garbage:#x}");
    }
    assert_eq!(from_handle::<TypeB>(live, Handle::Lmr).err(), Some(Error::InvalidHandle(Handle::Lmr)), "another kind");
    assert!(from_handle::<TypeA>(live, Handle::Pz).is_ok());
}

#[test]
fn an_object_goes_with_its_last_user_and_its_handle_stays_dead() {
    let drops = Arc::default();
    let (id, handle) = a(&drops);
    let user = from_handle::<TypeA>(handle, Handle::Pz).unwrap();
    assert!(destroy(id));
    assert!(!destroy(id), "freed twice");
    assert!(from_handle::<TypeA>(handle, Handle::Pz).is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(user);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(from_id::<TypeA>(id).is_none());
}

#[test]
fn unpublished_object_has_no_handle() {
    let drops: Arc<AtomicUsize> = Arc::default();
    let made = create(std::ptr::null(), |_| Ok(TypeA(drops.clone()))).unwrap();
    let handle = made.id().handle as *mut c_void;
    assert!(from_handle::<TypeA>(handle, Handle::Pz).is_err());
    drop(made);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_free_race_has_one_winner() {
    let drops: Arc<AtomicUsize> = Arc::default();
    for _ in 0..200 {
        let (id, handle) = a(&drops);
        let address = handle as usize;
        let won: usize = std::thread::scope(|scope| {
            let user = scope.spawn(move || drop(from_handle::<TypeA>(address as *mut c_void, Handle::Pz)));
            let others: Vec<_> = (0..2).map(|_| scope.spawn(move || usize::from(destroy(id)))).collect();
            user.join().unwrap();
            others.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
    assert_eq!(drops.load(Ordering::SeqCst), 200);
}
