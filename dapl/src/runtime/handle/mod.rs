//! The handle table, and [`from_handle`], which validates a C value and returns its object.
//!
//! A handle is the address of a 64-byte table entry in an arena of address space that is reserved once and never
//! unmapped. The entry outlives its object. So any value that a C caller passes can be checked without reading memory
//! outside the arena: it must be the address of an entry that has the expected kind and is live. The first word of an
//! entry points to the provider table that libdat uses; a free does not clear this word. A freed entry is quarantined,
//! and later reused with another generation.
//!
//! Lookups and frees do not block: a free marks the entry as not live, and the last call that uses the object drops it.
//! Most calls count a reference in the entry ([`Ref`]). Posts on EPs, dequeues and the fast paths of waits instead
//! store the entry's address in a hazard slot of their thread, if one is free ([`PostRef`]). In a forked child the
//! arena reads as zeros (`MADV_WIPEONFORK`), so the child refuses inherited handles. Its new handles use entries that
//! the parent has not assigned.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dat_abi::*;

use crate::error::{Error, Handle, Result};
use crate::runtime::cancel;
use crate::runtime::empty_check::EmptyCheck;
use crate::runtime::hazard::{self, Protection};
use crate::runtime::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
mod arena;
#[cfg(loom)]
#[path = "arena/fake.rs"]
mod arena;
mod creation;
mod exclusion;
mod hasher;
mod refs;
mod uses;
mod word;

pub(crate) use arena::lock_for_fork;
pub use arena::{alive, arena};
pub use creation::{UnpublishedObject, create};
pub use exclusion::{Exclusion, await_posts, exclude};
pub use hasher::HandleHasher;
pub use refs::{PostRef, QuickRef, Ref};
pub use uses::{UseCount, UseCounted, UseGuard};
use word::StateWord;

/// Kinds of objects. The number of a kind is its DAT handle type plus 1, so that zeroed memory has no kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    Cr = 1 + DAT_HANDLE_TYPE_CR as u8,
    Ep = 1 + DAT_HANDLE_TYPE_EP as u8,
    Evd = 1 + DAT_HANDLE_TYPE_EVD as u8,
    Ia = 1 + DAT_HANDLE_TYPE_IA as u8,
    Lmr = 1 + DAT_HANDLE_TYPE_LMR as u8,
    Psp = 1 + DAT_HANDLE_TYPE_PSP as u8,
    Pz = 1 + DAT_HANDLE_TYPE_PZ as u8,
    Rmr = 1 + DAT_HANDLE_TYPE_RMR as u8,
    Rsp = 1 + DAT_HANDLE_TYPE_RSP as u8,
    Cno = 1 + DAT_HANDLE_TYPE_CNO as u8,
    Srq = 1 + DAT_HANDLE_TYPE_SRQ as u8,
    Csp = 1 + v2::DAT_HANDLE_TYPE_CSP as u8,
}

/// An object with a handle.
pub trait Object: Send + Sync + 'static {
    /// Kind of the object; one kind per Rust type.
    const KIND: Kind;
}

/// Handle table entry. The first field is part of the ABI: libdat reads the address of the provider table from it.
#[repr(C, align(64))]
pub struct HandleEntry {
    table: AtomicPtr<DAT_PROVIDER>,
    /// Low half: live bit, kind, exclusion bit and generation. High half: reference count (see [`StateWord`]).
    word: AtomicU64,
    object: AtomicPtr<c_void>,
    /// Function that drops the entry's reference on its object; a `fn(*const c_void)`.
    release: AtomicPtr<c_void>,
    /// The consumer context of the object.
    context: AtomicU64,
    /// Futex word that waiters on the object sleep on; it must outlive the object (see `wait`).
    pub(crate) futex: AtomicU32,
    _pad: AtomicU32,
    /// For an EVD: its empty check, never null while the EVD is live.
    empty_check: AtomicPtr<EmptyCheck>,
    _rest: AtomicU64,
}

const _: () =
    assert!(std::mem::offset_of!(HandleEntry, table) == 0 && (size_of::<HandleEntry>() == STRIDE || cfg!(loom)));

const STRIDE: usize = 64;

/// Identifies an object, without keeping it in memory. If its generation differs from that of the table entry, the
/// object was freed.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ObjectId {
    /// The handle as a number; 0 is no handle.
    pub handle: usize,
    /// Generation of the table entry when the id was created.
    pub generation: u32,
}

impl HandleEntry {
    /// Clears the hazard slot. If the object was freed in the meantime and this was its last user, drops it.
    #[inline(always)]
    fn end_protection(&self, protection: Protection) {
        protection.end();
        if self.word.load(Ordering::Relaxed) & StateWord::LIVE == 0 {
            self.retire_unused();
        }
    }

    /// Clears the hazard slot, and acquires a counted reference instead if the object is live and of this generation
    /// (`None`: of any). Used if the calling thread has no free slot, while another thread excludes posts
    /// ([`exclude`]), or if the handle is invalid, and then returns false.
    #[cold]
    #[inline(never)]
    fn acquire_instead(&self, protection: Option<Protection>, kind: Kind, generation: Option<u32>) -> bool {
        if let Some(protection) = protection {
            self.end_protection(protection);
        }
        self.acquire(kind, generation)
    }

    /// Drops the object if it was freed and has no users.
    #[cold]
    fn retire_unused(&self) {
        // Acquire: the writes of earlier users must be visible before the object is dropped.
        let word = self.word.load(Ordering::Acquire);
        if word & (StateWord::LIVE | StateWord::REFERENCES) == 0 {
            self.drop_if_unused(word);
        }
    }

    /// Acquires a counted reference if the entry is live, of this kind, and of this generation (`None`: of any).
    /// Returns whether it was acquired.
    #[inline(always)]
    fn acquire(&self, kind: Kind, generation: Option<u32>) -> bool {
        // Checked before the write, so that invalid handles do not modify entries of other kinds or in quarantine.
        if !StateWord::is(self.word.load(Ordering::Relaxed), kind) {
            return false;
        }
        // Acquire pairs with the Release in `publish`: the object behind a live word is complete.
        let word = self.word.fetch_add(StateWord::REFERENCE, Ordering::Acquire);
        if StateWord::is(word, kind) && generation.is_none_or(|g| g == StateWord::generation(word)) {
            return true;
        }
        self.release_reference();
        false
    }

    #[inline(always)]
    fn release_reference(&self) {
        // AcqRel: the thread that drops the last reference must see all writes of the other users before it drops the
        // object.
        let word = self.word.fetch_sub(StateWord::REFERENCE, Ordering::AcqRel) - StateWord::REFERENCE;
        if word & (StateWord::LIVE | StateWord::REFERENCES) == 0 {
            self.drop_if_unused(word);
        }
    }

    /// Drops the object of a freed entry without users, and quarantines the entry. A state word without a kind means
    /// that there is no object.
    ///
    /// Several threads can call this concurrently, because a failed `acquire` also counts a reference for a moment, and
    /// because a thread whose [`PostRef`] ends checks too. The thread that changes the state word drops the object; the
    /// others find another generation.
    #[cold]
    fn drop_if_unused(&self, word: u64) {
        let next = StateWord::next_generation(word);
        let is_ours = || self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if StateWord::kind(word) == 0 || uses_post_refs(word) && hazard::is_protected(self.address()) || !is_ours() {
            return;
        }
        let _deferral = cancel::defer(); // dropping an object closes descriptors
        let object = self.object.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `publish` has stored a `fn(*const c_void)` in `release` before it made the entry live.
        let release =
            unsafe { std::mem::transmute::<*mut c_void, fn(*const c_void)>(self.release.load(Ordering::Relaxed)) };
        release(object);
        arena::quarantine(self.address());
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// Whether posts, dequeues and waits reference objects of this kind by [`PostRef`].
fn uses_post_refs(word: u64) -> bool {
    [Kind::Ep, Kind::Evd, Kind::Cno].iter().any(|kind| *kind as u8 == StateWord::kind(word))
}

/// Returns the live object of a handle, with a counted reference.
///
/// If the handle is invalid, the error is `InvalidHandle(wanted)`. `handle` may have any value.
#[inline(always)]
pub fn from_handle<T: Object>(handle: *mut c_void, wanted: Handle) -> Result<Ref<T>> {
    acquire(handle as usize, None).ok_or(Error::InvalidHandle(wanted))
}

/// Like [`from_handle_for_post`], but never counts a reference. Returns `None` if the thread's first hazard slot is not
/// available, if another thread excludes posts ([`exclude`]), or if the handle is invalid. The caller then calls
/// [`from_handle_for_post`], which fails only if the handle is invalid.
#[inline(always)]
pub fn from_handle_quick<T: Object>(handle: *mut c_void) -> Option<QuickRef<T>> {
    let entry = arena::at(handle as usize)?;
    quick_ref(entry, hazard::protect_again(entry.address())?)
}

#[inline(always)]
fn quick_ref<T: Object>(entry: &'static HandleEntry, protection: Protection) -> Option<QuickRef<T>> {
    // Acquire pairs with the Release in `publish`, and with the end of an exclusion.
    if !StateWord::is_shared(entry.word.load(Ordering::Acquire), T::KIND) {
        entry.end_protection(protection);
        return None;
    }
    let object = entry.object.load(Ordering::Relaxed).cast::<T>();
    // SAFETY: `publish` has stored the object before it set the live bit.
    let object = unsafe { NonNull::new_unchecked(object) };
    Some(QuickRef { entry, object, protection: ManuallyDrop::new(protection) })
}

/// Like [`from_handle`], for posts, dequeues and the first step of waits. Returns `None` if the handle is not a live
/// handle of this type.
#[inline(always)]
pub fn from_handle_for_post<T: Object>(handle: *mut c_void) -> Option<PostRef<T>> {
    post_ref(handle as usize, None)
}

/// Like [`from_handle_for_post`], for the object with this id.
#[inline(always)]
pub fn from_id_for_post<T: Object>(id: ObjectId) -> Option<PostRef<T>> {
    post_ref(id.handle, Some(id.generation))
}

#[inline(always)]
fn post_ref<T: Object>(handle: usize, generation: Option<u32>) -> Option<PostRef<T>> {
    debug_assert!(uses_post_refs((T::KIND as u64) << StateWord::KIND_SHIFT), "{:?}", T::KIND);
    let entry = arena::at(handle)?;
    let is_shared = || {
        // Acquire pairs with the Release in `publish`, and with the end of an exclusion.
        let word = entry.word.load(Ordering::Acquire);
        StateWord::is_shared(word, T::KIND) && generation.is_none_or(|g| g == StateWord::generation(word))
    };
    let protection = match hazard::protect(entry.address()) {
        Some(protection) if is_shared() => Some(protection),
        refused => {
            if !entry.acquire_instead(refused, T::KIND, generation) {
                return None;
            }
            None
        }
    };
    // Never null while the object is live.
    let object = NonNull::new(entry.object.load(Ordering::Relaxed).cast::<T>())?;
    Some(PostRef { entry, object, protection })
}

/// A checked EVD handle: it referred to a live EVD when `of` was called. The EVD may have been freed since.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct EvdHandle(&'static HandleEntry);

impl EvdHandle {
    /// Checks the handle. Returns `None` if it does not refer to a live EVD.
    #[inline(always)]
    pub fn of(handle: *mut c_void) -> Option<EvdHandle> {
        let entry = arena::at(handle as usize)?;
        if !StateWord::is(entry.word.load(Ordering::Acquire), Kind::Evd) {
            return None;
        }
        Some(EvdHandle(entry))
    }

    /// Whether the EVD's empty check indicates that there is no event. Acquires no reference.
    #[inline(always)]
    pub fn has_no_event(self) -> bool {
        if cfg!(loom) {
            return false; // models of EVDs leave the check out; it has a model of its own
        }
        // SAFETY: before the EVD was published, `set_empty_check` stored a reference that is valid for ever.
        unsafe { &*self.0.empty_check.load(Ordering::Acquire) }.is_empty()
    }

    /// Returns the EVD, with an uncounted reference; `None` for the reasons of [`from_handle_quick`]. Unlike that
    /// function, claims hazard slots for a thread that has none yet.
    #[inline(always)]
    pub fn object<T: Object>(self) -> Option<QuickRef<T>> {
        quick_ref(self.0, hazard::protect_first(self.0.address())?)
    }

    /// Protects the EVD by the first hazard slot of this thread. Returns `None` if the thread has no slots yet or the
    /// first one is not free; the caller then calls [`from_handle_for_post`].
    #[inline(always)]
    pub fn protect(self) -> Option<EvdUse> {
        hazard::protect_again(self.0.address()).map(|protection| EvdUse(ManuallyDrop::new(protection)))
    }

    #[inline(always)]
    pub fn handle(self) -> *mut c_void {
        self.0.address() as *mut c_void
    }
}

/// Protection of an EVD by the first hazard slot of this thread, like a [`QuickRef`]. It is one word and has no
/// destructor, so that the fast path saves few registers and can end in a tail call.
#[must_use = "without `end`, the EVD is never dropped"]
#[repr(transparent)]
pub struct EvdUse(ManuallyDrop<Protection>);

impl EvdUse {
    /// Returns the object, which is valid until `end`. Returns `None` if the reference must be counted, or the handle
    /// is invalid.
    #[inline(always)]
    pub fn object<T: Object>(&self) -> Option<NonNull<T>> {
        let entry = self.entry();
        // Acquire pairs with the Release in `publish`, and with the end of an exclusion.
        if !StateWord::is_shared(entry.word.load(Ordering::Acquire), T::KIND) {
            return None;
        }
        // SAFETY: `publish` has stored the object before it set the live bit.
        Some(unsafe { NonNull::new_unchecked(entry.object.load(Ordering::Relaxed).cast::<T>()) })
    }

    /// Converts the protection into a reference.
    ///
    /// # Safety
    /// [`Self::object`] has returned an object of this type.
    #[inline(always)]
    pub unsafe fn into_ref<T: Object>(self) -> QuickRef<T> {
        let entry = self.entry();
        // SAFETY: the caller guarantees that `object` has returned this pointer, which is not null.
        let object = unsafe { NonNull::new_unchecked(entry.object.load(Ordering::Relaxed).cast::<T>()) };
        QuickRef { entry, object, protection: self.0 }
    }

    /// Ends the protection.
    #[inline(always)]
    pub fn end(self) {
        let entry = self.entry();
        entry.end_protection(ManuallyDrop::into_inner(self.0));
    }

    #[inline(always)]
    fn entry(&self) -> &'static HandleEntry {
        // SAFETY: `EvdHandle::protect` has stored the address of an entry in the slot, and entries are never unmapped.
        unsafe { &*(self.0.address() as *const HandleEntry) }
    }
}

/// Sets the empty check of an EVD that is being created, and returns the field that stores it. Must be called for each
/// EVD before it is published.
pub fn set_empty_check(id: ObjectId, check: &'static EmptyCheck) -> Option<&'static AtomicPtr<EmptyCheck>> {
    let place = &arena::at(id.handle)?.empty_check;
    place.store(std::ptr::from_ref(check).cast_mut(), Ordering::Relaxed);
    Some(place)
}

/// Like [`from_handle`], but returns `None` for a null handle.
pub fn from_optional<T: Object>(handle: *mut c_void, wanted: Handle) -> Result<Option<Ref<T>>> {
    if handle.is_null() { Ok(None) } else { from_handle(handle, wanted).map(Some) }
}

/// Returns the object with this id if it is live, with a counted reference.
pub fn from_id<T: Object>(id: ObjectId) -> Option<Ref<T>> {
    acquire(id.handle, Some(id.generation))
}

#[inline(always)]
fn acquire<T: Object>(handle: usize, generation: Option<u32>) -> Option<Ref<T>> {
    let entry = arena::at(handle)?;
    if !entry.acquire(T::KIND, generation) {
        return None;
    }
    let object = NonNull::new(entry.object.load(Ordering::Relaxed).cast::<T>())?;
    Some(Ref { entry, object, _owns: PhantomData })
}

/// Whether `id` refers to a live object.
pub fn is_live(id: ObjectId) -> bool {
    arena::at(id.handle).is_some_and(|entry| {
        let word = entry.word.load(Ordering::Acquire);
        word & StateWord::LIVE != 0 && StateWord::generation(word) == id.generation
    })
}

/// The DAT type of a handle; `None` if the handle is not live.
pub fn handle_type(handle: *mut c_void) -> Option<DAT_HANDLE_TYPE> {
    let word = arena::at(handle as usize)?.word.load(Ordering::Acquire);
    (word & StateWord::LIVE != 0).then(|| DAT_HANDLE_TYPE::from(StateWord::kind(word) - 1))
}

/// The consumer context of a live object of any kind.
pub fn context(handle: *mut c_void) -> Option<&'static AtomicU64> {
    handle_type(handle)?;
    Some(&arena::at(handle as usize)?.context)
}

/// The futex word that waiters on this object sleep on. It stays valid after the object is dropped.
pub fn futex(id: ObjectId) -> Option<&'static AtomicU32> {
    Some(&arena::at(id.handle)?.futex)
}

/// Like [`destroy`], but returns `InvalidHandle(wanted)` if the handle was not live.
pub fn free(id: ObjectId, wanted: Handle) -> Result<()> {
    if destroy(id) { Ok(()) } else { Err(Error::InvalidHandle(wanted)) }
}

/// Invalidates a handle: later calls with it fail. The object is dropped when its last user is done.
///
/// Returns false if the handle was not live, for example because another thread has freed the object.
pub fn destroy(id: ObjectId) -> bool {
    let Some(entry) = arena::at(id.handle) else { return false };
    let mut word = entry.word.load(Ordering::Relaxed);
    loop {
        if word & StateWord::LIVE == 0 || StateWord::generation(word) != id.generation {
            return false;
        }
        // The added reference delays `drop_if_unused` until the release below.
        let dead = (word & !StateWord::LIVE) + StateWord::REFERENCE;
        match entry.word.compare_exchange_weak(word, dead, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => word = now,
        }
    }
    entry.release_reference();
    true
}

#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod interleavings;
