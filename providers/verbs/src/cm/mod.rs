//! Connection managers: connect two queue pairs, by one of three protocols.
//!
//! A manager handles addresses and messages; a queue pair handles its states. A connecting queue pair holds a
//! [`CmConnection`]. The manager reports to it from the engine's thread only: [`QpCore::raise`] when the peer's
//! parameters are known, [`QpCore::established`], [`QpCore::over`]. The consumer may remove the connection at any time;
//! later reports have no effect. No manager blocks.
#![forbid(unsafe_code)]

pub(crate) mod name_service;
mod none;
mod rdma;
pub(crate) mod request;
mod socket;
mod start;

use std::any::Any;
use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{ConnId, ConnectSpec};
use dapl::runtime::handle::ObjectId;

use crate::qp::QpCore;
pub(crate) use start::start;

/// Stops listening when dropped.
pub(crate) type Listening = Box<dyn Any + Send + Sync>;

/// The connection manager of an IA.
pub(crate) trait Manager: Send + Sync {
    /// Starts listening; requests go to [`request::arrived`] with `id`. Errors: `ConnQualTaken`.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Listening>;
    /// Starts an attempt. Attaches its connection to the queue pair (`QpCore::attach`) before any event of it is
    /// reported.
    ///
    /// Errors: `InvalidAddress(Unreachable)` if the peer is known at once to be unreachable.
    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Called when the IA closes, after every link has ended. Waits a short time for peers to confirm, and releases
    /// everything. The engine still runs.
    fn close(&self);
}

/// An unanswered connection request. Dropping it rejects it as [`Refusal::NoListener`].
pub(crate) trait Waiting: Any + Send + Sync {
    /// Accepts into a queue pair: attaches a connection to it, and reports the result later. A requester that has left
    /// is not an error.
    ///
    /// Errors: the queue pair cannot be used; the peer is then rejected.
    fn accept(self: Box<Self>, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Rejects the request.
    fn refuse(self: Box<Self>, by: Refusal);
    /// Rejects the request as its consumer's decision, with data for the peer's consumer as far as the manager carries them.
    fn reject(self: Box<Self>, _private_data: &[u8]) {
        self.refuse(Refusal::Consumer);
    }
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// The consumer rejected the request.
    Consumer,
    /// The listener was freed, or its queue is full.
    NoListener,
}
