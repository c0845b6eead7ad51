//! Posts work to a queue pair: receives, sends, RDMA and atomic operations, and binds. Also sets the watermarks of
//! receives, flushes receives, and counts the outstanding work.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Bind, BindWr, Op, Outstanding, QueuePair, Segment, SendWr, Token};
use dapl::stats::watermark::HighWatermark;
use dapl_software::unlock_rarely;
use parking_lot::MutexGuard;

use super::{Qp, QpCore};
use crate::cq::CompletionWriter;
use crate::memory::cma::Direction;
use crate::qp::link::{WAKE_ON_PROGRESS, WAKE_ON_REQUESTS};
use crate::qp::rx::Rx;
use crate::qp::tx::{QuickWr, Tx, WorkRequest};
use crate::{Mr, Mw};

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    const POSTS_QUICKLY: bool = true;

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        let tx = self.0.ensure_space(self.0.tx.lock())?;
        let (number, key) = mw.0.post(bind)?;
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
        if rx.broken {
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

impl QpCore {
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

    /// Called after a post of a request other than a quick post, and when a graceful disconnect begins. If no thread
    /// polls, sets the wake-up flag for the peer's progress, and queues the connection for the engine if there is work
    /// that needs no progress of the peer.
    #[inline]
    pub(super) fn after_post(&self, tx: &Tx) {
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

    /// Lets the engine add the connection to the list of a polling thread. Quick RDMA posts cause no wake-up of the
    /// engine, so without this call the connection would stay outside of the list.
    #[cold]
    #[inline(never)]
    fn add_to_pollers(&self) {
        if self.has_poller() {
            self.queue_for_engine();
        }
    }

    /// Delivers the message that waited for the posted receive, if any, and checks the watermarks. Called only if a
    /// message waited, or the number of receives has crossed a watermark.
    #[cold]
    fn after_recv_posted(&self, mut rx: MutexGuard<'_, Rx>) {
        let outcome = rx.after_post(&self.context);
        drop(rx);
        self.handle_pass_result(outcome);
    }
}
