//! Progress of an IA, in passes. A pass receives packets for the connections, handles expired deadlines, and calls
//! `transmit` of the connections that have something to send (US-3, US-4).
//!
//! A pass runs in a consumer's thread or in the engine thread. This thread holds the lock `pass`. When it calls a
//! connection handler, it holds no other lock, and the handler acquires its own lock.
//!
//! A pass does not handle packets of the handshake, or packets of connections that are not established. It queues them
//! for the engine thread. A Fin or Reset that arrives while such packets are queued is queued behind them.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::device::{Device, now};
use crate::engine::jobs::Job;
use crate::net::receive::{PacketRun, ReceiveBatch};
use crate::proto::Nanos;
use crate::proto::ids;
use crate::proto::schedule::{Deadlines, PendingWork, Schedule};
use crate::proto::wire::{self, Kind};
use crate::qp::connection_table::ConnectionEntry;

/// Maximum number of receive system calls in one pass. Without the limit, a fast peer would delay transmissions.
const CALLS: usize = 8;

pub(crate) struct EngineProgress {
    pub(crate) device: Arc<Device>,
    pub(crate) pass: Mutex<PassState>,
    /// Set while a pass copies received bytes and queues their completions.
    pub(crate) is_placing: AtomicBool,
}

/// The state of passes: receive buffers, and the connections that passes must serve.
pub(crate) struct PassState {
    batch: ReceiveBatch,
    services: ServiceQueue,
    /// Number of receive calls that returned packets.
    arrivals: u64,
    /// Buffer for `Device::take_updates`, reused to avoid allocations.
    updates: Vec<(u32, PendingWork)>,
}

/// The connections that need a `transmit` call, and the deadlines of all connections.
#[derive(Default)]
struct ServiceQueue {
    schedule: Schedule,
    deadlines: Deadlines,
}

impl EngineProgress {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let pass = PassState {
            batch: ReceiveBatch::new(),
            services: ServiceQueue::default(),
            arrivals: 0,
            updates: Vec::new(),
        };
        EngineProgress { device, pass: Mutex::new(pass), is_placing: AtomicBool::new(false) }
    }

    /// Runs a pass for a polling consumer, unless another thread runs one.
    ///
    /// If `counts` is true, records that the calling thread polls. The engine may then go to standby, and not watch the
    /// data socket until this thread sleeps or stops polling.
    pub(crate) fn poll(&self, counts: bool) {
        let now = now();
        if counts {
            self.device.polling.record_poll(now);
        }
        let Some(mut pass) = self.pass.try_lock() else {
            // Another thread runs a pass, and may have placed bytes whose completion is not queued yet. A consumer that
            // has seen the bytes in memory expects the completion, so this poll waits for the pass.
            if self.is_placing.load(Ordering::SeqCst) {
                drop(self.pass.lock());
            }
            return;
        };
        pass.run(self, now);
    }

    /// Runs a pass for the engine. Returns true if there was progress, so that more work may be ready.
    pub(crate) fn run_pass(&self, now: Nanos) -> bool {
        self.pass.lock().run(self, now)
    }

    /// Runs a pass for the engine. Returns true if packets were received.
    pub(crate) fn run_pass_for_packets(&self, now: Nanos) -> bool {
        let mut pass = self.pass.lock();
        let before = pass.arrivals;
        pass.run(self, now);
        pass.arrivals != before
    }

    /// Returns the earliest deadline of the connections, 0 if a connection waits for a `transmit` call, or `None` if
    /// there is neither.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.pass.lock().next(&self.device)
    }

    /// Runs a pass, unless another thread is running one. Packets that have arrived may complete work of the caller.
    pub(crate) fn run_pass_if_free(&self) {
        let Some(mut pass) = self.pass.try_lock() else { return };
        pass.run(self, now());
        let next = pass.next(&self.device);
        drop(pass);
        // The new deadline may be earlier than the end of the engine's sleep. The engine must then be woken, unless a
        // thread polls.
        if !self.device.polling.is_polled(now()) {
            self.wake_engine_for(next);
        }
    }

    /// Records that the calling thread stops polling. If no other thread polls, makes the engine watch the data socket.
    pub(crate) fn stop_polling(&self) {
        if self.device.polling.stop(now()) {
            // A pass of another thread may leave work, so while one runs, the engine is woken.
            let next = self.pass.try_lock().map_or(Some(0), |mut pass| pass.next(&self.device));
            self.wake_engine_for(next);
        }
    }

    fn wake_engine_for(&self, next: Option<Nanos>) {
        if self.device.polling.must_wake_to_take_over(next) {
            self.device.jobs.push(Job::Wake);
        }
    }
}

impl PassState {
    fn run(&mut self, progress: &EngineProgress, now: Nanos) -> bool {
        let device = &progress.device;
        if device.has_updates() {
            self.take_updates(device);
        }
        let mut has_progress = self.receive(progress, now);
        while let Some(index) = self.services.deadlines.next_expired(now) {
            has_progress = true;
            if let Some(entry) = device.table.entry_at(index as usize) {
                entry.next_service.clear();
                let pending_work = entry.handler.on_time(now, entry.number);
                self.services.schedule_service(&entry, &pending_work);
            }
        }
        (self.services.schedule.is_busy() && self.serve_connections(device, now)) || has_progress
    }

    /// Queues the pending work that connections have reported outside a pass.
    #[inline(never)]
    fn take_updates(&mut self, device: &Device) {
        if !device.take_updates(&mut self.updates) {
            return;
        }
        for (number, pending_work) in self.updates.drain(..) {
            if let Some(entry) = device.table.lookup(number) {
                // From here on, other threads queue new updates of this connection. The next pass handles those.
                entry.next_service.clear();
                self.services.schedule_service(&entry, &pending_work);
            }
        }
    }

    /// Receives packets and dispatches them. Returns true if there were packets.
    fn receive(&mut self, progress: &EngineProgress, now: Nanos) -> bool {
        let device = &progress.device;
        let mut has_progress = false;
        for _ in 0..CALLS {
            match self.batch.receive(&device.socket) {
                Ok(0) => break,
                Ok(_) => {
                    has_progress = true;
                    self.arrivals += 1;
                }
                // The error is about a packet that was sent earlier. The next call receives the arrived packets.
                Err(_) => continue,
            }
            let PassState { batch, services, .. } = self;
            progress.is_placing.store(true, Ordering::SeqCst);
            batch.batches().for_each(|(from, packets)| services.dispatch(device, now, from, packets));
            progress.is_placing.store(false, Ordering::SeqCst);
            if !self.batch.may_have_more() {
                break;
            }
        }
        has_progress
    }

    /// Calls `transmit` of the queued connections. Returns true if there were any.
    #[inline(never)]
    fn serve_connections(&mut self, device: &Device, now: Nanos) -> bool {
        let mut has_progress = false;
        self.services.schedule.begin();
        while let Some(index) = self.services.schedule.next() {
            let Some(entry) = device.table.entry_at(index as usize) else { continue };
            let pending_work = entry.handler.transmit(now, entry.number);
            self.services.schedule_service(&entry, &pending_work);
            has_progress = true;
        }
        has_progress
    }

    fn next(&mut self, device: &Device) -> Option<Nanos> {
        self.take_updates(device);
        if self.services.schedule.is_busy() { Some(0) } else { self.services.deadlines.next() }
    }
}

impl ServiceQueue {
    fn schedule_service(&mut self, entry: &ConnectionEntry, pending_work: &PendingWork) {
        let index = ids::index(entry.number) as u32;
        self.schedule.wants(index, pending_work);
        if let Some(deadline) = pending_work.deadline {
            self.deadlines.set_deadline(index, deadline);
            entry.next_service.move_forward(deadline);
        }
    }

    /// Passes the packets of a GRO batch to their connections. A batch may contain packets of several connections
    /// between the same two sockets.
    fn dispatch(&mut self, device: &Device, now: Nanos, from: SocketAddr, mut batch: PacketRun<'_>) {
        while let Some((target, packets)) = batch.split(target) {
            let entry = match target {
                // The packets in the connection manager's queue arrived earlier, and may establish connections. This
                // Fin or Reset is queued behind them, so that the consumer gets the events in the order of arrival.
                PacketTarget::End(_) if device.has_cm_packets() => {
                    device.queue_for_cm(from, packets);
                    continue;
                }
                PacketTarget::Conn(number) | PacketTarget::End(number) => device.table.lookup(number),
                PacketTarget::Setup => {
                    device.queue_for_cm(from, packets);
                    continue;
                }
                PacketTarget::Invalid => None,
            };
            match entry {
                Some(entry) if entry.is_established() => {
                    let pending_work = entry.handler.receive(now, entry.number, from, packets);
                    self.schedule_service(&entry, &pending_work);
                }
                // The connection is not established. A packet of the peer may confirm it.
                Some(_) => device.queue_for_cm(from, packets),
                None => device.count_unmatched(packets.count()),
            }
        }
    }
}

/// The receiver of a packet within this IA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PacketTarget {
    Conn(u32),
    /// The connection with this number, which the packet ends (Fin or Reset).
    End(u32),
    Setup,
    /// Unknown packet kind, or no complete header.
    Invalid,
}

/// Returns the receiver that a packet's header names. Does not check the token.
fn target(packet: &[u8]) -> PacketTarget {
    let Some((head, _)) = wire::head(packet) else { return PacketTarget::Invalid };
    match head.kind() {
        Some(Kind::Request | Kind::Cookie | Kind::Accept | Kind::Reject) => PacketTarget::Setup,
        // A Reset for connection number 0 withdraws a connection request.
        Some(Kind::Reset) if head.conn.get() == 0 => PacketTarget::Setup,
        Some(Kind::Fin | Kind::Reset) => PacketTarget::End(head.conn.get()),
        Some(_) => PacketTarget::Conn(head.conn.get()),
        None => PacketTarget::Invalid,
    }
}
