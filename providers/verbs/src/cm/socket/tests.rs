//! Tests of the connection manager `socket` over real sockets: between two managers, and with peers that send the bytes
//! of the C implementation, invalid data or nothing.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectSpec, PeerAddress};

use super::fake::{FakeQp, QpReport, TestEngine, V4_GID, conn};
use super::wire::{DISCONNECT, Format};
use super::{SocketConnection, SocketContext, SocketManager, TcpListening};
use crate::cm::{IncomingRequest, WaitingRequest};

/// The confirmation in the format of 1.2.
const READY: [u8; 2] = [0x0E, 0x0F];

/// A manager with a listener on an unused port.
struct TestManager {
    stage: TestEngine,
    manager: Arc<SocketManager>,
    listener: Arc<TcpListening>,
    port: u16,
}

impl TestManager {
    fn new() -> Self {
        Self::with(Format::Dat12, Duration::ZERO)
    }

    /// Creates a manager that repeats a request without a listener for this time.
    fn with_listener_wait(listener_wait: Duration) -> Self {
        Self::with(Format::Dat12, listener_wait)
    }

    fn with(format: Format, listener_wait: Duration) -> Self {
        let stage = TestEngine::new();
        let manager = SocketManager::with_context(SocketContext { listener_wait, ..stage.context() }, format);
        let (port, listener) = (0..100)
            .find_map(|_| {
                let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
                manager.open(qual_of(format, port), conn(1).ep).ok().map(|listener| (port, listener))
            })
            .expect("one of 100 ports can be bound");
        TestManager { stage, manager, listener, port }
    }

    fn connect(&self, pair: &Arc<FakeQp>, private_data: &[u8], attempt: u32) {
        self.connect_to(self.port, pair, private_data, attempt).unwrap();
    }

    fn connect_to(&self, port: u16, pair: &Arc<FakeQp>, private_data: &[u8], attempt: u32) -> Result<()> {
        let address = PeerAddress::Ip(self.stage.address());
        let spec = ConnectSpec { address: &address, qual: qual_of(self.manager.format, port), private_data };
        self.manager.connect_pair(pair.clone(), &spec, conn(attempt))
    }

    /// Connects a plain TCP socket to the manager's listener.
    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Waits for the next request. Returns it with its private data and the peer's address.
    fn request(&self) -> (WaitingRequest, Vec<u8>, IpAddr) {
        let (id, waiting, info) = self.stage.request();
        assert_eq!((id, info.reported_len), (conn(1).ep, info.private_data.len()));
        (waiting, info.private_data, info.peer.ip())
    }

    /// Returns two connected queue pairs.
    fn connected(&self) -> (Arc<FakeQp>, Arc<FakeQp>) {
        let (active, passive) = (FakeQp::new(0x10), FakeQp::new(0x20));
        self.connect(&active, b"", 1);
        self.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
        assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x10, gid: self.stage.gid() });
        assert_eq!(active.next(), QpReport::BroughtUp { number: 0x20, gid: self.stage.gid() });
        assert_eq!([active.next(), passive.next()], [QpReport::Established(vec![]), QpReport::Established(vec![])]);
        (active, passive)
    }
}

impl WaitingRequest {
    /// Accepts the request with a fake queue pair.
    fn accept_into(self, pair: Arc<FakeQp>, private_data: &[u8], conn: ConnId) -> Result<()> {
        self.into_inner::<SocketConnection>().accept_into(pair, private_data, conn)
    }
}

/// Returns one of the qualifiers that have this port.
fn qual_of(format: Format, port: u16) -> u64 {
    let offset = if format == Format::Dat20 { 1000 } else { 0 };
    u64::from(port) + 0x1_0000 - offset
}

/// Returns a request in the format of 1.2, from 192.0.2.7. `gid`: value of all bytes of the GID; 0: no GID.
fn request(number: u8, gid: u8, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[1] = 2;
    bytes[5] = 1;
    bytes[7] = 1;
    bytes[11] = number;
    bytes[15] = private_data.len() as u8;
    bytes[16..18].copy_from_slice(&2u16.to_ne_bytes());
    bytes[20..24].copy_from_slice(&[192, 0, 2, 7]);
    bytes[48..64].fill(gid);
    bytes.extend(private_data);
    bytes
}

/// Reads until the peer closes the socket, and returns the bytes.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn queue_pairs_connect_and_exchange_private_data() {
    let manager = TestManager::new();
    let (active, passive) = (FakeQp::new(0x10), FakeQp::new(0x20));
    let long: Vec<u8> = (0..196).collect();
    manager.connect(&active, &long[..92], 1);
    let (caller, private_data, peer) = manager.request();
    assert_eq!((&private_data[..], peer), (&long[..92], manager.stage.address()));
    assert!(active.is_silent(), "the request is not accepted before the consumer decides");
    caller.accept_into(passive.clone(), &long, conn(2)).unwrap();
    assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x10, gid: manager.stage.gid() });
    assert_eq!(active.next(), QpReport::BroughtUp { number: 0x20, gid: manager.stage.gid() });
    assert_eq!(active.next(), QpReport::Established(long));
    assert_eq!(passive.next(), QpReport::Established(vec![]));
    active.end();
    assert_eq!(passive.next(), QpReport::Ended("disconnected"));
    assert!(active.is_silent() && passive.is_silent());
}

#[test]
fn either_peer_can_disconnect() {
    let manager = TestManager::new();
    for round in 0..50 {
        let (active, passive) = manager.connected();
        let (first, second) = if round % 2 == 0 { (active, passive) } else { (passive, active) };
        first.end();
        assert_eq!(second.next(), QpReport::Ended("disconnected"));
    }
    let unknown_clients = manager.listener.unknown_clients.lock().len();
    assert_eq!(unknown_clients, 0);
}

#[test]
fn only_a_reject_is_reported_as_peer_rejected() {
    let manager = TestManager::new();
    let active = FakeQp::new(1);
    manager.connect(&active, b"", 1);
    manager.request().0.reject(&[]);
    assert_eq!(active.next(), QpReport::Ended("peer rejected"));
    manager.connect(&active, b"", 2);
    drop(manager.request());
    assert_eq!(active.next(), QpReport::Ended("rejected"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    manager.connect_to(free, &active, b"", 3).unwrap();
    assert_eq!(active.next(), QpReport::Ended("rejected"), "the port has no listener");
    manager.listener.close();
    manager.connect(&active, b"", 4);
    assert_eq!(active.next(), QpReport::Ended("rejected"), "the listener was closed");
}

/// A listener wait that does not end during a test.
const LISTENER_WAIT: Duration = Duration::from_secs(600);

/// A TCP port without a listener.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn request_reaches_a_listener_that_is_created_later() {
    let manager = TestManager::with_listener_wait(LISTENER_WAIT);
    let (active, passive) = (FakeQp::new(0x10), FakeQp::new(0x20));
    let port = free_port();
    manager.connect_to(port, &active, b"early", 1).unwrap();
    assert!(active.is_silent(), "the attempt is neither connected nor rejected");
    let _door = manager.manager.open(port.into(), conn(1).ep).unwrap();
    let (caller, private_data, _) = manager.request();
    assert_eq!(private_data, b"early");
    caller.accept_into(passive.clone(), b"", conn(2)).unwrap();
    assert!(matches!(passive.next(), QpReport::BroughtUp { number: 0x10, .. }));
    assert!(matches!(active.next(), QpReport::BroughtUp { number: 0x20, .. }));
    assert_eq!([active.next(), passive.next()], [QpReport::Established(vec![]), QpReport::Established(vec![])]);
    assert!(manager.stage.is_silent(), "the request arrives once");
}

#[test]
fn request_is_rejected_after_listener_wait_without_a_listener() {
    for milliseconds in [0, 1, 50] {
        let manager = TestManager::with_listener_wait(Duration::from_millis(milliseconds));
        let active = FakeQp::new(1);
        manager.connect_to(free_port(), &active, b"", 1).unwrap();
        assert_eq!(active.next(), QpReport::Ended("rejected"), "{milliseconds} ms");
    }
}

#[test]
fn abandoned_attempt_is_not_repeated() {
    let manager = TestManager::with_listener_wait(LISTENER_WAIT);
    let (active, port) = (FakeQp::new(1), free_port());
    manager.connect_to(port, &active, b"", 1).unwrap();
    assert!(active.is_silent());
    active.end();
    let _door = manager.manager.open(port.into(), conn(1).ep).unwrap();
    assert!(manager.stage.is_silent() && active.is_silent());
}

#[test]
fn accept_of_an_abandoned_attempt_fails() {
    let manager = TestManager::new();
    let (active, passive) = (FakeQp::new(1), FakeQp::new(2));
    manager.connect(&active, b"", 1);
    let (caller, ..) = manager.request();
    active.end();
    caller.accept_into(passive.clone(), b"", conn(2)).unwrap();
    let recorded = std::iter::repeat_with(|| passive.next()).find(|recorded| matches!(recorded, QpReport::Ended(_)));
    assert_eq!(recorded, Some(QpReport::Ended("accept failed")));
    assert!(active.is_silent() && passive.is_silent());
}

#[test]
fn accept_fails_and_rejects_the_peer_if_the_qp_is_unusable() {
    let manager = TestManager::new();
    let (active, passive) = (FakeQp::new(1), FakeQp::new(2));
    manager.connect(&active, b"", 1);
    passive.refuse_paths();
    manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
    assert_eq!([passive.next(), active.next()], [QpReport::Ended("accept failed"), QpReport::Ended("rejected")]);
    let (busy, other) = manager.connected();
    manager.connect(&active, b"", 3);
    assert_eq!(manager.request().0.accept_into(busy.clone(), b"", conn(4)), Err(Error::Internal));
    assert_eq!(active.next(), QpReport::Ended("rejected"));
    assert!(busy.is_silent() && other.is_silent(), "the existing connection is not affected");
    active.refuse_paths();
    manager.connect(&active, b"", 5);
    let passive = FakeQp::new(2);
    manager.request().0.accept_into(passive.clone(), b"", conn(6)).unwrap();
    assert!(matches!(passive.next(), QpReport::BroughtUp { .. }));
    assert_eq!([active.next(), passive.next()], [QpReport::Ended("rejected"), QpReport::Ended("accept failed")]);
}

#[test]
fn request_of_the_c_implementation_sent_in_single_bytes_is_accepted() {
    let manager = TestManager::new();
    let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
    for byte in request(0x11, 9, b"abc") {
        peer.write_all(&[byte]).unwrap();
    }
    let (caller, private_data, address) = manager.request();
    assert_eq!((&private_data[..], address), (&b"abc"[..], "192.0.2.7".parse().unwrap()));
    caller.accept_into(passive.clone(), b"xy", conn(2)).unwrap();
    assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x11, gid: [9; 16] });
    let mut reply = [0; 66];
    peer.read_exact(&mut reply).unwrap();
    let mut expected = request(0x20, 8, b"xy");
    expected[5] = 4; // local LID
    expected[7] = 2; // local port
    expected[20..24].copy_from_slice(&[127, 0, 0, 1]); // local address
    assert_eq!(reply[..], expected);
    assert!(passive.is_silent(), "the connection was reported before the confirmation");
    peer.write_all(&READY[..1]).unwrap();
    peer.write_all(&READY[1..]).unwrap();
    assert_eq!(passive.next(), QpReport::Established(vec![]));
    passive.end();
    assert_eq!(rest(&mut peer), DISCONNECT);
}

#[test]
fn missing_gid_of_a_peer_is_derived_from_its_address() {
    let manager = TestManager::new();
    let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
    peer.write_all(&request(0x11, 0, b"")).unwrap();
    manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
    let gid = crate::gid::raw("192.0.2.7".parse().unwrap());
    assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x11, gid });
}

/// Returns a request or accept with this GID.
fn with_gid(number: u8, gid: [u8; 16]) -> Vec<u8> {
    let mut bytes = request(number, 0, b"");
    bytes[48..64].copy_from_slice(&gid);
    bytes
}

#[test]
fn acceptor_uses_a_gid_of_the_requesters_family() {
    let manager = TestManager::new();
    let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
    let peer_gid = crate::gid::raw("192.0.2.7".parse().unwrap());
    peer.write_all(&with_gid(0x11, peer_gid)).unwrap();
    manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
    assert_eq!(passive.next(), QpReport::BroughtUp { number: 0x11, gid: peer_gid });
    let mut reply = [0; 64];
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(reply[48..], V4_GID, "the accept carries the GID that is used");
}

#[test]
fn request_fails_if_no_path_connects_both_gids() {
    let manager = TestManager::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = FakeQp::new(0x10);
    manager.connect_to(listener.local_addr().unwrap().port(), &active, b"", 1).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.read_exact(&mut [0; 64]).unwrap();
    peer.write_all(&with_gid(0x11, V4_GID)).unwrap();
    assert_eq!(active.next(), QpReport::Ended("rejected"));
}

#[test]
fn invalid_request_gets_no_reply() {
    let manager = TestManager::new();
    let mut version = request(1, 1, b"");
    version[1] = 3;
    let mut length = request(1, 1, b"");
    length[15] = 93;
    for wrong in [version, length, b"GET / HTTP/1.1\r\n\r\n".repeat(4), vec![0; 64]] {
        let mut peer = manager.client();
        peer.write_all(&wrong).unwrap();
        assert!(rest(&mut peer).is_empty());
    }
    // Clients that close the socket during a request, or before it.
    for length in [0, 1, 63] {
        manager.client().write_all(&request(1, 1, b"")[..length]).unwrap();
    }
    let mut slow = manager.client();
    slow.write_all(&request(1, 1, b"")[..10]).unwrap();
    assert!(rest(&mut slow).is_empty(), "an incomplete request is closed after its time limit");
    assert!(manager.stage.is_silent());
    assert!(manager.listener.unknown_clients.lock().is_empty());
}

#[test]
fn clients_that_send_nothing_do_not_block_a_request() {
    let manager = TestManager::new();
    let mut clients: Vec<_> = (0..super::MAX_UNKNOWN_CLIENTS * 2).map(|_| manager.client()).collect();
    let (active, passive) = (FakeQp::new(0x10), FakeQp::new(0x20));
    manager.connect(&active, b"", 1);
    manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
    assert!(matches!(active.next(), QpReport::BroughtUp { .. }));
    assert!(rest(&mut clients[0]).is_empty(), "the connection of the oldest client is closed");
}

#[test]
fn invalid_replies_reject_the_attempt() {
    let manager = TestManager::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut version = request(1, 1, b"");
    version[1] = 1;
    let mut length = request(1, 1, b"");
    length[15] = 197;
    for (wrong, closes) in
        [(version, false), (length, false), (Vec::new(), true), (request(1, 1, b"")[..63].to_vec(), true)]
    {
        let active = FakeQp::new(1);
        manager.connect_to(port, &active, b"hi", 1).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut request = [0; 66];
        peer.read_exact(&mut request).unwrap();
        peer.write_all(&wrong).unwrap();
        if closes {
            peer.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(active.next(), QpReport::Ended("rejected"));
        assert!(rest(&mut peer).is_empty());
    }
    let active = FakeQp::new(1);
    manager.connect_to(port, &active, b"", 1).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(&request(1, 1, b"")[..5]).unwrap();
    assert_eq!(active.next(), QpReport::Ended("rejected"), "an incomplete reply is rejected after its time limit");
}

#[test]
fn connection_ends_when_its_socket_is_closed() {
    let manager = TestManager::new();
    for last in [&DISCONNECT[..], b"anything", b""] {
        let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
        peer.write_all(&request(0x11, 9, b"")).unwrap();
        manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
        assert!(matches!(passive.next(), QpReport::BroughtUp { .. }));
        peer.write_all(&READY).unwrap();
        assert_eq!(passive.next(), QpReport::Established(vec![]));
        peer.write_all(last).unwrap();
        drop(peer);
        assert_eq!(passive.next(), QpReport::Ended("disconnected"));
    }
}

#[test]
fn accept_fails_without_a_valid_confirmation_in_time() {
    let manager = TestManager::new();
    for wrong in [Some(&b"\x0e\x0e"[..]), Some(&DISCONNECT), None] {
        let (mut peer, passive) = (manager.client(), FakeQp::new(0x20));
        peer.write_all(&request(0x11, 9, b"")).unwrap();
        manager.request().0.accept_into(passive.clone(), b"", conn(2)).unwrap();
        assert!(matches!(passive.next(), QpReport::BroughtUp { .. }));
        wrong.into_iter().for_each(|wrong| peer.write_all(wrong).unwrap());
        assert_eq!(passive.next(), QpReport::Ended("accept failed"));
    }
}

/// Duplicates a listening and a connected socket, as a fork does. Although the duplicates stay open, a close must end
/// the connection and free the port.
#[test]
fn close_ends_the_connection_and_frees_the_port_of_duplicated_sockets() {
    let manager = TestManager::new();
    let listener = manager.listener.socket.lock().listener.as_ref().unwrap().try_clone().unwrap();
    let active = FakeQp::new(1);
    manager.connect(&active, b"", 1);
    let (caller, ..) = manager.request();
    let connection = caller.into_inner::<SocketConnection>();
    let socket = connection.socket();
    connection.reject(None);
    assert_eq!(active.next(), QpReport::Ended("rejected"));
    manager.listener.close();
    let again = manager.manager.open(manager.port.into(), conn(1).ep);
    assert!(again.is_ok(), "{:?}", again.err());
    drop((listener, socket));
}

#[test]
fn connect_to_a_path_address_is_refused_as_malformed() {
    let manager = TestManager::new();
    let address = PeerAddress::Path("/tmp".into());
    let spec = ConnectSpec { address: &address, qual: 5, private_data: &[] };
    let refused = manager.manager.connect_pair(FakeQp::new(1), &spec, conn(1));
    assert_eq!(refused, Err(Error::InvalidAddress(dapl::error::AddressProblem::Malformed)));
}

mod format_2_0;
