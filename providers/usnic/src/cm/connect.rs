//! The active side of connection set-up: attempts to connect to another host or to this host.
//!
//! A listener on this host may be bound to the requested address or to the adapter's address, because resolvers may
//! return 127.0.1.1 for the host's name. The directory of listeners contains the addresses of listeners of this user.
//! Without an entry for the qualifier, a process of another user may listen at either address, so both may be tried.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use dapl::error::{AddressProblem, Error, Result};
use dapl::provider::ConnectionEvent;

use super::action::{AgreedConnection, CmAction, LocalConnection, send};
use super::secrets::OsRandom;
use crate::device::Device;
use crate::net::address;
use crate::net::errors::DeliveryError;
use crate::net::listener_dir::ListenerDir;
use crate::net::send::SendBatch;
use crate::proto::Nanos;
use crate::proto::setup::connect::{ConnectOutcome, Connector};

struct ConnectAttempt {
    connector: Connector,
    local: LocalConnection,
    /// Time of the attempt's entry in `ActiveSide::due`.
    due: Option<Nanos>,
}

/// The connection attempts of this IA, by connection number.
#[derive(Default)]
pub(super) struct ActiveSide {
    attempts: HashMap<u32, ConnectAttempt>,
    due: BTreeSet<(Nanos, u32)>,
    /// Attempts that failed at once, because no address has a listener. `poll` reports them.
    refused: VecDeque<LocalConnection>,
    /// Reused by all calls to avoid allocations.
    batch: SendBatch,
}

/// Returns the addresses to which a request is sent, in order. The list is empty if the peer is this host, no process
/// can have a listener on `qual`, and the setting `listener_wait_ms` is 0.
pub(super) fn servers(device: &Device, dir: &ListenerDir, ip: IpAddr, qual: u64) -> Result<Vec<SocketAddr>> {
    let (own, port) = (device.address(), device.settings.port);
    let server = address::with_port(&own, ip, port);
    if address::is_local_address(&own, ip) {
        return Ok(local_servers(device, dir, server, qual));
    }
    if !address::is_reachable(&own, ip) || !address::has_route(own, server) {
        return Err(Error::InvalidAddress(AddressProblem::Unreachable));
    }
    Ok(vec![server])
}

/// Returns the addresses for a peer on this host. If a process of this user listens on `qual` at `server` or at the
/// adapter's address, returns only that address.
fn local_servers(device: &Device, dir: &ListenerDir, server: SocketAddr, qual: u64) -> Vec<SocketAddr> {
    let own = device.address();
    let mut servers = vec![own];
    if server != own && server.is_ipv4() == own.is_ipv4() && address::has_route(own, server) {
        servers.insert(0, server);
    }
    if let Some(server) = servers.iter().find(|server| dir.has_listener(**server, qual)) {
        return vec![*server];
    }
    // No process of this user listens on `qual`. Another user may listen at an address whose port is open and does not
    // belong to this user.
    if device.settings.listener_wait == 0 {
        servers.retain(|server| !dir.owns_port(*server) && !address::is_port_closed(own, *server));
    }
    servers
}

impl ActiveSide {
    pub(super) fn start(&mut self, device: &Device, now: Nanos, connector: Connector, local: LocalConnection) {
        let number = local.number;
        self.attempts.insert(number, ConnectAttempt { connector, local, due: None });
        self.transmit(device, now, number);
    }

    /// Adds an attempt that has failed because no address has a listener.
    pub(super) fn refuse(&mut self, local: LocalConnection) {
        self.refused.push_back(local);
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.attempts.contains_key(&number)
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.refused.iter().map(|local| local.number).chain(self.attempts.keys().copied()).collect()
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        if self.refused.is_empty() { self.due.first().map(|(due, _)| *due) } else { Some(0) }
    }

    /// Sends the packet that is due for an attempt, if there is one, and updates the attempt's deadline.
    fn transmit(&mut self, device: &Device, now: Nanos, number: u32) {
        let Some(attempt) = self.attempts.get_mut(&number) else { return };
        if let Some(to) = attempt.connector.transmit(now, &mut OsRandom, self.batch.header_buffer()) {
            send(&mut self.batch, &device.socket, to);
        }
        let due = attempt.connector.deadline();
        if let Some(before) = std::mem::replace(&mut attempt.due, due) {
            self.due.remove(&(before, number));
        }
        self.due.extend(due.map(|due| (due, number)));
    }

    fn remove(&mut self, number: u32) -> Option<ConnectAttempt> {
        let attempt = self.attempts.remove(&number)?;
        if let Some(due) = attempt.due {
            self.due.remove(&(due, number));
        }
        Some(attempt)
    }

    /// Handles a received packet of the attempt with this connection number.
    pub(super) fn receive(
        &mut self,
        device: &Device,
        now: Nanos,
        number: u32,
        from: SocketAddr,
        packet: &[u8],
    ) -> Option<CmAction> {
        let outcome = self.attempts.get_mut(&number)?.connector.receive(now, packet, from, &mut OsRandom);
        self.after(device, now, number, outcome)
    }

    fn after(&mut self, device: &Device, now: Nanos, number: u32, outcome: Option<ConnectOutcome>) -> Option<CmAction> {
        let Some(outcome) = outcome else {
            self.transmit(device, now, number);
            return None;
        };
        let ConnectAttempt { connector, local, .. } = self.remove(number)?;
        let server = connector.server;
        match outcome {
            ConnectOutcome::Established { agreed, private_data } => {
                let established = AgreedConnection { local, agreed, private_data };
                Some(CmAction::Establish(established, Vec::new()))
            }
            ConnectOutcome::Ended(event, private_data, reason) => {
                if event == ConnectionEvent::Unreachable {
                    let has_key = device.settings.key_file.is_some();
                    let key = if has_key { " (hosts with another key, or without a key, do not reply)" } else { "" };
                    log::info!(
                        "{}: connect to {server} ended with UNREACHABLE: no reply{key}; check the address, the port and firewalls",
                        device.name
                    );
                } else if let Some(reason) = reason {
                    log::info!("{}: connect to {server}: {reason}", device.name);
                }
                Some(CmAction::End(local, event, private_data))
            }
        }
    }

    /// Sends the packets that are due. If an attempt has ended, stops and returns the action for it. The caller repeats
    /// the call until it returns `None`.
    pub(super) fn poll(&mut self, device: &Device, now: Nanos) -> Option<CmAction> {
        if let Some(local) = self.refused.pop_front() {
            return Some(CmAction::End(local, ConnectionEvent::Rejected, Vec::new()));
        }
        while let Some((_, number)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let outcome = self.attempts.get_mut(&number)?.connector.on_time(now);
            let action = self.after(device, now, number, outcome);
            if action.is_some() {
                return action;
            }
        }
        None
    }

    /// Handles an ICMP "port unreachable" message. If it ends an attempt, returns the action for that attempt.
    pub(super) fn port_closed(&mut self, device: &Device, now: Nanos, error: &DeliveryError) -> Option<CmAction> {
        let is_of_server = |attempt: &ConnectAttempt| attempt.connector.server.ip() == error.to.ip();
        let numbers: Vec<u32> =
            self.attempts.iter().filter(|(_, attempt)| is_of_server(attempt)).map(|(number, _)| *number).collect();
        numbers.into_iter().find_map(|number| {
            let outcome = self.attempts.get_mut(&number)?.connector.port_closed(now, error.to, &error.quote);
            self.after(device, now, number, outcome)
        })
    }

    /// Cancels an attempt, and notifies the peer if a request was sent. Returns false if there is no such attempt.
    pub(super) fn withdraw(&mut self, device: &Device, number: u32) -> bool {
        if let Some(place) = self.refused.iter().position(|local| local.number == number) {
            self.refused.remove(place);
            return true;
        }
        let Some(mut attempt) = self.remove(number) else { return false };
        let to = attempt.connector.withdraw(&mut OsRandom, self.batch.header_buffer());
        send(&mut self.batch, &device.socket, to);
        true
    }
}
