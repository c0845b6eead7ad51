//! Limits of an IA of a software provider.
#![forbid(unsafe_code)]

use dapl::provider::{Extensions, Limits};

/// Maximum number of requests and of receives of an endpoint. An MPI library requests 50,000 and fails with fewer. A
/// large maximum costs no memory, because queues grow with the posted work.
pub const MAX_DTOS: u32 = 65_536;

/// Maximum length of a message or RDMA transfer in bytes, as for a reliable connection of InfiniBand (IBA volume 1,
/// 9.7).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// Returns the limits of an IA with `max_eps` endpoints and `max_keys` keys. Each registration and each bound window
/// uses a key.
pub fn limits(max_eps: u32, max_keys: u32) -> Limits {
    Limits {
        max_eps,
        max_dtos: MAX_DTOS,
        max_evds: 65_536,
        max_evd_qlen: 1 << 20,
        max_iov: 32,
        max_lmrs: max_keys,
        max_lmr_size: 1 << 47,
        max_pzs: 65_536,
        max_message: MAX_MESSAGE,
        max_rdma: MAX_MESSAGE,
        max_rmrs: max_keys,
        max_srqs: 65_536,
        max_reads_in: 16,
        max_reads_out: 16,
        private_data_connect: 256,
        private_data_connect_1_2: 256,
        private_data_accept: 196,
        private_data_reject: 144,
        extensions: Extensions::default(),
        vendor: "dapl-rs".into(),
        hardware_version: (1, 0),
        firmware_version: (0, 0),
    }
}
