//! Who listens, and how requests come to whom they are for: at the well-known port of the IA, or passed on by another process
//! of this user that has the same port.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::runtime::handle::ObjectId;
use rustix::event::epoll;

use super::{Act, Setups};
use crate::device::{self, Device};
use crate::net::errors;
use crate::net::handover::{HandoverSocket, Passed};
use crate::net::receive::Inbox;
use crate::net::reuseport;
use crate::net::socket::{Socket, Wanted};
use crate::proto::echo;
use crate::proto::setup::packets;

/// Bytes of buffer for requests: some thousands of them.
const BUFFER: usize = 4 << 20;
/// Requests that are read in one go: then others have their turn.
const AT_ONCE: usize = 256;

/// The listeners of an IA.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// Without a local socket where this user's directory of listeners cannot be used.
    by_qual: HashMap<u64, (ObjectId, Option<HandoverSocket>)>,
    /// Open while somebody listens.
    well_known: Option<Arc<Socket>>,
    /// Kept for its rooms.
    inbox: Option<Inbox>,
}

impl Listeners {
    pub(super) fn find(&self, qual: u64) -> Option<ObjectId> {
        self.by_qual.get(&qual).map(|(id, _)| *id)
    }
}

/// A listener; dropped, it listens no more. Requests that were reported stay answerable.
#[derive(Debug)]
pub(crate) struct Listening {
    device: Arc<Device>,
    qual: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut setups = self.device.setups.lock();
        let listeners = &mut setups.listeners;
        let gone = listeners.by_qual.remove(&self.qual);
        let well_known = if listeners.by_qual.is_empty() { listeners.well_known.take() } else { None };
        drop(setups);
        drop((gone, well_known));
    }
}

impl Device {
    /// Down-call. Errors: `ConnQualTaken`; what else there is, is logged here.
    pub(crate) fn listen(&self, qual: u64, id: ObjectId) -> Result<Listening> {
        let device = self.me.upgrade().ok_or(Error::Internal)?;
        let own = self.address();
        let handover = self.open_handover(own, qual)?;
        let mut setups = self.setups.lock();
        if setups.listeners.find(qual).is_some() {
            return Err(Error::ConnQualTaken);
        }
        if setups.listeners.well_known.is_none() {
            setups.listeners.well_known = Some(Arc::new(self.open_well_known()?));
        }
        setups.listeners.by_qual.insert(qual, (id, handover));
        Ok(Listening { device, qual })
    }

    /// `None`: this user's processes cannot pass requests on to each other, which is no reason not to listen.
    fn open_handover(&self, own: SocketAddr, qual: u64) -> Result<Option<HandoverSocket>> {
        match self.listener_dir.open(own, qual) {
            Ok(socket) => {
                self.watch(&socket)?;
                Ok(Some(socket))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::ConnQualTaken),
            Err(error) => {
                log::warn!(
                    "{}: no local socket for the listener on qualifier {qual} ({error}): other processes of this user on UDP \
                     port {} cannot pass its requests on; DAPL_DIR names a directory for such sockets",
                    self.name,
                    own.port()
                );
                Ok(None)
            }
        }
    }

    fn open_well_known(&self) -> Result<Socket> {
        let wanted = Wanted {
            address: {
                let mut address = self.interface.address;
                address.set_port(self.knobs.port);
                address
            },
            ports: None,
            is_shared: true,
            receive_buffer: BUFFER,
            send_buffer: 1 << 16,
            gso: false,
            gro: false,
        };
        let socket = Socket::open(&wanted).map_err(|error| {
            let hint = "; it is another user's, or of a program that does not share it: set `port` on all hosts";
            let hint = if error.kind() == io::ErrorKind::AddrInUse { hint } else { "" };
            self.cannot_listen(&format!("listen on UDP port {}{hint}", self.knobs.port), &error)
        })?;
        if let Err(error) = reuseport::choose_by_length(&socket, packets::REQUEST) {
            log::info!("{}: a stopped process may keep requests from others on its port: {error}", self.name);
        }
        self.watch(&socket)?;
        Ok(socket)
    }

    fn watch(&self, socket: &impl AsFd) -> Result<()> {
        epoll::add(&self.doors, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|error| self.cannot_listen("watch for requests", &error.into()))
    }

    fn cannot_listen(&self, what: &str, error: &io::Error) -> Error {
        log::error!("{}: {}: cannot {what}: {error}", self.name, self.interface.address.ip());
        Error::Exhausted(Resource::Device)
    }

    /// This process listens on it, or another one of this user.
    pub(super) fn has_listener(&self, qual: u64) -> bool {
        let own = self.address();
        self.setups.lock().listeners.find(qual).is_some() || self.listener_dir.is_open(own, qual)
    }
}

/// Reads what has come to the doors.
pub(super) fn read(device: &Arc<Device>) {
    let mut requests = Vec::new();
    let well_known = {
        let mut setups = device.setups.lock();
        let listeners = &mut setups.listeners;
        for handover in listeners.by_qual.values().filter_map(|(_, handover)| handover.as_ref()) {
            let left = AT_ONCE.saturating_sub(requests.len());
            requests.extend(std::iter::from_fn(|| handover.receive()).take(left));
        }
        listeners.read_well_known(&mut requests);
        listeners.well_known.clone()
    };
    for passed in requests {
        let act = device.setups.lock().sort(device, passed);
        if let Some(act) = act {
            act.run(device);
        }
    }
    if let Some(socket) = well_known.filter(|socket| socket.has_errors()) {
        // Answers leave by another socket, so nothing of ours is among these.
        errors::read(&socket, |_| {});
    }
}

impl Listeners {
    fn read_well_known(&mut self, requests: &mut Vec<Passed>) {
        let Some(socket) = &self.well_known else { return };
        let inbox = self.inbox.get_or_insert_with(Inbox::new);
        while requests.len() < AT_ONCE {
            match inbox.receive(socket) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => continue,
            }
            for (from, train) in inbox.trains() {
                requests.extend(train.map(|packet| Passed { from, request: packet.to_vec() }));
            }
        }
    }
}

impl Setups {
    /// A request for a qualifier of another process is passed on to it.
    fn sort(&mut self, device: &Device, passed: Passed) -> Option<Act> {
        if self.echo(&passed) {
            return None;
        }
        let qual = packets::asking(&passed.request)?.qual();
        if self.listeners.find(qual).is_none() && device.listener_dir.pass(device.address(), qual, &passed) {
            return None;
        }
        self.requested(device, device::now(), passed.from, &passed.request)
    }

    /// Answers who only asks what the path carries. Whether a host with a key is there is nobody's business.
    fn echo(&mut self, passed: &Passed) -> bool {
        let Some(socket) = self.listeners.well_known.as_ref().filter(|_| !self.setup.has_key()) else { return false };
        let is_answered = echo::answer(&passed.request, self.batch.own());
        if is_answered {
            Self::send(&mut self.batch, socket, passed.from);
        }
        is_answered
    }
}
