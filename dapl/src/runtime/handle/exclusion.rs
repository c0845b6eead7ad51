//! Waits for posts and dequeues that use a hazard slot instead of a counted reference. [`exclude`] waits for those on
//! one object, and makes later ones count a reference meanwhile. [`await_posts`] waits for the posts on all EPs.
#![forbid(unsafe_code)]

use super::word::StateWord;
use super::{Kind, ObjectId, arena};
use crate::runtime::hazard;
use crate::runtime::sync::Ordering;

/// Excludes posts and dequeues that reference the object through a hazard slot: waits for those in progress, and makes
/// later ones take a counted reference until the result is dropped. Only one thread at a time may exclude an object. A
/// thread must not call this during its own post or dequeue on the object.
pub fn exclude(id: ObjectId) -> Exclusion {
    let exclusion = Exclusion(id);
    if exclusion.set(true) {
        hazard::await_no_use(id.handle);
    }
    exclusion
}

/// Waits for all posts in progress, on any EP, that use a hazard slot. Does not wait for posts with a counted
/// reference. Must not be called during a post.
pub fn await_posts() {
    let is_post = |address| {
        arena::at(address).is_some_and(|entry| StateWord::kind(entry.word.load(Ordering::Relaxed)) == Kind::Ep as u8)
    };
    hazard::await_uses(is_post);
}

/// While this exists, calls get only counted references on the object (see [`exclude`]).
#[must_use = "the exclusion ends when this is dropped"]
pub struct Exclusion(ObjectId);

impl Exclusion {
    /// Sets or clears the exclusion. Returns false if the table entry has another generation or no object yet.
    fn set(&self, exclusive: bool) -> bool {
        let Some(entry) = arena::at(self.0.handle) else { return false };
        // Acquire: if the last user of a freed object has changed the generation, all uses must come before the
        // caller's writes, as after an exclusion.
        let mut word = entry.word.load(Ordering::Acquire);
        loop {
            if StateWord::generation(word) != self.0.generation || StateWord::kind(word) == 0 {
                return false;
            }
            let next = if exclusive { word | StateWord::EXCLUSIVE } else { word & !StateWord::EXCLUSIVE };
            // Release: changes made during the exclusion are visible to the calls after it.
            match entry.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        if self.set(false)
            && let Some(entry) = arena::at(self.0.handle)
        {
            // If the object was freed during the exclusion, its last user may not have dropped it.
            entry.retire_unused();
        }
    }
}
