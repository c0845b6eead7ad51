//! Parts of buffers for transfers, the post of a transfer, and the error of a refused one, which returns the buffers.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Bound, RangeBounds};

use dat_abi::{DAT_CONTEXT, DAT_LMR_TRIPLET};

use crate::error::{Error, Result};
use crate::flight::{Buffers, Op, OpId, OutstandingTransfers};
use crate::memory::Buffer;

/// A part of a buffer: one segment of a transfer.
#[derive(Debug)]
pub struct Segment {
    buffer: Buffer,
    start: usize,
    length: usize,
}

impl Segment {
    /// Creates a segment of this range of the buffer.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the buffer.
    pub fn new(buffer: Buffer, range: impl RangeBounds<usize>) -> Result<Self, PostError> {
        match part(range, buffer.len()) {
            Ok((start, length)) => Ok(Segment { buffer, start, length }),
            Err(error) => Err(PostError { error, buffer, more: Vec::new() }),
        }
    }
}

/// A transfer that could not be posted, and its buffers.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct PostError {
    /// The reason why the transfer was not posted.
    #[source]
    pub error: Error,
    /// The buffer, or the first of several, unchanged.
    pub buffer: Buffer,
    /// The other buffers.
    pub more: Vec<Buffer>,
}

impl fmt::Debug for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl OutstandingTransfers {
    /// Stores the buffers of a transfer and posts it by `post`, which gets its cookie. If that fails, the error returns
    /// the buffers.
    pub(crate) fn post(
        &mut self,
        op: Op,
        buffers: Buffers,
        is_suppressed: bool,
        post: impl FnOnce(DAT_CONTEXT) -> Result<()>,
    ) -> Result<OpId, PostError> {
        let id = self.enter(op, buffers, is_suppressed);
        post(DAT_CONTEXT { as_64: id.0 }).map(|()| id).map_err(|error| {
            let Buffers { first, more } =
                self.withdraw(id).expect("only a completion removes a transfer, and this one was not posted");
            PostError { error, buffer: first, more }
        })
    }
}

/// Returns the buffers of the segments, and the segments for the DAT call, without empty ones.
pub(crate) fn buffers_and_triplets(first: Segment, more: Vec<Segment>) -> (Buffers, Vec<DAT_LMR_TRIPLET>) {
    let parts = std::iter::once(&first).chain(&more).filter(|part| part.length > 0);
    let segments = parts.map(|part| part.buffer.0.segment(part.start, part.length)).collect();
    let more = more.into_iter().map(|part| part.buffer).collect();
    (Buffers { first: first.buffer, more }, segments)
}

/// Returns start and length of a range in a buffer or window of `all` bytes. Fails if the range is not inside it.
pub(crate) fn part(range: impl RangeBounds<usize>, all: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(all),
    };
    let part = start.zip(end).filter(|(start, end)| start <= end && *end <= all);
    let (start, end) = part.ok_or_else(|| {
        let (start, end) = (range.start_bound(), range.end_bound());
        Error::Argument(format!("the range {start:?} to {end:?} is not inside the memory of {all} bytes"))
    })?;
    Ok((start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_buffer_are_refused() {
        assert_eq!(part(.., 10).unwrap(), (0, 10));
        assert_eq!(part(3..7, 10).unwrap(), (3, 4));
        assert_eq!(part(3..=9, 10).unwrap(), (3, 7));
        assert_eq!(part(10.., 10).unwrap(), (10, 0));
        assert_eq!(part((Bound::Excluded(2), Bound::Unbounded), 10).unwrap(), (3, 7));
        assert!(part(3..11, 10).is_err());
        assert!(part(11.., 10).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "a caller may pass such a range")]
        {
            assert!(part(7..3, 10).is_err());
        }
        assert!(part(0..=usize::MAX, 10).is_err(), "ends do not wrap");
        assert!(part((Bound::Excluded(usize::MAX), Bound::Unbounded), 10).is_err());
    }
}
