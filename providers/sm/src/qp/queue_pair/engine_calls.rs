//! Implements the traits by which completion queues ([`PolledConnection`]), connection set-up and the engine
//! ([`ConnectionHandler`]), and shared receive queues ([`SrqWaiter`]) call a queue pair.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::runtime::empty_check::{AwaitedProgress, RingWatch};

use super::{IDLE_TICKS, MAX_PASSES, QpCore};
use crate::cm::table::ConnectionHandler;
use crate::cq::{CompletionWriter, PolledConnection};
use crate::qp::link::ConnectionMemory;
use crate::qp::rx::RxRings;
use crate::qp::tx::TxRings;
use crate::srq::{SrqRecv, SrqWaiter};

impl PolledConnection for QpCore {
    /// Makes a pass over the receive direction if its ring has a request, and over the send direction if requests are
    /// outstanding.
    fn poll(&self, out: &mut CompletionWriter<'_>) -> bool {
        let received = {
            let mut rx = self.rx.lock();
            if rx.has_unread() { rx.pass(&self.context, out) } else { Ok(false) }
        };
        let sending = self.context.watch.has_requests();
        if sending || received != Ok(false) {
            self.pass_sends(received, out, sending);
        }
        self.ended.load(Ordering::Acquire)
    }

    fn watch(&self) -> &'static RingWatch {
        self.context.watch.get()
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    fn was_idle(&self) -> bool {
        let count = self.progress_count.load(Ordering::Relaxed);
        let idle = if self.seen_progress.swap(count, Ordering::Relaxed) == count {
            self.idle_ticks.load(Ordering::Relaxed) + 1
        } else {
            0
        };
        self.idle_ticks.store(idle.min(IDLE_TICKS), Ordering::Relaxed);
        idle >= IDLE_TICKS
    }

    fn clear_wake_flags(&self) {
        if self.context.cqs().any(|cq| cq.is_armed()) {
            return;
        }
        let link = self.link.lock();
        self.polled.store(true, Ordering::SeqCst);
        if let Some(link) = &*link {
            link.clear_wake_flags();
        }
    }

    fn serve(&self) {
        if self.has_poller() {
            // Both completion queues get the connection: a thread that polls either of them must make progress on the
            // connection, and a thread that starts to sleep on either of them must set the wake-up flags.
            if let Some(me) = self.me.upgrade() {
                self.context.cqs().for_each(|cq| cq.add_active(me.clone()));
            }
            self.clear_wake_flags();
            // The polling thread may have stopped before the connection was in its list, without setting the wake-up
            // flags. In this case `leave_to_engine` sets them.
            if self.has_poller() {
                self.progress();
                return;
            }
        }
        self.leave_to_engine();
    }

    fn stop_polling(&self) {
        self.context.cqs().for_each(|cq| cq.remove_connection(self));
        self.leave_to_engine();
    }

    fn has_unread(&self) -> bool {
        self.rx.lock().has_work() || self.tx.lock().has_work(&self.context)
    }
}

impl ConnectionHandler for QpCore {
    fn pd(&self) -> u32 {
        self.context.pd
    }

    fn max_reads_in(&self) -> u32 {
        self.max_reads_in
    }

    fn ep(&self) -> usize {
        self.context.ep.handle
    }

    fn waiting_send(&self) -> Option<u64> {
        self.progress(); // Removes sends that the peer has consumed.
        self.tx.lock().waiting_send()
    }

    fn begin(&self, link: Arc<ConnectionMemory>) {
        *self.link.lock() = Some(link);
        self.ended.store(false, Ordering::Release);
    }

    fn end_locally(&self, which: Option<&Arc<ConnectionMemory>>) -> Option<Arc<ConnectionMemory>> {
        self.end_connection(which).map(|(link, _)| link)
    }

    fn open(&self, link: &Arc<ConnectionMemory>) {
        {
            let mut rx = self.rx.lock();
            let mut tx = self.tx.lock();
            if self.link.lock().as_ref().is_none_or(|l| !Arc::ptr_eq(l, link)) {
                return; // The consumer has ended this connection meanwhile.
            }
            self.context.begin();
            rx.rings = RxRings::new(link.clone());
            tx.rings = TxRings::new(link.clone(), &self.context, self.max_requests);
            rx.rings.iter().for_each(|rings| rings.watch_next(&self.context.watch));
            self.context.watch.set_wait(AwaitedProgress::Other); // The first pass determines the next wait.
            drop(tx);
            let checked = rx.check_watermarks(&self.context);
            drop(rx);
            if let Err(fault) = checked {
                return self.end_with_fault(fault);
            }
        }
        self.serve();
        if let Some(me) = self.me.upgrade() {
            self.context.cqs().for_each(|cq| cq.add_new(me.clone()));
        }
        // A thread may have begun to poll before the connection was in its list.
        if self.has_poller() {
            self.serve();
        }
    }

    fn peer_ended(&self, link: &Arc<ConnectionMemory>) -> Option<bool> {
        for _ in 0..MAX_PASSES {
            if !self.progress() {
                break;
            }
        }
        self.end_connection(Some(link)).map(|(_, faulty)| faulty)
    }
}

impl SrqWaiter for QpCore {
    fn offer_receive(&self, buffer: SrqRecv) -> Option<SrqRecv> {
        let mut rx = self.rx.lock();
        let back = rx.accept(&self.context, buffer);
        if back.is_some() {
            return back;
        }
        let outcome = rx.check_watermarks(&self.context).and_then(|()| rx.resume(&self.context));
        drop(rx);
        self.handle_pass_result(outcome);
        None
    }
}
