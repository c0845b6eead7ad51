//! Queue pairs: the object, its connection from the first packet to the last, and the table of connections.

pub(crate) mod closing;
pub(crate) mod exit_handler;
pub(crate) mod host;
pub(crate) mod pair;
mod queue_pair;
mod request;
pub(crate) mod table;
pub(crate) mod transport;

pub(crate) use queue_pair::Core;
pub use queue_pair::Qp;
