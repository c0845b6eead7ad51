//! The entries of DAT 2.0 (`dapl2_*`), for the same objects as those of 1.2.
//!
//! - An entry with the same C types in both versions calls the entry of 1.2 and converts the return code
//!   ([`dapl_same`]).
//! - Control calls with other records convert them to 1.2 and back by [`convert`], so both versions check the same
//!   parameters in the same order.
//! - Posts convert their segments and call the entries of 1.2. Dequeues, waits on EVDs, calls that 1.2 lacks, and a few
//!   calls with other parameters (`dat_evd_create`, `dat_cno_query`, `dat_cr_reject`) are separate entries.
//!
//! Decision 027 gives the reasons for these three kinds.
//!
//! An object other than the IA does not know the version that created it. Its handle begins with the provider table of
//! its IA's version, from which libdat chooses the entry. Handles in other parameters may belong to the other version.

mod arguments;
pub mod convert;
pub mod dapl_cno;
pub mod dapl_cr;
pub mod dapl_csp;
pub mod dapl_ep;
pub mod dapl_evd;
pub mod dapl_extension;
pub mod dapl_ia;
pub mod dapl_lmr;
pub mod dapl_post;
pub mod dapl_rmr;
pub mod dapl_same;
pub mod dapl_srq;
mod segments;
#[cfg(test)]
mod tests;
