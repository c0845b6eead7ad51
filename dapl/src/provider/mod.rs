//! The provider interface, between the object layer and a transport.
//!
//! The object layer calls down into a [`Provider`], which is also a [`MemoryProvider`] and a [`QueueProvider`], and
//! into the objects that it creates: protection domains, memory regions and windows, completion queues, queue pairs
//! with their [`Connection`], shared receive queues, listeners, requests. A provider reports up through three sinks:
//! [`CmSink`], [`CqSink`] and [`SrqSink`]. Every `.so` contains one provider, so all calls are static.
//!
//! Rules for every transport:
//! - **Sinks are called from a thread of the provider, without any lock that a down-call takes, and never from inside a
//!   down-call.** The object layer may hold the EP's and the EVD's lock while it calls down.
//! - Down-calls do not block on the network or on a peer.
//! - For one [`ConnId`] the provider reports either one failure, or `Established` and later one event that ends the
//!   connection. No other event follows.
//! - No receive of a connection completes before its `Established` was reported.
//! - Every accepted work request completes exactly once, in post order per queue, and its completion is in the CQ
//!   before the end of the connection is reported. Successful requests marked `suppress` complete without a
//!   [`Completion`].
//! - A work request that fails other than by flush ends the connection: all other work requests are flushed and
//!   `Broken` is reported, whether or not the consumer polls.

mod connect;
mod memory;
mod queues;
mod unsupported;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::connect::{
    CmSink, ConnId, ConnRequest, ConnectSpec, Connection, ConnectionEvent, PeerAddress, RequestInfo,
};
pub use self::memory::{
    Access, Bind, BindWr, KeptObject, MemoryProvider, MemoryRegion, MemoryWindow, Region, SharedCookie,
};
pub use self::queues::{
    CompletionQueue, CqSink, Outstanding, QpSpec, QueuePair, QueueProvider, SharedReceiveQueue, SharedRecvs, SrqSink,
    SrqSpec,
};
pub use self::unsupported::Unsupported;
pub use self::work::{
    ATOMIC_SIZE, Completion, Extensions, Op, ReceivedOp, Remote, Segment, SendWr, Status, Token, Work,
};
use crate::error::Result;
use crate::runtime::handle::ObjectId;

/// An interface adapter. One provider type per library.
pub trait Provider: QueueProvider + Sized {
    /// A listener; dropping it stops listening and frees the qualifier. Requests that were already reported can still
    /// be answered.
    type Listener: Send + Sync;
    /// A connection request; dropping it unanswered rejects it.
    type Request: ConnRequest<Qp = Self::Qp>;

    /// Name for logs and attributes, such as "sm".
    const NAME: &'static str;

    /// Opens the interface adapter. Errors are logged where they are detected, with object, cause and remedy.
    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self>;

    /// Limits of this IA; constant while it is open.
    fn limits(&self) -> &Limits;

    /// Provider attributes for `provider_specific_attr`, as name and value, such as the RMA method in use.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The provider's own counters of this IA.
    fn counts(&self) -> Vec<NamedCount> {
        Vec::new()
    }

    /// The address that peers connect to.
    fn address(&self) -> SocketAddr;

    /// Starts listening. Requests may be reported, for `id`, before this returns.
    ///
    /// Errors: `ConnQualTaken` if another listener has the qualifier.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Self::Listener>;

    /// Closes the IA abruptly. Peers are disconnected, and threads are joined. On return no event is reported any more.
    fn close(&self);
}

/// Name of the provider attribute with the maximum number of bytes of a message that one packet carries. Programs of
/// DAT 2.0 choose buffer sizes by this number.
pub const TRANSPORT_MTU: &str = "DAT_IB_TRANSPORT_MTU";

/// A counter, or a level that can fall, of a provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamedCount {
    /// Name for users; at most 47 bytes.
    pub name: &'static str,
    /// Unit, such as `bytes`; empty for counts.
    pub unit: &'static str,
    pub value: u64,
    /// True for a level, such as the congestion window, which can rise and fall. The value of a counter only grows.
    pub is_level: bool,
}

/// Name and parameters of the interface adapter to open.
#[derive(Clone, Copy, Debug)]
pub struct IaSpec<'a> {
    /// Name in the registry.
    pub name: &'a str,
    /// The `ia_params` field of the dat.conf line.
    pub params: &'a str,
    /// File name of the library in the dat.conf line, which may be one of several links to this library.
    pub library: &'a str,
}

/// Limits of an IA: the source of `DAT_IA_ATTR` and of the checks on EP attributes. Counts fit in 31 bits.
#[derive(Clone, Debug)]
pub struct Limits {
    pub max_eps: u32,
    /// Work requests per EP and direction.
    pub max_dtos: u32,
    pub max_evds: u32,
    pub max_evd_qlen: u32,
    pub max_iov: u32,
    pub max_lmrs: u32,
    pub max_lmr_size: u64,
    pub max_pzs: u32,
    /// Largest message, in bytes.
    pub max_message: u64,
    /// Largest RDMA transfer, in bytes.
    pub max_rdma: u64,
    pub max_rmrs: u32,
    pub max_srqs: u32,
    /// RDMA reads of the peer that may be outstanding per EP.
    pub max_reads_in: u32,
    /// RDMA reads of an EP that may be outstanding.
    pub max_reads_out: u32,
    /// Maximum number of bytes of private data in a connect.
    pub private_data_connect: usize,
    /// Maximum number of bytes of private data in a connect by a consumer of DAT 1.2. Such a consumer sees no more
    /// bytes of a request either (spec/endpoints 9.1).
    pub private_data_connect_1_2: usize,
    /// Maximum number of bytes of private data in an accept.
    pub private_data_accept: usize,
    /// Maximum number of bytes of private data in a reject.
    pub private_data_reject: usize,
    /// Operations beyond sends, reads and writes.
    pub extensions: Extensions,
    pub vendor: String,
    /// Major and minor version.
    pub hardware_version: (u32, u32),
    /// Major and minor version.
    pub firmware_version: (u32, u32),
}
