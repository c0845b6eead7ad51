//! Tests of set-up with clients that have exited, and with listeners that are closed, missing or late, cannot use their
//! directory, or share the port with a stopped process. Plain sockets act as some of the peers.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use dapl::error::Error;
use dapl::runtime::handle::ObjectId;

use dapl::provider::ConnectionEvent;

use super::fakes::*;
use crate::cm::ConnectionRequest;
use crate::net::socket::{Socket, SocketConfig, test_config};
use crate::proto::setup::accept::Acceptor;
use crate::proto::setup::connect::{ConnectOutcome, Connector};
use crate::proto::setup::packets::RejectReason;
use crate::proto::setup::tests::TestRandom;
use crate::proto::setup::{Offer, Setup, SetupConfig};

/// Sends a request from a plain socket, waits until the server has received it, and closes the socket.
fn dead_requester(server: &Ia) -> ConnectionRequest {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut dice = TestRandom::new(1);
    let setup = Arc::new(Setup::new(SetupConfig::default(), None));
    let offer = Offer::new(9, &mut dice);
    let mut connector = Connector::new(setup, server.device.address(), 7, offer, b"may I?", 0);
    let mut packet = Vec::new();
    let to = connector.transmit(0, &mut dice, &mut packet).unwrap();
    socket.send_to(&packet, to).unwrap();
    server.request()
}

#[test]
fn accept_fails_by_port_unreachable_if_the_client_has_exited() {
    let (_, there) = addresses();
    let server = Ia::open(&there, "give_up_ms=3600000");
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let request = dead_requester(&server);
    request.accept_into(Arc::new(FakeQp::default()), b"", conn(2), CAPS).unwrap();
    assert_eq!(server.event(), (conn(2), "accept failed"));
}

#[test]
fn pending_request_is_peer_rejected_if_the_listener_has_exited() {
    let (here, there) = addresses();
    let client = Ia::open(&here, "give_up_ms=3600000");
    let bind = |port| UdpSocket::bind((there.as_str(), port)).unwrap();
    let (well_known, data) = (bind(client.device.settings.port), bind(0));
    client.try_connect(there.parse().unwrap(), 7, conn(1)).unwrap();
    let mut packet = [0; 2048];
    let (length, from) = well_known.recv_from(&mut packet).unwrap();
    let (mut dice, mut out) = (TestRandom::new(1), Vec::new());
    let mut acceptor = Acceptor::new(Arc::new(Setup::new(SetupConfig::default(), None)), 0, &mut dice);
    acceptor.receive(0, &packet[..length], from, true, &mut dice, &mut out);
    data.send_to(&out, from).unwrap();
    // The listener closes its well-known port, but its process still exists.
    drop(well_known);
    let (again, requester) = data.recv_from(&mut packet).unwrap();
    assert_eq!((again, requester), (length, from));
    drop(data);
    assert_eq!(client.event(), (conn(1), "peer rejected"));
}

#[test]
fn pending_request_outlives_its_listener() {
    let (here, there) = addresses();
    let (client, server) = (Ia::open(&here, ""), Ia::open(&there, ""));
    let listening = server.cm.listen(7, ObjectId::default()).unwrap();
    client.connect(&server, 7, conn(1));
    let request = server.request();
    drop(listening);
    // The request is retransmitted several times during this sleep.
    std::thread::sleep(Duration::from_millis(400));
    request.accept_into(Arc::new(FakeQp::default()), b"you may", conn(2), CAPS).unwrap();
    assert_eq!(client.object_layer.events.wait(established).0, (conn(1), b"you may".to_vec()));
}

#[test]
fn request_without_a_listener_is_rejected() {
    let (_, there) = addresses();
    let server = Ia::open(&there, "");
    let _listening = server.cm.listen(8, ObjectId::default()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    // The server must handle requests to its data port like those to its well-known port.
    for to in [server.device.address(), server.device.socket.local] {
        let mut dice = TestRandom::new(1);
        let setup = Arc::new(Setup::new(SetupConfig::default(), None));
        let mut connector = Connector::new(setup, to, 7, Offer::new(9, &mut dice), b"", 0);
        let mut packet = Vec::new();
        connector.transmit(0, &mut dice, &mut packet).unwrap();
        socket.send_to(&packet, to).unwrap();
        let mut answer = [0; 2048];
        let (length, from) = socket.recv_from(&mut answer).unwrap();
        let outcome = connector.receive(1, &answer[..length], from, &mut dice);
        assert!(
            matches!(
                outcome,
                Some(ConnectOutcome::Ended(ConnectionEvent::Rejected, _, Some(RejectReason::NoListener)))
            ),
            "expected a reject because no listener exists, not {outcome:?}"
        );
    }
}

#[test]
fn request_sent_before_its_listener_exists_is_accepted() {
    let (here, there) = addresses();
    let wait = "listener_wait_ms=60000";
    let (client, server) = (Ia::open(&here, wait), Ia::open(&there, ""));
    client.connect(&server, 7, conn(1));
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    server.request().accept_into(Arc::new(FakeQp::default()), b"you may", conn(2), CAPS).unwrap();
    assert_eq!(client.object_layer.events.wait(established).0, (conn(1), b"you may".to_vec()));
    let impatient = Ia::open(&here, "listener_wait_ms=0");
    impatient.connect(&server, 8, conn(3));
    assert_eq!(impatient.event(), (conn(3), "rejected"));
}

#[test]
fn listener_works_without_a_usable_base_directory() {
    let (here, there) = addresses();
    let client = Ia::open(&here, "");
    for dir in ["dir=/proc/nowhere", "dir=relative"] {
        let server = Ia::open(&there, dir);
        let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
        assert_eq!(server.cm.listen(7, ObjectId::default()).err(), Some(Error::ConnQualTaken));
        client.connect(&server, 7, conn(1));
        server.accept(conn(2));
        assert_eq!(client.object_layer.events.wait(established).0, (conn(1), b"you may".to_vec()));
    }
}

/// Sockets on the server's port that nothing reads act as stopped processes.
#[test]
fn requests_connect_although_stopped_processes_share_the_port() {
    let (here, there) = addresses();
    let shared = |port| {
        let address = (there.parse::<IpAddr>().unwrap(), port).into();
        let wanted = SocketConfig { address, is_shared: true, ..test_config("127.0.0.1:0") };
        Socket::open(&wanted).unwrap()
    };
    let server = Ia::open(&there, "");
    let port = server.device.settings.port;
    let before = [shared(port), shared(port)];
    let _listening = server.cm.listen(7, ObjectId::default()).unwrap();
    let after = [shared(port), shared(port)];
    for attempt in 0..8 {
        let client = Ia::open(&here, "");
        client.connect(&server, 7, conn(attempt));
        server.accept(conn(100 + attempt));
        assert_eq!(client.object_layer.events.wait(established).0, (conn(attempt), b"you may".to_vec()));
    }
    drop((before, after));
}
