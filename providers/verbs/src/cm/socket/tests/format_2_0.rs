//! Tests of the connection manager `socket` with the wire format of 2.0: between two managers, with a peer that sends
//! the bytes of `libdaploscm.so.2`, and with a peer that uses the format of 1.2.

use super::*;

/// The confirmation in the format of 2.0.
const READY: [u8; 4] = [0, 9, 0, 5];

fn manager() -> TestManager {
    TestManager::with(Format::Dat20, Duration::ZERO)
}

/// Returns a request of the C implementation, from 192.0.2.7.
fn request_2_0(number: u8, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 148];
    bytes[1] = 9;
    bytes[3] = 1;
    bytes[17] = private_data.len() as u8;
    (bytes[28], bytes[32]) = (7, 2);
    bytes[39] = 1;
    bytes[43] = number;
    bytes[44..60].fill(9);
    bytes[63] = 2;
    bytes[64..66].copy_from_slice(&2u16.to_ne_bytes());
    bytes[66..72].copy_from_slice(&[0xFB, 0xF0, 192, 0, 2, 7]);
    bytes.extend(private_data);
    bytes
}

#[test]
fn queue_pairs_connect_and_exchange_private_data() {
    let manager = manager();
    let (active, passive) = (FakeQp::new(0x10), FakeQp::new(0x20));
    let long: Vec<u8> = (0..68).collect();
    manager.connect(&active, &long, 1);
    let (caller, private_data, peer) = manager.request();
    assert_eq!((private_data, peer), (long.clone(), manager.stage.address()));
    caller.accept_into(passive.clone(), &long, conn(2)).unwrap();
    assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x10, gid: manager.stage.gid() });
    assert_eq!(active.next(), QpReport::BroughtUp { number: 0x20, gid: manager.stage.gid() });
    assert_eq!([active.next(), passive.next()], [QpReport::Established(long), QpReport::Established(vec![])]);
    passive.end();
    assert_eq!(active.next(), QpReport::Ended("disconnected"));
}

#[test]
fn request_of_the_c_implementation_sent_in_single_bytes_is_accepted() {
    // Listeners of both formats accept the request.
    for manager in [manager(), TestManager::new()] {
        let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
        for byte in request_2_0(0x11, b"abc") {
            peer.write_all(&[byte]).unwrap();
        }
        let (caller, private_data, address) = manager.request();
        assert_eq!((&private_data[..], address), (&b"abc"[..], "192.0.2.7".parse().unwrap()));
        caller.accept_into(passive.clone(), b"xy", conn(2)).unwrap();
        assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x11, gid: [9; 16] });
        let mut reply = [0; 150];
        peer.read_exact(&mut reply).unwrap();
        let mut expected = request_2_0(0x20, b"xy");
        expected[3] = 2;
        (expected[28], expected[32]) = (4, 2); // local limit of reads by the peer; the smaller MTU, which is the peer's
        expected[39] = 4;
        expected[44..60].copy_from_slice(&manager.stage.gid());
        expected[66..72].copy_from_slice(&[0, 0, 127, 0, 0, 1]);
        assert_eq!(reply[..], expected);
        assert!(passive.is_silent(), "the connection was reported before the confirmation");
        peer.write_all(&READY[..3]).unwrap();
        peer.write_all(&READY[3..]).unwrap();
        assert_eq!(passive.next(), QpReport::Established(vec![]));
        passive.end();
        assert_eq!(rest(&mut peer), DISCONNECT);
    }
}

#[test]
fn listener_for_2_0_accepts_a_request_of_1_2() {
    let manager = manager();
    let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
    peer.write_all(&request(0x11, 9, b"old")).unwrap();
    manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
    let mut reply = [0; 64];
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [0, 2, 0, 0]);
    peer.write_all(&super::READY).unwrap();
    assert!(matches!(passive.next(), QpReport::BroughtUp { number: 0x11, .. }));
    assert_eq!(passive.next(), QpReport::Established(vec![]));
}

#[test]
fn accept_with_private_data_beyond_the_requesters_format_fails() {
    let manager = TestManager::new();
    let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
    peer.write_all(&request_2_0(0x11, b"")).unwrap();
    let accepted = manager.request().0.accept_into(passive.clone(), &[0; 69], conn(2));
    assert_eq!(accepted, Err(Error::InvalidParameter(3)));
    assert_eq!(rest(&mut peer)[..4], [0, 9, 0, 4], "the peer gets a rejection");
    assert!(passive.is_silent());
}

#[test]
fn reject_carries_private_data() {
    let manager = manager();
    let active = FakeQp::new(1);
    manager.connect(&active, b"", 1);
    manager.request().0.reject(b"too busy");
    assert_eq!(active.next(), QpReport::Rejected(b"too busy".to_vec()));
    manager.connect(&active, b"", 2);
    manager.request().0.reject(&[]);
    assert_eq!(active.next(), QpReport::Ended("peer rejected"));
    manager.connect(&active, b"", 3);
    drop(manager.request());
    assert_eq!(active.next(), QpReport::Ended("rejected"));
}

#[test]
fn dropped_request_gets_a_rejection_and_an_invalid_request_none() {
    let manager = manager();
    let mut peer = manager.client();
    peer.write_all(&request_2_0(0x11, b"")).unwrap();
    drop(manager.request());
    let answer = rest(&mut peer);
    assert_eq!(
        (answer.len(), &answer[..4]),
        (148, &[0, 9, 0, 4][..]),
        "without a reply, the C implementation repeats its request"
    );
    // A datagram endpoint, too much private data, another version, another operation, an invalid queue pair number.
    for (at, value) in [(63, 4), (17, 69), (1, 8), (3, 2), (40, 1)] {
        let (mut peer, mut wrong) = (manager.client(), request_2_0(0x11, b""));
        wrong[at] = value;
        peer.write_all(&wrong).unwrap();
        assert!(rest(&mut peer).is_empty(), "{at}");
    }
    assert!(manager.stage.is_silent());
}

#[test]
fn reply_in_the_other_format_rejects_the_attempt() {
    let manager = manager();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = FakeQp::new(0x10);
    manager.connect_to(listener.local_addr().unwrap().port(), &active, b"", 1).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.read_exact(&mut [0; 148]).unwrap();
    peer.write_all(&request(0x11, 9, b"")).unwrap();
    assert_eq!(active.next(), QpReport::Ended("rejected"));
}
