//! Allocates keys of registered memory. A key consists of an index into the provider's table (upper 16 bits) and a
//! nonce that changes with each use of the index (lower 16 bits).
//!
//! A freed index is reused only after at least 1,024 other indices were freed, or earlier if every index of the table
//! was used. A key is reused only after all 65,535 other keys of its index.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::error::{Error, Resource, Result};

/// A freed index stays quarantined until this number of other indices were freed, unless every index of the table was
/// used.
const QUARANTINE: usize = 1024;

/// The indices of a table, and their keys. Index 0 is never used, so no key is 0.
pub struct KeyTable {
    slots: usize,
    /// The last nonce of each index that was ever used, beginning with index 1.
    nonces: Vec<u16>,
    quarantined: VecDeque<u32>,
    /// The next nonce of an index is `nonce * factor + summand`. With a factor of 4n + 1 and an odd summand, this
    /// sequence contains all 65,536 values before one repeats (Hull-Dobell theorem).
    factor: u16,
    summand: u16,
    random: u64,
}

impl KeyTable {
    /// Creates the keys of a table with `slots` entries, at most 65,536. `seed` must be a random number from the
    /// kernel, and not 0.
    pub fn new(slots: usize, seed: u64) -> Self {
        let (factor, summand) = ((seed >> 16) as u16 & !3 | 1, (seed >> 32) as u16 | 1);
        KeyTable { slots, nonces: Vec::new(), quarantined: VecDeque::new(), factor, summand, random: seed }
    }

    /// Returns the table index of a key.
    #[inline]
    pub fn index(key: u32) -> usize {
        (key >> 16) as usize
    }

    /// Reserves a key. The key grants no access until the provider fills its table entry. Errors:
    /// `Exhausted(MemoryRegion)`.
    pub fn reserve(&mut self) -> Result<u32> {
        self.take().ok_or_else(|| {
            log::error!(
                "all {} memory keys of this IA are in use (each LMR and each bound RMR has one); free LMRs or RMRs",
                self.slots - 1
            );
            Error::Exhausted(Resource::MemoryRegion)
        })
    }

    fn take(&mut self) -> Option<u32> {
        let used = self.nonces.len();
        if self.quarantined.len() > QUARANTINE || used == self.slots - 1 {
            let index = self.quarantined.pop_front()?;
            let nonce = &mut self.nonces[index as usize - 1];
            *nonce = nonce.wrapping_mul(self.factor).wrapping_add(self.summand);
            return Some(index << 16 | u32::from(*nonce));
        }
        // xorshift with a random seed, so that a peer can hardly guess other keys. It is not a cryptographic generator.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let nonce = (self.random >> 32) as u16;
        self.nonces.push(nonce);
        Some((used as u32 + 1) << 16 | u32::from(nonce))
    }

    /// Frees a key, and quarantines its index. The key's table entry must no longer grant access.
    pub fn release_key(&mut self, key: u32) {
        self.quarantined.push_back(key >> 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_300_000_keys_of_a_key_table_do_not_repeat() {
        let mut table = KeyTable::new(1 << 16, 7);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..300_000 {
            let key = table.take().unwrap();
            assert!(seen.insert(key), "{key:#x}");
            table.release_key(key);
        }
    }

    #[test]
    fn freed_index_is_not_reused_by_the_next_500_keys() {
        let mut table = KeyTable::new(1 << 16, 3);
        let first = table.take().unwrap();
        table.release_key(first);
        for _ in 0..500 {
            let key = table.take().unwrap();
            assert_ne!(KeyTable::index(key), KeyTable::index(first));
            table.release_key(key);
        }
    }

    #[test]
    fn full_key_table_reuses_a_released_index_with_a_new_key() {
        let mut table = KeyTable::new(4, 9);
        let keys: Vec<_> = std::iter::from_fn(|| table.take()).collect();
        assert_eq!(keys.iter().map(|key| KeyTable::index(*key)).collect::<Vec<_>>(), [1, 2, 3]);
        table.release_key(keys[1]);
        let again = table.take().unwrap();
        assert!(KeyTable::index(again) == 2 && again != keys[1] && table.take().is_none());
    }
}
