//! Measurements of sm that are not compared with another program: latency percentiles, many connections, connection
//! rate and memory as in the bench `usnic`, and the message rate of one and of two senders.
#![forbid(unsafe_code)]

use crate::bench::ours::PerfArguments;
use crate::bench::scale::{OutputField, PerfRun, Plan, SENDERS, connections, connects, memory, percentiles};
use crate::bench::side::Effort;

/// The measurements of sm without targets, in the order of the table.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    let rate = |clients, name| PerfRun {
        ask: PerfArguments { clients, ..PerfArguments::new("rate", 8, effort.count(2_000_000)) },
        count: clients,
        answers: vec![OutputField { field: "mps", name, line: "dapl-rs", unit: "M/s" }],
    };
    let senders = Plan {
        section: &SENDERS,
        title: "8 B messages into one process".to_owned(),
        questions: vec![rate(1, "one sends"), rate(2, "two send")],
    };
    let counts = [1, 10, 100, 1_000].map(|count| connections(effort, count));
    let memories = [10, 100, 1_000].map(memory);
    let percentiles = percentiles(effort);
    percentiles.into_iter().chain(counts).chain([connects(effort)]).chain(memories).chain([senders]).collect()
}
