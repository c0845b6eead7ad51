//! Transfer of counters from a process to tools of the same user: sockets, text format and reader. This crate does not
//! interpret the counters.
//!
//! | module | purpose |
//! |---|---|
//! | `socket` | local sockets with abstract names, and their owners (unsafe) |
//! | `text` | the text format (pure) |
//! | `reader` | finds the processes of this user, and queries them concurrently, with limits |
//!
//! In the queried process, the object layer (`dapl::stats::publication`) listens and writes; `datinfo top` reads. With
//! this crate, the tool is built without the object layer, and the object layer without the tool.

pub mod reader;
pub mod socket;
pub mod text;
