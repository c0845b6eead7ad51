//! Replies to path probes without a connection, which `datinfo doctor HOST` sends to a listener.
//!
//! The token of a probe is a number that its sender has chosen. The reply contains the size of the probe. The reply is
//! not longer than the probe, so forged source addresses cause no amplification. The listener keeps no state.

use zerocopy::IntoBytes;

use super::wire::{self, Kind, PacketHeader};

/// Probe flag: the reply must have the length of the probe.
const FLAG_SAME_SIZE: u16 = 1;
/// Length in bytes of the shortest reply: the header and the size of the probe.
const SHORTEST: usize = size_of::<PacketHeader>() + size_of::<u32>();

/// Appends the reply to a probe to `out`. Returns false if the packet is not a path probe.
pub(crate) fn reply(packet: &[u8], out: &mut Vec<u8>) -> bool {
    let probe = wire::head(packet).map(|(head, _)| head).filter(|head| {
        let is_probe = head.kind() == Some(Kind::Probe) && head.conn.get() == 0 && head.token.get() != 0;
        is_probe && packet.len() >= SHORTEST
    });
    let Some(head) = probe else { return false };
    let start = out.len();
    out.extend_from_slice(PacketHeader::new(Kind::ProbeAck, 0, 0, head.token.get()).as_bytes());
    out.extend_from_slice(&u32::try_from(packet.len()).unwrap_or(u32::MAX).to_be_bytes());
    if head.flags.get() & FLAG_SAME_SIZE != 0 {
        out.resize(start + packet.len(), 0);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(number: u64, size: usize, flags: u16) -> Vec<u8> {
        let mut packet = PacketHeader::new(Kind::Probe, flags, 0, number).as_bytes().to_vec();
        packet.resize(size, 0);
        packet
    }

    #[test]
    fn reply_has_the_probe_size_and_is_not_longer_than_the_probe() {
        for size in [20, 21, 1200, 65_507] {
            for (flags, length) in [(0, 20), (FLAG_SAME_SIZE, size)] {
                let (mut out, mut again) = (vec![7], Vec::new());
                assert!(reply(&probe(5, size, flags), &mut out));
                assert_eq!((out.len(), &out[17..21]), (1 + length, &(size as u32).to_be_bytes()[..]));
                assert!(!reply(&out[1..], &mut again) && again.is_empty(), "an echo reply gets no reply");
            }
        }
    }

    #[test]
    fn packets_that_are_no_probes_get_no_reply() {
        let mut out = Vec::new();
        let good = probe(5, 100, 0);
        (0..SHORTEST).for_each(|length| {
            assert!(!reply(&good[..length], &mut out), "a probe cut to {length} bytes gets no reply")
        });
        assert!(!reply(&probe(0, 100, 0), &mut out), "a probe without a number gets no reply");
        // Only the flags and the token may have any value. The other bytes of the header are fixed.
        for at in [0, 1, 4, 5, 6, 7] {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(!reply(&bad, &mut out), "a probe with bit {bit} of byte {at} flipped gets no reply");
            }
        }
        assert!(!reply(&[2; 100], &mut out) && out.is_empty());
    }
}
