//! Tests of the handshake. Other tests of the protocol also use the example terms of a connection and the seeded random
//! numbers of this file.

use super::*;

/// Returns the terms of an example connection.
pub(crate) fn terms() -> ConnectionTerms {
    let mut dice = TestRandom::new(0);
    let (own_offer, peer_offer) = (Offer::new(1, &mut dice), Offer::new(2, &mut dice));
    let peer = "10.0.0.2:700".parse().expect("the literal is a valid address");
    Setup::new(SetupConfig::default(), None).compute_terms(&own_offer, &peer_offer, peer, true, &mut dice).terms
}

/// A generator whose numbers depend only on its seed.
pub(crate) struct TestRandom(u64);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> TestRandom {
        TestRandom(seed)
    }

    /// Returns the next number (splitmix64).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Random for TestRandom {
    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_ne_bytes()[..chunk.len()]);
        }
    }
}

#[test]
fn both_offers_limit_the_agreed_parameters() {
    let mut dice = TestRandom::new(1);
    let own_offer = Offer {
        ord: 9.into(),
        ird: 1.into(),
        credits: 3.into(),
        window_kib: 10.into(),
        mtu: 1500.into(),
        ..Offer::new(1, &mut dice)
    };
    let peer_offer = Offer {
        ord: 5.into(),
        ird: 4.into(),
        credits: 6.into(),
        window_kib: 20.into(),
        mtu: 1400.into(),
        ..Offer::new(2, &mut dice)
    };
    let peer = "10.0.0.2:700".parse().expect("the literal is a valid address");
    let terms = |psk: Option<Psk>, own_offer: &Offer, peer_offer: &Offer, dice: &mut TestRandom| {
        let agreed = Setup::new(SetupConfig::default(), psk).compute_terms(own_offer, peer_offer, peer, true, dice);
        assert_eq!(agreed.seal.is_some(), agreed.terms.overhead != 0);
        agreed.terms
    };
    let made = terms(None, &own_offer, &peer_offer, &mut dice);
    assert_eq!((made.ord, made.ird, made.credits, made.peer_window_kib, made.mtu_ceiling), (4, 1, 6, 20, 1400));
    for (ours_has, theirs_has) in [(true, true), (true, false), (false, true), (false, false)] {
        let [own_offer, peer_offer] = [(own_offer, ours_has), (peer_offer, theirs_has)]
            .map(|(it, has)| Offer { features: u16::from(has).into(), ..it });
        assert_eq!(terms(None, &own_offer, &peer_offer, &mut dice).extensions, ours_has && theirs_has);
    }
    let sealed = terms(Psk::new(&[7; 16]), &own_offer, &peer_offer, &mut dice);
    assert_eq!(sealed.overhead, seal::OVERHEAD);
    assert_ne!(made.seed, sealed.seed, "each handshake gives a new seed");
}

mod handshakes;
mod network;
