//! The lock of an EP's post state. Posts share it; control calls that replace, reset or destroy the QP lock it
//! exclusively.
//!
//! A post stores its EP in a hazard slot of its thread (`runtime/hazard`) and takes no lock. A writer takes the write
//! lock, and then waits until no slot contains the EP. A post that cannot use a slot, for example because a writer
//! waits, acquires the read lock like other readers.

use std::ffi::c_void;
use std::mem;
use std::ops::{Deref, DerefMut};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Ep, PostState};
use crate::error::{Error, Handle, Result};
use crate::provider::Provider;
use crate::runtime::handle::{self, Exclusion, ObjectId, from_handle_for_post, from_handle_quick};

/// The post state of the EP `id`, with its lock.
pub(super) struct PostLock<P: Provider> {
    id: ObjectId,
    state: RwLock<PostState<P>>,
}

/// Exclusive access to the post state.
pub(super) struct PostStateWriter<'a, P: Provider> {
    /// Declared first, so that it is dropped before the write lock is released and another writer can begin an
    /// exclusion.
    _exclusion: Exclusion,
    state: RwLockWriteGuard<'a, PostState<P>>,
}

impl<P: Provider> PostLock<P> {
    pub(super) fn new(id: ObjectId, state: PostState<P>) -> Self {
        PostLock { id, state: RwLock::new(state) }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, PostState<P>> {
        self.state.read()
    }

    #[cold]
    #[inline(never)]
    fn lock_for_post(&self) -> CountedPost<'_, P> {
        mem::forget(self.state.read());
        CountedPost(self)
    }

    /// Waits for posts in progress and excludes new ones. Must not be called during a post on the same EP.
    pub(super) fn write(&self) -> PostStateWriter<'_, P> {
        let state = self.state.write();
        PostStateWriter { _exclusion: handle::exclude(self.id), state }
    }
}

impl<P: Provider> Deref for PostStateWriter<'_, P> {
    type Target = PostState<P>;

    fn deref(&self) -> &PostState<P> {
        &self.state
    }
}

impl<P: Provider> DerefMut for PostStateWriter<'_, P> {
    fn deref_mut(&mut self) -> &mut PostState<P> {
        &mut self.state
    }
}

/// The read lock of a post that has a counted reference to the EP.
struct CountedPost<'a, P: Provider>(&'a PostLock<P>);

impl<P: Provider> Drop for CountedPost<'_, P> {
    fn drop(&mut self) {
        // SAFETY: `lock_for_post` has acquired this read lock in this thread.
        unsafe { self.0.state.force_unlock_read() };
    }
}

/// Runs a post on the EP with this handle, with an uncounted reference. Returns false if `body` returns false, if the
/// thread's first hazard slot is not available, while a writer waits or has access, or if the handle is invalid. The
/// caller then calls [`post`], which also reports errors.
#[inline(always)]
pub(super) fn post_quickly<P: Provider>(
    handle: *mut c_void,
    body: impl FnOnce(&Ep<P>, &PostState<P>, usize) -> bool,
) -> bool {
    let Some(ep) = from_handle_quick::<Ep<P>>(handle) else { return false };
    // SAFETY: no writer has access, because a writer waits until this reference ends.
    let state = unsafe { &*ep.post_state.state.data_ptr() };
    let is_posted = body(&ep, state, ep.thread());
    if !is_posted {
        ep.release_rarely(); // a separate call, so that the path of a posted request has no branch here
    }
    is_posted
}

/// Runs a post on the EP with this handle. `body` gets the number of the calling thread if one of its hazard slots
/// contains the EP.
#[inline(always)]
pub(super) fn post<P: Provider>(
    handle: *mut c_void,
    body: impl FnOnce(&Ep<P>, &PostState<P>, Option<usize>) -> Result<()>,
) -> Result<()> {
    let Some(ep) = from_handle_for_post::<Ep<P>>(handle) else { return Err(Error::InvalidHandle(Handle::Ep)) };
    let counted = if ep.is_counted() { Some(ep.post_state.lock_for_post()) } else { None };
    // SAFETY: no writer has access. A writer waits until this reference ends or, if the reference is counted, for the
    // read lock.
    let state = unsafe { &*ep.post_state.state.data_ptr() };
    let result = body(&ep, state, ep.thread());
    drop(counted);
    ep.release();
    result
}
