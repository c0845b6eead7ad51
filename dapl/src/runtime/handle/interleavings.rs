//! Loom models of references to the object of one handle: counted references, posts through hazard slots, exclusions of
//! posts, concurrent frees, and the reuse of the table entry without quarantine. Loom reports an access to an object
//! that is being dropped.

use loom::thread;

use super::*;
use crate::runtime::sync::access_check::AccessCheck;

/// Loom reports an access to this object during or after its drop.
#[derive(Default)]
struct TypeA(AccessCheck);

impl Object for TypeA {
    const KIND: Kind = Kind::Pz;
}

impl Drop for TypeA {
    fn drop(&mut self) {
        self.0.write();
    }
}

/// Like `TypeA`, but of a kind that posts reference by `PostRef`.
#[derive(Default)]
struct PostRefType(AccessCheck);

impl Object for PostRefType {
    const KIND: Kind = Kind::Ep;
}

impl Drop for PostRefType {
    fn drop(&mut self) {
        self.0.write();
    }
}

fn new_post_object() -> ObjectId {
    let made = create(std::ptr::null(), |_| Ok(PostRefType::default())).unwrap();
    let id = made.id();
    assert_eq!(made.publish() as usize, id.handle);
    id
}

fn post(handle: usize) {
    if let Some(user) = from_handle_for_post::<PostRefType>(handle as *mut c_void) {
        // A post with a counted reference accesses the object only under a lock, which these models lack.
        if !user.is_counted() {
            user.0.read();
        }
    }
}

#[test]
fn object_is_dropped_after_its_last_post() {
    loom::model(|| {
        let id = new_post_object();
        let posts: Vec<_> = (0..2).map(|_| thread::spawn(move || post(id.handle))).collect();
        assert!(destroy(id));
        posts.into_iter().for_each(|post| post.join().unwrap());
        assert!(from_id::<PostRefType>(id).is_none());
        assert_eq!(arena::alive(), 0, "the object was not dropped");
    });
}

#[test]
fn no_post_with_a_hazard_slot_runs_during_an_exclusion() {
    loom::model(|| {
        let id = new_post_object();
        let poster = thread::spawn(move || post(id.handle));
        let user = from_id::<PostRefType>(id).unwrap();
        let exclusion = exclude(id);
        user.0.write();
        drop(exclusion);
        drop(user);
        poster.join().unwrap();
        assert!(!from_handle_for_post::<PostRefType>(id.handle as *mut c_void).unwrap().is_counted());
    });
}

#[test]
fn object_freed_during_an_exclusion_is_dropped() {
    loom::model(|| {
        let id = new_post_object();
        let other = thread::spawn(move || assert!(destroy(id)));
        drop(exclude(id));
        other.join().unwrap();
        assert_eq!(arena::alive(), 0, "the object was not dropped");
    });
}

#[test]
fn exclusion_of_a_freed_object_sees_all_posts_as_ended() {
    loom::model(|| {
        let made = create(std::ptr::null(), |_| Ok(PostRefType::default())).unwrap();
        let (id, object) = (made.id(), made.object().clone());
        made.publish();
        let poster = thread::spawn(move || post(id.handle));
        assert!(destroy(id));
        // The poster may have dropped the entry's reference, so that the entry has another generation.
        let exclusion = exclude(id);
        object.0.write();
        drop(exclusion);
        poster.join().unwrap();
    });
}

fn a() -> ObjectId {
    let made = create(std::ptr::null(), |_| Ok(TypeA::default())).unwrap();
    let id = made.id();
    assert_eq!(made.publish() as usize, id.handle);
    id
}

fn visit(handle: usize) {
    if let Ok(a) = from_handle::<TypeA>(handle as *mut c_void, Handle::Pz) {
        a.0.read();
    }
}

#[test]
fn object_is_dropped_after_its_last_user() {
    loom::model(|| {
        let id = a();
        let visitors: Vec<_> = (0..2).map(|_| thread::spawn(move || visit(id.handle))).collect();
        assert!(destroy(id));
        visit(id.handle);
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
        assert!(from_id::<TypeA>(id).is_none());
    });
}

#[test]
fn one_of_two_concurrent_frees_succeeds() {
    loom::model(|| {
        let id = a();
        let other = thread::spawn(move || destroy(id));
        let visitor = thread::spawn(move || visit(id.handle));
        let won = [destroy(id), other.join().unwrap()];
        visitor.join().unwrap();
        assert_ne!(won[0], won[1]);
    });
}

#[test]
fn reused_entry_is_not_found_by_its_old_generation() {
    loom::model(|| {
        let old = a();
        let late = thread::spawn(move || {
            visit(old.handle);
            if let Some(a) = from_id::<TypeA>(old) {
                a.0.read();
            }
        });
        assert!(destroy(old));
        let new = a();
        // While the late thread still references the old object, the entry is not reused.
        assert!(new.handle != old.handle || new.generation != old.generation);
        let user = from_id::<TypeA>(new).unwrap();
        user.0.read();
        drop(user);
        late.join().unwrap();
        assert!(destroy(new) && !destroy(old));
    });
}

#[test]
fn post_by_id_accesses_only_the_object_of_its_generation() {
    loom::model(|| {
        let old = new_post_object();
        let late = thread::spawn(move || {
            if let Some(user) = from_id_for_post::<PostRefType>(old)
                && !user.is_counted()
            {
                user.0.read();
            }
        });
        assert!(destroy(old));
        let new = new_post_object();
        // No post uses the new object, so it may be written.
        from_id::<PostRefType>(new).unwrap().0.write();
        late.join().unwrap();
        assert!(destroy(new) && !destroy(old));
    });
}
