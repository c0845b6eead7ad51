//! Cookies. A client proves its source address by returning a cookie, which the server does not store.
//!
//! A cookie is a keyed hash over the source address and the request. The key is replaced every 30 seconds, and the
//! previous key is still accepted, so a cookie is valid for 30 to 60 seconds.

use std::net::{IpAddr, SocketAddr};

use siphasher::sip128::{Hash128, SipHasher24};

use super::Random;
use super::packets::{CookiePacket, RequestHead};
use crate::proto::{Nanos, SECONDS};

/// Period after which the hash key is replaced, in nanoseconds.
pub(crate) const KEY_LIFETIME: Nanos = 30 * SECONDS;

/// The hash keys of an IA.
pub(crate) struct Cookies {
    /// Number of the current key. It is never 0, which means "no cookie" in packets.
    epoch: u32,
    since: Nanos,
    newest: [u8; 16],
    before: [u8; 16],
}

impl Cookies {
    pub(crate) fn new(now: Nanos, random: &mut dyn Random) -> Cookies {
        let mut cookies = Cookies { epoch: random.u32().max(1), since: now, newest: [0; 16], before: [0; 16] };
        random.fill(&mut cookies.newest);
        random.fill(&mut cookies.before);
        cookies
    }

    /// Creates the cookie for a request from this source.
    pub(super) fn create(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        key: &CookieKey,
        random: &mut dyn Random,
    ) -> CookiePacket {
        self.rotate_keys(now, random);
        CookiePacket::new(self.epoch, hash(&self.newest, from, key))
    }

    /// Whether the request contains the cookie that was created for it and this source with the current or previous
    /// key.
    pub(super) fn is_valid(&mut self, now: Nanos, from: SocketAddr, key: &CookieKey, random: &mut dyn Random) -> bool {
        self.rotate_keys(now, random);
        let secret = match key.head.epoch.get() {
            0 => return false,
            epoch if epoch == self.epoch => &self.newest,
            epoch if epoch == previous(self.epoch) => &self.before,
            _ => return false,
        };
        // `Hash128` compares in constant time.
        let words = |bytes: [u8; 16]| Hash128::from(u128::from_be_bytes(bytes));
        words(hash(secret, from, key)) == words(key.head.cookie)
    }

    fn rotate_keys(&mut self, now: Nanos, random: &mut dyn Random) {
        let periods = now.saturating_sub(self.since) / KEY_LIFETIME;
        for _ in 0..periods.min(2) {
            self.before = self.newest;
            random.fill(&mut self.newest);
            self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        }
        self.since += periods * KEY_LIFETIME;
    }
}

fn previous(epoch: u32) -> u32 {
    if epoch == 1 { u32::MAX } else { epoch - 1 }
}

/// The parts of a request from which its cookie is created and checked. The cookie covers the source address, the
/// qualifier, the number of hand-offs, `conn` and `token`.
pub(super) struct CookieKey {
    pub(super) head: RequestHead,
    pub(super) conn: u32,
    pub(super) token: u64,
}

fn hash(secret: &[u8; 16], from: SocketAddr, key: &CookieKey) -> [u8; 16] {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let pieces: [&[u8]; 6] = [
        &ip.octets(),
        &from.port().to_be_bytes(),
        &key.conn.to_be_bytes(),
        &key.token.to_be_bytes(),
        &key.head.qual.to_bytes(),
        &key.head.hop.to_bytes(),
    ];
    SipHasher24::new_with_key(secret).hash(&pieces.concat()).as_u128().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRandom;
    use super::*;

    const FROM: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 700);

    fn key(ticket: Option<CookiePacket>) -> CookieKey {
        CookieKey { head: RequestHead::new(5, 0, ticket), conn: 6, token: 7 }
    }

    fn issued(cookies: &mut Cookies, now: Nanos, dice: &mut TestRandom) -> CookieKey {
        let ticket = cookies.create(now, FROM, &key(None), dice);
        key(Some(ticket))
    }

    #[test]
    fn cookie_is_valid_for_one_to_two_periods() {
        for start in [0, 29 * SECONDS] {
            let mut dice = TestRandom::new(1);
            let mut cookies = Cookies::new(0, &mut dice);
            let key = issued(&mut cookies, start, &mut dice);
            for now in [start, start + KEY_LIFETIME, 2 * KEY_LIFETIME - 1] {
                assert!(
                    cookies.is_valid(now, FROM, &key, &mut dice),
                    "a cookie issued at {start} ns must be valid at {now} ns"
                );
            }
            assert!(!cookies.is_valid(2 * KEY_LIFETIME, FROM, &key, &mut dice));
            assert!(!cookies.is_valid(1000 * KEY_LIFETIME, FROM, &key, &mut dice));
        }
    }

    #[test]
    fn cookie_is_valid_only_for_its_source_and_request() {
        let mut dice = TestRandom::new(2);
        let mut cookies = Cookies::new(0, &mut dice);
        let good = issued(&mut cookies, 0, &mut dice);
        assert!(cookies.is_valid(0, FROM, &good, &mut dice));
        for from in ["10.0.0.2:700", "10.0.0.1:701", "[::1]:700"] {
            assert!(
                !cookies.is_valid(0, from.parse().expect("the literal is a valid address"), &good, &mut dice),
                "the cookie must be invalid from {from}"
            );
        }
        let head = good.head;
        let others = [
            CookieKey { conn: 8, ..good },
            CookieKey { token: 8, ..good },
            CookieKey { head: RequestHead { qual: 8.into(), ..head }, ..good },
            CookieKey { head: RequestHead { hop: 1.into(), ..head }, ..good },
            CookieKey { head: RequestHead { epoch: 0.into(), ..head }, ..good },
            CookieKey { head: RequestHead { epoch: (head.epoch.get() + 1).into(), ..head }, ..good },
            CookieKey { head: RequestHead { epoch: (head.epoch.get() - 1).into(), ..head }, ..good },
        ];
        for (which, other) in others.iter().enumerate() {
            assert!(
                !cookies.is_valid(0, FROM, other, &mut dice),
                "the cookie must be invalid for changed request {which}"
            );
        }
        for bit in 0..128 {
            let mut cookie = head.cookie;
            cookie[bit / 8] ^= 1 << (bit % 8);
            let forged = CookieKey { head: RequestHead { cookie, ..head }, ..good };
            assert!(
                !cookies.is_valid(0, FROM, &forged, &mut dice),
                "the cookie with bit {bit} flipped must be invalid"
            );
        }
    }

    #[test]
    fn restarted_server_does_not_accept_old_cookies() {
        let (mut dice, mut other) = (TestRandom::new(3), TestRandom::new(4));
        let good = issued(&mut Cookies::new(0, &mut dice), 0, &mut dice);
        assert!(!Cookies::new(0, &mut other).is_valid(0, FROM, &good, &mut other));
    }

    #[test]
    fn cookie_key_epochs_wrap_and_skip_zero() {
        let mut dice = TestRandom::new(5);
        let mut cookies = Cookies { epoch: u32::MAX, ..Cookies::new(0, &mut dice) };
        let last = issued(&mut cookies, 0, &mut dice);
        let first = issued(&mut cookies, KEY_LIFETIME, &mut dice);
        assert_eq!(first.head.epoch.get(), 1);
        assert!(
            cookies.is_valid(KEY_LIFETIME, FROM, &last, &mut dice)
                && cookies.is_valid(KEY_LIFETIME, FROM, &first, &mut dice)
        );
        assert!(
            !cookies.is_valid(2 * KEY_LIFETIME, FROM, &last, &mut dice)
                && cookies.is_valid(2 * KEY_LIFETIME, FROM, &first, &mut dice)
        );
    }
}
