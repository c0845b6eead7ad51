//! The end of a connection: stops both directions, flushes the work queues, and reports a fault.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, ConnectionEvent, Status, Token};
use dapl::runtime::empty_check::AwaitedProgress;

use super::QpCore;
use crate::cm::setup;
use crate::cq::CompletionWriter;
use crate::engine::jobs::Job;
use crate::qp::context::ConnectionFault;
use crate::qp::link::ConnectionMemory;
use crate::qp::rx::Rx;
use crate::qp::tx::Tx;

impl QpCore {
    /// Ends the connection because of a fault: flushes the work queues, notifies the peer, and reports the event
    /// `Broken`.
    #[cold]
    pub(super) fn end_with_fault(&self, fault: ConnectionFault) {
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
    pub(super) fn end_connection(
        &self,
        which: Option<&Arc<ConnectionMemory>>,
    ) -> Option<(Arc<ConnectionMemory>, bool)> {
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
        let faulty = rx.stopped || tx.stopped;
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
            if let (true, Some(pool)) = (rings.waits_for_receive, &self.context.pool) {
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

    pub(super) fn flush_receives(&self, rx: &mut Rx) {
        for receive in rx.queue.drain() {
            self.context.complete_recv(&mut CompletionWriter::default(), flushed(receive.token));
        }
    }

    /// Completes a receive that was posted after the end of the connection, with status `Flushed`.
    #[cold]
    pub(super) fn flush_recv(&self, token: Token) {
        self.context.complete_recv(&mut CompletionWriter::default(), flushed(token));
    }
}

fn flushed(token: Token) -> Completion {
    Completion { token, status: Status::Flushed, ..Completion::default() }
}
