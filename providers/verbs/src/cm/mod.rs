//! Connection managers: how two queue pairs find each other and learn that they are connected.
//!
//! A manager knows addresses and messages; a queue pair knows its states. Whoever connects gives the queue pair a [`Link`];
//! from then on the manager reports to the queue pair, from the engine's thread only: [`Core::raise`] when the peer is known,
//! [`Core::established`], [`Core::over`]. The consumer may take the link away at any moment: what the manager says of it
//! afterwards has no effect. No manager blocks, and none looks into a queue pair's queues.
#![forbid(unsafe_code)]

pub(crate) mod name_service;
mod none;
pub(crate) mod rdma;
pub(crate) mod request;
mod socket;

use std::any::Any;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{ConnId, ConnectSpec};
use dapl::runtime::handle::ObjectId;

use crate::device::Device;
use crate::qp::Core;
use crate::qp::state::Change;
use crate::settings::ManagerKind;

/// The manager that the settings ask for.
pub(crate) fn start(device: &Arc<Device>) -> Result<Arc<dyn Manager>> {
    Ok(match device.knobs.manager {
        ManagerKind::Rdma => {
            let address = device.address.ok_or_else(|| {
                log::error!("{}: no address; rdma_cm needs one on the port's network device", device.name);
                Error::Exhausted(Resource::Device)
            })?;
            rdma::Rdma::new(device, address)?
        }
        ManagerKind::Socket => socket::Socket::new(device),
        ManagerKind::None => none::Alone::new(device),
    })
}

/// Stops listening when dropped.
pub(crate) type Listening = Box<dyn Any + Send + Sync>;

/// The connection manager of an IA.
pub(crate) trait Manager: Send + Sync {
    /// Starts listening; requests go to `Device::arrived` with `id`. Errors: `ConnQualTaken`.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listening>;
    /// Starts an attempt, and attaches its link to the queue pair (`Core::attach`) before anything is reported of it.
    ///
    /// Errors: `InvalidAddress(Unreachable)` for what can be seen at once.
    fn connect(&self, qp: &Arc<Core>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// The IA closes: every link has ended. Says goodbye to peers that have not confirmed, for a short time, and lets go
    /// of all there is. The engine still runs.
    fn close(&self);
}

/// A connection or attempt, as its queue pair holds it.
pub(crate) trait Link: Send + Sync {
    /// Ends it and tells the peer, whatever state it is in. From any thread; does not block, reports nothing.
    fn end(&self);
    /// The device has got a message on a queue pair that is not confirmed to be connected: its confirmation may be lost.
    fn peer_is_there(&self) {}
}

/// A request of a peer's, not answered yet. Dropped, it is refused as [`Refusal::Nobody`].
pub(crate) trait Waiting: Any + Send + Sync {
    /// Accepts into a queue pair: attaches a link to it, reports later. A requester that has left is no error.
    ///
    /// Errors: the queue pair cannot take it; the peer is refused.
    fn accept(self: Box<Self>, qp: &Arc<Core>, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Says no.
    fn refuse(self: Box<Self>, by: Refusal);
}

/// Who says no.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// The consumer.
    Consumer,
    /// Nobody listens any more, or there is no room.
    Nobody,
}

/// What takes a queue pair from INIT to RTS.
pub(crate) struct Path {
    /// INIT once more, where the manager knows better than we at creation (partition, port).
    pub(crate) init: Option<Change>,
    pub(crate) to_receive: Change,
    pub(crate) to_send: Change,
}
