//! The contract between a consumer, libdat and a provider: uDAPL 1.2 for Linux on LP64.
//!
//! Everyone imports this crate; it imports nobody, has no behaviour and no exported symbol. (A `#[no_mangle]` function in
//! a library crate would be exported again by every shared object that links it.) Its numbers and layouts are asserted
//! against the recorded facts and against the C headers by `test/tests/abi.rs`.
//!
//! Names are those of the DAT specification, which is why they look like C.
#![no_std]
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are the specification's")]

pub mod attr;
pub mod error;
pub mod event;
pub mod hook;
pub mod table;
pub mod types;

pub use attr::*;
pub use error::*;
pub use event::*;
pub use table::*;
pub use types::*;
