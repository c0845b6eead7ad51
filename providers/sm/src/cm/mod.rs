//! Connection set-up: its socket, the table of connection attempts and connections, and the actions of the handshake.

pub(crate) mod peers;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod table;
