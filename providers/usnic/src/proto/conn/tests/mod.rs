//! Tests of two connections with each other, over a network that misbehaves according to a seed, in virtual time.

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
