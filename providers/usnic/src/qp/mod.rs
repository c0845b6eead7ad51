//! Queue pairs, their connections, the connection table, and the exit handler.

pub(crate) mod closing;
pub(crate) mod connection_table;
pub(crate) mod context;
pub(crate) mod exit_handler;
pub(crate) mod handler;
mod queue_pair;
mod request;
pub(crate) mod transport;

pub use queue_pair::Qp;
pub(crate) use queue_pair::QpCore;
