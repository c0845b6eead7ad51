//! Queue pairs: the object, the two directions of its connection, and the shared memory of the connection.

pub(crate) mod context;
pub(crate) mod line_allocator;
pub(crate) mod link;
mod queue_pair;
pub(crate) mod ring;
pub(crate) mod rx;
pub(crate) mod single_copy;
pub(crate) mod tx;

pub use queue_pair::Qp;
