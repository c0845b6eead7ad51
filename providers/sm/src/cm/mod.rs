//! Connection set-up: its socket, the table of attempts and connections, and what each step does.

pub(crate) mod peers;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod table;
