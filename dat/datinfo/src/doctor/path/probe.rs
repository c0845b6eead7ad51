//! Encodes and checks probes and their answers, without I/O.
//!
//! A probe has the header of a usnic packet (`daplusnic::proto::wire`) with connection id 0. The token field of the
//! header contains a number that the sender has chosen. A usnic listener (`daplusnic::proto::echo`) and `datinfo doctor
//! --serve` ([`answer`]) answer with the size that arrived. If the probe requests it, the answer is as long as the
//! probe.
//!
//! An answer is never longer than its probe, so that a forged source address cannot be used for amplification.
#![forbid(unsafe_code)]

const VERSION: u8 = 2;
const PROBE: u8 = 4;
const PROBE_ACK: u8 = 5;
/// Flag: the answer must be as long as the probe.
const AS_LONG: u16 = 1;
/// Length of a probe's header. The header of an answer has four more bytes.
const HEAD: usize = 16;
/// Length of the shortest probe, and of an answer unless the probe requests one of its own length.
pub(super) const SHORTEST: usize = HEAD + 4;
/// The longest payload of a UDP datagram.
pub(super) const LONGEST: usize = 65_507;

/// Encodes a probe of `size` bytes.
pub(super) fn probe(number: u64, size: usize, as_long: bool) -> Vec<u8> {
    let mut packet = head(PROBE, if as_long { AS_LONG } else { 0 }, number).to_vec();
    packet.resize(size, 0);
    packet
}

/// Appends the answer to a received datagram to `out`. Returns false without an answer if the datagram is not a probe.
pub(in crate::doctor) fn answer(packet: &[u8], out: &mut Vec<u8>) -> bool {
    let Some((seen, _)) = packet.split_first_chunk::<HEAD>().filter(|_| packet.len() >= SHORTEST) else { return false };
    let [version, kind, flag_high, flag_low, conn @ .., _, _, _, _, _, _, _, _] = *seen;
    let number = u64::from_be_bytes([seen[8], seen[9], seen[10], seen[11], seen[12], seen[13], seen[14], seen[15]]);
    if (version, kind, conn) != (VERSION, PROBE, [0; 4]) || number == 0 {
        return false;
    }
    let start = out.len();
    out.extend_from_slice(&head(PROBE_ACK, 0, number));
    out.extend_from_slice(&u32::try_from(packet.len()).unwrap_or(u32::MAX).to_be_bytes());
    if u16::from_be_bytes([flag_high, flag_low]) & AS_LONG != 0 {
        out.resize(start + packet.len(), 0);
    }
    true
}

/// Whether these bytes are the answer to the probe with this number, size and flag.
pub(super) fn is_answer(bytes: &[u8], number: u64, size: usize, as_long: bool) -> bool {
    let length = if as_long { size } else { SHORTEST };
    let is_head = bytes.starts_with(&head(PROBE_ACK, 0, number));
    is_head && bytes.len() == length && bytes[HEAD..SHORTEST] == (size as u32).to_be_bytes()
}

/// Encodes a header: version, kind, flags, connection id 0, and the probe's number.
fn head(kind: u8, flags: u16, number: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..2].copy_from_slice(&[VERSION, kind]);
    head[2..4].copy_from_slice(&flags.to_be_bytes());
    head[8..].copy_from_slice(&number.to_be_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_reports_the_size_and_is_never_longer_than_the_probe() {
        for size in [20, 21, 1200, LONGEST] {
            for as_long in [false, true] {
                let mut out = vec![7];
                assert!(answer(&probe(5, size, as_long), &mut out));
                assert!(is_answer(&out[1..], 5, size, as_long) && out.len() <= 1 + size, "{size} {as_long}");
                let mut again = Vec::new();
                assert!(!answer(&out[1..], &mut again) && again.is_empty(), "an answer is no probe");
            }
        }
    }

    #[test]
    fn datagrams_that_are_no_path_probe_are_not_answered() {
        let mut out = Vec::new();
        let good = probe(5, 100, false);
        (0..SHORTEST).for_each(|length| assert!(!answer(&good[..length], &mut out), "{length}"));
        assert!(!answer(&probe(0, 100, false), &mut out), "no number");
        // The flags and the number may have any value; all other fields of the header are fixed.
        for at in [0, 1, 4, 5, 6, 7] {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(!answer(&bad, &mut out), "byte {at}, bit {bit}");
            }
        }
        assert!(!answer(&[2; 100], &mut out) && out.is_empty());
    }

    #[test]
    fn only_the_answer_to_its_own_path_probe_is_accepted() {
        let answer = |number, size: u32, length| {
            let mut bytes = head(PROBE_ACK, 0, number).to_vec();
            bytes.extend(size.to_be_bytes());
            bytes.resize(length, 0);
            bytes
        };
        assert!(is_answer(&answer(5, 100, 20), 5, 100, false) && is_answer(&answer(5, 100, 100), 5, 100, true));
        for wrong in [answer(6, 100, 20), answer(5, 99, 20), answer(5, 100, 21), answer(5, 100, 16), Vec::new()] {
            assert!(!is_answer(&wrong, 5, 100, false), "{wrong:?}");
        }
        assert_eq!(probe(5, 100, true).len(), 100);
    }
}
