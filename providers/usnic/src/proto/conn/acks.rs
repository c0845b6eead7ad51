//! Processes received acks: completes requests, declares packets lost, updates the credit limit, and retransmits sends
//! for which the peer had no receive.

use super::Conn;
use super::requests::{PayloadOwner, is_below};
use super::types::{ConnCallbacks, PostedData};
use crate::proto::psn::Psn;
use crate::proto::wire::{self, AckFields, SackRange};
use crate::proto::{MICROS, Nanos};

impl<D: PostedData> Conn<D> {
    /// Processes an ack: acked packets, losses, and the credit limit.
    pub(super) fn process_ack(&mut self, ack: &AckFields, ranges: &[SackRange], host: &mut impl ConnCallbacks<D>) {
        let delay = match ack.delay.get() {
            u16::MAX => Nanos::MAX,
            micros => Nanos::from(micros) * MICROS,
        };
        if ack.next.get() == self.flight.cumulative().0 && ranges.is_empty() {
            return self.update_credits(ack); // The ack covers no new packet, as usual if only the peer sends data.
        }
        if self.requests.all_sent() && self.peer_reads.next(self.received.next(), 1, 1).is_none() {
            self.note_app_limited();
        }
        let (requests, peer_reads) = (&mut self.requests, &mut self.peer_reads);
        let (commands, data, mut largest) = (&mut self.commands, &mut self.data, 0);
        let mut done = |_: Psn, sent: super::SentPayload| {
            match sent.what {
                PayloadOwner::Request => requests.acked(sent.slot),
                PayloadOwner::Response => peer_reads.acked(sent.slot),
                PayloadOwner::Nothing => {}
            }
            let channel = if sent.command { &mut *commands } else { &mut *data };
            *channel = channel.saturating_sub(1);
            // A packet that arrived in pieces does not prove that the path carries packets of its size.
            largest = largest.max(if sent.is_refragmented { 0 } else { sent.length as usize });
        };
        let Ok(acked) = self.flight.acked(self.now, Psn(ack.next.get()), ranges, delay, &mut done) else { return };
        if acked.old {
            return;
        }
        let largest = largest + wire::FRAGMENT + self.send_path.extra;
        self.send_path.acked(self.now, &acked, &self.flight, largest);
        self.update_credits(ack);
        if acked.packets > 0 {
            self.complete_ended_requests(host);
            self.refuse_unreadable(host);
        }
    }

    #[inline]
    fn update_credits(&mut self, ack: &AckFields) {
        self.credits.update(ack);
        if is_below(self.credits.limit, self.requests.numbers.sends) {
            self.retransmit_unaccepted();
        }
    }

    /// Queues sends for retransmission that are beyond the decreased credit limit, because the peer's SRQ has become
    /// empty after they were sent. Otherwise only a timeout would retransmit them.
    #[cold]
    fn retransmit_unaccepted(&mut self) {
        let (queue, limit) = (&self.requests.queue, self.credits.limit);
        self.flight.retransmit_where(self.now, |sent| {
            let request = queue.get(sent.slot).filter(|_| sent.what == PayloadOwner::Request);
            request.is_some_and(|it| it.takes_receive() && !is_below(it.id, limit))
        });
    }
}
