//! The C boundary: what every entry does around its one call.
//!
//! Only the entries (`dapl_*.rs`) use this room. No unwinding leaves here: an error becomes its code, a panic becomes
//! `DAT_INTERNAL_ERROR` and one log line. Out parameters are written last, and only on success.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dat_abi::{DAT_CLASS_ERROR, DAT_COUNT, DAT_INTERNAL_ERROR, DAT_LMR_TRIPLET, DAT_RETURN, DAT_SUCCESS};

use crate::error::{Error, Result};
use crate::provider::Segment;

/// Runs one entry: an `Err` becomes its DAT code, and a panic stops here, not in C.
pub fn guard(body: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => DAT_SUCCESS,
        Ok(Err(error)) => error.code(),
        Err(_) => panicked(),
    }
}

#[cold]
fn panicked() -> DAT_RETURN {
    log::error!("a panic was stopped at the C boundary; the call answers DAT_INTERNAL_ERROR");
    DAT_CLASS_ERROR | DAT_INTERNAL_ERROR
}

/// Writes an optional out parameter: null is "not wanted".
///
/// # Safety
/// `out` is null or points at a writable `T`.
pub unsafe fn put<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: this function's own contract. A C caller may hand out packed memory, hence unaligned.
        unsafe { out.write_unaligned(value) };
    }
}

/// `Err(InvalidParameter(n))` for a null pointer.
pub fn require<T>(pointer: *const T, n: u8) -> Result<()> {
    if pointer.is_null() { Err(Error::InvalidParameter(n)) } else { Ok(()) }
}

/// The local segments of a post. A [`Segment`] is laid out as a triplet, so nothing is copied.
///
/// Errors: a negative or too large count is parameter 2, a null list with a count is parameter 3.
///
/// # Safety
/// `list` is null or points at `count` triplets that do not change during the call.
pub unsafe fn segments<'a>(list: *const DAT_LMR_TRIPLET, count: DAT_COUNT, limit: usize) -> Result<&'a [Segment]> {
    let count = usize::try_from(count).map_err(|_| Error::InvalidParameter(2))?;
    if count > limit {
        return Err(Error::InvalidParameter(2));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || !list.is_aligned() {
        return Err(Error::InvalidParameter(3));
    }
    // SAFETY: this function's own contract; the layouts are equal (asserted below).
    Ok(unsafe { std::slice::from_raw_parts(list.cast::<Segment>(), count) })
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Segment>() == size_of::<DAT_LMR_TRIPLET>());
    assert!(align_of::<Segment>() == align_of::<DAT_LMR_TRIPLET>());
    assert!(offset_of!(Segment, key) == offset_of!(DAT_LMR_TRIPLET, lmr_context));
    assert!(offset_of!(Segment, address) == offset_of!(DAT_LMR_TRIPLET, virtual_address));
    assert!(offset_of!(Segment, length) == offset_of!(DAT_LMR_TRIPLET, segment_length));
};
