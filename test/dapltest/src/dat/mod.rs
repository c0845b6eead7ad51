//! Wrappers of libdat: calls with Rust values, events, waits for events, objects that free themselves, and memory for
//! peers.
//!
//! Uses `udapl` for libdat's functions and addresses, but not for objects: the tests need handles that are stale,
//! foreign or of the wrong kind. Unsafe code is only in `raw` and `event`.

mod event;
mod memory;
mod objects;
pub(crate) mod raw;
mod wait;

pub(crate) use event::{Event, connection_word, status_word};
pub(crate) use memory::{Memory, RemoteBuffer};
pub(crate) use objects::{Cno, Ep, Evd, Ia, Object, Psp, Pz, Rsp};
pub(crate) use raw::Handle;
pub(crate) use udapl::Address;
pub(crate) use wait::{WaitMethod, WaitPolicy, connected, drain};
