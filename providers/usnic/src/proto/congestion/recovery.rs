//! Recovery periods (RFC 9002, 7.3.2), and detection of spurious ones.

use super::Loss;
use crate::proto::Nanos;

/// The current recovery period, if any.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Start of recovery. It ends with the ack of a packet sent later.
    start: Option<Nanos>,
    is_over: bool,
    /// Number of packets declared lost in it, and number of those that had arrived.
    lost: u32,
    spurious: u32,
}

impl Recovery {
    /// Records lost packets. Returns true if a new period starts, because one of them was sent after the start of the
    /// last period.
    pub(super) fn lost(&mut self, loss: &Loss) -> bool {
        let is_new = self.start.is_none_or(|start| loss.last_sent > start);
        if is_new {
            *self = Recovery { start: Some(loss.now), ..Recovery::default() };
        }
        self.lost = self.lost.saturating_add(loss.packets);
        is_new
    }

    /// Records a congestion signal other than loss. Returns true if a new period starts, because the last one is more
    /// than a round trip ago.
    pub(super) fn signalled(&mut self, now: Nanos, srtt: Nanos) -> bool {
        let is_new = self.start.is_none_or(|start| now > start.saturating_add(srtt));
        if is_new {
            // No ack can show that this period is spurious.
            *self = Recovery { start: Some(now), lost: u32::MAX, ..Recovery::default() };
        }
        is_new
    }

    /// Records the ack of a packet sent at `send_time`. Returns true if that ends the period.
    pub(super) fn acked(&mut self, send_time: Nanos) -> bool {
        let ends = self.is_active() && self.start.is_some_and(|start| send_time > start);
        self.is_over |= ends;
        ends
    }

    pub(super) fn is_active(&self) -> bool {
        self.start.is_some() && !self.is_over
    }

    /// Records that `spurious` packets of the period had arrived. Returns true if all its losses were spurious, so its
    /// effects are to be undone.
    pub(super) fn had_arrived(&mut self, spurious: u32) -> bool {
        if spurious == 0 || self.lost == 0 {
            return false;
        }
        self.spurious = self.spurious.saturating_add(spurious);
        let is_spurious = self.spurious >= self.lost;
        if is_spurious {
            *self = Recovery::default();
        }
        is_spurious
    }
}
