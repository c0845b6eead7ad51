//! The C contract of uDAPL 2.0 for Linux on LP64.
//!
//! Names are those of C. Each module re-exports the module of 1.2 with the same name. A name whose definition 2.0
//! changed is defined here and, with the meaning of 1.2, at the root of the crate; the definition in a module of `v2`
//! takes precedence over the re-exported one. Names that 2.0 added are defined only here. [`ib`] is the InfiniBand
//! extension.

pub mod attr;
pub mod error;
pub mod event;
pub mod ib;
pub mod table;
pub mod types;

pub use attr::*;
pub use error::*;
pub use event::*;
pub use ib::*;
pub use table::*;
pub use types::*;
