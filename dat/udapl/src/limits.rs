//! Limits of an adapter, from its attributes.

use dat_abi::*;

/// Limits of an adapter, from its attributes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum length of a message, in bytes.
    pub max_message: u64,
    /// Maximum length of an RDMA read or write, in bytes.
    pub max_rdma: u64,
    /// Maximum number of outstanding receives, and of outstanding requests, of an endpoint.
    pub max_posted: u32,
    /// Maximum number of outstanding RDMA reads that an endpoint issues.
    pub max_reads: u32,
    /// Maximum number of outstanding RDMA reads that an endpoint serves.
    pub max_reads_answered: u32,
    /// Maximum number of events in a queue.
    pub max_events: u32,
    /// Maximum number of buffers per transfer.
    pub max_segments: u32,
    /// Maximum number of shared receive queues; 0: not supported.
    pub max_srqs: u32,
    /// Maximum number of memory windows; 0: not supported.
    pub max_rmrs: u32,
    /// Maximum length of the private data of a connection, in bytes.
    pub max_private_data: usize,
}

impl Limits {
    pub(crate) fn new(ia: &DAT_IA_ATTR, provider: &DAT_PROVIDER_ATTR) -> Self {
        let count = |count: DAT_COUNT| u32::try_from(count).unwrap_or(0);
        Limits {
            max_message: ia.max_message_size,
            max_rdma: ia.max_rdma_size,
            max_posted: count(ia.max_dto_per_ep),
            max_reads: count(ia.max_rdma_read_per_ep_out),
            max_reads_answered: count(ia.max_rdma_read_per_ep_in),
            max_events: count(ia.max_evd_qlen),
            max_segments: count(ia.max_iov_segments_per_dto),
            max_srqs: if provider.srq_supported == DAT_FALSE { 0 } else { count(ia.max_srqs) },
            max_rmrs: count(ia.max_rmrs),
            max_private_data: count(provider.max_private_data_size) as usize,
        }
    }
}
