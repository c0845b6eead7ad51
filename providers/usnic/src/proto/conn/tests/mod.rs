//! Two connections against each other, over a network that is as bad as a seed says, in virtual time.

mod basics;
mod begins;
mod ends;
mod holes;
mod hostile;
mod pair;
mod rules;
mod weather;
