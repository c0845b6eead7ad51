//! The log message for a send that waits too long for the peer to post a receive.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

/// Age from which a waiting send is overdue. Traced requests have the same limit (`dapl::stats::trace`).
pub const OVERDUE: Duration = Duration::from_secs(10);

/// A send that has waited for at least [`OVERDUE`].
#[derive(Clone, Copy, Debug)]
pub struct OverdueSend {
    /// Handle of the EP.
    pub ep: usize,
    pub age: Duration,
}

impl OverdueSend {
    /// Logs a warning.
    #[cold]
    pub fn log(&self) {
        log::warn!("{self}");
    }
}

impl fmt::Display for OverdueSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ep {:#x}: a send has waited {} s for the peer to post a receive; the peer must post one (DAPL_DBG_IO_TRC shows the posts)",
            self.ep,
            self.age.as_secs()
        )
    }
}
