//! Connections on their way: who listens, who asks, who was asked.
//!
//! The rules are those of `proto::setup`; here are their sockets, their numbers and their queue pairs. Down-calls and the engine
//! meet under one lock, which is held for a step of a machine and what it sends, and never while a queue pair or the layer above
//! is called. What the lock's holder finds out is done afterwards (`Act`), by the engine alone.
#![forbid(unsafe_code)]

mod asked;
mod asking;
mod listening;
pub(crate) mod request;
mod secrets;
mod unreadable;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{ConnId, ConnectionEvent, RequestInfo};
use dapl::runtime::handle::ObjectId;

pub(crate) use self::asked::Incoming;
pub(crate) use self::listening::Listening;

use self::asked::Accepted;
use self::asking::Attempt;
use self::listening::Listeners;
use self::secrets::Os;
use self::unreadable::Unreadable;
use crate::device::{self, Device};
use crate::engine::jobs::Job;
use crate::net::errors::Missed;
use crate::net::name::Name;
use crate::net::receive::Packets;
use crate::net::send::Batch;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::setup::answering::{Answering, RequestId};
use crate::proto::setup::{Agreed, Config, Offer, Setup};
use crate::proto::setup::{opening, packets};
use crate::proto::wire::{self, Kind};
use crate::qp::pair::{Opened, Pair};
use crate::settings::Knobs;

/// What a queue pair brings into a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Wishes {
    /// Reads outstanding at most: its own, and the peer's.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Receives that are posted already.
    pub(crate) credits: u32,
}

/// All set-ups of an IA.
pub(crate) struct Setups {
    setup: Arc<Setup>,
    /// Ours, by number.
    attempts: HashMap<u32, Attempt>,
    due: BTreeSet<(Nanos, u32)>,
    /// Attempts of ours to reach who is not there: it is yet to be said.
    unheard: VecDeque<(u32, ConnId, Arc<dyn Pair>)>,
    /// Others', until they are connections.
    answering: Answering,
    accepted: HashMap<u32, Accepted>,
    number_of: HashMap<RequestId, u32>,
    listeners: Listeners,
    unreadable: Unreadable,
    /// Kept for its memory.
    batch: Batch,
}

/// What is to be done without the lock.
enum Act {
    /// A request, for who listens.
    Ask(ObjectId, RequestId, RequestInfo),
    /// A connection stands; packets of it have come already.
    Open(Standing, Vec<(SocketAddr, Vec<u8>)>),
    /// An attempt came to nothing.
    End(u32, Arc<dyn Pair>, ConnId, ConnectionEvent),
}

/// A connection that stands, and nobody knows it yet.
struct Standing {
    number: u32,
    conn: ConnId,
    pair: Arc<dyn Pair>,
    agreed: Agreed,
    /// The acceptor's.
    private_data: Vec<u8>,
}

impl Setups {
    /// Errors are logged here: the key, or random numbers.
    pub(crate) fn new(name: &str, knobs: &Knobs) -> Result<Self> {
        secrets::try_random(name)?;
        let psk = knobs.key_file.as_deref().map(|path| secrets::read_key(name, path)).transpose()?;
        let config = Config { silence: knobs.give_up, listener_wait: knobs.listener_wait, ..Config::default() };
        let setup = Arc::new(Setup::new(config, psk));
        Ok(Setups {
            answering: Answering::new(setup.clone(), device::now(), &mut Os),
            setup,
            attempts: HashMap::new(),
            due: BTreeSet::new(),
            unheard: VecDeque::new(),
            accepted: HashMap::new(),
            number_of: HashMap::new(),
            listeners: Listeners::default(),
            unreadable: Unreadable::default(),
            batch: Batch::default(),
        })
    }

    /// Requests that were damaged, or sealed with another key.
    pub(crate) fn unreadable(&self) -> u64 {
        self.answering.counts().unreadable
    }

    /// When the engine is to look after them.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let first = if self.unheard.is_empty() { self.due.first().map(|(due, _)| *due) } else { Some(0) };
        [first, self.answering.deadline()].into_iter().flatten().min()
    }

    /// What this side brings into a connection with `peer`, with random numbers of its own.
    fn offer(&self, device: &Device, number: u32, wishes: Wishes, peer: SocketAddr) -> Offer {
        Offer {
            ord: wishes.ord,
            ird: wishes.ird,
            credits: wishes.credits,
            window_kib: u16::try_from(device.socket.receive_buffer() >> 10).unwrap_or(u16::MAX).max(1),
            mtu: u16::try_from(device.reach(peer).ceiling).unwrap_or(u16::MAX),
            ..Offer::new(number, &mut Os)
        }
    }

    /// Sends one packet; what does not leave is said again later.
    fn send(batch: &mut Batch, socket: &Socket, to: SocketAddr) {
        batch.end_packet();
        batch.send(socket, &Name::of(to));
        batch.clear();
    }

    /// Something came that belongs to a set-up, or to a connection that does not stand yet.
    fn receive(&mut self, device: &Device, now: Nanos, from: SocketAddr, packet: Vec<u8>) -> Option<Act> {
        let (head, _) = wire::head(&packet)?;
        let number = head.conn.get();
        let kind = head.kind();
        if packets::asking(&packet).is_some() {
            // Repeated here, as we have said that it is pending.
            return self.requested(device, now, from, &packet);
        }
        if self.attempts.contains_key(&number) {
            self.answer(device, now, number, from, &packet)
        } else if self.accepted.contains_key(&number) {
            self.maybe_confirmed(now, number, from, packet)
        } else if kind == Some(Kind::Accept) && device.table.find(number).is_none() {
            if opening::refuse_stray(&self.setup, &packet, &mut Os, self.batch.own()) {
                Self::send(&mut self.batch, &device.socket, from);
            }
            self.batch.clear();
            None
        } else {
            None
        }
    }

    /// What is due by now: one thing that the layer above must hear of, after all that is only sent.
    fn poll(&mut self, device: &Device, now: Nanos) -> Option<Act> {
        self.poll_attempts(device, now).or_else(|| self.poll_answers(device, now))
    }
}

impl std::fmt::Debug for Setups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (attempts, accepted) = (self.attempts.len(), self.accepted.len());
        f.debug_struct("Setups").field("attempts", &attempts).field("accepted", &accepted).finish_non_exhaustive()
    }
}

/// The engine: what came, what is due. `doors`: requests may be there.
pub(crate) fn attend(device: &Arc<Device>, doors: bool) {
    if doors {
        listening::read(device);
    }
    for (from, packet) in device.take_put_by() {
        receive(device, from, packet);
    }
    let now = device::now();
    if device.setups.lock().deadline().is_none_or(|due| due > now) {
        return;
    }
    loop {
        let act = device.setups.lock().poll(device, now);
        match act {
            Some(act) => act.run(device),
            None => return,
        }
    }
}

fn receive(device: &Arc<Device>, from: SocketAddr, mut packet: Vec<u8>) {
    let now = device::now();
    let number = wire::head(&packet).map_or(0, |(head, _)| head.conn.get());
    // It stands by now.
    if let Some(place) = device.table.find(number).filter(|place| place.is_open()) {
        let length = packet.len();
        let outlook = place.pair.receive(now, number, from, Packets::new(&mut packet, length));
        return device.wants(number, &place.plan, &outlook);
    }
    let act = device.setups.lock().receive(device, now, from, packet);
    if let Some(act) = act {
        act.run(device);
    }
}

/// A host says that no socket has the port to which a packet was sent: that of a server, or that of a requester.
pub(crate) fn port_closed(device: &Arc<Device>, missed: &Missed) {
    let now = device::now();
    loop {
        let act = {
            let mut setups = device.setups.lock();
            setups.server_gone(device, now, missed).or_else(|| setups.requester_gone(now, missed))
        };
        match act {
            Some(act) => act.run(device),
            None => return,
        }
    }
}

impl Act {
    fn run(self, device: &Arc<Device>) {
        match self {
            Act::Ask(listener, id, info) => {
                let peer = info.peer;
                if let Err(request) = device.reports.request(listener, Incoming::new(device.clone(), id), info) {
                    log::info!("{}: request of {peer}: nobody listens or has room", device.name);
                    request.refuse();
                }
            }
            Act::Open(standing, early) => standing.open(device, early),
            Act::End(number, pair, conn, event) => {
                device.forget(number);
                if pair.end(number) {
                    device.reports.event(conn, event, &[]);
                }
            }
        }
    }
}

impl Standing {
    /// First the report, then the data: nobody sees a receive before its connection.
    fn open(self, device: &Arc<Device>, early: Vec<(SocketAddr, Vec<u8>)>) {
        let Standing { number, conn, pair, agreed, private_data } = self;
        let Some(place) = device.table.find(number) else { return };
        device.reports.event(conn, ConnectionEvent::Established, &private_data);
        let reach = device.reach(agreed.terms.peer);
        let opened = Opened {
            number,
            conn,
            agreed,
            plan: place.plan.clone(),
            socket: device.socket.clone(),
            ceiling: reach.ceiling,
            is_loopback: reach.is_local,
        };
        let outlook = pair.open(device::now(), opened);
        // What comes is the connection's, or that of what remains of it if nobody wants it any more.
        place.opens();
        if let Some(outlook) = outlook {
            device.wants(number, &place.plan, &outlook);
        }
        early.into_iter().for_each(|(from, packet)| receive(device, from, packet));
    }
}

impl Setups {
    /// The IA closes.
    pub(crate) fn end_all(&mut self, device: &Device) {
        let (asking, accepted): (Vec<u32>, Vec<u32>) =
            (self.attempts.keys().copied().collect(), self.accepted.keys().copied().collect());
        let unheard: Vec<u32> = self.unheard.iter().map(|(number, ..)| *number).collect();
        unheard.into_iter().chain(asking).for_each(|number| _ = self.withdraw(number));
        accepted.into_iter().for_each(|number| _ = self.take_back(device, number));
    }
}

impl Device {
    /// The engine has set-ups to look at again.
    fn look_at_setups(&self) {
        self.jobs.push(Job::Setups);
    }

    /// Down-call: an attempt, ours or a peer's that was accepted, is not wanted any more before it is open. The peer is told,
    /// nobody else is. An open connection ends by words of its own, and so does one that the engine is opening just now: the
    /// pair does not take it.
    pub(crate) fn give_up(&self, number: u32) {
        let mut setups = self.setups.lock();
        let was_there = setups.withdraw(number) | setups.take_back(self, number);
        drop(setups);
        if was_there {
            self.forget(number);
        }
    }
}
