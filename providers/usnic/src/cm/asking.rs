//! Attempts of ours to connect, to another host or to this one.
//!
//! Of this host every address is as good as the adapter's own: programs connect to what the resolver says is their host's, and
//! that may be 127.0.1.1. A listener of this user's is found, or found not to be there, without a request; for another user's
//! both addresses are asked.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dapl::error::{Address, Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec, ConnectionEvent, PeerAddress};

use super::secrets::Os;
use super::{Act, Setups, Standing, Wishes};
use crate::device::{self, Device};
use crate::net::address;
use crate::net::errors::Missed;
use crate::net::socket::Socket;
use crate::proto::Nanos;
use crate::proto::setup::opening::{Opening, Outcome};
use crate::qp::pair::Pair;

/// One of them.
pub(super) struct Attempt {
    opening: Opening,
    conn: ConnId,
    pair: Arc<dyn Pair>,
    socket: Arc<Socket>,
    /// Its place in `due`.
    due: Option<Nanos>,
}

impl Device {
    /// Down-call: starts an attempt, and says its number. The pair hears `connecting` before, `open` or `end` later. No lock is
    /// held that the pair's `connecting` wants.
    ///
    /// Errors: `InvalidAddress`, `Exhausted(Memory)`; then nothing is heard.
    pub(crate) fn connect(
        &self,
        pair: Arc<dyn Pair>,
        spec: &ConnectSpec<'_>,
        conn: ConnId,
        wishes: Wishes,
    ) -> Result<u32> {
        let ip = match spec.address {
            PeerAddress::Ip(ip) => ip.to_canonical(),
            PeerAddress::Path(_) => return Err(Error::InvalidAddress(Address::Malformed)),
        };
        let servers = self.servers(ip, spec.qual)?;
        let now = device::now();
        let number = self.table.take(now).ok_or(Error::Exhausted(Resource::Memory))?;
        let [server, alternatives @ ..] = &servers[..] else {
            pair.connecting(number, conn);
            self.table.put(number, pair.clone());
            self.setups.lock().unheard.push_back((number, conn, pair));
            self.look_at_setups();
            return Ok(number);
        };
        let socket = self.socket.clone();
        pair.connecting(number, conn);
        self.table.put(number, pair.clone());
        let mut setups = self.setups.lock();
        let ours = setups.offer(self, number, wishes, *server);
        let setup = setups.setup.clone();
        let opening = Opening::new(setup, *server, spec.qual, ours, spec.private_data, now);
        let opening = opening.or_at(alternatives.first().copied());
        setups.attempts.insert(number, Attempt { opening, conn, pair, socket, due: None });
        setups.go_on(now, number);
        drop(setups);
        self.look_at_setups();
        Ok(number)
    }

    /// The addresses that are asked, one after the other; none: it is this host, nobody listens on `qual`, and that is not
    /// waited for.
    fn servers(&self, ip: IpAddr, qual: u64) -> Result<Vec<SocketAddr>> {
        let (own, port) = (self.address(), self.knobs.port);
        if address::is_here(&own, ip) {
            return Ok(self.servers_here(address::at(&own, ip, port), qual));
        }
        let is_reachable = address::is_reachable(&own, ip);
        let server = address::at(&own, ip, port);
        if !is_reachable || !address::has_route(own, server) {
            return Err(Error::InvalidAddress(Address::Unreachable));
        }
        Ok(vec![server])
    }

    /// Of this host: where the program says, if somebody listens there, else at our own address.
    fn servers_here(&self, there: SocketAddr, qual: u64) -> Vec<SocketAddr> {
        let own = self.address();
        let mut servers = vec![own];
        if there != own && there.is_ipv4() == own.is_ipv4() && address::has_route(own, there) {
            servers.insert(0, there);
        }
        if let Some(server) = servers.iter().find(|server| self.listener_dir.is_open(**server, qual)) {
            return vec![*server];
        }
        // No process of this user listens on it. Another user's may, where the port is neither free nor this user's.
        if self.knobs.listener_wait == 0 {
            servers.retain(|server| !self.listener_dir.has_port(*server) && !address::is_closed(own, *server));
        }
        servers
    }
}

impl Setups {
    /// Sends what an attempt has to say, and plans when it is looked at again.
    fn go_on(&mut self, now: Nanos, number: u32) {
        let Some(attempt) = self.attempts.get_mut(&number) else { return };
        if let Some(to) = attempt.opening.transmit(now, &mut Os, self.batch.own()) {
            Self::send(&mut self.batch, &attempt.socket, to);
        }
        let due = attempt.opening.deadline();
        if let Some(before) = std::mem::replace(&mut attempt.due, due) {
            self.due.remove(&(before, number));
        }
        self.due.extend(due.map(|due| (due, number)));
    }

    fn remove(&mut self, number: u32) -> Option<Attempt> {
        let attempt = self.attempts.remove(&number)?;
        if let Some(due) = attempt.due {
            self.due.remove(&(due, number));
        }
        Some(attempt)
    }

    /// A packet for one of them.
    pub(super) fn answer(
        &mut self,
        device: &Device,
        now: Nanos,
        number: u32,
        from: SocketAddr,
        packet: &[u8],
    ) -> Option<Act> {
        let attempt = self.attempts.get_mut(&number)?;
        let outcome = attempt.opening.receive(now, packet, from, &mut Os);
        self.after(device, now, number, outcome)
    }

    fn after(&mut self, device: &Device, now: Nanos, number: u32, outcome: Option<Outcome>) -> Option<Act> {
        let Some(outcome) = outcome else {
            self.go_on(now, number);
            return None;
        };
        let Attempt { opening, conn, pair, .. } = self.remove(number)?;
        let server = opening.server();
        let event = match outcome {
            Outcome::Established { agreed, private_data } => {
                return Some(Act::Open(Standing { number, conn, pair, agreed, private_data }, Vec::new()));
            }
            Outcome::Ended(event, reason) => {
                if event == ConnectionEvent::Unreachable {
                    let has_key = self.setup.has_key();
                    let key = if has_key { " (a host with another key, or without one, gives none)" } else { "" };
                    log::info!("{}: connect to {server}: no answer{key}", device.name);
                } else if let Some(reason) = reason {
                    log::info!("{}: connect to {server}: {reason:?}", device.name);
                }
                event
            }
        };
        Some(Act::End(number, pair, conn, event))
    }

    /// Those that are due, until one has come to something.
    pub(super) fn poll_attempts(&mut self, device: &Device, now: Nanos) -> Option<Act> {
        if let Some((number, conn, pair)) = self.unheard.pop_front() {
            return Some(Act::End(number, pair, conn, ConnectionEvent::Rejected));
        }
        while let Some((_, number)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let outcome = self.attempts.get_mut(&number)?.opening.on_time(now);
            let act = self.after(device, now, number, outcome);
            if act.is_some() {
                return act;
            }
        }
        None
    }

    /// No socket has the port that was asked there: one attempt that this decides.
    pub(super) fn server_gone(&mut self, device: &Device, now: Nanos, missed: &Missed) -> Option<Act> {
        let is_there = |attempt: &Attempt| attempt.opening.server().ip() == missed.to.ip();
        let there: Vec<u32> =
            self.attempts.iter().filter(|(_, attempt)| is_there(attempt)).map(|(number, _)| *number).collect();
        there.into_iter().find_map(|number| {
            let outcome = self.attempts.get_mut(&number)?.opening.nobody_there(now, missed.to, &missed.quote);
            self.after(device, now, number, outcome)
        })
    }

    /// Our consumer has given up. `false`: there is no such attempt.
    pub(super) fn withdraw(&mut self, number: u32) -> bool {
        if let Some(place) = self.unheard.iter().position(|(unheard, ..)| *unheard == number) {
            self.unheard.remove(place);
            return true;
        }
        let Some(mut attempt) = self.remove(number) else { return false };
        let to = attempt.opening.withdraw(&mut Os, self.batch.own());
        Self::send(&mut self.batch, &attempt.socket, to);
        true
    }
}
