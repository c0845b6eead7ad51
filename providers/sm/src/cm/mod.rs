//! Connection set-up: the set-up socket and the FIFO, the table of connection attempts and connections, the actions of
//! the handshake, the mapping of a peer's memory, and the connection requests that dapl holds.

pub(crate) mod peers;
pub(crate) mod request;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod table;
