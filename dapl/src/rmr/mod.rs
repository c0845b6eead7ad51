//! Remote memory regions: windows onto an LMR that can be moved and closed again.
//!
//! Only the entries are here; they judge what they can and answer `DAT_NOT_IMPLEMENTED`. No RMR ever exists.

pub mod dapl_rmr;
