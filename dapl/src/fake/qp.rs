//! The fake provider's queue pair. A posted request completes at once, is flushed after the connection has ended, or is
//! queued until the connection is established. A posted receive gets a message that waits for it, waits for the next
//! message, or is flushed after the connection has ended. Lengths are recorded, but no bytes are moved.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::memory::WindowState;
use super::net::FakeNetwork;
use super::{FakeCq, FakeMr, FakeMw, FakeProvider, FakeRequest};
use crate::error::{AddressProblem, Error, Resource, Result};
use crate::provider::*;
use crate::stats::watermark::HighWatermark;

pub(crate) struct FakeQp(pub(super) Arc<FakeQpCore>);

impl FakeQp {
    pub(super) fn new(spec: QpSpec<FakeProvider>, net: &Arc<FakeNetwork>) -> Self {
        FakeQp(Arc::new(FakeQpCore { spec, net: net.clone(), inner: Mutex::default() }))
    }

    /// Completes the receives of the messages in transit (slow mode).
    pub(crate) fn arrive(&self) {
        let mut inner = self.0.inner.lock();
        for (token, message) in std::mem::take(&mut inner.taken) {
            self.0.complete_recv(token, message);
        }
        self.0.ring();
    }
}

pub(super) struct FakeQpCore {
    spec: QpSpec<FakeProvider>,
    pub(super) net: Arc<FakeNetwork>,
    pub(super) inner: Mutex<QpInner>,
}

#[derive(Default)]
pub(super) struct QpInner {
    pub(super) state: QpState,
    recvs: VecDeque<(Token, u64)>,
    /// Receives that a message has consumed and that have not completed yet, in slow mode.
    taken: VecDeque<(Token, Message)>,
    marks: HighWatermark,
    /// Requests that were posted before the connection was established.
    pending: VecDeque<PendingRequest>,
    /// Messages that arrived before their receives.
    early: VecDeque<Message>,
}

/// A request that was posted before the connection was established.
struct PendingRequest {
    token: Token,
    bytes: u64,
    message: Option<Message>,
    suppress: bool,
    window: Option<Arc<Mutex<WindowState>>>,
}

/// An operation that completes a receive of the peer.
#[derive(Clone, Copy)]
struct Message {
    bytes: u64,
    solicited: bool,
    arrival: ReceivedOp,
    value: u32,
}

impl Message {
    /// Returns the message that a request with this operation sends to the peer, if it sends one.
    fn of(op: Op, bytes: u64) -> Option<Self> {
        let (solicited, arrival, value) = match op {
            Op::Send { solicited } => (solicited, ReceivedOp::Send, 0),
            Op::SendImmediate { data, solicited } => (solicited, ReceivedOp::SendImmediate, data),
            Op::WriteImmediate { data, solicited, .. } => (solicited, ReceivedOp::WriteImmediate, data),
            Op::SendInvalidate { key, solicited } => (solicited, ReceivedOp::SendInvalidate, key),
            Op::Write(_) | Op::Read(_) | Op::FetchAdd { .. } | Op::CompareSwap { .. } => return None,
        };
        Some(Message { bytes, solicited, arrival, value })
    }
}

#[derive(Clone, Default)]
pub(super) enum QpState {
    #[default]
    Idle,
    Connecting(ConnId),
    Connected(ConnId, Weak<FakeQpCore>),
    Error,
}

impl FakeQpCore {
    fn complete_recv(&self, token: Token, message: Message) {
        let Message { bytes, solicited, arrival, value } = message;
        if let Some(cq) = &self.spec.recv_cq {
            cq.put(Completion { token, status: Status::Success, bytes, solicited, arrival, value });
        }
    }

    fn complete(cq: Option<&Arc<FakeCq>>, token: Token, status: Status, bytes: u64) {
        if let Some(cq) = cq {
            cq.put(Completion { token, status, bytes, ..Completion::default() });
            // The CQ does not notify here, because the object layer may hold locks during this call. `ring` notifies
            // later.
        }
    }

    fn ring(&self) {
        for cq in [&self.spec.recv_cq, &self.spec.request_cq].into_iter().flatten() {
            let cq = cq.clone();
            self.net.report(move |_| cq.ring());
        }
    }

    /// Flushes the receives, and also the requests if `requests` is true.
    fn flush(&self, inner: &mut QpInner, requests: bool) {
        let taken = inner.taken.drain(..).map(|(token, ..)| token);
        for token in taken.chain(inner.recvs.drain(..).map(|(token, _)| token)) {
            Self::complete(self.spec.recv_cq.as_ref(), token, Status::Flushed, 0);
        }
        if requests {
            for PendingRequest { token, window, .. } in inner.pending.drain(..) {
                if let Some(window) = window {
                    window.lock().advance(false);
                }
                Self::complete(self.spec.request_cq.as_ref(), token, Status::Flushed, 0);
            }
        }
        self.ring();
    }

    fn receive(self: &Arc<Self>, message: Message) {
        let mut inner = self.inner.lock();
        inner.early.push_back(message);
        if inner.early.len() == 1 {
            self.take_early(&mut inner);
        }
        self.check_watermarks(inner);
    }

    /// Called when a receive is posted to the SRQ on which this queue pair waits.
    pub(super) fn receive_early(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        self.take_early(&mut inner);
        self.check_watermarks(inner);
    }

    /// Assigns receives to the messages that wait for one.
    fn take_early(self: &Arc<Self>, inner: &mut QpInner) {
        while let Some(message) = inner.early.front().copied() {
            let token = match &self.spec.shared {
                Some(SharedRecvs { srq, token }) => srq.take(self).map(|(cookie, _)| Token { cookie, ..*token }),
                None => inner.recvs.pop_front().map(|(token, _)| token),
            };
            let Some(token) = token else { break };
            inner.early.pop_front();
            if self.net.slow.load(Ordering::SeqCst) {
                inner.taken.push_back((token, message));
            } else {
                self.complete_recv(token, message);
            }
        }
        self.ring();
    }

    /// Reports a crossed soft watermark, and breaks an established connection at the hard watermark. Called when the
    /// number of receives, the watermarks or the state has changed.
    fn check_watermarks(self: &Arc<Self>, mut inner: MutexGuard<'_, QpInner>) {
        let count = (inner.recvs.len() + inner.taken.len()) as u32;
        let crossed = inner.marks.check(count);
        let is_connected = matches!(inner.state, QpState::Connected(..));
        drop(inner);
        if crossed.soft {
            let ep = self.spec.ep;
            self.net.report(move |sink| sink.many_recvs(ep));
        }
        if crossed.hard
            && is_connected
            && let Some(conn) = self.end(QpState::Error)
        {
            self.net.event(conn, ConnectionEvent::Broken);
        }
    }

    /// Establishes the connection, executes the pending requests, and checks the watermarks.
    pub(super) fn establish(self: &Arc<Self>, conn: ConnId, peer: &Arc<FakeQpCore>) {
        let mut inner = self.inner.lock();
        inner.state = QpState::Connected(conn, Arc::downgrade(peer));
        let pending = std::mem::take(&mut inner.pending);
        drop(inner);
        for PendingRequest { token, bytes, message, suppress, window } in pending {
            match window {
                Some(window) => self.bind(conn, &window, token, suppress),
                None => self.transfer(peer, token, bytes, message, suppress),
            }
        }
        self.check_watermarks(self.inner.lock());
    }

    fn bind(&self, conn: ConnId, window: &Mutex<WindowState>, token: Token, suppress: bool) {
        let works = !self.net.make_binds_fail.load(Ordering::SeqCst);
        window.lock().advance(works);
        if !works {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::BindFailed, 0);
            self.end(QpState::Error);
            self.net.event(conn, ConnectionEvent::Broken);
        } else if !suppress {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::Success, 0);
            self.ring();
        }
    }

    fn transfer(&self, peer: &Arc<FakeQpCore>, token: Token, bytes: u64, message: Option<Message>, suppress: bool) {
        if let Some(message) = message {
            peer.receive(message);
        }
        if !suppress {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::Success, bytes);
            self.ring();
        }
    }

    /// Ends the connection or the attempt on this side: drops the early messages and flushes all work. If the
    /// connection was established, also ends it on the peer's side, queues the peer's event, and returns the id of this
    /// side.
    fn end(&self, to: QpState) -> Option<ConnId> {
        let mut inner = self.inner.lock();
        let was = std::mem::replace(&mut inner.state, to);
        inner.early.clear();
        self.flush(&mut inner, true);
        drop(inner);
        let QpState::Connected(conn, peer) = was else { return None };
        if let Some(peer) = peer.upgrade() {
            peer.peer_left();
        }
        Some(conn)
    }

    fn peer_left(&self) {
        let mut inner = self.inner.lock();
        if let QpState::Connected(conn, _) = inner.state {
            inner.state = QpState::Error;
            self.flush(&mut inner, true);
            self.net.event(conn, ConnectionEvent::Disconnected);
        }
    }
}

impl QueuePair for FakeQp {
    type Mr = FakeMr;
    type Mw = FakeMw;

    fn post_bind(&self, mw: &FakeMw, bind: Option<Bind<'_, FakeMr>>, wr: &BindWr) -> Result<u32> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        if inner.pending.len() >= core.spec.max_requests as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let key = core.net.keys.fetch_add(1, Ordering::SeqCst) + 1;
        let key = if bind.is_some() { key | 1 << 31 } else { 0 };
        {
            let mut window = mw.0.lock();
            window.bound = bind.is_some();
            window.next.push_back(bind.map(|bind| bind.kept));
        }
        match inner.state.clone() {
            QpState::Connected(conn, _) => {
                drop(inner);
                core.bind(conn, &mw.0, wr.token, wr.suppress);
            }
            QpState::Error => {
                mw.0.lock().advance(false);
                FakeQpCore::complete(core.spec.request_cq.as_ref(), wr.token, Status::Flushed, 0);
                core.ring();
            }
            QpState::Idle | QpState::Connecting(_) => {
                let (token, suppress) = (wr.token, wr.suppress);
                let window = Some(mw.0.clone());
                inner.pending.push_back(PendingRequest { token, bytes: 0, message: None, suppress, window });
            }
        }
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let mut inner = self.0.inner.lock();
        inner.marks = HighWatermark::new(soft, hard);
        self.0.check_watermarks(inner);
        Ok(())
    }

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        if inner.recvs.len() >= core.spec.max_recvs as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        if matches!(inner.state, QpState::Error) {
            FakeQpCore::complete(core.spec.recv_cq.as_ref(), token, Status::Flushed, 0);
        } else {
            inner.recvs.push_back((token, length(segments)));
            core.take_early(&mut inner);
        }
        core.ring();
        core.check_watermarks(inner);
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        let bytes = length(wr.segments);
        let message = Message::of(wr.op, bytes);
        let state = inner.state.clone();
        match state {
            QpState::Connected(_, peer) => {
                drop(inner);
                if let Some(peer) = peer.upgrade() {
                    core.transfer(&peer, wr.token, bytes, message, wr.suppress);
                }
            }
            QpState::Error => {
                FakeQpCore::complete(core.spec.request_cq.as_ref(), wr.token, Status::Flushed, 0);
                core.ring();
            }
            QpState::Idle | QpState::Connecting(_) => {
                if inner.pending.len() >= core.spec.max_requests as usize {
                    return Err(Error::Exhausted(Resource::Memory));
                }
                let (token, suppress) = (wr.token, wr.suppress);
                inner.pending.push_back(PendingRequest { token, bytes, message, suppress, window: None });
            }
        }
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        let inner = self.0.inner.lock();
        Outstanding { recvs: (inner.recvs.len() + inner.taken.len()) as u32, requests: inner.pending.len() as u32 }
    }

    fn flush_recvs(&self) {
        let mut inner = self.0.inner.lock();
        self.0.flush(&mut inner, false);
    }
}

impl Connection for FakeQp {
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if *spec.address != PeerAddress::Ip([127, 0, 0, 1].into()) {
            return Err(Error::InvalidAddress(AddressProblem::Unreachable));
        }
        let core = &self.0;
        core.inner.lock().state = QpState::Connecting(conn);
        let Some(listener) = core.net.listeners.lock().get(&spec.qual).copied() else {
            core.net.event(conn, ConnectionEvent::Rejected);
            return Ok(());
        };
        let info = RequestInfo {
            peer: SocketAddr::from(([127, 0, 0, 1], 9)),
            private_data: spec.private_data.to_vec(),
            reported_len: spec.private_data.len(),
        };
        let request = FakeRequest { from: Some((core.clone(), conn)), info: info.clone() };
        core.net.report(move |sink| drop(sink.request(listener, request, info)));
        Ok(())
    }

    fn drain(&self) {
        if let Some(conn) = self.0.end(QpState::Error) {
            self.0.net.event(conn, ConnectionEvent::Disconnected);
        }
    }

    fn abort(&self) {
        self.0.end(QpState::Error);
    }

    fn reset(&self) -> Result<()> {
        self.0.end(QpState::Idle);
        Ok(())
    }
}

pub(super) fn length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.length).sum()
}
