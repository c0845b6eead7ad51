//! Completion queues. A poll of an empty queue runs a pass, unless another thread runs one. The pass receives and sends
//! for all connections of the IA. Connections without traffic add no cost to a poll.
//!
//! Polls of an armed queue do not count as polling in `Polling`. The consumer of an armed queue relies on a
//! notification, and may sleep without calling `Polling::stop`, as the agent of a CNO does.
//!
//! A thread that holds the lock of a completion queue acquires no other lock.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use dapl::error::Result;
use dapl::provider::{ArmMode, Completion, CompletionQueue, CqSink};
use dapl_software::cq::CompletionList;

use crate::engine::jobs::Job;
use crate::engine::progress::EngineProgress;

/// The completion queue object that dapl owns.
pub struct Cq(pub(crate) Arc<CqCore>);

/// A completion queue, shared by its [`Cq`], queue pairs and the engine.
pub(crate) struct CqCore {
    ready: CompletionList,
    sink: Weak<dyn CqSink>,
    progress: Arc<EngineProgress>,
}

impl Cq {
    pub(crate) fn new(sink: Weak<dyn CqSink>, progress: Arc<EngineProgress>) -> Self {
        Cq(Arc::new(CqCore { ready: CompletionList::default(), sink, progress }))
    }
}

impl CqCore {
    /// Adds the completion of a work request, and notifies the consumer if the queue is armed.
    pub(crate) fn push(&self, completion: Completion) {
        if self.ready.push(completion) {
            self.progress.device.jobs.push(Job::Notify(self.sink.clone()));
        }
    }
}

impl CompletionQueue for Cq {
    const SHARES_PROGRESS: bool = true;

    fn poll(&self, out: &mut [Completion]) -> usize {
        let taken = self.ready(out);
        if taken > 0 {
            return taken;
        }
        self.0.progress.poll(!self.0.ready.is_armed());
        self.ready(out)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        self.0.ready.take(out)
    }

    fn disarm(&self) {
        self.0.ready.disarm();
    }

    fn max_spin(&self) -> u32 {
        self.0.progress.device.settings.spin
    }

    /// Ignores the mode, and notifies of any completion. dapl then wakes only the consumers that the mode selects,
    /// because each completion of a receive says whether its message was solicited.
    fn arm(&self, _: ArmMode) -> Result<bool> {
        Ok(self.0.ready.arm(|| ()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dapl::provider::IaSpec;
    use parking_lot::Mutex;

    use super::*;
    use crate::device::{Device, now};
    use crate::engine::jobs::Jobs;
    use crate::net::receive::PacketRun;
    use crate::proto::Nanos;
    use crate::proto::schedule::PendingWork;
    use crate::qp::handler::{ConnectionHandler, ConnectionParams, DeliveryError};

    /// A fake connection handler that always has something to send, and counts the calls of `transmit`. If `into` is
    /// set, each call adds a completion to that queue.
    #[derive(Default)]
    struct FakeConnection {
        into: Mutex<Option<Arc<CqCore>>>,
        passes: AtomicU32,
    }

    const READY: PendingWork = PendingWork { resend: false, ready: true, ack: false, deadline: None };

    impl ConnectionHandler for FakeConnection {
        fn connecting(&self, _: u32) {}

        fn open(&self, _: Nanos, _: ConnectionParams) -> Option<PendingWork> {
            None
        }

        fn receive(&self, _: Nanos, _: u32, _: SocketAddr, _: PacketRun<'_>) -> PendingWork {
            READY
        }

        fn transmit(&self, _: Nanos, _: u32) -> PendingWork {
            self.passes.fetch_add(1, Ordering::Relaxed);
            if let Some(cq) = &*self.into.lock() {
                cq.push(Completion::default());
            }
            READY
        }

        fn on_time(&self, _: Nanos, _: u32) -> PendingWork {
            READY
        }

        fn sends_to(&self, _: SocketAddr) -> bool {
            false
        }

        fn on_delivery_error(&self, _: Nanos, _: u32, _: &DeliveryError) -> PendingWork {
            READY
        }

        fn end(&self, _: u32) -> bool {
            false
        }

        fn shut_down(&self) {}
    }

    struct CountingSink(AtomicU32);

    impl CqSink for CountingSink {
        fn notify(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a queue, its device, which has no engine thread, the device's only connection handler, and the sink.
    fn queue() -> (Cq, Arc<Device>, Arc<FakeConnection>, Arc<CountingSink>) {
        let spec = IaSpec { name: "test", params: "127.0.0.1", library: "" };
        let (device, pair) = (Arc::new(Device::open(&spec).unwrap()), Arc::new(FakeConnection::default()));
        let number = device.table.reserve(now()).unwrap();
        let next_service = device.table.insert(number, pair.clone());
        device.schedule(number, &next_service, &READY);
        let sink = Arc::new(CountingSink(AtomicU32::new(0)));
        let weak: Weak<dyn CqSink> = Arc::downgrade(&(sink.clone() as Arc<dyn CqSink>));
        let progress = Arc::new(EngineProgress::new(device.clone()));
        (Cq::new(weak, progress), device, pair, sink)
    }

    fn answer(jobs: &Jobs) {
        for job in jobs.drain_jobs() {
            if let Job::Notify(sink) = job {
                sink.upgrade().inspect(|sink| sink.notify());
            }
        }
    }

    #[test]
    fn poll_makes_progress_unless_a_completion_is_queued() {
        let (cq, _, pair, _) = queue();
        let mut out = [Completion::default(); 4];
        assert_eq!(cq.poll(&mut out), 0);
        *pair.into.lock() = Some(cq.0.clone());
        assert_eq!((cq.poll(&mut out), pair.passes.load(Ordering::Relaxed)), (1, 2));
        cq.0.push(Completion::default());
        assert_eq!(
            (cq.poll(&mut out), pair.passes.load(Ordering::Relaxed)),
            (1, 2),
            "the poll returns a queued completion without a progress pass"
        );
        assert_eq!((cq.ready(&mut out), pair.passes.load(Ordering::Relaxed)), (0, 2));
    }

    #[test]
    fn armed_queue_notifies_once_and_arming_fails_with_queued_completions() {
        let (cq, device, _, sink) = queue();
        assert!(cq.arm(ArmMode::All).unwrap());
        cq.0.push(Completion::default());
        cq.0.push(Completion::default());
        answer(&device.jobs);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
        assert!(!cq.arm(ArmMode::All).unwrap(), "arming fails while two completions are queued");
        cq.0.push(Completion::default());
        answer(&device.jobs);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn polls_of_an_armed_queue_do_not_count_as_polling() {
        let (cq, device, pair, _) = queue();
        let mut out = [Completion::default(); 4];
        // Returns whether this thread was recorded as polling, and clears the record.
        let counts = || device.polling.stop(now());
        cq.poll(&mut out);
        assert!(counts() && cq.arm(ArmMode::All).unwrap());
        cq.poll(&mut out);
        assert!(!counts());
        cq.0.push(Completion::default());
        answer(&device.jobs);
        assert_eq!((cq.poll(&mut out), counts()), (1, false));
        assert_eq!(
            (cq.poll(&mut out), counts()),
            (0, true),
            "the completion has disarmed the queue, so the poll makes a progress pass"
        );
        assert_eq!(pair.passes.load(Ordering::Relaxed), 3);
    }
}
