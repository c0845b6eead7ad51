//! Two connections against each other, over a network that is as bad as a seed says, in virtual time.

mod bad_network;
mod basics;
mod begins;
mod black_holes;
mod ends;
mod hostile;
mod pair;
mod rules;
