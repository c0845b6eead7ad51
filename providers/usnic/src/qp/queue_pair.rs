//! Queue pairs: the work that is posted, the connection that carries it out, and who sends.
//!
//! All of a queue pair is under one lock: posts, packets that came, turns to send. Before a connection stands its work is kept
//! here, after its end it is flushed as it is posted, until the queue pair is reset. A small post into a quiet connection leaves
//! at once, in the posting thread (US-5); more of them wait for the next pass, where they make up trains. When a connection has
//! ended, what its peer may still want to hear is left to its [`Remains`](crate::qp::closing::Remains). Lock order: the device's
//! pass, queue pair, shared receive queue, completion queue, job queue. Only the engine reports connection events to dapl.
#![forbid(unsafe_code)]

mod called;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    Bind, BindWr, ConnId, ConnectSpec, Connection, ConnectionEvent, Count, MemoryRegion, Op, Outstanding, QpSpec,
    QueuePair, Segment, SendWr, SharedRecvs, Status, Token,
};
use dapl::runtime::cancel;
use dapl::stats::watermark::High;
use dapl_software::memory::scatter_gather::Segments;
use dapl_software::memory::window::BindRequest;
use parking_lot::{Mutex, MutexGuard};

use crate::cm::{Cm, QpCaps};
use crate::counters::{self, Tally};
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::engine::progress::Progress;
use crate::limits;
use crate::proto::Nanos;
use crate::proto::conn::{Config, Post, Work};
use crate::proto::counters::Counters;
use crate::proto::schedule::Outlook;
use crate::qp::closing::Remains;
use crate::qp::host::{Pool, Recv, Request, World};
use crate::qp::transport::Line;
use crate::{Mr, Mw, Usnic};

/// A connection with so few requests under way is quiet: one more leaves at once.
const QUIET: u32 = 4;

/// A queue pair as dapl holds it.
pub struct Qp(pub(crate) Arc<Core>);

/// The queue pair itself, shared with the device and shared receive queues.
pub(crate) struct Core {
    device: Arc<Device>,
    progress: Arc<Progress>,
    cm: Arc<Cm>,
    tally: Arc<Tally<Core>>,
    world: World,
    config: Config,
    max_message: u64,
    caps: QpCaps,
    inner: Mutex<Inner>,
}

/// What its lock guards.
#[derive(Debug)]
struct Inner {
    stage: Stage,
    line: Option<Line>,
    /// What was posted before a connection stands.
    recvs: VecDeque<Recv>,
    requests: VecDeque<Post<Request>>,
    /// Who heard of a connection already wants it drained, and it does not stand yet.
    drains: bool,
    marks: High,
    /// What the last connection had counted.
    past: Option<Box<Counters>>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// What is posted is kept.
    Unconnected,
    /// The same, and an attempt of this number is under way.
    Connecting(u32),
    /// There is a line.
    Connected,
    /// What is posted is flushed.
    Over,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("pd", &self.world.pd).finish_non_exhaustive()
    }
}

impl Qp {
    pub(crate) fn new(ia: &Usnic, pd: u32, spec: QpSpec<Usnic>) -> Self {
        let config = limits::config(&ia.adapter.device, &spec);
        let mut world = World {
            regions: ia.regions.clone(),
            jobs: ia.adapter.device.jobs.clone(),
            ep: spec.ep,
            pd,
            recv_pd: pd,
            pool: None,
            taken: AtomicU32::new(0),
            most_taken: AtomicU32::new(0),
            recv_cq: spec.recv_cq.map(|cq| cq.0.clone()),
            request_cq: spec.request_cq.map(|cq| cq.0.clone()),
        };
        let caps = QpCaps { ord: spec.max_reads_out, ird: spec.max_reads_in, credits: 0 };
        let qp = Qp(Arc::new_cyclic(|me: &Weak<Core>| {
            if let Some(SharedRecvs { srq, token }) = spec.shared {
                world.recv_pd = srq.0.pd;
                world.pool = Some(Pool { srq: srq.0.clone(), token, waiter: me.clone() });
            }
            let inner = Inner {
                stage: Stage::Unconnected,
                line: None,
                recvs: VecDeque::new(),
                requests: VecDeque::new(),
                drains: false,
                marks: High::default(),
                past: None,
            };
            Core {
                device: ia.adapter.device.clone(),
                progress: ia.adapter.progress.clone(),
                cm: ia.adapter.cm.clone(),
                tally: ia.tally.clone(),
                world,
                config,
                max_message: ia.limits.max_message,
                caps,
                inner: Mutex::new(inner),
            }
        }));
        ia.tally.add(Arc::downgrade(&qp.0));
        qp
    }
}

impl Inner {
    /// Posted and not complete: requests and receives.
    fn outstanding(&self) -> (u32, u32) {
        match &self.line {
            Some(line) => line.link.outstanding(),
            None => (self.requests.len() as u32, self.recvs.len() as u32),
        }
    }

    /// The line of this number.
    fn line(&mut self, number: u32) -> Option<&mut Line> {
        self.line.as_mut().filter(|line| line.number == number)
    }
}

impl Core {
    /// After the connection was touched: what became of it, and what it wants next.
    fn settle(&self, inner: &mut Inner, now: Nanos) -> Outlook {
        self.look_at_news(inner, now);
        inner.line.as_ref().map_or(Outlook::default(), |line| line.outlook(now))
    }

    /// What became of the connection; there is no line any more if it has ended.
    #[inline]
    fn look_at_news(&self, inner: &mut Inner, now: Nanos) {
        let Some(line) = &mut inner.line else { return };
        let event = line.link.take_event();
        let recvs = self.recvs(line);
        if event.is_none() && !inner.marks.is_crossed(recvs) {
            return;
        }
        let id = line.id;
        let event = match event {
            None if !self.judge(inner, recvs) => return,
            None => {
                log::info!("connection of EP {:?} dropped: receives above its hard watermark", self.world.ep);
                ConnectionEvent::Broken
            }
            Some(event) => event,
        };
        self.finish(inner, now);
        self.world.jobs.push(Job::Event(id, event));
    }

    /// What the watermarks look at: receives that are posted, or were taken out of a shared queue since the last look.
    #[inline]
    fn recvs(&self, line: &Line) -> u32 {
        match self.world.pool {
            Some(_) => self.world.most_taken.swap(self.world.taken.load(Ordering::Relaxed), Ordering::Relaxed),
            None => line.link.outstanding().1,
        }
    }

    /// Holds the receives against the watermarks: the soft one is told; whether the hard one ends a connection.
    #[cold]
    fn judge(&self, inner: &mut Inner, recvs: u32) -> bool {
        let crossed = inner.marks.look(recvs);
        if crossed.soft {
            self.world.jobs.push(Job::ManyRecvs(self.world.ep));
        }
        crossed.hard && inner.line.is_some()
    }

    /// Ends the line, if there is one: all is flushed, and the peer is told. What remains is left to the device.
    fn finish(&self, inner: &mut Inner, now: Nanos) {
        let _deferral = cancel::defer(); // posts and polls come here, and sockets are closed
        inner.stage = Stage::Over;
        if let Some(mut line) = inner.line.take() {
            // What was delivered is acked: the peer's requests have succeeded.
            line.link.tell_all(now, &mut &self.world);
            line.transmit(now, &mut &self.world, &self.world);
            line.link.abort(now, &mut &self.world);
            line.transmit(now, &mut &self.world, &self.world);
            if let Some(pool) = &self.world.pool {
                pool.srq.cancel_wait(&pool.waiter);
            }
            let counters = line.link.counters();
            self.tally.is_over(&counters);
            counters::log(self.world.ep, &counters);
            inner.past = Some(Box::new(counters));
            Remains::leave(&self.device, &self.world, line, now);
        }
        self.flush(inner);
    }

    /// What was kept.
    fn flush(&self, inner: &mut Inner) {
        for post in inner.requests.drain(..) {
            self.world.complete_request(&post.request, Status::Flushed, 0);
        }
        self.flush_recvs(inner);
    }

    fn flush_recvs(&self, inner: &mut Inner) {
        for recv in inner.recvs.drain(..) {
            self.world.complete_recv(recv.token, Status::Flushed, 0, false);
        }
    }

    /// After a down-call: what the connection wants is the next pass's business.
    fn leave_to_device(&self, mut inner: MutexGuard<'_, Inner>, now: Nanos) {
        if inner.line.as_ref().is_some_and(|line| line.plan.is_at_once()) {
            // Its turn is to come anyway, and will find what was done: the lock is still held.
            return self.look_at_news(&mut inner, now);
        }
        let outlook = self.settle(&mut inner, now);
        let plan = inner.line.as_ref().map(|line| (line.number, line.plan.clone()));
        drop(inner);
        if let Some((number, plan)) = plan {
            self.device.wants(number, &plan, &outlook);
        }
    }

    /// The lock, with room for one more request.
    #[inline]
    fn room_for_request(&self) -> Result<MutexGuard<'_, Inner>> {
        let inner = self.inner.lock();
        if inner.outstanding().0 < self.config.max_requests {
            return Ok(inner);
        }
        drop(inner);
        // Some may be complete without anybody having looked.
        self.progress.catch_up();
        let inner = self.inner.lock();
        let is_full = inner.outstanding().0 >= self.config.max_requests;
        if is_full { Err(Error::Exhausted(Resource::Memory)) } else { Ok(inner) }
    }

    /// Posts what there is room for. `is_small`: it may leave at once.
    #[inline]
    fn submit(&self, mut inner: MutexGuard<'_, Inner>, post: Post<Request>, leaves: bool) {
        let stage = inner.stage;
        match (&mut inner.line, stage) {
            (Some(line), _) => {
                let now = device::now();
                let is_quiet = line.link.outstanding().0 < QUIET;
                line.link.post(now, post, &mut &self.world);
                if leaves && is_quiet {
                    line.hurry(now, &mut &self.world, &self.world);
                }
                self.leave_to_device(inner, now);
            }
            (None, Stage::Over) => self.world.complete_request(&post.request, Status::Flushed, 0),
            (None, _) => inner.requests.push_back(post),
        }
    }

    /// A request as the connection wants it; one that is longer than it may be fails at its turn.
    fn post_of(&self, wr: &SendWr<'_>) -> Post<Request> {
        let request = Request::new(wr);
        let total = request.segments.total();
        let work = match wr.op {
            Op::Send { solicited } => Work::Send { solicited },
            Op::Write(remote) => Work::Write(remote),
            Op::Read(remote) => Work::Read(remote),
        };
        let is_registered = self.world.is_registered(wr.segments, matches!(wr.op, Op::Read(_)));
        let wraps = wr.op.remote().is_some_and(|remote| remote.address.checked_add(total).is_none());
        match u32::try_from(total).ok().filter(|length| u64::from(*length) <= self.max_message) {
            Some(length) if !wraps && is_registered => Post { work, length, fence: wr.fence, request },
            found => {
                let status = match found {
                    None => Status::LocalLength,
                    Some(_) if !is_registered => Status::LocalProtection,
                    Some(_) => Status::RemoteAccess,
                };
                Post { work: Work::Bind, length: 0, fence: wr.fence, request: request.doomed(status) }
            }
        }
    }

    /// What it brings into a connection.
    pub(crate) fn caps(&self) -> QpCaps {
        let credits = match &self.world.pool {
            Some(pool) => pool.srq.available(),
            None => self.inner.lock().recvs.len() as u32,
        };
        QpCaps { credits, ..self.caps }
    }

    /// It has no connection, and none is on its way.
    fn is_free(&self) -> bool {
        self.inner.lock().stage == Stage::Unconnected
    }

    /// Ends whatever there is; nobody hears of it.
    pub(crate) fn abort(&self) {
        let mut inner = self.inner.lock();
        let attempt = match inner.stage {
            Stage::Connecting(number) => Some(number),
            _ => None,
        };
        self.finish(&mut inner, device::now());
        drop(inner);
        if let Some(number) = attempt {
            self.cm.give_up(number);
        }
    }
}

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        if inner.outstanding().1 >= core.config.max_recvs {
            return Err(Error::Exhausted(Resource::Memory));
        }
        let recv = Recv { segments: Segments::new(segments), token };
        let stage = inner.stage;
        match (&mut inner.line, stage) {
            (Some(line), _) => {
                let (now, length) = (device::now(), recv.segments.total());
                line.link.post_recv(now, recv, length, &mut &core.world);
                core.leave_to_device(inner, now);
            }
            (None, Stage::Over) => core.world.complete_recv(token, Status::Flushed, 0, false),
            (None, _) => {
                inner.recvs.push_back(recv);
                if inner.marks.is_crossed(inner.recvs.len() as u32) {
                    let recvs = inner.recvs.len() as u32;
                    core.judge(&mut inner, recvs);
                }
            }
        }
        Ok(())
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let inner = self.0.room_for_request()?;
        let post = self.0.post_of(wr);
        // Small and in one piece, or so large that it makes up a train by itself.
        let leaves = wr.segments.len() <= 1 || post.length > self.0.config.tiny;
        self.0.submit(inner, post, leaves);
        Ok(())
    }

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let inner = self.0.room_for_request()?;
        let wanted =
            bind.map(|Bind { mr, region, access, keep }| BindRequest { source: mr.local_key(), region, access, keep });
        let (request, key) = Request::of_window(&mw.0, wanted, wr)?;
        self.0.submit(inner, Post { work: Work::Bind, length: 0, fence: wr.fence, request }, true);
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let core = &self.0;
        let mut inner = core.inner.lock();
        inner.marks = High::new(soft, hard);
        if inner.line.is_some() {
            core.leave_to_device(inner, device::now());
        } else {
            let recvs = inner.recvs.len() as u32;
            core.judge(&mut inner, recvs);
        }
        Ok(())
    }

    fn outstanding(&self) -> Outstanding {
        self.0.progress.catch_up(); // what is complete, but nobody looked
        let (requests, recvs) = self.0.inner.lock().outstanding();
        Outstanding { recvs, requests }
    }

    fn flush_recvs(&self) {
        self.0.flush_recvs(&mut self.0.inner.lock());
    }
}

impl Connection for Qp {
    fn counts(&self) -> Vec<Count> {
        let inner = self.0.inner.lock();
        let past = || inner.past.as_deref().copied();
        let counters = inner.line.as_ref().map(|line| line.link.counters()).or_else(past);
        counters.map(|counters| counters::of_connection(&counters)).unwrap_or_default()
    }

    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if !self.0.is_free() {
            return Err(Error::Internal);
        }
        self.0.cm.connect(self.0.clone(), spec, conn, self.0.caps()).map(drop)
    }

    fn drain(&self) {
        let mut inner = self.0.inner.lock();
        if let Some(line) = &mut inner.line {
            let now = device::now();
            line.link.drain(now);
            line.transmit(now, &mut &self.0.world, &self.0.world);
            self.0.leave_to_device(inner, now);
        } else {
            // The report of a connection comes before its line.
            inner.drains = matches!(inner.stage, Stage::Connecting(_));
        }
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn reset(&self) -> Result<()> {
        self.0.abort();
        self.0.inner.lock().stage = Stage::Unconnected;
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.0.abort();
    }
}
