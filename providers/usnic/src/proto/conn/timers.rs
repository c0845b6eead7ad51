//! The timers of a connection: their earliest deadline, and the reaction to expired timers. Also reports the pending
//! work of the connection.

use dapl::provider::{ConnectionEvent, Status};

use super::Conn;
use super::requests::BlockedReason;
use super::transmit::ControlPacket;
use super::types::{ConnCallbacks, PostedData};
use crate::proto::flight::ExpiredTimer;
use crate::proto::schedule::PendingWork;
use crate::proto::{Nanos, SECONDS};

/// If the driver has not called the connection for this time in nanoseconds, `on_time` frees unused memory.
const IDLE_TIME: Nanos = SECONDS;

impl<D: PostedData> Conn<D> {
    /// Returns the time at which `on_time` must be called. After that call, `transmit` may have packets.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.deadline_with(|| (self.resend_at(), self.new_data_at()))
    }

    /// Returns the deadline. `data` returns the times at which a retransmission and new data may be sent. It is called
    /// only if the connection is not closed and no work is deferred.
    fn deadline_with(&self, data: impl FnOnce() -> (Option<Nanos>, Option<Nanos>)) -> Option<Nanos> {
        if self.ending.is_closed() {
            let refusal = self.acks.deadline().filter(|_| self.ending.refusal().is_some());
            return earliest([self.ending.deadline(self.now), refusal]);
        }
        if self.deferred.is_some() {
            return Some(self.now.saturating_add(1)); // Deferred work is due in the next pass.
        }
        let (resend, fresh) = data();
        earliest([
            self.flight.deadline(),
            self.acks.deadline(),
            self.send_path.path.deadline(),
            earliest([resend, fresh]).filter(|at| *at > self.now),
            self.credits.deadline(),
            // From this time on, `pending_work` reports the deferred bind as ready, unless another condition blocks it.
            self.bind_retry_at.filter(|at| *at > self.now),
            self.peer_state.deadline(),
            self.confirming.and_then(|it| it.deadline()),
            self.ending.deadline(self.now),
        ])
    }

    /// Returns which kinds of packets `transmit` would send now, and the deadline.
    pub(crate) fn pending_work(&self, now: Nanos) -> PendingWork {
        if self.deferred.is_some() && !self.ending.is_closed() {
            // The next pass or the next post processes the deferred ack first, because the ack may change what can be
            // sent.
            return PendingWork { deadline: self.deadline(), ..PendingWork::default() };
        }
        if self.ending.is_closed() {
            let deadline = self.deadline();
            let is_due = self.ending.refusal().is_some() && self.acks.is_due(now);
            return PendingWork { resend: false, ready: self.ending.has_packet(now), ack: is_due, deadline };
        }
        let (resend, fresh) = (self.resend_at(), self.new_data_at());
        let is_small = !self.control_packets.is_empty()
            || self.ending.has_packet(now)
            || self.confirming.is_some_and(|it| it.is_due(now))
            || self.send_path.path.wants_probe(now)
            || self.peer_state.deadline().is_some_and(|at| at <= now);
        PendingWork {
            resend: resend.is_some_and(|at| at <= now),
            ready: is_small || fresh.is_some_and(|at| at <= now),
            ack: self.acks.is_due(now),
            deadline: self.deadline_with(|| (resend, fresh)),
        }
    }

    fn resend_at(&self) -> Option<Nanos> {
        if self.sending_pieces.is_some() {
            return Some(0);
        }
        let (_, sent) = self.flight.lost()?;
        self.may_send_at(self.size(&sent))
    }

    fn new_data_at(&self) -> Option<Nanos> {
        if self.peer_reads.has_atomics() && self.peer_reads.due_atomic(self.received.next()).is_some() {
            return Some(0);
        }
        match self.next_payload() {
            Ok(sent) => self.may_send_at(self.size(&sent)),
            Err(BlockedReason::Idle) => None,
            Err(BlockedReason::Credit) => self.credits.deadline().is_none().then_some(0),
            Err(BlockedReason::BindReady | BlockedReason::Unsupported) => Some(0),
        }
    }

    fn may_send_at(&self, bytes: u64) -> Option<Nanos> {
        match self.flight.probes {
            0 => self.send_path.may_send_at(self.now, bytes, self.flight.bytes()),
            _ => Some(0),
        }
    }

    /// Handles expired timers. Afterwards `transmit` may have packets.
    pub(crate) fn on_time(&mut self, now: Nanos, host: &mut impl ConnCallbacks<D>) {
        let last = std::mem::replace(&mut self.now, now);
        self.withdraw_permit();
        if now.saturating_sub(last) >= IDLE_TIME {
            self.flight.free_memory();
        }
        self.process_deferred(host);
        self.end_on_time(host);
        if self.ending.is_closed() {
            return;
        }
        match self.flight.on_time(now) {
            ExpiredTimer::Nothing => {}
            ExpiredTimer::Lost(lost) => {
                self.late = self.late.saturating_add(lost.packets);
                self.send_path.lost(now, &lost, &self.flight);
            }
            ExpiredTimer::Probe(_) => {
                self.counters.timeouts += 1;
                if let Some((_, sent)) = self.flight.lost().filter(|(_, sent)| !sent.is_refragmented) {
                    self.send_path.path.timed_out(now, self.size(&sent) as usize);
                }
            }
            ExpiredTimer::GiveUp => return self.reset(ConnectionEvent::Disconnected, host),
        }
        self.send_path.path.on_time(now);
        self.send_path.measure();
        if let Some(probe) = self.credits.on_time(now, self.requests.numbers.sends) {
            if let Some(age) = probe.overdue {
                host.send_overdue(age);
            }
            if self.config.rnr_limit.is_some_and(|limit| probe.count > limit) {
                self.fail_next(Status::ReceiverNotReady);
                return self.complete_ended_requests(host);
            }
            self.counters.credit_probes += 1;
            self.queue_control(ControlPacket::AckRequest);
        }
        if self.peer_state.on_time(now) {
            self.counters.timeouts += 1;
            self.reset(ConnectionEvent::Disconnected, host);
        }
    }
}

/// Returns the earliest of the given times, without branches, because this runs for every message.
fn earliest<const N: usize>(all: [Option<Nanos>; N]) -> Option<Nanos> {
    let at = all.into_iter().fold(Nanos::MAX, |least, at| least.min(at.unwrap_or(Nanos::MAX)));
    (at < Nanos::MAX).then_some(at)
}
