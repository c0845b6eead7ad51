//! A send that has waited for a receive of the peer for long, for the log.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

/// Age from which a waiting send is overdue, as for a traced request (`dapl::stats::trace`).
pub const OVERDUE: Duration = Duration::from_secs(10);

/// An overdue send.
#[derive(Clone, Copy, Debug)]
pub struct OverdueSend {
    /// Handle of the EP.
    pub ep: usize,
    pub age: Duration,
}

impl OverdueSend {
    /// Writes its line.
    #[cold]
    pub fn log(&self) {
        log::warn!("{self}");
    }
}

impl fmt::Display for OverdueSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ep {:#x}: a send has waited {} s for a receive of the peer; the peer must post one (DAPL_DBG_IO_TRC shows the posts)",
            self.ep,
            self.age.as_secs()
        )
    }
}
