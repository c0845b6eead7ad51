//! Creates objects. The handle of an object is refused until the object is published.

use std::ffi::c_void;
use std::sync::Arc;

use dat_abi::DAT_PROVIDER;

use super::word::StateWord;
use super::{HandleEntry, Object, ObjectId, arena};
use crate::error::{Error, Result};
use crate::runtime::sync::Ordering;

/// Creates an object with a handle that is not live yet. `build` gets the object's id.
///
/// Errors: `Exhausted(Memory)` if no table entry is free, or if the arena cannot be reserved; those of `build`.
pub fn create<T: Object>(
    table: *const DAT_PROVIDER,
    build: impl FnOnce(ObjectId) -> Result<T>,
) -> Result<UnpublishedObject<T>> {
    let handle = arena::allocate_entry()?;
    let entry = arena::at(handle).ok_or(Error::Internal)?;
    let generation = StateWord::generation(entry.word.load(Ordering::Acquire));
    let id = ObjectId { handle, generation };
    let object = match build(id) {
        Ok(object) => Arc::new(object),
        Err(error) => {
            arena::quarantine(handle);
            return Err(error);
        }
    };
    entry.table.store(table.cast_mut(), Ordering::Relaxed);
    entry.context.store(0, Ordering::Relaxed);
    Ok(UnpublishedObject { entry, id, object: Some(object) })
}

/// An object whose handle is not live yet. [`UnpublishedObject::publish`] makes the handle live; dropping this frees
/// the object.
pub struct UnpublishedObject<T: Object> {
    entry: &'static HandleEntry,
    id: ObjectId,
    /// The object; removed by `publish`.
    object: Option<Arc<T>>,
}

impl<T: Object> UnpublishedObject<T> {
    pub fn object(&self) -> &Arc<T> {
        self.object.as_ref().expect("the object is present until `publish`")
    }

    /// Id of the object. Its handle becomes valid with `publish`.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Makes the handle live and returns it.
    pub fn publish(mut self) -> *mut c_void {
        let object = self.object.take().expect("the object is present until `publish`");
        let release: fn(*const c_void) = |object| {
            // SAFETY: `object` comes from the `Arc::into_raw` below; `drop_if_unused` releases it once.
            drop(unsafe { Arc::from_raw(object.cast::<T>()) });
        };
        self.entry.release.store(release as *mut c_void, Ordering::Relaxed);
        self.entry.object.store(Arc::into_raw(object).cast_mut().cast(), Ordering::Relaxed);
        // Release pairs with the Acquire in `acquire`: the object is complete before the live bit is visible. The bits
        // are added, not stored, because a late reference of the previous generation may be counted in the word.
        self.entry.word.fetch_add((T::KIND as u64) << StateWord::KIND_SHIFT | StateWord::LIVE, Ordering::Release);
        self.id.handle as *mut c_void
    }
}

impl<T: Object> Drop for UnpublishedObject<T> {
    fn drop(&mut self) {
        if self.object.take().is_some() {
            arena::quarantine(self.id.handle);
        }
    }
}
