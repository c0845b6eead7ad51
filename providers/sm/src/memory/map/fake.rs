//! Shared areas of loom models: words that are initially zero, and no bytes.
//!
//! Both processes of a model use the same area, instead of two mappings. Loom cannot check copies of bytes, so models
//! use words for the content of rings.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::Region;
use dapl::runtime::empty_check::RingWatch;
use dapl::runtime::sync::AtomicU64;

/// A mapping of an area.
#[derive(Clone)]
pub(crate) struct SharedMapping(Arc<Area>);

struct Area {
    len: usize,
    words: Box<[AtomicU64]>,
}

impl SharedMapping {
    /// Creates an area. Clones of it refer to the same area.
    pub(crate) fn fake(len: usize) -> SharedMapping {
        SharedMapping(Arc::new(Area { len, words: (0..len / 8).map(|_| AtomicU64::new(0)).collect() }))
    }

    /// Creates an area with a dummy descriptor.
    pub(crate) fn create(_: &str, len: usize, _: bool) -> Result<(SharedMapping, OwnedFd)> {
        let nowhere = std::fs::File::open("/dev/null").map_err(|_| Error::Internal)?;
        Ok((SharedMapping::fake(len), nowhere.into()))
    }

    pub(crate) fn of_peer(_: &OwnedFd, _: usize, _: bool) -> Option<SharedMapping> {
        None
    }

    pub(crate) fn of_peer_rings(_: &OwnedFd, _: usize) -> Option<SharedMapping> {
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        &self.0.words[offset / 8]
    }

    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8));
        self.0.words[offset / 8..][..N].try_into().expect("the slice has this length")
    }

    pub(crate) fn bytes(&self, _: usize, _: usize) -> Option<*mut u8> {
        None
    }

    pub(crate) fn is_writable(&self) -> bool {
        true
    }

    pub(crate) fn watch_consumed(&self, _: usize, _: &RingWatch) {}
}

/// The slots of a ring in an area.
pub(crate) struct RingSlots<const WORDS: usize> {
    area: Arc<SharedMapping>,
    offset: usize,
    mask: u64,
}

impl<const WORDS: usize> RingSlots<WORDS> {
    pub(crate) fn new(area: Arc<SharedMapping>, offset: usize, count: u32) -> Self {
        assert!(count.is_power_of_two());
        RingSlots { area, offset, mask: u64::from(count) - 1 }
    }

    pub(crate) fn count(&self) -> u64 {
        self.mask + 1
    }

    pub(crate) fn words(&self, index: u64) -> &[AtomicU64; WORDS] {
        self.area.words(self.offset + (index & self.mask) as usize * WORDS * 8)
    }

    pub(crate) fn run(&self, index: u64) -> &[[AtomicU64; WORDS]] {
        let words = self.offset / 8..self.offset / 8 + self.count() as usize * WORDS;
        &self.area.0.words[words].as_chunks().0[(index & self.mask) as usize..]
    }

    pub(crate) fn prefetch_line<const OFFSET: usize>(_: &[AtomicU64; WORDS]) {}

    pub(crate) fn prefetch_ahead(_: &[AtomicU64; WORDS], _: usize) {}

    pub(crate) fn watch_slot(&self, _: u64, _: &RingWatch, _: u32) {}

    pub(crate) fn bytes<const OFFSET: usize>(&self, _: u64) -> *mut u8 {
        unreachable!("a model has no bytes")
    }

    pub(crate) fn prefetch_slot<const OFFSET: usize>(&self, _: u64, _: bool) {}
}

pub(crate) fn is_accessible(_: Region, _: bool) -> bool {
    true
}

/// Replaces the check of whether a peer's process is alive: in a model, it is always alive.
#[derive(Debug, Default)]
pub(crate) struct LastCheck;

impl LastCheck {
    pub(crate) fn is_valid_or(&self, _: &EngineTicks, _: impl FnOnce() -> bool) -> bool {
        true
    }
}

/// Replaces the clock: in a model, no time passes.
#[derive(Debug, Default)]
pub(crate) struct EngineTicks;

impl EngineTicks {
    pub(crate) fn tick(&self, _: bool) {}
}

/// Returns false, because a model maps no file.
pub(crate) fn is_ordinary(_: impl std::os::fd::AsFd) -> bool {
    false
}
