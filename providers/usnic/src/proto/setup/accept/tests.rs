//! Tests the replies of the passive side, and its table of attempts.

use std::net::{IpAddr, Ipv4Addr};

use super::super::connect::Connector;
use super::super::packets::{REQUEST, SetupReply};
use super::super::tests::TestRandom;
use super::super::{MAX_PRIVATE, SetupConfig};
use super::*;
use crate::proto::SECONDS;
use crate::proto::seal::Psk;
use crate::proto::wire::VERSION;

struct Server {
    acceptor: Acceptor,
    setup: Arc<Setup>,
    dice: TestRandom,
    /// The bytes of the last reply.
    out: Vec<u8>,
}

impl Server {
    fn new(config: SetupConfig, secret: Option<&[u8]>) -> Server {
        let mut dice = TestRandom::new(1);
        let setup = Arc::new(Setup::new(config, secret.and_then(Psk::new)));
        Server { acceptor: Acceptor::new(setup.clone(), 0, &mut dice), setup, dice, out: Vec::new() }
    }

    /// Returns a new client, and its first packet.
    fn request(&mut self, conn: u32) -> (Connector, Vec<u8>) {
        let offer = Offer::new(conn, &mut self.dice);
        let server = source(0, 0);
        let mut connector = Connector::new(self.setup.clone(), server, 77, offer, &[5; MAX_PRIVATE], 0);
        let mut packet = Vec::new();
        connector.transmit(0, &mut TestRandom::new(9), &mut packet);
        (connector, packet)
    }

    fn receives(&mut self, now: Nanos, packet: &[u8], from: SocketAddr) -> PacketResult {
        self.out.clear();
        self.acceptor.receive(now, packet, from, true, &mut self.dice, &mut self.out)
    }

    /// Decodes the last reply.
    fn reply(&self) -> Option<SetupReply<'static>> {
        let mut buffer = Vec::new();
        match packets::decode_reply(&self.setup.guard, &self.out, &mut buffer)?.1 {
            SetupReply::Accept(offer, _) => Some(SetupReply::Accept(offer, b"")),
            SetupReply::Again(ticket) => Some(SetupReply::Again(ticket)),
            SetupReply::Pending => Some(SetupReply::Pending),
            SetupReply::Reject(reason, private) => {
                assert_eq!(private, b"", "the tests reject without private data");
                Some(SetupReply::Reject(reason, b""))
            }
        }
    }

    fn accept(&mut self, now: Nanos, id: RequestId, conn: u32) -> HandshakeResult {
        let offer = Offer::new(conn, &mut self.dice);
        self.acceptor.accept(now, id, &offer, &[6; MAX_PRIVATE], &mut self.dice).expect("the attempt is pending")
    }

    /// Processes all deadlines until `end`. Returns the number of bytes sent, and the requests whose attempts have
    /// failed.
    fn time(&mut self, end: Nanos) -> (usize, Vec<RequestId>) {
        let (mut sent, mut left) = (0, Vec::new());
        while let Some(now) = self.acceptor.deadline().filter(|due| *due <= end) {
            self.out.clear();
            while let Some(due) = self.acceptor.poll(now, &mut self.out) {
                if let ExpiredAttempt::Failed(id) = due {
                    left.push(id);
                }
            }
            sent += self.out.len();
        }
        (sent, left)
    }

    fn is_empty(&self) -> bool {
        let it = &self.acceptor;
        let maps = it.attempts.is_empty() && it.by_key.is_empty() && it.by_conn.is_empty();
        maps && it.due.is_empty() && it.ended.is_empty() && it.half_open.total.all == 0
    }
}

fn source(net: u32, host: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x0A00_0000 + net * 256 + host)), 4000)
}

fn requested(result: PacketResult) -> RequestId {
    match result {
        PacketResult::Requested(id) => id,
        other => panic!("expected a reported request or a reply, not {other:?}"),
    }
}

#[test]
fn request_is_reported_once_and_gets_pending_replies() {
    let mut server = Server::new(SetupConfig::default(), None);
    let (_, packet) = server.request(1);
    let from = source(0, 1);
    let id = requested(server.receives(0, &packet, from));
    assert_eq!(server.reply(), Some(SetupReply::Pending), "the requester gets a pending reply immediately");
    let request = server.acceptor.request(id).expect("the attempt is pending");
    assert_eq!((request.from, request.qual, request.private_data), (from, 77, &[5; MAX_PRIVATE][..]));
    for _ in 0..3 {
        assert_eq!(server.receives(1, &packet, from), PacketResult::Reply);
        assert_eq!(server.reply(), Some(SetupReply::Pending));
    }
    let token = server.accept(2, id, 8).terms.our_token;
    assert_eq!(server.acceptor.request(id), None, "a request is removed when it is accepted");
    assert_eq!(server.receives(3, &packet, from), PacketResult::Reply);
    assert!(matches!(server.reply(), Some(SetupReply::Accept(offer, _)) if offer.conn == 8));
    for (conn, token) in [(9, token), (8, 0), (8, token ^ 1)] {
        assert_eq!(server.acceptor.confirmed(4, conn, token), None, "a wrong number or token does not confirm");
    }
    assert_eq!(server.acceptor.confirmed(4, 8, token), Some(id));
    assert_eq!(server.acceptor.confirmed(4, 8, token), None, "a confirmation is accepted only once");
    assert_eq!((server.receives(5, &packet, from), server.out.len()), (PacketResult::Nothing, 0));
    assert_eq!(server.time(60 * SECONDS), (0, vec![]));
    assert!(server.is_empty(), "the acceptor keeps no entry of the request");
}

#[test]
fn ended_attempt_stays_while_its_request_is_repeated() {
    let mut server = Server::new(SetupConfig::default(), None);
    let (_, packet) = server.request(1);
    let from = source(0, 1);
    let id = requested(server.receives(0, &packet, from));
    server.acceptor.reject(0, id, RejectReason::HandedOff(5), &[], &mut TestRandom::new(3));
    let linger = SetupConfig::default().linger;
    for round in 1..10 {
        let now = round * (linger - 1);
        server.time(now);
        assert_eq!(server.receives(now, &packet, from), PacketResult::Reply);
        assert_eq!(server.reply(), Some(SetupReply::Reject(RejectReason::HandedOff(5), b"")));
    }
    server.time(11 * linger);
    assert!(server.is_empty());
}

#[test]
fn accept_and_reject_after_the_withdrawal_have_no_effect() {
    let mut server = Server::new(SetupConfig::default(), None);
    let (mut connector, packet) = server.request(1);
    let id = requested(server.receives(0, &packet, source(0, 1)));
    let mut leaves = Vec::new();
    connector.withdraw(&mut TestRandom::new(2), &mut leaves);
    assert_eq!(
        server.receives(0, &leaves, source(0, 2)),
        PacketResult::Nothing,
        "a withdrawal from another address is ignored"
    );
    assert_eq!(server.receives(0, &leaves, source(0, 1)), PacketResult::Withdrawn(id));
    assert_eq!(server.receives(0, &leaves, source(0, 1)), PacketResult::Nothing);
    let offer = Offer::new(8, &mut server.dice);
    assert!(server.acceptor.accept(1, id, &offer, b"", &mut TestRandom::new(3)).is_none());
    server.acceptor.reject(1, id, RejectReason::Refused, &[], &mut TestRandom::new(3));
    assert_eq!(server.time(60 * SECONDS), (0, vec![]));
    server.acceptor.reject(1, RequestId(99), RejectReason::Refused, &[], &mut TestRandom::new(3));
    assert!(server.is_empty());
}

#[test]
fn take_reject_returns_only_rejects_and_leaves_expired_accepts_to_poll() {
    let mut server = Server::new(SetupConfig::default(), None);
    let [first, second] = [1, 2].map(|host| {
        let (_, packet) = server.request(host);
        requested(server.receives(0, &packet, source(0, host)))
    });
    server.accept(0, first, 7);
    server.accept(0, second, 8);
    let late = 2 * SetupConfig::default().give_up;
    server.acceptor.reject(late, second, RejectReason::Refused, &[], &mut server.dice);
    let mut out = Vec::new();
    assert_eq!(server.acceptor.take_reject(second, &mut out), Some(source(0, 2)));
    assert!(!out.is_empty());
    assert_eq!(server.acceptor.take_reject(second, &mut out), None, "a reject is sent once");
    assert_eq!(server.acceptor.take_reject(first, &mut out), None, "an accept is no reject");
    assert_eq!(server.time(late).1, [first]);
}

#[test]
fn unverified_source_gets_at_most_three_times_its_bytes() {
    type Ends = fn(&mut Server, RequestId);
    let ends: [Ends; 4] = [
        |server, id| drop(server.accept(0, id, 8)),
        |server, id| server.acceptor.reject(0, id, RejectReason::Refused, &[], &mut TestRandom::new(3)),
        |server, id| server.acceptor.reject(0, id, RejectReason::HandedOff(u64::MAX), &[], &mut TestRandom::new(3)),
        |_, _| {},
    ];
    for end in ends {
        for repeats in [0, 1, 5] {
            let mut server = Server::new(SetupConfig { give_up: 3600 * SECONDS, ..SetupConfig::default() }, None);
            let (_, packet) = server.request(1);
            let id = requested(server.receives(0, &packet, source(0, 1)));
            let (mut came, mut went) = (packet.len(), server.out.len());
            end(&mut server, id);
            for _ in 0..repeats {
                server.receives(0, &packet, source(0, 1));
                (came, went) = (came + packet.len(), went + server.out.len());
                assert!(server.out.len() <= 3 * packet.len() && went <= 3 * came);
            }
            went += server.time(3000 * SECONDS).0;
            assert!(went <= 3 * came, "{went} bytes were sent to an unverified source for {came} received bytes");
            assert!(went > 0 || server.acceptor.by_conn.is_empty());
        }
    }
}

#[test]
fn stateless_replies_respect_the_amplification_limit() {
    for secret in [None, Some(&[7; 16][..])] {
        let mut server = Server::new(SetupConfig { unverified: 0, ..SetupConfig::default() }, secret);
        let (_, packet) = server.request(1);
        assert_eq!(server.receives(0, &packet, source(0, 1)), PacketResult::Reply);
        assert!(matches!(server.reply(), Some(SetupReply::Again(_))) && server.out.len() <= 3 * packet.len());
        let mut out = Vec::new();
        server.acceptor.receive(0, &packet, source(0, 1), false, &mut TestRandom::new(2), &mut out);
        assert!(!out.is_empty() && out.len() <= 3 * packet.len());
        assert!(server.is_empty());
        // A truncated request gets no reply. Otherwise an attacker could use short requests for amplification.
        for end in 0..REQUEST {
            let result =
                if end < REQUEST - packets::SHORTER { PacketResult::Nothing } else { PacketResult::Unreadable };
            assert_eq!((server.receives(0, &packet[..end], source(0, 1)), server.out.len()), (result, 0));
        }
    }
}

#[test]
fn verified_source_has_no_amplification_limit() {
    let mut server =
        Server::new(SetupConfig { give_up: 3600 * SECONDS, unverified: 0, ..SetupConfig::default() }, None);
    let (mut connector, packet) = server.request(1);
    let from = source(0, 1);
    server.receives(0, &packet, from);
    let answer = server.out.clone();
    assert!(connector.receive(0, &answer, source(0, 0), &mut TestRandom::new(2)).is_none());
    let mut packet = Vec::new();
    connector.transmit(0, &mut TestRandom::new(9), &mut packet);
    let id = requested(server.receives(0, &packet, from));
    server.accept(0, id, 8);
    assert!(server.time(3000 * SECONDS).0 > 3 * packet.len());
}

#[test]
fn accept_to_a_closed_port_ends_after_two_reports() {
    let mut server = Server::new(SetupConfig::default(), None);
    let from = source(0, 1);
    let ids: Vec<RequestId> = (1..=3)
        .map(|conn| {
            let (_, packet) = server.request(conn);
            requested(server.receives(0, &packet, from))
        })
        .collect();
    // Reports, for each unconfirmed accept, an ICMP "port unreachable" message that quotes it.
    let port_closed = |server: &mut Server, now, at| {
        let attempts = server.acceptor.attempts.values();
        let accepts = attempts.filter_map(|attempt| match &attempt.phase {
            AcceptPhase::Accepted { packet, .. } => Some(packet[..64].to_vec()),
            _ => None,
        });
        let quotes: Vec<_> = accepts.chain([b"any other".to_vec()]).collect();
        let mut result = quotes.iter().map(|quote| server.acceptor.port_closed(now, at, quote));
        result.find(|result| *result != PacketResult::Nothing).unwrap_or(PacketResult::Nothing)
    };
    assert_eq!(port_closed(&mut server, 0, from), PacketResult::Nothing, "a report before the accept has no effect");
    server.accept(0, ids[0], 7);
    server.accept(0, ids[1], 8);
    assert_eq!(
        port_closed(&mut server, 0, from),
        PacketResult::Nothing,
        "a report before the first packet has no effect"
    );
    assert!(server.time(0).0 > 0);
    assert!(
        (0..9).all(|_| port_closed(&mut server, 1, from) == PacketResult::Nothing),
        "one report per accept is counted"
    );
    server.time(SetupConfig::default().first_repeat);
    assert_eq!(
        port_closed(&mut server, SECONDS, source(0, 2)),
        PacketResult::Nothing,
        "a report from another address has no effect"
    );
    let ended = [port_closed(&mut server, SECONDS, from), port_closed(&mut server, SECONDS, from)];
    assert!(
        ended.contains(&PacketResult::Withdrawn(ids[0])) && ended.contains(&PacketResult::Withdrawn(ids[1])),
        "the second report must end both accepts: {ended:?}"
    );
    assert_eq!(port_closed(&mut server, SECONDS, from), PacketResult::Nothing);
    assert!(server.acceptor.request(ids[2]).is_some(), "a pending request is not ended by the reports");
    assert_eq!(server.time(60 * SECONDS).1, [ids[2]]);
    assert!(server.is_empty());
}

#[test]
fn no_state_is_kept_for_unverified_sources_under_load() {
    let config = SetupConfig { unverified: 20, unverified_of_prefix: 5, ..SetupConfig::default() };
    let mut server = Server::new(config, None);
    let (mut kept, mut cookies) = ([0; 8], 0);
    for net in 0..8 {
        for host in 0..10 {
            let (_, packet) = server.request(net * 100 + host + 1);
            match server.receives(0, &packet, source(net, host)) {
                PacketResult::Requested(_) => kept[net as usize] += 1,
                PacketResult::Reply => {
                    assert!(matches!(server.reply(), Some(SetupReply::Again(_))));
                    cookies += 1;
                }
                other => panic!("expected a reported request or a reply, not {other:?}"),
            }
        }
    }
    assert_eq!(
        (kept, cookies),
        ([5, 5, 5, 5, 0, 0, 0, 0], 60),
        "the number of attempts is limited per network and in total"
    );
    assert_eq!((server.acceptor.attempts.len(), server.acceptor.counts.cookies), (20, 60));
    // A request with a cookie gets an entry even under load.
    let (mut connector, packet) = server.request(9999);
    let from = source(9, 9);
    assert_eq!(server.receives(0, &packet, from), PacketResult::Reply);
    let answer = server.out.clone();
    connector.receive(0, &answer, source(0, 0), &mut TestRandom::new(2));
    let mut again = Vec::new();
    connector.transmit(0, &mut TestRandom::new(9), &mut again);
    assert_eq!(
        server.receives(0, &again, source(9, 10)),
        PacketResult::Reply,
        "a cookie is not valid from another address"
    );
    requested(server.receives(0, &again, from));
    assert_eq!((server.acceptor.half_open.total.all, server.acceptor.half_open.total.unverified), (21, 20));
}

#[test]
fn cookie_verifies_the_source_of_a_repeated_request() {
    let mut server = Server::new(SetupConfig { unverified: 1, ..SetupConfig::default() }, None);
    let (_, other) = server.request(1);
    let other = requested(server.receives(0, &other, source(1, 1)));
    let (mut connector, packet) = server.request(2);
    let from = source(0, 1);
    assert_eq!(server.receives(0, &packet, from), PacketResult::Reply);
    let answer = server.out.clone();
    connector.receive(0, &answer, source(0, 0), &mut TestRandom::new(2));
    server.acceptor.reject(0, other, RejectReason::Refused, &[], &mut TestRandom::new(2));
    // The load has ended, and a copy of the first request arrives before the request with the cookie.
    requested(server.receives(0, &packet, from));
    assert_eq!(server.acceptor.half_open.total.unverified, 1);
    let mut with = Vec::new();
    connector.transmit(0, &mut TestRandom::new(9), &mut with);
    for _ in 0..2 {
        assert_eq!(server.receives(0, &with, from), PacketResult::Reply);
        assert_eq!((server.reply(), server.acceptor.half_open.total.unverified), (Some(SetupReply::Pending), 0));
    }
    server.time(100 * SECONDS);
    assert!(server.is_empty());
}

#[test]
fn forged_or_expired_cookie_gets_a_new_cookie() {
    let mut server = Server::new(SetupConfig { unverified: 0, ..SetupConfig::default() }, None);
    let (mut connector, packet) = server.request(1);
    let from = source(0, 1);
    server.receives(0, &packet, from);
    let answer = server.out.clone();
    connector.receive(0, &answer, source(0, 0), &mut TestRandom::new(2));
    let mut with = Vec::new();
    connector.transmit(0, &mut TestRandom::new(9), &mut with);
    assert_eq!(server.receives(100 * SECONDS, &with, from), PacketResult::Reply, "an expired cookie gets a new cookie");
    assert!(matches!(server.reply(), Some(SetupReply::Again(_))));
    assert!(server.is_empty());
    for guess in 0..1000 {
        let mut packet = Vec::new();
        let ticket = packets::CookiePacket::new(guess % 7 + 1, [guess as u8; 16]);
        let request_head = packets::RequestHead::new(77, 0, Some(ticket));
        let offer = Offer::new(1, &mut server.dice);
        packets::put_request(&server.setup.guard, &request_head, &offer, b"", 0, &mut TestRandom::new(2), &mut packet);
        assert_eq!(server.receives(100 * SECONDS, &packet, from), PacketResult::Reply);
    }
    assert!(server.is_empty() && server.acceptor.counts.requests == 0);
}

#[test]
fn number_of_attempts_is_limited_in_total_and_per_prefix() {
    let config = SetupConfig { half_open: 30, half_open_of_prefix: 10, remembered: 15, ..SetupConfig::default() };
    let (all, prefix) = (config.half_open, config.half_open_of_prefix);
    let mut server = Server::new(SetupConfig { unverified: 1000, unverified_of_prefix: 1000, ..config }, None);
    let mut ids = Vec::new();
    for net in 0..10 {
        for host in 0..20 {
            let (_, packet) = server.request(net * 100 + host + 1);
            match server.receives(0, &packet, source(net, host)) {
                PacketResult::Requested(id) => ids.push(id),
                _ => assert!(
                    matches!(server.reply(), Some(SetupReply::Again(_))),
                    "the requester must repeat its request with a cookie"
                ),
            }
        }
        assert!(server.acceptor.half_open.of_prefix(source(net, 0)).all <= prefix);
    }
    assert_eq!((ids.len(), server.acceptor.counts.limit_reached), (all, 170));
    for id in ids {
        server.acceptor.reject(0, id, RejectReason::Refused, &[], &mut TestRandom::new(2));
    }
    assert_eq!(
        (server.acceptor.half_open.total.all, server.acceptor.attempts.len()),
        (0, 15),
        "the oldest rejected attempts are removed"
    );
    let (_, packet) = server.request(5);
    requested(server.receives(0, &packet, source(0, 1)));
    server.time(60 * SECONDS);
    assert!(server.is_empty());
}

#[test]
fn malformed_and_other_version_requests_are_rejected() {
    let mut server = Server::new(SetupConfig::default(), None);
    let good = Offer::new(1, &mut server.dice);
    let request = |request_head: &packets::RequestHead, offer: &Offer| {
        let mut packet = Vec::new();
        let guard = crate::proto::seal::PacketGuard::new(None);
        packets::put_request(&guard, request_head, offer, b"", 0, &mut TestRandom::new(2), &mut packet);
        packet
    };
    let request_head = packets::RequestHead::new(77, 0, None);
    let cases = [
        (request(&packets::RequestHead { min: VERSION + 1, max: 9, ..request_head }, &good), RejectReason::Version),
        (request(&packets::RequestHead { min: 0, max: 0, ..request_head }, &good), RejectReason::Version),
        (request(&packets::RequestHead { min: 9, max: 0, ..request_head }, &good), RejectReason::Version),
        (request(&request_head, &Offer { mtu: 100.into(), ..good }), RejectReason::NotUnderstood),
        (request(&request_head, &Offer { window_kib: 0.into(), ..good }), RejectReason::NotUnderstood),
    ];
    for (packet, reason) in cases {
        assert_eq!(server.receives(0, &packet, source(0, 1)), PacketResult::Reply);
        assert_eq!(server.reply(), Some(SetupReply::Reject(reason, b"")));
    }
    for invalid in [Offer { conn: 0.into(), ..good }, Offer { token: 0.into(), ..good }] {
        assert_eq!(server.receives(0, &request(&request_head, &invalid), source(0, 1)), PacketResult::Nothing);
    }
    assert!(server.is_empty());
    let newer = request(&packets::RequestHead { min: 1, max: 9, ..request_head }, &good);
    requested(server.receives(0, &newer, source(0, 1)));
}

#[test]
fn reset_is_valid_only_with_number_token_and_checksum() {
    for secret in [None, Some(&[7; 16][..])] {
        let mut server = Server::new(SetupConfig::default(), secret);
        let (mut connector, packet) = server.request(1);
        let from = source(0, 1);
        if server.receives(0, &packet, from) == PacketResult::Reply {
            let answer = server.out.clone();
            connector.receive(0, &answer, source(0, 0), &mut TestRandom::new(2));
        }
        let mut again = Vec::new();
        connector.transmit(0, &mut TestRandom::new(9), &mut again);
        let id = match server.receives(0, if again.is_empty() { &packet } else { &again }, from) {
            PacketResult::Requested(id) => id,
            _ => *server.acceptor.attempts.keys().next().expect("the attempt is pending"),
        };
        let terms = server.accept(0, id, 8).terms;
        let peer_offer = |conn: u32, token: u64| Offer {
            conn: conn.into(),
            token: token.into(),
            ..Offer::new(1, &mut TestRandom::new(4))
        };
        let reset = |server: &mut Server, guard: &crate::proto::seal::PacketGuard, conn, flip| {
            let mut packet = Vec::new();
            packets::put_unknown(
                guard,
                &peer_offer(conn, terms.our_token ^ flip),
                &mut TestRandom::new(5),
                &mut packet,
            );
            server.acceptor.reset(1, &packet)
        };
        let setup = server.setup.clone();
        let other = crate::proto::seal::PacketGuard::new(Psk::new(&[8; 16]).as_ref());
        assert_eq!(reset(&mut server, &other, 8, 0), PacketResult::Nothing);
        assert_eq!(reset(&mut server, &setup.guard, 9, 0), PacketResult::Nothing);
        assert_eq!(reset(&mut server, &setup.guard, 8, 1 << 40), PacketResult::Nothing);
        assert_eq!(server.acceptor.reset(1, &packet), PacketResult::Nothing);
        assert_eq!(server.acceptor.reset(1, &[]), PacketResult::Nothing);
        assert_eq!(reset(&mut server, &setup.guard, 8, 0), PacketResult::Withdrawn(id));
        assert_eq!(reset(&mut server, &setup.guard, 8, 0), PacketResult::Nothing);
    }
}
