//! A fake object layer, fake queue pairs, and IAs over the loopback interface that use them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use dapl::provider::{CmSink, ConnId, ConnectSpec, ConnectionEvent, IaSpec, PeerAddress, RequestInfo};
use dapl::runtime::handle::ObjectId;
use zerocopy::IntoBytes;

use crate::Usnic;
use crate::adapter::Adapter;
use crate::cm::{ConnectionRequest, QpCaps};
use crate::device::{Device, now};
use crate::net::errors::{DeliveryError, DeliveryErrorKind};
use crate::net::receive::PacketRun;
use crate::net::send::SendBatch;
use crate::proto::Nanos;
use crate::proto::schedule::PendingWork;
use crate::proto::wire::{self, Kind, PacketHeader};
use crate::qp::handler::{ConnectionHandler, ConnectionParams};

/// Time limit of a wait for an event.
pub(super) const LONG: Duration = Duration::from_secs(20);
pub(super) const CAPS: QpCaps = QpCaps { ord: 4, ird: 2, credits: 1 };

/// An event recorded by a fake.
#[derive(Debug, PartialEq)]
pub(super) enum Recorded {
    Established(ConnId, Vec<u8>),
    Event(ConnId, &'static str),
    Requested(Vec<u8>),
    Packet(Vec<u8>),
    Served,
    OnTime,
    Opened,
    Ended(u32),
    DeliveryError(DeliveryErrorKind),
}

/// Recorded events, each with the thread that recorded it. Every new event notifies the condition variable.
#[derive(Default)]
pub(super) struct EventLog {
    pub(super) recorded: Mutex<Vec<(Recorded, ThreadId)>>,
    pub(super) more: Condvar,
}

impl EventLog {
    pub(super) fn record(&self, event: Recorded) {
        self.recorded.lock().unwrap().push((event, std::thread::current().id()));
        self.more.notify_all();
    }

    /// Waits for the first event for which `fits` returns a value. Removes the event, and returns the value.
    pub(super) fn wait<T>(&self, fits: impl Fn(&Recorded) -> Option<T>) -> (T, ThreadId) {
        let mut recorded = self.recorded.lock().unwrap();
        loop {
            if let Some(found) = take(&mut recorded, &fits) {
                return found;
            }
            let (next, over) = self.more.wait_timeout(recorded, LONG).unwrap();
            recorded = next;
            assert!(!over.timed_out(), "the expected event did not arrive; recorded: {recorded:?}");
        }
    }

    pub(super) fn has<T>(&self, fits: impl Fn(&Recorded) -> Option<T>) -> Option<(T, ThreadId)> {
        take(&mut self.recorded.lock().unwrap(), &fits)
    }
}

pub(super) fn take<T>(
    recorded: &mut Vec<(Recorded, ThreadId)>,
    fits: &impl Fn(&Recorded) -> Option<T>,
) -> Option<(T, ThreadId)> {
    let (at, found) = recorded.iter().enumerate().find_map(|(at, (event, by))| Some((at, (fits(event)?, *by))))?;
    recorded.remove(at);
    Some(found)
}

pub(super) fn event(event: &Recorded) -> Option<(ConnId, &'static str)> {
    if let Recorded::Event(conn, event) = event { Some((*conn, *event)) } else { None }
}

pub(super) fn established(event: &Recorded) -> Option<(ConnId, Vec<u8>)> {
    if let Recorded::Established(conn, data) = event { Some((*conn, data.clone())) } else { None }
}

pub(super) fn packet(event: &Recorded) -> Option<Vec<u8>> {
    if let Recorded::Packet(bytes) = event { Some(bytes.clone()) } else { None }
}

/// A fake object layer, which stores connection requests.
#[derive(Default)]
pub(super) struct FakeObjectLayer {
    pub(super) events: EventLog,
    pub(super) requests: Mutex<Vec<ConnectionRequest>>,
    pub(super) is_full: bool,
}

impl CmSink<Usnic> for FakeObjectLayer {
    fn request(
        &self,
        _: ObjectId,
        request: ConnectionRequest,
        info: RequestInfo,
    ) -> std::result::Result<(), ConnectionRequest> {
        if self.is_full {
            return Err(request);
        }
        self.requests.lock().unwrap().push(request);
        self.events.record(Recorded::Requested(info.private_data));
        Ok(())
    }

    fn event(&self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        self.events.record(match event {
            ConnectionEvent::Established => Recorded::Established(conn, private_data.to_vec()),
            ConnectionEvent::PeerRejected => Recorded::Event(conn, "peer rejected"),
            ConnectionEvent::Rejected => Recorded::Event(conn, "rejected"),
            ConnectionEvent::Unreachable => Recorded::Event(conn, "unreachable"),
            ConnectionEvent::AcceptFailed => Recorded::Event(conn, "accept failed"),
            ConnectionEvent::Disconnected => Recorded::Event(conn, "disconnected"),
            ConnectionEvent::Broken => Recorded::Event(conn, "broken"),
            ConnectionEvent::TimedOut => Recorded::Event(conn, "timed out"),
        });
    }

    fn many_recvs(&self, _: ObjectId) {}
}

/// A fake queue pair. Sends the packets that a test queues, and records the calls of the provider.
#[derive(Default)]
pub(super) struct FakeQp {
    pub(super) events: EventLog,
    pub(super) opened: Mutex<Option<ConnectionParams>>,
    /// Packets that the next call of `transmit` sends.
    pub(super) queue: Mutex<Vec<Vec<u8>>>,
    pub(super) deadline: Mutex<Option<Nanos>>,
}

impl FakeQp {
    pub(super) fn pending_work(&self) -> PendingWork {
        let ready = !self.queue.lock().unwrap().is_empty();
        PendingWork { ready, deadline: *self.deadline.lock().unwrap(), ..PendingWork::default() }
    }

    pub(super) fn wait_until_open(&self) {
        self.events.wait(|event| (*event == Recorded::Opened).then_some(()));
    }

    /// Queues a packet, which the next pass sends.
    pub(super) fn post(&self, device: &Device, body: &[u8]) {
        self.post_kind(Kind::Ack, device, body);
    }

    pub(super) fn post_kind(&self, kind: Kind, device: &Device, body: &[u8]) {
        let opened = self.opened.lock().unwrap();
        let opened = opened.as_ref().unwrap();
        let terms = &opened.agreed.terms;
        let head = PacketHeader::new(kind, 0, terms.peer_conn, terms.peer_token);
        self.queue.lock().unwrap().push([head.as_bytes(), body].concat());
        device.schedule(opened.number, &opened.next_service, &self.pending_work());
    }

    pub(super) fn number(&self) -> u32 {
        self.opened.lock().unwrap().as_ref().unwrap().number
    }
}

impl ConnectionHandler for FakeQp {
    fn connecting(&self, _: u32) {}

    fn open(&self, _: Nanos, opened: ConnectionParams) -> Option<PendingWork> {
        *self.opened.lock().unwrap() = Some(opened);
        self.events.record(Recorded::Opened);
        Some(self.pending_work())
    }

    fn receive(&self, _: Nanos, _: u32, _: SocketAddr, packets: PacketRun<'_>) -> PendingWork {
        for packet in packets {
            // The peer repeats its Accept if this process was slow to confirm it. Tests do not expect these packets.
            let (head, body) = wire::head(packet).expect("the device checks the length");
            if head.kind() != Some(Kind::Accept) {
                self.events.record(Recorded::Packet(body.to_vec()));
            }
        }
        self.pending_work()
    }

    fn transmit(&self, _: Nanos, _: u32) -> PendingWork {
        let opened = self.opened.lock().unwrap();
        if let Some(ConnectionParams { agreed, socket, .. }) = &*opened {
            let mut batch = SendBatch::default();
            for packet in self.queue.lock().unwrap().drain(..) {
                batch.header_buffer().extend(packet);
                batch.end_packet();
            }
            batch.send(socket, agreed.terms.peer);
        }
        self.events.record(Recorded::Served);
        drop(opened);
        self.pending_work()
    }

    fn on_time(&self, now: Nanos, _: u32) -> PendingWork {
        if self.deadline.lock().unwrap().take_if(|due| *due <= now).is_some() {
            self.events.record(Recorded::OnTime);
        }
        self.pending_work()
    }

    fn sends_to(&self, peer: SocketAddr) -> bool {
        self.opened.lock().unwrap().as_ref().is_some_and(|opened| opened.agreed.terms.peer == peer)
    }

    fn on_delivery_error(&self, _: Nanos, _: u32, missed: &DeliveryError) -> PendingWork {
        self.events.record(Recorded::DeliveryError(missed.kind));
        self.pending_work()
    }

    fn end(&self, number: u32) -> bool {
        self.events.record(Recorded::Ended(number));
        true
    }

    fn shut_down(&self) {
        self.events.record(Recorded::Ended(0));
    }
}

/// An IA that is closed when dropped.
pub(super) struct Ia {
    pub(super) adapter: Adapter,
    pub(super) object_layer: Arc<FakeObjectLayer>,
}

impl Ia {
    pub(super) fn open(ip: &str, params: &str) -> Ia {
        Ia::with(FakeObjectLayer::default(), ip, params)
    }

    pub(super) fn with(object_layer: FakeObjectLayer, ip: &str, params: &str) -> Ia {
        let ia = Ia::without_engine(object_layer, ip, params);
        ia.adapter.start_engine().unwrap();
        ia
    }

    /// Opens an IA without an engine thread. The test makes progress by calling `step_until`.
    pub(super) fn without_engine(object_layer: FakeObjectLayer, ip: &str, params: &str) -> Ia {
        // The process id in address and port prevents conflicts with tests that run in other processes.
        let port = 20_000 + std::process::id() % 20_000;
        let params = format!("{ip} port={port} buffer=100000 {params}");
        let object_layer = Arc::new(object_layer);
        let spec = IaSpec { name: "test", params: &params, library: "" };
        let adapter = Adapter::open(&spec, object_layer.clone()).unwrap();
        Ia { adapter, object_layer }
    }

    /// Does the work of the engine until `done` returns a value.
    pub(super) fn step_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        let deadline = now() + u64::try_from(LONG.as_nanos()).unwrap();
        loop {
            self.progress.run_pass(now());
            self.cm.process(true);
            if let Some(found) = done() {
                return found;
            }
            assert!(
                now() < deadline,
                "the expected event did not arrive; recorded: {:?}",
                self.object_layer.events.recorded.lock().unwrap()
            );
            std::thread::yield_now();
        }
    }

    pub(super) fn connect(&self, to: &Ia, qual: u64, conn: ConnId) -> Arc<FakeQp> {
        self.try_connect(to.device.address().ip(), qual, conn).unwrap()
    }

    pub(super) fn try_connect(&self, ip: IpAddr, qual: u64, conn: ConnId) -> dapl::error::Result<Arc<FakeQp>> {
        let pair = Arc::new(FakeQp::default());
        let spec = ConnectSpec { address: &PeerAddress::Ip(ip), qual, private_data: b"may I?" };
        self.cm.connect(pair.clone(), &spec, conn, CAPS).map(|_| pair)
    }

    /// Accepts the next request.
    pub(super) fn accept(&self, conn: ConnId) -> Arc<FakeQp> {
        let pair = Arc::new(FakeQp::default());
        self.request().accept_into(pair.clone(), b"you may", conn, CAPS).unwrap();
        pair
    }

    pub(super) fn request(&self) -> ConnectionRequest {
        self.object_layer.events.wait(|event| (*event == Recorded::Requested(b"may I?".to_vec())).then_some(()));
        self.object_layer.requests.lock().unwrap().remove(0)
    }

    pub(super) fn event(&self) -> (ConnId, &'static str) {
        self.object_layer.events.wait(event).0
    }
}

impl std::ops::Deref for Ia {
    type Target = Adapter;

    fn deref(&self) -> &Adapter {
        &self.adapter
    }
}

impl Drop for Ia {
    fn drop(&mut self) {
        self.adapter.shut_down();
    }
}

pub(super) fn conn(attempt: u32) -> ConnId {
    ConnId { attempt, ..ConnId::default() }
}

/// Returns two loopback addresses that no other test uses.
pub(super) fn addresses() -> (String, String) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let net = format!("127.{}.{}", 1 + pid % 200, 1 + pid / 200 % 200);
    (format!("{net}.{}", 2 * next + 1), format!("{net}.{}", 2 * next + 2))
}

/// Returns a client and a server with a connection between them, each with its IA and queue pair.
pub(super) fn connected(params: &str) -> ((Ia, Arc<FakeQp>), (Ia, Arc<FakeQp>)) {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, params), Ia::open(&there, params));
    let listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let ours = client.connect(&server, 7, conn(1));
    let theirs = server.accept(conn(2));
    let (reported, _) = client.object_layer.events.wait(established);
    assert_eq!(reported, (conn(1), b"you may".to_vec()));
    ours.wait_until_open();
    // The client's first packet confirms the connection.
    ours.post(&client.device, b"first");
    assert_eq!(server.object_layer.events.wait(established).0, (conn(2), Vec::new()));
    theirs.wait_until_open();
    assert_eq!(theirs.events.wait(packet).0, b"first");
    drop(listening);
    ((client, ours), (server, theirs))
}
