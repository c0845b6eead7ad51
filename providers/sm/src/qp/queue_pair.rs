//! Queue pairs: the send and receive directions of a connection with their locks, and the selection of the thread that
//! makes progress. `posts` posts work, `ending` ends a connection, and `engine_calls` has the functions that other
//! modules call.
//!
//! A consumer's poll, a post or the engine acquires the lock of a direction and makes a pass over it. If no thread
//! polls, the wake-up flags are set, and the peer wakes the engine by a FIFO word. Lock order: list of polled
//! connections, receive direction, send direction, connection memory (`link`) or shared receive queue, queued
//! completions, engine queue. Only the engine reports connection events to dapl.
#![forbid(unsafe_code)]

mod ending;
mod engine_calls;
mod posts;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{ConnId, ConnectSpec, Connection, NamedCount, QpSpec, SharedRecvs};
use dapl::runtime::pooled::Pooled;
use dapl_software::memory::window::QpDomain;

use crate::Sm;
use crate::cm::setup;
use crate::cm::table::ConnectionHandler;
use crate::cq::CompletionWriter;
use crate::device::Device;
use crate::engine::jobs::Job;
use crate::qp::context::{ConnectionFault, QpContext, QpSrq};
use crate::qp::link::{ConnectionMemory, WAKE_ON_PROGRESS, WAKE_ON_REQUESTS};
use crate::qp::rx::Rx;
use crate::qp::tx::Tx;

/// Number of engine ticks (2 ms) without progress after which a connection counts as idle. A program that uses 1,000
/// connections in turn must come back to each within this time, also if each message wakes the engine (130 us for both
/// sides).
const IDLE_TICKS: u32 = 256;
/// Maximum number of consecutive passes over one connection. Other connections would starve if a peer sent without a
/// pause.
const MAX_PASSES: usize = 1000;

/// A queue pair, as dapl refers to it.
pub struct Qp(pub(crate) Arc<QpCore>);

/// The state of a queue pair, shared with completion queues and the engine.
pub(crate) struct QpCore {
    me: Weak<QpCore>,
    pub(crate) device: Arc<Device>,
    context: QpContext,
    max_recvs: u32,
    max_requests: u32,
    max_reads_in: u32,
    rx: parking_lot::Mutex<Rx>,
    tx: parking_lot::Mutex<Tx>,
    /// The memory of the connection or attempt; `rx` and `tx` have their own references to it. The lock is held while
    /// wake-up flags are set or cleared, so that `polled` is consistent with the flags.
    link: parking_lot::Mutex<Option<Arc<ConnectionMemory>>>,
    /// Whether a thread polls one of the completion queues, so that the wake-up flags are clear.
    polled: AtomicBool,
    /// Whether there is no connection or connection attempt. Pollers read it without a lock.
    ended: AtomicBool,
    /// Number of passes that made progress.
    progress_count: AtomicU32,
    /// Value of `progress_count` at the engine's last check for idle connections.
    seen_progress: AtomicU32,
    /// Number of engine ticks since the last progress.
    idle_ticks: AtomicU32,
}

impl Qp {
    pub(crate) fn new(device: Arc<Device>, pd: u32, spec: QpSpec<Sm>) -> Self {
        let mut context = QpContext {
            regions: device.regions.clone(),
            windows: device.windows.clone(),
            jobs: device.jobs.clone(),
            ep: spec.ep,
            pd,
            domain: QpDomain::default(),
            recv_pd: pd,
            pool: None,
            recv_cq: spec.recv_cq.map(|cq| cq.0.clone()),
            request_cq: spec.request_cq.map(|cq| cq.0.clone()),
            max_message: device.limits.max_message,
            max_rdma: device.limits.max_rdma,
            max_reads_out: spec.max_reads_out,
            rx_consumed: AtomicU64::new(0),
            reported_consumed: AtomicU64::new(0),
            not_ready: AtomicU64::new(0),
            watch: Pooled::take(),
        };
        Qp(Arc::new_cyclic(|me: &Weak<QpCore>| {
            if let Some(SharedRecvs { srq, token }) = spec.shared {
                context.recv_pd = srq.0.pd;
                context.pool = Some(QpSrq { srq: srq.0.clone(), token, waiter: me.clone() });
            }
            QpCore {
                me: me.clone(),
                device,
                context,
                max_recvs: spec.max_recvs,
                max_requests: spec.max_requests,
                max_reads_in: spec.max_reads_in,
                rx: Default::default(),
                tx: Default::default(),
                link: Default::default(),
                polled: AtomicBool::new(false),
                ended: AtomicBool::new(true),
                progress_count: AtomicU32::new(0),
                seen_progress: AtomicU32::new(0),
                idle_ticks: AtomicU32::new(0),
            }
        }))
    }
}

impl QpCore {
    #[cfg(test)]
    pub(crate) fn forget_extensions(&self) -> bool {
        self.tx.lock().forget_extensions()
    }

    #[cfg(test)]
    pub(crate) fn permit_eager_writes(&self, is_permitted: bool) {
        self.tx.lock().permit_eager_writes(is_permitted);
    }

    #[cfg(test)]
    pub(crate) fn reclaim_eager_writes(&self) {
        self.tx.lock().end_eager_writes(&self.context).unwrap();
    }

    #[cfg(test)]
    pub(crate) fn staging_requests(&self) -> u64 {
        self.rx.lock().staging_requests()
    }

    /// Makes one pass over both directions, for a thread that does not poll. Returns whether the pass made progress.
    fn progress(&self) -> bool {
        let mut out = CompletionWriter::default();
        let received = {
            let _service = self.context.recv_cq.as_ref().map(|cq| cq.begin_engine_pass());
            self.rx.lock().pass(&self.context, &mut out)
        };
        self.pass_sends(received, &mut out, true)
    }

    /// Makes a pass over the send direction if `sending` is set, then handles the results of both directions. Returns
    /// whether either direction made progress.
    fn pass_sends(
        &self,
        received: std::result::Result<bool, ConnectionFault>,
        out: &mut CompletionWriter<'_>,
        sending: bool,
    ) -> bool {
        let sent = if sending {
            let mut tx = self.tx.lock();
            if tx.needs_pass(&self.context) {
                tx.pass(&self.context, out)
            } else {
                tx.renew_wait(&self.context);
                Ok(false)
            }
        } else {
            Ok(false)
        };
        let has_progress = match (received, sent) {
            (Ok(received), Ok(sent)) => received || sent,
            (Err(fault), _) | (_, Err(fault)) => {
                self.end_with_fault(fault);
                true
            }
        };
        if has_progress {
            self.progress_count.store(self.progress_count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        has_progress
    }

    /// Whether the engine can leave this queue pair to a polling thread: a thread polls one of its completion queues,
    /// and none of them is armed. A thread that sleeps on an armed queue must be woken by the engine.
    fn has_poller(&self) -> bool {
        self.context.cqs().any(|cq| cq.is_polled()) && !self.context.cqs().any(|cq| cq.is_armed())
    }

    fn leave_to_engine(&self) {
        for _ in 0..MAX_PASSES {
            if !self.progress() && !self.set_wake_flags() {
                return;
            }
        }
        // More passes may be needed. The engine makes them after it has served other connections.
        self.queue_for_engine();
    }

    /// Queues the connection for the engine.
    fn queue_for_engine(&self) {
        if let Some(link) = self.link() {
            self.context.jobs.push(Job::Run(link.id));
        }
    }

    /// Sets the wake-up flags. Returns true if the connection already has work, so that the caller must make a pass.
    fn set_wake_flags(&self) -> bool {
        let rx = self.rx.lock();
        // The lock is held until the flags are set. Otherwise a concurrent post could change `needs_peer_progress`
        // without setting the flag for it.
        let mut tx = self.tx.lock();
        if rx.is_new() && tx.is_new() && self.has_preset_flags() {
            return false; // The flags are still set from set-up, so the peer's first message causes a wake-up.
        }
        // After this no thread of this process finds out that an eager write is late.
        if let Err(fault) = tx.end_eager_writes(&self.context) {
            drop((rx, tx));
            self.end_with_fault(fault);
            return false;
        }
        let wants_progress = tx.needs_peer_progress();
        if !self.set_flag(WAKE_ON_REQUESTS | if wants_progress { WAKE_ON_PROGRESS } else { 0 }) {
            return false;
        }
        rx.has_work() || tx.needs_another_pass() || tx.has_work(&self.context)
    }

    /// Whether the wake-up flags are unchanged since set-up. If so, marks the connection as not polled.
    fn has_preset_flags(&self) -> bool {
        let link = self.link.lock();
        let is_preset = link.as_ref().is_some_and(|link| link.is_preset());
        if is_preset {
            self.polled.store(false, Ordering::SeqCst);
        }
        is_preset
    }

    /// Sets wake-up flags. Returns false if there is no connection.
    fn set_flag(&self, want: u64) -> bool {
        let link = self.link.lock();
        self.polled.store(false, Ordering::SeqCst);
        link.as_ref().inspect(|link| link.set_wake_flags(want)).is_some()
    }

    pub(crate) fn link(&self) -> Option<Arc<ConnectionMemory>> {
        self.link.lock().clone()
    }

    /// Handles the result of a pass after a receive was posted: queues the connection for the engine if there is more
    /// work, or ends it after a fault.
    fn handle_pass_result(&self, outcome: std::result::Result<bool, ConnectionFault>) {
        match outcome {
            Ok(false) => {}
            Ok(true) => self.queue_for_engine(),
            Err(fault) => self.end_with_fault(fault),
        }
    }
}

impl Connection for Qp {
    fn counts(&self) -> Vec<NamedCount> {
        let value = self.0.context.not_ready.load(Ordering::Relaxed);
        vec![NamedCount { name: "receiver not ready", unit: "", value, is_level: false }]
    }

    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        setup::connect(&self.0.device, self.0.clone(), spec, conn)
    }

    fn drain(&self) {
        let Some(link) = self.0.link() else { return };
        let mut tx = self.0.tx.lock();
        if tx.is_empty() {
            drop(tx);
            self.0.context.drained(&link);
        } else {
            tx.begin_drain(&self.0.context);
            self.0.after_post(&tx);
        }
    }

    fn abort(&self) {
        if let Some(link) = self.0.end_locally(None) {
            setup::close(&self.0.device, &link);
        }
    }

    fn reset(&self) -> Result<()> {
        self.abort();
        let mut rx = self.0.rx.lock();
        let mut tx = self.0.tx.lock();
        rx.set_broken(false);
        tx.broken = false;
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.abort();
    }
}
