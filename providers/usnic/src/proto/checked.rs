//! The CRC32C that ends a set-up packet where there is no key: it finds damage that a UDP checksum misses, and no attack.

use zerocopy::IntoBytes;

use crate::proto::wire::{FLAG_CHECKED, Head};

/// Bytes that it adds to a packet.
pub(crate) const LEN: usize = 4;

/// The sum over the pieces of a packet, in their order, its head with [`FLAG_CHECKED`] first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u32);

impl Sum {
    pub(crate) fn add(self, piece: &[u8]) -> Sum {
        Sum(crc32c::crc32c_append(self.0, piece))
    }

    /// What is to follow the last piece.
    pub(crate) fn bytes(self) -> [u8; LEN] {
        self.0.to_be_bytes()
    }
}

/// The body without its sum, if it has one that is right.
pub(crate) fn open<'a>(head: &Head, body: &'a [u8]) -> Option<&'a [u8]> {
    let (body, sum) = body.split_last_chunk::<LEN>()?;
    (head.has(FLAG_CHECKED) && Sum::default().add(head.as_bytes()).add(body).bytes() == *sum).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::{self, Kind};

    fn packet(payload: &[u8]) -> Vec<u8> {
        let head = Head::new(Kind::Ack, FLAG_CHECKED, 3, 4);
        let sum = Sum::default().add(head.as_bytes()).add(payload).bytes();
        [head.as_bytes(), payload, &sum].concat()
    }

    fn is_whole(packet: &[u8]) -> bool {
        wire::head(packet).is_some_and(|(head, body)| open(&head, body).is_some())
    }

    #[test]
    fn it_is_the_sum_that_others_compute() {
        assert_eq!(Sum::default().add(b"123456789").0, 0xE306_9283, "the check value of CRC-32C");
        assert_eq!(Sum::default().add(b"1234").add(b"").add(b"56789").0, 0xE306_9283);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        for payload in [&b""[..], b"some payload"] {
            let good = packet(payload);
            let (head, body) = wire::head(&good).expect("a head");
            assert_eq!(open(&head, body), Some(payload));
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_whole(&bad), "bit {bit}");
            }
            for end in 0..good.len() {
                assert!(!is_whole(&good[..end]), "cut at {end}");
            }
        }
    }
}
