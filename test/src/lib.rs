//! What the suites share: the staged libraries.
//!
//! `tests/` and `xtask` use it; nothing of the product does.

pub mod stage;
