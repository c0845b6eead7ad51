//! Authenticated encryption with a pre-shared key, for network paths that are not trusted.
//!
//! "Seal" means encrypt and authenticate, "open" means decrypt and check.
//!
//! A [`PacketGuard`] protects handshake packets: XChaCha20-Poly1305 with random nonces and a key derived from the
//! pre-shared key. A [`Seal`] protects the packets of a connection: ChaCha20-Poly1305 with a counter as nonce and a
//! replay window. It has one key per direction, derived by HKDF-SHA256 from the pre-shared key and the random numbers
//! of both hosts.
//!
//! A packet that cannot be authenticated gets no reply, so a host with another key cannot detect a listener.
//!
//! ```text
//! handshake packet              PacketHeader  clear part  sealed(rest)  nonce(24)   tag(16)
//! handshake packet without key  PacketHeader  clear part  rest          CRC32C(4)
//! packet of a connection        PacketHeader              sealed(rest)  counter(8)  tag(16)
//! ```
//!
//! The header and the clear part are authenticated but not encrypted. There is no forward secrecy: with the pre-shared
//! key, recorded traffic can be decrypted.

mod replay;

use std::fmt;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;
use zerocopy::IntoBytes;
use zeroize::Zeroizing;

use self::replay::ReplayWindow;
use crate::proto::setup::{Offer, Random};
use crate::proto::wire::{self, FLAG_CHECKED, FLAG_SEALED, PacketHeader};

const HEAD: usize = size_of::<PacketHeader>();
const TAG: usize = 16;
const NONCE: usize = 24;
const COUNTER: usize = 8;
/// Length in bytes of the CRC32C at the end of handshake packets if there is no key. It detects errors that the UDP
/// checksum misses.
const SUM: usize = 4;

/// Number of bytes that a [`Seal`] adds to a packet.
pub(crate) const OVERHEAD: usize = COUNTER + TAG;

/// Maximum number of bytes that a [`PacketGuard`] adds.
pub(crate) const GUARD: usize = NONCE + TAG;

/// Minimum length of a secret in bytes, so that it cannot be guessed.
pub(crate) const MIN_SECRET: usize = 16;

/// The pre-shared key, from which other keys are derived.
pub(crate) struct Psk(Zeroizing<[u8; 32]>);

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

impl Psk {
    /// Derives the key from a secret. Returns `None` if the secret has fewer than [`MIN_SECRET`] bytes. The secret
    /// should be random, because a password is easily guessed.
    pub(crate) fn new(secret: &[u8]) -> Option<Psk> {
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(&Hkdf::<Sha256>::extract(Some(b"dapl-usnic 1"), secret).0);
        (secret.len() >= MIN_SECRET).then_some(Psk(key))
    }

    /// Derives the key for `purpose`.
    fn key(&self, purpose: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::from_prk(&*self.0)
            .and_then(|hkdf| hkdf.expand_multi_info(purpose, &mut *key).map_err(|_| hkdf::InvalidPrkLength))
            .expect("32 bytes are a valid key and output length");
        key
    }
}

/// Protects handshake packets. With a pre-shared key, packets are sealed. Without a key, they get a checksum.
pub(crate) struct PacketGuard(Option<XChaCha20Poly1305>);

impl fmt::Debug for PacketGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "PacketGuard(sealed)" } else { "PacketGuard(checked)" })
    }
}

impl PacketGuard {
    pub(crate) fn new(psk: Option<&Psk>) -> PacketGuard {
        PacketGuard(psk.map(|psk| XChaCha20Poly1305::new((&*psk.key(&[b"set-up"])).into())))
    }

    /// Whether there is a pre-shared key.
    pub(crate) fn is_sealed(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the number of bytes that the protection adds to a packet.
    pub(crate) fn overhead(&self) -> usize {
        if self.is_sealed() { GUARD } else { SUM }
    }

    /// Appends a packet to `out`: the head (with the flag of the protection), the clear part, and `rest`, which is
    /// sealed or followed by a checksum.
    pub(crate) fn seal(
        &self,
        mut head: PacketHeader,
        clear: &[u8],
        rest: &[u8],
        random: &mut dyn Random,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let flag = if self.is_sealed() { FLAG_SEALED } else { FLAG_CHECKED };
        head.flags = (head.flags.get() | flag).into();
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(clear);
        let secret = out.len();
        out.extend_from_slice(rest);
        let Some(cipher) = &self.0 else {
            let sum = checksum(&out[start..]);
            out.extend_from_slice(&sum);
            return;
        };
        let mut nonce = [0; NONCE];
        random.fill(&mut nonce);
        let (open, sealed) = out[start..].split_at_mut(secret - start);
        let tag = cipher.encrypt_inout_detached(&XNonce::from(nonce), open, sealed.into());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&tag.expect("a packet is far below the cipher's limit"));
    }

    /// Checks a packet with `clear` bytes of clear part, and returns its protected part. `buffer` is used for
    /// decryption. Returns `None` if the packet is damaged, or has another key or another kind of protection.
    pub(crate) fn open<'a>(&self, packet: &[u8], clear: usize, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let (head, _) = wire::head(packet)?;
        let (open, rest) = packet.split_at_checked(HEAD + clear)?;
        buffer.clear();
        match &self.0 {
            None => {
                let (body, given) = packet.split_last_chunk::<SUM>()?;
                let is_good = head.has(FLAG_CHECKED) && !head.has(FLAG_SEALED) && checksum(body) == *given;
                buffer.extend_from_slice(body.get(HEAD + clear..).filter(|_| is_good)?);
            }
            Some(cipher) => {
                let (rest, tag) = rest.split_last_chunk::<TAG>()?;
                let (rest, nonce) = rest.split_last_chunk::<NONCE>()?;
                buffer.extend_from_slice(rest);
                let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
                cipher.decrypt_inout_detached(&nonce, open, buffer.as_mut_slice().into(), &tag).ok()?;
            }
        }
        Some(buffer)
    }
}

/// Computes the CRC32C of a packet.
fn checksum(packet: &[u8]) -> [u8; SUM] {
    crc32c::crc32c(packet).to_be_bytes()
}

/// The keys, the counter and the replay window of a connection.
pub(crate) struct Seal {
    outward: ChaCha20Poly1305,
    inward: ChaCha20Poly1305,
    /// Counter of the next packet to send.
    next: u64,
    seen: ReplayWindow,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Seal {
    /// Derives the keys of a connection from the offers of both hosts in the handshake.
    pub(crate) fn new(psk: &Psk, client: &Offer, server: &Offer, active: bool) -> Seal {
        let key = |direction: &[u8]| {
            let names = [client.token.as_bytes(), server.token.as_bytes()];
            let key = psk.key(&[b"connection", direction, &client.random, &server.random, names[0], names[1]]);
            ChaCha20Poly1305::new((&*key).into())
        };
        let (to_server, to_client) = (key(b">"), key(b"<"));
        let (outward, inward) = if active { (to_server, to_client) } else { (to_client, to_server) };
        Seal { outward, inward, next: 0, seen: ReplayWindow::new() }
    }

    /// Seals the packet from `start` to the end of `out`, which grows by [`OVERHEAD`]. Returns false, without effect,
    /// if the packet has no complete head, or if all counters are used.
    #[must_use]
    pub(crate) fn seal(&mut self, out: &mut Vec<u8>, start: usize) -> bool {
        let Some(after) = self.next.checked_add(1) else { return false };
        let Some((head, body)) = out.get_mut(start..).and_then(|packet| packet.split_at_mut_checked(HEAD)) else {
            return false;
        };
        // Sets FLAG_SEALED: the flags are bytes 2 and 3 of the head, in network byte order.
        head[2] |= (FLAG_SEALED >> 8) as u8;
        head[3] |= FLAG_SEALED as u8;
        let Ok(tag) = self.outward.encrypt_inout_detached(&nonce(self.next), head, body.into()) else { return false };
        out.extend_from_slice(&self.next.to_be_bytes());
        out.extend_from_slice(&tag);
        self.next = after;
        true
    }

    /// Whether `open` would succeed. The counter of the packet is not recorded, so `open` still accepts the packet.
    pub(crate) fn authenticates(&self, packet: &[u8]) -> bool {
        self.decrypt(&mut packet.to_vec()).is_some()
    }

    /// Decrypts a packet in place, and returns its head and body. Returns `None` if the packet is not sealed, has
    /// another key or is damaged, or if its counter was seen before or is older than the replay window. The bytes of
    /// the packet may have changed then.
    pub(crate) fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<(PacketHeader, &'a [u8])> {
        let (head, body, counter) = self.decrypt(packet)?;
        // The counter is recorded only after authentication. Otherwise a forged counter could make the window reject
        // valid packets.
        self.seen.take(counter);
        Some((head, body))
    }

    fn decrypt<'a>(&self, packet: &'a mut [u8]) -> Option<(PacketHeader, &'a [u8], u64)> {
        let (head, _) = wire::head(packet).filter(|(head, _)| head.has(FLAG_SEALED))?;
        let (clear, rest) = packet.split_at_mut(HEAD);
        let (rest, tag) = rest.split_last_chunk_mut::<TAG>()?;
        let (body, counter) = rest.split_last_chunk_mut::<COUNTER>()?;
        let counter = u64::from_be_bytes(*counter);
        if !self.seen.is_new(counter) {
            return None;
        }
        let tag = Tag::from(*tag);
        self.inward.decrypt_inout_detached(&nonce(counter), clear, (&mut *body).into(), &tag).ok()?;
        Some((head, body, counter))
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests;
