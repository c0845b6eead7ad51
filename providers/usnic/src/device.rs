//! The network side of an open interface adapter: its interface and data socket, its connections by number, and what other
//! threads leave to the engine.
//!
//! Queue pairs send by themselves, under their own lock, through this socket. Locks are taken in this order: progress, queue
//! handler, shared receive queue, completion queue, and below all of them the table, `polling`, the lists of this module, and the
//! job queue, under which nothing is called. The connection manager has a lock of its own, under which no queue handler is called.
//! Only the engine calls dapl.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::IaSpec;
use parking_lot::Mutex;

use crate::engine::jobs::{Job, Jobs};
use crate::engine::polling::Polling;
use crate::net::address::{self, Interface};
use crate::net::receive::Packets;
use crate::net::socket::{Socket, SocketConfig};
use crate::proto::schedule::Outlook;
use crate::proto::{Nanos, SECONDS};
use crate::qp::connection_table::ConnectionTable;
use crate::qp::handler::{ConnectionHandler, NextTurn};
use crate::settings::Knobs;

/// Connections of an IA at most.
pub(crate) const CONNECTIONS: usize = 65_536;
/// How long a number that was freed is quarantined.
const NUMBER_QUARANTINE: Nanos = 10 * SECONDS;
/// Set-up packets that wait for the engine, at most: more are dropped, and retransmitted by their senders.
const MAX_CM_PACKETS: usize = 1024;

/// The device of one IA.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) knobs: Knobs,
    pub(crate) interface: Interface,
    /// What data leave and come by.
    pub(crate) socket: Arc<Socket>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) table: ConnectionTable,
    pub(crate) polling: Polling,
    /// What connections want that were touched outside a pass, and how many those are.
    updates: Mutex<Vec<(u32, Outlook)>>,
    update_count: AtomicUsize,
    /// Set-up packets, and others of connections that are not established yet.
    cm_packets: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    /// Packets of no connection.
    unmatched: AtomicU64,
    /// Naps of the engine after which data were waiting.
    late: AtomicU64,
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PeerPath {
    /// The largest payload of a datagram that is ever tried.
    pub(crate) ceiling: usize,
    /// The kernel delivers on this host.
    pub(crate) is_local: bool,
}

/// Nanoseconds of the monotonic clock.
#[inline]
pub(crate) fn now() -> Nanos {
    dapl::runtime::wait::now()
}

impl Device {
    /// Opens it. Errors are logged here, with object, cause and remedy.
    pub(crate) fn open(spec: &IaSpec<'_>) -> Result<Device> {
        let knobs = Knobs::read(spec.params);
        let interface = find_interface(spec.name, &knobs)?;
        let config = data_socket_config(&knobs, &interface);
        let socket = Arc::new(open_socket(spec.name, &config, &interface)?);
        Ok(Device {
            name: spec.name.to_owned(),
            knobs,
            interface,
            socket,
            jobs: Arc::new(Jobs::new()?),
            table: ConnectionTable::new(CONNECTIONS, NUMBER_QUARANTINE),
            polling: Polling::default(),
            updates: Mutex::default(),
            update_count: AtomicUsize::new(0),
            cm_packets: Mutex::default(),
            unmatched: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    /// The address that peers connect to, with the port of set-ups.
    pub(crate) fn address(&self) -> SocketAddr {
        let mut address = self.interface.address;
        address.set_port(self.knobs.port);
        address
    }

    /// The largest payload of a datagram that is ever tried.
    pub(crate) fn ceiling(&self) -> usize {
        self.interface.largest_payload().min(self.knobs.mtu_ceiling)
    }

    /// How `peer` is reached. What the kernel routes locally goes through the loopback interface, whatever interface has the
    /// address.
    pub(crate) fn path_to(&self, peer: SocketAddr) -> PeerPath {
        if self.interface.is_loopback {
            return PeerPath { ceiling: self.ceiling(), is_local: true };
        }
        match address::local_mtu(self.interface.address, peer) {
            Some(mtu) => {
                PeerPath { ceiling: self.interface.payload_of(mtu).min(self.knobs.mtu_ceiling), is_local: true }
            }
            None => PeerPath { ceiling: self.ceiling(), is_local: false },
        }
    }

    /// Takes what a connection wants that was touched outside a pass, by a post for example. Takes no queue handler's lock.
    pub(crate) fn schedule(&self, number: u32, next_turn: &NextTurn, outlook: &Outlook) {
        let deadline = if outlook.wants_turn() { Some(0) } else { outlook.deadline };
        let Some(deadline) = deadline.filter(|deadline| next_turn.move_forward(*deadline)) else { return };
        let now = now();
        // A turn is due now; a poller gives it soon enough.
        let deadline = if deadline == 0 { now } else { deadline };
        let mut updates = self.updates.lock();
        updates.push((number, *outlook));
        // Pairs with the engine's last look before it sleeps.
        self.update_count.store(updates.len(), Ordering::SeqCst);
        drop(updates);
        if self.polling.must_wake_for(deadline, now) {
            self.jobs.push(Job::Wake);
        }
    }

    pub(crate) fn has_updates(&self) -> bool {
        self.update_count.load(Ordering::SeqCst) > 0
    }

    /// True: there is something in `into`, which was empty.
    pub(crate) fn take_updates(&self, into: &mut Vec<(u32, Outlook)>) -> bool {
        if !self.has_updates() {
            return false;
        }
        let mut updates = self.updates.lock();
        std::mem::swap(&mut *updates, into);
        self.update_count.store(0, Ordering::SeqCst);
        true
    }

    // --- what is left to the engine ---

    /// Packets that only the engine understands.
    #[cold]
    pub(crate) fn queue_for_cm(&self, from: SocketAddr, packets: Packets<'_>) {
        let mut cm_packets = self.cm_packets.lock();
        let was_empty = cm_packets.is_empty();
        let capacity = MAX_CM_PACKETS - cm_packets.len();
        cm_packets.extend(packets.take(capacity).map(|packet| (from, packet.to_vec())));
        drop(cm_packets);
        if was_empty {
            self.jobs.push(Job::Cm);
        }
    }

    pub(crate) fn take_cm_packets(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut *self.cm_packets.lock())
    }

    #[cold]
    pub(crate) fn count_unmatched(&self, count: usize) {
        self.unmatched.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Packets that were of no connection.
    pub(crate) fn unmatched(&self) -> u64 {
        self.unmatched.load(Ordering::Relaxed)
    }

    /// Data waited for the end of a nap of the engine.
    #[cold]
    pub(crate) fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Naps of the engine after which data were waiting, because the consumer had stopped polling.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Datagrams that found a socket's buffer full.
    pub(crate) fn drops(&self) -> u64 {
        self.socket.drops()
    }

    // --- connections ---

    /// From now on `handler` has this connection: its queue handler is done with it, but the peer may not be.
    pub(crate) fn replace_handler(&self, number: u32, handler: Arc<dyn ConnectionHandler>, outlook: &Outlook) {
        self.table.replace(number, handler);
        if let Some(entry) = self.table.lookup(number) {
            entry.next_turn.clear();
            self.schedule(number, &entry.next_turn, outlook);
        }
    }

    /// Frees the number of a connection.
    pub(crate) fn free_number(&self, number: u32) {
        self.table.free(number, now());
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("address", &self.address()).finish_non_exhaustive()
    }
}

/// The interface that the settings name. Errors are logged here.
fn find_interface(name: &str, knobs: &Knobs) -> Result<Interface> {
    let found = address::find(knobs.address.as_deref()).map_err(|error| {
        log::error!("{name}: cannot list the interfaces of this host: {error}");
        Error::Exhausted(Resource::Device)
    })?;
    found.map_err(|why| {
        log::error!("{name}: {why}");
        Error::InvalidAddress(Address::Unreachable)
    })
}

/// What data leave and come by.
fn data_socket_config(knobs: &Knobs, interface: &Interface) -> SocketConfig {
    SocketConfig {
        address: interface.address,
        ports: knobs.data_ports.clone(),
        is_shared: false,
        receive_buffer: knobs.buffer,
        send_buffer: knobs.buffer / 2,
        gso: true,
        gro: true,
    }
}

fn open_socket(name: &str, config: &SocketConfig, interface: &Interface) -> Result<Socket> {
    let socket = Socket::open(config).map_err(|error| {
        log::error!("{name}: cannot open a UDP socket on {} ({}): {error}", interface.address.ip(), interface.name);
        Error::Exhausted(Resource::Device)
    })?;
    for buffer in socket.reduced_buffers(config) {
        log::warn!(
            "{name}: the system grants a socket buffer of {} bytes where {} are wanted, which costs speed; set {} to {} or more",
            buffer.granted,
            buffer.wanted,
            buffer.sysctl,
            buffer.wanted
        );
    }
    Ok(socket)
}
