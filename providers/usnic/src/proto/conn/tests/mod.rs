//! Tests of two connected endpoints over a simulated network in virtual time. A seed determines the faults of the
//! network.

mod bad_network;
mod basics;
mod begins;
mod black_holes;
mod ends;
mod extensions;
mod hostile;
mod pair;
mod quick;
mod rules;
