//! Recovery periods (RFC 9002, 7.3.2), and whether one turns out to have been spurious.

use super::Loss;
use crate::proto::Nanos;

/// One recovery period, or none.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Start of recovery. It ends with the ack of a packet sent later.
    start: Option<Nanos>,
    is_over: bool,
    /// Packets found lost in it, and those of them that had arrived.
    lost: u32,
    spurious: u32,
}

impl Recovery {
    /// Packets were lost. True: a new period starts, as one of them was sent after the start of the last.
    pub(super) fn lost(&mut self, loss: &Loss) -> bool {
        let is_new = self.start.is_none_or(|start| loss.last_sent > start);
        if is_new {
            *self = Recovery { start: Some(loss.now), ..Recovery::default() };
        }
        self.lost = self.lost.saturating_add(loss.packets);
        is_new
    }

    /// A congestion signal other than loss. True: a new period starts, for the last one is longer ago than a round trip.
    pub(super) fn signalled(&mut self, now: Nanos, srtt: Nanos) -> bool {
        let is_new = self.start.is_none_or(|start| now > start.saturating_add(srtt));
        if is_new {
            // No ack can show this one as spurious.
            *self = Recovery { start: Some(now), lost: u32::MAX, ..Recovery::default() };
        }
        is_new
    }

    /// A packet that left then was acked. True: that ends the period.
    pub(super) fn acked(&mut self, send_time: Nanos) -> bool {
        let ends = self.is_active() && self.start.is_some_and(|start| send_time > start);
        self.is_over |= ends;
        ends
    }

    pub(super) fn is_active(&self) -> bool {
        self.start.is_some() && !self.is_over
    }

    /// `spurious` packets of the period had arrived. True: these are all that it found lost, so its effects are to be
    /// undone.
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
