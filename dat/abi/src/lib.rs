//! The C contract between a consumer, libdat and a provider: uDAPL 1.2 for Linux on LP64, and uDAPL 2.0 in [`v2`].
//!
//! Every crate imports this one; it imports none and exports no symbol. (A `#[no_mangle]` function in a library crate would be
//! exported again by every shared object that links it.) `test/tests/abi.rs` asserts its numbers and layouts against recorded
//! facts and against the C headers.
//!
//! Names are those of the DAT specification, in C style.
#![no_std]
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are the specification's")]

pub mod attr;
pub mod error;
pub mod event;
pub mod hook;
pub mod table;
pub mod types;
pub mod v2;

pub use attr::*;
pub use error::*;
pub use event::*;
pub use table::*;
pub use types::*;
