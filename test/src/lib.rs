//! What the suites share: the staged libraries, and programs run under a watchdog.
//!
//! `tests/` and `xtask` use it; nothing of the product does.

pub mod run;
pub mod stage;
