//! The entries of DAT 2.0 (`dapl2_*`), over the objects that serve 1.2.
//!
//! A call whose C values are those of 1.2 goes to the entry of 1.2, and its return code is translated ([`dapl_same`]). Control
//! calls with other records have them translated to those of 1.2 and back by [`convert`]; so both versions check the same
//! parameters in the same order. Posts, dequeues, waits, and what 1.2 does not have, are entries of their own. Decision 027
//! has the reasons.
//!
//! An object does not know by which version it was made. Its handle begins with the table of its IA's version, by which the
//! libraries of DAT choose the entry. A handle that an entry gets as a further argument may belong to the other version.

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
pub mod table;
#[cfg(test)]
mod tests;
