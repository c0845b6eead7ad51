//! Queue pairs, with their posted work and their connection. One lock guards the state of a queue pair.
//!
//! A queue pair queues work that is posted before its connection is established. After the end of the connection it
//! flushes posted work, until it is reset. A [`ClosingConnection`](crate::qp::closing::ClosingConnection) then replies
//! to late packets.
//!
//! If fewer than [`DIRECT_SEND_BELOW`] requests are outstanding, the posting thread sends its request immediately
//! (US-5). Other requests, and short requests of several segments, wait for the next pass, which sends them in one
//! batch.
//!
//! Lock order: pass, queue pair, shared receive queue, completion queue, job queue. Only the engine reports connection
//! events to dapl.
#![forbid(unsafe_code)]

mod ending;
mod fast_path;
mod handler;
mod posts;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectSpec, Connection, ConnectionEvent, NamedCount, QpSpec, SharedRecvs};
use dapl::stats::watermark::HighWatermark;
use parking_lot::{Mutex, MutexGuard};

use crate::Usnic;
use crate::cm::{Cm, QpCaps};
use crate::counters::{self, IaCounters};
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::engine::progress::EngineProgress;
use crate::limits;
use crate::proto::Nanos;
use crate::proto::conn::{ConnConfig, Post};
use crate::proto::counters::Counters;
use crate::proto::schedule::PendingWork;
use crate::qp::context::{QpContext, QpSrq, RecvRequest, WorkRequest};
use crate::qp::transport::Transport;

/// The posting thread sends its request if fewer requests than this are outstanding.
const DIRECT_SEND_BELOW: u32 = 4;

/// The queue pair object that dapl owns.
pub struct Qp(pub(crate) Arc<QpCore>);

/// A queue pair. Its [`Qp`], the connection table and a connection attempt in `cm` hold references to it. A shared
/// receive queue and the counters of the IA hold weak references.
pub(crate) struct QpCore {
    device: Arc<Device>,
    progress: Arc<EngineProgress>,
    cm: Arc<Cm>,
    ia_counters: Arc<IaCounters<QpCore>>,
    context: QpContext,
    config: ConnConfig,
    max_message: u64,
    caps: QpCaps,
    state: Mutex<QpState>,
}

/// State of a queue pair, guarded by its lock.
#[derive(Default)]
struct QpState {
    phase: QpPhase,
    transport: Option<Transport>,
    /// Receives that were posted before the connection is established.
    recvs: VecDeque<RecvRequest>,
    /// Requests that were posted before the connection is established.
    requests: VecDeque<(Post, WorkRequest)>,
    /// Whether the consumer has requested a graceful disconnect between the handshake and `open`.
    drains: bool,
    marks: HighWatermark,
    /// [`QueuePair::post_recv_quickly`](dapl::provider::QueuePair::post_recv_quickly) fails if this many receives are
    /// outstanding: the capacity of the queue, or fewer if a watermark must be checked.
    quick_recvs: u32,
    /// Final counters of the last ended connection.
    past: Option<Box<Counters>>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum QpPhase {
    /// There is no connection. Posted work is queued.
    #[default]
    Unconnected,
    /// An attempt with this connection number is in progress. Posted work is queued.
    Connecting(u32),
    /// There is a transport.
    Connected,
    /// The connection has ended. Posted work is flushed.
    Ended,
}

impl Qp {
    pub(crate) fn new(ia: &Usnic, pd: u32, spec: QpSpec<Usnic>) -> Self {
        let config = limits::config(&ia.adapter.device, &spec);
        let mut context = QpContext {
            regions: ia.regions.clone(),
            windows: ia.windows.clone(),
            jobs: ia.adapter.device.jobs.clone(),
            ep: spec.ep,
            pd,
            domain: Arc::default(),
            recv_pd: pd,
            pool: None,
            shared_in_use: AtomicU32::new(0),
            max_shared_in_use: AtomicU32::new(0),
            recv_cq: spec.recv_cq.map(|cq| cq.0.clone()),
            request_cq: spec.request_cq.map(|cq| cq.0.clone()),
        };
        let caps = QpCaps { ord: spec.max_reads_out, ird: spec.max_reads_in, credits: 0 };
        let qp = Qp(Arc::new_cyclic(|me: &Weak<QpCore>| {
            if let Some(SharedRecvs { srq, token }) = spec.shared {
                context.recv_pd = srq.0.pd;
                context.pool = Some(QpSrq { srq: srq.0.clone(), token, waiter: me.clone() });
            }
            let state = QpState { quick_recvs: config.max_recvs, ..QpState::default() };
            QpCore {
                device: ia.adapter.device.clone(),
                progress: ia.adapter.progress.clone(),
                cm: ia.adapter.cm.clone(),
                ia_counters: ia.counters.clone(),
                context,
                config,
                max_message: ia.limits.max_message,
                caps,
                state: Mutex::new(state),
            }
        }));
        ia.counters.add(Arc::downgrade(&qp.0));
        qp
    }
}

impl QpState {
    /// Returns the number of outstanding requests and of outstanding receives.
    fn outstanding(&self) -> (u32, u32) {
        match &self.transport {
            Some(transport) => transport.conn.outstanding(),
            None => (self.requests.len() as u32, self.recvs.len() as u32),
        }
    }

    /// Returns the transport if its connection number is `number`.
    fn transport(&mut self, number: u32) -> Option<&mut Transport> {
        self.transport.as_mut().filter(|transport| transport.number == number)
    }
}

impl QpCore {
    /// Calls `take_event`, and returns the connection's pending work.
    fn update(&self, state: &mut QpState, now: Nanos) -> PendingWork {
        self.take_event(state);
        state.transport.as_ref().map_or(PendingWork::default(), |transport| transport.pending_work(now))
    }

    /// Handles a pending event of the connection, and checks the high watermarks of receives. Ends the connection if
    /// there was an event or the hard watermark is exceeded.
    #[inline(always)]
    fn take_event(&self, state: &mut QpState) {
        let Some(transport) = &mut state.transport else { return };
        let event = transport.conn.take_event();
        let recvs = self.recvs(transport);
        if event.is_some() || state.marks.is_crossed(recvs) {
            self.handle_event(state, event, recvs);
        }
    }

    #[cold]
    fn handle_event(&self, state: &mut QpState, event: Option<ConnectionEvent>, recvs: u32) {
        let Some(id) = state.transport.as_ref().map(|transport| transport.id) else { return };
        let event = match event {
            None if !self.check_watermarks(state, recvs) => return,
            None => {
                log::info!(
                    "connection of ep {:#x} ended: {recvs} outstanding receives exceed its hard high watermark; raise it with \
                     dat_ep_set_watermark",
                    self.context.ep.handle
                );
                ConnectionEvent::Broken
            }
            Some(event) => event,
        };
        self.end_connection(state, device::now());
        self.context.jobs.push(Job::Event(id, event));
    }

    /// Returns the number of receives to compare with the watermarks: outstanding receives, or with a shared receive
    /// queue the maximum number in use since the last check.
    #[inline]
    fn recvs(&self, transport: &Transport) -> u32 {
        match self.context.pool {
            Some(_) => self
                .context
                .max_shared_in_use
                .swap(self.context.shared_in_use.load(Ordering::Relaxed), Ordering::Relaxed),
            None => transport.conn.outstanding().1,
        }
    }

    /// Reports an event if the soft watermark is exceeded. Returns true if the hard watermark is exceeded and there is
    /// a connection, which the caller must end.
    #[cold]
    fn check_watermarks(&self, state: &mut QpState, recvs: u32) -> bool {
        let crossed = state.marks.check(recvs);
        state.quick_recvs = self.config.max_recvs.min(state.marks.max_unchecked());
        if crossed.soft {
            self.context.jobs.push(Job::ManyRecvs(self.context.ep));
        }
        crossed.hard && state.transport.is_some()
    }

    /// Handles a pending event, and schedules the work that the calling thread leaves to the next pass.
    fn schedule(&self, mut state: MutexGuard<'_, QpState>, now: Nanos) {
        if state.transport.as_ref().is_some_and(|transport| transport.next_service.is_immediate()) {
            // The next pass will serve this connection. It finds the new work, because this thread still holds the
            // lock.
            return self.take_event(&mut state);
        }
        let pending_work = self.update(&mut state, now);
        let next_service = state.transport.as_ref().map(|transport| (transport.number, transport.next_service.clone()));
        drop(state);
        if let Some((number, next_service)) = next_service {
            self.device.schedule(number, &next_service, &pending_work);
        }
    }

    /// Returns the limits that the handshake sends to the peer.
    pub(crate) fn caps(&self) -> QpCaps {
        let credits = match &self.context.pool {
            Some(pool) => pool.srq.available(),
            None => self.state.lock().recvs.len() as u32,
        };
        QpCaps { credits, ..self.caps }
    }
}

impl Connection for Qp {
    fn counts(&self) -> Vec<NamedCount> {
        let state = self.0.state.lock();
        let past = || state.past.as_deref().copied();
        let counters = state.transport.as_ref().map(|transport| transport.conn.counters()).or_else(past);
        counters.map(|counters| counters::connection_counts(&counters)).unwrap_or_default()
    }

    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        if self.0.state.lock().phase != QpPhase::Unconnected {
            return Err(Error::Internal);
        }
        self.0.cm.connect(self.0.clone(), spec, conn, self.0.caps()).map(drop)
    }

    fn drain(&self) {
        let mut state = self.0.state.lock();
        if let Some(transport) = &mut state.transport {
            let now = device::now();
            transport.conn.drain(now);
            transport.transmit(now, &mut &self.0.context);
            self.0.schedule(state, now);
        } else {
            // After the handshake, the consumer may disconnect before `open` is called. `open` then starts the drain.
            state.drains = matches!(state.phase, QpPhase::Connecting(_));
        }
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn reset(&self) -> Result<()> {
        self.0.abort();
        self.0.state.lock().phase = QpPhase::Unconnected;
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.0.abort();
    }
}
