//! All queue pairs of the process, behind one lock.
//!
//! Queue pairs refer to each other by number, so no reference can outlive its object. A post executes at once what can be
//! executed: transfers need no thread. What has to wait is a send without a posted receive, and requests of a connection that
//! is not established.

use std::collections::BTreeMap;

use dapl::provider::{ConnId, ConnectionEvent, Status};
use dapl_software::simple::{Listeners, PerProcess, execute};

use crate::Loopback;

pub(crate) static LISTENERS: Listeners<Loopback> = Listeners::new();
pub(crate) static WORLD: PerProcess<World> = PerProcess::new();

/// A queue pair. It names its peer by number.
pub(crate) type QpState = dapl_software::simple::QpState<Loopback, u64>;

#[derive(Default)]
pub(crate) struct World {
    last_number: u64,
    /// By number.
    pub(crate) qps: BTreeMap<u64, QpState>,
}

impl World {
    /// Adds a queue pair and returns its number.
    pub(crate) fn add(&mut self, qp: QpState) -> u64 {
        self.last_number += 1;
        self.qps.insert(self.last_number, qp);
        self.last_number
    }

    pub(crate) fn qp(&mut self, number: u64) -> &mut QpState {
        self.qps.get_mut(&number).expect("a queue pair is removed when its object is dropped, not before")
    }

    /// Connects two queue pairs. Fails if the requester has left. `data` is for the requester.
    pub(crate) fn pair(&mut self, requester: (u64, ConnId), acceptor: (u64, ConnId), data: &[u8]) {
        if self.qps.get(&requester.0).is_none_or(|qp| !qp.is_connecting(requester.1)) {
            return self.qp(acceptor.0).fail(acceptor.1, ConnectionEvent::AcceptFailed, &[]);
        }
        for ((qp, conn), (peer, _), data) in [(acceptor, requester, &[][..]), (requester, acceptor, data)] {
            self.qp(qp).establish(conn, peer, data, move || WORLD.lock().start(qp, conn));
        }
    }

    /// `Established` has been reported to this side.
    fn start(&mut self, qp: u64, conn: ConnId) {
        if let Some(peer) = self.qps.get_mut(&qp).and_then(|qp| qp.start(conn)) {
            self.progress(qp);
            self.progress(peer);
            self.check_recvs(qp);
        }
    }

    /// Executes the requests of a queue pair, as far as that is possible now.
    pub(crate) fn progress(&mut self, qp: u64) {
        while let Some(peer) = self.ready_peer(qp) {
            let state = self.qp(qp);
            if state.is_drained() {
                return self.end(qp, Some(ConnectionEvent::Disconnected), ConnectionEvent::Disconnected);
            }
            let Some(request) = state.queues.requests.pop_front() else { return };
            let pd = state.queues.pd.clone();
            let result = match execute(&request, &pd, &mut self.qp(peer).queues) {
                // Receiver not ready: the post of a receive continues here.
                Ok(None) => return self.qp(qp).queues.requests.push_front(request),
                Ok(Some(bytes)) => Ok(bytes),
                Err(status) => Err(status),
            };
            self.qp(qp).queues.complete_request(&request, result);
            self.check_recvs(peer);
            if let Err(status) = result {
                let is_of_peer = status == Status::RemoteResponder;
                let peers = if is_of_peer { ConnectionEvent::Broken } else { ConnectionEvent::Disconnected };
                return self.end(qp, Some(ConnectionEvent::Broken), peers);
            }
        }
    }

    /// The connected peer, if both sides have reported the connection.
    fn ready_peer(&self, qp: u64) -> Option<u64> {
        let peer = self.qps.get(&qp)?.peer()?;
        self.qps.get(&peer)?.peer().map(|_| peer)
    }

    /// Breaks the connection if more receives are posted than the hard watermark.
    pub(crate) fn check_recvs(&mut self, qp: u64) {
        if self.qp(qp).has_too_many_recvs() {
            self.end(qp, Some(ConnectionEvent::Broken), ConnectionEvent::Disconnected);
        }
    }

    /// Ends the connection or the attempt, without an event on this side, and flushes the queues.
    pub(crate) fn leave(&mut self, qp: u64) {
        self.end(qp, None, ConnectionEvent::Disconnected);
    }

    /// Ends the connection or the attempt and flushes the queues. `own` is reported on this side, `peers` on the other.
    fn end(&mut self, qp: u64, own: Option<ConnectionEvent>, peers: ConnectionEvent) {
        if let Some(peer) = self.qp(qp).end(own) {
            self.qp(peer).end(Some(peers));
        }
    }
}
