//! Shared receive queues: one pool of receive buffers for many EPs.
//!
//! Only the entries are here; they judge what they can and answer `DAT_NOT_IMPLEMENTED`. No SRQ ever exists.

pub mod dapl_srq;
