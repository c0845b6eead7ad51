//! Counters, their publication to other processes, traces, and high-water marks.

pub mod counters;
pub mod publication;
pub mod trace;
pub mod watermark;
