//! The hash function of tables whose keys are handles or object ids.
#![forbid(unsafe_code)]

use std::hash::Hasher;

/// Hashes handles by one multiplication. Handles are multiples of 64, and peers cannot choose them.
#[derive(Default)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    /// Hashes the generation of an object id.
    fn write_u32(&mut self, generation: u32) {
        self.0 ^= u64::from(generation);
    }

    fn write_usize(&mut self, handle: usize) {
        let mixed = (self.0 ^ (handle as u64 >> 6)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;
    use crate::runtime::handle::ObjectId;

    #[test]
    fn hashes_of_adjacent_handles_differ_in_the_low_bits() {
        let hasher = BuildHasherDefault::<HandleHasher>::default();
        let low: HashSet<_> = (0..1024).map(|n| hasher.hash_one(0x7000_0000_0000_usize + n * 64) & 1023).collect();
        // A random function would use a share of 1 - 1/e of the buckets, which is 647.
        assert!(low.len() > 600, "{} of 1024", low.len());
    }

    #[test]
    fn hashes_of_generations_of_one_entry_differ() {
        let hasher = BuildHasherDefault::<HandleHasher>::default();
        let hash = |generation| hasher.hash_one(ObjectId { handle: 0x7000_0000_0040, generation });
        assert_eq!((0..100).map(hash).collect::<HashSet<_>>().len(), 100);
    }
}
