//! Requests that find no listener or a closed port: repetition, reports of closed ports, and other addresses.

use super::*;

/// Creates an attempt that repeats its request for 50 ms if there is no listener.
fn patient() -> Connector {
    let config = SetupConfig { listener_wait: 50 * MILLIS, ..SetupConfig::default() };
    Connector::new(Arc::new(Setup::new(config, None)), at(SERVER), 77, offer(), b"", 0)
}

#[test]
fn request_without_a_listener_is_repeated_until_one_listens() {
    let mut connector = patient();
    sends(&mut connector, 0);
    for _ in 0..3 {
        let due = connector.deadline().expect("the attempt has not ended");
        assert!(
            receives(&mut connector, due.min(20 * MILLIS), &reject(to(0), RejectReason::NoListener), ANSWERS_FROM)
                .is_none()
        );
        let due = connector.deadline().expect("the attempt has not ended");
        assert!(due <= 30 * MILLIS && sends(&mut connector, due).is_some());
    }
    let outcome = receives(&mut connector, 40 * MILLIS, &accept(to(0)), ANSWERS_FROM);
    assert!(matches!(outcome, Some(ConnectOutcome::Established { .. })));
}

#[test]
fn request_without_a_listener_is_rejected_after_the_listener_wait() {
    let (mut now, mut sent) = (0, 0);
    let mut connector = patient();
    let outcome = loop {
        sends(&mut connector, now).expect("the request is due");
        sent += 1;
        match receives(&mut connector, now, &reject(to(0), RejectReason::NoListener), ANSWERS_FROM) {
            None => now = connector.deadline().expect("the attempt has not ended"),
            outcome => break outcome,
        }
    };
    assert!(matches!(
        outcome,
        Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoListener)))
    ));
    assert_eq!((now, sent), (50 * MILLIS, 10), "requests are sent after 0, 1, 3, 7, 15, 23, 31, 39, 47 and 50 ms");
    let mut connector = patient();
    sends(&mut connector, 0);
    let refused = receives(&mut connector, 0, &reject(to(0), RejectReason::NoSpace), ANSWERS_FROM);
    assert!(
        matches!(refused, Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoSpace)))),
        "only a missing listener is waited for"
    );
}

#[test]
fn closed_port_is_retried_for_the_listener_wait() {
    let (mut now, mut connector) = (0, patient());
    let outcome = loop {
        let packet = sends(&mut connector, now).expect("the request is due");
        match connector.port_closed(now, at(SERVER), &packet) {
            None => now = connector.deadline().expect("the attempt has not ended"),
            outcome => break outcome,
        }
    };
    assert!(matches!(
        outcome,
        Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoListener)))
    ));
    assert_eq!(now, 50 * MILLIS);
}

#[test]
fn request_to_a_closed_port_is_sent_twice_before_rejection() {
    let mut connector = connector();
    let quote = sends(&mut connector, 0).expect("the request is due immediately");
    let closed = |connector: &mut Connector, now| connector.port_closed(now, at(SERVER), &quote[..64]);
    assert!((0..10).all(|_| closed(&mut connector, 1).is_none()), "one report per request is accepted");
    let due = connector.deadline().expect("the attempt has not ended");
    assert!(due < SECONDS && sends(&mut connector, due).is_some());
    assert!(matches!(
        closed(&mut connector, due + 1),
        Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoListener)))
    ));
    assert!(connector.deadline().is_none() && closed(&mut connector, due + 2).is_none());
}

#[test]
fn port_unreachable_report_counts_only_with_a_quote_of_the_request() {
    let mut connector = connector();
    for now in (0..9).map(|round| round * SECONDS) {
        let packet = sends(&mut connector, now).expect("the attempt has not ended");
        let mut guess = packet[..128].to_vec();
        guess[52] ^= 1; // a byte of the token
        for quote in [&b""[..], &packet[..8], &packet[..63], &guess] {
            assert!(connector.port_closed(now, at(SERVER), quote).is_none());
        }
        assert!(connector.closed_counts, "a report with a wrong quote is not a hint");
    }
}

#[test]
fn alternative_address_is_tried_if_the_first_has_no_listener() {
    for is_rejected_by_a_listener in [true, false] {
        let mut connector = connector().with_alternative(Some(at("10.0.0.9:17471")));
        let mut now = 0;
        let first = sends(&mut connector, now).expect("the request is due immediately");
        if is_rejected_by_a_listener {
            assert!(receives(&mut connector, now, &reject(to(0), RejectReason::NoListener), SERVER).is_none());
        } else {
            assert!(connector.port_closed(now, at(SERVER), &first[..64]).is_none());
            now = connector.deadline().expect("the attempt has not ended");
            sends(&mut connector, now);
            assert!(connector.port_closed(now, at(SERVER), &first[..64]).is_none());
        }
        assert_eq!(sends_to(&mut connector, now), Some((at("10.0.0.9:17471"), first)));
        assert!(
            receives(&mut connector, now, &accept(to(0)), ANSWERS_FROM).is_none(),
            "a reply from the first address is ignored"
        );
        let outcome = receives(&mut connector, now, &reject(to(0), RejectReason::NoListener), "10.0.0.9:17471");
        assert!(
            matches!(
                outcome,
                Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoListener)))
            ),
            "the second address is the last one"
        );
    }
}

#[test]
fn reply_of_the_server_cancels_port_unreachable_reports() {
    let mut connector = connector();
    for now in (0..20).map(|round| round * 10 * SECONDS) {
        let (to_whom, packet) = sends_to(&mut connector, now).expect("the attempt has not ended");
        assert!(connector.port_closed(now, to_whom, &packet).is_none() && !connector.closed_counts);
        receives(&mut connector, now, &cookie(to(0), None), ANSWERS_FROM);
    }
}
