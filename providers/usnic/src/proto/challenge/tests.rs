//! Tests challenges with peers that change their address, peers that do not respond, reports of a closed port, and
//! packets of other hosts.

use super::*;
use crate::proto::rtt::Timing;
use crate::proto::setup::tests::terms;

const INTERVAL: Nanos = 15 * SECONDS;
const GIVE_UP: Nanos = 10 * SECONDS;

fn peer() -> PeerPath {
    PeerPath::new(&terms(), 0, INTERVAL, GIVE_UP)
}

fn place(port: u16) -> SourceAddress {
    SourceAddress::new("10.0.0.3".parse().expect("the literal is a valid address"), port)
}

/// Returns an estimator with the round-trip time `time`. Its probe timeout is about three times `time`.
fn rtt(time: Nanos) -> Rtt {
    let mut rtt = Rtt::new(Timing::default());
    rtt.record_sample(0, time, 0);
    rtt
}

/// Returns the destination and the nonce of the next challenge.
fn next_challenge(peer: &mut PeerPath, now: Nanos) -> Option<(SourceAddress, u64)> {
    asks_over(&rtt(MILLIS), peer, now)
}

fn asks_over(rtt: &Rtt, peer: &mut PeerPath, now: Nanos) -> Option<(SourceAddress, u64)> {
    peer.transmit(now, rtt)
}

#[test]
fn only_a_body_of_eight_bytes_is_a_nonce() {
    assert_eq!(nonce(&0x0123_4567_89AB_CDEF_u64.to_be_bytes()), Some(0x0123_4567_89AB_CDEF));
    assert!((0..12).filter(|length| *length != 8).all(|length| nonce(&[0; 12][..length]).is_none()));
}

#[test]
fn new_address_is_used_only_after_its_response() {
    let mut peer = peer();
    let (old, new) = (peer.current_address(), place(1));
    assert_eq!(next_challenge(&mut peer, 0), None);
    peer.record_packet(1, new);
    assert_eq!(peer.current_address(), old);
    let (to, nonce) = next_challenge(&mut peer, 1).expect("a challenge is due");
    assert_eq!(to, new);
    assert!(!peer.responded(new, nonce ^ 1), "a wrong nonce is not accepted");
    assert!(
        !peer.responded(old, nonce) && !peer.responded(place(2), nonce),
        "a response from another address is not accepted"
    );
    assert_eq!(peer.current_address(), old);
    assert!(peer.responded(new, nonce));
    assert_eq!(peer.current_address(), new);
    assert!(!peer.responded(new, nonce), "a response is accepted only once");
    peer.record_packet(2, new);
    assert_eq!((next_challenge(&mut peer, SECONDS), peer.deadline()), (None, Some(2 + INTERVAL)));
}

#[test]
fn unsolicited_response_does_not_change_the_peer_address() {
    let mut peer = peer();
    let old = peer.current_address();
    peer.record_packet(0, place(1));
    let foreseen = peer.candidate.expect("a packet from a new address makes it a candidate").nonce;
    assert!(!peer.responded(place(1), foreseen), "a response before the challenge is not accepted");
    assert_eq!(peer.current_address(), old);
}

#[test]
fn challenges_are_limited_with_ten_thousand_addresses() {
    let mut peer = peer();
    let mut challenges = 0;
    for packet in 0..10_000 {
        let now = packet * MILLIS / 10;
        peer.record_packet(now, place(packet as u16));
        challenges += u32::from(next_challenge(&mut peer, now).is_some());
    }
    assert!((2..=10).contains(&challenges), "{challenges} challenges were sent in a second, instead of 2 to 10");
}

#[test]
fn address_without_response_is_dropped() {
    let mut peer = peer();
    peer.record_packet(0, place(1));
    let mut challenges = 0;
    for now in (0..5 * SECONDS).step_by(MILLIS as usize) {
        challenges += u32::from(next_challenge(&mut peer, now).is_some());
    }
    assert_eq!(challenges, MAX_CHALLENGES);
    assert!(peer.candidate.is_none());
    assert_eq!(peer.deadline(), Some(INTERVAL));
}

#[test]
fn address_change_during_a_challenge_is_followed() {
    let mut peer = peer();
    peer.record_packet(0, place(1));
    assert!(next_challenge(&mut peer, 0).is_some_and(|(to, _)| to == place(1)));
    peer.record_packet(50 * MILLIS, place(2));
    assert_eq!(next_challenge(&mut peer, 50 * MILLIS), None, "the next challenge waits for its interval");
    peer.record_packet(100 * MILLIS, place(2));
    let (to, nonce) = next_challenge(&mut peer, 100 * MILLIS).expect("a challenge is due");
    assert!(to == place(2) && peer.responded(to, nonce));
}

#[test]
fn nonces_differ_from_each_other_and_from_those_of_other_connections() {
    let mut others = PeerPath { seed: [1; 16], ..peer() };
    let mut peer = peer();
    let nonces: std::collections::HashSet<u64> =
        (0..1000).flat_map(|_| [peer.new_challenge(), others.new_challenge()]).collect();
    assert_eq!(nonces.len(), 2000);
}

/// Advances from deadline to deadline until the peer has timed out. If `refuses` is true, each challenge causes reports
/// of a closed port. Returns the time of the timeout and the number of challenges.
fn until_timed_out(peer: &mut PeerPath, refuses: bool) -> (Nanos, u32) {
    let near = rtt(MILLIS);
    until_timed_out_over(&near, peer, |peer, now, _| {
        if refuses {
            (0..5).for_each(|_| peer.port_closed(now, &near));
        }
    })
}

/// Same as `until_timed_out`, with a given round-trip time. `says` is called for each challenge, and may report an ICMP
/// message.
fn until_timed_out_over(rtt: &Rtt, peer: &mut PeerPath, says: impl Fn(&mut PeerPath, Nanos, u32)) -> (Nanos, u32) {
    let mut challenges = 0;
    for _ in 0..100 {
        let now = peer.deadline().expect("a challenge is pending");
        if peer.on_time(now) {
            return (now, challenges);
        }
        let at = peer.current_address();
        while let Some((to, nonce)) = asks_over(rtt, peer, now) {
            assert!(to == at && peer.has_probed(nonce) && !peer.has_probed(nonce ^ 1));
            challenges += 1;
            says(peer, now, challenges);
        }
    }
    panic!("the peer never timed out");
}

#[test]
fn peer_without_response_is_challenged_then_times_out() {
    let (now, challenges) = until_timed_out(&mut peer(), false);
    assert!((INTERVAL + GIVE_UP..INTERVAL + GIVE_UP + 2 * SECONDS).contains(&now), "the peer timed out at {now} ns");
    assert!(challenges >= 10);
}

#[test]
fn responding_peer_is_challenged_once_per_interval() {
    let mut peer = peer();
    for round in 1..5 {
        let now = round * INTERVAL;
        assert_eq!((peer.deadline(), peer.on_time(now)), (Some(now), false));
        let (to, nonce) = next_challenge(&mut peer, now).expect("a challenge is due");
        assert_eq!(next_challenge(&mut peer, now), None);
        peer.record_packet(now, to);
        assert!(!peer.responded(to, nonce), "a response from the current address does not change it");
        assert_eq!(next_challenge(&mut peer, now), None);
    }
}

#[test]
fn pause_of_this_process_does_not_time_out_the_peer() {
    let mut peer = peer();
    let late = 3600 * SECONDS;
    assert!(!peer.on_time(late));
    assert!(next_challenge(&mut peer, late).is_some());
    assert!(!peer.on_time(2 * late), "only one challenge is outstanding");
    let (gone, challenges) = until_timed_out(&mut peer, false);
    assert!(challenges >= MIN_PROBES - 1 && gone > late);
}

#[test]
fn interval_zero_disables_keepalive() {
    let mut peer = PeerPath::new(&terms(), 0, 0, GIVE_UP);
    assert_eq!((peer.deadline(), peer.on_time(u64::MAX), next_challenge(&mut peer, u64::MAX)), (None, false, None));
}

#[test]
fn port_unreachable_shortens_the_timeout_to_three_challenges() {
    for interval in [INTERVAL, 0] {
        let mut peer = PeerPath::new(&terms(), 0, interval, GIVE_UP);
        peer.port_closed(5, &rtt(MILLIS));
        assert_eq!((peer.on_time(5), peer.deadline()), (false, Some(5)), "the peer is challenged first");
        let (gone, challenges) = until_timed_out(&mut peer, true);
        assert!(
            challenges == MIN_PROBES && gone < SECONDS,
            "{challenges} challenges were sent until the timeout at {gone} ns"
        );
    }
}

#[test]
fn packet_of_the_peer_cancels_port_unreachable_reports() {
    let mut peer = peer();
    for now in 0..100 {
        peer.port_closed(now * MIN_INTERVAL, &rtt(MILLIS));
        next_challenge(&mut peer, now * MIN_INTERVAL);
        peer.record_packet(now * MIN_INTERVAL, peer.current_address());
        assert!(!peer.on_time(now * MIN_INTERVAL + 1));
    }
    assert_eq!(peer.deadline(), Some(99 * MIN_INTERVAL + INTERVAL));
}

#[test]
fn unverified_icmp_errors_do_not_shorten_the_timeout() {
    for interval in [INTERVAL, 0] {
        let mut peer = PeerPath::new(&terms(), 0, interval, GIVE_UP);
        peer.challenge_soon(5);
        assert_eq!(peer.deadline(), Some(5), "the peer is challenged immediately");
        let (gone, challenges) =
            until_timed_out_over(&rtt(MILLIS), &mut peer, |peer, now, _| (0..5).for_each(|_| peer.challenge_soon(now)));
        assert!(
            gone >= 5 + GIVE_UP && challenges >= MIN_PROBES,
            "{challenges} challenges were sent until the timeout at {gone} ns"
        );
    }
}

#[test]
fn challenges_to_a_closed_port_are_a_probe_timeout_apart() {
    let far = rtt(500 * MILLIS);
    let timeout = far.pto(0);
    assert!(timeout >= 1500 * MILLIS);
    let mut peer = peer();
    peer.port_closed(5, &far);
    let (gone, challenges) = until_timed_out_over(&far, &mut peer, |peer, now, _| peer.port_closed(now, &far));
    assert!(
        challenges == MIN_PROBES && gone >= 5 + u64::from(MIN_PROBES) * timeout,
        "{challenges} challenges were sent until the timeout at {gone} ns"
    );
}

#[test]
fn timeout_needs_port_unreachable_reports_for_three_challenges() {
    let near = rtt(MILLIS);
    let mut peer = PeerPath::new(&terms(), 0, INTERVAL, 100 * GIVE_UP);
    peer.port_closed(5, &near);
    let (gone, challenges) = until_timed_out_over(&near, &mut peer, |peer, now, challenges| {
        if challenges % 5 == 0 {
            peer.port_closed(now, &near);
        }
    });
    assert!(
        challenges == 5 * MIN_PROBES && gone < 100 * GIVE_UP,
        "{challenges} challenges were sent until the timeout at {gone} ns"
    );
}

/// Hosts limit the rate of their reports. A report shortens the interval after its challenge to the minimum, and each
/// challenge without a report doubles the next interval, up to the interval without reports.
#[test]
fn challenge_interval_doubles_for_each_challenge_without_a_report() {
    let near = rtt(MILLIS);
    for (reported, wanted) in [
        (&[1][..], [100, 100, 200, 400, 800, 1000, 1000]),
        (&[1, 4][..], [100, 100, 200, 100, 400, 800, 1000]),
        (&[][..], [1000; 7]),
    ] {
        let mut peer = PeerPath::new(&terms(), 0, INTERVAL, 100 * GIVE_UP);
        let mut sent = Vec::new();
        for number in 1..=8 {
            let now = peer.deadline().expect("a challenge is pending");
            assert!(!peer.on_time(now));
            next_challenge(&mut peer, now).expect("a challenge is due");
            sent.push(now);
            if reported.contains(&number) {
                peer.port_closed(now, &near);
            }
        }
        let intervals: Vec<_> = sent.windows(2).map(|pair| (pair[1] - pair[0]) / MILLIS).collect();
        assert_eq!(intervals, wanted, "reports after the challenges {reported:?}");
    }
}

#[test]
fn forged_messages_cause_at_most_ten_challenges_a_second() {
    let mut peer = peer();
    let mut challenges = 0;
    for now in (0..SECONDS).step_by(MILLIS as usize) {
        (0..10).for_each(|_| peer.challenge_soon(now));
        if next_challenge(&mut peer, now).is_some() {
            challenges += 1;
            peer.record_packet(now, peer.current_address());
        }
    }
    assert_eq!(challenges, SECONDS / MIN_INTERVAL);
}
