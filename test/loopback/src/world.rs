//! All queue pairs of the process, behind one lock.
//!
//! Queue pairs refer to each other by number, so no reference outlives its object. A post executes every request that
//! can be executed, so transfers need no thread. A send without a posted receive waits, with all requests behind it.
//! Every request waits while the connection is not established on both sides.

use std::collections::BTreeMap;

use dapl::provider::{ConnId, ConnectionEvent, Status};
use dapl_software::simple::{Listeners, PerProcess, execute};

use crate::Loopback;

pub(crate) static LISTENERS: Listeners<Loopback> = Listeners::new();
pub(crate) static WORLD: PerProcess<LoopbackState> = PerProcess::new();

/// A queue pair. It names its peer by number.
pub(crate) type QpState = dapl_software::simple::QpState<Loopback, u64>;

#[derive(Default)]
pub(crate) struct LoopbackState {
    last_number: u64,
    /// Queue pairs by number.
    pub(crate) qps: BTreeMap<u64, QpState>,
}

impl LoopbackState {
    /// Adds a queue pair and returns its number.
    pub(crate) fn add(&mut self, qp: QpState) -> u64 {
        self.last_number += 1;
        self.qps.insert(self.last_number, qp);
        self.last_number
    }

    pub(crate) fn qp(&mut self, number: u64) -> &mut QpState {
        self.qps.get_mut(&number).expect("a queue pair is removed when its object is dropped, not before")
    }

    /// Connects two queue pairs. `data` is the private data for the requester. If the requester has disconnected, the
    /// acceptor gets `AcceptFailed` instead.
    pub(crate) fn pair(&mut self, requester: (u64, ConnId), acceptor: (u64, ConnId), data: &[u8]) {
        if self.qps.get(&requester.0).is_none_or(|qp| !qp.is_connecting(requester.1)) {
            return self.qp(acceptor.0).fail(acceptor.1, ConnectionEvent::AcceptFailed, &[]);
        }
        for ((qp, conn), (peer, _), data) in [(acceptor, requester, &[][..]), (requester, acceptor, data)] {
            self.qp(qp).establish(conn, peer, data, move || WORLD.lock().start(qp, conn));
        }
    }

    /// Called after `Established` was reported for this queue pair.
    fn start(&mut self, qp: u64, conn: ConnId) {
        if let Some(peer) = self.qps.get_mut(&qp).and_then(|qp| qp.start(conn)) {
            self.progress(qp);
            self.progress(peer);
            self.check_recvs(qp);
        }
    }

    /// Executes the queued requests of a queue pair until one has to wait.
    pub(crate) fn progress(&mut self, qp: u64) {
        while let Some(peer) = self.ready_peer(qp) {
            let state = self.qp(qp);
            if state.is_drained() {
                return self.end(qp, Some(ConnectionEvent::Disconnected), ConnectionEvent::Disconnected);
            }
            let Some(request) = state.queues.requests.pop_front() else { return };
            let pd = state.queues.pd.clone();
            let result = match execute(&request, &pd, &mut self.qp(peer).queues) {
                // Receiver not ready: posting a receive resumes this request.
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

    /// The connected peer, if `Established` was reported on both queue pairs.
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

    /// Ends the connection or the attempt and flushes the queues. This side gets no event.
    pub(crate) fn leave(&mut self, qp: u64) {
        self.end(qp, None, ConnectionEvent::Disconnected);
    }

    /// Ends the connection or the attempt and flushes the queues. Reports `own` on this side and `peers` on the peer.
    fn end(&mut self, qp: u64, own: Option<ConnectionEvent>, peers: ConnectionEvent) {
        if let Some(peer) = self.qp(qp).end(own) {
            self.qp(peer).end(Some(peers));
        }
    }
}
