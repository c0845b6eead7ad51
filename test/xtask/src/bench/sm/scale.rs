//! What is asked of many: what all benches ask, and two senders.
#![forbid(unsafe_code)]

use crate::bench::ours::Ask;
use crate::bench::scale::{Plan, connects, crowd, memory};
use crate::bench::side::Effort;

/// All of them.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    let rate = |clients, name| {
        let ask = Ask { clients, ..Ask::new("rate", 8, effort.count(2_000_000)) };
        (ask, vec![("mps", name, "M/s")])
    };
    let senders = Plan {
        section: "senders",
        title: "8 B messages into one process".to_owned(),
        questions: vec![rate(1, "one sends"), rate(2, "two send")],
    };
    let crowds = [1, 10, 100, 1_000].map(|count| crowd(effort, count));
    crowds.into_iter().chain([connects(effort), memory(), senders]).collect()
}
