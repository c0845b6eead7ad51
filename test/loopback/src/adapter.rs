//! An open interface adapter, and its thread, which reports to the object layer.
//!
//! Sinks must not be called from inside a call of the object layer, nor with a lock held that such a call takes. So reports wait
//! in a queue until the thread makes them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use dapl::provider::{CmSink, ConnId, ConnectionEvent, CqSink, RequestInfo};
use dapl::runtime::handle::ObjectId;
use dapl_software::memory::user_copy::Checker;
use parking_lot::{Condvar, Mutex};

use crate::world::WORLD;
use crate::{Loopback, Request};

/// A report of the thread to the object layer.
pub(crate) enum Report {
    Request(ObjectId, Request, RequestInfo),
    Event(ConnId, ConnectionEvent),
    /// A connection of this queue pair is established; the peer's private data.
    Established(u64, ConnId, Vec<u8>),
    ManyRecvs(ObjectId),
    /// A completion queue was armed, and has a completion.
    Notify(Weak<dyn CqSink>),
}

/// State shared by the objects of an open adapter.
pub(crate) struct Adapter {
    sink: Arc<dyn CmSink<Loopback>>,
    reports: Mutex<Reports>,
    more: Condvar,
    /// Checks that registered memory is still mapped.
    pub(crate) checker: Checker,
}

#[derive(Default)]
struct Reports {
    queue: VecDeque<Report>,
    is_closed: bool,
}

impl Adapter {
    pub(crate) fn new(sink: Arc<dyn CmSink<Loopback>>) -> Self {
        Adapter { sink, reports: Mutex::default(), more: Condvar::new(), checker: Checker::default() }
    }

    /// Queues a report for the thread. After `close` it is dropped.
    pub(crate) fn report(&self, report: Report) {
        let mut reports = self.reports.lock();
        if !reports.is_closed {
            reports.queue.push_back(report);
            self.more.notify_one();
        }
    }

    /// Ends the thread. Returns the reports that were not made, to be dropped without a lock.
    pub(crate) fn close(&self) -> VecDeque<Report> {
        let mut reports = self.reports.lock();
        reports.is_closed = true;
        self.more.notify_one();
        std::mem::take(&mut reports.queue)
    }

    /// The thread.
    pub(crate) fn run(&self) {
        while let Some(report) = self.next() {
            match report {
                // A request that is refused comes back, and its drop rejects it.
                Report::Request(listener, request, info) => drop(self.sink.request(listener, request, info)),
                Report::Event(conn, event) => self.sink.event(conn, event, &[]),
                Report::Established(qp, conn, data) => {
                    self.sink.event(conn, ConnectionEvent::Established, &data);
                    WORLD.lock().start_transfers(qp, conn);
                }
                Report::ManyRecvs(ep) => self.sink.many_recvs(ep),
                Report::Notify(sink) => {
                    if let Some(sink) = sink.upgrade() {
                        sink.notify();
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Report> {
        let mut reports = self.reports.lock();
        loop {
            if reports.is_closed {
                return None;
            }
            if let Some(report) = reports.queue.pop_front() {
                return Some(report);
            }
            self.more.wait(&mut reports);
        }
    }
}
