//! The network resources of an open interface adapter: network interface, data socket, connection table, and the work
//! that threads queue for passes and for the engine.
//!
//! Queue pairs send through the data socket under their own lock. Lock order: pass, queue pair, shared receive queue,
//! completion queue. A thread that holds the lock of the connection table, of a list of this module or of the job queue
//! acquires no other lock. No thread calls a queue pair while it holds the lock of the connection manager. Only the
//! engine calls dapl.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dapl::error::{AddressProblem, Error, Resource, Result};
use dapl::provider::IaSpec;
use parking_lot::Mutex;

use crate::engine::jobs::{Job, Jobs};
use crate::engine::polling::Polling;
use crate::net::address::{self, Interface};
use crate::net::receive::PacketRun;
use crate::net::socket::{Socket, SocketConfig};
use crate::proto::schedule::PendingWork;
use crate::proto::{Nanos, SECONDS};
use crate::qp::connection_table::ConnectionTable;
use crate::qp::handler::{ConnectionHandler, NextService, PathProperties};
use crate::settings::UsnicSettings;

/// Maximum number of connection numbers of an IA: connections, attempts and closing connections together.
pub(crate) const CONNECTIONS: usize = 65_536;
/// Time in nanoseconds for which the index of a freed connection number is quarantined.
const NUMBER_QUARANTINE: Nanos = 10 * SECONDS;
/// Maximum number of packets in the connection manager's queue. Further packets are dropped, and the protocol recovers
/// as after a loss in the network.
const MAX_CM_PACKETS: usize = 1024;

pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) settings: UsnicSettings,
    pub(crate) interface: Interface,
    pub(crate) socket: Arc<Socket>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) table: ConnectionTable,
    pub(crate) polling: Polling,
    /// Connection numbers, with the pending work that a thread has reported outside a pass.
    updates: Mutex<Vec<(u32, PendingWork)>>,
    /// Length of `updates`, readable without its lock.
    update_count: AtomicUsize,
    /// Packets of the handshake, packets of connections that are not established yet, and each Fin or Reset that
    /// arrives while such packets are queued.
    cm_packets: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    /// Whether `cm_packets` has packets, or the engine is still handling packets from it.
    has_cm_packets: AtomicBool,
    /// Number of received packets that match no connection.
    unmatched: AtomicU64,
    /// Number of standby sleeps of the engine that have delayed received packets.
    late: AtomicU64,
}

/// Returns the time of the monotonic clock in nanoseconds.
#[inline]
pub(crate) fn now() -> Nanos {
    dapl::runtime::wait::now()
}

impl Device {
    /// Finds the interface and opens the data socket. Logs its errors.
    pub(crate) fn open(spec: &IaSpec<'_>) -> Result<Device> {
        let settings = UsnicSettings::read(spec.params);
        let interface = find_interface(spec.name, &settings)?;
        let config = data_socket_config(&settings, &interface);
        let socket = Arc::new(open_socket(spec.name, &config, &interface)?);
        Ok(Device {
            name: spec.name.to_owned(),
            settings,
            interface,
            socket,
            jobs: Arc::new(Jobs::new()?),
            table: ConnectionTable::new(CONNECTIONS, NUMBER_QUARANTINE),
            polling: Polling::default(),
            updates: Mutex::default(),
            update_count: AtomicUsize::new(0),
            cm_packets: Mutex::default(),
            has_cm_packets: AtomicBool::new(false),
            unmatched: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    /// Returns the IA's address with the well-known port, to which peers connect.
    pub(crate) fn address(&self) -> SocketAddr {
        let mut address = self.interface.address;
        address.set_port(self.settings.port);
        address
    }

    /// Returns the maximum datagram payload in bytes on this interface.
    pub(crate) fn ceiling(&self) -> usize {
        self.interface.payload_of(self.interface.mtu).min(self.settings.mtu_ceiling)
    }

    /// Returns the properties of the path to `peer`. Traffic to any address of this host goes through the loopback
    /// interface.
    pub(crate) fn path_to(&self, peer: SocketAddr) -> PathProperties {
        let Interface { address, mtu, is_loopback, .. } = self.interface;
        let local_mtu = if is_loopback { Some(mtu) } else { address::local_mtu(address, peer) };
        let payload = self.interface.payload_of(local_mtu.unwrap_or(mtu));
        PathProperties { ceiling: payload.min(self.settings.mtu_ceiling), is_local: local_mtu.is_some() }
    }

    /// Schedules work that a connection has got outside a pass, for example by a post. Acquires no lock of a queue
    /// pair.
    pub(crate) fn schedule(&self, number: u32, next_service: &NextService, pending_work: &PendingWork) {
        let deadline = if pending_work.needs_service() { Some(0) } else { pending_work.deadline };
        let Some(deadline) = deadline.filter(|deadline| next_service.move_forward(*deadline)) else { return };
        let now = now();
        // A deadline of 0 means that the next pass must call `transmit`, so that pass is due now.
        let deadline = if deadline == 0 { now } else { deadline };
        let mut updates = self.updates.lock();
        updates.push((number, *pending_work));
        // Pairs with the engine's check of `has_updates` after it has published its sleep: either the engine sees this
        // store, or this thread sees that the engine sleeps.
        self.update_count.store(updates.len(), Ordering::SeqCst);
        drop(updates);
        if self.polling.must_wake_for(deadline, now) {
            self.jobs.push(Job::Wake);
        }
    }

    #[inline]
    pub(crate) fn has_updates(&self) -> bool {
        self.update_count.load(Ordering::SeqCst) > 0
    }

    /// Moves the pending updates to `into`, which must be empty. Returns false if there are no updates.
    pub(crate) fn take_updates(&self, into: &mut Vec<(u32, PendingWork)>) -> bool {
        if !self.has_updates() {
            return false;
        }
        let mut updates = self.updates.lock();
        std::mem::swap(&mut *updates, into);
        self.update_count.store(0, Ordering::SeqCst);
        true
    }

    /// Queues packets for the connection manager, and wakes the engine.
    #[cold]
    pub(crate) fn queue_for_cm(&self, from: SocketAddr, packets: PacketRun<'_>) {
        let mut cm_packets = self.cm_packets.lock();
        let was_empty = cm_packets.is_empty();
        let capacity = MAX_CM_PACKETS - cm_packets.len();
        cm_packets.extend(packets.take(capacity).map(|packet| (from, packet.to_vec())));
        self.has_cm_packets.store(true, Ordering::Release);
        drop(cm_packets);
        if was_empty {
            self.jobs.push(Job::Wake);
        }
    }

    /// Takes the queued packets. The engine handles them and calls again, until the result is empty. Until then,
    /// `has_cm_packets` is true.
    pub(crate) fn take_cm_packets(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut cm_packets = self.cm_packets.lock();
        self.has_cm_packets.store(!cm_packets.is_empty(), Ordering::Release);
        std::mem::take(&mut *cm_packets)
    }

    /// Whether packets are queued for the connection manager, or the engine is handling such packets.
    pub(crate) fn has_cm_packets(&self) -> bool {
        self.has_cm_packets.load(Ordering::Acquire)
    }

    #[cold]
    pub(crate) fn count_unmatched(&self, count: usize) {
        self.unmatched.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Returns the number of received packets that matched no connection.
    pub(crate) fn unmatched(&self) -> u64 {
        self.unmatched.load(Ordering::Relaxed)
    }

    /// Counts a standby sleep of the engine that has delayed received packets.
    #[cold]
    pub(crate) fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of standby sleeps that delayed received packets, because the consumer had stopped polling.
    pub(crate) fn late_after_polling(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Replaces the handler of an ended connection. The new handler, a closing connection, replies to late packets.
    pub(crate) fn replace_handler(&self, number: u32, handler: Arc<dyn ConnectionHandler>, pending_work: &PendingWork) {
        self.table.replace(number, handler);
        if let Some(entry) = self.table.lookup(number) {
            entry.next_service.clear();
            self.schedule(number, &entry.next_service, pending_work);
        }
    }

    pub(crate) fn free_number(&self, number: u32) {
        self.table.free(number, now());
    }
}

/// Finds the interface that the settings name. Logs its errors.
fn find_interface(name: &str, settings: &UsnicSettings) -> Result<Interface> {
    let found = address::find(settings.address.as_deref()).map_err(|error| {
        log::error!(
            "{name}: cannot list the interfaces of this host: {error}; the IA cannot be opened; check the limit of open files \
             (ulimit -n)"
        );
        Error::Exhausted(Resource::Device)
    })?;
    found.map_err(|why| {
        log::error!("{name}: {why}");
        Error::InvalidAddress(AddressProblem::Unreachable)
    })
}

fn data_socket_config(settings: &UsnicSettings, interface: &Interface) -> SocketConfig {
    SocketConfig {
        address: interface.address,
        ports: settings.data_ports.clone(),
        is_shared: false,
        receive_buffer: settings.buffer,
        send_buffer: settings.buffer / 2,
        gso: true,
        gro: true,
    }
}

fn open_socket(name: &str, config: &SocketConfig, interface: &Interface) -> Result<Socket> {
    let socket = Socket::open(config).map_err(|error| {
        log::error!(
            "{name}: cannot open a UDP socket on {} ({}): {error}; check the setting data_ports and the limit of open files \
             (ulimit -n)",
            interface.address.ip(),
            interface.name
        );
        Error::Exhausted(Resource::Device)
    })?;
    for buffer in socket.reduced_buffers(config) {
        log::warn!(
            "{name}: the system grants a socket buffer of {} bytes instead of {}, which reduces throughput; set {} to {} or more",
            buffer.granted,
            buffer.requested,
            buffer.sysctl,
            buffer.requested
        );
    }
    Ok(socket)
}
