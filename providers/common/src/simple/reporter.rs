//! The reporter thread of an adapter, which calls the sinks of the object layer. Also contains [`ReportedCq`], a
//! completion queue whose consumer this thread notifies.
//!
//! A provider must not call a sink while it serves a call of the object layer, or while it holds a lock that such a
//! call acquires. So it queues its reports, and the reporter thread makes them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    ArmMode, CmSink, Completion, CompletionQueue, ConnId, ConnectionEvent, CqSink, IaSpec, Provider, RequestInfo,
};
use dapl::runtime::handle::ObjectId;
use dapl::runtime::thread;
use parking_lot::{Condvar, Mutex};

use crate::cq::CompletionList;

/// A report to the object layer, made by the reporter thread.
pub enum Report<P: Provider> {
    /// A connection request for a listener.
    Request(ObjectId, P::Request, RequestInfo),
    /// An event of a connection or attempt, with the peer's private data.
    Event(ConnId, ConnectionEvent, Vec<u8>),
    /// Code of the provider that runs after all earlier reports were made.
    Then(Box<dyn FnOnce() + Send>),
    /// An EP has more receives than its soft watermark.
    ManyRecvs(ObjectId),
    /// An armed completion queue has received a completion.
    Notify(Weak<dyn CqSink>),
}

/// The reports of an open adapter, and the thread that makes them.
pub struct Reporter<P: Provider> {
    sink: Arc<dyn CmSink<P>>,
    reports: Mutex<Reports<P>>,
    more: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Reports<P: Provider> {
    queue: VecDeque<Report<P>>,
    is_closed: bool,
}

impl<P: Provider> Reporter<P> {
    /// Starts the reporter thread of an adapter. `name` has at most 15 bytes, the limit of Linux for thread names.
    pub fn start(name: &str, spec: &IaSpec<'_>, sink: Arc<dyn CmSink<P>>) -> Result<Arc<Self>> {
        let reports = Mutex::new(Reports { queue: VecDeque::new(), is_closed: false });
        let reporter = Arc::new(Reporter { sink, reports, more: Condvar::new(), thread: Mutex::default() });
        let running = reporter.clone();
        let thread = thread::spawn(name, move || running.run()).map_err(|error| {
            log::error!("{}: cannot start thread {name}: {error}; allow more processes (ulimit -u)", spec.name);
            Error::Exhausted(Resource::Device)
        })?;
        *reporter.thread.lock() = Some(thread);
        Ok(reporter)
    }

    /// Queues a report for the thread. After `stop`, drops the report.
    pub fn report(&self, report: Report<P>) {
        let mut reports = self.reports.lock();
        if !reports.is_closed {
            reports.queue.push_back(report);
            self.more.notify_one();
        }
    }

    /// Drops the queued reports, and waits until the thread has ended.
    pub fn stop(&self) {
        let mut reports = self.reports.lock();
        reports.is_closed = true;
        self.more.notify_one();
        let rest = std::mem::take(&mut reports.queue);
        drop(reports);
        // The drop is made after the unlock, because dropping a request rejects it and may queue another report.
        drop(rest);
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(thread::join);
    }

    fn run(&self) {
        while let Some(report) = self.next() {
            match report {
                // The sink returns a request that it refuses. Dropping the request rejects it.
                Report::Request(listener, request, info) => drop(self.sink.request(listener, request, info)),
                Report::Event(conn, event, private_data) => self.sink.event(conn, event, &private_data),
                Report::Then(run) => run(),
                Report::ManyRecvs(ep) => self.sink.many_recvs(ep),
                Report::Notify(sink) => {
                    if let Some(sink) = sink.upgrade() {
                        sink.notify();
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Report<P>> {
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

/// A completion queue whose consumer the reporter thread notifies.
pub struct ReportedCq<P: Provider> {
    list: CompletionList,
    sink: Weak<dyn CqSink>,
    reporter: Arc<Reporter<P>>,
    await_transfers: fn(),
}

impl<P: Provider> ReportedCq<P> {
    /// Creates an empty queue.
    ///
    /// A poll of an empty queue calls `await_transfers`, which must wait until all transfers in progress have pushed
    /// their completions. The reason: a completion must be available as soon as the last byte of its message is visible
    /// (spec/consumers 2).
    pub fn new(reporter: Arc<Reporter<P>>, sink: Weak<dyn CqSink>, await_transfers: fn()) -> Self {
        ReportedCq { list: CompletionList::default(), sink, reporter, await_transfers }
    }

    /// Adds a completion. If the queue is armed, the reporter thread notifies the consumer.
    pub fn push(&self, completion: Completion) {
        if self.list.push(completion) {
            self.reporter.report(Report::Notify(self.sink.clone()));
        }
    }
}

impl<P: Provider> CompletionQueue for ReportedCq<P> {
    fn poll(&self, out: &mut [Completion]) -> usize {
        match self.list.take(out) {
            0 => {
                (self.await_transfers)();
                self.list.take(out)
            }
            taken => taken,
        }
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.list.take(out)
    }

    fn disarm(&self) {
        self.list.disarm();
    }

    fn arm(&self, _: ArmMode) -> Result<bool> {
        Ok(self.list.arm(|| ()))
    }
}
