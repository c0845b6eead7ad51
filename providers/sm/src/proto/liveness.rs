//! Liveness of a peer: the time of its last activity (CM-5).
//!
//! Each FIFO word of the peer counts as activity, and so does a repeated request or an acknowledgement. Progress on the
//! connection counts too: this process has consumed a message of the peer, or the peer has consumed a message of this
//! process. The engine checks open connections at each heartbeat. If an accepting reply is not acknowledged, it checks
//! before each retransmission.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    last_activity: Instant,
    /// Value of the progress counter at the last activity.
    progress: u64,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Liveness { last_activity: now, progress: 0 }
    }

    /// Records activity of the peer, such as a heartbeat. Also called when a wait for the peer begins.
    pub(crate) fn record(&mut self, now: Instant) {
        self.last_activity = now;
    }

    /// Records progress, which counts as activity. Returns whether the peer has been inactive for longer than
    /// `silence`.
    pub(crate) fn has_timed_out(&mut self, progress: u64, now: Instant, silence: Duration) -> bool {
        if progress != self.progress {
            (self.last_activity, self.progress) = (now, progress);
        }
        now.saturating_duration_since(self.last_activity) > silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);

    #[test]
    fn inactive_peer_times_out() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(begin);
        assert!(!liveness.has_timed_out(0, after(60), SILENCE));
        assert!(liveness.has_timed_out(0, after(61), SILENCE));
        liveness.record(after(61));
        assert!(!liveness.has_timed_out(0, after(121), SILENCE));
        assert!(liveness.has_timed_out(0, after(122), SILENCE));
    }

    #[test]
    fn any_progress_counts_as_activity() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(begin);
        assert!(!liveness.has_timed_out(5, after(59), SILENCE));
        assert!(!liveness.has_timed_out(5, after(119), SILENCE), "the last activity was at second 59");
        assert!(liveness.has_timed_out(5, after(120), SILENCE));
        assert!(!liveness.has_timed_out(6, after(500), SILENCE), "progress counts when the check detects it");
    }

    #[test]
    fn stopped_or_backward_clock_ends_no_connection() {
        let begin = Instant::now();
        let mut liveness = Liveness::new(begin + SILENCE);
        assert!(!liveness.has_timed_out(0, begin, Duration::ZERO));
    }
}
