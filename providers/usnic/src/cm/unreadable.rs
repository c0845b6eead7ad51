//! Logs requests that cannot be read, mostly because the peer has another key. Such a request gets no reply, so only
//! this host can report the cause.

use std::net::SocketAddr;

use crate::device::Device;
use crate::proto::wire::{self, FLAG_SEALED};
use crate::proto::{Nanos, SECONDS};

/// Minimum time between two log lines, in nanoseconds. Without the limit, any host could fill the log.
const LOG_INTERVAL: Nanos = 10 * SECONDS;

/// Rate limiter of log lines about unreadable requests.
#[derive(Debug, Default)]
pub(super) struct UnreadableRequests {
    not_before: Nanos,
    suppressed: u64,
}

impl UnreadableRequests {
    /// Logs an unreadable request, unless a line was logged within [`LOG_INTERVAL`].
    pub(super) fn log(&mut self, device: &Device, now: Nanos, from: SocketAddr, packet: &[u8]) {
        if let Some(suppressed) = self.is_due(now) {
            let is_sealed = wire::head(packet).is_some_and(|(head, _)| head.has(FLAG_SEALED));
            let cause = cause_and_remedy(device.settings.key_file.as_deref(), is_sealed);
            log::warn!(
                "{}: ignored a request from {from}: {cause} ({suppressed} more since the last such line)",
                device.name
            );
        }
    }

    /// If a line may be logged now, returns the number of requests that were not logged since the last line.
    fn is_due(&mut self, now: Nanos) -> Option<u64> {
        if now < self.not_before {
            self.suppressed += 1;
            return None;
        }
        self.not_before = now.saturating_add(LOG_INTERVAL);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Returns why a request is unreadable, and what the administrator can do.
fn cause_and_remedy(key_file: Option<&str>, is_sealed: bool) -> String {
    match (key_file, is_sealed) {
        (Some(path), true) => {
            format!("it is damaged or sealed with another key than that in {path}; give both hosts the same file")
        }
        (Some(path), false) => {
            format!("it is not sealed, and this adapter has key={path}; give both hosts the same `key`")
        }
        (None, true) => "it is sealed, and this adapter has no `key`; give both hosts the same `key`, or none".into(),
        (None, false) => "it is damaged, or its sender does not use this provider".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_requests_are_logged_at_most_once_in_ten_seconds() {
        let mut unreadable = UnreadableRequests::default();
        let lines: Vec<u64> = (0..30_000).filter_map(|at| unreadable.is_due(at * SECONDS / 1000)).collect();
        assert_eq!(lines, [0, 9_999, 9_999]);
    }

    #[test]
    fn log_text_names_the_cause_for_each_combination_of_keys() {
        assert!(cause_and_remedy(Some("/k"), true).contains("another key than that in /k"));
        assert!(cause_and_remedy(Some("/k"), false).contains("not sealed, and this adapter has key=/k"));
        assert!(cause_and_remedy(None, true).contains("no `key`") && cause_and_remedy(None, false).contains("damaged"));
    }
}
