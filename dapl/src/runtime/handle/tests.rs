//! Tests of handles: arbitrary and stale values, concurrent frees, references of posts through hazard slots, and calls
//! that exclude posts.

use std::sync::Arc;
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
fn arbitrary_values_are_refused_as_handles() {
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
fn object_is_dropped_with_its_last_user_and_its_handle_stays_invalid() {
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
fn handle_of_an_unpublished_object_is_refused() {
    let drops: Arc<AtomicUsize> = Arc::default();
    let made = create(std::ptr::null(), |_| Ok(TypeA(drops.clone()))).unwrap();
    let handle = made.id().handle as *mut c_void;
    assert!(from_handle::<TypeA>(handle, Handle::Pz).is_err());
    drop(made);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn one_of_many_concurrent_frees_succeeds() {
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

/// An object of a kind that posts reference by `PostRef`.
struct PostRefType(Arc<AtomicUsize>);

impl Object for PostRefType {
    const KIND: Kind = Kind::Ep;
}
impl Drop for PostRefType {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn new_post_object(drops: &Arc<AtomicUsize>) -> (ObjectId, *mut c_void) {
    let made = create(std::ptr::null(), |_| Ok(PostRefType(drops.clone()))).unwrap();
    (made.id(), made.publish())
}

#[test]
fn object_in_a_post_is_dropped_when_the_post_ends() {
    let drops = Arc::default();
    let (id, handle) = new_post_object(&drops);
    assert!(from_handle_for_post::<PostRefType>(handle.wrapping_byte_add(1)).is_none());
    let user = from_handle_for_post::<PostRefType>(handle).unwrap();
    assert!(!user.is_counted());
    assert!(std::thread::scope(|scope| scope.spawn(|| destroy(id)).join().unwrap()));
    assert!(from_handle_for_post::<PostRefType>(handle).is_none());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    user.release();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn post_reference_by_id_requires_the_generation_of_the_id() {
    let drops = Arc::default();
    let (id, handle) = new_post_object(&drops);
    let stale = ObjectId { generation: id.generation.wrapping_sub(1), ..id };
    let _user = from_handle_for_post::<PostRefType>(handle).unwrap();
    // The first references have hazard slots, the others are counted.
    for _ in 0..2 {
        assert!(from_id_for_post::<PostRefType>(stale).is_none());
        let users: Vec<_> = (0..4).map(|_| from_id_for_post::<PostRefType>(id).unwrap()).collect();
        assert!(from_id_for_post::<PostRefType>(stale).is_none(), "no slot is free");
        assert!(!users[2].is_counted() && users[3].is_counted());
    }
    assert!(destroy(id));
    assert!(from_id_for_post::<PostRefType>(id).is_none());
}

#[test]
fn references_beyond_the_hazard_slots_use_the_reference_count() {
    let drops = Arc::default();
    let (id, handle) = new_post_object(&drops);
    let users: Vec<_> = (0..9).map(|_| from_handle_for_post::<PostRefType>(handle).unwrap()).collect();
    assert_eq!(users.iter().map(PostRef::is_counted).collect::<Vec<_>>(), [[false; 4].as_slice(), &[true; 5]].concat());
    assert!(destroy(id));
    for user in users {
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(user);
    }
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn exclusion_waits_for_posts_and_references_during_it_are_counted() {
    let drops = Arc::default();
    let (id, handle) = new_post_object(&drops);
    let (address, is_over) = (handle as usize, AtomicUsize::new(0));
    let user = from_handle_for_post::<PostRefType>(handle).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let exclusion = exclude(id);
            assert_eq!(is_over.load(Ordering::SeqCst), 1);
            let user = from_handle_for_post::<PostRefType>(address as *mut c_void).unwrap();
            assert!(user.is_counted());
            drop((user, exclusion));
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        is_over.store(1, Ordering::SeqCst);
        drop(user);
        writer.join().unwrap();
    });
    assert!(!from_handle_for_post::<PostRefType>(handle).unwrap().is_counted(), "the exclusion is over");
    assert!(destroy(id));
    drop(exclude(id)); // without effect
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn objects_freed_during_posts_are_dropped_once() {
    let drops: Arc<AtomicUsize> = Arc::default();
    for _ in 0..300 {
        let (id, handle) = new_post_object(&drops);
        let address = handle as usize;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..20 {
                        if let Some(user) = from_handle_for_post::<PostRefType>(address as *mut c_void) {
                            assert!(Arc::strong_count(&user.0) > 1);
                        }
                    }
                });
            }
            scope.spawn(move || destroy(id));
        });
    }
    assert_eq!(drops.load(Ordering::SeqCst), 300);
}
