//! Counters, their publication to other processes, traces, and receive watermarks.

pub mod counters;
pub mod publication;
pub mod trace;
pub mod watermark;
