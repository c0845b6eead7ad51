//! How a process tells its counters to tools of its user: what both sides have to know, and nothing of what is counted.
//!
//! | room | what it knows |
//! |---|---|
//! | `socket` | local sockets with abstract names, and whose they are (unsafe) |
//! | `text` | the form of what is told: pure |
//! | `reader` | finds the processes of this user, and asks them all at once, with limits |
//!
//! The object layer (`dapl::stats::publication`) listens and writes, in the process that is asked; `datinfo top` reads. Neither needs
//! more of the other than this, so a tool is built without the object layer, and the layer without a tool.

pub mod reader;
pub mod socket;
pub mod text;
