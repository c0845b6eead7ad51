//! What the suites share: the staged libraries, what can be built here, and programs run under a watchdog.
//!
//! `tests/` and `xtask` use it; nothing of the product does.

pub mod rdma_core;
pub mod run;
pub mod stage;
