//! Recovery periods (RFC 9002, 7.3.2), and detection of spurious recovery periods.

use super::LossEvent;
use crate::proto::Nanos;

/// The current recovery period, or the last one after its end.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Start of the period. The period ends with the ack of a packet that was sent after this time.
    start: Option<Nanos>,
    has_ended: bool,
    /// Number of packets that were declared lost in this period.
    lost: u32,
    /// Number of packets declared lost in this period that had arrived.
    spurious: u32,
}

impl Recovery {
    /// Records lost packets. Returns true if a new period starts, because this is the first loss, or a lost packet was
    /// sent after the start of the last period.
    pub(super) fn lost(&mut self, loss: &LossEvent) -> bool {
        let is_new = self.start.is_none_or(|start| loss.lost.last_sent > start);
        if is_new {
            *self = Recovery { start: Some(loss.now), ..Recovery::default() };
        }
        self.lost = self.lost.saturating_add(loss.lost.packets);
        is_new
    }

    /// Records a congestion signal other than loss. Returns true if a new period starts, because there was none, or the
    /// last one started more than a round trip ago.
    pub(super) fn record_congestion(&mut self, now: Nanos, srtt: Nanos) -> bool {
        let is_new = self.start.is_none_or(|start| now > start.saturating_add(srtt));
        if is_new {
            // This period can never be spurious, because it is not caused by packets declared lost.
            *self = Recovery { start: Some(now), lost: u32::MAX, ..Recovery::default() };
        }
        is_new
    }

    /// Records the ack of a packet that was sent at `send_time`. Returns true if this ack ends the period.
    pub(super) fn acked(&mut self, send_time: Nanos) -> bool {
        let ends = self.is_active() && self.start.is_some_and(|start| send_time > start);
        self.has_ended |= ends;
        ends
    }

    pub(super) fn is_active(&self) -> bool {
        self.start.is_some() && !self.has_ended
    }

    /// Records that `spurious` of the packets declared lost in this period had arrived. Returns true if all losses of
    /// the period were spurious. The caller must then undo the effects of the period.
    pub(super) fn record_spurious(&mut self, spurious: u32) -> bool {
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
