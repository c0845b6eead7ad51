//! The segments of a work request, and copies between them and a provider's buffers.
//!
//! Each copy checks its segments, because a registration may end between the post and the copy. A copy holds a
//! reference on the registration, or is part of a post that deregistration waits for. Consumer memory is accessed by
//! raw pointers and atomics only, because other threads may change it at any time.

use crate::memory::user_copy::{self, RegisteredRange, TimeSlot};
use dapl::provider::{Region, Segment, Status};

/// Maximum number of segments that are stored without an allocation.
const INLINE_SEGMENTS: usize = 4;

/// Access to the registrations of this process.
pub trait LocalMemory {
    /// A guard that holds a reference on a registration.
    type Guard<'a>
    where
        Self: 'a;

    /// Takes a reference on the registration of `segment` for a copy from the segment, or into it if `write` is true.
    /// Does not check whether the memory is mapped.
    ///
    /// Error: the status of the work request, if `segment` is not registered in `pd` for this access.
    fn acquire_segment(&self, pd: u32, segment: &Segment, write: bool) -> Result<Self::Guard<'_>, Status>;

    /// Whether `acquire_segment` would succeed. The caller either holds a guard of this key, or runs in a post that
    /// deregistration waits for (`SendWr::announced`).
    fn allows_segment(&self, pd: u32, segment: &Segment, write: bool) -> bool;

    /// Returns the whole registration of a key. The caller holds a reference, or deregistration waits for the caller's
    /// post.
    fn registration(&self, key: u32) -> RegisteredRange<'_>;
}

/// The segments of one work request.
#[derive(Debug, Default)]
pub struct Segments {
    few: [Segment; INLINE_SEGMENTS],
    count: usize,
    /// The list, if `count` exceeds `INLINE_SEGMENTS`. Otherwise it is not used, and may be a previous list.
    more: Option<Box<[Segment]>>,
    total: u64,
}

/// Returns the total length of a list in bytes. A total that exceeds 64 bits saturates.
#[inline(always)]
pub fn total(list: &[Segment]) -> u64 {
    match list {
        [one] => one.length,
        _ => list.iter().fold(0, |sum, segment| sum.saturating_add(segment.length)),
    }
}

impl Segments {
    /// Copies a list of segments.
    #[inline]
    pub fn new(list: &[Segment]) -> Self {
        let total = total(list);
        let mut few = [Segment::default(); INLINE_SEGMENTS];
        let more = if let Some(head) = few.get_mut(..list.len()) {
            head.copy_from_slice(list);
            None
        } else {
            Some(list.into())
        };
        Segments { few, count: list.len(), more, total }
    }

    /// Replaces the list. For a list of one segment, the common case, writes only that segment.
    #[inline(always)]
    pub fn set(&mut self, list: &[Segment]) {
        let [one] = list else { return *self = Segments::new(list) };
        self.set_one(one);
    }

    /// Replaces the list by one segment.
    #[inline(always)]
    pub fn set_one(&mut self, one: &Segment) {
        // `more` keeps a previous longer list, which `list` ignores while `count` is at most `INLINE_SEGMENTS`.
        (self.few[0], self.count, self.total) = (*one, 1, one.length);
    }

    /// Returns the total length in bytes.
    #[inline]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the segment of a list that has exactly one.
    #[inline(always)]
    fn single(&self) -> Option<&Segment> {
        (self.count == 1).then_some(&self.few[0])
    }

    #[inline]
    fn list(&self) -> &[Segment] {
        match &self.more {
            Some(more) if self.count > INLINE_SEGMENTS => more,
            _ => &self.few[..self.count],
        }
    }

    /// Returns the parts of segments that cover `length` bytes from `offset` on. Empty segments are skipped.
    #[inline]
    pub fn slice(&self, offset: u64, length: u64) -> impl Iterator<Item = Segment> + '_ {
        let (mut skip, mut remaining) = (offset, length);
        self.list().iter().filter_map(move |segment| {
            let skipped = skip.min(segment.length);
            skip -= skipped;
            let length = remaining.min(segment.length - skipped);
            remaining -= length;
            let address = segment.address.wrapping_add(skipped);
            (length > 0).then_some(Segment { address, length, ..*segment })
        })
    }
}

/// Copies `length` bytes of the request's memory, from `offset` on, to `to`.
///
/// Errors: `LocalProtection` if the memory is not registered in `pd`, or not mapped for reading.
///
/// # Safety
/// `length` bytes at `to` are writable and belong to this call.
pub unsafe fn gather(
    memory: &impl LocalMemory,
    pd: u32,
    segments: &Segments,
    offset: u64,
    to: *mut u8,
    length: usize,
) -> Result<(), Status> {
    let mut done = 0;
    for segment in segments.slice(offset, length as u64) {
        let _guard = memory.acquire_segment(pd, &segment, false)?;
        let registration = || memory.registration(segment.key);
        // SAFETY: the source is registered memory with a reference held during the copy. The segments add up to at most
        // `length`, so the destination is within the caller's guarantee.
        let is_copied =
            unsafe { user_copy::read(segment.address, to.add(done), segment.length as usize, registration) };
        if !is_copied {
            return Err(Status::LocalProtection);
        }
        done += segment.length as usize;
    }
    Ok(())
}

/// Copies all of one segment to `to`, if it is in one page that was used recently. Takes no reference on the
/// registration.
///
/// Returns false if the segment is in several pages or its page was not used recently, or if the segment is not valid.
/// The caller then uses [`gather`], which checks the memory and copies or fails.
///
/// # Safety
/// `to` has space for the segment, and belongs to this call. The call is part of a post that deregistration waits for
/// (`SendWr::announced`).
#[inline(always)]
pub unsafe fn gather_recent(memory: &impl LocalMemory, pd: u32, segment: &Segment, to: *mut u8) -> bool {
    if !memory.allows_segment(pd, segment, false) {
        return false;
    }
    // SAFETY: deregistration waits for this post, so the memory stays registered during the copy.
    unsafe { user_copy::read_recent(segment.address, to, segment.length as usize, TimeSlot::now()) }
}

/// Same as [`gather_recent`], but also copies other memory, after a check if it was not used recently.
///
/// # Safety
/// Same as [`gather_recent`].
#[inline]
pub unsafe fn gather_announced(memory: &impl LocalMemory, pd: u32, segment: &Segment, to: *mut u8) -> bool {
    let registration = || memory.registration(segment.key);
    // SAFETY: deregistration waits for this post, so the memory stays registered during the copy. The caller guarantees
    // the space at `to`.
    memory.allows_segment(pd, segment, false)
        && unsafe { user_copy::read(segment.address, to, segment.length as usize, registration) }
}

/// A series of short copies to memory of one protection domain, within microseconds. Consecutive copies into one
/// registration share a reference on it. [`ScatterBatch::scatter_recent`] reads the time only once for several copies.
pub struct ScatterBatch<'a, M: LocalMemory> {
    memory: &'a M,
    pd: u32,
    /// The registration of the last copy.
    guarded: Option<GuardedRegion<M::Guard<'a>>>,
    time: Option<TimeSlot>,
}

/// A writable registration, with a reference that keeps it unchanged.
struct GuardedRegion<G> {
    key: u32,
    region: Region,
    _guard: G,
}

impl<G> GuardedRegion<G> {
    /// Whether the first `length` bytes of a segment are in this registration.
    #[inline(always)]
    fn covers(&self, segment: &Segment, length: u64) -> bool {
        // An address below the base gives an offset that wraps, and is larger than any length.
        let offset = segment.address.wrapping_sub(self.region.address);
        let most = self.region.length.checked_sub(length);
        self.key == segment.key && most.is_some_and(|most| offset <= most)
    }
}

impl<'a, M: LocalMemory> ScatterBatch<'a, M> {
    pub fn new(memory: &'a M, pd: u32) -> Self {
        ScatterBatch { memory, pd, guarded: None, time: None }
    }

    /// Makes the next copy read the time again. Must be called after work that may take longer than a time slot.
    pub fn forget_time(&mut self) {
        self.time = None;
    }

    /// Copies `length` bytes from `from` to a list of one segment, if they go to one page that was used recently.
    ///
    /// Returns false if the list has several segments, if the bytes go to several pages or to a page that was not used
    /// recently, or if the segment is too short or not valid. The caller then uses [`scatter`], which copies or fails.
    ///
    /// # Safety
    /// Same as [`scatter`].
    #[inline(always)]
    pub unsafe fn scatter_recent(&mut self, segments: &Segments, from: *const u8, length: u64) -> bool {
        let Some(segment) = self.acquire(segments, length) else { return false };
        let time = *self.time.get_or_insert_with(TimeSlot::now);
        // SAFETY: `guarded` holds a reference on the registration during the copy. The caller guarantees the bytes at
        // `from`.
        unsafe { user_copy::write_recent(from, segment.address, length as usize, time) }
    }

    /// Same as [`ScatterBatch::scatter_recent`], but also copies to other memory, after a check if it was not used
    /// recently.
    ///
    /// # Safety
    /// Same as [`scatter`].
    #[inline]
    pub unsafe fn scatter(&mut self, segments: &Segments, from: *const u8, length: u64) -> bool {
        let Some(segment) = self.acquire(segments, length) else { return false };
        let registration = || self.memory.registration(segment.key);
        // SAFETY: `guarded` holds a reference on the registration during the copy. The caller guarantees the bytes at
        // `from`.
        unsafe { user_copy::write(from, segment.address, length as usize, registration) }
    }

    /// Returns the segment of a list of one, after taking a reference on its registration. Returns `None` if fewer than
    /// `length` bytes of it may be written.
    #[inline(always)]
    fn acquire<'s>(&mut self, segments: &'s Segments, length: u64) -> Option<&'s Segment> {
        let segment = segments.single().filter(|segment| length <= segment.length)?;
        let is_guarded = self.guarded.as_ref().is_some_and(|region| region.covers(segment, length));
        (is_guarded || self.guard_region(segment, length)).then_some(segment)
    }

    #[inline(never)]
    fn guard_region(&mut self, segment: &Segment, length: u64) -> bool {
        let clipped = Segment { length, ..*segment };
        self.guarded = self.memory.acquire_segment(self.pd, &clipped, true).ok().map(|guard| {
            let RegisteredRange { region, .. } = self.memory.registration(clipped.key);
            GuardedRegion { key: clipped.key, region, _guard: guard }
        });
        self.guarded.is_some()
    }
}

/// Copies `length` bytes from `from` to the request's memory, from `offset` on.
///
/// Errors: `LocalProtection` if the memory is not registered in `pd` for writing, or not mapped for writing.
///
/// # Safety
/// `length` bytes at `from` are readable. Other processes may change them at any time.
pub unsafe fn scatter(
    memory: &impl LocalMemory,
    pd: u32,
    segments: &Segments,
    offset: u64,
    from: *const u8,
    length: usize,
) -> Result<(), Status> {
    let mut done = 0;
    for segment in segments.slice(offset, length as u64) {
        let _guard = memory.acquire_segment(pd, &segment, true)?;
        let registration = || memory.registration(segment.key);
        // SAFETY: the guard holds a reference on the registration during the copy. The segments have at most `length`
        // bytes, which the caller guarantees at `from`.
        let is_copied =
            unsafe { user_copy::write(from.add(done), segment.address, segment.length as usize, registration) };
        if !is_copied {
            return Err(Status::LocalProtection);
        }
        done += segment.length as usize;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::user_copy::MappingChecker;

    fn segment(address: u64, length: u64) -> Segment {
        Segment { key: 1, pad: 0, address, length }
    }

    #[test]
    fn list_of_one_segment_replaces_a_longer_list() {
        let mut segments = Segments::new(&[segment(100, 1); INLINE_SEGMENTS + 2]);
        assert_eq!(
            (segments.slice(0, 99).count(), segments.total()),
            (INLINE_SEGMENTS + 2, INLINE_SEGMENTS as u64 + 2)
        );
        segments.set_one(&segment(7, 3));
        assert_eq!(segments.slice(0, 99).map(|s| (s.address, s.length)).collect::<Vec<_>>(), [(7, 3)]);
        assert_eq!(segments.total(), 3);
    }

    #[test]
    fn slice_covers_the_range_and_skips_empty_segments() {
        let list = [
            segment(100, 10),
            segment(u64::MAX, 0),
            segment(200, 5),
            segment(300, 5),
            segment(400, 1),
            segment(500, 9),
        ];
        let segments = Segments::new(&list);
        assert_eq!(segments.total(), 30);
        let found: Vec<_> = segments.slice(8, 10).map(|s| (s.address, s.length)).collect();
        assert_eq!(found, [(108, 2), (200, 5), (300, 3)]);
        assert_eq!(segments.slice(0, 0).count(), 0);
        assert_eq!(segments.slice(29, 100).map(|s| s.length).sum::<u64>(), 1);
        assert_eq!(Segments::new(&[segment(0, u64::MAX), segment(0, 2)]).total(), u64::MAX);
    }

    /// Memory with one readable registration in protection domain 1.
    struct FakeMemory {
        key: u32,
        /// Whether the registration may also be written.
        is_writable: bool,
        region: Region,
        references: Cell<u32>,
        checker: MappingChecker,
    }

    impl FakeMemory {
        fn new(key: u32) -> Self {
            let (references, checker) = (Cell::new(0), MappingChecker::default());
            FakeMemory { key, is_writable: false, region: Region { address: 0, length: 0 }, references, checker }
        }
    }

    struct FakeGuard<'a>(&'a Cell<u32>);

    impl Drop for FakeGuard<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    impl LocalMemory for FakeMemory {
        type Guard<'a> = FakeGuard<'a>;

        fn acquire_segment(&self, pd: u32, segment: &Segment, write: bool) -> Result<FakeGuard<'_>, Status> {
            self.references.set(self.references.get() + 1);
            let guard = FakeGuard(&self.references);
            if self.allows_segment(pd, segment, write) { Ok(guard) } else { Err(Status::LocalProtection) }
        }

        fn allows_segment(&self, pd: u32, segment: &Segment, write: bool) -> bool {
            pd == 1 && segment.key == self.key && (self.is_writable || !write)
        }

        fn registration(&self, _: u32) -> RegisteredRange<'_> {
            RegisteredRange { region: self.region, checker: &self.checker }
        }
    }

    #[test]
    fn batch_holds_one_reference_and_copies_within_its_registration() {
        let (source, mut sink) = ([3u8; 16], [0u8; 64]);
        let base = sink.as_mut_ptr() as u64;
        let mut memory = FakeMemory::new(9);
        (memory.is_writable, memory.region) = (true, Region { address: base, length: 48 });
        let mut batch = ScatterBatch::new(&memory, 1);
        let list = |key, at: u64, length| Segments::new(&[Segment { key, pad: 0, address: base + at, length }]);
        // SAFETY: `source` and `sink` are local arrays that are longer than each copy.
        let mut copies = |list: Segments, length| unsafe { batch.scatter(&list, source.as_ptr(), length) };
        assert!(copies(list(9, 0, 16), 16) && copies(list(9, 40, 16), 8));
        assert!(!copies(list(9, 0, 8), 16), "longer than the segment");
        assert_eq!(memory.references.get(), 1);
        assert!(!copies(list(8, 0, 16), 16), "another key");
        assert_eq!(memory.references.get(), 0);
        assert!(copies(list(9, 16, 16), 8));
        drop(batch);
        assert_eq!(memory.references.get(), 0);
        let expected: Vec<_> = (0..64).map(|n| if matches!(n, 0..24 | 40..48) { 3 } else { 0 }).collect();
        assert_eq!(sink[..], expected);
    }

    #[test]
    fn registration_of_a_batch_is_checked_for_each_range() {
        let guarded = GuardedRegion { key: 9, region: Region { address: 4096, length: 48 }, _guard: () };
        let covers = |key, address, length| guarded.covers(&Segment { key, ..segment(address, 100) }, length);
        assert!(covers(9, 4096, 48) && covers(9, 4143, 1) && covers(9, 4144, 0));
        assert!(!covers(9, 4096, 49) && !covers(9, 4144, 1) && !covers(9, 4095, 1) && !covers(8, 4096, 1));
        assert!(!covers(9, 0, 1) && !covers(9, u64::MAX, 48) && !covers(9, 4097, u64::MAX));
    }

    #[test]
    fn copies_check_rights_and_release_their_references() {
        let memory = FakeMemory::new(9);
        let (source, mut sink) = ([3u8; 64], [0u8; 64]);
        let base = source.as_ptr() as u64;
        let list = |key| {
            let segment = |at, length| Segment { key, pad: 0, address: base + at, length };
            Segments::new(&[segment(0, 20), segment(20, 44)])
        };
        // SAFETY: `sink` is a local array of 64 bytes.
        assert_eq!(unsafe { gather(&memory, 1, &list(9), 0, sink.as_mut_ptr(), 64) }, Ok(()));
        assert_eq!((sink, memory.references.get()), (source, 0));
        // SAFETY: `sink` is a local array of 64 bytes.
        let refused = unsafe { scatter(&memory, 1, &list(9), 0, sink.as_ptr(), 64) };
        assert_eq!(refused, Err(Status::LocalProtection), "no right to write");
        for (pd, key) in [(2, 9), (1, 8)] {
            // SAFETY: `sink` is a local array of 64 bytes.
            let refused = unsafe { gather(&memory, pd, &list(key), 0, sink.as_mut_ptr(), 64) };
            assert_eq!((refused, memory.references.get()), (Err(Status::LocalProtection), 0));
        }
        let unmapped = Segments::new(&[Segment { key: 9, pad: 0, address: 4096, length: 64 }]);
        // SAFETY: `sink` is a local array of 64 bytes.
        let refused = unsafe { gather(&memory, 1, &unmapped, 0, sink.as_mut_ptr(), 64) };
        assert_eq!((refused, memory.references.get()), (Err(Status::LocalProtection), 0), "not mapped");
    }
}
