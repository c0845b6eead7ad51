//! The software queue of a completion queue: completions that were fetched from the device or made in software, and
//! that the consumer has not polled. Also the notification state.
//!
//! A device does not report which completion is of a solicited message. If the device is armed for solicited messages
//! only, its event shows that there is one, but the event may arrive after the completion was fetched. So a receive
//! counts as solicited if it may be. This module calls no sink; it records that a notification is due.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::provider::{ArmMode, Completion};

/// Completions that the consumer has not polled, and the notification state. Protected by the completion queue's lock.
#[derive(Default)]
pub(super) struct PendingCompletions {
    queue: VecDeque<Completion>,
    /// Whether the queue has no consumer, so that completions are dropped.
    has_no_consumer: bool,
    /// Whether the consumer has requested one notification.
    pub(super) notify_requested: bool,
    /// Whether a notification must be sent to the consumer.
    pub(super) notify_due: bool,
    /// Whether the device is armed: an event will report the next completion, or the next solicited completion.
    pub(super) device_armed: bool,
    /// Mode of the consumer's last request for a notification. With a mode other than `All`, a receive that may be
    /// solicited counts as solicited.
    pub(super) mode: ArmMode,
    /// Whether the receives that complete next count as solicited, because one of them may have caused the last event.
    pub(super) solicited: bool,
}

/// Whether a completed receive counts as solicited. The device does not report this, so a receive counts as solicited
/// if it may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssumedSolicited {
    /// The value for a completion that is passed on now.
    pub(crate) now: bool,
    /// The value for a completion that is held back until ESTABLISHED was reported: by then its event may have arrived.
    pub(crate) later: bool,
}

/// The buffer of the polling thread; empty if completions are only fetched into the software queue.
pub(super) struct PollBuffer<'a> {
    pub(super) space: &'a mut [Completion],
    pub(super) filled: usize,
}

impl PollBuffer<'_> {
    pub(super) fn remaining(&self) -> usize {
        self.space.len() - self.filled
    }
}

impl PendingCompletions {
    /// Creates an empty queue. `has_no_consumer`: it has no consumer, so completions are dropped.
    pub(super) fn new(has_no_consumer: bool) -> Self {
        PendingCompletions { has_no_consumer, ..PendingCompletions::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the fast path of a poll may be used: the queue is empty, the receives fetched next do not count as
    /// solicited, and the consumer does not wait for a notification by an armed device.
    #[inline(always)]
    pub(super) fn allows_fast_poll(&self) -> bool {
        self.queue.is_empty() && !self.solicited && !(self.notify_requested && self.device_armed)
    }

    /// Adds a completion at the end of the queue. Sets `notify_due` if the consumer has requested a notification of it.
    #[inline(never)]
    pub(super) fn push(&mut self, done: Completion) {
        if self.has_no_consumer {
            return;
        }
        self.queue.push_back(done);
        // A message that is not known to be solicited does not end a wait for solicited messages.
        if self.notify_requested && (self.mode == ArmMode::All || done.is_notifying()) {
            self.notify_requested = false;
            self.notify_due = true;
        }
    }

    /// Passes a completion to the polling thread's buffer if it has space and the queue is empty. Otherwise adds it to
    /// the queue.
    #[inline(always)]
    pub(super) fn deliver(&mut self, out: &mut PollBuffer<'_>, done: Completion) {
        match out.space.get_mut(out.filled) {
            Some(slot) if self.queue.is_empty() => {
                *slot = done;
                out.filled += 1;
            }
            _ => self.push(done),
        }
    }

    /// Moves queued completions to the polling thread's buffer, as many as it has space for. The buffer must be empty.
    pub(super) fn move_to(&mut self, out: &mut PollBuffer<'_>) {
        let count = out.remaining().min(self.queue.len());
        for (place, done) in out.space.iter_mut().zip(self.queue.drain(..count)) {
            *place = done;
        }
        out.filled = count;
    }

    /// Whether the consumer waits for solicited messages and failures only, on all work of the queue. In the mode
    /// `Mixed`, other work needs events of all completions.
    pub(super) fn is_solicited_only(&self) -> bool {
        self.mode == ArmMode::Solicited
    }

    /// Records that the device has reported, or may soon report, the event of a solicited message, whose completion is
    /// in the queue or will be fetched next. Does nothing in the mode `All`.
    pub(super) fn may_be_solicited(&mut self) {
        if self.mode != ArmMode::All {
            self.solicited = true;
            self.queue.iter_mut().for_each(|done| done.solicited |= done.token.work.is_recv());
        }
    }

    /// Returns whether a receive that completes now counts as solicited.
    #[inline(always)]
    pub(super) fn solicited_state(&self) -> AssumedSolicited {
        AssumedSolicited {
            now: self.solicited,
            later: self.solicited || self.device_armed && self.mode != ArmMode::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::{Token, Work};

    use super::*;

    fn done(cookie: u64, work: Work) -> Completion {
        // Receives of an endpoint with solicited notification are unsignalled.
        Completion {
            token: Token { cookie, work, unsignalled: work.is_recv(), ..Token::default() },
            ..Default::default()
        }
    }

    fn poll(pending: &mut PendingCompletions, count: usize) -> Vec<(u64, bool)> {
        let mut space = vec![Completion::default(); count];
        let mut out = PollBuffer { space: &mut space, filled: 0 };
        pending.move_to(&mut out);
        let filled = out.filled;
        space[..filled].iter().map(|done| (done.token.cookie, done.solicited)).collect()
    }

    #[test]
    fn completions_are_polled_in_order_from_buffer_and_queue() {
        let mut pending = PendingCompletions::default();
        let mut space = [Completion::default(); 2];
        let mut out = PollBuffer { space: &mut space, filled: 0 };
        (1..=3).for_each(|cookie| pending.deliver(&mut out, done(cookie, Work::Send)));
        assert_eq!((out.filled, out.remaining()), (2, 0));
        pending.deliver(&mut PollBuffer { space: &mut [Completion::default(); 1], filled: 0 }, done(4, Work::Send));
        assert_eq!(space.map(|done| done.token.cookie), [1, 2]);
        assert_eq!(poll(&mut pending, 1), [(3, false)]);
        assert_eq!(poll(&mut pending, 9), [(4, false)]);
        assert!(pending.is_empty() && !pending.notify_due, "the CQ is not armed");
    }

    #[test]
    fn requested_notification_is_due_once() {
        let mut pending = PendingCompletions { notify_requested: true, ..PendingCompletions::default() };
        pending.push(done(1, Work::Recv));
        assert!(std::mem::take(&mut pending.notify_due), "a CQ armed for every completion is notified");
        pending.push(done(2, Work::Recv));
        assert!(!pending.notify_due);
        let mut pending =
            PendingCompletions { has_no_consumer: true, notify_requested: true, ..PendingCompletions::default() };
        pending.push(done(1, Work::Recv));
        assert!(pending.is_empty() && !pending.notify_due);
    }

    #[test]
    fn receives_count_as_solicited_after_an_event_of_the_device() {
        let mut pending = PendingCompletions {
            notify_requested: true,
            device_armed: true,
            mode: ArmMode::Solicited,
            ..PendingCompletions::default()
        };
        assert!(!pending.solicited_state().now && pending.solicited_state().later);
        pending.push(done(1, Work::Recv));
        assert!(!pending.notify_due && pending.notify_requested, "the device has reported no event");
        pending.may_be_solicited();
        assert!(pending.solicited_state().now, "the next receive may be the solicited one");
        assert_eq!(poll(&mut pending, 9), [(1, true)]);
        pending.push(done(2, Work::Send));
        assert!(pending.notify_due, "a completed request always notifies");
        let mut plain =
            PendingCompletions { notify_requested: true, device_armed: true, ..PendingCompletions::default() };
        plain.may_be_solicited();
        assert!(!plain.solicited_state().now && !plain.solicited_state().later, "not armed for solicited completions");
    }

    #[test]
    fn mixed_mode_needs_all_events_and_counts_later_receives_as_solicited() {
        let mut pending = PendingCompletions {
            notify_requested: true,
            device_armed: true,
            mode: ArmMode::Mixed,
            ..PendingCompletions::default()
        };
        assert!(!pending.is_solicited_only(), "the device must report completed requests");
        pending.push(done(1, Work::Recv));
        assert!(!pending.notify_due);
        pending.may_be_solicited();
        assert_eq!(poll(&mut pending, 9), [(1, true)], "a receive after an event may be the solicited one");
        pending.push(done(2, Work::Send));
        assert!(pending.notify_due);
    }
}
