//! libdat as this program uses it: calls that answer values, objects that free themselves, memory that peers may use.
//!
//! Thin, and private to this program. All of its unsafe code is in `raw`, `event` and `import`; nothing here knows tests.

mod event;
mod import;
mod memory;
mod objects;
pub(crate) mod raw;
mod wait;

pub(crate) use event::{Event, connection_word, status_word};
pub(crate) use memory::{Memory, Place};
pub(crate) use objects::{Cno, Ep, Evd, Ia, Object, Psp, Pz, Rsp};
pub(crate) use raw::{Address, Handle};
pub(crate) use wait::{How, Patience, connected, drain};
