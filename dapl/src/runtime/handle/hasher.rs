//! The hash function of tables whose keys are handles, object ids, addresses of objects, or contexts of registered
//! memory.
#![forbid(unsafe_code)]

use std::hash::Hasher;

/// Hashes a key by one multiplication. Handles and addresses of objects are multiples of 64 or 16. The provider and this
/// library choose the keys of a table; consumers and peers cannot.
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

    /// Hashes a context, or the generation of an object id.
    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_usize(&mut self, handle: usize) {
        self.mix(handle as u64 >> 4);
    }
}

impl HandleHasher {
    fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
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
