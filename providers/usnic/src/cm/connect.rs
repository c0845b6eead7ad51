//! The active side: this host's attempts to connect, to another host or to this one.
//!
//! All addresses of this host stand for the adapter's own: programs connect to what the resolver gives for their host's name,
//! which may be 127.0.1.1. The directory of listeners says whether a process of this user listens; to reach another user's,
//! requests go to both addresses.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dapl::error::{Address, Error, Result};
use dapl::provider::{ConnId, ConnectionEvent};

use super::act::{Act, Established, send};
use super::secrets::Os;
use crate::device::Device;
use crate::net::address;
use crate::net::errors::Missed;
use crate::net::listener_dir::ListenerDir;
use crate::net::send::Batch;
use crate::proto::Nanos;
use crate::proto::setup::connect::{Connector, Outcome};
use crate::qp::pair::Pair;

struct Attempt {
    connector: Connector,
    conn: ConnId,
    pair: Arc<dyn Pair>,
    /// Its place in `due`.
    due: Option<Nanos>,
}

/// Attempts, by connection number.
#[derive(Default)]
pub(super) struct Active {
    attempts: HashMap<u32, Attempt>,
    due: BTreeSet<(Nanos, u32)>,
    /// Refused without a packet, and not reported yet.
    refused: VecDeque<(u32, ConnId, Arc<dyn Pair>)>,
    /// Kept for its memory.
    batch: Batch,
}

/// The addresses that a request goes to, one after the other; none: it is this host, no process listens on `qual`, and there is
/// no waiting for one.
pub(super) fn servers(device: &Device, dir: &ListenerDir, ip: IpAddr, qual: u64) -> Result<Vec<SocketAddr>> {
    let (own, port) = (device.address(), device.knobs.port);
    let server = address::at(&own, ip, port);
    if address::is_here(&own, ip) {
        return Ok(servers_here(device, dir, server, qual));
    }
    if !address::is_reachable(&own, ip) || !address::has_route(own, server) {
        return Err(Error::InvalidAddress(Address::Unreachable));
    }
    Ok(vec![server])
}

/// Of this host: the address that the program names, if a process listens there, else the adapter's own.
fn servers_here(device: &Device, dir: &ListenerDir, there: SocketAddr, qual: u64) -> Vec<SocketAddr> {
    let own = device.address();
    let mut servers = vec![own];
    if there != own && there.is_ipv4() == own.is_ipv4() && address::has_route(own, there) {
        servers.insert(0, there);
    }
    if let Some(server) = servers.iter().find(|server| dir.is_open(**server, qual)) {
        return vec![*server];
    }
    // No process of this user listens on it. Another user's may, where the port is neither free nor this user's.
    if device.knobs.listener_wait == 0 {
        servers.retain(|server| !dir.has_port(*server) && !address::is_closed(own, *server));
    }
    servers
}

impl Active {
    pub(super) fn start(
        &mut self,
        device: &Device,
        now: Nanos,
        connector: Connector,
        end: (u32, ConnId, Arc<dyn Pair>),
    ) {
        let (number, conn, pair) = end;
        self.attempts.insert(number, Attempt { connector, conn, pair, due: None });
        self.transmit(device, now, number);
    }

    /// This attempt has no address to go to.
    pub(super) fn refuse(&mut self, end: (u32, ConnId, Arc<dyn Pair>)) {
        self.refused.push_back(end);
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.attempts.contains_key(&number)
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.refused.iter().map(|(number, ..)| *number).chain(self.attempts.keys().copied()).collect()
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        if self.refused.is_empty() { self.due.first().map(|(due, _)| *due) } else { Some(0) }
    }

    /// Sends what an attempt has to send, and plans its next turn.
    fn transmit(&mut self, device: &Device, now: Nanos, number: u32) {
        let Some(attempt) = self.attempts.get_mut(&number) else { return };
        if let Some(to) = attempt.connector.transmit(now, &mut Os, self.batch.own()) {
            send(&mut self.batch, &device.socket, to);
        }
        let due = attempt.connector.deadline();
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
    pub(super) fn receive(
        &mut self,
        device: &Device,
        now: Nanos,
        number: u32,
        from: SocketAddr,
        packet: &[u8],
    ) -> Option<Act> {
        let outcome = self.attempts.get_mut(&number)?.connector.receive(now, packet, from, &mut Os);
        self.after(device, now, number, outcome)
    }

    fn after(&mut self, device: &Device, now: Nanos, number: u32, outcome: Option<Outcome>) -> Option<Act> {
        let Some(outcome) = outcome else {
            self.transmit(device, now, number);
            return None;
        };
        let Attempt { connector, conn, pair, .. } = self.remove(number)?;
        let server = connector.server();
        let event = match outcome {
            Outcome::Established { agreed, private_data } => {
                return Some(Act::Establish(Established { number, conn, pair, agreed, private_data }, Vec::new()));
            }
            Outcome::Ended(event, reason) => {
                if event == ConnectionEvent::Unreachable {
                    let has_key = device.knobs.key_file.is_some();
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

    /// Sends what is due, until an attempt ends.
    pub(super) fn poll(&mut self, device: &Device, now: Nanos) -> Option<Act> {
        if let Some((number, conn, pair)) = self.refused.pop_front() {
            return Some(Act::End(number, pair, conn, ConnectionEvent::Rejected));
        }
        while let Some((_, number)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let outcome = self.attempts.get_mut(&number)?.connector.on_time(now);
            let act = self.after(device, now, number, outcome);
            if act.is_some() {
                return act;
            }
        }
        None
    }

    /// No socket has the port that a request went to: one attempt that this ends.
    pub(super) fn port_closed(&mut self, device: &Device, now: Nanos, missed: &Missed) -> Option<Act> {
        let is_there = |attempt: &Attempt| attempt.connector.server().ip() == missed.to.ip();
        let there: Vec<u32> =
            self.attempts.iter().filter(|(_, attempt)| is_there(attempt)).map(|(number, _)| *number).collect();
        there.into_iter().find_map(|number| {
            let outcome = self.attempts.get_mut(&number)?.connector.port_closed(now, missed.to, &missed.quote);
            self.after(device, now, number, outcome)
        })
    }

    /// The consumer has given up. `false`: there is no such attempt.
    pub(super) fn withdraw(&mut self, device: &Device, number: u32) -> bool {
        if let Some(place) = self.refused.iter().position(|(refused, ..)| *refused == number) {
            self.refused.remove(place);
            return true;
        }
        let Some(mut attempt) = self.remove(number) else { return false };
        let to = attempt.connector.withdraw(&mut Os, self.batch.own());
        send(&mut self.batch, &device.socket, to);
        true
    }
}
