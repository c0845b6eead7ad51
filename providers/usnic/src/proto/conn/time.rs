//! What the time brings: one deadline for all that waits, and what is done when it is here.

use dapl::provider::Status;

use super::Conn;
use super::transmit::Note;
use super::words::Host;
use crate::proto::flight::Timeout;
use crate::proto::{Nanos, SECONDS};

/// A peer that does not answer is asked again after so long.
const ASK_AGAIN: Nanos = SECONDS;

impl<Q, R> Conn<Q, R> {
    /// When `on_time` is to be called, at the latest; packets may be due after it.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if self.ending.is_closed() {
            let refusal = self.acks.deadline().filter(|_| self.ending.refusal.is_some());
            return [self.ending.deadline(), refusal].into_iter().flatten().min();
        }
        if self.deferred.is_some() {
            return Some(self.now);
        }
        let all = [
            self.flight.deadline(),
            self.acks.deadline(),
            self.lane.path.deadline(),
            self.lane.paced,
            self.credits.deadline(),
            self.turn_at,
            (self.config.keepalive > 0).then_some(self.ask_at),
            self.ending.deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// The deadline is here. Packets may be due after it.
    pub(crate) fn on_time(&mut self, now: Nanos, host: &mut impl Host<Request = Q, Recv = R>) {
        self.now = now;
        self.settle(host);
        self.end_on_time(host);
        if self.ending.is_closed() {
            return;
        }
        match self.flight.on_time(now) {
            Timeout::Nothing => {}
            Timeout::Lost(lost) => self.lane.lost(now, &lost, self.flight.bytes()),
            Timeout::Probe(_) => {
                self.counters.timeouts += 1;
                self.lane.timed_out(now);
            }
            Timeout::GiveUp => return self.give_up(host),
        }
        self.lane.path.on_time(now);
        self.lane.measure();
        if let Some(count) = self.credits.on_time(now) {
            if self.config.rnr_limit.is_some_and(|limit| count > limit) {
                self.fail_head(Status::ReceiverNotReady);
                return self.retire(host);
            }
            self.counters.credit_probes += 1;
            self.note(Note::Question);
        }
        self.keep_alive(host);
    }

    /// A connection on which nothing was heard for long asks whether the peer is there.
    fn keep_alive(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        if self.config.keepalive == 0 || self.now < self.ask_at {
            return;
        }
        let quiet_until = self.heard.saturating_add(self.config.keepalive);
        if self.now < quiet_until {
            self.ask_at = quiet_until;
            return;
        }
        let asked = *self.asked.get_or_insert(self.now);
        if self.now.saturating_sub(asked) >= self.config.give_up {
            return self.give_up(host);
        }
        self.counters.keepalives += 1;
        self.ask_at = self.now.saturating_add(ASK_AGAIN);
        self.note(Note::Question);
    }
}
