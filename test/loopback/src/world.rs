//! All queue pairs, listeners and registrations of the process, behind one lock.
//!
//! Objects refer to each other by number, so no reference can outlive its object. A post executes at once what can be executed:
//! transfers need no thread. What has to wait is a send without a posted receive, and requests of a connection that is not
//! established.

use std::collections::BTreeMap;
use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent, Status};
use dapl::runtime::handle::ObjectId;
use dapl_software::simple::{QueuedRequest, Registrations, Report, Reporter, WorkQueues, execute};
use parking_lot::Mutex;

use crate::Loopback;

pub(crate) static WORLD: Mutex<World> = Mutex::new(World::new());

/// The state of this provider in the process.
pub(crate) struct World {
    last_number: u64,
    /// By connection qualifier.
    pub(crate) listeners: BTreeMap<u64, (Arc<Reporter<Loopback>>, ObjectId)>,
    pub(crate) regions: Registrations,
    /// By number.
    pub(crate) qps: BTreeMap<u64, QpState>,
}

/// State of a queue pair.
pub(crate) struct QpState {
    pub(crate) reporter: Arc<Reporter<Loopback>>,
    pub(crate) queues: WorkQueues<Loopback>,
    pub(crate) stage: Stage,
    /// The connection ends when no request is left.
    is_draining: bool,
}

/// Stage of a queue pair's life.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Stage {
    Unconnected,
    Connecting(ConnId),
    /// Transfers start when `Established` has been reported.
    Connected {
        conn: ConnId,
        peer: u64,
        is_reported: bool,
    },
    Error,
}

impl World {
    const fn new() -> Self {
        World { last_number: 0, listeners: BTreeMap::new(), regions: Registrations::empty(), qps: BTreeMap::new() }
    }

    /// A new number, for a queue pair or a protection domain.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn add_qp(&mut self, reporter: Arc<Reporter<Loopback>>, queues: WorkQueues<Loopback>) -> u64 {
        let number = self.number();
        self.qps.insert(number, QpState { reporter, queues, stage: Stage::Unconnected, is_draining: false });
        number
    }

    pub(crate) fn qp(&mut self, number: u64) -> &mut QpState {
        self.qps.get_mut(&number).expect("a queue pair is removed when its object is dropped, not before")
    }

    /// Connects two queue pairs, unless the requester has left. Transfers start later.
    pub(crate) fn pair(&mut self, from: (u64, ConnId), to: (u64, ConnId), data: &[u8]) -> bool {
        let ((requester, its), (acceptor, conn)) = (from, to);
        if self.qps.get(&requester).is_none_or(|qp| qp.stage != Stage::Connecting(its)) {
            return false;
        }
        for (qp, peer, conn, data) in [(acceptor, requester, conn, &[][..]), (requester, acceptor, its, data)] {
            let state = self.qp(qp);
            state.stage = Stage::Connected { conn, peer, is_reported: false };
            state.reporter.report(Report::Event(conn, ConnectionEvent::Established, data.to_vec()));
            state.reporter.report(Report::Then(Box::new(move || WORLD.lock().start_transfers(qp, conn))));
        }
        true
    }

    /// `Established` has been reported to this side.
    pub(crate) fn start_transfers(&mut self, qp: u64, conn: ConnId) {
        let Some(state) = self.qps.get_mut(&qp) else { return };
        if let Stage::Connected { conn: current, peer, is_reported } = &mut state.stage
            && *current == conn
        {
            *is_reported = true;
            let peer = *peer;
            self.progress(qp);
            self.progress(peer);
            self.check_recvs(qp);
        }
    }

    /// Executes the requests of a queue pair, as far as that is possible now.
    pub(crate) fn progress(&mut self, qp: u64) {
        while let Some(peer) = self.ready_peer(qp) {
            let Some(request) = self.qp(qp).queues.requests.pop_front() else {
                if self.qp(qp).is_draining {
                    self.end(qp, Stage::Error, Some(ConnectionEvent::Disconnected), ConnectionEvent::Disconnected);
                }
                return;
            };
            let result = self.execute(qp, peer, &request);
            self.check_recvs(peer);
            if result == Ok(None) {
                // Receiver not ready: the post of a receive continues here.
                return self.qp(qp).queues.requests.push_front(request);
            }
            let result = result.map(Option::unwrap_or_default);
            self.qp(qp).queues.complete_request(&request, result);
            if let Err(status) = result {
                let is_of_peer = status == Status::RemoteResponder;
                let peers = if is_of_peer { ConnectionEvent::Broken } else { ConnectionEvent::Disconnected };
                return self.end(qp, Stage::Error, Some(ConnectionEvent::Broken), peers);
            }
        }
    }

    /// The connected peer, if both sides have reported the connection.
    fn ready_peer(&self, qp: u64) -> Option<u64> {
        let reported_peer = |qp| match self.qps.get(&qp)?.stage {
            Stage::Connected { peer, is_reported: true, .. } => Some(peer),
            _ => None,
        };
        reported_peer(qp).filter(|peer| reported_peer(*peer) == Some(qp))
    }

    /// Executes a request and returns its length; `None` if it is a send and the peer has no receive.
    fn execute(&mut self, qp: u64, peer: u64, request: &QueuedRequest) -> Result<Option<u64>, Status> {
        let own = &self.qp(qp).queues;
        let (pd, checker) = (own.pd, own.checker.clone());
        let World { regions, qps, .. } = self;
        let peer = qps.get_mut(&peer).expect("a connected peer exists");
        execute(regions, (request, pd, &checker), &mut peer.queues)
    }

    /// Checks the watermarks after the number of posted receives has changed.
    pub(crate) fn check_recvs(&mut self, qp: u64) {
        let state = self.qp(qp);
        let crossed = state.queues.crossed();
        if crossed.soft {
            state.reporter.report(Report::ManyRecvs(state.queues.spec.ep));
        }
        if crossed.hard && matches!(state.stage, Stage::Connected { .. }) {
            self.end(qp, Stage::Error, Some(ConnectionEvent::Broken), ConnectionEvent::Disconnected);
        }
    }

    /// Ends the connection when the posted requests are complete.
    pub(crate) fn drain(&mut self, qp: u64) {
        self.qp(qp).is_draining = true;
        self.progress(qp);
    }

    /// Ends the connection or the attempt silently on this side and flushes the queues.
    pub(crate) fn leave(&mut self, qp: u64, to: Stage) {
        self.end(qp, to, None, ConnectionEvent::Disconnected);
    }

    /// Ends the connection or the attempt and flushes the queues. `own` is reported on this side, `peers` on the other.
    fn end(&mut self, qp: u64, to: Stage, own: Option<ConnectionEvent>, peers: ConnectionEvent) {
        let was = self.qp(qp).stop(to);
        let Stage::Connected { conn, peer, .. } = was else { return };
        if let Some(event) = own {
            self.qp(qp).reporter.report(Report::Event(conn, event, Vec::new()));
        }
        if let Stage::Connected { conn, .. } = self.qp(peer).stage {
            self.qp(peer).stop(Stage::Error);
            self.qp(peer).reporter.report(Report::Event(conn, peers, Vec::new()));
        }
    }
}

impl QpState {
    /// The attempt to connect failed: flushes the queues and reports it.
    pub(crate) fn fail(&mut self, conn: ConnId, event: ConnectionEvent) {
        self.stop(Stage::Error);
        self.reporter.report(Report::Event(conn, event, Vec::new()));
    }

    fn stop(&mut self, to: Stage) -> Stage {
        self.is_draining = false;
        self.queues.flush();
        std::mem::replace(&mut self.stage, to)
    }
}
