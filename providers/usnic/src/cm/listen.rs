//! Listeners. Requests and path probes arrive at the well-known port, which several processes of one user may share.
//! The kernel gives a packet to any of these processes. The receiving process forwards a request to the process that
//! listens on the qualifier. It replies to a path probe itself, but not if there is a pre-shared key.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::runtime::handle::ObjectId;
use rustix::event::epoll;

use super::Cm;
use super::action::{CmAction, send};
use crate::device::{self, Device};
use crate::net::errors;
use crate::net::handover::{ForwardedRequest, HandoverSocket};
use crate::net::receive::ReceiveBatch;
use crate::net::reuseport;
use crate::net::send::SendBatch;
use crate::net::socket::{Socket, SocketConfig};
use crate::proto::echo;
use crate::proto::setup::packets;

/// Size in bytes of the receive buffer of the well-known port. It has space for some thousand requests.
const REQUEST_BUFFER: usize = 4 << 20;
/// `read_requests` stops reading when it has this number of requests. Without the limit, a flood of requests would
/// delay established connections.
const MAX_REQUESTS: usize = 256;

#[derive(Default)]
pub(super) struct Listeners {
    /// Listeners by qualifier. Each has the Unix socket to which other processes forward requests, or `None` if this
    /// socket could not be created.
    by_qual: HashMap<u64, (ObjectId, Option<HandoverSocket>)>,
    /// Socket of the well-known port. It is open while there is a listener.
    well_known: Option<Arc<Socket>>,
    /// Reused by all calls to avoid allocations.
    received: Option<ReceiveBatch>,
    batch: SendBatch,
}

impl Listeners {
    pub(super) fn find(&self, qual: u64) -> Option<ObjectId> {
        self.by_qual.get(&qual).map(|(id, _)| *id)
    }
}

/// A listener. Dropping it ends listening. Requests that were already reported can still be accepted or rejected.
pub struct Listener {
    cm: Arc<Cm>,
    qual: u64,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.cm.state.lock();
        let listeners = &mut state.listeners;
        let gone = listeners.by_qual.remove(&self.qual);
        let well_known = if listeners.by_qual.is_empty() { listeners.well_known.take() } else { None };
        drop(state);
        drop((gone, well_known));
    }
}

impl Cm {
    /// Listens on `qual`. Errors: `ConnQualTaken`, or an error that this function logs.
    pub(crate) fn listen(self: &Arc<Self>, qual: u64, id: ObjectId) -> Result<Listener> {
        let handover = self.open_handover(qual)?;
        let mut state = self.state.lock();
        if state.listeners.find(qual).is_some() {
            return Err(Error::ConnQualTaken);
        }
        if state.listeners.well_known.is_none() {
            state.listeners.well_known = Some(Arc::new(self.open_well_known()?));
        }
        state.listeners.by_qual.insert(qual, (id, handover));
        Ok(Listener { cm: self.clone(), qual })
    }

    /// Opens the Unix socket of a listener. Returns `None` if the socket cannot be created, for example because the
    /// directory of listeners is not usable. Other processes then cannot forward requests to this listener.
    ///
    /// Errors: `ConnQualTaken` if this process or another process of this user listens on `qual`; or an error of epoll.
    fn open_handover(&self, qual: u64) -> Result<Option<HandoverSocket>> {
        let own = self.device.address();
        match self.listener_dir.open(own, qual) {
            Ok(socket) => {
                self.watch(&socket)?;
                Ok(Some(socket))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::ConnQualTaken),
            Err(error) => {
                log::warn!(
                    "{}: cannot create a local socket for the listener on qualifier {qual} ({error}): other processes of this user on UDP \
                     port {} cannot forward its requests; allow more open files (ulimit -n), or set DAPL_DIR to a \
                     directory of this user",
                    self.device.name,
                    own.port()
                );
                Ok(None)
            }
        }
    }

    fn open_well_known(&self) -> Result<Socket> {
        let device = &self.device;
        let config = SocketConfig {
            address: device.address(),
            ports: None,
            is_shared: true,
            receive_buffer: REQUEST_BUFFER,
            send_buffer: 1 << 16,
            gso: false,
            gro: false,
        };
        let socket = Socket::open(&config).map_err(|error| {
            let hint =
                " (the port is in use by another user or program; set `port` to the same free port on all hosts)";
            let hint = if error.kind() == io::ErrorKind::AddrInUse { hint } else { "" };
            cannot_listen(device, &format!("listen on UDP port {}{hint}", device.settings.port), &error)
        })?;
        if let Err(error) = reuseport::choose_by_length(&socket, packets::REQUEST) {
            log::info!(
                "{}: cannot attach a socket filter to UDP port {}: {error}; a stopped process can delay connects to other processes \
                 on that port",
                device.name,
                device.settings.port
            );
        }
        self.watch(&socket)?;
        Ok(socket)
    }

    fn watch(&self, socket: &impl AsFd) -> Result<()> {
        epoll::add(&self.request_sockets, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|error| cannot_listen(&self.device, "watch for requests", &error.into()))
    }

    /// Returns whether this process, or another process of this user, listens on `qual`.
    pub(super) fn has_listener(&self, qual: u64) -> bool {
        self.state.lock().listeners.find(qual).is_some() || self.listener_dir.has_listener(self.device.address(), qual)
    }

    /// Reads and handles the requests that have arrived.
    pub(super) fn read_requests(self: &Arc<Self>) {
        let mut requests = Vec::new();
        let well_known = {
            let listeners = &mut self.state.lock().listeners;
            for handover in listeners.by_qual.values().filter_map(|(_, handover)| handover.as_ref()) {
                let left = MAX_REQUESTS.saturating_sub(requests.len());
                requests.extend(std::iter::from_fn(|| handover.receive()).take(left));
            }
            listeners.read_well_known(&mut requests);
            listeners.well_known.clone()
        };
        for forwarded in requests {
            if let Some(action) = self.forward_or_handle(forwarded) {
                self.execute(action);
            }
        }
        if let Some(socket) = well_known.filter(|socket| socket.has_errors()) {
            // Empties the error queue of the socket. The errors need no handling: this socket sends only replies to
            // path probes. Replies to requests are sent from the data socket.
            errors::read(&socket, |_| {});
        }
    }

    /// Replies to a path probe. Forwards a request to another process that listens on its qualifier. Handles the
    /// request here if this process listens, or if no process does.
    fn forward_or_handle(&self, forwarded: ForwardedRequest) -> Option<CmAction> {
        let mut state = self.state.lock();
        if !self.setup.guard.is_sealed() && state.listeners.reply_to_probe(&forwarded) {
            return None;
        }
        let qual = packets::request_head(&forwarded.request)?.qual();
        let listener = state.listeners.find(qual);
        if listener.is_none() && self.listener_dir.forward(self.device.address(), qual, &forwarded) {
            return None;
        }
        state.passive.handle_request(&self.device, device::now(), forwarded.from, &forwarded.request, listener)
    }
}

fn cannot_listen(device: &Device, what: &str, error: &io::Error) -> Error {
    log::error!(
        "{}: {}: cannot {what}: {error}; the call fails with DAT_INSUFFICIENT_RESOURCES; check the setting port and \
         the limits of open files (ulimit -n) and epoll watches (sysctl fs.epoll.max_user_watches)",
        device.name,
        device.interface.address.ip()
    );
    Error::Exhausted(Resource::Device)
}

impl Listeners {
    fn read_well_known(&mut self, requests: &mut Vec<ForwardedRequest>) {
        let Some(socket) = &self.well_known else { return };
        let received = self.received.get_or_insert_with(ReceiveBatch::new);
        while requests.len() < MAX_REQUESTS {
            match received.receive(socket) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => continue,
            }
            for (from, packets) in received.batches() {
                requests.extend(packets.map(|packet| ForwardedRequest { from, request: packet.to_vec() }));
            }
        }
    }

    /// Replies to a path probe. Returns false if the packet is no path probe, or the well-known port is closed. Called
    /// only without a pre-shared key, because an adapter with a key never replies to unauthenticated packets.
    fn reply_to_probe(&mut self, forwarded: &ForwardedRequest) -> bool {
        let Some(socket) = &self.well_known else { return false };
        let is_answered = echo::reply(&forwarded.request, self.batch.header_buffer());
        if is_answered {
            send(&mut self.batch, socket, forwarded.from);
        }
        is_answered
    }
}
