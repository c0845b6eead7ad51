//! Allocator of the cache lines of a message buffer or RMA buffer.
#![forbid(unsafe_code)]

use crate::proto::message::LINE;

/// Allocator of the cache lines of a buffer in the local area. Lines are released in the order in which they were
/// reserved.
pub(crate) struct LineAllocator {
    lines: u64,
    /// Number of lines that were reserved since the start, including lines skipped at the end of the buffer.
    head: u64,
    /// Number of lines that were released since the start.
    tail: u64,
}

impl LineAllocator {
    pub(crate) fn new(bytes: u32) -> Self {
        LineAllocator { lines: u64::from(bytes) / LINE as u64, head: 0, tail: 0 }
    }

    /// Reserves `wanted` consecutive lines. Returns the index of the first line, and the mark for
    /// [`LineAllocator::release`]. `None`: the buffer has no space.
    #[inline]
    pub(crate) fn reserve(&mut self, wanted: usize) -> Option<(u32, u64)> {
        let found = self.find_space(wanted)?;
        self.reserve_found(found.1);
        Some(found)
    }

    /// Finds space as [`LineAllocator::reserve`] does, but does not reserve it. [`LineAllocator::reserve_found`] then
    /// reserves the lines.
    #[inline]
    pub(crate) fn find_space(&self, wanted: usize) -> Option<(u32, u64)> {
        let wanted = wanted as u64;
        let at = self.head % self.lines;
        let skip = if at + wanted > self.lines { self.lines - at } else { 0 };
        if self.head + skip + wanted - self.tail > self.lines {
            return None;
        }
        let first = (at + skip) % self.lines;
        Some((first as u32, self.head + skip + wanted))
    }

    /// Reserves the lines that [`LineAllocator::find_space`] has returned with this mark.
    #[inline]
    pub(crate) fn reserve_found(&mut self, mark: u64) {
        self.head = mark;
    }

    /// Number of bytes that are reserved, or were skipped at the end of the buffer.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        (self.head - self.tail) * LINE as u64
    }

    /// Releases all lines that were reserved up to `mark`, including those of earlier marks.
    pub(crate) fn release(&mut self, mark: u64) {
        self.tail = self.tail.max(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lines_in_use_are_not_reserved_again() {
        let mut lines = LineAllocator::new(64 * 10);
        let (first, mark) = lines.reserve(6).unwrap();
        assert_eq!(first, 0);
        assert!(lines.reserve(5).is_none());
        let (second, _) = lines.reserve(4).unwrap();
        assert_eq!(second, 6);
        assert_eq!(lines.bytes_in_use(), 64 * 10);
        lines.release(mark);
        assert_eq!(lines.bytes_in_use(), 64 * 4);
        assert_eq!(lines.reserve(6).map(|(first, _)| first), Some(0));
        assert!(lines.reserve(1).is_none());
    }
}
