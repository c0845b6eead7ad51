//! The scheduler: decides which connection sends next (US-3, US-4), and stores the deadlines of all connections.
//!
//! After each call, a connection reports its [`PendingWork`], and is queued for it. There are three queues: connections
//! with lost packets, with new data or control packets, and with a pending ack. A pass calls `transmit` for the
//! connections of each queue in this order, and limits the number of connections with lost packets. A connection is in
//! each queue at most once. Connections are identified by their index in the connection table.
//!
//! Each connection has one deadline, which is the earliest of its timers (US-9). The heap of deadlines is lazy: if a
//! deadline moves to a later time, its entry stays until it expires, and is then inserted again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Nanos;

/// The work that a connection needs next.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PendingWork {
    /// Whether lost packets may be retransmitted now.
    pub(crate) resend: bool,
    /// Whether the connection can send now: a control packet, or new data that credits, window and pacer permit.
    pub(crate) ready: bool,
    /// Whether an ack is due. If `ready` is also true, the `transmit` call for the data sends the ack too.
    pub(crate) ack: bool,
    /// Time at which `on_time` must be called, or `None` if no timer is running.
    pub(crate) deadline: Option<Nanos>,
}

impl PendingWork {
    /// Whether the next pass must call `transmit`.
    pub(crate) fn needs_service(&self) -> bool {
        self.resend || self.ready || self.ack
    }

    /// Returns only the most urgent work, so that the connection is in one queue. Used for connections whose `transmit`
    /// does all due work, whatever the reason for the call.
    pub(crate) fn most_urgent_only(self) -> PendingWork {
        PendingWork { ready: self.ready && !self.resend, ack: self.ack && !self.ready && !self.resend, ..self }
    }
}

/// Maximum number of connections that retransmit in one pass. Without the limit, retransmissions would delay acks.
const MAX_RETRANSMITTING: u32 = 16;

/// The connections that need a `transmit` call.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    resend: ArrivalOrder,
    ready: ArrivalOrder,
    acks: ArrivalOrder,
    /// Number of connections that this pass still serves from each queue.
    resends: u32,
    sends: usize,
    ack_services: usize,
}

/// A queue of connection indexes in the order of their arrival, without duplicates.
#[derive(Debug, Default)]
struct ArrivalOrder {
    waiting: VecDeque<u32>,
    /// For each connection index, whether the connection is queued.
    is_in: Vec<bool>,
}

impl ArrivalOrder {
    fn add_arrival(&mut self, number: u32) {
        let at = number as usize;
        if at >= self.is_in.len() {
            self.is_in.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.is_in[at], true) {
            self.waiting.push_back(number);
        }
    }

    fn next(&mut self) -> Option<u32> {
        let number = self.waiting.pop_front()?;
        self.is_in[number as usize] = false;
        Some(number)
    }
}

impl Schedule {
    /// Adds a connection to the queues of its pending work.
    pub(crate) fn wants(&mut self, number: u32, pending_work: &PendingWork) {
        if pending_work.resend {
            self.resend.add_arrival(number);
        }
        if pending_work.ready {
            self.ready.add_arrival(number);
        } else if pending_work.ack {
            self.acks.add_arrival(number);
        }
    }

    /// Begins a pass. Connections that are queued after this call are served in the next pass.
    pub(crate) fn begin(&mut self) {
        self.resends = MAX_RETRANSMITTING.min(self.resend.waiting.len() as u32);
        self.sends = self.ready.waiting.len();
        self.ack_services = self.acks.waiting.len();
    }

    /// Returns the next connection to serve, or `None` at the end of the pass.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if let Some(left) = self.resends.checked_sub(1) {
            self.resends = left;
            return self.resend.next();
        }
        if let Some(left) = self.sends.checked_sub(1) {
            self.sends = left;
            return self.ready.next();
        }
        self.ack_services = self.ack_services.checked_sub(1)?;
        self.acks.next()
    }

    /// Whether a connection is queued.
    pub(crate) fn is_busy(&self) -> bool {
        [&self.resend, &self.ready, &self.acks].iter().any(|queue| !queue.waiting.is_empty())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// For each connection index, the earliest valid deadline. Other heap entries of the same connection are obsolete.
    planned: Vec<Option<Nanos>>,
}

impl Deadlines {
    /// Sets the deadline of a connection. Returns true if the connection had no entry in the heap, or a later one. A
    /// deadline after that of the entry leaves the entry unchanged. The entry then expires early, and the caller sets
    /// the deadline again.
    pub(crate) fn set_deadline(&mut self, number: u32, deadline: Nanos) -> bool {
        let at = number as usize;
        if at >= self.planned.len() {
            self.planned.resize(at + 1, None);
        }
        let is_earlier = self.planned[at].is_none_or(|planned| deadline < planned);
        if is_earlier {
            self.planned[at] = Some(deadline);
            self.heap.push(Reverse((deadline, number)));
        }
        is_earlier
    }

    /// Returns the next connection whose deadline has expired. The caller calls `set_deadline` again if the connection
    /// still has a deadline.
    pub(crate) fn next_expired(&mut self, now: Nanos) -> Option<u32> {
        self.next().filter(|deadline| *deadline <= now)?;
        let Reverse((_, number)) = self.heap.pop()?;
        self.planned[number as usize] = None;
        Some(number)
    }

    /// Returns the earliest deadline of any connection.
    pub(crate) fn next(&mut self) -> Option<Nanos> {
        while let Some(Reverse((deadline, number))) = self.heap.peek().copied() {
            if self.planned[number as usize] == Some(deadline) {
                return Some(deadline);
            }
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESEND: PendingWork = PendingWork { resend: true, ready: false, ack: false, deadline: None };
    const READY: PendingWork = PendingWork { resend: false, ready: true, ack: false, deadline: None };
    const ACK: PendingWork = PendingWork { resend: false, ready: false, ack: true, deadline: None };

    fn pass(schedule: &mut Schedule) -> Vec<u32> {
        schedule.begin();
        std::iter::from_fn(|| schedule.next()).collect()
    }

    #[test]
    fn retransmissions_precede_data_and_data_precede_acks() {
        let mut schedule = Schedule::default();
        schedule.wants(1, &ACK);
        schedule.wants(2, &READY);
        schedule.wants(3, &RESEND);
        schedule.wants(2, &RESEND);
        assert_eq!(pass(&mut schedule), [3, 2, 2, 1]);
        assert!(!schedule.is_busy() && pass(&mut schedule).is_empty());
    }

    #[test]
    fn connection_is_queued_once_for_its_most_urgent_work() {
        let mut schedule = Schedule::default();
        let all = PendingWork { resend: true, ready: true, ack: true, deadline: Some(7) };
        schedule.wants(1, &PendingWork { resend: false, ready: false, ..all }.most_urgent_only());
        schedule.wants(2, &PendingWork { resend: false, ..all }.most_urgent_only());
        schedule.wants(3, &all.most_urgent_only());
        assert_eq!(pass(&mut schedule), [3, 2, 1]);
        assert_eq!(all.most_urgent_only().deadline, Some(7));
        assert!(all.most_urgent_only().needs_service() && !PendingWork::default().most_urgent_only().needs_service());
    }

    #[test]
    fn connection_with_data_is_not_also_served_for_its_ack() {
        let mut schedule = Schedule::default();
        schedule.wants(1, &PendingWork { ack: true, ..READY });
        assert_eq!(pass(&mut schedule), [1]);
    }

    #[test]
    fn busy_connection_is_served_once_per_pass() {
        let mut schedule = Schedule::default();
        (0..3).for_each(|number| schedule.wants(number, &READY));
        schedule.wants(1, &READY);
        for _ in 0..4 {
            schedule.begin();
            let mut served = Vec::new();
            while let Some(number) = schedule.next() {
                served.push(number);
                schedule.wants(number, &READY);
            }
            assert_eq!(served, [0, 1, 2]);
        }
    }

    #[test]
    fn retransmitting_connections_served_in_a_pass_are_bounded() {
        let mut schedule = Schedule::default();
        (0..MAX_RETRANSMITTING + 5).for_each(|number| schedule.wants(number, &RESEND));
        schedule.wants(0, &ACK);
        let turns = pass(&mut schedule);
        assert_eq!(turns.len(), MAX_RETRANSMITTING as usize + 1);
        assert_eq!(turns.last(), Some(&0), "the ack is sent last");
        assert_eq!(pass(&mut schedule).len(), 5, "the next pass serves the remaining connections");
    }

    #[test]
    fn deadlines_expire_in_order_and_once() {
        let mut deadlines = Deadlines::default();
        for (number, time) in [(3, 30), (1, 10), (2, 20)] {
            assert!(deadlines.set_deadline(number, time));
        }
        assert!(deadlines.set_deadline(3, 5), "an earlier deadline must be planned");
        assert!(!deadlines.set_deadline(3, 50), "a later deadline applies when the entry expires");
        assert_eq!(deadlines.next(), Some(5));
        let due =
            |deadlines: &mut Deadlines, now| std::iter::from_fn(|| deadlines.next_expired(now)).collect::<Vec<_>>();
        assert_eq!(due(&mut deadlines, 4), []);
        assert_eq!(due(&mut deadlines, 20), [3, 1, 2]);
        assert_eq!((due(&mut deadlines, 100), deadlines.next()), (vec![], None), "a replaced deadline does not expire");
        assert!(deadlines.set_deadline(3, 200), "a deadline can be planned again after it has expired");
        assert_eq!(deadlines.next_expired(200), Some(3));
    }

    #[test]
    fn repeatedly_moved_deadline_leaves_no_entry_in_the_heap() {
        let mut deadlines = Deadlines::default();
        for round in 0..1000u64 {
            assert!(deadlines.set_deadline(7, round * 10 + 9));
            assert!(deadlines.set_deadline(7, round * 10 + 5));
            assert_eq!(deadlines.next_expired(round * 10 + 5), Some(7));
            assert_eq!(deadlines.next_expired(round * 10 + 5), None);
        }
        assert_eq!(deadlines.next(), None);
        assert!(deadlines.heap.is_empty());
    }
}
