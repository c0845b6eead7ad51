//! Where a pass over a connection puts its completions: the array of the polling thread, or a completion queue.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::provider::{Completion, ReceivedOp, Status, Token};

use super::CqCore;

/// Destination of the completions of a pass. Completions of the queue that the calling thread polls are written to the
/// thread's array; other completions are added to their queue.
#[derive(Default)]
pub(crate) struct CompletionWriter<'a> {
    pub(super) poller: Option<(&'a Arc<CqCore>, &'a mut [Completion])>,
    pub(super) filled: usize,
}

impl CompletionWriter<'_> {
    /// Whether the poller's array is full. A pass then ends, and leaves further messages in the rings.
    pub(crate) fn is_full(&self) -> bool {
        self.poller.as_ref().is_some_and(|(_, out)| self.filled == out.len())
    }

    /// Adds a completion of `cq`, after all earlier completions of `cq`.
    #[inline(always)]
    pub(crate) fn put(&mut self, cq: &Arc<CqCore>, completion: Completion) {
        match self.next_entry(cq) {
            Some(entry) => *entry = completion,
            None => cq.push(completion),
        }
    }

    /// Returns the destination of the next completions of `cq`: the poller's array if `cq` is the polled queue and
    /// contains no completions, otherwise `cq`. The caller then passes [`FreeEntries::used`] to
    /// [`CompletionWriter::add_filled`].
    #[inline]
    pub(crate) fn free_entries<'a>(&'a mut self, cq: &'a Arc<CqCore>) -> FreeEntries<'a> {
        match &mut self.poller {
            Some((own, out)) if Arc::ptr_eq(own, cq) && own.ready.is_empty() => {
                let direct = out[self.filled..].iter_mut();
                FreeEntries { cq, free: direct.len(), most: direct.len(), direct }
            }
            _ => FreeEntries { cq, free: 0, most: usize::MAX, direct: [].iter_mut() },
        }
    }

    /// Records that the first `count` free entries were filled.
    #[inline]
    pub(crate) fn add_filled(&mut self, count: usize) {
        self.filled += count;
    }

    /// Returns the next free entry of the poller's array for a completion of `cq`. `None`: no entry is free, `cq` is
    /// not the polled queue, or it has queued completions, which must be reported first.
    #[inline(always)]
    fn next_entry(&mut self, cq: &Arc<CqCore>) -> Option<&mut Completion> {
        let (own, out) = self.poller.as_mut()?;
        if !Arc::ptr_eq(own, cq) || !own.ready.is_empty() {
            return None;
        }
        let entry = out.get_mut(self.filled)?;
        self.filled += 1;
        Some(entry)
    }
}

/// Destination of a sequence of successful completions: the poller's array, or their queue. See
/// [`CompletionWriter::free_entries`].
pub(crate) struct FreeEntries<'a> {
    cq: &'a Arc<CqCore>,
    /// Free entries of the poller's array; none if the completions are for the queue.
    direct: std::slice::IterMut<'a, Completion>,
    /// Number of entries that `direct` had at first.
    free: usize,
    /// Maximum number of completions that may be added; unlimited if they are for the queue.
    most: usize,
}

impl FreeEntries<'_> {
    /// Returns the maximum number of completions that may be added in total.
    #[inline(always)]
    pub(crate) fn max_completions(&self) -> usize {
        self.most
    }

    /// Number of entries of the poller's array that were used.
    #[inline(always)]
    pub(crate) fn used(&self) -> usize {
        self.free - self.direct.len()
    }

    /// Adds a completion. The fields are written one by one, because a copy of a record that was just written in
    /// smaller parts would stall on store forwarding.
    #[inline(always)]
    pub(crate) fn put(&mut self, token: &Token, bytes: u64, solicited: bool) {
        match self.direct.next() {
            Some(entry) => {
                entry.token = *token;
                (entry.status, entry.bytes, entry.solicited) = (Status::Success, bytes, solicited);
                entry.arrival = ReceivedOp::Send;
            }
            None => self.cq.push(Completion { token: *token, bytes, solicited, ..Completion::default() }),
        }
    }
}
