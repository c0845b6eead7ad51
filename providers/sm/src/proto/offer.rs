//! Rendezvous offers: sends whose bytes stay in the sender's memory until the receiver copies them, or asks the sender
//! to copy them to its staging buffer.
//!
//! The slot contains the total length, then a key, an address and a length for each segment. The receiver copies part
//! after part, and may ask the sender to copy some parts. This module processes numbers only. It checks that the
//! numbers from a peer are consistent.
#![forbid(unsafe_code)]

use dapl::provider::Segment;

use super::message::INLINE;

/// Number of payload words of a slot after the total length.
pub(crate) const WORDS: usize = INLINE / 8 - 1;
/// Maximum number of segments of a rendezvous offer.
pub(crate) const MAX_SEGMENTS: usize = WORDS / 2;
/// Maximum length in bytes of the part that one process copies in one step. The receiver may copy almost a page more,
/// because the length of a delegated part is rounded down to a multiple of `PAGE`.
pub(crate) const MAX_PART_BYTES: u64 = 256 << 10;
/// A part is delegated to the sender only if at least this number of bytes of the message remains.
const MIN_DELEGATED_BYTES: u64 = 48 << 10;
/// The length in bytes of a delegated part is a multiple of this number.
const PAGE: u64 = 4096;
/// Size in bytes of the staging buffer that follows a sender's RMA buffer. It is used for offers that the receiver
/// cannot copy itself.
pub(crate) const STAGING_BYTES: usize = 4 << 10;

/// Encodes a segment of the sender's memory, whose length has at most 32 bits.
pub(crate) fn encode_segment(segment: &Segment) -> [u64; 2] {
    [segment.length << 32 | u64::from(segment.key), segment.address]
}

/// Returns the segments listed in a slot; `None` if there are none or too many, if one is empty, or if their lengths do
/// not add up to the total.
pub(crate) fn offer_segments(count: u32, total: u64, words: [u64; WORDS]) -> Option<impl Iterator<Item = Segment>> {
    let count = usize::try_from(count).ok().filter(|count| (1..=MAX_SEGMENTS).contains(count))?;
    let part = move |n: usize| {
        let [low, address] = [words[2 * n], words[2 * n + 1]];
        Segment { key: low as u32, pad: 0, address, length: low >> 32 }
    };
    let parts = move || (0..count).map(part);
    let sum: u64 = parts().map(|part| part.length).sum();
    (sum == total && parts().all(|part| part.length > 0)).then(parts)
}

/// Splits the `left` remaining bytes: returns the length of the next part, which is delegated to the sender, and of the
/// following part, which the receiver copies. The first length is 0 if `has_helper` is false or few bytes remain.
pub(crate) fn split(left: u64, has_helper: bool) -> (u64, u64) {
    if !has_helper || left < MIN_DELEGATED_BYTES {
        return (0, left.min(MAX_PART_BYTES));
    }
    let window = left.min(2 * MAX_PART_BYTES);
    let of_sender = window / 2 / PAGE * PAGE;
    (of_sender, window - of_sender)
}

/// Returns the word that announces staged bytes: the number of this staging copy, and its length.
pub(crate) fn encode_staged(count: u64, length: usize) -> u64 {
    count << 32 | length as u64
}

/// Returns the slot number of an offer, truncated to the 24-bit length field of a response.
pub(crate) fn truncated_slot(slot: u64) -> u32 {
    slot as u32 & 0xFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(parts: &[Segment]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (n, part) in parts.iter().enumerate() {
            words[2 * n..][..2].copy_from_slice(&encode_segment(part));
        }
        words
    }

    #[test]
    fn offer_round_trips() {
        let list: Vec<_> = (1..=MAX_SEGMENTS as u32)
            .map(|n| Segment { key: !n, pad: 0, address: u64::MAX - 1, length: n.into() })
            .collect();
        for count in 1..=MAX_SEGMENTS {
            let total = (1..=count as u64).sum();
            let found = offer_segments(count as u32, total, words(&list)).unwrap();
            assert_eq!(found.collect::<Vec<_>>(), list[..count]);
        }
    }

    #[test]
    fn inconsistent_offers_are_not_decoded() {
        let part = Segment { key: 1, pad: 0, address: 8, length: u32::MAX.into() };
        let list = words(&[part; MAX_SEGMENTS]);
        let total = u64::from(u32::MAX);
        assert!(offer_segments(1, total, list).is_some() && offer_segments(6, 6 * total, list).is_some());
        for (count, total) in [(0, 0), (1, total - 1), (1, total + 1), (2, total), (7, 7 * total), (u32::MAX, total)] {
            assert!(offer_segments(count, total, list).is_none(), "{count} {total}");
        }
        let hollow = words(&[part, Segment { length: 0, ..part }]);
        assert!(offer_segments(2, total, hollow).is_none(), "an empty segment");
    }

    #[test]
    fn split_parts_are_bounded_and_short_messages_are_not_delegated() {
        for left in [
            1,
            4096,
            MIN_DELEGATED_BYTES - 1,
            MIN_DELEGATED_BYTES,
            65_536,
            65_537,
            MAX_PART_BYTES,
            2 * MAX_PART_BYTES,
            2 * MAX_PART_BYTES + 1,
            1 << 40,
        ] {
            let (none, alone) = split(left, false);
            assert_eq!((none, alone), (0, left.min(MAX_PART_BYTES)));
            let (of_sender, of_receiver) = split(left, true);
            assert!(
                of_receiver > 0
                    && of_receiver < MAX_PART_BYTES + PAGE
                    && of_sender <= MAX_PART_BYTES
                    && of_receiver + of_sender <= left,
                "{left}"
            );
            assert_eq!(of_sender > 0, left >= MIN_DELEGATED_BYTES, "{left}");
        }
    }
}
