//! Exchange of counters between a process and tools of its user: sockets, text format and reader, independent of the
//! meaning of the counters.
//!
//! | module | purpose |
//! |---|---|
//! | `socket` | local sockets with abstract names, and their owners (unsafe) |
//! | `text` | the text format (pure) |
//! | `reader` | finds the processes of this user and queries them concurrently, with limits |
//!
//! The object layer (`dapl::stats::publication`) listens and writes in the process that is queried; `datinfo top` reads. So the
//! tool is built without the object layer, and the object layer without the tool.

pub mod reader;
pub mod socket;
pub mod text;
