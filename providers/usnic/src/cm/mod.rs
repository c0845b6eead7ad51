//! The connection manager of an IA: listeners, connection attempts (active side), and requests of peers (passive side).
//!
//! `proto::setup` contains the state machines. This module adds sockets, connection numbers and queue pairs. One lock
//! guards the state machines. A thread holds it for one step of a state machine, and while it sends the packets of this
//! step. No function of a queue pair or of dapl is called under this lock. Instead, the step returns a [`CmAction`],
//! which the engine executes after it has released the lock.
#![forbid(unsafe_code)]

mod accept;
mod action;
mod connect;
mod listen;
mod request;
mod secrets;
mod unreadable;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::{CmSink, ConnId, ConnectSpec, ConnectionEvent, PeerAddress};
use parking_lot::Mutex;
use rustix::event::epoll;

pub(crate) use self::action::QpCaps;
pub use self::listen::Listener;
pub use self::request::ConnectionRequest;
pub(crate) use self::secrets::random_seed;

use self::accept::PassiveSide;
use self::action::{AgreedConnection, CmAction, LocalConnection, offer, send};
use self::connect::ActiveSide;
use self::listen::Listeners;
use self::secrets::OsRandom;
use crate::Usnic;
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::net::errors::DeliveryError;
use crate::net::listener_dir::ListenerDir;
use crate::net::receive::PacketRun;
use crate::net::send::SendBatch;
use crate::proto::Nanos;
use crate::proto::setup::connect::{Connector, refuse_unmatched};
use crate::proto::setup::packets::{self, RejectReason};
use crate::proto::setup::{Setup, SetupConfig};
use crate::proto::wire::{self, Kind};
use crate::qp::handler::{ConnectionHandler, ConnectionParams};

pub(crate) struct Cm {
    device: Arc<Device>,
    /// Receives events for dapl. Only the engine calls it, and without a lock.
    pub(crate) sink: Arc<dyn CmSink<Usnic>>,
    setup: Arc<Setup>,
    /// The directory in which processes of this user find the listeners of other processes on the same port.
    listener_dir: ListenerDir,
    /// Epoll set of all sockets that receive requests. It is readable if one of these sockets is readable.
    pub(crate) request_sockets: OwnedFd,
    state: Mutex<CmState>,
}

struct CmState {
    active: ActiveSide,
    passive: PassiveSide,
    listeners: Listeners,
}

impl Cm {
    /// Creates the connection manager. Logs errors of the key file, the random source and epoll.
    pub(crate) fn new(device: Arc<Device>, sink: Arc<dyn CmSink<Usnic>>) -> Result<Arc<Self>> {
        let (name, settings) = (&device.name, &device.settings);
        secrets::check_random(name)?;
        let psk = settings.key_file.as_deref().map(|path| secrets::read_key(name, path)).transpose()?;
        let config =
            SetupConfig { give_up: settings.give_up, listener_wait: settings.listener_wait, ..SetupConfig::default() };
        let setup = Arc::new(Setup::new(config, psk));
        let request_sockets = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            log::error!("{name}: cannot create an epoll descriptor: {error}; allow more open files (ulimit -n)");
            Error::Exhausted(Resource::Device)
        })?;
        let listener_dir = ListenerDir::new(settings.base_dir());
        let (active, passive, listeners) =
            (ActiveSide::default(), PassiveSide::new(setup.clone()), Listeners::default());
        let state = Mutex::new(CmState { active, passive, listeners });
        Ok(Arc::new(Cm { device, sink, setup, listener_dir, request_sockets, state }))
    }

    /// Returns the number of received requests and withdrawals that are damaged, or come from a host whose setting
    /// `key` differs.
    pub(crate) fn unreadable(&self) -> u64 {
        self.state.lock().passive.unreadable()
    }

    /// Returns the time at which the engine must call [`Self::process`].
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let state = self.state.lock();
        [state.active.deadline(), state.passive.deadline()].into_iter().flatten().min()
    }

    /// Wakes the engine, which then calls [`Self::process`].
    fn wake(&self) {
        self.device.jobs.push(Job::Wake);
    }

    /// Starts a connection attempt, and returns its connection number. Calls `connecting` of the handler. The engine
    /// later calls `open` or `end`, unless the attempt is cancelled first. The caller must hold no lock that
    /// `connecting` acquires.
    ///
    /// Errors: `InvalidAddress`, `Exhausted(Memory)`. After an error, the handler is not called.
    pub(crate) fn connect(
        &self,
        handler: Arc<dyn ConnectionHandler>,
        spec: &ConnectSpec<'_>,
        conn: ConnId,
        caps: QpCaps,
    ) -> Result<u32> {
        let device = &self.device;
        let PeerAddress::Ip(ip) = spec.address else { return Err(Error::InvalidAddress(AddressProblem::Malformed)) };
        let servers = connect::servers(device, &self.listener_dir, ip.to_canonical(), spec.qual)?;
        let now = device::now();
        let number = device.table.reserve(now).ok_or(Error::Exhausted(Resource::Memory))?;
        handler.connecting(number);
        device.table.insert(number, handler.clone());
        let connection = LocalConnection { number, conn, handler };
        let mut state = self.state.lock();
        if let [server, alternatives @ ..] = &servers[..] {
            let local = offer(device, number, caps, *server);
            let connector = Connector::new(self.setup.clone(), *server, spec.qual, local, spec.private_data, now);
            let connector = connector.with_alternative(alternatives.first().copied());
            state.active.start(device, now, connector, connection);
        } else {
            state.active.refuse(connection);
        }
        drop(state);
        self.wake();
        Ok(number)
    }

    /// Cancels a connection attempt or an unconfirmed accept, and notifies the peer. Reports no event. Has no effect on
    /// an established connection.
    pub(crate) fn cancel(&self, number: u32) {
        let mut state = self.state.lock();
        let was_there = state.active.withdraw(&self.device, number) | state.passive.withdraw(&self.device, number);
        drop(state);
        if was_there {
            self.device.free_number(number);
        }
    }

    /// Cancels all attempts and unconfirmed accepts. Called when the IA is closed.
    pub(crate) fn cancel_all(&self) {
        let CmState { active, passive, .. } = &mut *self.state.lock();
        active.numbers().into_iter().for_each(|number| _ = active.withdraw(&self.device, number));
        passive.numbers().into_iter().for_each(|number| _ = passive.withdraw(&self.device, number));
    }

    /// Handles received handshake packets and expired deadlines. Called by the engine. `has_requests` says whether a
    /// socket of `request_sockets` may be readable.
    pub(crate) fn process(self: &Arc<Self>, has_requests: bool) {
        if has_requests {
            self.read_requests();
        }
        loop {
            let packets = self.device.take_cm_packets();
            if packets.is_empty() {
                break;
            }
            packets.into_iter().for_each(|(from, packet)| self.receive(from, packet));
        }
        let now = device::now();
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        self.execute_all(|state| {
            state.active.poll(&self.device, now).or_else(|| state.passive.poll(&self.device, now))
        });
    }

    /// Handles a packet that a pass has queued: a packet of the handshake, a packet of a connection that was not
    /// established when the packet arrived, or a Fin or Reset that arrived after such packets.
    fn receive(self: &Arc<Self>, from: SocketAddr, mut packet: Vec<u8>) {
        let (device, now) = (&self.device, device::now());
        let Some((head, _)) = wire::head(&packet) else { return };
        let number = head.conn.get();
        let entry = device.table.lookup(number);
        if let Some(entry) = entry.as_ref().filter(|entry| entry.is_established()) {
            let length = packet.len();
            let pending_work = entry.handler.receive(now, number, from, PacketRun::new(&mut packet, length));
            return device.schedule(number, &entry.next_service, &pending_work);
        }
        let mut state = self.state.lock();
        let action = if let Some(request_head) = packets::request_head(&packet) {
            // A client retransmits its request to the data port after it has received the Pending reply from there.
            let listener = state.listeners.find(request_head.qual());
            state.passive.handle_request(device, now, from, &packet, listener)
        } else if state.active.has(number) {
            state.active.receive(device, now, number, from, &packet)
        } else if state.passive.has(number) {
            state.passive.receive(now, number, from, packet)
        } else {
            if head.kind() == Some(Kind::Accept) && entry.is_none() {
                let mut batch = SendBatch::default();
                if refuse_unmatched(&self.setup, &packet, &mut OsRandom, batch.header_buffer()) {
                    send(&mut batch, &device.socket, from);
                }
            }
            None
        };
        drop(state);
        if let Some(action) = action {
            self.execute(action);
        }
    }

    /// Handles an ICMP "port unreachable" message about a sent request or accept. Called by the engine.
    pub(crate) fn port_closed(self: &Arc<Self>, error: &DeliveryError) {
        let now = device::now();
        self.execute_all(|state| {
            state.active.port_closed(&self.device, now, error).or_else(|| state.passive.port_closed(now, error))
        });
    }

    /// Calls `next` under the lock, and executes the action that it returns without the lock, until `next` returns
    /// `None`.
    fn execute_all(self: &Arc<Self>, mut next: impl FnMut(&mut CmState) -> Option<CmAction>) {
        loop {
            let action = next(&mut self.state.lock());
            match action {
                Some(action) => self.execute(action),
                None => return,
            }
        }
    }

    fn execute(self: &Arc<Self>, action: CmAction) {
        match action {
            CmAction::Request(listener, id, info) => {
                let peer = info.peer;
                if let Err(mut request) = self.sink.request(listener, ConnectionRequest::new(self.clone(), id), info) {
                    log::info!(
                        "{}: rejected the connection request of {peer}: the listener was freed, its EVD is full, or \
                         no CR or EP can be created",
                        self.device.name
                    );
                    request.send_result(RejectReason::NoListener);
                }
            }
            CmAction::Establish(established, early) => self.open(established, early),
            CmAction::End(LocalConnection { number, conn, handler }, event, private_data) => {
                self.device.free_number(number);
                if handler.end(number) {
                    self.sink.event(conn, event, &private_data);
                }
            }
        }
    }

    /// Opens a connection, reports it, and then handles `early`: the packets of the peer that have already arrived. In
    /// this order, no receive completes before the connection is reported.
    fn open(self: &Arc<Self>, established: AgreedConnection, early: Vec<(SocketAddr, Vec<u8>)>) {
        let device = &self.device;
        let AgreedConnection { local: LocalConnection { number, conn, handler }, agreed, private_data } = established;
        let Some(entry) = device.table.lookup(number) else { return };
        let is_active = agreed.terms.active;
        let params = ConnectionParams {
            number,
            conn,
            path: device.path_to(agreed.terms.peer),
            agreed,
            next_service: entry.next_service.clone(),
            socket: device.socket.clone(),
        };
        let mut pending_work = handler.open(device::now(), params);
        if is_active && pending_work.is_some() {
            // The confirmation is sent before the event is reported. Otherwise a consumer that disconnects at the event
            // could send a Fin or Reset before the confirmation.
            pending_work = Some(handler.transmit(device::now(), number));
        }
        self.sink.event(conn, ConnectionEvent::Established, &private_data);
        // After this call, passes give packets to the entry's handler: the queue pair, or the closing connection if the
        // consumer has already disconnected.
        entry.set_established();
        if let Some(pending_work) = pending_work {
            device.schedule(number, &entry.next_service, &pending_work);
        }
        early.into_iter().for_each(|(from, packet)| self.receive(from, packet));
    }
}
