//! Formats packets for the trace of a run.

use crate::proto::wire::{self, Kind};

pub(super) fn packet(bytes: &[u8]) -> String {
    let Some((head, body)) = wire::head(bytes) else { return format!("{} bytes", bytes.len()) };
    let flags = head.flags.get();
    let name = head.kind().map_or_else(|| format!("kind {}", head.kind), |kind| format!("{kind:?}"));
    let mut said = format!("{name} conn {:x} flags {flags:x} {} bytes", head.conn.get(), bytes.len());
    match head.kind() {
        Some(kind @ (Kind::Fragment | Kind::Chunk | Kind::Piece)) => {
            if let Some(data) = wire::data(kind, if flags & 4 == 0 { body } else { &body[..body.len().max(4) - 4] }) {
                let (psn, next, credits) = (data.carried.psn, data.carried.ack.next, data.carried.ack.credits);
                let (op, id, offset, length) = (data.op, data.message.id, data.offset, data.message.length);
                said += &format!(
                    " psn {psn} {op:?} {id} {offset}+{}/{length} acks {next} credits {credits}",
                    data.payload.len()
                );
            }
        }
        Some(Kind::Ack) => {
            if let Some((ack, what, ranges)) =
                wire::ack(if flags & 4 == 0 { body } else { &body[..body.len().max(4) - 4] })
            {
                said += &format!(" acks {} credits {} refusal {}", ack.next, ack.credits, what.refusal);
                ranges.iter().for_each(|range| said += &format!(" {}..{}", range.first, range.end));
            }
        }
        _ => {}
    }
    said
}
