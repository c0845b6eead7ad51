//! Common code of the suites: the staged libraries, checks for installed programs, and programs that run under a
//! watchdog.
//!
//! Used by `tests/` and `xtask`; the product does not depend on it.

pub mod fake_device;
pub mod program;
pub mod run;
pub mod stage;
