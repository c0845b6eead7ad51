//! Queue pairs: the send and receive directions of a connection with their locks, and the selection of the thread that
//! makes progress.
//!
//! A consumer's poll, a post or the engine acquires the lock of a direction and makes a pass over it. If no thread
//! polls, the wake-up flags are set, and the peer wakes the engine by a FIFO word. Lock order: receive direction, send
//! direction, shared receive queue, completion queue, engine queue. Only the engine reports connection events to dapl.
#![forbid(unsafe_code)]

mod engine_calls;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    Bind, BindWr, Completion, ConnId, ConnectSpec, Connection, ConnectionEvent, MemoryRegion, NamedCount, Op,
    Outstanding, QpSpec, QueuePair, Segment, SendWr, SharedRecvs, Status, Token,
};
use dapl::runtime::empty_check::AwaitedProgress;
use dapl::runtime::pooled::Pooled;
use dapl::stats::watermark::HighWatermark;
use dapl_software::memory::window::QpDomain;
use dapl_software::unlock_rarely;
use parking_lot::MutexGuard;

use crate::cm::setup;
use crate::cm::table::ConnectionHandler;
use crate::cq::CompletionWriter;
use crate::device::Device;
use crate::engine::jobs::Job;
use crate::memory::cma::Direction;
use crate::memory::window::BindRequest;
use crate::qp::context::{ConnectionFault, QpContext, QpSrq};
use crate::qp::link::{ConnectionMemory, WAKE_ON_PROGRESS, WAKE_ON_REQUESTS};
use crate::qp::rx::Rx;
use crate::qp::tx::{QuickWr, Tx, WorkRequest};
use crate::{Mr, Mw, Sm};

/// Number of engine ticks (2 ms) without progress after which a connection counts as idle.
const IDLE_TICKS: u32 = 16;
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

impl std::fmt::Debug for QpCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("pd", &self.context.pd).field("polled", &self.polled).finish_non_exhaustive()
    }
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

    /// Sets the wake-up flags. Returns true if work has already arrived.
    fn set_wake_flags(&self) -> bool {
        let rx = self.rx.lock();
        // The lock is held until the flags are set. Otherwise a concurrent post could change `needs_peer_progress`
        // without setting the flag for it.
        let tx = self.tx.lock();
        if rx.is_new() && tx.is_new() && self.has_preset_flags() {
            return false; // The flags are still set from set-up, so the peer's first message causes a wake-up.
        }
        let wants_progress = tx.needs_peer_progress();
        if !self.set_flag(WAKE_ON_REQUESTS | if wants_progress { WAKE_ON_PROGRESS } else { 0 }) {
            return false;
        }
        rx.has_work() || tx.needs_another_pass() || tx.has_work(&self.context)
    }

    /// Lets the engine add the connection to the list of a polling thread. Quick RDMA posts cause no wake-up of the
    /// engine, so without this call the connection would stay outside of the list.
    #[cold]
    #[inline(never)]
    fn add_to_pollers(&self) {
        if self.has_poller() {
            self.queue_for_engine();
        }
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

    /// Ends the connection because of a fault: flushes the work queues, notifies the peer, and reports the event
    /// `Broken`.
    #[cold]
    fn end_with_fault(&self, fault: ConnectionFault) {
        if let Some((link, _)) = self.end_connection(None) {
            let (ep, pid) = (self.context.ep.handle, link.peer_pid());
            match fault {
                ConnectionFault::InvalidData(what) => {
                    log::warn!(
                        "ep {ep:#x}: connection to process {pid} dropped: the peer sent {what}; use the same library version in \
                         both processes"
                    );
                }
                ConnectionFault::Watermark => log::info!(
                    "ep {ep:#x}: connection to process {pid} ended with BROKEN: the outstanding receives exceed the EP's hard \
                     high watermark; raise it with dat_ep_set_watermark"
                ),
                ConnectionFault::Receive | ConnectionFault::Access | ConnectionFault::Request => {}
            }
            setup::close(&self.device, &link);
            self.context.jobs.push(Job::Event(link.conn, ConnectionEvent::Broken));
        }
    }

    /// Ends the connection, as [`ConnectionHandler::end_locally`] does. The returned flag is set if a pass had
    /// found a fault that was not yet handled.
    fn end_connection(&self, which: Option<&Arc<ConnectionMemory>>) -> Option<(Arc<ConnectionMemory>, bool)> {
        let mut rx = self.rx.lock();
        let mut tx = self.tx.lock();
        let link = {
            let mut slot = self.link.lock();
            if which.is_some_and(|wanted| slot.as_ref().is_none_or(|l| !Arc::ptr_eq(l, wanted))) {
                return None;
            }
            self.ended.store(true, Ordering::Release);
            slot.take()
        };
        rx.set_broken(true);
        tx.broken = true;
        let faulty = rx.stopped || tx.is_stopped();
        self.flush(&mut rx, &mut tx);
        drop((rx, tx));
        self.context.cqs().for_each(|cq| cq.remove_connection(self));
        let link = link?;
        if let Some(target) = link.access_refused_to_peer(self.context.pd) {
            self.context.report_refused(None, self.context.regions.entry(target.key), target);
        }
        Some((link, faulty))
    }

    fn flush(&self, rx: &mut Rx, tx: &mut Tx) {
        if let Some(rings) = &rx.rings {
            rings.publish_last(); // The peer's sends whose messages were delivered must complete successfully.
            if let (true, Some(pool)) = (rings.waits_for_receive(), &self.context.pool) {
                pool.srq.cancel_wait(&pool.waiter);
            }
        }
        rx.rings = None;
        rx.stopped = false;
        for completion in tx.flush(self.context.ep.handle) {
            self.context.complete_request(&mut CompletionWriter::default(), completion);
        }
        self.context.watch.detach();
        self.context.watch.set_wait(AwaitedProgress::Other); // The next poll visits the connection, and removes it from the list.
        self.flush_receives(rx);
    }

    fn flush_receives(&self, rx: &mut Rx) {
        for receive in rx.queue.drain() {
            self.context.complete_recv(&mut CompletionWriter::default(), flushed(receive.token));
        }
    }

    pub(crate) fn link(&self) -> Option<Arc<ConnectionMemory>> {
        self.link.lock().clone()
    }

    /// Completes a receive that was posted after the end of the connection, with status `Flushed`.
    #[cold]
    fn flush_recv(&self, token: Token) {
        self.context.complete_recv(&mut CompletionWriter::default(), flushed(token));
    }

    /// Called after a receive was posted, if a message waited for it or the number of receives has crossed a watermark.
    #[cold]
    fn after_recv_posted(&self, mut rx: MutexGuard<'_, Rx>) {
        let outcome = rx.after_post(&self.context);
        drop(rx);
        self.handle_pass_result(outcome);
    }

    /// Handles the result of a pass after a receive was posted: queues the connection for the engine if there is more
    /// work.
    fn handle_pass_result(&self, outcome: std::result::Result<bool, ConnectionFault>) {
        match outcome {
            Ok(false) => {}
            Ok(true) => self.queue_for_engine(),
            Err(fault) => self.end_with_fault(fault),
        }
    }

    /// Posts a request by the general path, which also handles requests that must wait or need several slots.
    #[inline(never)]
    fn post_request(&self, tx: MutexGuard<'_, Tx>, wr: &SendWr<'_>) -> Result<()> {
        if tx.rings.as_ref().is_some_and(|rings| !rings.supports(wr.op)) {
            return Err(Error::ModelNotSupported);
        }
        let tx = self.ensure_space(tx)?;
        self.submit(tx, WorkRequest::new(wr));
        Ok(())
    }

    /// Makes a pass before a post. If the pass finds a fault, releases the lock, ends the connection, and locks again.
    #[cold]
    #[inline(never)]
    fn make_pass<'a>(&'a self, mut tx: MutexGuard<'a, Tx>) -> MutexGuard<'a, Tx> {
        if let Err(fault) = tx.pass(&self.context, &mut CompletionWriter::default()) {
            drop(tx);
            self.end_with_fault(fault);
            tx = self.tx.lock();
        }
        tx
    }

    /// Checks that the queue has space for one more request, after a pass if necessary.
    fn ensure_space<'a>(&'a self, mut tx: MutexGuard<'a, Tx>) -> Result<MutexGuard<'a, Tx>> {
        if tx.len() >= self.max_requests as usize {
            // A pass reports requests that are complete, which frees space in the queue.
            tx = self.make_pass(tx);
            if tx.len() >= self.max_requests as usize {
                return Err(Error::Exhausted(Resource::Memory));
            }
        }
        Ok(tx)
    }

    fn submit(&self, mut tx: MutexGuard<'_, Tx>, request: WorkRequest) {
        if tx.broken {
            return self.context.complete_request(&mut CompletionWriter::default(), request.flush());
        }
        let outcome = tx.post(&self.context, request);
        self.after_post(&tx);
        drop(tx);
        if let Err(fault) = outcome {
            self.end_with_fault(fault);
        }
    }

    /// Called after each post. If no thread polls, sets the wake-up flag for the peer's progress, and queues the
    /// connection for the engine if there is work that needs no progress of the peer.
    #[inline]
    fn after_post(&self, tx: &Tx) {
        if !self.polled.load(Ordering::Relaxed) {
            self.after_unpolled_post(tx);
        }
    }

    #[cold]
    fn after_unpolled_post(&self, tx: &Tx) {
        let Some(rings) = tx.rings.as_ref() else { return };
        let mut run = tx.needs_another_pass();
        if tx.needs_peer_progress() && !rings.link().has_wake_flags(WAKE_ON_PROGRESS) {
            self.set_flag(WAKE_ON_REQUESTS | WAKE_ON_PROGRESS);
            // The peer sends no wake-up for an entry that it published before the flag was set.
            run |= rings.has_work(&self.context)
                || self.rx.try_lock().is_none_or(|rx| rx.rings.as_ref().is_some_and(|e| e.has_work(0)));
        }
        if run {
            self.queue_for_engine();
        }
    }
}

fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    const POSTS_QUICKLY: bool = true;

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let tx = self.0.ensure_space(self.0.tx.lock())?;
        let wanted =
            bind.map(|Bind { mr, region, access, kept }| BindRequest { source: mr.local_key(), region, access, kept });
        let (number, key) = mw.0.post(wanted)?;
        self.0.submit(tx, WorkRequest::of_window(mw.0.clone(), number, wr));
        Ok(key)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        let checked = self.0.rx.lock().watch(&self.0.context, HighWatermark::new(soft, hard));
        if let Err(fault) = checked {
            self.0.end_with_fault(fault);
        }
        Ok(())
    }

    #[inline(always)]
    fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        let core = &*self.0;
        let mut rx = core.rx.lock();
        if rx.post_quickly(segment, cookie, core.context.ep.handle) {
            return true;
        }
        unlock_rarely(rx);
        false
    }

    #[inline(always)]
    fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        let core = &*self.0;
        let mut tx = core.tx.lock();
        let is_polled = core.polled.load(Ordering::Relaxed);
        let (context, wr) = (&core.context, QuickWr::<SUPPRESS> { segment, cookie });
        let is_posted = match op {
            Op::Write(remote) => tx.copy_quickly(context, Direction::Write, remote, wr, is_polled),
            Op::Read(remote) => tx.copy_quickly(context, Direction::Read, remote, wr, is_polled),
            Op::Send { solicited: false } => is_polled && tx.post_quickly(context, wr),
            _ => false,
        };
        if is_posted {
            if !is_polled {
                core.add_to_pollers();
            }
            return true;
        }
        unlock_rarely(tx);
        false
    }

    #[inline(always)]
    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        let core = &*self.0;
        let mut rx = core.rx.lock();
        if rx.queue.len() >= core.max_recvs as usize {
            return Err(Error::Exhausted(Resource::Memory));
        }
        if rx.is_broken() {
            core.flush_recv(token);
            return Ok(());
        }
        let has_more = rx.post(segments, token);
        rx.renew_quick_limit(core.max_recvs);
        if has_more {
            core.after_recv_posted(rx);
        }
        Ok(())
    }

    #[inline(always)]
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let core = &*self.0;
        let mut tx = core.tx.lock();
        if matches!(wr.op, Op::Send { .. }) && tx.is_pass_due() {
            tx = core.make_pass(tx);
        }
        if tx.post_short(&core.context, wr) {
            core.after_post(&tx);
            return Ok(());
        }
        // Passing a copy lets the compiler keep the fields of `wr` in registers on the common path above.
        core.post_request(tx, &SendWr { ..*wr })
    }

    fn outstanding(&self) -> Outstanding {
        self.0.progress(); // Requests that are complete must not be counted.
        let recvs = self.0.rx.lock().queue.len() as u32;
        Outstanding { recvs, requests: self.0.tx.lock().len() as u32 }
    }

    fn flush_recvs(&self) {
        self.0.flush_receives(&mut self.0.rx.lock());
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
