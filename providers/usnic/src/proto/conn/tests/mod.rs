//! Tests of two connected endpoints over a simulated network in virtual time. A seed determines the faults of the
//! network.

mod bad_network;
mod black_holes;
mod confirmation;
mod connection_ends;
mod extensions;
mod fast_paths;
mod host;
mod hostile;
mod network;
mod operations;
mod pair;
mod request_start;
