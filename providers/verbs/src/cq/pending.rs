//! Completions that were polled from the device or made in software and wait for the consumer, and the state of
//! notification.
//!
//! A device does not report which message was solicited. While the consumer waits for solicited messages only, an event
//! of the device indicates one, and may come after the completion was polled. This module calls no sink; it records
//! that a call is due.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::Completion;

/// Completions that the consumer has not polled; protected by the queue's lock.
#[derive(Default)]
pub(super) struct PendingCompletions {
    ready: VecDeque<Completion>,
    /// Whether the queue has no consumer.
    unread: bool,
    /// Whether the consumer has requested one notification.
    pub(super) wanted: bool,
    /// Whether the notification is due.
    pub(super) due: bool,
    /// Whether the device will report the next completion by an event.
    pub(super) armed: bool,
    /// Whether the consumer's last request was for solicited messages only.
    pub(super) solicited_only: bool,
    /// Whether the next completed receive may be the one that the event indicated.
    pub(super) solicited: bool,
}

/// Whether a receive was solicited, as far as known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solicited {
    pub(crate) now: bool,
    /// Whether the completion is held back until it is known whether it was solicited.
    pub(crate) later: bool,
}

/// Destination of completions: the buffer of a polling thread, if any.
pub(super) struct Out<'a> {
    pub(super) space: &'a mut [Completion],
    pub(super) filled: usize,
}

impl Out<'_> {
    pub(super) fn left(&self) -> usize {
        self.space.len() - self.filled
    }
}

impl PendingCompletions {
    /// `unread`: the queue has no consumer.
    pub(super) fn new(unread: bool) -> Self {
        PendingCompletions { unread, ..PendingCompletions::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether no completion waits, and none that a poll takes now may be solicited.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty() && !self.solicited && !(self.wanted && self.armed)
    }

    /// Adds a completion at the end.
    #[inline(never)]
    pub(super) fn push(&mut self, done: Completion) {
        if self.unread {
            return;
        }
        self.ready.push_back(done);
        // A message that is not known to be solicited does not end a wait for solicited messages.
        if self.wanted && (!self.solicited_only || done.is_notifying()) {
            self.wanted = false;
            self.due = true;
        }
    }

    /// Passes a completion directly to the poller, if none is queued before it.
    #[inline(always)]
    pub(super) fn put(&mut self, out: &mut Out<'_>, done: Completion) {
        match out.space.get_mut(out.filled) {
            Some(place) if self.ready.is_empty() => {
                *place = done;
                out.filled += 1;
            }
            _ => self.push(done),
        }
    }

    /// Moves waiting completions to the polling thread, whose buffer is empty.
    pub(super) fn give(&mut self, out: &mut Out<'_>) {
        let count = out.left().min(self.ready.len());
        for (place, done) in out.space.iter_mut().zip(self.ready.drain(..count)) {
            *place = done;
        }
        out.filled = count;
    }

    /// Records that the device has reported a solicited message or a failure: its completion is among the waiting ones,
    /// or is the next one.
    pub(super) fn may_be_solicited(&mut self) {
        if self.solicited_only {
            self.solicited = true;
            self.ready.iter_mut().for_each(|done| done.solicited |= done.token.work.is_recv());
        }
    }

    /// Whether a receive that completes now was solicited.
    #[inline(always)]
    pub(super) fn mark(&self) -> Solicited {
        Solicited { now: self.solicited, later: self.solicited || self.armed && self.solicited_only }
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::{Token, Work};

    use super::*;

    fn done(cookie: u64, work: Work) -> Completion {
        // An endpoint with solicited notification posts its receives like this.
        Completion {
            token: Token { cookie, work, unsignalled: work.is_recv(), ..Token::default() },
            ..Default::default()
        }
    }

    fn given(front: &mut PendingCompletions, count: usize) -> Vec<(u64, bool)> {
        let mut space = vec![Completion::default(); count];
        let mut out = Out { space: &mut space, filled: 0 };
        front.give(&mut out);
        let filled = out.filled;
        space[..filled].iter().map(|done| (done.token.cookie, done.solicited)).collect()
    }

    #[test]
    fn waiting_completions_keep_their_order() {
        let mut front = PendingCompletions::default();
        let mut space = [Completion::default(); 2];
        let mut out = Out { space: &mut space, filled: 0 };
        (1..=3).for_each(|cookie| front.put(&mut out, done(cookie, Work::Send)));
        assert_eq!((out.filled, out.left()), (2, 0));
        front.put(&mut Out { space: &mut [Completion::default(); 1], filled: 0 }, done(4, Work::Send));
        assert_eq!(space.map(|done| done.token.cookie), [1, 2]);
        assert_eq!(given(&mut front, 1), [(3, false)]);
        assert_eq!(given(&mut front, 9), [(4, false)]);
        assert!(front.is_empty() && !front.due, "the CQ is not armed");
    }

    #[test]
    fn a_call_is_due_once() {
        let mut front = PendingCompletions { wanted: true, ..PendingCompletions::default() };
        front.push(done(1, Work::Recv));
        assert!(std::mem::take(&mut front.due), "a CQ armed for every completion is notified");
        front.push(done(2, Work::Recv));
        assert!(!front.due);
        let mut front = PendingCompletions { unread: true, wanted: true, ..PendingCompletions::default() };
        front.push(done(1, Work::Recv));
        assert!(front.is_empty() && !front.due);
    }

    #[test]
    fn a_message_counts_as_solicited_when_the_device_says_so() {
        let mut front =
            PendingCompletions { wanted: true, armed: true, solicited_only: true, ..PendingCompletions::default() };
        assert!(!front.mark().now && front.mark().later);
        front.push(done(1, Work::Recv));
        assert!(!front.due && front.wanted, "the device has not said yet that it is");
        front.may_be_solicited();
        assert!(front.mark().now, "it may be the next one as well");
        assert_eq!(given(&mut front, 9), [(1, true)]);
        front.push(done(2, Work::Send));
        assert!(front.due, "a request's end is always of interest");
        let mut plain = PendingCompletions { wanted: true, armed: true, ..PendingCompletions::default() };
        plain.may_be_solicited();
        assert!(!plain.mark().now && !plain.mark().later, "not armed for solicited completions");
    }
}
