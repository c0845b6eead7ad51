//! An open interface adapter as far as the network goes: its sockets, its connections by number, and what others ask of it.
//!
//! Queue pairs send by themselves, under their own lock, through the socket they were given. Locks are taken in this order:
//! progress, queue pair, shared receive queue, completion queue, and below all the small ones of this room, `table`, `polling`
//! and the job queue, under which nothing is called. Set-up has a lock of its own, `setups`, under which queue pairs are not called
//! either. Only the engine calls upwards.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::IaSpec;
use parking_lot::Mutex;
use rustix::event::epoll;

use crate::cm::{self, Setups};
use crate::engine::Engine;
use crate::engine::jobs::{Job, Jobs};
use crate::engine::polling::Polling;
use crate::engine::progress::Progress;
use crate::net::address::{self, Interface};
use crate::net::errors::{self, Hint};
use crate::net::listener_dir::ListenerDir;
use crate::net::receive::Packets;
use crate::net::socket::{Socket, Wanted};
use crate::proto::schedule::Outlook;
use crate::proto::{Nanos, SECONDS};
use crate::qp::pair::{Pair, Reports};
use crate::qp::table::{Plan, Table};
use crate::settings::Knobs;

/// Connections of an IA at most.
pub(crate) const CONNECTIONS: usize = 65_536;
/// A number that was given back rests so long.
const REST: Nanos = 10 * SECONDS;
/// Set-up packets that wait for the engine, at most: more are lost, and come again.
const PUT_BY: usize = 1024;

/// The device of one IA.
pub(crate) struct Device {
    pub(crate) me: Weak<Device>,
    pub(crate) name: String,
    pub(crate) knobs: Knobs,
    pub(crate) interface: Interface,
    /// What data leave and come by.
    pub(crate) socket: Arc<Socket>,
    pub(crate) jobs: Arc<Jobs>,
    /// All sockets by which requests come; readable if one of them is.
    pub(crate) doors: OwnedFd,
    pub(crate) table: Table,
    pub(crate) polling: Polling,
    pub(crate) progress: Mutex<Progress>,
    pub(crate) setups: Mutex<Setups>,
    /// Where processes of this user that share the port of set-ups find each other's listeners.
    pub(crate) listener_dir: ListenerDir,
    pub(crate) reports: Arc<dyn Reports>,
    /// What has come is being put into its place.
    places: AtomicBool,
    /// What connections want that were touched outside a pass, and how many those are.
    fresh: Mutex<Vec<(u32, Outlook)>>,
    freshes: AtomicUsize,
    /// Set-up packets, and others of connections that do not stand yet.
    put_by: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    /// Packets of no connection.
    strays: AtomicU64,
    /// Naps of the engine after which data were there that nobody polled for.
    late: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Reach {
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
    pub(crate) fn open(spec: &IaSpec<'_>, reports: Arc<dyn Reports>) -> Result<Arc<Device>> {
        let knobs = Knobs::read(spec.params);
        let interface = find(spec.name, &knobs)?;
        let wanted = wanted(&knobs, &interface);
        let socket = Arc::new(open_socket(spec.name, &wanted, &interface)?);
        let setups = Setups::new(spec.name, &knobs)?;
        let jobs = Arc::new(Jobs::new()?);
        let doors = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            log::error!("{}: cannot watch several sockets: {error}", spec.name);
            Error::Exhausted(Resource::Device)
        })?;
        let listener_dir = ListenerDir::new(knobs.base_dir());
        let device = Arc::new_cyclic(|me| Device {
            me: me.clone(),
            name: spec.name.to_owned(),
            knobs,
            interface,
            socket,
            jobs,
            doors,
            table: Table::new(CONNECTIONS, REST),
            polling: Polling::default(),
            progress: Mutex::new(Progress::new()),
            setups: Mutex::new(setups),
            listener_dir,
            reports,
            places: AtomicBool::new(false),
            fresh: Mutex::default(),
            freshes: AtomicUsize::new(0),
            put_by: Mutex::default(),
            strays: AtomicU64::new(0),
            late: AtomicU64::new(0),
            thread: Mutex::default(),
        });
        Ok(device)
    }

    /// Starts the engine's thread, unless it runs. The first object that may have something to report calls it, so that an
    /// adapter without such objects has no thread. Errors: `Exhausted(Device)`, logged here.
    pub(crate) fn start_engine(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let engine = Engine::new(self.me.upgrade().ok_or(Error::Internal)?);
        let started = dapl::runtime::thread::spawn("dapl-usnic", move || engine.run()).map_err(|error| {
            log::error!("{}: cannot start the engine's thread: {error}", self.name);
            Error::Exhausted(Resource::Device)
        })?;
        *thread = Some(started);
        Ok(())
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
    pub(crate) fn reach(&self, peer: SocketAddr) -> Reach {
        if self.interface.is_loopback {
            return Reach { ceiling: self.ceiling(), is_local: true };
        }
        match address::local_mtu(self.interface.address, peer) {
            Some(mtu) => Reach { ceiling: self.interface.payload_of(mtu).min(self.knobs.mtu_ceiling), is_local: true },
            None => Reach { ceiling: self.ceiling(), is_local: false },
        }
    }

    // --- progress ---

    /// A consumer polls: it makes the progress of the device, unless somebody else is at it. `counts`: until it sleeps or stops
    /// polling, the engine may leave the data sockets to it. True: something has moved.
    pub(crate) fn poll(&self, counts: bool) -> bool {
        let now = now();
        if counts {
            self.polling.polls(now);
        }
        let Some(mut progress) = self.progress.try_lock() else {
            // Bytes may be in their place whose completion is on its way: who has seen them will find it.
            if self.places.load(Ordering::SeqCst) {
                drop(self.progress.lock());
            }
            return false;
        };
        progress.pass(self, now)
    }

    /// Whoever makes the progress begins to put what has come into its place, or has done so, completions and all.
    pub(crate) fn places(&self, does: bool) {
        self.places.store(does, Ordering::SeqCst);
    }

    /// One pass, unless somebody is at it, for who wants to know what is complete.
    pub(crate) fn catch_up(&self) {
        let Some(mut progress) = self.progress.try_lock() else { return };
        progress.pass(self, now());
        let next = progress.next(self);
        drop(progress);
        // The engine may sleep longer than what was found now waits.
        if !self.polling.is_polled(now()) && self.polling.must_wake_to_take_over(next) {
            self.jobs.push(Job::Look);
        }
    }

    /// The calling thread goes to sleep. Unless others poll, the engine watches the sockets from now on.
    pub(crate) fn stop_polling(&self) {
        if self.polling.stops(now()) {
            // Who has the lock may leave something behind.
            let next = self.progress.try_lock().map_or(Some(0), |mut progress| progress.next(self));
            if self.polling.must_wake_to_take_over(next) {
                self.jobs.push(Job::Look);
            }
        }
    }

    /// What a connection wants that was touched outside a pass: by a post, say. Needs the lock of nobody.
    pub(crate) fn wants(&self, number: u32, plan: &Plan, outlook: &Outlook) {
        let deadline = if outlook.wants_turn() { Some(0) } else { outlook.deadline };
        let Some(deadline) = deadline.filter(|deadline| plan.is_late_for(*deadline)) else { return };
        let now = now();
        // Who wants a turn wants it now; a poller gives it soon enough.
        let deadline = if deadline == 0 { now } else { deadline };
        let mut fresh = self.fresh.lock();
        fresh.push((number, *outlook));
        // Pairs with the engine's last look before it sleeps.
        self.freshes.store(fresh.len(), Ordering::SeqCst);
        drop(fresh);
        if self.polling.must_wake_for(deadline, now) {
            self.jobs.push(Job::Look);
        }
    }

    pub(crate) fn has_fresh(&self) -> bool {
        self.freshes.load(Ordering::SeqCst) > 0
    }

    /// True: there is something in `into`, which was empty.
    pub(crate) fn take_fresh(&self, into: &mut Vec<(u32, Outlook)>) -> bool {
        if !self.has_fresh() {
            return false;
        }
        let mut fresh = self.fresh.lock();
        std::mem::swap(&mut *fresh, into);
        self.freshes.store(0, Ordering::SeqCst);
        true
    }

    // --- what is left to the engine ---

    /// Packets that only the engine understands.
    #[cold]
    pub(crate) fn put_by(&self, from: SocketAddr, packets: Packets<'_>) {
        let mut put_by = self.put_by.lock();
        let was_empty = put_by.is_empty();
        let room = PUT_BY - put_by.len();
        put_by.extend(packets.take(room).map(|packet| (from, packet.to_vec())));
        drop(put_by);
        if was_empty {
            self.jobs.push(Job::Setups);
        }
    }

    pub(crate) fn take_put_by(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut *self.put_by.lock())
    }

    #[cold]
    pub(crate) fn note_strays(&self, count: usize) {
        self.strays.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Packets that were of no connection.
    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// Data waited for the end of a nap of the engine.
    #[cold]
    pub(crate) fn note_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Naps of the engine after which data were there that nobody polled for.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Datagrams that found a socket's buffer full.
    pub(crate) fn drops(&self) -> u64 {
        self.socket.drops()
    }

    // --- connections ---

    /// From now on somebody else has this connection: its queue pair is done with it, but the peer may not be.
    pub(crate) fn hand_on(&self, number: u32, pair: Arc<dyn Pair>, outlook: &Outlook) {
        self.table.replace(number, pair);
        if let Some(place) = self.table.find(number) {
            place.plan.is_met();
            self.wants(number, &place.plan, outlook);
        }
    }

    /// Nobody has it any more.
    pub(crate) fn forget(&self, number: u32) {
        self.table.free(number, now());
    }

    /// Reads the error queue of the data socket and notifies the connections whose packets did not arrive.
    #[cold]
    pub(crate) fn heed_errors(&self) {
        let now = now();
        let mut closed = Vec::new();
        errors::read(&self.socket, |missed| {
            for place in self.table.all().into_iter().filter(|place| place.is_open()) {
                if place.pair.sends_to(missed.to) {
                    let outlook = place.pair.did_not_arrive(now, place.number, &missed);
                    self.wants(place.number, &place.plan, &outlook);
                }
            }
            if missed.hint == Hint::PortClosed {
                closed.push(missed);
            }
        });
        if let Some(device) = self.me.upgrade().filter(|_| !closed.is_empty()) {
            closed.iter().for_each(|missed| cm::port_closed(&device, missed));
        }
    }

    /// Ends all: peers are told, the engine stops, and nothing is reported any more.
    pub(crate) fn shut(&self) {
        self.setups.lock().end_all(self);
        self.table.all().into_iter().for_each(|place| place.pair.shut());
        self.jobs.push(Job::Stop);
        let thread = self.thread.lock().take();
        // An agent that closes the IA from the engine's own thread must not wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
        self.jobs.close();
        // They hold their queue pairs, and these the device.
        self.table.all().into_iter().for_each(|place| self.forget(place.number));
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("address", &self.address()).finish_non_exhaustive()
    }
}

/// The interface that the settings name. Errors are logged here.
fn find(name: &str, knobs: &Knobs) -> Result<Interface> {
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
fn wanted(knobs: &Knobs, interface: &Interface) -> Wanted {
    Wanted {
        address: interface.address,
        ports: knobs.data_ports.clone(),
        is_shared: false,
        receive_buffer: knobs.buffer,
        send_buffer: knobs.buffer / 2,
        gso: true,
        gro: true,
    }
}

fn open_socket(name: &str, wanted: &Wanted, interface: &Interface) -> Result<Socket> {
    let socket = Socket::open(wanted).map_err(|error| {
        log::error!("{name}: cannot open a UDP socket on {} ({}): {error}", interface.address.ip(), interface.name);
        Error::Exhausted(Resource::Device)
    })?;
    for cut in socket.cuts(wanted) {
        log::warn!(
            "{name}: the system grants a socket buffer of {} bytes where {} are wanted, which costs speed; set {} to {} or more",
            cut.granted,
            cut.wanted,
            cut.sysctl,
            cut.wanted
        );
    }
    Ok(socket)
}

#[cfg(test)]
#[path = "tests/device.rs"]
mod tests;
