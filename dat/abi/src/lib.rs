//! The C contract between a consumer, libdat and a provider: uDAPL 1.2 for Linux on LP64, and uDAPL 2.0 in [`v2`].
//!
//! This crate imports no other crate of the project and exports no symbol. (Every shared object that links a library
//! crate would export its `#[no_mangle]` functions.) `test/tests/abi_rust.rs` compares the names, numbers and layouts of
//! this crate with the recorded ABI. `test/tests/abi.rs` compares the C headers with it.
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

/// The only name of 1.2 that 2.0 lacks. [`v2`] re-exports the modules of 1.2, so the name is defined outside of them.
pub const DAT_CNO_FIELD_AGENT: DAT_CNO_PARAM_MASK = 0x2;
