//! Processor time of this process, in user and system mode.
//!
//! Includes the provider's threads and, on a server, all concurrent clients.

use std::mem::MaybeUninit;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl CpuTime {
    /// Processor time that this process has used since its start.
    pub(crate) fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a local record of this type, which the call fills in.
        let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        debug_assert_eq!(result, 0, "getrusage(RUSAGE_SELF) failed");
        // SAFETY: the record consists of numbers, for which all-zero bytes are valid.
        let usage = unsafe { usage.assume_init() };
        CpuTime { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }

    /// Processor time used since an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        CpuTime { user: self.user.saturating_sub(earlier.user), system: self.system.saturating_sub(earlier.system) }
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_busy_process_increases() {
        let before = CpuTime::now();
        let mut after = before;
        while after == before {
            after = CpuTime::now();
        }
        let spent = after.since(before);
        assert!(spent.user + spent.system > Duration::ZERO);
        assert_eq!(before.since(after).user, Duration::ZERO, "a CPU time is never negative");
    }
}
