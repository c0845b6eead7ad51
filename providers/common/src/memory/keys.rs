//! Keys of registered memory, for providers that give them out themselves: a place in a table, and 16 bits that differ each
//! time the place serves.
//!
//! A freed place rests before it serves again, and no key comes a second time before all others of its place have come. What a
//! key opens is the provider's table's business.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use dapl::error::{Error, Resource, Result};

/// How many freed places rest before the oldest serves again.
const QUARANTINE: usize = 1024;

/// The places of a table, and their keys. Place 0 is never used, so no key is 0.
#[derive(Debug)]
pub struct KeyTable {
    slots: usize,
    /// The low nonce of the last key of every place that has served, the first of which is place 1.
    nonces: Vec<u16>,
    quarantined: VecDeque<u32>,
    /// How a nonce follows the last: with a factor of 4n + 1 and an odd summand each comes once before the first comes again.
    factor: u16,
    summand: u16,
    random: u64,
}

impl KeyTable {
    /// Of a table with so many slots, at most 65,536. `seed` is of the system's random source, and not 0.
    pub fn new(slots: usize, seed: u64) -> Self {
        let (factor, summand) = ((seed >> 16) as u16 & !3 | 1, (seed >> 32) as u16 | 1);
        KeyTable { slots, nonces: Vec::new(), quarantined: VecDeque::new(), factor, summand, random: seed }
    }

    /// Where in the table a key has its entry.
    #[inline]
    pub fn index(key: u32) -> usize {
        (key >> 16) as usize
    }

    /// A key that opens nothing yet. Errors: `Exhausted(MemoryRegion)`.
    pub fn reserve(&mut self) -> Result<u32> {
        self.take().ok_or_else(|| {
            log::error!("all {} memory registrations of this IA are in use", self.slots - 1);
            Error::Exhausted(Resource::MemoryRegion)
        })
    }

    fn take(&mut self) -> Option<u32> {
        let used = self.nonces.len();
        if self.quarantined.len() > QUARANTINE || used == self.slots - 1 {
            let place = self.quarantined.pop_front()?;
            let nonce = &mut self.nonces[place as usize - 1];
            *nonce = nonce.wrapping_mul(self.factor).wrapping_add(self.summand);
            return Some(place << 16 | u32::from(*nonce));
        }
        // xorshift over a seed from the system: enough that a peer cannot count on the next key.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let nonce = (self.random >> 32) as u16;
        self.nonces.push(nonce);
        Some((used as u32 + 1) << 16 | u32::from(nonce))
    }

    /// A key that was taken, and opens nothing any more.
    pub fn release_key(&mut self, key: u32) {
        self.quarantined.push_back(key >> 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_comes_again() {
        let mut places = KeyTable::new(1 << 16, 7);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..300_000 {
            let key = places.take().unwrap();
            assert!(seen.insert(key), "{key:#x}");
            places.release_key(key);
        }
    }

    #[test]
    fn places_rest_before_they_serve_again() {
        let mut places = KeyTable::new(1 << 16, 3);
        let first = places.take().unwrap();
        places.release_key(first);
        for _ in 0..500 {
            let key = places.take().unwrap();
            assert_ne!(KeyTable::index(key), KeyTable::index(first));
            places.release_key(key);
        }
    }

    #[test]
    fn a_full_table_gives_none_until_one_comes_back() {
        let mut places = KeyTable::new(4, 9);
        let keys: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(keys.iter().map(|key| KeyTable::index(*key)).collect::<Vec<_>>(), [1, 2, 3]);
        places.release_key(keys[1]);
        let again = places.take().unwrap();
        assert!(KeyTable::index(again) == 2 && again != keys[1] && places.take().is_none());
    }
}
