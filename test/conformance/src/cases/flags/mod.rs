//! Completion flags of posts (spec/events 4.1): SUPPRESS, UNSIGNALLED, SOLICITED_WAIT, BARRIER_FENCE and EVD_THRESHOLD.
#![forbid(unsafe_code)]

mod fence;
mod notify;
mod suppress;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    [suppress::cases, notify::cases, fence::cases].into_iter().flat_map(|module| module()).collect()
}

/// The peer's role: sends an RDMA target, and posts 16 receives for empty and short messages.
fn serves(ctx: &Ctx) {
    let conn = ctx.connect();
    let memory = conn.memory(200);
    (0..16).for_each(|id| conn.post_recv(id, memory.segment(0, 100)));
    ctx.send_target(memory.target(100, 100));
    ctx.meet();
}
