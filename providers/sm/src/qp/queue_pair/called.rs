//! A queue pair as others call it: completion queues that are polled, the engine, the set-up, the shared receive queue.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{COLD, Core, SERVICE};
use crate::cm::table::Conn;
use crate::cq::{Driven, Outbox};
use crate::qp::link::Link;
use crate::qp::rx::RxEnds;
use crate::qp::tx::TxEnds;
use crate::srq::{SrqRecv, SrqWaiter};

impl Driven for Core {
    /// A sending half that waits for nothing is left alone: its next post will look.
    fn poll(&self, out: &mut Outbox<'_>) {
        let received = self.rx.lock().pass(&self.shared, out);
        self.bring_on(received, out, self.shared.tx_waits.load(Ordering::Acquire));
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn is_hot(&self) -> bool {
        self.hot.load(Ordering::SeqCst)
    }

    fn was_idle(&self) -> bool {
        let moved = self.moved.load(Ordering::Relaxed);
        let idle =
            if self.seen.swap(moved, Ordering::Relaxed) == moved { self.idle.load(Ordering::Relaxed) + 1 } else { 0 };
        self.idle.store(idle.min(COLD), Ordering::Relaxed);
        idle >= COLD
    }

    fn disarm(&self) {
        if self.shared.cqs().any(|cq| cq.is_armed()) {
            return;
        }
        let link = self.link.lock();
        self.hot.store(true, Ordering::SeqCst);
        if let Some(link) = &*link {
            link.disarm();
        }
    }

    fn serve(&self) {
        if self.has_poller() {
            // In the lists of both queues: whoever polls either brings it on, and whoever sleeps on either arms it.
            if let Some(me) = self.me.upgrade() {
                self.shared.cqs().for_each(|cq| cq.activate(me.clone()));
            }
            self.disarm();
            // The poller may have stopped meanwhile and found nothing to arm: then it is for us to do it.
            if self.has_poller() {
                self.progress();
                return;
            }
        }
        self.cool();
    }

    fn retire(&self) {
        self.shared.cqs().for_each(|cq| cq.forget(self));
        self.cool();
    }

    fn has_news(&self) -> bool {
        self.rx.lock().has_work() || self.tx.lock().has_work(&self.shared)
    }
}

impl Conn for Core {
    fn pd(&self) -> u32 {
        self.shared.pd
    }

    fn max_reads_in(&self) -> u32 {
        self.max_reads_in
    }

    fn begin(&self, link: Arc<Link>) {
        *self.link.lock() = Some(link);
        self.over.store(false, Ordering::Release);
    }

    fn break_off(&self, which: Option<&Arc<Link>>) -> Option<Arc<Link>> {
        self.end(which).map(|(link, _)| link)
    }

    fn open(&self, link: &Arc<Link>) {
        {
            let mut rx = self.rx.lock();
            let mut tx = self.tx.lock();
            if self.link.lock().as_ref().is_none_or(|l| !Arc::ptr_eq(l, link)) {
                return; // it is not this QP's connection any more
            }
            self.shared.begin();
            rx.ends = RxEnds::new(link.clone());
            tx.ends = TxEnds::new(link.clone());
            drop(tx);
            let judged = rx.judge(&self.shared);
            drop(rx);
            if let Err(fault) = judged {
                return self.fail(fault);
            }
        }
        self.serve();
    }

    fn peer_left(&self, link: &Arc<Link>) -> Option<bool> {
        for _ in 0..SERVICE {
            if !self.progress() {
                break;
            }
        }
        self.end(Some(link)).map(|(_, faulty)| faulty)
    }
}

impl SrqWaiter for Core {
    fn offer(&self, buffer: SrqRecv) -> Option<SrqRecv> {
        let mut rx = self.rx.lock();
        let back = rx.accept(&self.shared, buffer);
        if back.is_some() {
            return back;
        }
        let outcome = rx.judge(&self.shared).and_then(|()| rx.go_on(&self.shared));
        drop(rx);
        self.after_recv(outcome);
        None
    }
}
