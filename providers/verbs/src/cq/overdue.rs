//! Detects sends that do not complete for a long time. Each is logged once; if the port is down, its connection ends.
//!
//! The device repeats a send for which the peer has no receive, and reports nothing meanwhile. So the engine checks the
//! oldest outstanding send of each queue pair at intervals: a send that stays the oldest for too long is overdue. The
//! engine first fetches the completions of the device, because a complete send that was not polled is not overdue.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dapl_software::overdue::{OverdueSend, WaitCause};

use super::{Check, CqCore, CqState};

/// Interval between checks. A send is reported at most this time after it is overdue.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl CqCore {
    /// Schedules the next check for overdue sends, unless one is scheduled.
    pub(super) fn schedule_overdue_check(&self, inner: &mut CqState) {
        if !std::mem::replace(&mut inner.is_overdue_check_scheduled, true) {
            self.engine.schedule(CHECK_INTERVAL, &self.me, Check::OverdueSends as u64);
        }
    }

    /// Logs the sends that are overdue, and ends their connections if the port is down. Schedules the next check if the
    /// queue is still in use.
    pub(super) fn check_overdue_sends(&self) {
        for send in self.overdue_sends(Instant::now()) {
            send.log();
        }
        let mut inner = self.lock();
        inner.is_overdue_check_scheduled = false;
        if inner.table.is_used() {
            self.schedule_overdue_check(&mut inner);
        }
    }

    /// Returns the sends that are overdue at the time `now` and were not returned before. Ends their connections if the
    /// port is down.
    pub(crate) fn overdue_sends(&self, now: Instant) -> Vec<OverdueSend> {
        let qps = self.lock().table.requesters();
        if qps.iter().any(|qp| qp.oldest_send().is_some()) {
            self.fetch();
        }
        // Each queue pair with an outstanding send, its number, and the id and the EP of its oldest send.
        let waiting: Vec<_> = qps.iter().filter_map(|qp| Some((qp, qp.number(), qp.oldest_send()?))).collect();
        let ids: Vec<(u32, u64)> = waiting.iter().map(|(_, number, (send, _))| (*number, *send)).collect();
        let overdue = self.lock().stalls.find_overdue(&ids, now);
        let report = |(number, age)| {
            let (qp, _, (_, ep)) = waiting.iter().find(|(_, known, _)| *known == number)?;
            qp.fail_if_port_is_down();
            Some(OverdueSend { ep: *ep, age, cause: WaitCause::Unknown })
        };
        overdue.into_iter().filter_map(report).collect()
    }
}
