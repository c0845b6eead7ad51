//! Connection managers: each connects two queue pairs by its own protocol.
//!
//! A connection manager handles addresses and messages; a queue pair handles its states. A queue pair with a connection
//! or attempt refers to a [`CmConnection`]. The manager calls `CmQueuePair::bring_up` when the peer's parameters are
//! known. On the engine thread, it calls `established` and `report_end` of the queue pair. The consumer may end the
//! connection at any time; later calls of the manager for this connection have no effect. Only [`Manager::close`] may
//! wait.
#![forbid(unsafe_code)]

pub(crate) mod name_service;
mod none;
mod rdma;
pub(crate) mod request;
mod socket;
mod start;

use std::any::Any;
use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectSpec};
use dapl::runtime::handle::ObjectId;

use crate::qp::QpCore;
pub(crate) use start::start;

/// Stops listening when dropped.
pub(crate) struct ListenGuard(Option<Box<dyn FnOnce() + Send + Sync>>);

impl ListenGuard {
    fn new(stop: impl FnOnce() + Send + Sync + 'static) -> Self {
        ListenGuard(Some(Box::new(stop)))
    }
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|stop| stop());
    }
}

/// The connection manager of an IA.
pub(crate) trait Manager: Send + Sync {
    /// Starts listening on a connection qualifier. Passes requests to [`request::arrived`] with `id`. Errors:
    /// `ConnQualTaken` if the qualifier is in use, and errors that depend on the manager.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<ListenGuard>;
    /// Starts an attempt to connect. Attaches its `CmConnection` to the queue pair (`QpCore::attach`) before it reports
    /// an event.
    ///
    /// Errors: `InvalidAddress` if the manager cannot use this kind of address, or if the call itself finds that the
    /// peer is unreachable; `Internal` if the queue pair has a connection; others, such as `Exhausted`, depend on the
    /// manager.
    fn connect(&self, qp: &Arc<QpCore>, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()>;
    /// Called when the IA closes, after all connections have ended and all listeners were dropped, while the engine
    /// still runs. Releases all resources. May wait a limited time until peers have confirmed disconnects.
    fn close(&self) {}
}

/// A connection manager's part of a connection request.
pub(crate) trait IncomingRequest: Any + Send + Sync {
    /// Accepts the request: attaches a connection to the queue pair. Reports the result later, even if the requester
    /// has given up.
    ///
    /// Errors: the queue pair cannot be used, or the private data are too long. The request is then rejected.
    fn accept(self: Arc<Self>, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()>;
    /// Rejects the request as the consumer's decision, and sends the private data if the manager's protocol supports
    /// it. `None`: for another reason.
    fn reject(&self, private_data: Option<&[u8]>);
}

/// A connection request that the consumer has neither accepted nor rejected. Dropping it rejects it, but not as the
/// consumer's decision: the listener was freed, its queue is full, or the consumer has freed the request.
pub(crate) struct WaitingRequest(Option<Arc<dyn IncomingRequest>>);

impl WaitingRequest {
    fn new(request: Arc<dyn IncomingRequest>) -> Self {
        WaitingRequest(Some(request))
    }

    /// Accepts the request, as [`IncomingRequest::accept`] does.
    fn accept(mut self, qp: &Arc<QpCore>, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.0.take().ok_or(Error::Internal)?.accept(qp, private_data, conn)
    }

    /// Rejects the request as the consumer's decision.
    fn reject(mut self, private_data: &[u8]) {
        self.0.take().into_iter().for_each(|request| request.reject(Some(private_data)));
    }

    /// Returns the connection manager's request, which is not rejected any more.
    #[cfg(test)]
    fn into_inner<T: IncomingRequest>(mut self) -> Arc<T> {
        let request: Arc<dyn Any + Send + Sync> = self.0.take().unwrap();
        request.downcast().unwrap()
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|request| request.reject(None));
    }
}
