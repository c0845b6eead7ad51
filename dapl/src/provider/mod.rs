//! The provider interface, between the object layer and a transport.
//!
//! The object layer calls a [`Provider`], which is also a [`MemoryProvider`] and a [`QueueProvider`], and the objects
//! that it creates: protection domains, memory regions and windows, completion queues, queue pairs with their
//! [`Connection`], shared receive queues, listeners, requests. These calls are down-calls. A provider reports to the
//! object layer through three sinks: [`CmSink`], [`CqSink`] and [`SrqSink`]. Each library contains one provider, so all
//! down-calls are statically dispatched.
//!
//! Rules for every transport:
//! - **A sink is called from a thread of the provider, never from inside a down-call, and never with a lock held that a
//!   down-call acquires.** The object layer may hold the locks of the EP and the EVD during a down-call.
//! - Down-calls do not block on the network or on a peer. Only [`Provider::close`] may wait a few seconds until peers
//!   have confirmed the end of their connections.
//! - For one [`ConnId`] the provider reports either one failure, or `Established` and later one event that ends the
//!   connection. No other event follows.
//! - No receive of a connection completes before its `Established` was reported.
//! - Every accepted work request completes exactly once, in post order per queue, and its completion is in the CQ
//!   before the end of the connection is reported. Successful requests marked `suppress` complete without a
//!   [`Completion`].
//! - If a work request fails other than by a flush, the connection ends: all other work requests are flushed and
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
    ArmMode, CompletionQueue, CqSink, Outstanding, QpSpec, QueuePair, QueueProvider, SharedReceiveQueue, SharedRecvs,
    SrqSink, SrqSpec,
};
pub use self::unsupported::Unsupported;
pub use self::work::{
    ATOMIC_SIZE, Completion, Extensions, Op, ReceivedOp, Remote, Segment, SendWr, Status, Token, Work,
};
use crate::error::Result;
use crate::runtime::handle::ObjectId;

/// An interface adapter. A library has one type that implements this trait.
pub trait Provider: QueueProvider + Sized {
    /// A listener. Dropping it stops listening and frees the qualifier. Requests that were already reported can still
    /// be accepted or rejected.
    type Listener: Send + Sync;
    /// A connection request. Dropping it unanswered rejects it.
    type Request: ConnRequest<Qp = Self::Qp>;

    /// Name for logs and attributes, such as "sm".
    const NAME: &'static str;

    /// Opens the interface adapter. The provider logs each error where it detects it, with object, cause and remedy.
    fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Self>>) -> Result<Self>;

    /// Limits of this IA; constant while it is open.
    fn limits(&self) -> &Limits;

    /// Provider attributes for `provider_specific_attr`: pairs of name and value.
    fn named_attributes(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The provider's own counters of this IA.
    fn counts(&self) -> Vec<NamedCount> {
        Vec::new()
    }

    /// The address that peers connect to.
    fn address(&self) -> SocketAddr;

    /// Starts to listen. Requests for `id` may be reported before this returns.
    ///
    /// Errors: `ConnQualTaken` if another listener has the qualifier.
    fn listen(&self, qual: u64, id: ObjectId) -> Result<Self::Listener>;

    /// Closes the IA abruptly: disconnects peers and joins the provider's threads, except the calling thread. No event
    /// is reported after this returns.
    fn close(&self);
}

/// Name of the provider attribute for the maximum number of message bytes in one packet. Programs of DAT 2.0 choose
/// buffer sizes by it.
pub const TRANSPORT_MTU: &str = "DAT_IB_TRANSPORT_MTU";

/// A counter or a level of a provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamedCount {
    /// Name for users; at most 47 bytes.
    pub name: &'static str,
    /// Unit, such as `bytes`; empty for counts.
    pub unit: &'static str,
    pub value: u64,
    /// True for a level, such as the congestion window, which can rise and fall; false for a counter, which only grows.
    pub is_level: bool,
}

/// Name and parameters of the interface adapter to open.
#[derive(Clone, Copy, Debug)]
pub struct IaSpec<'a> {
    /// IA name in the registry.
    pub name: &'a str,
    /// The `ia_params` field of the dat.conf line.
    pub params: &'a str,
    /// Library file name in the dat.conf line. It may be one of several links to this library.
    pub library: &'a str,
}

/// Limits of an IA: the source of `DAT_IA_ATTR` and of the checks on EP attributes. Counts fit in 31 bits.
#[derive(Clone, Debug)]
pub struct Limits {
    pub max_eps: u32,
    /// Maximum number of work requests per EP, for receives and for requests separately.
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
    /// Maximum number of outstanding RDMA reads of the peer per EP.
    pub max_reads_in: u32,
    /// Maximum number of outstanding RDMA reads of an EP.
    pub max_reads_out: u32,
    /// Maximum number of bytes of private data in a connect.
    pub private_data_connect: usize,
    /// Maximum number of bytes of private data in a connect by a consumer of DAT 1.2. Such a consumer also sees at most
    /// this many bytes of a request (spec/endpoints 9.1).
    pub private_data_connect_1_2: usize,
    /// Maximum number of bytes of private data in an accept.
    pub private_data_accept: usize,
    /// Maximum number of bytes of private data in a reject.
    pub private_data_reject: usize,
    /// Supported operations beyond sends, reads and writes.
    pub extensions: Extensions,
    pub vendor: String,
    /// Major and minor version.
    pub hardware_version: (u32, u32),
    /// Major and minor version.
    pub firmware_version: (u32, u32),
}
