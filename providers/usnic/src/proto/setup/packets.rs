//! Wire format of the packets of the handshake and of the close.
//!
//! Numbers are in network byte order, and records have no padding. `seal::PacketGuard` protects handshake packets up to
//! the accept ("guarded"). Cookies and rejects contain the number of hand-offs of their request, which distinguishes a
//! late reply of an earlier listener from one of the current listener.
//!
//! Three rules hold in all versions of the protocol. A request begins with the packet header and [`RequestHead`]. The
//! protected part of a request begins with the client's connection number and token. A reject is readable up to the end
//! of [`RejectPacket`].
//!
//! ```text
//! Request  PacketHeader (1)  RequestHead  guarded: Offer  private data  padding to 1185 to 1200 bytes
//! Cookie   PacketHeader      guarded: CookiePacket
//! Accept   PacketHeader      guarded: Offer  private data
//! Reject   PacketHeader      guarded: RejectPacket  private data
//! Reset    PacketHeader (1)  RequestHead  guarded: Withdrawal    the client withdraws its request
//! Reset    PacketHeader      guarded, without content            FLAG_UNKNOWN: the client does not know the accept
//! Confirm  PacketHeader (2)
//! Fin      PacketHeader (2)  Fin
//! FinAck   PacketHeader (2)
//! Reset    PacketHeader (2)                                      ends an established connection
//! ```
//!
//! 1. The connection number and the token are 0.
//! 2. The packet is protected like a data packet.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ConnectionTerms, MAX_PRIVATE, MIN_MTU, Offer, Random};
use crate::proto::seal::{GUARD, PacketGuard};
use crate::proto::wire::{self, FLAG_UNKNOWN, Kind, PacketHeader, VERSION};

/// Maximum length of a request in bytes. Every path must carry this size, and no reply is longer than three times this
/// size.
pub(crate) const REQUEST: usize = 1200;
/// Maximum number of bytes by which a retransmitted request is shortened. The server's kernel selects a process by the
/// request's length (`net::reuseport`).
pub(crate) const SHORTER: usize = 15;

/// The part of a request that is not encrypted.
#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHead {
    /// Lowest version that the client supports.
    pub(super) min: u8,
    pub(super) max: u8,
    /// Number of times that the request was handed off.
    pub(super) hop: U16,
    /// Number of the key with which the server created the cookie, or 0 without a cookie.
    pub(super) epoch: U32,
    pub(super) qual: U64,
    pub(super) cookie: [u8; 16],
}

impl RequestHead {
    pub(super) fn new(qual: u64, hop: u16, ticket: Option<CookiePacket>) -> RequestHead {
        let CookiePacket { epoch, cookie, .. } = ticket.unwrap_or(CookiePacket::new_zeroed());
        RequestHead { min: VERSION, max: VERSION, hop: hop.into(), epoch, qual: qual.into(), cookie }
    }

    pub(crate) fn qual(&self) -> u64 {
        self.qual.get()
    }
}

/// Returns the clear part of a request of any version, or of its withdrawal. Checks only the kind and length of a
/// request, and the kind, version and connection number of a withdrawal.
pub(crate) fn request_head(packet: &[u8]) -> Option<RequestHead> {
    let (head, rest) = wire::head(packet)?;
    let is_request = head.kind == Kind::Request as u8 && (REQUEST - SHORTER..=REQUEST).contains(&packet.len());
    let is_withdrawal = head.kind() == Some(Kind::Reset) && head.conn.get() == 0;
    RequestHead::read_from_prefix(rest)
        .ok()
        .filter(|_| is_request || is_withdrawal)
        .map(|(request_head, _)| request_head)
}

/// Encodes the offer and private data of a request or accept. The caller has checked the length of the private data.
fn put_offer(offer: &Offer, private: &[u8], out: &mut Vec<u8>) {
    let offer = Offer { private: (private.len() as u16).into(), ..*offer };
    out.extend_from_slice(offer.as_bytes());
    out.extend_from_slice(private);
}

/// Decodes an offer and its private data. Bytes after the private data are padding. Returns `None` if the offer is
/// invalid.
pub(super) fn offer(bytes: &[u8]) -> Option<(Offer, &[u8])> {
    let (offer, rest) = Offer::read_from_prefix(bytes).ok()?;
    let private = usize::from(offer.private.get());
    let is_sane = offer.conn != 0 && offer.token != 0 && offer.window_kib != 0 && offer.mtu.get() >= MIN_MTU;
    (is_sane && private <= MAX_PRIVATE).then_some((offer, rest.get(..private)?))
}

/// Decodes the client's connection number and token, which can be read even if the rest of the offer is invalid.
pub(super) fn requester(bytes: &[u8]) -> Option<(u32, u64)> {
    let (conn, rest) = U32::read_from_prefix(bytes).ok()?;
    let (token, _) = U64::read_from_prefix(rest).ok()?;
    Some((conn.get(), token.get())).filter(|(conn, token)| *conn != 0 && *token != 0)
}

/// Encodes a request with `shorter` bytes less than [`REQUEST`]. Truncates private data beyond [`MAX_PRIVATE`].
pub(super) fn put_request(
    guard: &PacketGuard,
    request_head: &RequestHead,
    own_offer: &Offer,
    private: &[u8],
    shorter: usize,
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) {
    let mut rest = Vec::with_capacity(REQUEST);
    put_offer(own_offer, &private[..private.len().min(MAX_PRIVATE)], &mut rest);
    rest.resize(
        REQUEST - shorter.min(SHORTER) - size_of::<PacketHeader>() - size_of::<RequestHead>() - guard.overhead(),
        0,
    );
    guard.seal(PacketHeader::new(Kind::Request, 0, 0, 0), request_head.as_bytes(), &rest, random, out);
}

/// Content of a cookie packet. It contains a cookie that the client must return with its request, or it is a Pending
/// reply: the request waits for the server's consumer.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct CookiePacket {
    hop: U16,
    spare: U16,
    /// Number of the key with which the server created the cookie, or 0 in a Pending reply.
    pub(super) epoch: U32,
    pub(super) cookie: [u8; 16],
}

impl CookiePacket {
    pub(super) fn new(epoch: u32, cookie: [u8; 16]) -> CookiePacket {
        CookiePacket { hop: 0.into(), spare: 0.into(), epoch: epoch.into(), cookie }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RejectReason {
    NoListener,
    /// The consumer has rejected the request.
    Refused,
    NoSpace,
    /// None of the client's versions is supported.
    Version,
    NotUnderstood,
    /// The request must be sent to the listener on this qualifier.
    HandedOff(u64),
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RejectReason::NoListener => "no listener on this qualifier, or its accept queue is full",
            RejectReason::Refused => "the peer's program rejected it",
            RejectReason::NoSpace => "the peer has no resources for a connection",
            RejectReason::Version => {
                "the peer supports no common version of the protocol: install the same release on both hosts"
            }
            RejectReason::NotUnderstood => "the peer cannot decode the request: install the same release on both hosts",
            RejectReason::HandedOff(qual) => return write!(f, "the peer handed the request off to qualifier {qual}"),
        })
    }
}

impl RejectReason {
    fn code(self) -> u8 {
        match self {
            RejectReason::NoListener => 1,
            RejectReason::Refused => 2,
            RejectReason::NoSpace => 3,
            RejectReason::Version => 4,
            RejectReason::NotUnderstood => 5,
            RejectReason::HandedOff(_) => 6,
        }
    }

    fn of(code: u8, qual: u64) -> Option<RejectReason> {
        use RejectReason::*;
        [NoListener, Refused, NoSpace, Version, NotUnderstood, HandedOff(qual)].into_iter().find(|r| r.code() == code)
    }
}

/// A [`RejectReason`] on the wire.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RejectPacket {
    reason: u8,
    /// Lowest version that the server supports.
    min: u8,
    max: u8,
    spare: u8,
    hop: U16,
    more: U16,
    qual: U64,
}

/// The client's connection number and token, and the number of hand-offs of its request. Each reply contains the number
/// and the token. A cookie or a reject also contains the number of hand-offs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ReplyTarget {
    pub(super) conn: u32,
    pub(super) token: u64,
    pub(super) hop: u16,
}

impl ReplyTarget {
    fn head(self, kind: Kind) -> PacketHeader {
        PacketHeader::new(kind, 0, self.conn, self.token)
    }
}

/// Encodes a cookie packet, or a Pending reply if there is no `ticket`.
pub(super) fn put_cookie(
    guard: &PacketGuard,
    to: ReplyTarget,
    ticket: Option<CookiePacket>,
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) {
    let ticket = CookiePacket { hop: to.hop.into(), ..ticket.unwrap_or(CookiePacket::new_zeroed()) };
    guard.seal(to.head(Kind::Cookie), &[], ticket.as_bytes(), random, out);
}

/// Encodes a reject. Truncates private data beyond [`MAX_PRIVATE`].
pub(super) fn put_reject(
    guard: &PacketGuard,
    to: ReplyTarget,
    reason: RejectReason,
    private: &[u8],
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) {
    let qual = if let RejectReason::HandedOff(qual) = reason { qual } else { 0 };
    let refused = RejectPacket {
        reason: reason.code(),
        min: VERSION,
        max: VERSION,
        spare: 0,
        hop: to.hop.into(),
        more: 0.into(),
        qual: qual.into(),
    };
    let rest = [refused.as_bytes(), &private[..private.len().min(MAX_PRIVATE)]].concat();
    guard.seal(to.head(Kind::Reject), &[], &rest, random, out);
}

/// Encodes an accept. Truncates private data beyond [`MAX_PRIVATE`].
pub(super) fn put_accept(
    guard: &PacketGuard,
    to: ReplyTarget,
    own_offer: &Offer,
    private: &[u8],
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) {
    let mut rest = Vec::with_capacity(size_of::<Offer>() + MAX_PRIVATE);
    put_offer(own_offer, &private[..private.len().min(MAX_PRIVATE)], &mut rest);
    guard.seal(to.head(Kind::Accept), &[], &rest, random, out);
}

/// Maximum length in bytes of a packet to a client.
pub(super) const MAX_REPLY_BYTES: usize = size_of::<PacketHeader>() + size_of::<Offer>() + MAX_PRIVATE + GUARD;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SetupReply<'a> {
    Again(CookiePacket),
    Pending,
    Accept(Offer, &'a [u8]),
    /// The private data are those of [`RejectReason::Refused`]. They are empty for all other reasons.
    Reject(RejectReason, &'a [u8]),
}

/// Decodes a reply, and the number of hand-offs in it, if any. `buffer` is used for decryption.
pub(super) fn decode_reply<'a>(
    guard: &PacketGuard,
    packet: &[u8],
    buffer: &'a mut Vec<u8>,
) -> Option<(Option<u16>, SetupReply<'a>)> {
    let (head, _) = wire::head(packet).filter(|_| packet.len() <= MAX_REPLY_BYTES)?;
    if head.kind == Kind::Reject as u8 {
        let (refused, private) = RejectPacket::read_from_prefix(guard.open(packet, 0, buffer)?).ok()?;
        let reason = RejectReason::of(refused.reason, refused.qual.get())?;
        // From a peer with another protocol version, only a reject with reason `Version` is decoded.
        let is_decodable = head.version == VERSION || reason == RejectReason::Version;
        let private = if reason == RejectReason::Refused { private } else { &[] };
        return is_decodable.then_some((Some(refused.hop.get()), SetupReply::Reject(reason, private)));
    }
    match head.kind()? {
        Kind::Cookie => {
            let ticket = CookiePacket::read_from_bytes(guard.open(packet, 0, buffer)?).ok()?;
            let is_pending = ticket.epoch.get() == 0;
            Some((Some(ticket.hop.get()), if is_pending { SetupReply::Pending } else { SetupReply::Again(ticket) }))
        }
        Kind::Accept => {
            let bytes = guard.open(packet, 0, buffer)?;
            let (peer_offer, private) = offer(bytes)?;
            let is_whole = bytes.len() == size_of::<Offer>() + private.len();
            is_whole.then_some((None, SetupReply::Accept(peer_offer, private)))
        }
        _ => None,
    }
}

/// Content of a withdrawal: the client's connection number and token in its request.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Withdrawal {
    conn: U32,
    token: U64,
}

pub(super) fn put_withdrawal(
    guard: &PacketGuard,
    request_head: &RequestHead,
    own_offer: &Offer,
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) {
    let withdrawal = Withdrawal { conn: own_offer.conn, token: own_offer.token };
    guard.seal(PacketHeader::new(Kind::Reset, 0, 0, 0), request_head.as_bytes(), withdrawal.as_bytes(), random, out);
}

pub(super) fn withdrawal(guard: &PacketGuard, packet: &[u8]) -> Option<(u32, u64)> {
    let mut buffer = Vec::new();
    let withdrawal = Withdrawal::read_from_bytes(guard.open(packet, size_of::<RequestHead>(), &mut buffer)?).ok()?;
    Some((withdrawal.conn.get(), withdrawal.token.get()))
}

/// Minimum length in bytes of a quote in an ICMP message. Such a quote includes fields that an attacker off the path
/// does not know.
const MIN_QUOTE_BYTES: usize = 64;

/// Whether `quote`, the start of a packet in an ICMP message, belongs to `packet`. An attacker off the path cannot
/// forge the quote, because the packet contains random numbers or is encrypted.
pub(super) fn is_quoted(packet: &[u8], quote: &[u8]) -> bool {
    quote.len() >= MIN_QUOTE_BYTES && packet.starts_with(quote)
}

/// Decodes the protected part of a request into `buffer`.
pub(super) fn request<'a>(guard: &PacketGuard, packet: &[u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    guard.open(packet, size_of::<RequestHead>(), buffer)
}

/// Whether the packet is a Reset with the "unknown" flag, whose sender does not know the attempt. The Reset of an
/// established connection does not have this flag.
pub(super) fn is_unknown(guard: &PacketGuard, packet: &[u8]) -> bool {
    let is_it = |head: PacketHeader| head.kind() == Some(Kind::Reset) && head.has(FLAG_UNKNOWN);
    let is_reset = wire::head(packet).is_some_and(|(head, _)| is_it(head));
    is_reset && guard.open(packet, 0, &mut Vec::new()).is_some_and(|rest| rest.is_empty())
}

/// Encodes a Reset with the "unknown" flag, to the sender of `peer_offer`.
pub(super) fn put_unknown(guard: &PacketGuard, peer_offer: &Offer, random: &mut dyn Random, out: &mut Vec<u8>) {
    let head = PacketHeader::new(Kind::Reset, FLAG_UNKNOWN, peer_offer.conn.get(), peer_offer.token.get());
    guard.seal(head, &[], &[], random, out);
}

/// Returns the header of a packet to the peer of a connection.
pub(crate) fn head(kind: Kind, terms: &ConnectionTerms) -> PacketHeader {
    PacketHeader::new(kind, 0, terms.peer_conn, terms.peer_token)
}

#[derive(Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub(crate) struct Fin {
    /// PSN after the last data packet of the Fin's sender.
    pub(crate) end: U32,
    /// Cumulative ack of the Fin's sender, which accepts no later packets.
    pub(crate) received: U32,
}

/// Decodes the body of a Fin.
pub(crate) fn fin(body: &[u8]) -> Option<Fin> {
    Fin::read_from_bytes(body).ok()
}

#[cfg(test)]
mod tests;
