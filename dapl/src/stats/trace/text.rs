//! Formats a trace: one line for the EP, then one line per post, oldest first.
//!
//! The number of posts is bounded: the oldest requests in flight, then the newest posts. The text shows addresses and
//! lengths, but no data.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::EpSummary;
use super::ring::{PostEnd, TraceEntry};
use crate::provider::Work;

/// Maximum numbers of posts in one text: the oldest requests in flight (`IN_FLIGHT`), and the newest posts (`NEW`).
const IN_FLIGHT: usize = 16;
const NEW: usize = 48;

/// Composes the text for the trace of an EP at `now`.
pub(super) fn dump(ep: usize, why: &str, summary: &EpSummary, entries: &[TraceEntry], now: u64) -> String {
    let EpSummary { state, outstanding, .. } = summary;
    let mut text = format!(
        "ep {ep:#x} {why}; {state}, {} requests and {} receives outstanding",
        outstanding.requests, outstanding.recvs
    );
    if entries.is_empty() {
        text.push_str(", no posts");
    }
    let mut last = None;
    for entry in shown(entries) {
        let before = last.map_or(entries[0].number, |last| last + 1);
        if entry.number > before {
            let _ = write!(text, "\n  ({} posts not shown)", entry.number - before);
        }
        last = Some(entry.number);
        line(&mut text, entry, now);
    }
    text
}

fn shown(entries: &[TraceEntry]) -> impl Iterator<Item = &TraceEntry> {
    let (old, new) = entries.split_at(entries.len().saturating_sub(NEW));
    old.iter().filter(|entry| entry.is_request() && entry.end.is_none() && !entry.suppress).take(IN_FLIGHT).chain(new)
}

fn line(text: &mut String, entry: &TraceEntry, now: u64) {
    let TraceEntry { number, begun, cookie, work, segments, bytes, .. } = *entry;
    let age = Seconds(now.saturating_sub(begun));
    // Writing to a string cannot fail.
    let _ = write!(text, "\n  #{number} {age} ago: {} cookie {cookie:#x}, {bytes} bytes in {segments}", work.name());
    if !matches!(work, Work::Send | Work::Recv | Work::SharedRecv | Work::Bind) {
        let way = if work == Work::Read { "from" } else { "to" };
        let _ = write!(text, ", {way} {:#x} at {:#x}", entry.key, entry.address);
    }
    let _ = match entry.end {
        None if entry.suppress => write!(text, ": suppressed"),
        None => write!(text, ": outstanding"),
        Some(PostEnd { status: None, .. }) => write!(text, ": refused by the provider"),
        Some(PostEnd { at, status: Some(status), bytes }) => {
            write!(text, ": {} after {}, {bytes} bytes", status.dat_name(), Seconds(at.saturating_sub(begun)))
        }
    };
}

/// Nanoseconds, formatted as seconds.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}
