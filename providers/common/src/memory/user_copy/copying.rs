//! Copies between mapped ranges that other threads or processes may change at the same time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Copies a range, the last byte last, because programs poll the last byte of received data.
///
/// # Safety
/// Both ranges are mapped. Other threads or processes may change either range during the copy. The copied bytes are
/// then unspecified.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let Some(body) = length.checked_sub(1) else { return };
    // SAFETY: the caller guarantees that both ranges are mapped. Other processes may write the memory at any time, so
    // it is accessed by raw pointers and atomics only.
    unsafe {
        copy_body(from, to, body);
        let last = AtomicU8::from_ptr(from.add(body).cast_mut()).load(Ordering::Relaxed);
        // Pairs with the consumer's load of the last byte: a consumer that sees this byte also sees all others.
        fence(Ordering::Release);
        AtomicU8::from_ptr(to.add(body)).store(last, Ordering::Release);
    }
}

/// Same as [`copy`], but writes the last eight bytes by one store if there are 8 to 16 bytes and their end at the
/// destination is a multiple of eight.
///
/// # Safety
/// Same as [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_words(from: *const u8, to: *mut u8, length: usize) {
    let end = length.wrapping_sub(8);
    // SAFETY: the caller guarantees that both ranges are mapped. Both words are within the range, and the second word
    // is aligned at the destination.
    unsafe {
        if end > 8 || !(to as usize).wrapping_add(length).is_multiple_of(8) {
            return copy(from, to, length);
        }
        let (first, last) = (from.cast::<u64>().read_unaligned(), from.add(end).cast::<u64>().read_unaligned());
        to.cast::<u64>().write_unaligned(first);
        // Release pairs with the consumer's own load of the last byte.
        AtomicU64::from_ptr(to.add(end).cast()).store(last, Ordering::Release);
    }
}

/// Copies a range in any order. A copy of 4 to 64 bytes is two moves of fixed size, which may overlap in the middle.
///
/// # Safety
/// Same as [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_body(from: *const u8, to: *mut u8, length: usize) {
    type Half = [u64; 4];
    // SAFETY: the caller guarantees that both ranges are mapped. Each move begins at the start or ends at the end of
    // the range, and is not longer than the range.
    unsafe {
        // The most frequent lengths come first. A `match` would be compiled to a binary search.
        if (8..=16).contains(&length) {
            move_ends::<u64>(from, to, length);
        } else if (32..=64).contains(&length) {
            move_ends::<Half>(from, to, length);
        } else if (17..32).contains(&length) {
            move_ends::<u128>(from, to, length);
        } else if (4..8).contains(&length) {
            move_ends::<u32>(from, to, length);
        } else if length < 4 {
            (0..length).for_each(|n| to.add(n).write(from.add(n).read()));
        } else {
            std::ptr::copy(from, to, length);
        }
    }
}

/// Copies the first and the last `size_of::<T>()` bytes of a range.
///
/// # Safety
/// Same as [`copy`]. `length` is between one and two sizes of `T`.
#[inline(always)]
unsafe fn move_ends<T>(from: *const u8, to: *mut u8, length: usize) {
    let end = length - size_of::<T>();
    // SAFETY: the caller guarantees that both ranges are mapped, and have at least the size of `T`. `first` and `last`
    // are read before either is written, so they may overlap.
    unsafe {
        let (first, last) = (from.cast::<T>().read_unaligned(), from.add(end).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(first);
        to.add(end).cast::<T>().write_unaligned(last);
    }
}
