//! The reporter thread of an adapter, which calls the sinks of the object layer. Also contains [`ReportedCq`], a
//! completion queue whose consumer this thread notifies.
//!
//! A provider must not call a sink while it serves a call of the object layer, or while it holds a lock that such a
//! call acquires. So it queues its reports, and the reporter thread makes them.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{
    ArmMode, CmSink, Completion, CompletionQueue, ConnId, ConnectionEvent, CqSink, IaSpec, Provider, RequestInfo,
};
use dapl::runtime::handle::ObjectId;
use dapl::runtime::thread;
use parking_lot::Mutex;

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
    /// The queue of reports, which ends with `None`.
    reports: Sender<Option<Report<P>>>,
    is_stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<P: Provider> Reporter<P> {
    /// Starts the reporter thread of an adapter. `name` has at most 15 bytes, the limit of Linux for thread names.
    pub fn start(name: &str, spec: &IaSpec<'_>, sink: Arc<dyn CmSink<P>>) -> Result<Arc<Self>> {
        let (reports, queue) = mpsc::channel();
        let (is_stopped, thread) = (AtomicBool::new(false), Mutex::default());
        let reporter = Arc::new(Reporter { sink, reports, is_stopped, thread });
        let running = reporter.clone();
        let thread = thread::spawn(name, move || running.run(&queue)).map_err(|error| {
            log::error!("{}: cannot start thread {name}: {error}; allow more processes (ulimit -u)", spec.name);
            Error::Exhausted(Resource::Device)
        })?;
        *reporter.thread.lock() = Some(thread);
        Ok(reporter)
    }

    /// Queues a report for the thread. After `stop`, drops the report.
    pub fn report(&self, report: Report<P>) {
        let _ = self.reports.send(Some(report));
    }

    /// Waits until the thread has dropped the queued reports and has ended.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        let _ = self.reports.send(None);
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(thread::join);
    }

    fn run(&self, queue: &Receiver<Option<Report<P>>>) {
        while let Ok(Some(report)) = queue.recv() {
            match report {
                _ if self.is_stopped.load(Ordering::Acquire) => {}
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
