//! What the suites share: the staged libraries, installed programs, and programs run under a watchdog.
//!
//! `tests/` and `xtask` use it; nothing of the product does.

pub mod program;
pub mod run;
pub mod stage;
