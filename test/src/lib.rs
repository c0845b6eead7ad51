//! Common code of the suites: the staged libraries, installed programs, and programs run under a watchdog.
//!
//! Used by `tests/` and `xtask`; the product does not depend on it.

pub mod program;
pub mod run;
pub mod stage;
