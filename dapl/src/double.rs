//! A provider in memory, for tests: it loops back within one IA, moves no bytes, and does nothing behind a test's back.
//!
//! What a real provider reports from its own thread waits here until the test calls [`Double::deliver`]; a test can also
//! feed a completion queue by hand ([`DoubleCq::feed`]). So each test decides what happens, and when.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Address, Error, Resource, Result};
use crate::handle::ObjectId;
use crate::provider::*;
use crate::watermark::High;

mod srq;

pub(crate) use srq::DoubleSrq;

type News = Box<dyn FnOnce(&dyn CmSink<Double>) + Send>;

/// The provider.
pub(crate) struct Double {
    limits: Limits,
    net: Arc<Net>,
    sink: Arc<dyn CmSink<Double>>,
}

/// What the parts of one IA share.
#[derive(Default)]
struct Net {
    listeners: Mutex<HashMap<u64, ObjectId>>,
    news: Mutex<VecDeque<News>>,
    closed: AtomicBool,
    keys: AtomicU32,
    srqs: AtomicU32,
    /// Messages are received in two steps: who takes one completes it only when the test says so.
    slow: AtomicBool,
    spoil_binds: AtomicBool,
    /// Lengths and numbers of those who share memory.
    members: Mutex<HashMap<SharedCookie, (u64, usize)>>,
}

impl Net {
    fn report(&self, news: impl FnOnce(&dyn CmSink<Double>) + Send + 'static) {
        self.news.lock().push_back(Box::new(news));
    }

    fn event(&self, conn: ConnId, event: CmEvent<'static>) {
        self.report(move |sink| sink.event(conn, event));
    }
}

impl Double {
    /// Reports all that is to be reported, as the provider's own thread; says how much it was.
    pub(crate) fn deliver(&self) -> usize {
        let mut count = 0;
        loop {
            let Some(news) = self.net.news.lock().pop_front() else { return count };
            news(&*self.sink);
            count += 1;
        }
    }

    /// From now on messages take time: a receive that is taken stays so until [`DoubleQp::arrive`].
    pub(crate) fn slow_down(&self) {
        self.net.slow.store(true, Ordering::SeqCst);
    }

    /// From now on binds that start fail.
    pub(crate) fn spoil_binds(&self) {
        self.net.spoil_binds.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.net.closed.load(Ordering::SeqCst)
    }
}

impl Provider for Double {
    type Pd = ();
    type Mr = DoubleMr;
    type Mw = DoubleMw;
    type Membership = DoubleMember;
    type Cq = DoubleCq;
    type Srq = DoubleSrq;
    type Qp = DoubleQp;
    type Listener = DoubleListener;
    type Request = DoubleRequest;

    const NAME: &'static str = "double";

    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self> {
        let limits = Limits {
            max_eps: 64,
            max_dtos: 64,
            max_evds: 64,
            max_evd_qlen: 1000,
            max_iov: 4,
            max_lmrs: 64,
            max_lmr_size: 1 << 40,
            max_pzs: 64,
            max_message: 1 << 31,
            max_rdma: 1 << 31,
            max_rmrs: 64,
            max_srqs: if spec.name.contains("without srqs") { 0 } else { 2 },
            max_reads_in: 4,
            max_reads_out: 4,
            private_data_connect: 92,
            private_data_accept: 196,
            vendor: "nobody".into(),
            hardware_version: (0, 0),
            firmware_version: (0, 0),
        };
        Ok(Double { limits, net: Arc::default(), sink })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 7))
    }

    fn alloc_pd(&self) -> Result<()> {
        Ok(())
    }

    fn register(&self, (): &(), _: Region, access: Access) -> Result<DoubleMr> {
        let key = self.net.keys.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(DoubleMr { key, remote: access.remote_read || access.remote_write })
    }

    fn join(&self, cookie: &SharedCookie, length: u64) -> Result<DoubleMember> {
        let mut members = self.net.members.lock();
        let (known, count) = members.entry(*cookie).or_insert((length, 0));
        if *known != length {
            return Err(Error::InvalidParameter(4));
        }
        *count += 1;
        Ok(DoubleMember { net: self.net.clone(), cookie: *cookie })
    }

    fn alloc_mw(&self, (): &()) -> Result<DoubleMw> {
        Ok(DoubleMw(Arc::default()))
    }

    fn create_srq(&self, (): &(), spec: SrqSpec) -> Result<DoubleSrq> {
        DoubleSrq::new(spec, &self.net, self.limits.max_srqs)
    }

    fn create_cq(&self, sink: Weak<dyn CqSink>) -> Result<DoubleCq> {
        Ok(DoubleCq { queue: Mutex::default(), armed: AtomicBool::new(false), sink })
    }

    fn create_qp(&self, (): &(), spec: QpSpec<Self>) -> Result<DoubleQp> {
        Ok(DoubleQp(Arc::new(Core { spec, net: self.net.clone(), inner: Mutex::default() })))
    }

    fn listen(&self, qual: u64, id: ObjectId) -> Result<DoubleListener> {
        let mut listeners = self.net.listeners.lock();
        if listeners.contains_key(&qual) {
            return Err(Error::ConnQualTaken);
        }
        listeners.insert(qual, id);
        Ok(DoubleListener { net: self.net.clone(), qual })
    }

    fn close(&self) {
        self.net.closed.store(true, Ordering::SeqCst);
        self.net.news.lock().clear();
    }
}

/// Registered memory.
pub(crate) struct DoubleMr {
    key: u32,
    remote: bool,
}

impl MemoryRegion for DoubleMr {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.remote { self.key | 1 << 31 } else { 0 }
    }
}

/// One who shares memory.
pub(crate) struct DoubleMember {
    net: Arc<Net>,
    cookie: SharedCookie,
}

impl Drop for DoubleMember {
    fn drop(&mut self) {
        let mut members = self.net.members.lock();
        if let Some((_, count)) = members.get_mut(&self.cookie) {
            *count -= 1;
            if *count == 0 {
                members.remove(&self.cookie);
            }
        }
    }
}

/// A memory window. What it keeps it lets go when a later bind or unbind starts, or fails.
pub(crate) struct DoubleMw(Arc<Mutex<Pane>>);

#[derive(Default)]
pub(crate) struct Pane {
    bound: bool,
    /// Of the binding in force, and of those that wait.
    keep: Option<Keep>,
    next: VecDeque<Option<Keep>>,
}

impl Pane {
    /// The oldest that waits takes effect, or nothing is bound any more.
    fn turn(&mut self, works: bool) {
        let next = self.next.pop_front().flatten();
        self.keep = if works { next } else { None };
        self.bound &= works || !self.next.is_empty();
    }
}

impl MemoryWindow for DoubleMw {
    fn is_bound(&self) -> bool {
        self.0.lock().bound
    }
}

impl Drop for DoubleMw {
    fn drop(&mut self) {
        *self.0.lock() = Pane::default();
    }
}

/// A completion queue that a test can feed.
pub(crate) struct DoubleCq {
    queue: Mutex<VecDeque<Completion>>,
    armed: AtomicBool,
    sink: Weak<dyn CqSink>,
}

impl DoubleCq {
    /// Completes something, quietly: nobody hears of it before [`DoubleCq::ring`].
    pub(crate) fn put(&self, done: Completion) {
        self.queue.lock().push_back(done);
    }

    /// Tells the sink, if the queue is armed, as the provider's own thread.
    pub(crate) fn ring(&self) {
        let sink = if self.armed.swap(false, Ordering::SeqCst) { self.sink.upgrade() } else { None };
        if let Some(sink) = sink {
            sink.notify();
        }
    }

    /// Completes something and tells the sink.
    pub(crate) fn feed(&self, done: Completion) {
        self.put(done);
        self.ring();
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }
}

impl CompletionQueue for DoubleCq {
    fn poll(&self, out: &mut [Completion]) -> usize {
        self.ready(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        let mut queue = self.queue.lock();
        let n = queue.len().min(out.len());
        for (place, done) in out.iter_mut().zip(queue.drain(..n)) {
            *place = done;
        }
        n
    }

    fn arm(&self) -> Result<bool> {
        let queue = self.queue.lock();
        if !queue.is_empty() {
            return Ok(false);
        }
        self.armed.store(true, Ordering::SeqCst);
        Ok(true)
    }
}

/// A queue pair.
pub(crate) struct DoubleQp(Arc<Core>);

impl DoubleQp {
    /// The messages that it is receiving are there.
    pub(crate) fn arrive(&self) {
        let mut inner = self.0.inner.lock();
        for (token, bytes, solicited) in std::mem::take(&mut inner.taken) {
            Core::complete(self.0.spec.recv_cq.as_ref(), token, Status::Success, bytes, solicited);
        }
        self.0.ring();
    }
}

struct Core {
    spec: QpSpec<Double>,
    net: Arc<Net>,
    inner: Mutex<QpInner>,
}

#[derive(Default)]
struct QpInner {
    state: QpState,
    recvs: VecDeque<(Token, u64)>,
    /// Receives that have a message whose last byte is not there, with its length.
    taken: VecDeque<(Token, u64, bool)>,
    marks: High,
    /// Requests that wait for the connection.
    held: VecDeque<Held>,
    /// Messages that came before their receives, by length.
    early: VecDeque<(u64, bool)>,
}

/// A request that waits.
struct Held {
    token: Token,
    bytes: u64,
    is_message: bool,
    suppress: bool,
    pane: Option<Arc<Mutex<Pane>>>,
}

#[derive(Clone, Default)]
enum QpState {
    #[default]
    Idle,
    Connecting(ConnId),
    Connected(ConnId, Weak<Core>),
    Error,
}

impl Core {
    fn complete(cq: Option<&Arc<DoubleCq>>, token: Token, status: Status, bytes: u64, solicited: bool) {
        if let Some(cq) = cq {
            cq.put(Completion { token, status, bytes, solicited });
            // A ring is news too: it must not come from inside a down-call.
        }
    }

    fn ring(&self) {
        for cq in [&self.spec.recv_cq, &self.spec.request_cq].into_iter().flatten() {
            let cq = cq.clone();
            self.net.report(move |_| cq.ring());
        }
    }

    /// Flushes everything, receives first.
    fn flush(&self, inner: &mut QpInner, requests: bool) {
        let taken = inner.taken.drain(..).map(|(token, ..)| token);
        for token in taken.chain(inner.recvs.drain(..).map(|(token, _)| token)) {
            Self::complete(self.spec.recv_cq.as_ref(), token, Status::Flushed, 0, false);
        }
        if requests {
            for Held { token, pane, .. } in inner.held.drain(..) {
                if let Some(pane) = pane {
                    pane.lock().turn(false);
                }
                Self::complete(self.spec.request_cq.as_ref(), token, Status::Flushed, 0, false);
            }
        }
        self.ring();
    }

    fn receive(self: &Arc<Self>, bytes: u64, solicited: bool) {
        let mut inner = self.inner.lock();
        inner.early.push_back((bytes, solicited));
        if inner.early.len() == 1 {
            self.take_early(&mut inner);
        }
        self.look(inner);
    }

    /// A receive was posted to the shared queue, for which this one waited.
    fn receive_early(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        self.take_early(&mut inner);
        self.look(inner);
    }

    /// Messages that are there go into receives.
    fn take_early(self: &Arc<Self>, inner: &mut QpInner) {
        while let Some((bytes, solicited)) = inner.early.front().copied() {
            let token = match &self.spec.shared {
                Some(SharedRecvs { srq, token }) => srq.take(self).map(|(cookie, _)| Token { cookie, ..*token }),
                None => inner.recvs.pop_front().map(|(token, _)| token),
            };
            let Some(token) = token else { break };
            inner.early.pop_front();
            if self.net.slow.load(Ordering::SeqCst) {
                inner.taken.push_back((token, bytes, solicited));
            } else {
                Self::complete(self.spec.recv_cq.as_ref(), token, Status::Success, bytes, solicited);
            }
        }
        self.ring();
    }

    /// Looks at the watermarks, after the number of receives has changed.
    fn look(self: &Arc<Self>, mut inner: MutexGuard<'_, QpInner>) {
        let count = (inner.recvs.len() + inner.taken.len()) as u32;
        let crossed = inner.marks.look(count);
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
            self.net.event(conn, CmEvent::Broken);
        }
    }

    /// The connection stands; what was held goes out.
    fn establish(self: &Arc<Self>, conn: ConnId, peer: &Arc<Core>) {
        let mut inner = self.inner.lock();
        inner.state = QpState::Connected(conn, Arc::downgrade(peer));
        let held = std::mem::take(&mut inner.held);
        drop(inner);
        for Held { token, bytes, is_message, suppress, pane } in held {
            match pane {
                Some(pane) => self.bind(conn, &pane, token, suppress),
                None => self.transfer(peer, token, bytes, is_message.then_some(false), suppress),
            }
        }
        self.look(self.inner.lock());
    }

    fn bind(&self, conn: ConnId, pane: &Mutex<Pane>, token: Token, suppress: bool) {
        let works = !self.net.spoil_binds.load(Ordering::SeqCst);
        pane.lock().turn(works);
        if !works {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::BindFailed, 0, false);
            self.end(QpState::Error);
            self.net.event(conn, CmEvent::Broken);
        } else if !suppress {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::Success, 0, false);
            self.ring();
        }
    }

    fn transfer(&self, peer: &Arc<Core>, token: Token, bytes: u64, message: Option<bool>, suppress: bool) {
        if let Some(solicited) = message {
            peer.receive(bytes, solicited);
        }
        if !suppress {
            Self::complete(self.spec.request_cq.as_ref(), token, Status::Success, bytes, false);
            self.ring();
        }
    }

    /// Ends the connection here; the peer hears of it.
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
            self.net.event(conn, CmEvent::Disconnected);
        }
    }
}

impl QueuePair for DoubleQp {
    type Mr = DoubleMr;
    type Mw = DoubleMw;

    fn post_bind(&self, mw: &DoubleMw, bind: Option<Bind<'_, DoubleMr>>, wr: &BindWr) -> Result<u32> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        if inner.held.len() >= core.spec.max_requests as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let key = core.net.keys.fetch_add(1, Ordering::SeqCst) + 1;
        let key = if bind.is_some() { key | 1 << 31 } else { 0 };
        {
            let mut pane = mw.0.lock();
            pane.bound = bind.is_some();
            pane.next.push_back(bind.map(|bind| bind.keep));
        }
        match inner.state.clone() {
            QpState::Connected(conn, _) => {
                drop(inner);
                core.bind(conn, &mw.0, wr.token, wr.suppress);
            }
            QpState::Error => {
                mw.0.lock().turn(false);
                Core::complete(core.spec.request_cq.as_ref(), wr.token, Status::Flushed, 0, false);
                core.ring();
            }
            QpState::Idle | QpState::Connecting(_) => {
                let (token, suppress) = (wr.token, wr.suppress);
                let pane = Some(mw.0.clone());
                inner.held.push_back(Held { token, bytes: 0, is_message: false, suppress, pane });
            }
        }
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let mut inner = self.0.inner.lock();
        inner.marks = High::new(soft, hard);
        self.0.look(inner);
        Ok(())
    }

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        if inner.recvs.len() >= core.spec.max_recvs as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        if matches!(inner.state, QpState::Error) {
            Core::complete(core.spec.recv_cq.as_ref(), token, Status::Flushed, 0, false);
        } else {
            inner.recvs.push_back((token, length(segments)));
            core.take_early(&mut inner);
        }
        core.ring();
        core.look(inner);
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        let message = match wr.op {
            Op::Send { solicited } => Some(solicited),
            Op::Write(_) | Op::Read(_) => None,
        };
        let bytes = length(wr.segments);
        let state = inner.state.clone();
        match state {
            QpState::Connected(_, peer) => {
                drop(inner);
                if let Some(peer) = peer.upgrade() {
                    core.transfer(&peer, wr.token, bytes, message, wr.suppress);
                }
            }
            QpState::Error => {
                Core::complete(core.spec.request_cq.as_ref(), wr.token, Status::Flushed, 0, false);
                core.ring();
            }
            QpState::Idle | QpState::Connecting(_) => {
                if inner.held.len() >= core.spec.max_requests as usize {
                    return Err(Error::Exhausted(Resource::Memory));
                }
                let (token, suppress) = (wr.token, wr.suppress);
                inner.held.push_back(Held { token, bytes, is_message: message.is_some(), suppress, pane: None });
            }
        }
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        let inner = self.0.inner.lock();
        Outstanding { recvs: (inner.recvs.len() + inner.taken.len()) as u32, requests: inner.held.len() as u32 }
    }

    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if *spec.address != PeerAddress::Ip([127, 0, 0, 1].into()) {
            return Err(Error::InvalidAddress(Address::Unreachable));
        }
        let core = &self.0;
        core.inner.lock().state = QpState::Connecting(conn);
        let Some(listener) = core.net.listeners.lock().get(&spec.qual).copied() else {
            core.net.event(conn, CmEvent::Rejected);
            return Ok(());
        };
        let info =
            RequestInfo { peer: SocketAddr::from(([127, 0, 0, 1], 9)), private_data: spec.private_data.to_vec() };
        let request = DoubleRequest { from: Some((core.clone(), conn)), info: info.clone() };
        core.net.report(move |sink| drop(sink.request(listener, request, info)));
        Ok(())
    }

    fn drain(&self) {
        if let Some(conn) = self.0.end(QpState::Error) {
            self.0.net.event(conn, CmEvent::Disconnected);
        }
    }

    fn abort(&self) {
        self.0.end(QpState::Error);
    }

    fn reset(&self) -> Result<()> {
        self.0.end(QpState::Idle);
        Ok(())
    }

    fn flush_recvs(&self) {
        let mut inner = self.0.inner.lock();
        self.0.flush(&mut inner, false);
    }
}

fn length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.length).sum()
}

/// A listener.
pub(crate) struct DoubleListener {
    net: Arc<Net>,
    qual: u64,
}

impl Drop for DoubleListener {
    fn drop(&mut self) {
        self.net.listeners.lock().remove(&self.qual);
    }
}

/// A connection request.
pub(crate) struct DoubleRequest {
    /// Taken by the answer.
    from: Option<(Arc<Core>, ConnId)>,
    info: RequestInfo,
}

impl ConnRequest for DoubleRequest {
    type Qp = DoubleQp;

    fn accept(mut self, qp: &DoubleQp, private_data: &[u8], conn: ConnId) -> Result<()> {
        let Some((from, theirs)) = self.from.take() else { return Err(Error::Internal) };
        let (to, data) = (qp.0.clone(), private_data.to_vec());
        let asks = matches!(from.inner.lock().state, QpState::Connecting(conn) if conn == theirs);
        qp.0.net.report(move |sink| {
            if !asks {
                return sink.event(conn, CmEvent::AcceptFailed);
            }
            sink.event(conn, CmEvent::Established { private_data: &[] });
            sink.event(theirs, CmEvent::Established { private_data: &data });
            to.establish(conn, &from);
            from.establish(theirs, &to);
        });
        Ok(())
    }

    fn hand_off(mut self, qual: u64) -> std::result::Result<(), (Self, Error)> {
        let Some((from, conn)) = self.from.take() else { return Ok(()) };
        let Some(listener) = from.net.listeners.lock().get(&qual).copied() else {
            self.from = Some((from, conn));
            return Err((self, Error::InvalidParameter(2)));
        };
        let (net, info) = (from.net.clone(), self.info.clone());
        let request = DoubleRequest { from: Some((from, conn)), info: info.clone() };
        net.report(move |sink| drop(sink.request(listener, request, info)));
        Ok(())
    }

    fn reject(mut self) {
        if let Some((from, conn)) = self.from.take() {
            from.net.event(conn, CmEvent::PeerRejected);
        }
    }
}

impl Drop for DoubleRequest {
    fn drop(&mut self) {
        if let Some((from, conn)) = self.from.take() {
            from.net.event(conn, CmEvent::Rejected);
        }
    }
}

/// An open IA over the double, with its async EVD.
pub(crate) struct Opened {
    pub(crate) ia: Arc<crate::ia::Ia<Double>>,
    pub(crate) ia_handle: *mut std::ffi::c_void,
    pub(crate) async_evd: *mut std::ffi::c_void,
}

/// Opens one; `name` only tells tests apart.
pub(crate) fn open(name: &std::ffi::CStr) -> Opened {
    open_with(name, c"")
}

/// With these `ia_params`.
pub(crate) fn open_with(name: &std::ffi::CStr, params: &std::ffi::CStr) -> Opened {
    use crate::{evd::dapls_evd, ia::dapls_ia};
    let registration = crate::registration::for_test_with::<Double>(name, params);
    let (ia_handle, async_evd) =
        dapls_ia::open::<Double>(registration, crate::cm::sink::<Double>(), dapls_evd::with_ia(8))
            .expect("the double opens");
    let ia = crate::handle::from_handle::<crate::ia::Ia<Double>>(ia_handle, crate::error::Handle::Ia)
        .expect("just opened")
        .to_arc();
    Opened { ia, ia_handle, async_evd }
}
