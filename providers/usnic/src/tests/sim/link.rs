//! One connection of a scenario: its state at both peers, and the number of work requests that each has posted.

use std::cell::RefCell;
use std::rc::Rc;

use dapl::provider::{ConnectionEvent, Status};

use super::established::SimConnection;
use super::oracle::Oracle;
use super::scenario::{ConnectionPlan, OpKind, Scenario};
use crate::proto::setup::accept::RequestId;
use crate::proto::setup::{EXTENSIONS, Offer};
use crate::proto::{Nanos, SECONDS};

/// State of a connection at one of its peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EndState {
    Before,
    /// The client waits for the reply to its request, or the server for the confirmation of its accept.
    Trying,
    /// The connection is open. The value is its connection number at this peer.
    Established(u32),
    Ended,
    /// The connection was not established, for this reason.
    Failed(&'static str),
    /// The process has exited. Its successor does not know the connection.
    ProcessExited,
}

impl EndState {
    pub(super) fn is_final(self) -> bool {
        matches!(self, EndState::Ended | EndState::Failed(_) | EndState::ProcessExited)
    }
}

pub(super) struct SimLink {
    pub(super) oracle: Rc<RefCell<Oracle>>,
    pub(super) state: [EndState; 2],
    /// Number of requests that each side has posted.
    pub(super) posted: [usize; 2],
    /// Planned receives of each side: time of the post, and length.
    pub(super) recvs: [Vec<(Nanos, u32)>; 2],
    pub(super) recvs_posted: [usize; 2],
    pub(super) aborted: [bool; 2],
    pub(super) drained: [bool; 2],
    /// Connection requests that the server's consumer will answer, each with the time of the answer.
    pub(super) pending: Vec<(Nanos, RequestId)>,
    pub(super) started: bool,
    pub(super) finished: bool,
    /// Whether all work requests had completed before a side disconnected.
    pub(super) complete: bool,
}

impl SimLink {
    pub(super) fn new(scenario: &Scenario, at: usize) -> SimLink {
        let plan = &scenario.links[at];
        let recvs = [0, 1].map(|side: usize| {
            let sends: Vec<_> = plan.sides[1 - side].items.iter().filter(|item| item.kind.is_send()).collect();
            let mut times: Vec<Nanos> = sends.iter().map(|item| item.recv_at).collect();
            times.sort_unstable();
            let lengths = sends.iter().map(|item| match item.kind {
                OpKind::LongSend => item.length.max(1) - 1,
                _ => item.length + item.length % 3,
            });
            let spare = (0..plan.sides[side].spare_recvs).map(|_| (0, 100));
            let spare = if plan.sides[side].shared { spare.take(0) } else { spare.take(usize::MAX) };
            let last = times.last().copied().unwrap_or(0);
            times.into_iter().zip(lengths).chain(spare.map(|(_, length)| (last, length))).collect()
        });
        SimLink {
            oracle: Oracle::new(scenario.seed ^ at as u64, scenario.is_loose(at)),
            state: [EndState::Before; 2],
            posted: [0; 2],
            recvs,
            recvs_posted: [0; 2],
            aborted: [false; 2],
            drained: [false; 2],
            pending: Vec::new(),
            started: false,
            finished: false,
            complete: false,
        }
    }

    pub(super) fn fails(&mut self, side: usize, why: &'static str) {
        assert_eq!(self.state[side], EndState::Trying, "a second outcome was reported for this side: {why}");
        self.state[side] = EndState::Failed(why);
    }

    /// Returns the number of planned receives whose time has come, at most `most`.
    pub(super) fn due_recvs(&self, side: usize, most: usize, now: Nanos) -> usize {
        self.recvs[side].iter().take(most).take_while(|(at, _)| *at <= now).count()
    }

    pub(super) fn post_recv(&mut self, side: usize, connection: &mut SimConnection) {
        let (_, length) = self.recvs[side][self.recvs_posted[side]];
        self.recvs_posted[side] += 1;
        let recv = connection.host.new_recv(length);
        connection.conn.post_recv(u64::from(length), |own| *own = recv, &mut connection.host);
    }

    pub(super) fn wanted(&self, plan: &ConnectionPlan, side: usize, _now: Nanos) -> Offer {
        let mine = &plan.sides[side];
        // The receives that are posted before the connection is established.
        let credits = if mine.shared { 0 } else { self.due_recvs(side, mine.max_recvs as usize, 0) as u32 };
        Offer {
            features: EXTENSIONS.into(),
            conn: 1.into(),
            token: 1.into(),
            first_psn: mine.psn.unwrap_or(0).into(),
            ord: mine.reads.into(),
            ird: mine.reads.into(),
            credits: credits.into(),
            window_kib: 1.into(),
            mtu: 1200.into(),
            private: 0.into(),
            random: [0; 16],
        }
    }

    /// Whether all planned requests were posted and have succeeded, and all messages have been received.
    pub(super) fn is_done(&self, plan: &ConnectionPlan) -> bool {
        let oracle = self.oracle.borrow();
        (0..2).all(|side| {
            let (one, other) = (&oracle.sides[side], &oracle.sides[1 - side]);
            self.posted[side] == plan.sides[side].items.len()
                && one.entries.iter().all(|entry| entry.status == Some(Status::Success))
                && one.received == other.sends.len()
        })
    }

    /// Returns the next time at which a consumer of this connection acts.
    pub(super) fn deadline(&self, scenario: &Scenario, at: usize, now: Nanos) -> Option<Nanos> {
        let plan = &scenario.links[at];
        let mut times = vec![plan.start, scenario.calm(), scenario.calm() + 20 * SECONDS];
        times.extend(plan.withdraw);
        times.extend(self.pending.iter().map(|(due, _)| *due));
        for side in 0..2 {
            times.extend(plan.sides[side].items.get(self.posted[side]).map(|item| item.at));
            times.extend(self.recvs[side].get(self.recvs_posted[side]).map(|(at, _)| *at));
        }
        times.into_iter().filter(|at| *at > now).min()
    }

    /// Returns the index and status of the first request of a side that failed and was not flushed.
    pub(super) fn failure(&self, side: usize) -> Option<(usize, Status)> {
        let oracle = self.oracle.borrow();
        let mut entries = oracle.sides[side].entries.iter().enumerate();
        entries.find_map(|(index, entry)| {
            let status = entry.status.filter(|status| !matches!(status, Status::Success | Status::Flushed))?;
            Some((index, status))
        })
    }

    pub(super) fn events(&self, side: usize) -> Vec<ConnectionEvent> {
        self.oracle.borrow().sides[side].events.clone()
    }
}
