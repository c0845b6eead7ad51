//! What the tests of the set-up share.

use super::*;

/// Of some connection.
pub(crate) fn terms() -> Terms {
    let mut dice = Dice::new(0);
    let (ours, theirs) = (Offer::new(1, &mut dice), Offer::new(2, &mut dice));
    let peer = "10.0.0.2:700".parse().expect("an address");
    Setup::new(Config::default(), None).agree(&ours, &theirs, peer, true, &mut dice).terms
}

/// Random numbers that are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Random for Dice {
    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_ne_bytes()[..chunk.len()]);
        }
    }
}

mod cases;
mod world;
