//! All queue pairs, listeners and registrations of the process, behind one lock.
//!
//! Objects refer to each other by number, so no reference can outlive its object. A post executes at once what can be executed:
//! transfers need no thread. What has to wait is a send without a posted receive, and requests of a connection that is not
//! established.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dapl::provider::{Completion, ConnId, ConnectionEvent, Op, QpSpec, Region, Remote, Segment, Status, Token};
use dapl::runtime::handle::ObjectId;
use dapl::stats::watermark::HighWatermark;
use dapl_software::limits::MAX_MESSAGE;
use parking_lot::Mutex;

use crate::adapter::{Adapter, Report};
use crate::memory::{Inaccessible, Regions, copy};
use crate::{Cq, Loopback};

pub(crate) static WORLD: Mutex<World> = Mutex::new(World::new());

/// The state of this provider in the process.
pub(crate) struct World {
    last_number: u64,
    /// By connection qualifier.
    pub(crate) listeners: BTreeMap<u64, (Arc<Adapter>, ObjectId)>,
    pub(crate) regions: Regions,
    /// By number.
    pub(crate) qps: BTreeMap<u64, QpState>,
}

/// State of a queue pair.
pub(crate) struct QpState {
    pub(crate) adapter: Arc<Adapter>,
    spec: QpSpec<Loopback>,
    pd: u32,
    pub(crate) stage: Stage,
    /// The connection ends when no request is left.
    is_draining: bool,
    pub(crate) recvs: VecDeque<(Token, Vec<Segment>)>,
    pub(crate) requests: VecDeque<QueuedRequest>,
    pub(crate) marks: HighWatermark,
}

/// A posted request that is not complete.
pub(crate) struct QueuedRequest {
    pub(crate) op: Op,
    pub(crate) segments: Vec<Segment>,
    pub(crate) token: Token,
    pub(crate) suppress: bool,
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
        World { last_number: 0, listeners: BTreeMap::new(), regions: Regions::new(), qps: BTreeMap::new() }
    }

    /// A new number, for a queue pair or a protection domain.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn add_qp(&mut self, adapter: Arc<Adapter>, pd: u32, spec: QpSpec<Loopback>) -> u64 {
        let (recvs, requests, marks) = (VecDeque::new(), VecDeque::new(), HighWatermark::default());
        let (stage, is_draining) = (Stage::Unconnected, false);
        let number = self.number();
        self.qps.insert(number, QpState { adapter, spec, pd, stage, is_draining, recvs, requests, marks });
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
            state.adapter.report(Report::Established(qp, conn, data.to_vec()));
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
            let Some(request) = self.qp(qp).requests.pop_front() else {
                if self.qp(qp).is_draining {
                    self.end(qp, Stage::Error, Some(ConnectionEvent::Disconnected), ConnectionEvent::Disconnected);
                }
                return;
            };
            let result = self.execute(qp, peer, &request);
            if result == Ok(None) {
                // Receiver not ready: the post of a receive continues here.
                return self.qp(qp).requests.push_front(request);
            }
            let result = result.map(Option::unwrap_or_default);
            self.qp(qp).complete_request(&request, result);
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
        let (pd, bytes) = (self.qp(qp).pd, total(&request.segments));
        let local = self.regions.local(pd, &request.segments, matches!(request.op, Op::Read(_)))?;
        if bytes > MAX_MESSAGE {
            return Err(Status::LocalLength);
        }
        match request.op {
            Op::Send { solicited } => match self.qp(peer).recvs.pop_front() {
                Some(recv) => self.send(qp, peer, (&local, bytes, solicited), recv).map(|()| Some(bytes)),
                None => Ok(None),
            },
            Op::Write(remote) | Op::Read(remote) => self.rdma(qp, peer, (&local, bytes), remote, request.op).map(Some),
            _ => unreachable!("extensions are refused when they are posted"),
        }
    }

    /// Moves a message into a receive of the peer.
    fn send(
        &mut self,
        qp: u64,
        peer: u64,
        (source, bytes, solicited): (&[Region], u64, bool),
        (token, segments): (Token, Vec<Segment>),
    ) -> Result<(), Status> {
        let peer_pd = self.qp(peer).pd;
        let target = self.regions.local(peer_pd, &segments, true);
        // Statuses of the receive and of the send.
        let copied = match &target {
            Err(status) => Err((*status, Status::RemoteResponder)),
            Ok(_) if bytes > total(&segments) => Err((Status::LocalLength, Status::RemoteResponder)),
            Ok(target) => copy(source, target, bytes, &self.qp(qp).adapter.checker).map_err(|side| match side {
                Inaccessible::Source => (Status::Flushed, Status::LocalProtection),
                Inaccessible::Target => (Status::LocalProtection, Status::RemoteResponder),
            }),
        };
        let (status, bytes) = copied.map_or_else(|(status, _)| (status, 0), |()| (Status::Success, bytes));
        self.qp(peer).complete_recv(Completion { token, status, bytes, solicited, ..Completion::default() });
        self.check_recvs(peer);
        copied.map_err(|(_, status)| status)
    }

    /// Executes an RDMA write or read.
    fn rdma(
        &mut self,
        qp: u64,
        peer: u64,
        (local, bytes): (&[Region], u64),
        remote: Remote,
        op: Op,
    ) -> Result<u64, Status> {
        let is_read = matches!(op, Op::Read(_));
        if is_read && self.qp(peer).spec.max_reads_in == 0 {
            return Err(Status::RemoteResponder);
        }
        let peer_pd = self.qp(peer).pd;
        let target = self.regions.remote(peer_pd, remote, bytes, !is_read)?;
        let (from, to) = if is_read { (&target[..], local) } else { (local, &target[..]) };
        copy(from, to, bytes, &self.qp(qp).adapter.checker).map(|()| bytes).map_err(|side| {
            let is_local = matches!(side, Inaccessible::Source) != is_read;
            if is_local { Status::LocalProtection } else { Status::RemoteAccess }
        })
    }

    /// Checks the watermarks after the number of posted receives has changed.
    pub(crate) fn check_recvs(&mut self, qp: u64) {
        let state = self.qp(qp);
        let crossed = state.marks.check(state.recvs.len() as u32);
        if crossed.soft {
            state.adapter.report(Report::ManyRecvs(state.spec.ep));
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
            self.qp(qp).adapter.report(Report::Event(conn, event));
        }
        if let Stage::Connected { conn, .. } = self.qp(peer).stage {
            self.qp(peer).stop(Stage::Error);
            self.qp(peer).adapter.report(Report::Event(conn, peers));
        }
    }
}

impl QpState {
    /// The attempt to connect failed: flushes the queues and reports it.
    pub(crate) fn fail(&mut self, conn: ConnId, event: ConnectionEvent) {
        self.stop(Stage::Error);
        self.adapter.report(Report::Event(conn, event));
    }

    fn stop(&mut self, to: Stage) -> Stage {
        self.is_draining = false;
        self.flush_recvs();
        for QueuedRequest { token, .. } in std::mem::take(&mut self.requests) {
            complete(self.spec.request_cq.as_ref(), flushed(token));
        }
        std::mem::replace(&mut self.stage, to)
    }

    pub(crate) fn flush_recvs(&mut self) {
        for (token, _) in std::mem::take(&mut self.recvs) {
            self.complete_recv(flushed(token));
        }
    }

    pub(crate) fn is_full(&self, is_recv: bool) -> bool {
        let (count, most) = if is_recv {
            (self.recvs.len(), self.spec.max_recvs)
        } else {
            (self.requests.len(), self.spec.max_requests)
        };
        count >= most as usize
    }

    pub(crate) fn complete_recv(&self, completion: Completion) {
        complete(self.spec.recv_cq.as_ref(), completion);
    }

    fn complete_request(&self, request: &QueuedRequest, result: Result<u64, Status>) {
        let (status, bytes) = result.map_or_else(|status| (status, 0), |bytes| (Status::Success, bytes));
        if status != Status::Success || !request.suppress {
            let completion = Completion { token: request.token, status, bytes, ..Completion::default() };
            complete(self.spec.request_cq.as_ref(), completion);
        }
    }
}

fn complete(cq: Option<&Arc<Cq>>, completion: Completion) {
    if let Some(cq) = cq {
        cq.push(completion);
    }
}

pub(crate) fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}

fn total(segments: &[Segment]) -> u64 {
    segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.length))
}
