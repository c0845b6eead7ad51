//! What there is for the engine's thread to do. Anybody may ring its bell; only the engine answers.
//!
//! The queue is bounded by what there is: each completion queue and each connection has at most a few jobs in it. Nothing is
//! done here.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::sync::Arc;

use dapl::provider::{ConnId, ConnectionEvent};
use dapl::runtime::handle::ObjectId;

/// The engine's.
pub(crate) type Bell = dapl_software::engine::queue::Bell<Job>;

/// Something that the layer above wants to hear of.
pub(crate) trait Tells: Debug + Send + Sync {
    /// Tells it.
    fn notify(&self);
}

/// A piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// An armed completion queue has something, or a shared receive queue too little.
    Notify(Arc<dyn Tells>),
    /// The receives of this EP have passed its soft watermark.
    ManyRecvs(ObjectId),
    /// Report this of a connection or attempt.
    Event(ConnId, ConnectionEvent),
    /// Packets of set-ups wait, or one's deadline has changed.
    Setups,
    /// Somebody asks for more, or for an earlier look: only the waking counts.
    Look,
    /// The end of the IA.
    Stop,
}
